"""Builds a search index beside the live one, replaces the live one, and verifies it (docs/search-operations.md)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import ClassVar, NamedTuple

from streamfold.batch.manifest import RETIRED, read_manifest
from streamfold.derivations.expected import ItemFailed
from streamfold.derivations.search.documents import Root, index_of
from streamfold.derivations.search.indexes import Aliases, SearchIndex, only_behind
from streamfold.derivations.search.indexing import (
    BOTH,
    BUILDING,
    SWAPPED,
    TAKEN,
    Dirty,
    IndexMark,
    read_mark,
    write_mark,
)
from streamfold.derivations.search.maintenance import Comparing, Copying, ShownRoot, root_of
from streamfold.derivations.search.options import NEXT, NUMBERED, keeps_ids, options_of
from streamfold.derivations.search.sink import Sink
from streamfold.engines.protocol import Counter, Segment
from streamfold.errors import EngineUnavailable, HandlerError, SettingsError
from streamfold.keys.table import Table
from streamfold.ledger.state_keys import document_key
from streamfold.lifecycle.page import PageReport, Pages
from streamfold.lifecycle.sources import pages, scanned, source_tables
from streamfold.lifecycle.verify import stable
from streamfold.records.change import ItemKey
from streamfold.routes.route import SOURCE
from streamfold.runtime import Runtime
from streamfold.writes.guarded import CounterWrite

START_MILLISECONDS = 60 * 60 * 1000
"""A root without a counter is sent with a version this far below its job's begin: clocks are no further apart."""

PAGE_NOTES = 500

SAMPLE = 2_000
PAGE_ROOTS = 250
SLICES = 256
"""Segments whose first keys are a sample: each is a random slice of a table, by the hash of its keys."""
SLICE_KEYS = 50


def roots_of(runtime: Runtime, index: SearchIndex, items: Iterable[ItemKey]) -> list[Root]:
    """The roots of an index among items."""
    found = [
        Root(each.route, item, fields)
        for item in items
        for each, fields in runtime.application.listeners(item)
        if each.route.name == index.route.name and each.role == SOURCE
    ]
    return [root for root in found if _alias(runtime, root) == index.alias]


def _alias(runtime: Runtime, root: Root) -> str | None:
    try:
        return index_of(root.route, root.fields, runtime.settings)
    except HandlerError:
        return None


@dataclass(slots=True)
class CopiedPages:
    """Sends the documents of pages of items. Counters are raised only where they keep ids or references.

    drains: the items are those of notes, whose documents may have to be hidden.
    """

    scan_orphans: ClassVar[None] = None  # the new index has no documents of items that are gone
    runtime: Runtime
    index: SearchIndex
    aliases: Aliases
    name: str  # of the new index
    started: int  # epoch seconds
    drains: bool = False

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport:
        """Sends the documents of these items. Raises the errors of the store and the index."""
        report = PageReport()
        roots = roots_of(self.runtime, self.index, dict.fromkeys(items))
        report.items = len(roots)
        report.written = self._copying(report).copy(roots) if roots else 0
        return report

    def _copying(self, report: PageReport) -> Copying:
        def fails(root: Root, error: Exception) -> None:
            report.failed.append(ItemFailed(root.item, root.route.name, error))

        start = self.started * 1000 - START_MILLISECONDS
        sink = self.aliases.sink
        return Copying(self.runtime, sink, self.name, start, fails, hides=self.drains, notes=not self.drains)


class Rebuild:
    """The rebuild of one index, step by step. Any process may repeat a step that was interrupted.

    The phase of the index's mark in the state names the next step:

    - no phase: ``begin`` makes the new index, which gets all documents from then on (``BUILDING``).
    - ``BUILDING``: pages of the scan and noted roots are sent to the new index; a failure there is noted. ``hold``
      ends this phase.
    - ``BOTH``: a failure of either index holds the record back, until ``swap`` moves the alias (``SWAPPED``).
    - ``SWAPPED``, or ``TAKEN`` after a take-over: the old index is still written, so that ``back`` can return to it.
      ``drop`` removes it.

    ``abort`` removes the new index in ``BUILDING`` and ``BOTH``. In a mark without a phase, ``old`` is an index to be
    removed.
    """

    def __init__(self, runtime: Runtime, index: SearchIndex, aliases: Aliases) -> None:
        self.runtime = runtime
        self.index = index
        self.aliases = aliases

    @property
    def mark(self) -> IndexMark:
        return read_mark(self.runtime.application.name, self.runtime.engine, self.index.alias)

    def begin(self) -> IndexMark:
        """Makes the new index, and then has all documents sent to it too."""
        self.aliases.sink.check(self.index.alias)
        mark = self._tidied(self._in_phase(""))
        live = only_behind(self.aliases, self.index.alias)
        number = max(mark.last, self.aliases.last(self.index.alias)) + 1
        name = NUMBERED.format(self.index.alias, number)
        mark = self._write(mark._replace(last=number, old=name))  # after a crash the next begin removes this index
        self.aliases.create(self.index, name)
        return self._write(mark._replace(live=live, building=name, old="", phase=BUILDING))

    def pages(self, started: int, *, drains: bool = False) -> CopiedPages:
        """The pages of the scan."""
        mark = self._in_phase(BUILDING, BOTH)
        return CopiedPages(self.runtime, self.index, self.aliases, mark.building, started, drains)

    def drain(self, started: int) -> list[ItemFailed]:
        """Sends the noted roots again until none is pending; returns the roots that cannot be sent.

        It ends: a round passes each root once, and each round but the last removes notes. Only records note roots.
        """
        pages = self.pages(started, drains=True)
        dirty = Dirty(self.runtime.application.name, self.runtime.engine, pages.name)
        while True:
            after, failed, done = "", dict[ItemKey, ItemFailed](), 0
            while notes := dirty.notes(PAGE_NOTES, after):
                # Behind the last note, a failing root would come again with each number that its records note.
                after = dirty.behind(notes[-1].root)
                report = pages.reconcile(note.root.item for note in notes)
                failed |= {each.item: each for each in report.failed}
                sent = [note for note in notes if note.root.item not in failed]
                dirty.remove(sent)
                done += len(sent)
            # A round that sent none has failing roots only: another would not help.
            if not done:
                return list(failed.values())

    def hold(self) -> IndexMark:
        """Has a failure of either index hold the record back from now on."""
        mark = self._in_phase(BUILDING)
        self.aliases.name_own(mark.live)
        return self._write(mark._replace(phase=BOTH))

    def seconds_remaining(self, mark: IndexMark) -> int:
        """For how long a batch that has read an older mark may still run."""
        return max(mark.since + self.runtime.settings.gate_seconds - int(self.runtime.clock()) + 1, 0)

    def swap(self) -> IndexMark:
        """Moves the alias to the complete new index. The old one is still written."""
        mark = self._in_phase(BOTH)
        self._point(mark.building)
        return self._write(mark._replace(live=mark.building, old=mark.live, building="", phase=SWAPPED))

    def back(self) -> IndexMark:
        """Moves the alias back to the old index."""
        mark = self._in_phase(SWAPPED, TAKEN)
        self._point(mark.old)
        if mark.phase == TAKEN:
            return self._write(mark._replace(live=mark.old, old="", phase="", handler=""))
        return self._write(mark._replace(live=mark.old, old=mark.live))

    def drop(self, *, offline: bool = False) -> IndexMark:
        """Ends the rebuild: the old index is removed."""
        mark = self._in_phase(SWAPPED, TAKEN, "")
        if mark.phase == TAKEN:
            self._check_retired(mark)
        if mark.phase and not offline and (left := self.seconds_remaining(mark)):
            raise SettingsError(
                f"Index {mark.old!r} may still be written by a batch that began before the alias was moved. Drop it "
                f"in {left} seconds (STREAMFOLD_GATE_SECONDS); with no function at work, --offline drops it at once."
            )
        if mark.phase:
            self.aliases.point(self.index.alias, mark.live)
            mark = self._write(mark._replace(phase="", handler=""))
        return self._tidied(mark)

    def _check_retired(self, mark: IndexMark) -> None:
        """Raises ``SettingsError`` while the replaced search may send documents through the alias."""
        known = read_manifest(self.runtime.application.name, self.runtime.engine).handlers.get(mark.handler, {})
        if RETIRED not in known:
            raise SettingsError(
                f"Search {mark.handler!r} still writes index {mark.old!r}: deploy the application without it, "
                f'App(..., retired=["{mark.handler}"]), first.'
            )

    def abort(self) -> IndexMark:
        """Ends the rebuild: the new index is removed, and the live one remains."""
        mark = self._in_phase(BUILDING, BOTH)
        self.aliases.point(self.index.alias, mark.live)
        return self._tidied(self._write(mark._replace(building="", old=mark.building, phase="")))

    def _tidied(self, mark: IndexMark) -> IndexMark:
        """Removes the index that is not needed any more, and the notes of it."""
        if not mark.old:
            return mark
        self.aliases.delete(mark.old)
        Dirty(self.runtime.application.name, self.runtime.engine, mark.old).clear()
        return self._write(mark._replace(old=""))

    def _point(self, name: str) -> None:
        self.aliases.refresh(name)
        self.aliases.point(self.index.alias, name)

    def _write(self, mark: IndexMark) -> IndexMark:
        now = mark._replace(since=int(self.runtime.clock()))
        return write_mark(self.runtime.application.name, self.runtime.engine, self.index.alias, now)

    def _in_phase(self, *phases: str) -> IndexMark:
        mark = self.mark
        if mark.phase not in phases:
            raise SettingsError(phase_text(self.index.alias, mark))
        return mark


def phase_text(alias: str, mark: IndexMark) -> str:
    """The phase of a rebuild, and the commands that may follow."""
    command = f"streamfold search rebuild {alias}"
    if mark.phase in (BUILDING, BOTH):
        return f"Index {alias!r} is being rebuilt: {command} goes on, --abort ends it."
    if mark.phase == SWAPPED:
        return f"Index {alias!r} was rebuilt: {command} --drop removes the old one, --back returns to it."
    if mark.phase == TAKEN:
        return f"Index {alias!r} was taken over: {command} --drop removes the old one, --back returns to it."
    return f"Index {alias!r} is not being rebuilt: {command} begins."


class TakeOver:
    """Moves the alias of one search to another search. Each step may be repeated."""

    def __init__(self, runtime: Runtime, index: SearchIndex, aliases: Aliases) -> None:
        replaced = options_of(index.route).replaces
        if replaced is None:
            raise SettingsError(
                f"Search {index.route.name!r} replaces none: --take-over needs one that is declared with replaces=."
            )
        self.runtime = runtime
        self.index = index
        self.aliases = aliases
        self.replaced = replaced
        self.alias = index.alias.removesuffix(NEXT)

    def begin(self) -> IndexMark:
        """Has the replaced search write to its index by name."""
        for alias in (self.index.alias, self.alias):
            self.aliases.sink.check(alias)
        mark = self._read()
        if mark.phase == TAKEN:
            return mark
        own = read_mark(self.runtime.application.name, self.runtime.engine, self.index.alias)
        for alias, found in ((self.alias, mark), (self.index.alias, own)):
            if found.phase or found.old:
                raise SettingsError(phase_text(alias, found))
        old, new = only_behind(self.aliases, self.alias), only_behind(self.aliases, self.index.alias)
        self.aliases.name_own(old)
        return self._write(mark._replace(live=new, old=old, handler=self.replaced, phase=TAKEN))

    def move(self) -> IndexMark:
        """Moves the alias. No batch may run any more that has read an older mark."""
        mark = self._read()
        self.aliases.refresh(mark.live)
        self.aliases.point(self.alias, mark.live)
        return mark

    def _read(self) -> IndexMark:
        return read_mark(self.runtime.application.name, self.runtime.engine, self.alias)

    def _write(self, mark: IndexMark) -> IndexMark:
        now = mark._replace(since=int(self.runtime.clock()))
        return write_mark(self.runtime.application.name, self.runtime.engine, self.alias, now)


class WrongDocument(NamedTuple):
    """A document that differs from the one that the function makes of its item."""

    item: ItemKey
    id: str
    what: str  # different, missing, ghost, without backlink


@dataclass(slots=True)
class VerifiedIndex:
    """The result of verifying an index."""

    roots: int = 0
    documents: int = 0  # that should exist, of these roots
    wrong: list[WrongDocument] = field(default_factory=list)
    moving: int = 0  # roots that changed at every look
    untold: int = 0  # documents whose id does not name their item
    failed: list[ItemFailed] = field(default_factory=list)  # items on which the function raises


class IndexVerifier:
    """Compares an index with the items. A difference is read again after ``tolerance_seconds``.

    If counter, item and documents are unchanged and still do not agree, the document is wrong. If one of them has
    changed, it is read again, ``LOOKS_MAX`` times; then the root is *moving*.
    """

    def __init__(
        self,
        runtime: Runtime,
        index: SearchIndex,
        sink: Sink,
        name: str,
        tolerance_seconds: float,
    ) -> None:
        """``name``: of the index or alias to read."""
        self.runtime = runtime
        self.engine = runtime.engine
        self.index = index
        self.sink = sink
        self.name = name
        self.tolerance_seconds = tolerance_seconds
        self.comparing = Comparing(runtime, sink, name)
        self.found = VerifiedIndex()

    def verify(self, sample: int | None, random: Random) -> VerifiedIndex:
        """Compares a sample of the items, or all, and as many documents of the index."""
        self.sink.check(self.name)
        keys = (key for table in source_tables([self.index.route]) for key in self._keys(table, sample, random))
        for page in pages(keys, PAGE_ROOTS):
            self._page(roots_of(self.runtime, self.index, page), {})
        for found in pages(islice((each.id for each in self.sink.documents(self.name)), sample), PAGE_ROOTS):
            self._documents(found)
        return self.found

    def _keys(self, table: Table, sample: int | None, random: Random) -> Iterator[ItemKey]:
        """Keys of a table: all, or the first of random slices until there are enough."""
        if sample is None:
            yield from scanned(self.engine, table)
            return
        pending: list[tuple[int, str | None]] = [(number, None) for number in random.sample(range(SLICES), SLICES)]
        while pending and sample > 0:
            number, after = pending.pop(0)
            page = self.engine.scan(table, Segment(number, SLICES), after, min(SLICE_KEYS, sample))
            if page.after is not None:
                pending.append((number, page.after))
            fitting = [key for key in page.keys if roots_of(self.runtime, self.index, [key])]
            sample -= len(fitting)
            yield from fitting

    def _documents(self, ids: Iterable[str]) -> None:
        """Compares documents of the index with the items that their ids name."""
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

        def again(suspected: Mapping[ItemKey, ShownRoot]) -> Mapping[ItemKey, ShownRoot]:
            return _differing(self.comparing.compare([each.root for each in suspected.values()], more).shown)

        suspected = _differing(compared.shown)
        same, moving = stable(self.runtime, suspected, again, tolerance_seconds=self.tolerance_seconds)
        self._wrong(same)
        self.found.moving += len(moving)

    def _wrong(self, shown: Iterable[ShownRoot]) -> None:
        known = set(self.found.wrong)
        for each in shown:
            found = (WrongDocument(each.root.item, name, what) for what, name in each.differences())
            self.found.wrong += [wrong for wrong in found if wrong not in known]


def _differing(shown: Iterable[ShownRoot]) -> dict[ItemKey, ShownRoot]:
    return {each.root.item: each for each in shown if any(each.differences())}


def repair(runtime: Runtime, index: SearchIndex, wrong: Iterable[WrongDocument]) -> PageReport:
    """Reconciles the documents of these items with the items as they are now. Raises as ``Pages.reconcile``."""
    items: dict[ItemKey, set[str]] = {}
    for each in wrong:
        items.setdefault(each.item, set()).update([each.id] if each.id else ())
    if keeps_ids(index.route):
        for item, ids in ((item, ids) for item, ids in items.items() if ids):
            _note(runtime, index, item, ids)
    return Pages(runtime, [index.route.name]).reconcile(items)


def _note(runtime: Runtime, index: SearchIndex, item: ItemKey, ids: set[str]) -> None:
    """Notes ids that the state may not know, so that the next run of their item hides these documents."""
    key = document_key(runtime.application.name, index.route.name, item)
    # The counter is raised first, so that a run that began earlier cannot overwrite the ids.
    for _ in runtime.tries():
        found = runtime.engine.count_up([Counter(key, expires=False)], int(runtime.clock() * 1000), runtime.expires_at)
        if key in found:
            write = CounterWrite(key, int(found[key]["n"]), added=frozenset(ids), expires=False)
            if runtime.engine.transact([write], runtime.expires_at) is None:
                return
    raise EngineUnavailable("The counter of a document is busy: run the same command again.")
