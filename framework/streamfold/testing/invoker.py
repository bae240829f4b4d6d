"""How the invocations and repairs of a run are carried out, on a store and with handlers that fail."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from streamfold.batch.fan_outs import run_chains
from streamfold.batch.process import process_changes
from streamfold.commit.outcome import Failure
from streamfold.derivations.search.indexes import OPENED
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import EngineUnavailable
from streamfold.failures.repair import Repair
from streamfold.jobs.fan_outs import FanOuts
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.records.change import Change
from streamfold.runtime import Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.testing.choices import Choices
from streamfold.testing.doorbells import answer_bells
from streamfold.testing.faults import FaultyEngine
from streamfold.testing.handlers import FaultyHandlers
from streamfold.testing.in_flight import ChosenLanes
from streamfold.testing.invariants import InvariantBroken, Invariants
from streamfold.testing.invocations import Died
from streamfold.testing.oracle import identity
from streamfold.testing.parking_place import ProofParking
from streamfold.testing.store import PLACE, Contents, Documents, ProofStore

if TYPE_CHECKING:
    from streamfold.app import App
    from streamfold.failures.repair import Repaired
    from streamfold.testing.writers import WriterLane, Writers

NOW = 1_772_355_600.0
"""The time of a run whose records are not later."""


class Invoker:
    """The function of an application, and what its process learns from invocation to invocation.

    The contents of archives and indexes are in ``proof``; the rows are in ``store``, which may be another.
    """

    def __init__(
        self,
        handlers: FaultyHandlers,
        choices: Choices,
        actions: int,
        tell: Callable[[str], None],
        proof: ProofStore,
        store: MemoryEngine,
        now: float = NOW,
    ) -> None:
        self.handlers = handlers
        self.app = handlers.app
        self._other_app: App | None = None
        self.choices = choices
        self.tell = tell
        self.settings = Settings(chunk_actions=actions, archive=PLACE)
        self.store = store
        self.store.source_tables.update(self.app.source_tables)
        self.writers: Writers | None = None
        self.engine = FaultyEngine(self.store, choices, self._meanwhile, self._check, self.tell)
        self._parking = ProofParking(self.app)
        self.opened: dict[str, Any] = {
            PLACE: Contents(proof, self.engine.archive),
            OPENED: Documents(proof, self.engine.bulk),
        }
        self.known: dict[App, Knowledge] = {}
        self.pace = SendingPace()
        self._invariants = Invariants(self.app, self.store)
        self._broken: InvariantBroken | None = None
        self.now = now
        self.deliveries = 0
        self._running: list[WriterLane | None] = []  # what is going on, the innermost last; None: no lane's
        self._repairs_failed: list[Repaired] = []
        self._acknowledged: set[str] = set()  # versions of removals
        self._over: dict[str, int] = {}  # how many records the tables had told when a removal was over

    @abstractmethod
    def _meanwhile(self) -> None:
        """Called between two calls of the store: what others do at this moment."""

    def _check(self) -> None:
        """Notes the first invariant that broke; what it was raised inside might take it for an error of its own."""
        try:
            self._invariants.check()
        except InvariantBroken as broken:
            self._break(broken)

    def _break(self, broken: InvariantBroken) -> None:
        self._broken = self._broken or broken

    def _attempt(self, batch: Sequence[Change], calls: int | None = None) -> list[Failure] | None:
        """One invocation: the failures that it reports, None where it died."""
        self.deliveries += 1
        self._parking.delivered(batch)
        try:
            runtime = self._invocation(calls)
            failures = process_changes(runtime, batch).failures
            answer_bells(runtime, self.choices)
            if self.app.chained:
                self.engine.retry(self.settings.group)
                failures = [*failures, *run_chains(runtime, self.engine).failures]
        except (Died, EngineUnavailable) as died:
            self.tell(f"  the invocation ends: {type(died).__name__}")
            self.known.clear()
            self.pace = SendingPace()
            return None
        if self.writers:
            self._note_ended(batch, {failure.sequence for failure in failures}, len(self.writers.store.told))
        return failures

    def _note_ended(self, batch: Sequence[Change], failed: Collection[str | None], place: int) -> None:
        """Notes how many records the tables had told when a removal, the last of its item in a batch, was over.

        It is over when its record is acknowledged and no fan-out goes on with it.
        """
        last = {change.item: change for change in sorted(batch, key=identity) if change.event == "REMOVE"}
        self._acknowledged.update(change.version_text for change in last.values() if change.sequence not in failed)
        open_ones = FanOuts(self._invocation().on(self.store)).all()
        going_on = {job.options.get("version") for job in open_ones}
        for version in self._acknowledged - going_on:
            self._over.setdefault(version, place)

    def _invocation(self, calls: int | None = None) -> Runtime:
        """The runtime of one invocation, which has time for so many calls of the store; None: for any number."""
        last = None if calls is None else self.engine.calls + calls
        return Runtime(
            self.app,
            self.engine,
            self.settings._replace(handlers_off=tuple(self.handlers.off)),
            clock=lambda: self.now,
            pause=lambda _: None,
            opened=self.opened,
            known=self.known.setdefault(self.app, Knowledge()),
            parking=self._parking,
            source_items=self.writers is not None,
            slots=ChosenLanes(lambda: self.choices, self._break),
            pace=self.pace,
            seconds_left=lambda: 0.0 if last is not None and self.engine.calls >= last else float("inf"),
        )

    def _repair(self, change: Change, version: str = BEFORE_ALL) -> None:
        """Leads what an item's ledger handlers keep to what the table says now; a repair that dies is left."""
        self.tell(f"  repair of {change.name}")
        self._running.append(None)
        try:
            repairs = Repair(self._invocation()).item(change.item, version=version, changes=[change])
        except Died:
            repairs = []
        self._running.pop()
        self._repairs_failed = [repaired for repaired in repairs if repaired.error is not None]

    def _other_process(self) -> None:
        """From here on another process is invoked, and at the next call this one again."""
        self.app, self._other_app = self._other_app or self.handlers.another(), self.app
