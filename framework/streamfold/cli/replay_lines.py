"""The lines of a replay's files, with a progress bar; the first can be looked at before they are taken."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from streamfold.errors import RecordError, SettingsError
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Origins, RawRecord
from streamfold.replay.files import BadLine, Line, RecordedFiles

PROGRESS_EVERY_RECORDS = 200
PEEKED_RECORDS_MAX = 1000
"""Records that are looked at for the name of the table before any is replayed."""


class Lines:
    """The lines of the files, with progress; the first can be looked at before it is taken."""

    def __init__(self, recorded: RecordedFiles, progress: Progress | None) -> None:
        self.recorded = recorded
        self._iterator = iter(recorded)
        self._first: list[tuple[Line, RawRecord] | BadLine] = []
        self._progress = progress
        self._task = progress.add_task("replaying", total=recorded.size_bytes) if progress else None

    def find_table(self, origins: Origins, *, keep_going: bool) -> None:
        """Lets ``origins`` see the table of the first good record. Raises ``SettingsError`` where none tells it."""
        why = "there is no record of it with an eventSourceARN"
        for entry in islice(self._iterator, PEEKED_RECORDS_MAX):
            self._first.append(entry)
            bad = entry if isinstance(entry, BadLine) else _bad(origins, *entry)
            if origins.adopted:
                return
            if bad and not keep_going:
                why = f"{bad.line}: {bad.why}"
                break
        raise SettingsError(
            f"The files do not tell the real name of table {MAIN.name!r}: {why}. Give it: --table {MAIN.name}=REAL."
        )

    def __iter__(self) -> Iterator[tuple[Line, RawRecord] | BadLine]:
        yield from self._first
        for number, entry in enumerate(self._iterator):
            if self._progress and self._task is not None and number % PROGRESS_EVERY_RECORDS == 0:
                self._progress.update(
                    self._task, completed=self.recorded.position_bytes, description=f"{number} records"
                )
            yield entry


def _bad(origins: Origins, line: Line, record: RawRecord) -> BadLine | None:
    try:
        origins.change(record)
    except RecordError as error:
        return BadLine(line, str(error))
    return None


@contextmanager
def replay_lines(recorded: RecordedFiles, *, shown: bool) -> Iterator[Lines]:
    """A progress bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield Lines(recorded, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Lines(recorded, progress)
