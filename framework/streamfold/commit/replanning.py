"""Plans units again, from the item in a refusal or from the ledger."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamfold.commit.emptying import note_refused, with_notes, would_be_empty
from streamfold.commit.ledger_units import Follows, ImageSource, LedgerUnits, ReadItem
from streamfold.commit.pending import Progress
from streamfold.commit.plan import (
    Transaction,
    Unit,
    WrittenKey,
    again,
    by_handler,
    is_dropped,
    is_lost,
    without,
    without_row,
    writers,
)
from streamfold.commit.transactions import counts_contributors, is_added_to, is_stale, not_its_row, read_state
from streamfold.errors import EngineError, HandlerError, RowTaken
from streamfold.ledger.deltas import is_delta
from streamfold.writes.guarded import (
    CONDITION,
    AddRow,
    DeleteState,
    GuardedWrite,
    LedgerWrite,
    Reason,
    Refused,
    RowKey,
    StateKey,
    SwapText,
)

if TYPE_CHECKING:
    from streamfold.commit.pending import ItemAndHandler


class Replanner(Follows):
    """Plans units again. A unit that cannot be planned again fails; a unit that the state has already is done."""

    def __init__(self, source: ImageSource, progress: Progress) -> None:
        self.runtime = source.runtime
        self.source = source
        self.progress = progress
        self.lives = progress.lives = source.lives
        self.rounds = 1  # that the last refusal counts for: none where it showed a life that is over
        self.tried: dict[ItemAndHandler, int] = {}  # changes that had got through when a unit was put behind

    @property
    def desk(self) -> LedgerUnits[ReadItem]:
        # Made at each call: what it refers to would be freed late.
        return LedgerUnits(self.source, self)

    def decide(self, transaction: Transaction, refused: Refused) -> list[Unit]:
        """The units of a transaction to be sent again after conditions failed."""
        failing = [reason if reason and reason.code == CONDITION else None for reason in refused.reasons]
        count, over = len(transaction.units), self.lives.over
        outlived = {
            write.key
            for write, reason in zip(transaction.writes[count:], failing[count:], strict=True)
            if reason is not None and self.lives.refused(write, reason.item)
        }
        guarded = [*zip(transaction.units, failing, strict=False)]
        units: list[Unit] = []
        read: list[ReadItem] = []
        for unit, reason in guarded:
            if reason is None:
                units.append(unit)
            elif not self.source.visits:
                read += self._found_by(unit, reason)
        units += self.desk.plan(read)
        if self.source.visits:  # the item in the refusal is newer than the source that was read
            units += self.again([unit for unit, reason in guarded if reason is not None])
        assumed = any(reason for unit, reason in guarded if unit.steps)
        for write, reason in zip(transaction.writes[count:], failing[count:], strict=True):
            # Units that assumed another contribution are planned again: the row's refusal does not apply to their new
            # writes.
            if isinstance(write, SwapText) and write.expected is None:
                continue  # refused with the ledger items that name the delta: the transaction had taken effect before
            if reason is not None and isinstance(write, SwapText | DeleteState) and is_delta(write.key):
                units = self._without_share(units, write.key)  # others have moved it, or taken their shares out
                continue
            if reason is not None and not (assumed and isinstance(write, AddRow)) and write.key not in outlived:
                units = self._without_refused(units, write, reason)
        self.rounds = int(self.lives.over == over)
        return self._in_other_lives(units, outlived) if outlived else units

    def _without_share(self, units: list[Unit], delta: StateKey) -> list[Unit]:
        """Units planned again that would take a share out of a delta which is not as it was read."""
        changed = [unit for unit in units if writes_any(unit, {delta})]
        return [unit for unit in units if not writes_any(unit, {delta})] + self.again(changed, consistent=True)

    def _in_other_lives(self, units: list[Unit], outlived: Collection[WrittenKey]) -> list[Unit]:
        """Units planned again that assumed another state of these rows."""
        if self.source.visits:
            wrong = [unit for unit in units if writes_any(unit, outlived)]
            return [unit for unit in units if not writes_any(unit, outlived)] + self.again(wrong)
        retired, lives = self.source.retired, self.lives
        planned = (again(unit, unit.found, retired, lives) if writes_any(unit, outlived) else unit for unit in units)
        return [unit for unit in planned if unit is not None]

    def _found_by(self, unit: Unit, reason: Reason) -> list[ReadItem]:
        """A unit with the ledger item that refused it; a claim that is there is done."""
        if not isinstance(unit.guard, LedgerWrite):
            self._claimed(unit, reason.item)
            return []
        if reason.item is None and unit.guard.revision == 0:  # refused because there is an item, yet none is shown
            return self.desk.read([ReadItem.of(unit)], consistent=True)
        read = ReadItem.of(unit)
        return [read] if self.desk.fill(read, reason.item) else []

    def _claimed(self, unit: Unit, claim: Mapping[str, Any] | None) -> None:
        """Counts a change that was done before. What its claim names may still wait in deltas."""
        try:
            self.progress.pending_work.wait_for((claim or {}).get("p", ""), unit.routes, unit.changes)
        except EngineError as error:  # a damaged claim fails its own change alone
            self.progress.fail([unit], error)
        else:
            self.progress.done(unit)

    def _without_refused(self, units: list[Unit], write: GuardedWrite, reason: Reason) -> list[Unit]:
        if is_stale(write, reason):
            return [without(unit, [write.key]) for unit in units]
        if would_be_empty(write, reason):
            note_refused(self.runtime.pace.emptying, units, write.key)
            # Of all handlers: a refusal need not name every row.
            return [with_notes(unit, [route.name for route in unit.routes], self.source.retired) for unit in units]
        if is_dropped(write):  # the row counts enough by now, or is there again
            return self._in_other_lives(units, [write.key])
        if isinstance(write, AddRow) and write.contributors_min is not None:
            units = self._without_lost(units, write.key, reason.item)
            if reason.item is None or counts_contributors(reason):
                return units
        return self._of_another(units, write, reason)

    def _of_another(self, units: list[Unit], write: GuardedWrite, reason: Reason) -> list[Unit]:
        """The units to be sent again after a row refused a write that is another handler's, or nobody's."""
        remaining: list[Unit] = []
        for unit in units:
            if not writes_any(unit, {write.key}):
                remaining.append(unit)
            elif is_added_to(write, reason):
                remaining += self.again([unit._replace(added=unit.added | {write.key})], consistent=True)
            elif self.lives.expired(write):
                remaining += self._in_other_lives([unit], [write.key])
            elif len(apart := by_handler(unit, self.lives)) > 1:
                remaining += apart
            else:
                self._taken(unit, not_its_row(unit.routes[0], write, reason))
        return remaining

    def _without_lost(self, units: Sequence[Unit], row: RowKey, found: Mapping[str, Any] | None) -> list[Unit]:
        """Units without their amendments of a row that somebody removed, which are counted."""
        for unit in units:
            if any(is_lost(effect, row, found) for effect in unit.effects):
                self.progress.lose(row, writers(unit, row))
        return [unit._replace(effects=without_row(unit.effects, row, found)) for unit in units]

    def with_notes(self, units: Iterable[Unit]) -> list[Unit]:
        """Units whose steps note the rows that they may leave empty, if their handlers do so every now and then."""
        return [with_notes(unit, self.runtime.pace.emptying, self.source.retired) for unit in units]

    def _taken(self, unit: Unit, error: HandlerError) -> None:
        """Tries a unit again behind the others while these get through: one of them may give the row up."""
        work, got_through = (unit.item, unit.routes[0].name), len(self.progress.outcome.fresh)
        if isinstance(error, RowTaken) and unit.steps and self.tried.get(work) != got_through:
            self.tried[work] = got_through
            self.progress.behind.append(unit)
        else:
            self.progress.fail([unit], error)

    def again(self, units: Sequence[Unit], *, consistent: bool = False) -> list[Unit]:
        read = [self.source.again(unit) for unit in units]
        return self.desk.plan(self.desk.read(read, consistent=consistent or self.source.visits))

    def failed(self, read: Sequence[ReadItem], error: Exception, *, of_item: bool = False) -> None:
        del of_item  # it is reported in any case
        self.progress.fail_changes(((each.routes, each.changes) for each in read), error)

    def applied(self, read: ReadItem, *, partly: bool) -> None:
        assert read.unit is not None
        if partly:
            self.progress.partly_applied = True
        else:
            self.progress.done(read.unit._replace(routes=tuple(read.routes)))

    def unclaimed(self, units: list[Unit]) -> list[Unit]:
        """The units without those whose claims exist already."""
        claims = [unit for unit in units if not unit.steps]
        if not claims:
            return units
        try:
            taken = read_state(self.runtime, [unit.guard.key for unit in claims])
        except EngineError as error:
            self.progress.fail(claims, error)
            return [unit for unit in units if unit.steps]
        for unit in claims:
            if unit.guard.key in taken:
                self._claimed(unit, taken[unit.guard.key])
        return [unit for unit in units if unit.guard.key not in taken]


def writes_any(unit: Unit, places: Collection[RowKey | StateKey]) -> bool:
    """Whether a unit writes an item of one of these keys."""
    return unit.guard.key in places or any(effect.key in places for effect in unit.effects)
