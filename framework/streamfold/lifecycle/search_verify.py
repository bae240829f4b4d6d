"""Whether an index shows what the function makes of the items. Nothing that moves is called different."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import NamedTuple

from streamfold.derivations.search.compared import Comparing, ShownRoot, root_of
from streamfold.derivations.search.declared import SearchIndex
from streamfold.derivations.search.gather import Root
from streamfold.derivations.search.options import keeps_ids
from streamfold.derivations.search.sink import Sink
from streamfold.engines import Counter, Engine, Segment
from streamfold.engines.timed import Timed
from streamfold.errors import EngineUnavailable
from streamfold.keys.table import Table
from streamfold.ledger.state_keys import document_key
from streamfold.lifecycle.checks import source_tables
from streamfold.lifecycle.keys import pages, scanned
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.page_report import ItemFailed, PageReport
from streamfold.lifecycle.search_pages import roots_of
from streamfold.lifecycle.verify import READS_MAX
from streamfold.records.change import ItemKey
from streamfold.routes.application import Application
from streamfold.run import Run
from streamfold.writes.guarded import CounterWrite

SAMPLE = 2_000
PAGE_ROOTS = 250
SLICES = 256
"""Segments whose first keys are a sample: each is a random slice of a table, by the hash of its keys."""
SLICE_KEYS = 50


class WrongDocument(NamedTuple):
    """A document that is not what the function makes of its item."""

    item: ItemKey
    id: str
    what: str  # different, missing, ghost


@dataclass(slots=True)
class VerifiedIndex:
    """What was found of an index."""

    roots: int = 0
    documents: int = 0  # that should be there, of these roots
    wrong: list[WrongDocument] = field(default_factory=list)
    moving: int = 0  # roots that changed whenever they were looked at
    untold: int = 0  # documents whose item cannot be told from their id
    failed: list[ItemFailed] = field(default_factory=list)  # items on which the function raises


class IndexVerifier:
    """Compares an index with the items. What differs is read again after ``tolerance_seconds``.

    Where counter, items and documents are what they were and still do not agree, it is wrong. Where one of them moved,
    it is read again, ``READS_MAX`` times; then it is *moving*.
    """

    def __init__(
        self,
        app: Application,
        engine: Engine,
        run: Run,
        index: SearchIndex,
        sink: Sink,
        name: str,
        tolerance_seconds: float,
    ) -> None:
        """``name``: of the index or alias that is read."""
        self.app = app
        self.engine = Timed(engine, run)
        self.run = run
        self.index = index
        self.sink = sink
        self.name = name
        self.tolerance_seconds = tolerance_seconds
        self.comparing = Comparing(app.name, self.engine, sink, name, run.settings)
        self.found = VerifiedIndex()

    def verify(self, sample: int | None, random: Random) -> VerifiedIndex:
        """Compares a sample of the items, or all, and as many documents of the index."""
        self.sink.check(self.name)
        keys = (key for table in source_tables([self.index.route]) for key in self._keys(table, sample, random))
        for page in pages(keys, PAGE_ROOTS):
            self._page(roots_of(self.app, self.index, self.run, page), {})
        for found in pages(islice((each.id for each in self.sink.documents(self.name)), sample), PAGE_ROOTS):
            self._documents(found)
        return self.found

    def _keys(self, table: Table, sample: int | None, random: Random) -> Iterator[ItemKey]:
        """Keys of a table: all, or those that begin random slices of it, until there are enough."""
        if sample is None:
            yield from scanned(self.engine, table)
            return
        left: list[tuple[int, str | None]] = [(number, None) for number in random.sample(range(SLICES), SLICES)]
        while left and sample > 0:
            number, after = left.pop(0)
            page = self.engine.scan(table, Segment(number, SLICES), after, min(SLICE_KEYS, sample))
            if page.after is not None:
                left.append((number, page.after))
            fitting = [key for key in page.keys if roots_of(self.app, self.index, self.run, [key])]
            sample -= len(fitting)
            yield from fitting

    def _documents(self, ids: Iterable[str]) -> None:
        """Compares documents of the index with the items that they seem to be of."""
        more: dict[ItemKey, set[str]] = {}
        roots: dict[ItemKey, Root] = {}
        for name in ids:
            root = root_of(self.index.route, name)
            if root is None:
                self.found.untold += 1
                continue
            roots[root.item] = root
            more.setdefault(root.item, set()).add(name)
        self._page(list(roots.values()), more, counted=False)

    def _page(self, roots: list[Root], more: dict[ItemKey, set[str]], *, counted: bool = True) -> None:
        compared = self.comparing.compare(roots, more)
        if counted:
            self.found.roots += len(roots)
            self.found.documents += sum(len(each.expected) for each in compared.shown)
            self.found.failed += [ItemFailed(root.item, root.route.name, error) for root, error in compared.failed]
        suspected = [each for each in compared.shown if any(each.differences())]
        for _ in range(READS_MAX):
            if not suspected:
                return
            self.run.wait(self.tolerance_seconds)
            again = self.comparing.compare([each.root for each in suspected], more).shown
            before = {each.root.item: each for each in suspected}
            self._wrong(each for each in again if each == before[each.root.item])
            suspected = [each for each in again if each != before[each.root.item] and any(each.differences())]
        self.found.moving += len(suspected)

    def _wrong(self, shown: Iterable[ShownRoot]) -> None:
        known = set(self.found.wrong)
        for each in shown:
            found = (WrongDocument(each.root.item, name, what) for what, name in each.differences())
            self.found.wrong += [wrong for wrong in found if wrong not in known]


def repair(
    app: Application, engine: Engine, run: Run, index: SearchIndex, wrong: Iterable[WrongDocument]
) -> PageReport:
    """Leads the documents of these items to what the items are now. Raises as ``Pages.reconcile``."""
    items: dict[ItemKey, set[str]] = {}
    for each in wrong:
        items.setdefault(each.item, set()).add(each.id)
    if keeps_ids(index.route):
        for item, ids in items.items():
            _note(app, engine, run, index, item, ids)
    return Pages(app, engine, run, [index.route.name]).reconcile(items)


def _note(app: Application, engine: Engine, run: Run, index: SearchIndex, item: ItemKey, ids: set[str]) -> None:
    """Notes ids that the state may not know, so that the next run of their item hides them."""
    key = document_key(app.name, index.route.name, item)
    for _ in run.tries():
        found = engine.count_up([Counter(key, expires=False)], int(run.clock() * 1000), run.expires_at)
        if key in found:
            write = CounterWrite(key, int(found[key]["n"]), added=frozenset(ids), expires=False)
            if engine.transact([write], run.expires_at) is None:
                return
    raise EngineUnavailable("The counter of a document is busy: the same command goes on.")
