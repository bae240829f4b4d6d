"""May this row become empty? A row without contributors is removed, but most steps leave other contributors on their
rows.

A step that subtracts a contribution from a row does one of two things. It *requires a contributor*: the row refuses
the step if it would count none afterwards. Or it *notes* the row in its ledger item, and the row is removed after the
commit if it counts none. A note costs two requests and two write units more. The choice is learned for each handler
(``SendingPace.emptying``):

| handler  | event                            | next     | the failure that this prevents                             |
| -------- | -------------------------------- | -------- | ---------------------------------------------------------- |
| trusted  | a step is planned: it requires a | trusted  | each step pays for a note, and a removal that finds others |
|          | contributor                      |          |                                                            |
| trusted  | a row refuses the step: it is    | emptying | each step of the batch is refused in turn, for up to 200   |
|          | planned again, with notes, and   |          | write units                                                |
|          | so are the steps that wait       |          |                                                            |
| emptying | a step is planned: it has notes  | emptying | the next row that it leaves empty refuses it again         |
| emptying | a row was empty                  | emptying | it is trusted between two rows that it leaves empty        |
| emptying | ``TRUSTED_AFTER_STEPS`` steps in | trusted  | one row makes the handler pay for good                     |
|          | a row left none empty            |          |                                                            |
| either   | a step of a large transaction is | the same | thousands of steps always leave some row empty: every such |
|          | planned: it has notes            |          | transaction is refused                                     |

Rows with entries and rows that are shown on a parent are always noted (``ledger.difference``): they need more work than
a removal.

| row     | event                                 | next    | the failure that this prevents                           |
| ------- | ------------------------------------- | ------- | -------------------------------------------------------- |
| counted | subtracted from, with a note          | lowered | readers see a row of nothing                             |
| lowered | the batch adds as many contributors   | counted | a removal is sent for a row that is surely not empty     |
| lowered | removal, and it counts none           | removed |                                                          |
| lowered | removal, and it counts some           | counted | additions of another process are removed                 |
| lowered | the process dies before the removal,  | noted   | the row stays empty for good, because the ledger has the |
|         | or the store refuses it               |         | step already                                             |
| noted   | its item is retried, redelivered, or  | lowered | no process finds the empty row                           |
|         | makes another step                    |         |                                                          |

A note is cleared once its row is removed or counted (``clear_pending``).
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from decimal import Decimal

from streamfold.commit.plan import Unit, WrittenKey, ledger_unit, unit_of
from streamfold.commit.transactions import counts_contributors
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.ledger.contribution import Contribution, elsewhere, stored_rows
from streamfold.ledger.step import Step, reconciled
from streamfold.writes.guarded import CONDITION, AddRow, GuardedWrite, LedgerWrite, Reason, Refused, RowKey, StateKey

TRUSTED_AFTER_STEPS = 500
"""A refused transaction costs up to 200 write units, perhaps one in each call slot; a step without a note saves two."""


def note_refused(emptying: dict[str, int], units: Iterable[Unit], row: WrittenKey) -> None:
    """Notes the handlers that would have left a row empty, by the steps that leave it."""
    for unit in units:
        for step in unit.steps:
            if row not in step.after and row in (step.before or _stored(unit, step)):
                emptying[step.route.name] = 0


def _stored(unit: Unit, step: Step) -> Contribution:
    contribution = None if unit.found is None else unit.found.contributions.get(step.route.name)
    return {} if contribution is None or elsewhere(contribution) else stored_rows(contribution.text)


def count_steps(emptying: dict[str, int], steps: Mapping[str, int], emptied: Collection[str]) -> None:
    """Takes how many steps of handlers noted rows, and the handlers of rows that were empty."""
    for handler, count in steps.items():
        if handler in emptied:
            emptying[handler] = 0
        elif handler in emptying:
            emptying[handler] += count
            if emptying[handler] >= TRUSTED_AFTER_STEPS:
                del emptying[handler]


def would_be_empty(write: GuardedWrite, reason: Reason) -> bool:
    """Whether an addition was refused only because the row would count no contributor then."""
    if not (isinstance(write, AddRow) and write.requires_contributor and counts_contributors(reason)):
        return False
    found = reason.item or {}
    has_version = write.unversioned and VERSION in found
    counted = found[CONTRIBUTORS]
    enough = isinstance(counted, int | Decimal) and counted >= (write.contributors_min or 0)
    return reason.code == CONDITION and not has_version and enough


def only_empty(writes: Sequence[GuardedWrite], refused: Refused) -> bool:
    """Whether nothing but rows that would be empty refused a transaction."""
    return all(would_be_empty(write, reason) for write, reason in zip(writes, refused.reasons, strict=True) if reason)


def with_notes(unit: Unit, emptying: Container[str], retired: Collection[str] = ()) -> Unit:
    """A ledger unit, planned so that the steps of these handlers note their rows."""
    if not any(type(effect) is AddRow and effect.requires_contributor for effect in unit.effects):
        return unit
    steps = tuple([step._replace(requires_contributor=step.route.name not in emptying) for step in unit.steps])
    key = unit.guard.key
    assert isinstance(key, StateKey)
    if isinstance(unit.guard, LedgerWrite) and unit.guard.fence:  # a visit
        assert unit.found is not None
        transition = reconciled(key, unit.item, steps, unit.found, unit.added, unit.lives)
        return unit_of(unit.item, transition, unit.changes, unit.added, unit.found, unit.lives)
    planned = ledger_unit(key, unit.item, steps, unit.changes, unit.found, unit.added, retired, unit.lives)
    assert planned is not None, "it was planned from the same ledger item before"
    return planned


class LoweredRows:
    """The rows of a batch from which a contribution was subtracted, and which may be empty."""

    __slots__ = ("_changed", "_lowered", "_paged")

    def __init__(self) -> None:
        self._changed: dict[RowKey, int] = {}  # by how much a row's count of contributors changed on balance
        self._lowered: set[RowKey] = set()  # of these, rows that a write may have left empty
        self._paged: set[RowKey] = set()  # of these, rows that a page of a large step added to

    def add(self, write: AddRow) -> None:
        """Adds a write that was committed and changed the count of a row."""
        key, changed = write.key, self._changed
        changed[key] = changed.get(key, 0) + write.contributors
        # A write that requires a contributor cannot leave the row empty: a removal would be sent in vain.
        if write.contributors < 0 and not write.requires_contributor:
            self._lowered.add(key)

    def add_page(self, effects: Iterable[object]) -> None:
        """Adds the writes of one page of a large step.

        The next page is planned from newer images, and may subtract what this page added. The row's count then changes
        by 0 on balance, and the row may be empty all the same.
        """
        self._paged.update(each.key for each in effects if isinstance(each, AddRow) and each.contributors > 0)

    def add_noted(self, row: RowKey) -> None:
        """Adds a row that an attempt that died, or that another process is at, may have left empty.

        Contributors that this batch added before may be those that the note is of: another process took back what a
        page of a large step had added. So they keep no row from its removal, and those that come after do.
        """
        self._changed[row] = min(self._changed.get(row, -1), -1)
        self._lowered.add(row)

    def maybe_empty(self) -> list[RowKey]:
        """The rows that were lowered, and to which not as much was added."""
        lowered, paged = self._lowered, self._paged
        return [row for row, by in self._changed.items() if row in lowered and (by < 0 or (by == 0 and row in paged))]
