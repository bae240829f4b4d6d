"""The lines of a replay's files, with progress; the first can be looked at before they are taken."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from streamfold.cli.output import echo
from streamfold.errors import RecordError, SettingsError
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Origins, RawRecord
from streamfold.replay.files import BadLine, Line, RecordedFiles

PROGRESS_EVERY_RECORDS = 200
PROGRESS_EVERY_SECONDS = 60
"""Between two lines of progress where there is no terminal."""
PEEKED_RECORDS_MAX = 1000
"""Records that are looked at for the name of the table before any is replayed."""

Show = Callable[[int], None]
"""Shows how many records were read."""


class Lines:
    """The lines of the files, with progress; the first can be looked at before it is taken."""

    def __init__(self, recorded: RecordedFiles, show: Show) -> None:
        self.recorded = recorded
        self._iterator: Iterator[tuple[Line, RawRecord] | BadLine] | None = None
        self._first: list[tuple[Line, RawRecord] | BadLine] = []
        self._show = show

    def find_table(self, origins: Origins, *, keep_going: bool) -> None:
        """Lets ``origins`` see the table of the first good record. Raises ``SettingsError`` where none tells it."""
        why = "there is no record of it with an eventSourceARN"
        self._iterator = iter(self.recorded)
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
        """All lines, also those that were looked at; from the first one again each time."""
        first, rest = self._first, self._iterator
        self._first, self._iterator = [], None
        for number, entry in enumerate(chain(first, rest or iter(self.recorded))):
            if number % PROGRESS_EVERY_RECORDS == 0:
                self._show(number)
            yield entry


def _bad(origins: Origins, line: Line, record: RawRecord) -> BadLine | None:
    try:
        origins.change(record)
    except RecordError as error:
        return BadLine(line, str(error))
    return None


@contextmanager
def replay_lines(recorded: RecordedFiles, *, shown: bool, timed: bool = True) -> Iterator[Lines]:
    """The lines with a progress bar on a terminal, and elsewhere with a line of progress a minute."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield Lines(recorded, by_the_minute(recorded) if timed else lambda _: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("replaying", total=recorded.size_bytes)

        def show(number: int) -> None:
            progress.update(task, completed=recorded.position_bytes, description=f"{number} records")

        yield Lines(recorded, show)


def by_the_minute(recorded: RecordedFiles, clock: Callable[[], float] = time.monotonic) -> Show:
    """Says how far a replay is on standard error, once a minute: records, their rate, and the share of the files."""
    begin = shown = clock()
    before = 0

    def show(number: int) -> None:
        nonlocal shown, before
        if (now := clock()) - shown < PROGRESS_EVERY_SECONDS:
            return
        rate = (number - before) / (now - shown)
        share = f", {recorded.position_bytes / recorded.size_bytes:.0%} of the files" if recorded.size_bytes else ""
        minutes = (now - begin) / 60
        echo(f"{number:,} records in {minutes:.0f} min{share}, {rate:,.0f} a second now.", err=True)
        shown, before = now, number

    return show
