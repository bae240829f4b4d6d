"""Carries out a plan: sends transactions, decides from what a refusal found, plans again, splits, and reports.

Nothing is corrected by an opposite write: whatever an earlier attempt did or did not do, the guards decide.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from streamfold.commit.ledger_reads import filled
from streamfold.commit.outcome import Failed, Held, Outcome, Tallies
from streamfold.commit.plan import (
    Chunk,
    KeyedPut,
    Plan,
    Unit,
    again,
    by_handler,
    exceeds_transaction,
    pack,
    without,
    without_row,
)
from streamfold.commit.recompute import NamedRows, Unfinished, recompute
from streamfold.commit.refusals import counts_contributors, is_added_to, is_stale, not_its_row
from streamfold.commit.sending import SENDS_MAX, by_table, is_throttled
from streamfold.engines import Engine
from streamfold.errors import (
    Contended,
    EngineError,
    EngineUnavailable,
    HandlerError,
    RowTaken,
    TableThrottled,
    is_fatal,
    told,
)
from streamfold.ledger.item import LedgerItem
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.run import TRIES_MAX, Run
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    AddRow,
    DeleteRow,
    GuardedWrite,
    LedgerWrite,
    LeftBehind,
    PutRow,
    Reason,
    Refused,
    RowKey,
    StateKey,
)
from streamfold.writes.sizes import too_large

ROUNDS_TOGETHER_MAX = 4
"""Rounds after which every unit goes alone, so that one that is always refused takes no other along."""

HandlerAndItem = tuple[str, ItemKey]
"""A handler and an item: the changes that a failure holds."""


class Attempt(NamedTuple):
    """A chunk on its way, with how often it was planned again and how often it met a conflict."""

    chunk: Chunk
    rounds: int = 0
    conflicts: int = 0


class Committer:
    """Carries out one plan on one engine. ``named`` gives the rows that a done item may have left unfinished, and
    ``unfinished`` holds those that are known before.

    Parts of ``retired`` handlers in the ledger go with the last other one.
    ``triage`` is asked about every failure, and returns what is left of it: a record that is parked holds no other.
    """

    def __init__(
        self,
        engine: Engine,
        run: Run,
        named: Callable[[Unit, LedgerItem], NamedRows],
        unfinished: Unfinished,
        triage: "Callable[[Failed], Failed | None]" = lambda failed: failed,
        retired: Collection[str] = (),
    ) -> None:
        self.engine = engine
        self.run = run
        self.named = named
        self.triage = triage
        self.retired = retired
        self.outcome = Outcome()
        self.waiting: deque[Attempt] = deque()
        self.unfinished = unfinished
        self.held: set[HandlerAndItem] = set()
        self.read_ahead = False
        self.fatal: EngineError | None = None
        self.written: set[RowKey | StateKey] = set()
        self.behind: list[Unit] = []
        self.tried: dict[HandlerAndItem, int] = {}

    def carry_out(self, plan: Plan) -> Outcome:
        """Sends every chunk, then the keyed puts, then removes rows that nothing contributes to, and recomputes."""
        self.waiting.extend(Attempt(chunk) for chunk in plan.chunks)
        while self.waiting or self.behind:
            if not self.waiting:
                self.waiting.extend(Attempt(chunk) for chunk in self._chunks(self.behind, alone=True))
                self.behind = []
            attempt = self._without_held(self.waiting.popleft())
            if attempt.chunk.units:
                self._send(attempt)
        self._put_rows(plan.puts)
        if self.fatal is not None and not (self.outcome.fresh or self.outcome.done or self.outcome.tallies):
            raise self.fatal  # nothing of the batch was done: what is wrong concerns all of it
        self._remove_empty()
        self._recompute()
        return self.outcome

    def _send(self, attempt: Attempt) -> None:
        try:
            if len(attempt.chunk.units) == 1 and _goes_page_by_page(attempt.chunk):
                self._replan_alone(attempt)
                return
            refused = self.engine.transact(attempt.chunk.writes, self.run.expires_at)
            if refused is None:
                self._succeed(attempt)
            else:
                self._refused(attempt, refused)
        except EngineError as error:
            if not (is_fatal(error) and self._split_by_table(attempt)):
                self._fail(attempt.chunk.units, error)

    def _succeed(self, attempt: Attempt) -> None:
        for unit in attempt.chunk.units:
            self.outcome.fresh.extend(unit.changes)
            self.written.update(effect.key for effect in unit.effects)
            for tally in unit.tallies:
                total = self.outcome.tally(tally.handler)
                total.written += tally.written
                total.removed += tally.removed
                total.unchanged += not (tally.written or tally.removed)
            self.unfinished.touch((effect.key for effect in unit.effects), unit.routes, unit.changes)
            for effect in unit.effects:
                if isinstance(effect, AddRow):
                    self.unfinished.add(effect.key, effect.moved, unit.routes, unit.changes)
                    if effect.contributors:
                        self.unfinished.lower(effect.key, effect.contributors, unit.routes, unit.changes)
            if isinstance(unit.guard, LedgerWrite):
                for part in unit.guard.parts:
                    self.unfinished.note(unit.item, LeftBehind(unit.guard.key, part.handler, part.left or ""))
        pages = [unit for unit in attempt.chunk.units if unit.partial]
        if pages:
            self._again(self._found(pages, consistent=True), attempt.rounds)

    def _refused(self, attempt: Attempt, refused: Refused) -> None:
        codes = {reason.code for reason in refused.reasons if reason}
        if CONDITION in codes:
            if attempt.rounds >= TRIES_MAX:
                refusals = Contended(f"Refused {TRIES_MAX} times in a row; the record comes again.")
                self._fail(attempt.chunk.units, refusals)
            else:
                self._decide(attempt, refused)
        elif codes <= set(CONFLICT) and attempt.conflicts < SENDS_MAX:
            self.run.back_off(attempt.conflicts, throttled=is_throttled(refused))
            self.waiting.appendleft(attempt._replace(conflicts=attempt.conflicts + 1))
        elif codes <= set(CONFLICT) and is_throttled(refused):
            self._stop(attempt)
        else:
            self._split(attempt, refused)

    def _stop(self, attempt: Attempt) -> None:
        """Ends the sending where the store stays throttled: every part that is sent would wait, and fail, likewise."""
        rest = [unit for each in (attempt, *self.waiting) for unit in each.chunk.units]
        self._fail(rest + self.behind, TableThrottled())
        self.waiting.clear()
        self.behind.clear()

    def _decide(self, attempt: Attempt, refused: Refused) -> None:
        """Every guard that refused says what it found; the others are sent again beside what is planned anew."""
        chunk = attempt.chunk
        failing = [reason if reason and reason.code == CONDITION else None for reason in refused.reasons]
        left: list[Unit] = []
        for unit, reason in zip(chunk.units, failing, strict=False):
            if reason is None:
                left.append(unit)
            elif isinstance(unit.guard, LedgerWrite):
                left += self._decided(unit, unit.guard, reason)
            else:
                self._done(unit)
        count = len(chunk.units)
        assumed = any(reason for unit, reason in zip(chunk.units, failing, strict=False) if unit.steps)
        for write, reason in zip(chunk.writes[count:], failing[count:], strict=True):
            # What a row refused to units that assumed another contribution says nothing of what they do now.
            if reason is not None and not (assumed and isinstance(write, AddRow)):
                left = self._without_stale(left, write, reason)
        self._resend(left, attempt.rounds + 1)
        if not self.read_ahead:
            self._read_rest()

    def _decided(self, unit: Unit, guard: LedgerWrite, reason: Reason) -> list[Unit]:
        if reason.item is None and guard.revision == 0:  # refused because there is an item, yet none is shown
            return [planned for found in self._found([unit], consistent=True) for planned in self._planned(*found)]
        found = self._filled(unit, LedgerItem.of(reason.item))
        return [] if found is None else self._planned(unit, found)

    def _without_stale(self, units: list[Unit], write: GuardedWrite, reason: Reason) -> list[Unit]:
        """The units as they are sent again after a row refused: without the effect where it is older than what is
        stored, or takes back what the row does not have; with an addition where others add to the row too.

        A row that is another's, or is added to where it should be put, fails the handler that wants it, once that
        is alone.
        """
        if is_stale(write, reason):
            return [without(unit, [write.key]) for unit in units]
        if isinstance(write, AddRow) and write.least is not None:
            there = counts_contributors(reason)
            return [unit._replace(effects=without_row(unit.effects, write.key, there=there)) for unit in units]
        left: list[Unit] = []
        for unit in units:
            wants = _writes(unit, {write.key})
            parts = by_handler(unit) if wants else [unit]
            if wants and is_added_to(write, reason):
                left += self._adding(unit, write)
            elif wants and len(parts) == 1:
                self._taken(unit, not_its_row(unit.routes[0], write, reason))
            else:
                left += parts
        return left

    def _adding(self, unit: Unit, write: PutRow | DeleteRow) -> list[Unit]:
        """A unit planned again so that it adds to a row that others add to."""
        adding = unit._replace(added=unit.added | {write.key})
        return [planned for found in self._found([adding], consistent=True) for planned in self._planned(*found)]

    def _taken(self, unit: Unit, error: HandlerError) -> None:
        """Tries a unit again behind the others while these get through: one of them may give the row up."""
        lane, progress = (unit.routes[0].name, unit.item), len(self.outcome.fresh)
        if isinstance(error, RowTaken) and unit.steps and self.tried.get(lane) != progress:
            self.tried[lane] = progress
            self.behind.append(unit)
        else:
            self._fail([unit], error)

    def _split(self, attempt: Attempt, refused: Refused) -> None:
        """Separates the guilty: what wrote a row that was refused goes alone, then handler by handler, in its order."""
        units, writes = attempt.chunk.units, attempt.chunk.writes
        places = {write.key: reason for write, reason in zip(writes, refused.reasons, strict=True) if reason}
        parts = by_handler(units[0]) if len(units) == 1 else units
        if len(parts) == 1:
            reason = next(iter(places.values()))
            kind = EngineUnavailable if reason.code in CONFLICT else HandlerError
            self._fail(parts, kind(f"The store refused the write with {reason.code}: {told(reason.message)}"))
            return
        attempts: list[Attempt] = []
        for guilty, some in [
            (guilty, list(some)) for guilty, some in groupby(parts, lambda unit: _writes(unit, places))
        ]:
            chunks = self._chunks(some, alone=guilty)
            attempts += [Attempt(chunk, attempt.rounds + 1, attempt.conflicts if guilty else 0) for chunk in chunks]
        self.waiting.extendleft(reversed(attempts))

    def _split_by_table(self, attempt: Attempt) -> bool:
        """Parts what writes to different tables, of which one may be missing or forbidden; whether there are such."""
        groups: dict[Any, list[Unit]] = {}
        for part in (part for unit in attempt.chunk.units for part in by_handler(unit)):
            keys = [effect.key for effect in part.effects]
            tables = frozenset(key[0] for key in keys if not isinstance(key, StateKey))
            # The changes of an item keep their order for a handler that sees each of them.
            groups.setdefault(tables if part.steps else part.routes[0].name, []).append(part)
        if len(groups) == 1:
            return False
        chunks = [chunk for some in groups.values() for chunk in self._chunks(some, alone=False)]
        self.waiting.extendleft(attempt._replace(chunk=chunk) for chunk in reversed(chunks))
        return True

    def _chunks(self, units: Sequence[Unit], *, alone: bool) -> list[Chunk]:
        together = [[unit] for unit in units] if alone else [units]
        return [chunk for some in together for chunk in pack(some, self.run.chunk_actions)]

    def _replan_alone(self, attempt: Attempt) -> None:
        """A step too large for one transaction goes page by page, each planned from what the ledger holds."""
        for unit, found in self._found(attempt.chunk.units):
            for planned in self._planned(unit, found):
                if exceeds_transaction(planned):
                    why = f"{len(planned.effects)} writes of one item do not fit {ACTIONS_MAX} actions and 4 MB."
                    self._fail([unit], HandlerError(why))
                else:
                    self._resend([planned], attempt.rounds)

    def _read_rest(self) -> None:
        """A refusal usually means a redelivery: the rest of the batch is read at once, not refused chunk by chunk."""
        self.read_ahead = True
        rest = [unit for attempt in self.waiting for unit in attempt.chunk.units]
        rounds = max((attempt.rounds for attempt in self.waiting), default=0)
        self.waiting.clear()
        unread = [unit for unit in rest if isinstance(unit.guard, LedgerWrite) and unit.guard.revision is None]
        read = {id(unit) for unit in unread}
        self._again(self._found(unread), rounds)
        self._resend(self._unclaimed([unit for unit in rest if id(unit) not in read]), rounds)

    def _unclaimed(self, units: list[Unit]) -> list[Unit]:
        """The units but for claims that are there already."""
        claims = [unit for unit in units if not unit.steps]
        if not claims:
            return units
        try:
            taken = self.engine.read_state([unit.guard.key for unit in claims])
        except EngineError as error:
            self._fail(claims, error)
            return [unit for unit in units if unit.steps]
        for unit in claims:
            if unit.guard.key in taken:
                self._done(unit)
        return [unit for unit in units if unit.guard.key not in taken]

    def _again(self, found: Iterable[tuple[Unit, LedgerItem]], rounds: int) -> None:
        self._resend([planned for unit, item in found for planned in self._planned(unit, item)], rounds)

    def _planned(self, unit: Unit, found: LedgerItem) -> list[Unit]:
        """The unit planned again, or nothing when the ledger already has all of it.

        An earlier attempt may have died before it removed empty rows or recomputed rows: these are finished again.
        """
        self.unfinished.take(self.named(unit, found), unit.routes, unit.changes)
        self.unfinished.note_found(unit.guard.key, unit.item, unit.routes, found)
        planned = again(unit, found, self.retired)
        if planned is None:
            self._done(unit)
            return []
        return [planned]

    def _resend(self, units: Sequence[Unit], rounds: int) -> None:
        chunks = self._chunks(units, alone=rounds > ROUNDS_TOGETHER_MAX)
        self.waiting.extendleft(Attempt(chunk, rounds) for chunk in reversed(chunks))

    def _found(self, units: Sequence[Unit], *, consistent: bool = False) -> list[tuple[Unit, LedgerItem]]:
        """What the ledger holds for units; those for which that cannot be told fail."""
        if not units:
            return []
        try:
            items = self.engine.read_state([unit.guard.key for unit in units], consistent=consistent)
        except EngineError as error:
            self._fail(units, error)
            return []
        read = [(unit, self._filled(unit, LedgerItem.of(items.get(unit.guard.key)))) for unit in units]
        return [(unit, item) for unit, item in read if item is not None]

    def _filled(self, unit: Unit, found: LedgerItem) -> LedgerItem | None:
        try:
            return filled(self.engine, unit.guard.key, found, {route.name for route in unit.routes})
        except EngineError as error:
            self._fail([unit], error)
            return None

    def _done(self, unit: Unit) -> None:
        self.outcome.done.extend(unit.changes)
        for route in unit.routes:
            self.outcome.tally(route.name).unchanged += 1

    def _put_rows(self, puts: Sequence[KeyedPut]) -> None:
        if not puts:
            return
        rows: dict[RowKey, PutRow] = {}
        for put in puts:
            rows.setdefault(put.row.key, put.row)
        refused = EngineUnavailable("The store did not take the row; it is written when the record comes again.")
        failed: dict[RowKey, EngineError] = {}
        for keys, unwritten in by_table([*rows], lambda keys: self.engine.insert_rows([rows[key] for key in keys])):
            if isinstance(unwritten, EngineError):
                failed |= dict.fromkeys(keys, unwritten)
                self.fatal = unwritten if is_fatal(unwritten) else self.fatal
            else:
                failed |= dict.fromkeys(unwritten, refused)
        for put in puts:
            if put.row.key in failed:
                self.outcome.failed.append(Failed(put.change, put.route, failed[put.row.key]))
            else:
                self.outcome.tally(put.route.name).written += 1

    def _remove_empty(self) -> None:
        rows = [key for key, contributors in self.unfinished.lowered.items() if contributors < 0]
        for keys, removed in by_table(rows, self.engine.remove_empty) if rows else ():
            if isinstance(removed, EngineError):
                self._report(Failed(*cause, removed) for key in keys for cause in self.unfinished.causes[key])
                continue
            for key in removed:
                for name in {route.name for _, route in self.unfinished.causes[key]}:
                    self.outcome.tally(name).removed += 1

    def _recompute(self) -> None:
        """Behind the removal of empty rows: one that is filled again in between may show what is gone from it."""
        shown: set[RowKey] = set()
        wrong = recompute(self.engine, self.unfinished.moved, self.run, shown)
        for key in shown - self.written:
            for name in {route.name for _, route in self.unfinished.causes[key]}:
                self.outcome.tally(name).written += 1
        self.unfinished.wrong = wrong.keys()
        self._report(Failed(*cause, error) for key, error in wrong.items() for cause in self.unfinished.causes[key])

    def _report(self, failed: Iterable[Failed]) -> None:
        """Reports what failed after the commit, but for records that are parked."""
        failures = list(failed)
        self.unfinished.fail(failures)
        self.outcome.failed += [each for each in map(self.triage, failures) if each is not None]

    def _without_held(self, attempt: Attempt) -> Attempt:
        if not self.held:
            return attempt
        held = [
            unit for unit in attempt.chunk.units if not unit.steps and (unit.routes[0].name, unit.item) in self.held
        ]
        if not held:
            return attempt
        self._fail(
            held, Held("An earlier change of the same item failed for this handler; the record comes again after it.")
        )
        rest = [unit for unit in attempt.chunk.units if unit not in held]
        chunks = pack(rest, self.run.chunk_actions)
        self.waiting.extendleft(Attempt(chunk, attempt.rounds) for chunk in reversed(chunks[1:]))
        return attempt._replace(chunk=chunks[0] if chunks else Chunk((), ()))

    def _fail(self, units: Iterable[Unit], error: Exception) -> None:
        if isinstance(error, EngineError) and is_fatal(error):
            self.fatal = error
        for unit in units:
            failed = [Failed(change, route, error) for route in unit.routes for change in unit.changes]
            self.unfinished.fail(failed)
            left = [each for each in map(self.triage, failed) if each is not None]
            self.outcome.failed += left
            if left and not unit.steps:
                self.held.add((unit.routes[0].name, unit.item))

    def _tallies(self, name: str) -> Tallies:
        return self.outcome.tallies.setdefault(name, Tallies())


def _goes_page_by_page(chunk: Chunk) -> bool:
    """Whether one item's step through the ledger is too much for one transaction."""
    return bool(chunk.units[0].steps) and (len(chunk.writes) > ACTIONS_MAX or too_large(chunk.writes))


def _writes(unit: Unit, places: Collection[RowKey | StateKey]) -> bool:
    return unit.guard.key in places or any(effect.key in places for effect in unit.effects)
