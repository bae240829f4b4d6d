"""A page of a run: reconciles some items with their sources, all at once.

Items are visited (``batch.visits``): differences are written on the revisions that were read, merged by row, with a
fence. A record of the live stream that comes in between changes the ledger item, and the item is visited again: so a
page never sets an item back, whatever the stream does at the same time.

A contribution without a version gets ``BEFORE_ALL``, and through Kinesis a time shortly before the reads
(``lifecycle.sources``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import localcontext
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from streamfold.batch.manifest import Manifest, read_manifest
from streamfold.batch.report import finish
from streamfold.batch.visits import Visit, VisitedItem, Visits, VisitTimes, synthetic_change
from streamfold.commit.outcome import Outcome
from streamfold.commit.pending import PendingWork
from streamfold.commit.plan import Transaction, exceeds_transaction, pack
from streamfold.commit.referents import lacking_backlinks
from streamfold.derivations.derivation import Finishing, Work, derivation
from streamfold.derivations.expected import ItemFailed
from streamfold.ledger.contribution import BEFORE_ALL, stored_rows
from streamfold.ledger.step import Step
from streamfold.lifecycle.sources import ItemKeys, lower_bound
from streamfold.records.change import ItemKey
from streamfold.records.values import EXACT, to_json
from streamfold.routes.route import REFERENT, SOURCE, Route
from streamfold.runtime import Runtime
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import GuardedWrite, LedgerWrite, PutRow, PutState, RowKey, StateKey, estimated_bytes

if TYPE_CHECKING:
    from streamfold.batch.order import RoutedFields
    from streamfold.commit.plan import Unit

WRITE_BYTES = 1024
UNITS_OF_A_TRANSACTION = 2


class Difference(NamedTuple):
    """A contribution of an item that did not agree with its source."""

    item: ItemKey
    handler: str
    stored: str  # the contribution in the ledger, as text
    expected: str  # the contribution that the handler makes of the source
    seen: str = ""  # the revision of the ledger item and the digest of the image: another value means a change
    lacking: int = 0  # stored references without a backlink: changes of these referents do not reach the item

    @property
    def agrees(self) -> bool:
        """Whether only work of an earlier step is pending: rows to remove or recompute, and its note."""
        return self.stored == self.expected and not self.lacking


@dataclass(slots=True)
class PageReport:
    """The results for the items of pages."""

    items: int = 0  # that a handler reads
    written: int = 0  # contributions that were reconciled with their source, or would be in a dry run
    equal: int = 0  # contributions that agree with their source
    uncompared: int = 0  # of those written, results of kinds without a ledger: whether they differed is unknown
    rows: int = 0  # writes and removals of rows
    write_units: int = 0  # of the transactions of a dry run
    failed: list[ItemFailed] = field(default_factory=list)
    differing: list[Difference] = field(default_factory=list)  # in a dry run
    pending: list[Difference] = field(default_factory=list)  # in a dry run: equal contributions with pending work

    def add(self, other: "PageReport") -> None:
        """Adds another page's counts."""
        self.items += other.items
        self.written += other.written
        self.equal += other.equal
        self.uncompared += other.uncompared
        self.rows += other.rows
        self.write_units += other.write_units
        self.failed += other.failed
        self.differing += other.differing
        self.pending += other.pending


def _write_units(transaction: Transaction) -> int:
    # Two units for each KB of an item (Developer Guide, transaction-apis).
    return sum(UNITS_OF_A_TRANSACTION * ceil(_bytes(write) / WRITE_BYTES) for write in transaction.writes)


def _bytes(write: GuardedWrite) -> int:
    return estimated_bytes(write) if isinstance(write, LedgerWrite | PutRow | PutState) else 1


def _difference(visit: Visit, step: Step, lacking: int) -> Difference:
    image = sha256(to_json(visit.source).encode(errors="surrogatepass")).hexdigest() if visit.source else ""
    seen = f"{visit.found.revision}/{image}"
    return Difference(visit.wanted.item, step.route.name, visit.stored(step), visit.text(step), seen, lacking)


def _note_differences(report: PageReport, visit: Visit, differing: Iterable[Step], lacks: Mapping[str, int]) -> None:
    """Notes what a dry run would write for an item; each backlink that it would put is a write unit."""
    for step in differing:
        report.write_units += len({*step.references} - {*visit.found.references(step.route.name)})
        difference = _difference(visit, step, lacks[step.route.name])
        (report.pending if difference.agrees else report.differing).append(difference)


def _referring(visits: Iterable[Visit]) -> Iterator[tuple[Route, ItemKey, Sequence[ItemKey]]]:
    """The references that the ledger items of these visits have, by handler and item."""
    for visit in visits:
        for step in visit.steps:
            yield step.route, visit.wanted.item, visit.found.references(step.route.name)


class OrphanScan(NamedTuple):
    """The items behind keys of the state."""

    gone: Sequence[ItemKey]  # items whose source does not exist
    unkeyed: int  # ledger items without a known source, because its key is too long to be stored


@dataclass(slots=True)
class Pages:
    """Reconciles pages of items for some handlers.

    always: equal contributions are written too, with a fence, as a repair does.
    dry_run: nothing is written; the report holds the differences.
    emptied: items count as absent, so that all their contributions are taken back.
    delivered: a stream delivers meanwhile; None: yes, unless the store has a stream of its own.
    """

    runtime: Runtime
    handlers: Collection[str]
    always: bool = False
    dry_run: bool = False
    sources_only: bool = True  # an item inside of other items' documents does not reconcile these documents
    emptied: bool = False
    delivered: bool | None = None
    manifest: Manifest | None = field(init=False, default=None)  # as it was when the first page began
    ahead: dict[tuple[ItemKey, str], set[RowKey]] = field(init=False, default_factory=dict)
    """In a dry run: items that a handler has derived at a time that is still to come, with the rows. A clock was ahead,
    or the items are of an export of an earlier time.
    """

    def __post_init__(self) -> None:
        self.runtime = replace(self.runtime, actions=ACTIONS_MAX)  # large transactions write shared rows least often
        if self.delivered is None:
            self.delivered = not self.runtime.store.is_local

    def scan_orphans(self, keys: Sequence[ItemKey]) -> OrphanScan:
        """Finds the items of these keys of the state whose source is gone."""
        app = self.runtime.application
        known = ItemKeys(app, self.runtime.engine, [route for route in app.routes if route.name in self.handlers])
        found = [item for key in keys if (item := known.of_ledger(key)) is not None]
        found += self._kept_items([StateKey(str(pk), str(sk)) for _, pk, sk in keys])
        return OrphanScan(list(known.gone(found)), sum(known.is_untold(key) for key in keys))

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport:
        """Reconciles these items with their sources. Raises ``EngineError`` if sources or state cannot be read."""
        report = PageReport()
        with localcontext(EXACT):
            ledgers, works, referents = self._wanted(items, report)
            self._ledgers(ledgers, report)
            self._others(works, report)
            if referents:
                self._referrers(referents, report)
        return report

    def _wanted(self, items: Iterable[ItemKey], report: PageReport) -> tuple[list[VisitedItem], list[Work], list[Work]]:
        """The handlers to visit by ledger item, the work of kinds without a ledger, and that of referents."""
        ledgers: dict[tuple[ItemKey, str], dict[str, RoutedFields]] = {}
        works: list[Work] = []
        referents: list[Work] = []
        for item in dict.fromkeys(items):
            is_read, others = False, list[Work]()
            for each, fields in self.runtime.application.listeners(item):
                route = each.route
                if route.name not in self.handlers or not derivation(route).reconciles:
                    continue
                if each.role == REFERENT:
                    if not self.sources_only:  # else each of the items that refer to it is reconciled by itself
                        referents.append(Work(route, item, each.role, fields, ()))
                        is_read = True
                elif route.kind.contributes:
                    if each.is_run_over or not self.sources_only:  # a repair of a part alone visits its root
                        source, own = each.visited(item, fields)
                        ledgers.setdefault((source, route.group), {})[route.name] = route, own
                        is_read = True
                elif each.role == SOURCE or not self.sources_only or derivation(route).reconciles_all_roles:
                    others.append(Work(route, item, each.role, fields, ()))
            report.items += bool(is_read or others)
            works += others
        return [VisitedItem(*key, [*visited.values()]) for key, visited in ledgers.items()], works, referents

    def _ledgers(self, wanted: Sequence[VisitedItem], report: PageReport) -> None:
        """Visits items, and writes the differences."""
        if not wanted:
            return
        visits = Visits(
            runtime=self.runtime,
            bounds=self._bounds(each.item for each in wanted),
            emptied=self.emptied,
            dry_run=self.dry_run,
            renews=self.always,
            gets=not self.dry_run,  # the verifier may get nothing, and compares what one item is again
            moments=self._moments(),
        )
        units: list[Unit] = []
        alone: list[VisitedItem] = []  # too large for one transaction: visited again, handler by handler
        found = visits.read(wanted)
        lacking = lacking_backlinks(self.runtime, _referring(found)) if self.dry_run else {}  # read after the ledger
        wakes = self._lacking_wakes(found)
        for visit in found:
            own = {step.route.name: lacking.get((step.route.name, visit.wanted.item), ()) for step in visit.steps}
            lacks = {name: len(referents) + wakes.get((name, visit.item), 0) for name, referents in own.items()}
            differing = [step for step in visit.steps if self._is_written(visit, step) or lacks[step.route.name]]
            unit = visits.unit(visit, differing) if differing else None
            if unit is not None and len(differing) > 1 and exceeds_transaction(unit):
                alone.append(visit.wanted)
                continue
            units += () if unit is None else (unit,)
            report.equal += len(visit.steps) - len(differing)
            report.written += len(differing)
            self._count(Outcome(visit.failed), report)
            if self.dry_run:
                _note_differences(report, visit, differing, lacks)
            else:
                visits.desk.note(visit)
        if self.dry_run:
            report.write_units += sum(map(_write_units, pack(units, self.runtime.chunk_actions)))
        else:
            outcome = visits.commit(units)
            outcome += finish((), (), self._finishing(visits.pending_work))
            self._count(outcome, report)
        for each in alone:
            for handler in each.handlers:
                self._ledgers([each._replace(handlers=[handler])], report)

    def _moments(self) -> VisitTimes | None:
        """What a page that writes does with past moments at which handlers are called once."""
        if self.dry_run or not self.runtime.application.calls_once:
            return None
        from streamfold.batch.timers import PastIsUsed  # few applications have timers

        return PastIsUsed()

    def _lacking_wakes(self, found: Sequence[Visit]) -> Mapping[tuple[str, ItemKey], int]:
        """How many wakes that ledger items name are not there, in a comparison."""
        if not (self.dry_run and self.runtime.application.asks_time):
            return {}
        from streamfold.batch.wakes import lacking_wakes  # few applications ask for the time

        return lacking_wakes(self.runtime, found)

    def _is_written(self, visit: Visit, step: Step) -> bool:
        if self.dry_run and step.times is not None:
            from streamfold.ledger.wakes import is_awaited  # few handlers ask for the time

            if step.times.at > self.runtime.moment:
                self.ahead[visit.item, step.route.name] = {*stored_rows(visit.stored(step)), *step.after}
            if is_awaited(visit.stored(step), step.times.at):
                return False  # its moment has just come: it is moving
        return visit.differs(step) or (self.always and step.route.name in visit.found.contributions)

    def _bounds(self, items: Iterable[ItemKey]) -> Mapping[str, str]:
        """The lowest versions of items that are read from now on, by table."""
        if not self.delivered or self.emptied:
            return {}
        if self.manifest is None:
            self.manifest = read_manifest(self.runtime.application.name, self.runtime.engine)
        now = self.runtime.clock()
        return {name: lower_bound(self.manifest, name, now) for name in {item[0] for item in items}}

    def _others(self, works: Sequence[Work], report: PageReport) -> None:
        """Lets kinds without a ledger reconcile their items, all items of a kind at once."""
        by_kind: dict[object, list[Work]] = {}
        bounds = self._bounds(work.item for work in works) if works else {}
        for work in works:
            by_kind.setdefault(work.route.kind, []).append(work)
        for own in by_kind.values():
            report.written += len(own)
            report.uncompared += len(own)
            if self.dry_run:
                continue
            scanned = [
                work._replace(changes=(synthetic_change(work.item, bounds.get(work.item[0], BEFORE_ALL)),))
                for work in own
            ]
            kind = derivation(own[0].route)
            self._count(kind.reconcile_all(scanned, self._finishing(PendingWork())), report)

    def _referrers(self, works: Sequence[Work], report: PageReport) -> None:
        """Visits the items that refer to repaired ones: the record of a referent may be lost."""
        from streamfold.batch.referrers import listed, visit_all_referrers  # few applications have them

        for work in works:
            number = len(listed(self.runtime, work.route, work.item, work.route.inline))
            report.written += number
            report.uncompared += number
            if number and not self.dry_run:
                self._count(visit_all_referrers(work, BEFORE_ALL, self._finishing(PendingWork())), report)

    def _kept_items(self, keys: Sequence[StateKey]) -> list[ItemKey]:
        """The items for which kinds without a ledger keep these state items."""
        finishing = self._finishing(PendingWork())
        routes = [route for route in self.runtime.application.routes if route.name in self.handlers]
        return [item for route in routes for item in derivation(route).kept_items(route, keys, finishing)]

    def _finishing(self, pending_work: PendingWork) -> Finishing:
        return Finishing(self.runtime, lambda failed: failed, pending_work)

    def _count(self, outcome: Outcome, report: PageReport) -> None:
        report.rows += sum(tally.written + tally.removed for tally in outcome.tallies.values())
        report.failed += [ItemFailed(each.change.item, each.route.name, each.error) for each in outcome.failed]
