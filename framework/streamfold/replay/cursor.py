"""A replay into a state goes on where an earlier one of the same files was stopped.

With each batch the state holds how many entries of the files were read, and a digest of the files up to there. Records
that failed, and those with work that waits for the end of the replay, are kept beside it and come again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
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
EARLIER = "kept from an earlier run"
"""In the place of a file's name: where records come from that an earlier run kept."""

FileEntry = tuple[Line, RawRecord] | BadLine


class ReplayPlace(NamedTuple):
    """How far a replay came."""

    entries: int  # records and bad lines that were read
    digest: str  # of what was read of the files
    handlers: list[str]  # that had the records


class ReplayCursor:
    """How far a replay has read its files, kept in the state. Nothing is kept for standard input."""

    def __init__(self, app: Application, settings: Settings, engine: "EmbeddedEngine", files: RecordedFiles) -> None:
        self.engine = engine
        self._files = files
        self._progress = engine.progress
        self._name = json.dumps([app.name, settings.group, *files.paths])
        self._handlers = sorted({route.name for route in app.routes}.difference(settings.handlers_off))
        self._is_kept = STANDARD_INPUT not in files.paths
        self._records = 0  # that are kept to come again
        self._taken = 0  # of these, since the last batch
        self._entries = 0
        self.behind = 0  # entries that an earlier run has dealt with

    def entries(self, lines: Iterable[FileEntry]) -> Iterator[FileEntry]:
        """The entries that are left to do: kept records, what is bad in the lines before, then the lines behind."""
        place = self._place()
        read = iter(lines)
        if place is not None:
            before = [entry for entry in islice(read, place.entries) if isinstance(entry, BadLine)]
            if self._files.digest() == place.digest:
                self.behind = self._entries = place.entries
                yield from self._again()
                yield from before
            else:
                read = iter(lines)
        if not self.behind:
            self._begin()
        for entry in read:
            self._entries += 1
            yield entry

    def note(self, changes: Sequence[Change], report: Report, waiting: Iterable[Change]) -> None:
        """Stores how far the replay is, in the transaction of a batch; ``waiting`` have work at the replay's end."""
        if not self._is_kept:
            return
        failed = {(failure.sequence, failure.item) for failure in report.failures}
        again = [change for change in changes if failed and (change.sequence, change.name) in failed]
        records = {id(change): change.record for change in (*again, *waiting)}
        self._records += len(records)
        if self._records - self._taken > KEPT_RECORDS_MAX:
            self._is_kept = False
            return
        self._progress.drop_first(self._name, self._taken)
        self._records, self._taken = self._records - self._taken, 0
        self._progress.add_records(self._name, (to_json(record) for record in records.values()))
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

    def _again(self) -> Iterator[FileEntry]:
        texts = self._progress.records(self._name)
        self._records = len(texts)
        for number, text in enumerate(texts, 1):
            self._taken += 1
            yield Line(EARLIER, number), json.loads(text)
