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

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from streamfold.commit.plan import Unit, WrittenKey, ledger_unit
from streamfold.commit.transactions import by_table, counts_contributors
from streamfold.errors import EngineError
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.runtime import Runtime
from streamfold.settings.limits import STATEMENTS_MAX
from streamfold.writes.guarded import CONDITION, AddRow, GuardedWrite, Reason, Refused, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.commit.pending import Progress

TRUSTED_AFTER_STEPS = 500
"""A refused transaction costs up to 200 write units, perhaps one in each call slot; a step without a note saves two."""


def emptying_handlers(runtime: Runtime) -> Container[str]:
    """The handlers whose steps note their rows."""
    if runtime.actions:  # a large transaction
        return frozenset(route.name for route in runtime.application.routes)
    return runtime.pace.emptying


def note_refused(emptying: dict[str, int], units: Iterable[Unit], row: WrittenKey) -> None:
    """Notes the handlers that would have left a row empty, by the steps that leave it."""
    for step in (step for unit in units for step in unit.steps):
        if row in (step.before or ()) and row not in step.after:
            emptying[step.route.name] = 0


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
    planned = ledger_unit(key, unit.item, steps, unit.changes, unit.found, unit.added, retired, unit.lives)
    assert planned is not None, "it was planned from the same ledger item before"
    return planned


class LoweredRows:
    """The rows of a batch from which a contribution was subtracted, and which may be empty."""

    __slots__ = ("_changed", "_lowered")

    def __init__(self) -> None:
        self._changed: dict[RowKey, int] = {}  # by how much a row's count of contributors changed on balance
        self._lowered: set[RowKey] = set()  # of these, rows that a write may have left empty

    def add(self, write: AddRow) -> None:
        """Adds a write that was committed and changed the count of a row."""
        key, changed = write.key, self._changed
        changed[key] = changed.get(key, 0) + write.contributors
        # A write that requires a contributor cannot leave the row empty: a removal would be sent in vain.
        if write.contributors < 0 and not write.requires_contributor:
            self._lowered.add(key)

    def add_noted(self, row: RowKey) -> None:
        """Adds a row that an attempt that died may have left empty."""
        self._changed.setdefault(row, -1)
        self._lowered.add(row)

    def maybe_empty(self) -> list[RowKey]:
        """The rows that were lowered, and to which not as much was added."""
        return [row for row, contributors in self._changed.items() if contributors < 0 and row in self._lowered]


def remove_empty(runtime: Runtime, progress: "Progress") -> None:
    """Removes rows without contributors, and learns which handlers' rows become empty."""
    pending_work, emptied = progress.pending_work, set[str]()
    if rows := pending_work.lowered.maybe_empty():
        for keys, removed in by_table(runtime, rows, runtime.engine.remove_empty, STATEMENTS_MAX):
            if isinstance(removed, EngineError):
                failures = pending_work.failures(keys, removed)
                emptied.update(failed.route.name for failed in failures)  # for all that is known
                progress.report(failures)
                continue
            progress.lives.removed(removed)
            for key in removed:
                for handler in pending_work.handlers(key):
                    progress.outcome.tally(handler).removed += 1
                    emptied.add(handler)
    if pending_work.left:
        count_steps(runtime.pace.emptying, Counter([handler for _, handler in pending_work.left]), emptied)
