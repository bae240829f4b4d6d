"""Delivers changes as badly as Lambda may, while the store and the handlers fail; then repairs everything.

The records, the time and the invocations of each delivery are chosen point by point. At the end nothing fails any more:
late writes land, the other records are delivered, records that were given up are redriven, and the rows must be right.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from streamfold.batch.fan_outs import enqueue_open, run_chains, run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.commit.buckets import REST_SECONDS, TRIED_AGAIN_SECONDS
from streamfold.commit.outcome import Failure, Held
from streamfold.derivations.derivation import local_locations
from streamfold.derivations.expected import ItemVersion
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import EngineUnavailable, NotStarted, joined_key
from streamfold.failures.repair import Repair, Repaired
from streamfold.jobs.fan_outs import FanOuts
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.ledger.deltas import ID_BYTES, STRIPES
from streamfold.proofs.faults import Choices, ChosenSlots, FaultyEngine
from streamfold.proofs.handlers import FaultyHandlers, ProofParking
from streamfold.proofs.histories import arriving
from streamfold.proofs.invariants import AcknowledgedDeltas, InvariantBroken, Invariants
from streamfold.proofs.moments import (
    AFTER_SECONDS,
    HOUR,
    PASSING_HOURS,
    QUIET_SECONDS,
    SKEW_SECONDS,
    WAKES_MEANWHILE,
    visit_late,
    ways_of_time,
)
from streamfold.proofs.oracle import (
    ExpectedRows,
    at_moment,
    attribute_names,
    check_cascades,
    check_order,
    endless,
    expected_all,
    expected_items,
    folded_rows,
    history_of,
    identity,
    outside_rows,
    read_rows,
    stored_items,
)
from streamfold.proofs.store import LOCATION, Contents, ProofStore, Writer, Writers, proof_store
from streamfold.records.change import Change, times_of
from streamfold.runtime import MICROSECONDS, Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.testing.items import HandlerFails
from streamfold.testing.mapping import Died
from streamfold.testing.twin import changes_items, reports_conflict
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.app import App

QUEUE_FAULTS = ("bell-lost", "bell-twice")
FAN_OUT_ROUNDS_MAX = 20
"""Rounds of open fan-outs at the end: each may open others, and handlers may do so for ever."""


def process_queue(runtime: Runtime, choices: Choices) -> None:
    """Processes the segments that an invocation enqueued: once, not at all, or twice. A failed segment stays open."""
    if not runtime.queued:
        return
    option = choices.choose("bell", QUEUE_FAULTS)
    if option == "bell-lost":
        runtime.queued.clear()
    queued = [*runtime.queued] if option == "bell-twice" else []
    run_fan_outs(runtime)
    runtime.queued += queued
    run_fan_outs(runtime)


def process_all(runtime: Runtime) -> bool:
    """Enqueues and processes fan-outs until none is open; returns whether one was. Raises ``HandlerFails``."""
    for number in range(FAN_OUT_ROUNDS_MAX):
        if not enqueue_open(runtime):
            return number > 0
        for failure in run_fan_outs(runtime).failures:
            raise HandlerFails(str(failure)) from failure.error
    raise HandlerFails(f"Fan-outs are open after {FAN_OUT_ROUNDS_MAX} rounds.")


NOW = 1_772_355_600.0
"""The time of a run, unless its records are later."""


class Invoker:
    """The function of an application, and the knowledge that its process keeps between invocations.

    The contents of archives and indexes are in ``proof``; the rows are in ``store``, which may be another.
    """

    def __init__(
        self,
        handlers: FaultyHandlers,
        choices: Choices,
        actions: int,
        log: Callable[[str], None],
        proof: ProofStore,
        store: MemoryEngine,
        now: float = NOW,
        deltas: int = 0,
    ) -> None:
        self.handlers = handlers
        self.app = handlers.app
        self._other_app: App | None = None
        self.choices = choices
        self.log = log
        self.settings = Settings(chunk_actions=actions, archive=LOCATION)
        self.store = store
        self.store.source_tables.update(self.app.source_tables)
        self.writers: Writers | None = None
        self.engine = FaultyEngine(self.store, choices, self._meanwhile, self._check, self.log)
        self._parking = ProofParking(self.app)
        self.opened: dict[str, Any] = {
            LOCATION: Contents(proof, self.engine.archive),
            **local_locations(self.app, proof, self.settings),
        }
        for name, location in self.opened.items():
            if name != LOCATION:  # the call that writes there, which may fail
                write = partial(self.engine.write_outside, name=name, call=location.writes)
                setattr(location, location.writes, write)
        self.known: dict[App, Knowledge] = {}
        self._deltas = deltas
        self._additions = self._tokens = 0  # that were asked for
        self.pace = self._new_pace()
        self._invariants = Invariants(self.app, self.store)
        self._waiting = AcknowledgedDeltas(self.app.name, self.store)
        if deltas:
            self.engine.committed = lambda writes: self._waiting.commit(writes, len(self._running))
        self._broken: InvariantBroken | None = None
        self.now = now
        self.end = now + AFTER_SECONDS  # up to which time goes on, if a handler asks for the time
        self._time = ways_of_time(self.app)
        self.deliveries = 0
        self._running: list[Writer | None] = []  # running invocations, the innermost last; None: of no shard
        self._repairs_failed: list[Repaired] = []
        self._acknowledged: set[str] = set()  # versions of removals
        self._over: dict[str, int] = {}  # delivered records at the end of a removal, by version

    @abstractmethod
    def _meanwhile(self) -> None:
        """Called between two calls of the store, for the actions of other processes."""

    def _check(self) -> None:
        """Notes the first invariant that broke. An error raised here could be handled by the code under test."""
        try:
            self._invariants.check()
        except InvariantBroken as broken:
            self._break(broken)

    def _break(self, broken: InvariantBroken) -> None:
        self._broken = self._broken or broken

    def _attempt(self, batch: Sequence[Change], calls: int | None = None) -> list[Failure] | None:
        """One invocation: the failures that it reports, or None if it died."""
        self.deliveries += 1
        self._parking.delivered(batch)
        since = self._waiting.number
        try:
            runtime = self._invocation(calls)
            failures = process_changes(runtime, batch).failures
            process_queue(runtime, self.choices)
            failures = [*failures, *self._chain(runtime)]
        except (Died, EngineUnavailable) as died:
            self._ends(died)
            return None
        failed = {failure.sequence for failure in failures}
        if self._deltas:
            self._check_acknowledged(batch, failed, since)
        if self.writers:
            self._note_ended(batch, failed, len(self.writers.store.delivered))
        return failures

    def _chain(self, runtime: Runtime) -> Sequence[Failure]:
        """Runs the handlers that read derived rows, and returns the failures."""
        if not self.app.chained:
            return ()
        self.engine.retry(self.settings.group)
        return run_chains(runtime, self.engine).failures

    def _ends(self, died: BaseException) -> None:
        self.log(f"  the invocation ends: {type(died).__name__}")
        self.known.clear()
        self.pace = self._new_pace()

    def _pass_time(self, how: str | None = None) -> bool:
        """Visits items at wakes, as the schedule does; returns whether there were some. Raises ``HandlerFails`` at the
        end of a run.
        """
        if how == "hours-pass":
            self.engine.advance_clock(min(self.store.clock_seconds + PASSING_HOURS * HOUR, self.end - QUIET_SECONDS))
        self._running.append(None)
        outside, self.engine.skew_seconds = self.engine.skew_seconds, SKEW_SECONDS.get(how, 0)
        found, failures = False, list[Failure]()
        try:
            runtime = self._invocation()
            found, visited = visit_late(runtime, twice=how == "wakes-twice")
            process_queue(runtime, self.choices)
            failures += [*visited, *self._chain(runtime)]
        except (Died, EngineUnavailable) as died:
            self._ends(died)
        self.engine.skew_seconds = outside
        self._running.pop()
        for failure in failures if self.store.clock_seconds >= self.end else ():
            raise HandlerFails(str(failure)) from failure.error
        return found

    def _check_acknowledged(self, batch: Sequence[Change], failed: Collection[str | None], since: int) -> None:
        """Notes a record that is acknowledged before its deltas are in the rows."""
        handlers = [route.name for route in self.app.routes if route.name not in self.handlers.off]
        try:
            for change in _acknowledged(batch, failed):
                if change not in self._parking.parked:
                    self._waiting.check(change, handlers, since, len(self._running))
        except InvariantBroken as broken:
            self._break(broken)

    def _note_ended(self, batch: Sequence[Change], failed: Collection[str | None], position: int) -> None:
        """Notes the number of delivered records at the end of each removal, the last of its item in a batch.

        A removal ends when its record is acknowledged and no open fan-out belongs to it.
        """
        last = {change.item: change for change in sorted(batch, key=identity) if change.event == "REMOVE"}
        acknowledged = _acknowledged(batch, failed)
        self._acknowledged.update(change.version_text for change in last.values() if change in acknowledged)
        open_ones = FanOuts(self._invocation().on(self.store)).all()
        going_on = {job.options.get("version") for job in open_ones}
        for version in self._acknowledged - going_on:
            self._over.setdefault(version, position)

    def _invocation(self, calls: int | None = None) -> Runtime:
        """The runtime of one invocation. ``calls``: its time ends after so many calls of the store; None: never."""
        last = None if calls is None else self.engine.calls + calls
        return Runtime(
            self.app,
            self.engine,
            self.settings._replace(handlers_off=tuple(self.handlers.off)),
            clock=lambda: self.now,
            pause=self._pause,
            opened=self.opened,
            known=self.known.setdefault(self.app, Knowledge()),
            parking=self._parking,
            source_items=self.writers is not None,
            slots=ChosenSlots(lambda: self.choices, self._break),
            pace=self.pace,
            seconds_left=lambda: 0.0 if last is not None and self.engine.calls >= last else float("inf"),
        )

    def _repair(self, change: Change, version: str = BEFORE_ALL) -> None:
        """Repairs the rows of an item from the table. A repair whose process dies is not repeated."""
        self.log(f"  repair of {change.name}")
        self._running.append(None)
        try:
            repairs = Repair(self._invocation()).item(change.item, version=version, changes=[change])
        except Died:
            repairs = []
        self._running.pop()
        self._repairs_failed = [repaired for repaired in repairs if repaired.error is not None]

    def _new_pace(self) -> SendingPace:
        """What a new process knows of sending: nothing, but for which additions go through deltas."""
        pace = SendingPace()
        if self._deltas:
            pace.sharing.forced = self._goes_through_a_delta
            pace.sharing.token = self._token
        return pace

    def _token(self) -> str:
        self._tokens += 1
        return f"{self._tokens % STRIPES:x}{self._tokens:0{2 * ID_BYTES}x}"

    def _pause(self, seconds: float) -> None:
        if self._deltas:  # the lease of a process that died has an end; pauses are random, and runs must not be
            self.now += seconds if seconds >= TRIED_AGAIN_SECONDS else REST_SECONDS

    def _goes_through_a_delta(self, row: RowKey) -> bool:
        # Half of the additions, others at each number: as if by chance, and the same in each run of a scenario.
        self._additions += 1
        return crc32(f"{self._deltas} {self._additions} {row}".encode()) % 2 == 0

    def _other_process(self) -> None:
        # Each call switches to the process that is not in use: its knowledge is older.
        self.app, self._other_app = self._other_app or self.handlers.other, self.app


BATCH_RECORDS = 100
BATCHES = {"batches-of-1": 1, "batches-of-2": 2, "batches-of-3": 3, "batches-of-7": 7}
DELIVERY = (
    "each-record-twice",
    "rewound",
    "checkpoint-lost",
    "skipped",
    "shuffled",
    "out-of-time",
    "repair",
    "other-process",
)
MEANWHILE = ("overlap", "other-shard", "repair", "written-meanwhile", WAKES_MEANWHILE)
REDRIVE = ("redriven-early", "redriven-shuffled", "redriven-twice", "replayed")
END = ("late-writes-land-last", "all-delivered-again")
REWIND_RECORDS = 3
INSIDE_MAX = 2
"""The depth of nested invocations and repairs, each of which runs between two calls of the outer one. Without a bound,
a run of many faults would recurse for ever."""
CALLS_IN_TIME = 3
"""Calls of the store before the time of an invocation is nearly over, under the fault ``out-of-time``."""
ATTEMPTS_MAX = 3
"""Attempts without progress before the first record is given up, as Lambda does after its retries."""
INVOCATIONS_MAX = 50
"""Invocations per shard before faults end: a run in which every delivery fails would not end."""
ROUNDS_MAX = 50
"""Rounds of writes by handlers to items. A handler whose writes cause further writes would not end."""


class Driver(Invoker):
    """One run over a new store, or over another with the same interface. ``log`` gets a line for each step."""

    def __init__(
        self,
        handlers: FaultyHandlers,
        shards: Sequence[Sequence[Change]],
        choices: Choices,
        actions: int,
        log: Callable[[str], None] = lambda _: None,
        store: MemoryEngine | None = None,
        pace: int = 0,
        deltas: int = 0,
    ) -> None:
        self.given = [change for changes in shards for change in changes]
        proof = proof_store(handlers.app)
        super().__init__(
            handlers, choices, actions, log, proof, store or proof, max(times_of(self.given), default=NOW), deltas
        )
        if store is None and changes_items(self.app):
            self.shards = _writers([], shards)
            self.writers = Writers(proof, self.shards, choices, log, pace)
        else:
            self.shards = _writers([arriving(changes, choices) for changes in shards], [])
        self._batch: list[Change] = []
        self._overtaken: int | None = None

    def run(self) -> ExpectedRows:
        """Delivers everything, repairs everything, and returns the rows."""
        self.handlers.recover()
        while writers := [writer for writer in self.shards if not writer.done and writer.invocations < INVOCATIONS_MAX]:
            self._invoke(min(writers, key=lambda writer: writer.invocations))
        self._finish()
        if self._broken is not None:
            raise self._broken
        if pending := [*self._invariants.deltas]:
            raise InvariantBroken(f"{len(pending)} deltas are pending at the end, first {pending[0].sk}.")
        check_order(self.app, self.opened[LOCATION], self.overtaken_changes())
        rows = read_rows(self.app, self.store.rows, self.delivered) | outside_rows(self.app, self.opened[LOCATION])
        return rows | stored_items(self.writers.store, self._derived_names) if self.writers else rows

    @property
    def delivered(self) -> Sequence[Change]:
        """The changes of a run, each once: as given, or as the tables of the run recorded them."""
        return [each.change for each in self.writers.store.delivered] if self.writers else self.given

    def expected(self) -> ExpectedRows:
        """The right rows, computed after the run.

        Raises ``ItemsWrong`` if a handler removed an item that no declaration removes, or kept one that it removes.
        """
        with at_moment(self.last_moment):
            folded = folded_rows(self.app, history_of(self.delivered).items)
            rows = expected_all(self.app, self.delivered, folded)
            if self.writers is None:
                return rows
            check_cascades(self.app, self.writers.store.delivered, self._over)
            return rows | expected_items(self.app, self.writers.store.delivered, self._derived_names, folded)

    @property
    def last_moment(self) -> int:
        """The time at the end of a run, epoch microseconds, for handlers that ask for the time."""
        return round(self.end * MICROSECONDS)

    @cached_property
    def _derived_names(self) -> set[str]:
        # Cached: read only when all writes were made.
        assert self.writers is not None
        return attribute_names(self.app, [change for change, own, _ in self.writers.store.delivered if own])

    def _invoke(self, writer: Writer) -> None:
        writer.invocations += 1
        how = self.choices.choose("delivery", DELIVERY)
        if how == "repair" and writer.position < len(writer.changes):
            self._repair(writer.changes[writer.position])
            if writer.done:  # it was delivered meanwhile
                return
        size = BATCHES.get(self.choices.choose("batch", tuple(BATCHES)) or "", BATCH_RECORDS)
        if self.writers:
            self.writers.write(writer, self.writers.pace or size)
        batch = list(writer.changes[writer.position : writer.position + size])
        if not batch:  # the writes changed nothing
            return
        self._write(batch)
        if how == "skipped":
            self._give_up(writer)
            return
        through = self._deliver(writer, batch, how)
        writer.attempts = 0 if through else writer.attempts + 1
        writer.position += through
        if writer.attempts >= ATTEMPTS_MAX:
            self._give_up(writer)
        if how in ("rewound", "checkpoint-lost"):
            writer.position = max(0, writer.position - REWIND_RECORDS) if how == "rewound" else 0
            self.log(f"{writer.name}: {how}, back to record {writer.position + 1}")
        if self._time and (passes := self.choices.choose("time", self._time)) != "wakes-left-out":
            self._pass_time(passes)

    def _write(self, batch: Sequence[Change]) -> None:
        # The table has the items of its stream. Versions keep a redelivered batch from restoring older items.
        if self.writers is None:
            self.store.put_sources((change.item, change.new.raw or None, change.version_text) for change in batch)

    def _deliver(self, writer: Writer, batch: list[Change], how: str | None) -> int:
        """Delivers a batch, and returns how many of its records are through."""
        first = writer.position + 1
        self.log(f"{writer.name}: records {first} to {first + len(batch) - 1}{f', {how}' if how else ''}")
        if option := self.choices.choose("handler", self.handlers.options):
            self.log(f"  {option.partition(' ')[2]}: {option.partition(' ')[0]}")
            self.handlers.break_down(option)
        delivered = [change for change in batch for _ in range(2)] if how == "each-record-twice" else batch
        if how == "shuffled":
            delivered = _shuffled(batch)
        if how == "other-process":
            self._other_process()
        self._running.append(writer)
        outside, self._batch = self._batch, batch
        failed = self._attempt(delivered, CALLS_IN_TIME if how == "out-of-time" else None)
        self._running.pop()
        self._batch = outside
        self.handlers.off.clear()
        if self._overtaken is not None and not self._running:
            overtaken, self._overtaken = self._overtaken, None
            return overtaken  # this invocation had timed out, and its response was ignored
        return _through(batch, failed)

    def _meanwhile(self) -> None:
        """Chooses an action of another process: the same batch again, a batch of another shard, a repair, a write."""
        if not 0 < len(self._running) <= INSIDE_MAX:
            return
        others = [writer for writer in self.shards if not writer.done and writer not in self._running]
        first = len(self._running) == 1 and isinstance(self._running[0], Writer)
        waiting = self.writers.waiting if self.writers else []
        possible = {"overlap": first, "other-shard": bool(others), "repair": first, "written-meanwhile": bool(waiting)}
        possible[WAKES_MEANWHILE] = first and bool(self._time)
        option = self.choices.choose("meanwhile", [option for option in MEANWHILE if possible[option]])
        if option is None:
            return
        self.log("  (")
        if option == "other-shard":
            overtaken, self._overtaken = self._overtaken, None
            self._invoke(others[0])
            self._overtaken = overtaken
        elif option == "overlap":
            self._running.append(None)
            self._overtaken = _through(self._batch, self._attempt(self._batch))
            self._running.pop()
        elif option == "repair":
            self._repair(self._batch[0])
        elif option == WAKES_MEANWHILE:
            self._pass_time("hours-pass")
        elif self.writers:
            self.writers.write(waiting[0], 1)
        self.log(f"  ) {option} meanwhile")

    def _give_up(self, writer: Writer) -> None:
        self.log(f"{writer.name}: record {writer.position + 1} is given up")
        writer.given_up.append(writer.changes[writer.position])
        writer.position += 1
        writer.attempts = 0

    def _finish(self) -> None:
        """Ends all faults, delivers the remaining records, and redrives those that were given up."""
        redrive = self.choices.choose("redrive", REDRIVE)
        end = self.choices.choose("end", END)
        for writer in self.shards:
            self._write(writer.changes)
            if self.writers:
                self.writers.write(writer, len(writer.waiting))
        self.engine.choices = self.choices = Choices()
        self.handlers.recover()
        self._pause(TRIED_AGAIN_SECONDS)  # what rows refused by a fault is tried again
        if end != "late-writes-land-last":
            self.engine.land_all()
        given_up = [*(change for writer in self.shards for change in writer.given_up), *self._parking.parked]
        steps = [
            *(partial(self._deliver_rest, writer) for writer in self.shards),
            partial(self._redrive, given_up, redrive),
        ]
        for step in reversed(steps) if redrive == "redriven-early" else steps:
            step()
        self.engine.land_all()
        again = [writer.changes for writer in self.shards] if end == "all-delivered-again" else []
        for changes in (*again, ()):  # the empty batch runs the chains of late writes
            self._process(changes)
        if self._time:
            self.engine.advance_clock(self.end)
        for _ in range(ROUNDS_MAX):  # a fan-out may change items, whose records may open another; so may a visit
            self._deliver_what_follows()
            went_on = process_all(self._invocation())
            if not (self._time and self._pass_time()) and not went_on:
                break
        self._process(())

    def overtaken_changes(self) -> dict[str, set[ItemVersion]]:
        of_shards = set[ItemVersion]().union(*(writer.overtaken for writer in self.shards))
        return {route.name: of_shards | self._parking.versions[route.name] for route in self.app.routes}

    def _deliver_rest(self, writer: Writer) -> None:
        self._process(writer.rest())

    def _deliver_what_follows(self) -> None:
        """Delivers the records of handlers' writes to items, and of the writes that follow, until there are none.

        Raises ``HandlerFails`` if there is no end.
        """
        pending = [writer for writer in self.shards if not writer.done]
        for _ in range(ROUNDS_MAX):
            if not pending:
                return
            for writer in pending:
                self._process(writer.rest())
            pending = [writer for writer in self.shards if not writer.done]
        if pending:
            raise HandlerFails(endless(self.app, pending[0].changes[-1].item, ROUNDS_MAX))

    def _redrive(self, changes: Sequence[Change], how: str | None) -> None:
        """Repairs ledger items, and replays claims and audit rows. With ``replayed``, replays everything, which is
        right as long as no tombstone has expired.
        """
        if changes:
            self.log(f"{len(changes)} given up records are redriven{f', {how}' if how else ''}")
        if how == "redriven-shuffled":
            changes = _shuffled(changes)
        for change in [*changes] * (2 if how == "redriven-twice" else 1):
            if how != "replayed":
                self._repair(change, change.version_text)
                for failed in self._repairs_failed:
                    raise HandlerFails(_unrepaired(failed)) from failed.error
            self._process([change])

    def _process(self, changes: Sequence[Change]) -> None:
        failures = self._attempt(changes)
        for failure in failures or ():
            if not isinstance(failure.error, Held | NotStarted) and not reports_conflict(self.app, failure):
                raise HandlerFails(str(failure)) from failure.error


def _writers(arrived: Sequence[Sequence[Change]], waiting: Sequence[Sequence[Change]]) -> list[Writer]:
    """A writer for each shard with changes. The changes arrived already, or wait until the application writes them."""
    writers = [Writer(f"shard {number}", list(changes)) for number, changes in enumerate(arrived, 1) if changes]
    writers += [Writer(f"shard {number}", [], deque(changes)) for number, changes in enumerate(waiting, 1) if changes]
    return writers


def _acknowledged(batch: Sequence[Change], failed: Collection[str | None]) -> list[Change]:
    # Kinesis may hold a record twice, with two sequence numbers: the change is not acknowledged while either fails.
    failing = [change for change in batch if change.sequence in failed]
    return [change for change in batch if change not in failing]


def _through(batch: Sequence[Change], failed: Sequence[Failure] | None) -> int:
    """The number of records of a batch that are through: those before the first failure; none if the process died."""
    if failed is None:
        return 0
    sequences = {change.sequence: position for position, change in reversed(list(enumerate(batch)))}
    return min((sequences[failure.sequence] for failure in failed if failure.sequence in sequences), default=len(batch))


def _unrepaired(failed: Repaired) -> str:
    name = joined_key(failed.item[1:])
    return f"handler {failed.handler!r}, repair of item {name}: {type(failed.error).__name__}: {failed.error}"


def _shuffled(changes: Sequence[Change]) -> list[Change]:
    shuffled = list(changes)
    Random(len(shuffled)).shuffle(shuffled)  # noqa: S311 - any order does, the same every time
    return shuffled
