"""Planning of a batch: its changes are routed, ordered per item and derived."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from streamfold.batch.failing import Failing
from streamfold.batch.knowledge import Knowledge
from streamfold.batch.order import ItemWork, by_item
from streamfold.batch.report import Report
from streamfold.batch.settling import Settling
from streamfold.batch.steps import Settled, Steps
from streamfold.commit.outcome import HELD, Failed, Held
from streamfold.commit.plan import Plan, pack
from streamfold.commit.triage import Triage
from streamfold.derivations.derivation import Planned, Planning, Work, derivation
from streamfold.engines import Engine, StateItems
from streamfold.errors import RecordError, SwitchedOff
from streamfold.records.change import Change, ItemKey
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run
from streamfold.writes.guarded import StateKey


class Batch:
    """A batch, from changes to a plan. Nothing it holds leads back to it: it is given back when it is done.

    asked: items of it by the keys of ledger items that are being read, to tell whether it came before.
    """

    def __init__(
        self,
        application: Application,
        changes: Sequence[Change],
        engine: Engine,
        run: Run,
        knowledge: Knowledge,
        triage: Triage | None = None,
        asked: Mapping[StateKey, ItemKey] = MappingProxyType({}),
    ) -> None:
        self.application = application
        self.run = run
        self.failing = Failing(triage)
        self.report = Report()
        self.done: list[Change] = []
        self.work = by_item(application, changes, run, self.report)
        self.steps = Steps(application, engine, run, knowledge, self.work, self.failing, self.done)
        self.settling = Settling(self.work, asked) if asked else None

    def plan(self, sampled: StateItems | None = None) -> Plan:
        """Derives every handler's effects and plans them; reads state only where an old image is not known.

        sampled: holds the ledger items that were asked for, if they were read, and tells whether the batch came before;
        then state is read too.
        """
        settled = Settled()
        if self.settling is not None and sampled is not None:
            settled = self.settling.settle(sampled, self.steps)
        units = self.steps.units(settled)
        works: dict[Route, list[Work]] = {}
        for item in self.work.values():
            for route in dict.fromkeys(item.off):
                self._put_aside(route, item)
            for work in item.works(item.others) if item.others else ():
                works.setdefault(work.route, []).append(work)
        planning = Planning(self.application, self.run, self.failing.fails, self._hold, self._count)
        planned = Planned.joined(derivation(route).plan(own, planning) for route, own in works.items())
        chunks = pack([*units, *planned.units], self.run.chunk_actions)
        return Plan(tuple(chunks), tuple(planned.puts), tuple(planned.deferred))

    @property
    def failed(self) -> list[Failed]:
        """The failures that are reported."""
        return self.failing.failed

    @property
    def heard(self) -> list[Work]:
        """The work of routes that listen to an item without their handlers being called."""
        return [work for item in self.work.values() if item.heard for work in item.works(item.heard)]

    def _hold(self, route: Route, changes: Collection[Change]) -> None:
        self.failing.failed += [Failed(change, route, Held(HELD)) for change in changes]

    def _count(self, word: str, route: Route) -> None:
        self.report.count(word, route.name)

    def _put_aside(self, route: Route, work: ItemWork) -> None:
        """The records of a handler that is switched off: parked where there is a place, else skipped and counted."""
        changes = [change for change in work.changes if _may_take(route, change)]
        if self.failing.triage is not None and self.run.parking is not None:
            for change in changes:
                self.failing.fails(change, route, SwitchedOff("The handler was switched off, STREAMFOLD_HANDLERS_OFF."))
            return
        self.report.off[route.name] += len(changes)
        self.run.warn_once(
            ("off", route.name),
            f"Handler {route.name!r} is switched off, and without a parking place (STREAMFOLD_PARK) its records are "
            "skipped.",
        )


def _may_take(route: Route, change: Change) -> bool:
    """Whether a handler may want a change; one that gets items sees derived attributes too."""
    if route.kind.gets_items:
        return True
    try:
        own = change.as_written()
        return own is not None and route.takes(own)
    except RecordError:  # an image that cannot be read: the handler would have failed on it
        return True
