"""What has become of a plan's units so far: done, failed, or committed with rows to finish."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamfold.commit.outcome import HELD, Failed, Held, Outcome, Triages, reported
from streamfold.commit.plan import Chunk, KeyedPut, Unit, WrittenKey
from streamfold.commit.unfinished import Unfinished
from streamfold.errors import EngineError, is_fatal
from streamfold.ledger.lives import Lives
from streamfold.routes.route import ROWS_LOST, Route

if TYPE_CHECKING:
    from streamfold.commit.unfinished import ItemAndHandler


class Progress:
    """The outcome of a plan while it is carried out."""

    def __init__(self, unfinished: Unfinished, triage: Triages, lives: Lives) -> None:
        self.outcome = Outcome()
        self.lives = lives  # of rows that expire
        self.unfinished = unfinished
        self.triage = triage
        self.written: set[object] = set()  # rows that units wrote, so that one which is recomputed too counts once
        self.fatal: EngineError | None = None  # the last error that no other try will mend
        self.held: set[ItemAndHandler] = set()  # whose later changes are not attempted
        self.lost: set[tuple[str, WrittenKey]] = set()  # rows that somebody else had removed, by handler
        self.claimed: list[Unit] = []  # units behind claims that the store took
        self.known: list[Unit] = []  # units whose claims were there before

    def commit(self, chunk: Chunk) -> None:
        """Counts the units of a transaction that the store took."""
        units, rows = chunk.units, chunk.writes[len(chunk.units) :]
        self.outcome.fresh += [change for unit in units for change in unit.changes]
        self.claimed += [unit for unit in units if not unit.steps]
        self.written.update([row.key for row in rows])
        for tally, times in Counter([tally for unit in units for tally in unit.tallies]).items():
            total = self.outcome.tally(tally.handler)
            total.written += tally.written * times
            total.removed += tally.removed * times
            total.unchanged += 0 if tally.written or tally.removed else times
        self.unfinished.commit(units, rows)
        if self.lives.matter:
            self.lives.committed(rows)

    def done(self, unit: Unit) -> None:
        """Counts a unit that the state has already."""
        self.outcome.done.extend(unit.changes)
        if not unit.steps:
            self.known.append(unit)
        for route in unit.routes:
            self.outcome.tally(route.name).unchanged += 1

    def lose(self, row: WrittenKey, routes: Iterable[Route]) -> None:
        """Counts a row that somebody else had removed, once for each handler that wanted to amend it."""
        for route in routes:
            if (route.name, row) not in self.lost:
                self.lost.add((route.name, row))
                self.outcome.count(ROWS_LOST, route.name)

    def put(self, put: KeyedPut, *, is_known: bool) -> None:
        """Counts a row that is there now; with ``is_known`` it was there before."""
        tally = self.outcome.tally(put.route.name)
        tally.written += not is_known
        tally.unchanged += is_known
        self.outcome.done += [put.change] if is_known else ()

    def fail(self, units: Iterable[Unit], error: Exception) -> None:
        """Fails units. The later changes of an item are held for an ``on`` handler, unless the record is parked."""
        self.note_fatal(error)
        for unit in units:
            left = self.report(Failed(change, route, error) for route in unit.routes for change in unit.changes)
            if left and not unit.steps:
                self.held.add((unit.item, unit.routes[0].name))

    def hold(self, units: Iterable[Unit]) -> list[Unit]:
        """Fails the units whose item and handler are held; returns the others."""
        if not self.held:
            return list(units)
        free = []
        for unit in units:
            if not unit.steps and (unit.item, unit.routes[0].name) in self.held:
                self.fail([unit], Held(HELD))
            else:
                free.append(unit)
        return free

    def report(self, failed: Iterable[Failed]) -> list[Failed]:
        """Reports failures, but for records that are parked; returns what is reported."""
        failures = list(failed)
        self.unfinished.fail(failures)
        left = reported(failures, self.triage)
        self.outcome.failed += left
        return left

    def note_fatal(self, error: Exception) -> None:
        """Remembers an error that no other try will mend."""
        if isinstance(error, EngineError) and is_fatal(error):
            self.fatal = error

    def raise_fatal(self) -> None:
        """Raises a fatal error if nothing of the batch was done: then it concerns all of the batch."""
        if self.fatal is not None and not (self.outcome.fresh or self.outcome.done or self.outcome.tallies):
            raise self.fatal
