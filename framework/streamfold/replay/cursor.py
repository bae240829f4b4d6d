"""A replay into a state goes on where an earlier one of the same files was stopped.

With each batch the state holds how many entries of the files were read, and a digest of the files up to there. Records
that are bad, that failed, or with work that waits for the end of the replay, are kept beside it and come again.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from streamfold.batch.report import Report
from streamfold.records.change import Change
from streamfold.records.encoded import to_json
from streamfold.records.envelope import RawRecord
from streamfold.replay.files import STANDARD_INPUT, RecordedFiles
from streamfold.replay.lines import BadLine, Line
from streamfold.routes.application import Application
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.engines.embedded import EmbeddedEngine

KEPT_RECORDS_MAX = 10_000
"""Records that come again; with more, the place stays where it is, and all behind it is read again."""
FORM = 2
"""Of what is kept. The place of a replay that kept something else is not found, so that it begins anew."""

FileEntry = tuple[Line, RawRecord] | BadLine


class ReplayPlace(NamedTuple):
    """How far a replay came."""

    entries: int  # records and bad lines that were read
    digest: str  # of what was read of the files
    handlers: list[str]  # that had the records


class KeptRecord(NamedTuple):
    """A record that comes again, and where it stands."""

    file: str
    number: int
    is_bad: bool
    record: RawRecord

    @property
    def text(self) -> str:
        return to_json(self._asdict())


class ReplayCursor:
    """How far a replay has read its files, kept in the state. Nothing is kept for standard input.

    ``went_on`` is told how many records lie behind a replay that goes on, before the first is read.
    """

    def __init__(
        self,
        app: Application,
        settings: Settings,
        engine: "EmbeddedEngine",
        files: RecordedFiles,
        went_on: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.engine = engine
        self._went_on = went_on
        self._files = files
        self._progress = engine.progress
        self._name = json.dumps([FORM, app.name, settings.group, *files.paths])
        self._handlers = sorted({route.name for route in app.routes}.difference(settings.handlers_off))
        self._is_kept = STANDARD_INPUT not in files.paths
        self._records = 0  # that are kept to come again
        self._taken = 0  # of these, since the last batch
        self._entries = 0
        self._bad: list[KeptRecord] = []  # since the last batch
        self.behind = 0  # records that an earlier run has dealt with

    def entries(self, lines: Iterable[FileEntry]) -> Iterator[FileEntry]:
        """The entries that are left to do: kept records, what is bad in the lines before, then the lines behind."""
        place = self._place()
        read = iter(lines)
        before = [entry for entry in islice(read, place.entries if place else 0) if isinstance(entry, BadLine)]
        if place is not None and self._files.digest() == place.digest:
            self._entries = place.entries
            kept = [KeptRecord(**json.loads(text)) for text in self._progress.records(self._name)]
            self.behind = place.entries - len(before) - sum(each.is_bad for each in kept)
            self._went_on(self.behind)
            yield from self._again(kept)
            yield from before
        else:
            read = iter(lines) if place else read
            self._begin()
        for entry in read:
            self._entries += 1
            yield entry

    def keep(self, line: Line, record: RawRecord) -> None:
        """Keeps a bad record with the next batch: a replay that goes on must not pass it over."""
        if self._is_kept:
            self._bad.append(KeptRecord(line.file, line.number, True, record))
        if len(self._bad) > KEPT_RECORDS_MAX:
            self.stay()
            self._bad.clear()

    def note(self, batch: Sequence[tuple[Line, Change]], report: Report, waiting: Sequence[Change]) -> None:
        """Stores how far the replay is, in the transaction of a batch; ``waiting`` have work at the replay's end."""
        if not self._is_kept:
            return
        failed = {(failure.sequence, failure.item) for failure in report.failures}
        waits = {id(change) for change in waiting}
        kept = [*self._bad]
        for line, change in batch if failed or waits else ():
            if id(change) in waits or (change.sequence, change.name) in failed:
                kept.append(KeptRecord(line.file, line.number, False, change.record))
        self._bad.clear()
        self._records += len(kept)
        if self._records - self._taken > KEPT_RECORDS_MAX:
            self._is_kept = False
            return
        self._progress.drop_first(self._name, self._taken)
        self._records, self._taken = self._records - self._taken, 0
        self._progress.add_records(self._name, (each.text for each in kept))
        place = ReplayPlace(self._entries, self._files.digest(), self._handlers)
        self._progress.put_place(self._name, to_json(place._asdict()))

    def stay(self) -> None:
        """Keeps the place where it is from now on: what follows could not be made good from behind it."""
        self._is_kept = False

    def end(self) -> None:
        """The files were replayed to their end: the next replay of them begins anew."""
        self._progress.end(self._name)

    def _place(self) -> ReplayPlace | None:
        text = self._progress.place(self._name) if self._is_kept else None
        place = ReplayPlace(**json.loads(text)) if text else None
        return place if place and place.handlers == self._handlers else None

    def _begin(self) -> None:
        with self.engine.batch():
            self._progress.end(self._name)

    def _again(self, kept: Sequence[KeptRecord]) -> Iterator[FileEntry]:
        self._records = len(kept)
        for each in kept:
            self._taken += 1
            yield Line(each.file, each.number), each.record
