"""Pending work of a commit: the units that are done, failed or wait, and the rows that are still to be finished."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from streamfold.commit.buckets import WaitingDeltas, wait_for_deltas
from streamfold.commit.emptying import LoweredRows
from streamfold.commit.outcome import HELD, Failed, Held, Outcome, Triages, reported
from streamfold.commit.plan import KeyedPut, Transaction, Unit, WrittenKey, writers
from streamfold.commit.transactions import Several, in_slots, slices
from streamfold.errors import EngineError, is_fatal
from streamfold.keys.table import STATE, is_in_state
from streamfold.ledger.contribution import Contribution, LedgerItem, pending_rows, stored_rows
from streamfold.ledger.difference import entries_by_row
from streamfold.ledger.lives import Lives
from streamfold.ledger.step import Step
from streamfold.records.change import Change, ItemKey
from streamfold.routes.route import ROWS_LOST, Route
from streamfold.runtime import Runtime
from streamfold.settings.limits import STATEMENTS_MAX
from streamfold.writes.guarded import (
    AddRow,
    Claim,
    EntriesOfRow,
    GuardedWrite,
    LedgerWrite,
    PendingNote,
    RowKey,
    StateKey,
    SwapText,
    all_changed_entries,
)

if TYPE_CHECKING:
    from collections.abc import Collection
ChangeAndHandler = tuple[Change, Route]
"""A change and a handler that led to a row's work; both fail if the work fails."""
Causes = tuple[Sequence[Route], Sequence[Change]]
"""Changes, each of which went to each of these handlers: kept together, because they are asked for seldom."""
ItemAndHandler = tuple[ItemKey, str]
ChangedByRow = Mapping[RowKey, EntriesOfRow]


class NamedRows:
    """The rows that an item names, for which an attempt that died may have pending work."""

    __slots__ = ("changed_entries", "rows", "state_rows")

    def __init__(self) -> None:
        self.rows: set[RowKey] = set()  # counted rows, which may be empty
        self.changed_entries: dict[RowKey, EntriesOfRow] = {}  # below the rows
        self.state_rows: set[RowKey] = set()  # stored attributes, to be copied onto their items

    def add(self, application: str, route: Route, item: ItemKey, rows: Contribution) -> None:
        """Adds the rows that the code makes from one image of an item."""
        self.rows.update(key for key, row in rows.items() if not row.digest)
        self._add_all(rows, entries_by_row(application, route, item, rows))

    def add_stored(self, application: str, route: Route, item: ItemKey, found: LedgerItem) -> None:
        """Adds the rows of a ledger item, and the pending rows of its steps."""
        if route.name in found.contributions:
            contribution = found.contributions[route.name]
            pending = pending_rows(contribution.pending)
            self.rows.update(pending)
            for rows in (stored_rows(contribution.text), pending):
                self._add_all(rows, entries_by_row(application, route, item, rows))

    def hold(self, application: str, route: Route, item: ItemKey, held: Contribution) -> None:
        """Adds the item's contribution now, which decides how the entries of its rows are ordered."""
        for key, entries in entries_by_row(application, route, item, held, contributes=True).items():
            self.take(key, entries)

    def _add_all(self, rows: Contribution, changed_by_row: ChangedByRow) -> None:
        self.state_rows.update(filter(is_in_state, rows))
        for key, entries in changed_by_row.items():
            self.take(key, entries)

    def join(self, other: "NamedRows") -> None:
        """Adds all that another names."""
        self.rows |= other.rows
        self.state_rows |= other.state_rows
        for row, entries in other.changed_entries.items():
            self.take(row, entries)

    def take(self, row: RowKey, entries: EntriesOfRow) -> None:
        """Adds entries of a row that were written or deleted."""
        if entries:
            self.changed_entries[row] = all_changed_entries(self.changed_entries.get(row, ()), entries)


NamedByHandler = tuple[Sequence[Route], NamedRows]
"""The rows that these handlers' contributions of an item name."""


class PendingWork:
    """The work for the rows of a batch after its commit, with the changes and handlers that caused it.

    tries_all: additions that a row refused a moment ago are tried again, because a person has corrected the row.
    """

    def __init__(self, *, tries_all: bool = False) -> None:
        self.tries_all = tries_all
        self.changed_entries: dict[RowKey, EntriesOfRow] = {}  # of rows that are to be recomputed
        self._lowered: LoweredRows | None = None  # none until a write lowers a row
        self._added: list[AddRow] = []  # writes before it that counted contributors
        self.state_rows: dict[RowKey, list[ChangeAndHandler]] = {}  # stored attributes, to be copied onto their items
        self.notes: dict[ItemAndHandler, PendingNote] = {}  # noted in ledger items
        self.failed: set[ItemAndHandler] = set()  # whose work failed, so that it is still pending
        self.wrong: Collection[RowKey] = ()  # rows that could not be recomputed
        self._deltas: WaitingDeltas | None = None  # none until there is one to wait for
        self._causes: dict[
            RowKey, list[Causes]
        ] = {}  # of rows in ``changed_entries`` and ``lowered`` that attempts left
        self._units: defaultdict[RowKey, list[Unit]] = defaultdict(list)  # that were committed, by such rows of theirs
        self._committed: list[Unit] = []  # that are not among these yet: few are ever asked for

    @property
    def deltas(self) -> WaitingDeltas:
        """The deltas to be waited for. Few batches have one: see ``waits`` first."""
        if self._deltas is None:
            self._deltas = WaitingDeltas(tries_all=self.tries_all)
        return self._deltas

    def begin_waiting_anew(self) -> None:
        """Waits for none of the deltas that were waited for before."""
        self._deltas = None

    @property
    def waits(self) -> bool:
        """Whether anything waits for deltas."""
        return self._deltas is not None and bool(self._deltas.waiters)

    @property
    def lowered(self) -> LoweredRows:
        """The rows that may be empty. Few batches lower one: see ``lowers`` first."""
        if self._lowered is None:
            self._lowered = LoweredRows()
            for write in self._added:
                self._lowered.add(write)
        return self._lowered

    @property
    def lowers(self) -> bool:
        """Whether a row was lowered, or an item notes one."""
        return self._lowered is not None

    def wait_for(
        self, names: str, routes: Sequence[Route], changes: Sequence[Change], key: StateKey | None = None
    ) -> None:
        """Waits for the deltas that a claim, or a ledger item of this key, names, if it names any."""
        if names:
            self.deltas.wait_for(names, routes, changes, key)

    def causes(self, row: RowKey) -> list[ChangeAndHandler]:
        """The causes of the work of a row in ``changed_entries`` or ``lowered``."""
        return [cause for causes in self._causes_of(row) for cause in _each(causes)]

    def failures(self, rows: Iterable[RowKey], error: Exception) -> list[Failed]:
        return [Failed(change, route, error) for row in rows for change, route in self.causes(row)]

    def handlers(self, row: RowKey) -> set[str]:
        return {route.name for routes, _ in self._causes_of(row) for route in routes}

    def _causes_of(self, row: RowKey) -> list[Causes]:
        units = self._units
        for unit in self._committed:
            for effect in unit.effects:
                if type(effect) is AddRow and (effect.contributors or effect.changed_entries):
                    units[effect.key].append(unit)
        self._committed.clear()
        committed = [(writers(unit, row), unit.changes) for unit in self._units.get(row, ())]
        return self._causes.get(row, []) + committed

    def commit(self, units: Sequence[Unit], writes: Iterable[GuardedWrite]) -> None:
        """Adds the rows of units that were committed in one transaction, with the writes of these rows."""
        self._committed += units
        in_state = False
        for write in writes:
            if type(write) is AddRow:
                if write.changed_entries:
                    self._add_entries(write.key, write.changed_entries)
                if write.contributors:
                    self._count(write)
            in_state = in_state or write.key[0] == STATE.name
        for unit in units:
            if unit.partial:
                self.lowered.add_page(unit.effects)
            if in_state:
                self._add_stored_attributes(unit)
            self._note_steps(unit)

    def _note_steps(self, unit: Unit) -> None:
        if isinstance(unit.guard, LedgerWrite):
            for each in unit.guard.contributions:
                if each.pending:
                    self._note(unit.item, PendingNote(unit.guard.key, each.handler, each.pending))

    def _count(self, write: AddRow) -> None:
        """Takes the contributors that a write added to its row or took from it."""
        if self._lowered is None and (write.contributors > 0 or write.requires_contributor):
            self._added.append(write)
        else:
            self.lowered.add(write)

    def take(self, named: NamedRows, routes: Sequence[Route], changes: Sequence[Change]) -> None:
        """Adds the possible pending work of an attempt that died, for the handlers that name it."""
        causes = routes, changes
        for row in named.rows:
            self.lowered.add_noted(row)
            self._causes.setdefault(row, []).append(causes)
        for row, entries in named.changed_entries.items():
            self._add_entries(row, entries)
            self._causes.setdefault(row, []).append(causes)
        self._add_state_rows(named.state_rows, causes)

    def note_found(self, key: StateKey, item: ItemKey, routes: Iterable[Route], found: LedgerItem) -> None:
        """Notes the pending work of these handlers in a ledger item."""
        for route in routes:
            if route.name in found.contributions:
                self._note(item, PendingNote(key, route.name, found.contributions[route.name].pending))

    def fail(self, failed: Iterable[Failed]) -> None:
        """Notes whose work failed, before the records are reported or parked."""
        self.failed.update((change.item, route.name) for change, route, _ in failed)

    def finished(self) -> dict[StateKey, dict[str, str]]:
        """The pending work that is done now: of each ledger item, by handler."""
        found: dict[StateKey, dict[str, str]] = {}
        for item_and_handler, note in self.notes.items():
            if item_and_handler not in self.failed:
                found.setdefault(note.key, {})[note.handler] = note.text
        return found

    def _add_stored_attributes(self, unit: Unit) -> None:
        for effect in unit.effects:
            if effect.key[0] == STATE.name:
                self._add_state_rows([effect.key], (writers(unit, effect.key), unit.changes))

    def _add_state_rows(self, rows: Iterable[tuple[Any, ...]], causes: Causes) -> None:
        for row in filter(is_in_state, rows):
            self.state_rows.setdefault(row, []).extend(_each(causes))

    def _add_entries(self, row: RowKey, entries: EntriesOfRow) -> None:
        self.changed_entries[row] = all_changed_entries(self.changed_entries.get(row, ()), entries)

    def _note(self, item: ItemKey, note: PendingNote) -> None:
        if note.text:
            self.notes[item, note.handler] = note


def clear_pending(runtime: Runtime, pending_work: PendingWork) -> None:
    """Removes from the ledger the pending work that is done now.

    If the store refuses, nothing is lost: the work is done once more when the item is redelivered, and changes nothing.
    """
    finished = pending_work.finished()
    if not finished:
        return

    def forget(keys: Sequence[StateKey]) -> None:
        runtime.engine.clear_pending({key: finished[key] for key in keys})

    calls = ((Several(some), partial(forget, some)) for some in slices(runtime.slots, [*finished], STATEMENTS_MAX))
    deque(in_slots(runtime.slots, calls, stops=lambda _: True), maxlen=0)


def _each(causes: Causes) -> list[ChangeAndHandler]:
    routes, changes = causes
    return [(change, route) for route in routes for change in changes]


def _last_steps(unit: Unit) -> Sequence[Step]:
    # A page of a large step is no step yet.
    return () if unit.partial else unit.steps


class Progress:
    """The outcome of a plan while it is carried out."""

    def __init__(self, pending_work: PendingWork, triage: Triages, lives: Lives | None) -> None:
        self.outcome = Outcome()
        self.lives = lives  # of rows that expire; None: nothing was asked about one
        self.pending_work = pending_work
        self.triage = triage
        self.written: set[object] = set()  # rows that units wrote, so that one which is recomputed too counts once
        self.fatal: EngineError | None = None  # the last error that no retry can help
        self.held: set[ItemAndHandler] = set()  # their later changes are not attempted
        self.lost: set[tuple[str, WrittenKey]] = set()  # rows that somebody else had removed, by handler
        self.behind: list[Unit] = []  # units whose row belongs to another item, to be tried again behind the others
        self.claimed: list[Unit] = []  # units behind claims that the store took
        self.known: list[Unit] = []  # units whose claims existed before
        self.waiting: dict[tuple[StateKey, str], Unit] = {}  # that put deltas, by ledger item and handler
        self.partly_applied = False  # the ledger had the steps of some handlers of an item
        self.notes_steps = False  # whose contributions are written is noted
        self._taken_back: dict[int, set[str]] = {}  # handlers whose steps were, by unit

    def commit(self, transaction: Transaction) -> None:
        """Counts the units of a transaction that the store took."""
        units, rows = transaction.units, transaction.writes[len(transaction.units) :]
        self.outcome.fresh += [change for unit in units for change in unit.changes]
        self.claimed += [unit for unit in units if not unit.steps]
        self.written.update([row.key for row in rows])
        for tally, times in Counter([tally for unit in units for tally in unit.tallies]).items():
            total = self.outcome.tally(tally.handler)
            total.written += tally.written * times
            total.removed += tally.removed * times
            total.unchanged += 0 if tally.written or tally.removed else times
        self.pending_work.commit(units, rows)
        if self.notes_steps:
            self.outcome.stepped |= {(each.item, step.route.name) for each in units for step in _last_steps(each)}
        if type(rows[-1] if rows else None) is SwapText:  # at the end, if there is one
            self._put_deltas(transaction)
        if self.lives is not None and self.lives.matter:
            self.lives.committed(rows)

    def _put_deltas(self, transaction: Transaction) -> None:
        """Has the work wait for deltas that were put with these units."""
        deltas = self.pending_work.deltas
        deltas.put(write for write in transaction.writes if type(write) is SwapText and write.expected is None)
        for unit, guard in zip(transaction.units, transaction.guards, strict=True):
            if isinstance(guard, Claim):
                self.pending_work.wait_for(guard.deltas, unit.routes, unit.changes)
            elif isinstance(guard, LedgerWrite):
                routes = {route.name: route for route in unit.routes}
                for each in guard.contributions:
                    if each.deltas and each.handler in routes:
                        deltas.wait_for(each.deltas, [routes[each.handler]], unit.changes, guard.key)
                        self.waiting[guard.key, each.handler] = unit
                        deltas.items[guard.key, each.handler] = each.deltas

    def take_back(self, key: StateKey, route: Route) -> Unit | None:
        """A handler's part of a unit whose step was taken back, and is counted no more; None if there was no unit."""
        if (unit := self.waiting.pop((key, route.name), None)) is None:
            return None
        self.outcome.stepped.discard((unit.item, route.name))
        tallies = [tally for tally in unit.tallies if tally.handler == route.name]
        counted = self.outcome.fresh
        for tally in tallies:
            self.outcome.uncount(tally.handler, tally.written, tally.removed)
        taken = self._taken_back.setdefault(id(unit), set())
        taken.add(route.name)
        if taken == {each.name for each in unit.routes}:  # before, other handlers of the item are done
            for change in unit.changes:
                index = next((number for number, each in enumerate(counted) if each is change), None)
                if index is not None:
                    del counted[index]
        steps = tuple(step for step in unit.steps if step.route.name == route.name)
        return unit._replace(steps=steps, routes=(route,), found=None)

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
        """Counts a row that exists now; with ``is_known`` it existed before."""
        tally = self.outcome.tally(put.route.name)
        tally.written += not is_known
        tally.unchanged += is_known
        self.outcome.done += [put.change] if is_known else ()

    def fail(self, units: Iterable[Unit], error: Exception) -> None:
        """Fails units. The later changes of an item are held for an ``on`` handler, unless the record is parked."""
        self.note_fatal(error)
        for unit in units:
            to_report = self.report(Failed(change, route, error) for route in unit.routes for change in unit.changes)
            if to_report and not unit.steps:
                self.held.add((unit.item, unit.routes[0].name))

    def fail_changes(self, causes: Iterable[Causes], error: Exception) -> None:
        """Fails changes of items that the ledger has, each for some handlers."""
        self.note_fatal(error)
        self.report(
            Failed(change, route, error) for routes, changes in causes for route, change in product(routes, changes)
        )

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
        self.pending_work.fail(failures)
        to_report = reported(failures, self.triage)
        self.outcome.failed += to_report
        return to_report

    def wait_for_deltas(self, runtime: Runtime, take_back: Callable[[WaitingDeltas], None] | None = None) -> None:
        """Waits for the deltas of this work; what is not in the rows in time is reported.

        ``take_back``: takes back what rows refuse, before it is reported.
        """
        if not self.pending_work.waits:
            return
        deltas, routes = self.pending_work.deltas, {route.name: route for route in runtime.application.routes}
        self.report(wait_for_deltas(runtime, deltas, take_back))
        for handler, row in deltas.lost:
            if handler in routes:  # or it was retired
                self.lose(row, [routes[handler]])

    def note_fatal(self, error: Exception) -> None:
        """Remembers an error that no retry can help."""
        if isinstance(error, EngineError) and is_fatal(error):
            self.fatal = error

    def raise_fatal(self) -> None:
        """Raises a fatal error if nothing of the batch was done: then it concerns all of the batch."""
        done = self.outcome.fresh or self.outcome.done or self.outcome.tallies or self.partly_applied
        if self.fatal is not None and not done:
            raise self.fatal
