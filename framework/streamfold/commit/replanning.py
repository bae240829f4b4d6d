"""Plans units again, from what a refusal says or what the ledger holds.

| what was refused                           | the unit is then                                                   |
| ------------------------------------------ | ------------------------------------------------------------------ |
| the guard of a ledger unit                 | planned again, from the item that came with the refusal            |
| the claim of an ``on`` handler             | done: an earlier attempt took effect                               |
| a row that is as new as the write          | sent without the write                                             |
| an addition that would leave a row empty   | planned again with a note of the row, as it is removed afterwards  |
| an addition to a row that somebody removed | sent without the addition, and counted; a row that is there is     |
|                                            | recomputed                                                         |
| an addition to a row of another life       | planned again: it comes to that row, or it changes nothing         |
| an amendment of a whole row that expired   | planned again: it changes nothing                                  |
| a whole row, which others add to           | planned again, so that it adds to the row too                      |
| a row of another item, by several handlers | split by handler, so that only the one that wants the row fails    |
| a row of another item, by one handler      | tried again behind all units while one gets through, then failed   |
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from streamfold.commit.ledger_reads import filled
from streamfold.commit.plan import Chunk, Unit, WrittenKey, again, amends, by_handler, noted, without, without_row
from streamfold.commit.progress import Progress
from streamfold.commit.refusals import counts_contributors, is_added_to, is_stale, not_its_row, would_be_empty
from streamfold.commit.sending import read_state
from streamfold.commit.unfinished import NamedByHandler, writers
from streamfold.engines import Engine
from streamfold.errors import EngineError, HandlerError, RowTaken
from streamfold.ledger.item import LedgerItem
from streamfold.run import Run
from streamfold.writes.guarded import CONDITION, AddRow, GuardedWrite, LedgerWrite, Reason, Refused, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.commit.unfinished import ItemAndHandler

Named = Callable[[Unit, LedgerItem], Iterable[NamedByHandler]]


class Replanner:
    """Plans units again. What cannot be planned again fails; what the state has already is done."""

    def __init__(
        self,
        engine: Engine,
        run: Run,
        progress: Progress,
        named: Named,
        retired: Collection[str],
    ) -> None:
        self.engine = engine
        self.lanes = run.lanes
        self.emptying = run.pace.emptying  # handlers that leave rows empty every now and then
        self.progress = progress
        self.named = named  # the rows of an item that an earlier attempt may have left unfinished
        self.lives = progress.lives
        self.rounds = 1  # that the last refusal counts for: none where it showed a life that is over
        self.retired = retired  # handlers whose parts of a ledger item go with the last other one
        self.behind: list[Unit] = []  # units whose row is another item's, to be tried again behind the others
        self.tried: dict[ItemAndHandler, int] = {}  # changes that had got through when a unit was put behind

    def decide(self, chunk: Chunk, refused: Refused) -> list[Unit]:
        """The units of a chunk as they are to be sent again after conditions failed."""
        failing = [reason if reason and reason.code == CONDITION else None for reason in refused.reasons]
        count, over = len(chunk.units), self.lives.over
        outlived = {
            write.key
            for write, reason in zip(chunk.writes[count:], failing[count:], strict=True)
            if reason is not None and self.lives.refused(write, reason.item)
        }
        units: list[Unit] = []
        for unit, reason in zip(chunk.units, failing, strict=False):
            units += [unit] if reason is None else self._decided(unit, reason)
        assumed = any(reason for unit, reason in zip(chunk.units, failing, strict=False) if unit.steps)
        for write, reason in zip(chunk.writes[count:], failing[count:], strict=True):
            # What a row refused to units that assumed another contribution says nothing of what they do now.
            if reason is not None and not (assumed and isinstance(write, AddRow)) and write.key not in outlived:
                units = self._without_refused(units, write, reason)
        self.rounds = int(self.lives.over == over)
        return self._in_other_lives(units, outlived) if outlived else units

    def _in_other_lives(self, units: list[Unit], outlived: Collection[WrittenKey]) -> list[Unit]:
        """Units planned again that assumed another life of their rows."""
        planned = (again(unit, unit.found, self.retired) if writes_any(unit, outlived) else unit for unit in units)
        return [unit for unit in planned if unit is not None]

    def _decided(self, unit: Unit, reason: Reason) -> list[Unit]:
        if not isinstance(unit.guard, LedgerWrite):
            self.progress.done(unit)
            return []
        if reason.item is None and unit.guard.revision == 0:  # refused because there is an item, yet none is shown
            return self.again([unit], consistent=True)
        found = self._filled(unit, LedgerItem.of(reason.item))
        return [] if found is None else self.planned(unit, found)

    def _without_refused(self, units: list[Unit], write: GuardedWrite, reason: Reason) -> list[Unit]:
        if is_stale(write, reason):
            return [without(unit, [write.key]) for unit in units]
        if would_be_empty(write, reason):
            self._learn(units, write.key)
            return [noted(unit, None, self.retired) for unit in units]  # a refusal may not tell of every row
        if isinstance(write, AddRow) and write.least is not None:
            return self._without_lost(units, write.key, there=counts_contributors(reason))
        left: list[Unit] = []
        for unit in units:
            if not writes_any(unit, {write.key}):
                left.append(unit)
            elif is_added_to(write, reason):
                left += self.again([unit._replace(added=unit.added | {write.key})], consistent=True)
            elif self.lives.expired(write):
                left += self._in_other_lives([unit], [write.key])
            elif len(parts := by_handler(unit)) > 1:
                left += parts
            else:
                self._taken(unit, not_its_row(unit.routes[0], write, reason))
        return left

    def _without_lost(self, units: Sequence[Unit], row: RowKey, *, there: bool) -> list[Unit]:
        """Units without their amendments of a row that somebody removed, which are counted."""
        for unit in units:
            if any(effect.key == row and amends(effect) for effect in unit.effects):
                self.progress.lose(row, writers(unit, row))
        return [unit._replace(effects=without_row(unit.effects, row, there=there)) for unit in units]

    def _learn(self, units: Sequence[Unit], row: WrittenKey) -> None:
        """Notes whose steps would have left a row empty."""
        for step in (step for unit in units for step in unit.steps):
            if row in (step.before or ()) and row not in step.after:
                self.emptying.met(step.route.name)

    def noted(self, units: Iterable[Unit]) -> list[Unit]:
        """Units with a note of the rows that they may leave empty, where their handlers do so every now and then."""
        return [noted(unit, self.emptying, self.retired) for unit in units]

    def _taken(self, unit: Unit, error: HandlerError) -> None:
        """Tries a unit again behind the others while these get through: one of them may give the row up."""
        work, got_through = (unit.item, unit.routes[0].name), len(self.progress.outcome.fresh)
        if isinstance(error, RowTaken) and unit.steps and self.tried.get(work) != got_through:
            self.tried[work] = got_through
            self.behind.append(unit)
        else:
            self.progress.fail([unit], error)

    def again(self, units: Sequence[Unit], *, consistent: bool = False) -> list[Unit]:
        """Ledger units planned again from what the ledger holds."""
        found = self.found(units, consistent=consistent)
        return [planned for unit, item in found for planned in self.planned(unit, item)]

    def planned(self, unit: Unit, found: LedgerItem) -> list[Unit]:
        """A unit planned again, or nothing if the ledger has all of it already.

        An earlier attempt may have died before it removed empty rows or recomputed rows: these are finished again.
        """
        for routes, named in self.named(unit, found):
            self.progress.unfinished.take(named, routes, unit.changes)
        self.progress.unfinished.note_found(unit.guard.key, unit.item, unit.routes, found)
        planned = again(unit, found, self.retired)
        if planned is None:
            self.progress.done(unit)
            return []
        return [planned]

    def unclaimed(self, units: list[Unit]) -> list[Unit]:
        """The units but for claims that are there already."""
        claims = [unit for unit in units if not unit.steps]
        if not claims:
            return units
        try:
            taken = read_state(self.engine, self.lanes, [unit.guard.key for unit in claims])
        except EngineError as error:
            self.progress.fail(claims, error)
            return [unit for unit in units if unit.steps]
        for unit in claims:
            if unit.guard.key in taken:
                self.progress.done(unit)
        return [unit for unit in units if unit.guard.key not in taken]

    def found(self, units: Sequence[Unit], *, consistent: bool = False) -> list[tuple[Unit, LedgerItem]]:
        """What the ledger holds for units. Units whose ledger item cannot be read fail."""
        if not units:
            return []
        try:
            keys = [unit.guard.key for unit in units]
            items = read_state(self.engine, self.lanes, keys, consistent=consistent)
        except EngineError as error:
            self.progress.fail(units, error)
            return []
        read = [(unit, self._filled(unit, LedgerItem.of(items.get(unit.guard.key)))) for unit in units]
        return [(unit, item) for unit, item in read if item is not None]

    def _filled(self, unit: Unit, found: LedgerItem) -> LedgerItem | None:
        try:
            return filled(self.engine, unit.guard.key, found, {route.name for route in unit.routes})
        except EngineError as error:
            self.progress.fail([unit], error)
            return None


def writes_any(unit: Unit, places: Collection[RowKey | StateKey]) -> bool:
    """Whether a unit writes an item of one of these keys."""
    return unit.guard.key in places or any(effect.key in places for effect in unit.effects)
