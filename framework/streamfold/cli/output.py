"""The output of commands: a report as text or as JSON, notes and progress on standard error, and no control characters.

Keys, attributes, errors of handlers, names of files and responses of servers may hold anything. A value within a line
is made printable where the line is composed (``errors.printable``, ``items.text``), and ``echo`` escapes the rest.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from streamfold.errors import plain, shortened
from streamfold.records.values import COMPACT

if TYPE_CHECKING:
    from rich.console import Console

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move a cursor or change a terminal or the order of letters, and half surrogates, which no output
takes. Newlines and tabs are allowed."""
C0_LAST = 0x1F
REPORTED = 1
"""The exit code of a command that ran, and found something that needs attention."""
SHOWN_MAX = 100
"""Findings that are printed for a person; ``--json`` prints all."""
LIMIT_ON_TERMINAL = 50
COLUMNS_IN_FILES = 10_000
"""The width of a table in a file or a pipe: neither has a width of its own, and a folded line cannot be searched."""
ROWS_AT_A_TIME = 1000
BETWEEN_COLUMNS = 2
LAST_COLUMN_MIN = 40
"""The least width of the last column of a long grid: a narrower one would fold most values."""
SIDE_LETTERS_MAX = 300
NOTHING, BOTH = "nothing", "both"
PROGRESS_EVERY_SECONDS = 60
FIRST_PROGRESS_SECONDS = 10.0
"""Seconds before the first line of progress without a terminal."""
T = TypeVar("T")


class Note(NamedTuple):
    """A line on standard error."""

    text: str


class Fitted(NamedTuple):
    """A text whose lines are broken at the width of the terminal, or of COLUMNS."""

    text: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows under headings; columns named in ``right`` are numbers.

    ``long``: rows are printed some at a time, so that only a few are in memory. Columns grow with the rows that need
    it. Once the last column has too little room, each row is printed as a block of lines, with a name and a value each.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    right: Sequence[str] = ()
    long: bool = False


Printed = str | Note | Grid | Fitted


class Report(NamedTuple):
    """The result of a command: the text for a person, the same as JSON, and whether it needs attention.

    Both are made only when they are printed, while the store of the command is still open.
    """

    lines: Iterable[Printed] = ()
    json: Any = None  # an object; several of them, or texts, one a line; or a function that gives these
    reported: bool = False


def write(report: Report, json_file: IO[str] | None) -> None:
    """Prints a report: as JSON to this file, or else as text."""
    if json_file is None:
        for line in report.lines:
            _write_line(line)
        return
    found = report.json() if callable(report.json) else report.json
    for each in [found] if isinstance(found, str | Mapping) else found or ():
        echo(each if isinstance(each, str) else COMPACT.encode(each), file=json_file)


def _write_line(line: Printed) -> None:
    if isinstance(line, Grid):
        (_write_long if line.long else _write_grid)(line)
    elif isinstance(line, Note):
        note(line.text)
    elif isinstance(line, Fitted):
        make_console().print(escaped(line.text), overflow="fold")
    else:
        echo(line)


def echo(text: object = "", *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Prints a text on standard output, or with ``err`` on standard error, without control characters."""
    click.echo(escaped(str(text)), err=err, nl=nl, file=file)  # noqa: TID251 - the only call


def note(text: str) -> None:
    """Prints a line for a person on standard error, beside a report as text or JSON."""
    echo(text, err=True)


def warn(text: str) -> None:
    """Prints a warning on standard error."""
    note(f"Warning: {plain(text)}")


def escaped(text: str) -> str:
    """A text without control characters. JSON keeps its meaning: it has no character below 0x20 but in escapes."""

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\x{code:02x}" if code <= C0_LAST else f"\\u{code:04x}"

    return CONTROLS.sub(escape, text)


def can_ask() -> bool:
    """Whether a person can answer on standard input, which may be closed."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def on_terminal() -> bool:
    """Whether standard output, which may be closed, is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def take_all_letters() -> None:
    """Prints letters that an output's encoding lacks as escapes; otherwise one such letter would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def machine_error(error: OSError) -> str:
    """An error of the operating system as a sentence, with its file."""
    file = f"{error.filename} " if error.filename is not None else ""
    return f"{file}cannot be read or written: {error.strerror or error}."


def counted(number: int, what: str) -> str:
    """A number with its noun: ``1 item``, ``2,000 items``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def first_lines(
    found: Sequence[T], line: Callable[[T], Printed], *, err: bool = False, count: int = 0, kept_by: str = ""
) -> Iterator[Printed]:
    """A line for each of the first findings, and the number of the others.

    count: of all findings, if ``found`` is only some of them. kept_by: the source of the others, if not ``--json``.
    """
    yield from map(line, found[:SHOWN_MAX])
    if (hidden := max(count, len(found)) - min(len(found), SHOWN_MAX)) > 0:
        more = f"... and {hidden:,} more; {kept_by or '--json has them all'}."
        yield Note(more) if err else more


def difference_lines(
    found: Sequence[T], head: Callable[[T], str], sides: Callable[[T], Mapping[str, str]]
) -> Iterator[Printed]:
    """The first differences, each with its two sides below each other, and the number of the others.

    head: the line that names the difference. sides: the texts of both sides, by word; "" for nothing.
    """

    def block(each: T) -> str:
        return "\n".join([head(each), *(f"  {word:9} {text}" for word, text in _distinct(sides(each)).items())])

    return first_lines(found, block)


def _distinct(sides: Mapping[str, str]) -> dict[str, str]:
    """The texts of both sides; one text if they look the same, because the differing values were left out."""
    texts = {word: shortened(text, SIDE_LETTERS_MAX) or NOTHING for word, text in sides.items()}
    if len(texts) > 1 and len({*texts.values()}) == 1:
        return {BOTH: f"{next(iter(texts.values()))}  (with other values)"}
    return texts


def make_console() -> "Console":
    """A console that prints text as it is: brackets and colons in data are no markup."""
    from rich.console import Console  # not for --help

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = COLUMNS_IN_FILES
    return console


def is_too_wide(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Whether a grid would have to break its lines."""
    cells = zip(*[columns, *rows], strict=True)
    widths = [max(_width(line) for cell in column for line in cell.split("\n")) for column in cells]
    return sum(widths) + BETWEEN_COLUMNS * (len(widths) - 1) > make_console().width


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _write_grid(grid: Grid, widths: Sequence[int] = (), *, headings: bool = True) -> None:
    from rich.table import Table

    console = make_console()
    style = "" if console.no_color else "bold"
    table = Table(box=None, pad_edge=False, header_style=style, show_header=headings)
    for column, width in zip(grid.columns, widths or [0] * len(grid.columns), strict=True):
        justify: Literal["left", "right"] = "right" if column in grid.right else "left"
        table.add_column(column, overflow="fold", justify=justify, min_width=width or None)
    for row in grid.rows:
        table.add_row(*map(escaped, row))
    console.print(table)


def _write_long(grid: Grid) -> None:
    columns, widths = grid.columns, list(map(_width, grid.columns))
    waiting, first = iter(grid.rows), True
    while (some := list(islice(waiting, ROWS_AT_A_TIME))) or first:
        widths = [max(width, *(_width(row[column]) for row in some), 0) for column, width in enumerate(widths)]
        room = make_console().width - sum(widths[:-1]) - BETWEEN_COLUMNS * (len(widths) - 1)
        if room >= min(widths[-1], LAST_COLUMN_MIN):
            _write_grid(Grid(columns, some), [*widths[:-1], 0], headings=first)
        else:  # a block for each row, with an empty line between two
            lines = [line for row in some for line in (("", ""), *zip(columns, row, strict=True))]
            _write_grid(Grid(("", ""), lines[first:]), [max(map(_width, columns)), 0], headings=False)
        first = False


@contextmanager
def progress_bar(what: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[int, str], None] | None]:
    """Gives a function that shows how much is done, with a text; None without a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not shown or not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    clock = TimeElapsedColumn() if total is None else TimeRemainingColumn(elapsed_when_finished=True)
    with Progress(*columns, clock, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, text: progress.update(task, completed=done, description=text)


@contextmanager
def item_progress(what: str, total: int | None, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that takes the number of items done since its last call. Shows a bar on a terminal only."""
    with progress_bar(what, total, shown=shown) as show:
        done = 0

        def advance(items: int) -> None:
            nonlocal done
            done += items
            if show:
                show(done, f"{what}: {done:,} items")

        yield advance


def progress_lines(line: Callable[[int, str, float], str], clock: Callable[[], float]) -> Callable[[int], None]:
    """A function that takes how much is done, and prints a line of progress from time to time: for logs and pipes.

    The first line is printed after ten seconds. Each wait is then twice as long, up to a minute. Without any line, a
    command in a pipe would seem to hang.

    line: gets how much is done, the time since the start, and how much was done a second since the last line.
    """
    start = shown = clock()
    before, wait_seconds = 0, FIRST_PROGRESS_SECONDS

    def show(number: int) -> None:
        nonlocal shown, before, wait_seconds
        if (now := clock()) - shown >= wait_seconds:
            spent = now - start
            spent_text = f"{spent / 60:.0f} min" if spent >= PROGRESS_EVERY_SECONDS else f"{spent:.0f} s"
            note(line(number, spent_text, (number - before) / (now - shown)))
            shown, before, wait_seconds = now, number, min(spent, PROGRESS_EVERY_SECONDS)

    return show


def each_counted(what: str, numbers: Sequence[T], clock: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """Yields runs or tries, and prints on standard error from time to time how many are done."""
    show = progress_lines(lambda done, spent, _: f"{done:,} of {len(numbers):,} {what} in {spent}.", clock)
    for number, each in enumerate(numbers):
        show(number)
        yield each


def some_lines(
    found: Iterator[T], limit: int | None, grid: Callable[[Iterator[T]], Grid], what: str
) -> Iterator[Printed]:
    """The first rows as a grid, up to a limit, and whether there are more. On a terminal, a default limit holds."""
    most = LIMIT_ON_TERMINAL if limit is None and on_terminal() else limit
    first = next(found, None)
    if first is None:
        yield Note(f"No {what}.")
        return
    yield grid(islice(chain([first], found), most))
    if limit is None and next(found, None) is not None:
        yield Note(f"... and more: the first {most} are shown; --limit N or --json shows others.")
