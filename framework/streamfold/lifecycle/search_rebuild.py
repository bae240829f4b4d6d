"""A search index is built beside the live one, while readers and writers go on (docs/search-operations.md).

The mark of the alias goes through its phases (``derivations.search.marks``). The scan begins after the mark is written.
A batch that read the mark sends its changes to both indexes. The changes of a batch that did not read it came before
the scan, which reads them.
"""

from streamfold.batch.manifest import RETIRED, read_manifest
from streamfold.derivations.search.aliases import Aliases, only_behind
from streamfold.derivations.search.declared import SearchIndex
from streamfold.derivations.search.dirty import Dirty
from streamfold.derivations.search.marks import BOTH, BUILDING, SWAPPED, TAKEN, IndexMark, read_mark, write_mark
from streamfold.derivations.search.names import NUMBERED
from streamfold.engines import Engine
from streamfold.errors import SettingsError
from streamfold.lifecycle.page_report import ItemFailed
from streamfold.lifecycle.search_pages import CopiedPages
from streamfold.records.change import ItemKey
from streamfold.routes.application import Application
from streamfold.run import Run

PAGE_NOTES = 500


class Rebuild:
    """The rebuild of one index, step by step. Each step may be done again by whoever finds it half done."""

    def __init__(self, app: Application, engine: Engine, run: Run, index: SearchIndex, aliases: Aliases) -> None:
        self.app = app
        self.engine = engine
        self.run = run
        self.index = index
        self.aliases = aliases

    @property
    def mark(self) -> IndexMark:
        """The mark as it is now."""
        return read_mark(self.app.name, self.engine, self.index.alias)

    def begin(self) -> IndexMark:
        """Makes the index, and then lets all documents be sent to it too."""
        self.aliases.sink.check(self.index.alias)
        mark = self._tidied(self._in_phase(""))
        live = only_behind(self.aliases, self.index.alias)
        number = max(mark.last, self.aliases.last(self.index.alias)) + 1
        name = NUMBERED.format(self.index.alias, number)
        mark = self._write(mark._replace(last=number, old=name))  # who finds it so removes it, and begins anew
        self.aliases.create(self.index, name)
        return self._write(mark._replace(live=live, building=name, old="", phase=BUILDING))

    def pages(self, started: int, *, hides: bool = False) -> CopiedPages:
        """The pages of the scan."""
        mark = self._in_phase(BUILDING, BOTH)
        return CopiedPages(
            self.app, self.engine, self.run, self.index, self.aliases, mark.building, started, hides=hides
        )

    def drain(self, started: int) -> list[ItemFailed]:
        """Sends the roots again that are noted, until none is left; returns those that cannot be sent."""
        pages = self.pages(started, hides=True)
        dirty = Dirty(self.app.name, self.engine, pages.name)
        while True:
            after, failed, done = "", dict[ItemKey, ItemFailed](), 0
            while notes := dirty.notes(PAGE_NOTES, after):
                after = notes[-1].place
                report = pages.reconcile(note.root.item for note in notes)
                failed |= {each.item: each for each in report.failed}
                sent = [note for note in notes if note.root.item not in failed]
                dirty.remove(sent)
                done += len(sent)
            if not done:
                return list(failed.values())

    def hold(self) -> IndexMark:
        """Lets a failure of either index hold the record from now on."""
        mark = self._in_phase(BUILDING)
        self.aliases.name_own(mark.live)
        return self._write(mark._replace(phase=BOTH))

    def seconds_left(self, mark: IndexMark) -> int:
        """How long a batch that has read an older mark may still be alive."""
        return max(mark.since + self.run.settings.gate_seconds - int(self.run.clock()) + 1, 0)

    def swap(self) -> IndexMark:
        """Moves the alias to the new index, which has everything. The old one is written on."""
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
        if mark.phase and not offline and (left := self.seconds_left(mark)):
            raise SettingsError(
                f"Index {mark.old!r} may still be written by a batch that began before the alias was moved. Drop it "
                f"in {left} seconds (STREAMFOLD_GATE_SECONDS); with no function at work, --offline drops it at once."
            )
        if mark.phase:
            self.aliases.point(self.index.alias, mark.live)
            mark = self._write(mark._replace(phase="", handler=""))
        return self._tidied(mark)

    def _check_retired(self, mark: IndexMark) -> None:
        """Raises ``SettingsError`` while the search whose index was taken over may send documents through the alias."""
        known = read_manifest(self.app.name, self.engine).handlers.get(mark.handler, {})
        if RETIRED not in known:
            raise SettingsError(
                f"Search {mark.handler!r} still writes index {mark.old!r}: deploy the application without it, "
                f'App(..., retired=["{mark.handler}"]), first.'
            )

    def abort(self) -> IndexMark:
        """Ends the rebuild: the new index is removed, and the live one stays."""
        mark = self._in_phase(BUILDING, BOTH)
        self.aliases.point(self.index.alias, mark.live)
        return self._tidied(self._write(mark._replace(building="", old=mark.building, phase="")))

    def _tidied(self, mark: IndexMark) -> IndexMark:
        """Removes the index that nobody wants any more, with what is noted of it."""
        if not mark.old:
            return mark
        self.aliases.delete(mark.old)
        Dirty(self.app.name, self.engine, mark.old).clear()
        return self._write(mark._replace(old=""))

    def _point(self, name: str) -> None:
        self.aliases.refresh(name)
        self.aliases.point(self.index.alias, name)

    def _write(self, mark: IndexMark) -> IndexMark:
        now = mark._replace(since=int(self.run.clock()))
        return write_mark(self.app.name, self.engine, self.index.alias, now)

    def _in_phase(self, *phases: str) -> IndexMark:
        mark = self.mark
        if mark.phase not in phases:
            raise SettingsError(told_phase(self.index.alias, mark))
        return mark


def told_phase(alias: str, mark: IndexMark) -> str:
    """Where a rebuild is, and which commands lead on."""
    command = f"streamfold search rebuild {alias}"
    if mark.phase in (BUILDING, BOTH):
        return f"Index {alias!r} is being rebuilt: {command} goes on, --abort ends it."
    if mark.phase == SWAPPED:
        return f"Index {alias!r} was rebuilt: {command} --drop removes the old one, --back returns to it."
    if mark.phase == TAKEN:
        return f"Index {alias!r} was taken over: {command} --drop removes the old one, --back returns to it."
    return f"Index {alias!r} is not being rebuilt: {command} begins."
