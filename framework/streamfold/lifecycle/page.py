"""A page of a run: reconciles some items with their sources, all at once.

Ledger items are read first, *then* the sources, both strongly. What differs is written on the revisions that were read,
merged by row, with a fence. A record of the live stream that comes in between moves the ledger, and the item is read
again: so a page never sets an item back, whatever the stream does at the same time.

A new part gets the highest version that the ledger item had of any handler when it was read: a record that led to that
version was committed before, so the source is at least as new. Without one it is ``BEFORE_ALL``, and through Kinesis a
time shortly before the reads (``lifecycle.bounds``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import localcontext
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from streamfold.batch.manifest import Manifest, note_expiring, read_manifest
from streamfold.batch.process import finish
from streamfold.batch.stored_schema import keep_forms
from streamfold.commit.committer import Attempt, Committer
from streamfold.commit.outcome import Outcome, explained
from streamfold.commit.pending import NamedRows, Unfinished
from streamfold.commit.plan import Chunk, Plan, Unit, exceeds_transaction, pack, unit_of
from streamfold.commit.replanning import Coming, filled, read_lives, writes_any
from streamfold.derivations.derivation import Finishing, Work, contribution, derivation
from streamfold.engines import StoredItem
from streamfold.errors import is_fatal, parts_text
from streamfold.failures.repair import Repair
from streamfold.keys.table import is_in_state
from streamfold.ledger.contribution import BEFORE_ALL, Contribution, LedgerItem, stored_rows, stored_text
from streamfold.ledger.forms import Forms
from streamfold.ledger.lives import Lives, as_stored
from streamfold.ledger.state_keys import ledger_key
from streamfold.ledger.step import Step, reconciled
from streamfold.lifecycle.sources import ItemKeys, lower_bound
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey, image_of
from streamfold.records.encoded import to_json
from streamfold.records.values import EXACT
from streamfold.routes.route import SOURCE, Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    GuardedWrite,
    LedgerWrite,
    PutRow,
    PutState,
    Refused,
    StateKey,
    estimated_bytes,
)

if TYPE_CHECKING:
    from streamfold.records.change import Change
WRITE_BYTES = 1024
UNITS_OF_A_TRANSACTION = 2


class Scanned(NamedTuple):
    """Stands for the change of an item that a page met; a failure names it."""

    item: ItemKey
    version_text: str = BEFORE_ALL
    sequence: str = ""
    event: str = ""

    @property
    def record(self) -> Mapping[str, object]:
        """There is none."""
        return {}

    @property
    def name(self) -> str:
        return parts_text(self.item[1:])


class ItemFailed(NamedTuple):
    """An item that a page could not lead to its source, for one handler."""

    item: ItemKey
    handler: str
    error: Exception


class Difference(NamedTuple):
    """A part of an item that did not agree with its source."""

    item: ItemKey
    handler: str
    stored: str  # what the ledger holds, as text
    expected: str  # what the handler makes of the source
    seen: str = ""  # of which revision of the ledger item, and of which image: another one has moved

    @property
    def agrees(self) -> bool:
        """Whether only work that an earlier step left is to be done: rows to remove or recompute, and its note."""
        return self.stored == self.expected


@dataclass(slots=True)
class PageReport:
    """What became of the items of pages, by handler and in all."""

    items: int = 0  # that a handler was asked for
    written: int = 0  # parts of items that were led to their source, or would be in a dry run
    equal: int = 0  # parts that agree with their source
    uncompared: int = 0  # of those written, parts of kinds without a ledger: nothing tells whether they agree
    rows: int = 0  # writes and removals of rows
    write_units: int = 0  # of the transactions of a dry run
    failed: list[ItemFailed] = field(default_factory=list)
    differing: list[Difference] = field(default_factory=list)  # in a dry run
    pending: list[Difference] = field(default_factory=list)  # in a dry run: parts that agree, and are to be finished

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


def stand_in(item: ItemKey, version: str = BEFORE_ALL) -> "Change":
    """What stands for the change of an item that a page met."""
    return cast("Change", Scanned(item, version))


class PageCommitter(Committer):
    """Carries out the plan of a page.

    A unit of a live batch that is refused is planned again from the images at hand. The image of a page may be older
    than the ledger item that refused it: so units that are refused are handed back, and the others go on.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.handed_back: list[Unit] = []

    def _refused(self, attempt: Attempt, refused: Refused) -> None:
        codes = {reason.code for reason in refused.reasons if reason}
        if codes <= set(CONFLICT):
            super()._refused(attempt, refused)
            return
        writes = attempt.chunk.writes
        for write, reason in zip(writes, refused.reasons, strict=True):
            if reason is not None and reason.code == CONDITION:
                self.progress.lives.refused(write, reason.item)  # so that the next page knows better
        places = {write.key for write, reason in zip(writes, refused.reasons, strict=True) if reason}
        self._hand_back([unit for unit in attempt.chunk.units if writes_any(unit, places)])
        rest = [unit for unit in attempt.chunk.units if not writes_any(unit, places)]
        self._resend(rest, attempt.rounds + 1)

    def _split(self, attempt: Attempt, refused: Refused) -> None:
        """After conflicts that do not end: the units of the rows in conflict go one by one."""
        del refused
        self._hand_back(attempt.chunk.units)

    def _hand_back(self, units: Iterable[Unit]) -> None:
        self.handed_back += units


class HandlerPart(NamedTuple):
    """One handler's part of one item, as a page has to lead it."""

    route: Route
    fields: Fields


class ItemParts(NamedTuple):
    """The parts of one ledger item."""

    item: ItemKey
    group: str
    parts: Sequence[HandlerPart]


class DerivedParts(NamedTuple):
    """A ledger item with the steps to its source."""

    key: StateKey
    held: LedgerItem
    source: StoredItem | None
    steps: Sequence[Step]


@dataclass(slots=True, kw_only=True)
class PagePlan:
    """What becomes of the ledger items of one page.

    always: parts are written although they agree with their source, with a fence.
    dry_run: nothing will be written; the report says what differs.
    """

    application: str
    forms: Forms
    keys: Mapping[StateKey, ItemParts]
    bounds: Mapping[str, str]  # the least version of what is read, by table
    report: PageReport
    always: bool
    dry_run: bool
    lives: Lives
    derived: list[DerivedParts] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    alone: list[ItemParts] = field(default_factory=list)  # to be led one by one
    unfinished: Unfinished = field(default_factory=Unfinished)

    def bound(self, item: ItemKey) -> str:
        """The version that what is read of an item has at least."""
        return self.bounds.get(item[0], BEFORE_ALL)

    def write_units(self, actions: int) -> int:
        """What writing the units costs, with so many writes in a transaction."""
        return sum(map(_write_units, pack(self.units, actions)))

    def derive(self, key: StateKey, held: LedgerItem, source: StoredItem | None) -> None:
        """Derives what the handlers make of one ledger item's source."""
        self.derived.append(DerivedParts(key, held, source, self._steps(self.keys[key], held, source)))

    def coming(self) -> Iterator[Coming]:
        """The steps that were derived, with what the ledger holds."""
        for _, held, _, steps in self.derived:
            for step in steps:
                stored = held.parts.get(step.route.name)
                yield step.route, stored_rows(stored.text) if stored else {}, step.after

    def plan(self) -> None:
        """Plans the units of ledger items of which a part differs."""
        for derived in self.derived:
            self._plan(*derived)

    def _plan(self, key: StateKey, held: LedgerItem, source: StoredItem | None, steps: Sequence[Step]) -> None:
        each, report = self.keys[key], self.report
        if not self.dry_run:
            self._name(key, each, steps, held)
        differing = [step for step in steps if self._differs(step, held)]
        unit = _unit(key, each.item, differing, held, self.lives)
        report.equal += len(steps) - (len(unit.steps) if unit else 0)
        if unit is None:
            return
        report.written += len(unit.steps)
        if self.dry_run:
            seen = _seen(held, source)
            found = [_difference(each.item, step, held, seen) for step in unit.steps]
            report.differing += [each for each in found if not each.agrees]
            report.pending += [each for each in found if each.agrees]
        if unit.partial or exceeds_transaction(unit):
            self.alone.append(each)
        else:
            self.units.append(unit)

    def _steps(self, each: ItemParts, found: LedgerItem, source: StoredItem | None) -> list[Step]:
        """The step of each part to what its source says now; a handler that raises fails its own part only."""
        known = (part.version for part in found.parts.values())
        bound = max([self.bound(each.item), *known])
        image, steps = image_of(source), []
        for route, fields in each.parts:
            stored = found.parts.get(route.name)
            try:
                after = contribution(route, image, fields, self.forms)
            except Exception as error:
                if is_fatal(error):
                    raise
                self.report.failed.append(ItemFailed(each.item, route.name, explained(route, error)))
                continue
            steps.append(Step(route, max(bound, stored.version) if stored else bound, None, after))
        return steps

    def _differs(self, step: Step, found: LedgerItem) -> bool:
        """Whether a step is to be written."""
        stored = found.parts.get(step.route.name)
        if stored is None:
            return bool(step.after)
        return self.always or bool(stored.left) or stored.text != stored_text(_as_stored(step, found))

    def _name(self, key: StateKey, each: ItemParts, steps: Sequence[Step], found: LedgerItem) -> None:
        """Takes the rows that an earlier page or record may have left unfinished when it died.

        What was left behind is in the ledger item. Whether the rows that the item leads to now were recomputed is not,
        so they are looked at again.
        """
        change = stand_in(each.item)
        self.unfinished.note_found(key, each.item, [step.route for step in steps], found)
        for step in steps:
            named = NamedRows()
            if (stored := found.parts.get(step.route.name)) is not None and stored.left:
                named.add_stored(self.application, step.route, each.item, found)
            named.hold(self.application, step.route, each.item, _as_stored(step, found))
            named.state_rows.update(filter(is_in_state, step.after))
            self.unfinished.take(named, [step.route], [change])


def _as_stored(step: Step, found: LedgerItem) -> Contribution:
    """What a handler makes of an item, in the lives of rows that its stored contribution names."""
    stored = found.parts.get(step.route.name)
    return as_stored(stored_rows(stored.text), step.after) if stored and stored.text else step.after


def _unit(key: StateKey, item: ItemKey, steps: Sequence[Step], found: LedgerItem, lives: Lives) -> Unit | None:
    """The unit of the steps that differ; None if there are none."""
    if not steps:
        return None
    transition = reconciled(key, item, tuple(steps), found, lives)
    return unit_of(item, transition, (stand_in(item),), found=found, lives=lives)


def _write_units(chunk: Chunk) -> int:
    """The write units of a transaction: two for each KB of an item (Developer Guide, transaction-apis)."""
    return sum(UNITS_OF_A_TRANSACTION * ceil(_bytes(write) / WRITE_BYTES) for write in chunk.writes)


def _bytes(write: GuardedWrite) -> int:
    """About the size of the item that a write leaves."""
    return estimated_bytes(write) if isinstance(write, LedgerWrite | PutRow | PutState) else 1


def _seen(held: LedgerItem, source: StoredItem | None) -> str:
    image = sha256(to_json(source).encode(errors="surrogatepass")).hexdigest() if source else ""
    return f"{held.revision}/{image}"


def _difference(item: ItemKey, step: Step, found: LedgerItem, seen: str) -> Difference:
    stored = found.parts.get(step.route.name)
    made = stored_text(_as_stored(step, found))
    return Difference(item, step.route.name, stored.text if stored else "", made, seen)


class Swept(NamedTuple):
    """What keys of the state tell."""

    gone: Sequence[ItemKey]  # items whose source is not there
    unkeyed: int  # ledger items whose source cannot be told, because its key is too long to be kept


@dataclass(slots=True)
class Pages:
    """Reconciles pages of items for some handlers.

    always: parts are written although they agree with their source, with a fence, as a repair does.
    dry_run: nothing is written; the report says what differs.
    emptied: items are taken for absent, so that all that they contribute is taken back.
    delivered: a stream delivers meanwhile; None: it does, unless the store has a stream of its own.
    """

    runtime: Runtime
    handlers: Collection[str]
    always: bool = False
    dry_run: bool = False
    sources_only: bool = True  # items that are parts of other items' documents do not lead to these
    emptied: bool = False
    delivered: bool | None = None
    manifest: Manifest | None = field(init=False, default=None)  # as it was when the first page began

    def __post_init__(self) -> None:
        self.runtime = replace(self.runtime, actions=ACTIONS_MAX)  # rows that many items share are written least often
        if self.delivered is None:
            self.delivered = not self.runtime.store.is_local

    def sweep(self, keys: Sequence[ItemKey]) -> Swept:
        """Of the items that these state items are kept for, those whose source is gone."""
        app = self.runtime.application
        known = ItemKeys(app, self.runtime.engine, [route for route in app.routes if route.name in self.handlers])
        found = [item for key in keys if (item := known.of_ledger(key)) is not None]
        found += self._kept_items([StateKey(str(pk), str(sk)) for _, pk, sk in keys])
        return Swept(list(known.gone(found)), sum(known.is_untold(key) for key in keys))

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport:
        """Leads these items to their sources. Raises ``EngineError`` where sources or state may not be read."""
        report = PageReport()
        with localcontext(EXACT):
            ledgers, works = self._wanted(items, report)
            self._ledgers(ledgers, report)
            self._others(works, report)
        return report

    def _wanted(self, items: Iterable[ItemKey], report: PageReport) -> tuple[list[ItemParts], list[Work]]:
        """The parts of ledger items, and the work of kinds that keep none."""
        ledgers: list[ItemParts] = []
        works: list[Work] = []
        for item in dict.fromkeys(items):
            groups: dict[str, list[HandlerPart]] = {}
            others: list[Work] = []
            for each, fields in self.runtime.application.listeners(item):
                route = each.route
                if route.name not in self.handlers or not derivation(route).reconciles:
                    continue
                if route.kind.contributes:
                    groups.setdefault(route.group, []).append(HandlerPart(route, fields))
                elif each.role == SOURCE or not self.sources_only or derivation(route).leads_all_roles:
                    others.append(Work(route, item, each.role, fields, ()))
            report.items += bool(groups or others)
            ledgers += [ItemParts(item, group, parts) for group, parts in groups.items()]
            works += others
        return ledgers, works

    def _ledgers(self, wanted: Sequence[ItemParts], report: PageReport) -> None:
        """Reads ledger items, then sources, and writes what differs. Sources come after the ledger: see above."""
        if not wanted:
            return
        page = PagePlan(
            application=self.runtime.application.name,
            forms=self.runtime.known.forms,
            keys={ledger_key(self.runtime.application.name, each.group, each.item): each for each in wanted},
            bounds=self._bounds(each.item for each in wanted),
            report=report,
            always=self.always,
            dry_run=self.dry_run,
            lives=Lives(self.runtime.known.lives),
        )
        stored = self.runtime.engine.read_state(page.keys, consistent=True)
        sources = self._sources(wanted)
        for key, each in page.keys.items():
            held = filled(
                self.runtime.engine, key, LedgerItem.of(stored.get(key)), {part.route.name for part in each.parts}
            )
            page.derive(key, held, sources.get(each.item))
        self.runtime.known.learn_expiring()
        if page.lives.matter:
            read_lives(self.runtime.engine, page.lives, page.coming(), consistent=True)
        page.plan()
        if self.dry_run:
            report.write_units += page.write_units(self.runtime.chunk_actions)
            return
        note_expiring(self.runtime)
        if not keep_forms(self.runtime):
            page.alone, page.units = list(wanted), []  # others made an attribute otherwise: each is planned again
        page.alone += self._committed(page)
        self._one_by_one(page)

    def _bounds(self, items: Iterable[ItemKey]) -> Mapping[str, str]:
        """The versions that items have at least which are read from now on, by table."""
        if not self.delivered or self.emptied:
            return {}
        if self.manifest is None:
            self.manifest = read_manifest(self.runtime.application.name, self.runtime.engine)
        now = self.runtime.clock()
        return {name: lower_bound(self.manifest, name, now) for name in {item[0] for item in items}}

    def _sources(self, wanted: Sequence[ItemParts]) -> Mapping[ItemKey, StoredItem]:
        return {} if self.emptied else self.runtime.engine.read_sources(each.item for each in wanted)

    def _committed(self, page: PagePlan) -> list[ItemParts]:
        """Writes units; returns the parts of those that were refused, which are led one by one."""
        unfinished = page.unfinished
        if not (page.units or unfinished.changed_entries or unfinished.state_rows):
            return []
        committer = PageCommitter(self.runtime, lambda *_: (), unfinished, lives=page.lives)
        outcome = committer.carry_out(Plan(tuple(pack(page.units, self.runtime.chunk_actions)), ()))
        outcome += finish((), (), self._finishing(unfinished))
        self._count(outcome, page.report)
        return [page.keys[unit.guard.key] for unit in committer.handed_back]

    def _one_by_one(self, page: PagePlan) -> None:
        repair = Repair(self.runtime, checked=True, emptied=self.emptied)
        for each in page.alone:
            names = {part.route.name for part in each.parts}
            for repaired in repair.item(each.item, version=page.bound(each.item), handlers=names):
                page.report.rows += repaired.written + repaired.removed
                if repaired.error is not None:
                    page.report.failed.append(ItemFailed(repaired.item, repaired.handler, repaired.error))

    def _others(self, works: Sequence[Work], report: PageReport) -> None:
        """Lets kinds without a ledger reconcile their items, each kind all of the page's."""
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
                work._replace(changes=(stand_in(work.item, bounds.get(work.item[0], BEFORE_ALL)),)) for work in own
            ]
            kind = derivation(own[0].route)
            self._count(kind.reconcile_all(scanned, self._finishing(Unfinished())), report)

    def _kept_items(self, keys: Sequence[StateKey]) -> list[ItemKey]:
        """Of these state items, the items that kinds without a ledger keep them for."""
        finishing = self._finishing(Unfinished())
        routes = [route for route in self.runtime.application.routes if route.name in self.handlers]
        return [item for route in routes for item in derivation(route).kept_items(route, keys, finishing)]

    def _finishing(self, unfinished: Unfinished) -> Finishing:
        return Finishing(self.runtime, lambda failed: failed, unfinished)

    def _count(self, outcome: Outcome, report: PageReport) -> None:
        report.rows += sum(tally.written + tally.removed for tally in outcome.tallies.values())
        report.failed += [ItemFailed(each.change.item, each.route.name, each.error) for each in outcome.failed]
