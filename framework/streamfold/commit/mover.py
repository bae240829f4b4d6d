"""Moves deltas into their rows, in transactions that delete deltas and add to each of their rows once.

| delta   | event                                               | next | the failure that this prevents               |
| ------- | --------------------------------------------------- | ---- | -------------------------------------------- |
| pending | it is deleted and its rows are added to, in one     | gone | what it adds counts twice, or is lost        |
|         | transaction that requires of it just what was read  |      |                                              |
| pending | a row takes no addition for good                    | left | its other rows wait for good, or what it     |
|         |                                                     |      | adds to that row is lost unseen              |
| pending | a row counts fewer than it must: somebody removed   | gone | what new items add is lost with what is      |
|         | it                                                  |      | withdrawn from the removed row               |
| left    | a minute passed: the next one to empty the bucket   | gone | it stays after the row was corrected         |
|         | tries again                                         |      |                                              |
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal, DecimalException
from os import urandom
from typing import Any, NamedTuple

from streamfold.commit.plan import dropped
from streamfold.commit.transactions import SENDS_MAX, is_throttled, tables_of, writers_own
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, EngineError, HandlerError, in_brackets, is_fatal, redacted
from streamfold.keys.table import CONTRIBUTORS, MARK, OWNER, VERSION, is_writers
from streamfold.ledger.deltas import Additions, Delta, RowRefusal, delta_key
from streamfold.runtime import Runtime
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    AbsentSource,
    AddRow,
    CorrectRow,
    DeleteRow,
    DeleteState,
    GuardedWrite,
    Reason,
    RowKey,
    StateKey,
    SwapText,
    limits_of,
)

PAUSES_MAX = 2
"""Times that the pause of a merge is doubled, to 0.2 seconds: all who wait for its bucket wait for it."""
LostRow = tuple[str, RowKey]


class Exceptions(NamedTuple):
    """The rows of a merge that are not simply added to."""

    refusing: dict[RowKey, str]  # rows that take no addition for good, with the reason
    fatal: set[RowKey]  # of these: their tables are missing or forbidden
    removed: dict[RowKey, Mapping[str, Any] | None]  # rows that somebody removed, as they were found


class Mover:
    """Moves deltas of one bucket into their rows, in transactions of up to 100 actions."""

    def __init__(self, runtime: Runtime, texts: Mapping[str, str], renew: Callable[[], None] = lambda: None) -> None:
        self.runtime, self.engine = runtime, runtime.engine
        self.texts = texts  # as they were read
        self.renew = renew  # is called between two transactions, to keep the lease of the bucket
        self.merged = 0
        self.lost: set[LostRow] = set()

    def move_all(self, deltas: Mapping[str, Delta]) -> None:
        """Moves all of these, as many together as a transaction takes. Raises ``Contended`` if rows refuse some."""
        together: dict[str, Delta] = {}
        rows: set[RowKey] = set()
        groups = [together]
        for name, delta in sorted(deltas.items()):
            more = {each.key for each in delta.additions}
            if together and len(together) + 1 + len(rows | more) > ACTIONS_MAX:
                together, rows = {}, set()
                groups.append(together)
            together[name] = delta
            rows |= more
        contended: Contended | None = None
        for number, some in enumerate(groups if together else ()):
            if number:
                self.renew()
            try:
                self.move(some)
            except Contended as error:  # by one row, which keeps no other waiting
                contended = error
        if contended is not None:
            raise contended

    def move(self, deltas: Mapping[str, Delta]) -> None:
        """Moves deltas in one transaction, or one by one where a row refuses them.

        What others have moved meanwhile stays as it is. Raises ``Contended`` if rows refuse at every try.
        """
        try:
            additions = Additions(each for delta in deltas.values() for each in delta.additions)
            if self._is_merged(deltas, additions):
                return
        except (DecimalException, HandlerError):  # of several deltas: the sum of one was made when it was put
            if len(deltas) == 1:
                raise
        contended: Contended | None = None
        for name, delta in deltas.items() if len(deltas) > 1 else ():
            try:
                self.move({name: delta})
            except Contended as error:
                contended = error
        if contended is not None:  # by one row, which keeps no other waiting
            raise contended

    def _is_merged(self, deltas: Mapping[str, Delta], additions: Additions) -> bool:
        """Moves deltas in one transaction; False if one by one is needed, so that one row keeps no other waiting."""
        exceptions, conflicts, limits = Exceptions({}, set(), {}), 0, ""
        tables = [*dict.fromkeys(row[0] for row in additions.rows)]
        for _ in range(TRIES_MAX + len(tables)):
            try:
                writes = self._merge(deltas, additions, exceptions)
                refused = self.engine.transact(writes, self.runtime.expires_at)
            except EngineError as error:
                # The table of some row is missing or forbidden: the others must not wait for it.
                if not is_fatal(error) or len(exceptions.refusing) == len(additions):
                    raise
                if len(deltas) > 1:
                    return False
                suspects = {tables.pop()} if len(tables) > 1 else {row[0] for row in additions.rows}
                exceptions.refusing.clear()
                exceptions.refusing.update((row, str(error)) for row in additions.rows if row[0] in suspects)
                exceptions.fatal.clear()
                exceptions.fatal.update(exceptions.refusing)
                continue
            if refused is None:
                self.merged += len(deltas)
                handlers = {handler for delta in deltas.values() for handler in delta.handlers}
                self.lost |= {(handler, row) for handler in handlers for row in exceptions.removed}
                return True
            reasons = {write.key: why for write, why in zip(writes, refused.reasons, strict=True) if why is not None}
            if _are_merged(reasons):
                self._unmark(writes)
                return True
            if all(why.code in CONFLICT for why in reasons.values()):
                if len(deltas) > 1 and conflicts + 1 >= SENDS_MAX:
                    return False
                limits = in_brackets(limits_of(refused, tables_of(writes)))
                self.runtime.back_off(min(conflicts, PAUSES_MAX), throttled=is_throttled(refused))
                conflicts += 1
                continue
            _decide(additions, reasons, exceptions)
            if len(deltas) > 1 and any(exceptions):
                return False
        raise Contended(f"Others are in the way{limits}: deltas were refused {TRIES_MAX} times in a row.")

    def _merge(
        self, deltas: Mapping[str, Delta], additions: Additions, exceptions: Exceptions
    ) -> Sequence[GuardedWrite]:
        """One transaction: deltas go, and each of their rows gets what they add.

        A row is written also where the sum is 0: if somebody removed it, what new items add must not be lost.
        """
        refusing, fatal, removed = exceptions
        marks = self._marked(additions, {*refusing, *removed})
        rows = [row for row in additions.rows if row not in refusing]
        writes: list[GuardedWrite] = []
        for name, delta in deltas.items():
            remaining = [each for each in delta.additions if each.key in refusing]
            if not remaining:
                writes.append(DeleteState(delta_key(self.runtime.application.name, name), self.texts[name]))
                continue
            # Under its own name: ledger items know it by that, and their records are reported.
            now = int(self.runtime.clock())
            reason = "; ".join(dict.fromkeys(refusing[each.key] for each in remaining))
            is_fatal = any(each.key in fatal for each in remaining)
            kept = Delta(tuple(remaining), delta.handlers, (), RowRefusal(reason, now, is_fatal))
            writes.append(SwapText(delta_key(self.runtime.application.name, name), kept.text(), self.texts[name]))
        for row in rows:
            if row in removed:
                writes += _entering(additions, row, removed[row])
            elif row in marks:
                writes.append(DeleteRow(row, marks[row]))
            else:
                writes.append(additions.both(row))
        return writes

    def _marked(self, additions: Additions, but: Collection[RowKey]) -> dict[RowKey, str]:
        """Marks rows that would count nobody then; returns the marks. The merge deletes such a row on its mark.

        Without it the row would stay empty for good if this process died. Every addition takes the mark away, so no
        addition goes with the row. The mark is in the owner attribute: the record of the deletion is known by it.
        """
        leaving = [row for row in additions.rows if row not in but and additions.both(row).contributors < 0]
        marks: dict[RowKey, str] = {}
        found = self.engine.read_rows(leaving) if leaving else {}
        for row in leaving:
            stored, addition = found.get(row, {}), additions.both(row)
            counted = _counted(stored)
            if (
                VERSION in stored
                or counted is None
                or not counted == addition.contributors_min == -addition.contributors
            ):
                continue
            mark = MARK + urandom(16).hex()
            known = {name: stored[name] for name in (CONTRIBUTORS, OWNER) if name in stored}
            absent = () if OWNER in stored else (OWNER,)
            if self.engine.transact([CorrectRow(row, known, absent, {OWNER: mark})], 0) is None:
                marks[row] = mark
        return marks

    def _unmark(self, writes: Iterable[GuardedWrite]) -> None:
        """Takes the marks of a merge away that others have made meanwhile: it may have marked a row that is new."""
        for write in writes:
            if isinstance(write, DeleteRow) and write.owner:
                self.engine.transact([CorrectRow(write.key, {OWNER: write.owner}, removed=(OWNER,))], 0)


def _are_merged(reasons: Mapping[RowKey | StateKey, Reason]) -> bool:
    """Whether others have moved some of the deltas: what is pending of them is found again."""
    return any(isinstance(key, StateKey) and why.code == CONDITION for key, why in reasons.items())


def _decide(additions: Additions, reasons: Mapping[RowKey | StateKey, Reason], exceptions: Exceptions) -> None:
    """Notes what the refusals of rows mean for the next try."""
    for row, why in reasons.items():
        if not isinstance(row, StateKey):
            _decide_row(additions.both(row), why, exceptions, comes=additions.entering(row) is not None)


def _decide_row(addition: AddRow, why: Reason, exceptions: Exceptions, *, comes: bool) -> None:
    row, item = addition.key, why.item or {}
    was_put = VERSION in item if addition.unversioned else comes and bool(item) and CONTRIBUTORS not in item
    if why.code != CONDITION:
        if why.code not in CONFLICT:
            exceptions.refusing[row] = f"The store refused the write with {why.code}: {redacted(why.message)}"
    elif comes and is_writers(why.item):
        exceptions.refusing[row] = writers_own(row)
    elif was_put:
        exceptions.refusing[row] = (
            f"Row {redacted(_name(row))} is added to, and was put or deleted before: a row is put or added to, never "
            "both. Give the additions a target of their own."
        )
    elif (counted := _counted(item)) is None:
        exceptions.refusing[row] = (
            f"Row {redacted(_name(row))} has {redacted(item[CONTRIBUTORS])} in {CONTRIBUTORS}, which counts no items. "
            "Remove the row, then run streamfold verify --rows --repair, which makes it anew."
        )
    elif row in exceptions.removed:
        del exceptions.removed[row]  # it counts enough again, or is there again: somebody corrected it
    elif addition.contributors_min is not None and counted < addition.contributors_min:
        exceptions.removed[row] = why.item


def _entering(additions: Additions, row: RowKey, found: Mapping[str, Any] | None) -> Sequence[AddRow | AbsentSource]:
    """What new items add to a row that somebody removed. It requires that the row counts too few still."""
    entering, counted = additions.entering(row), additions.counted(row)
    assert counted is not None, "only a row that must count somebody counts too few"
    if entering is None:
        return dropped(counted, found)
    return [entering._replace(contributors_below=counted.contributors_min, removed=(OWNER,))]


def _counted(row: Mapping[str, object]) -> int | None:
    """How many contributors a row counts; None for what somebody else wrote there."""
    counted = row.get(CONTRIBUTORS, 0)
    if isinstance(counted, bool) or not isinstance(counted, int | Decimal) or counted < 0 or counted != int(counted):
        return None
    return int(counted)


def _name(row: RowKey) -> str:
    return " / ".join(str(component) for component in row[1:] if component is not None)
