"""A page of a run: reconciles some items with their sources, all at once.

Ledger items are read first, *then* the sources, both strongly. What differs is written on the revisions that were read,
merged by row, with a fence. A record of the live stream that comes in between moves the ledger, and the item is read
again: so a page never sets an item back, whatever the stream does at the same time.

A new part gets the highest version that the ledger item had of any handler when it was read: a record that led to that
version was committed before, so the source is at least as new. Without one it is ``BEFORE_ALL``, and through Kinesis a
time shortly before the reads (``lifecycle.bounds``).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import localcontext
from typing import NamedTuple

from streamfold.batch.knowledge import Knowledge, knowledge
from streamfold.batch.known_forms import keep_forms
from streamfold.batch.manifest import Manifest, note_expiring, read_manifest
from streamfold.batch.process import finish
from streamfold.commit.ledger_reads import filled, read_lives
from streamfold.commit.outcome import Outcome
from streamfold.commit.plan import Plan, pack
from streamfold.commit.unfinished import Unfinished
from streamfold.derivations.derivation import Finishing, Work, derivation
from streamfold.engines import Engine, OwnStream, StoredItem
from streamfold.engines.timed import Timed
from streamfold.failures.repair import Repair
from streamfold.ledger.item import BEFORE_ALL, LedgerItem
from streamfold.ledger.lives import Lives
from streamfold.ledger.state_keys import ledger_key
from streamfold.lifecycle.bounds import lower_bound
from streamfold.lifecycle.committing import PageCommitter
from streamfold.lifecycle.keys import ItemKeys
from streamfold.lifecycle.page_plan import HandlerPart, ItemParts, PagePlan
from streamfold.lifecycle.page_report import ItemFailed, PageReport, stand_in
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.records.numbers import EXACT
from streamfold.routes.application import Application
from streamfold.routes.route import SOURCE
from streamfold.run import Run
from streamfold.writes.guarded import StateKey


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

    app: Application
    engine: Engine
    run: Run
    handlers: Collection[str]
    always: bool = False
    dry_run: bool = False
    sources_only: bool = True  # items that are parts of other items' documents do not lead to these
    emptied: bool = False
    delivered: bool | None = None
    timed: Timed = field(init=False)
    knows: Knowledge = field(init=False)
    manifest: Manifest | None = field(init=False, default=None)  # as it was when the first page began

    def __post_init__(self) -> None:
        self.run = replace(self.run, actions=ACTIONS_MAX)  # rows that many items share are written least often
        self.timed = Timed(self.engine, self.run)
        self.knows = knowledge(self.run, self.app, self.engine)
        if self.delivered is None:
            self.delivered = not isinstance(self.engine, OwnStream)

    def sweep(self, keys: Sequence[ItemKey]) -> Swept:
        """Of the items that these state items are kept for, those whose source is gone."""
        known = ItemKeys(self.app, self.timed, [route for route in self.app.routes if route.name in self.handlers])
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
            for each, fields in self.app.listeners(item):
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
            application=self.app.name,
            forms=self.knows.forms,
            keys={ledger_key(self.app.name, each.group, each.item): each for each in wanted},
            bounds=self._bounds(each.item for each in wanted),
            report=report,
            always=self.always,
            dry_run=self.dry_run,
            lives=Lives(self.knows.lives),
        )
        stored = self.timed.read_state(page.keys, consistent=True)
        sources = self._sources(wanted)
        for key, each in page.keys.items():
            held = filled(self.timed, key, LedgerItem.of(stored.get(key)), {part.route.name for part in each.parts})
            page.derive(key, held, sources.get(each.item))
        self.knows.learn_expiring()
        if page.lives.matter:
            read_lives(self.timed, page.lives, page.coming(), consistent=True)
        page.plan()
        if self.dry_run:
            report.write_units += page.write_units(self.run.chunk_actions)
            return
        note_expiring(self.app, self.timed, self.run, self.knows)
        if not keep_forms(self.app, self.timed, self.knows, self.run):
            page.alone, page.units = list(wanted), []  # others made an attribute otherwise: each is planned again
        page.alone += self._committed(page)
        self._one_by_one(page)

    def _bounds(self, items: Iterable[ItemKey]) -> Mapping[str, str]:
        """The versions that items have at least which are read from now on, by table."""
        if not self.delivered or self.emptied:
            return {}
        if self.manifest is None:
            self.manifest = read_manifest(self.app.name, self.timed)
        now = self.run.clock()
        return {name: lower_bound(self.manifest, name, now) for name in {item[0] for item in items}}

    def _sources(self, wanted: Sequence[ItemParts]) -> Mapping[ItemKey, StoredItem]:
        return {} if self.emptied else self.timed.read_sources(each.item for each in wanted)

    def _committed(self, page: PagePlan) -> list[ItemParts]:
        """Writes units; returns the parts of those that were refused, which are led one by one."""
        unfinished = page.unfinished
        if not (page.units or unfinished.moved or unfinished.state_rows):
            return []
        committer = PageCommitter(self.timed, self.run, lambda *_: (), unfinished, lives=page.lives)
        outcome = committer.carry_out(Plan(tuple(pack(page.units, self.run.chunk_actions)), ()))
        outcome += finish((), (), self._finishing(unfinished))
        self._count(outcome, page.report)
        return [page.keys[unit.guard.key] for unit in committer.handed_back]

    def _one_by_one(self, page: PagePlan) -> None:
        repair = Repair(self.app, self.engine, self.run, checked=True, emptied=self.emptied)
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
        routes = [route for route in self.app.routes if route.name in self.handlers]
        return [item for route in routes for item in derivation(route).kept_items(route, keys, finishing)]

    def _finishing(self, unfinished: Unfinished) -> Finishing:
        return Finishing(self.app, self.timed, self.engine, self.run, lambda failed: failed, unfinished)

    def _count(self, outcome: Outcome, report: PageReport) -> None:
        report.rows += sum(tally.written + tally.removed for tally in outcome.tallies.values())
        report.failed += [ItemFailed(each.change.item, each.route.name, each.error) for each in outcome.failed]
