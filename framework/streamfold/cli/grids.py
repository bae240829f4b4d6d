"""Tables on a terminal, or in a file."""

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid

from streamfold.cli.output import escaped

COLUMNS_IN_FILES = 10_000
"""How wide a table in a file or a pipe may be: neither has a width, and what is folded cannot be searched."""

ROWS_AT_A_TIME = 1000
BETWEEN_COLUMNS = 2
LAST_COLUMN_MIN = 40
"""How narrow the last column of a long grid may be: in a narrower one most values would be broken."""


def counted(number: int, what: str) -> str:
    """A number with its noun: ``1 item``, ``2,000 items``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def make_console() -> Console:
    """A console that prints text as it is: brackets and colons in data are no markup."""
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = COLUMNS_IN_FILES
    return console


def is_too_wide(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Whether a grid would have to break its lines."""
    cells = [columns, *rows]
    widths = [
        max(cell_len(line) for cell in column for line in cell.split("\n")) for column in zip(*cells, strict=True)
    ]
    return sum(widths) + BETWEEN_COLUMNS * (len(widths) - 1) > make_console().width


def print_grid(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Prints rows under headings; columns named in ``right`` are numbers."""
    _print(columns, list(rows), right, [0] * len(columns), headings=True)


def print_long_grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows as ``print_grid`` does, some at a time: however many there are, few of them are in memory.

    Columns grow with the rows that need it. Once they leave the last one too little room, each row is a block of lines,
    with a name and a value each.
    """
    widths = [cell_len(name) for name in columns]
    waiting, first = iter(rows), True
    while (some := list(islice(waiting, ROWS_AT_A_TIME))) or first:
        widths = [max(width, *(cell_len(row[place]) for row in some), 0) for place, width in enumerate(widths)]
        if _leave_room(widths):
            _print(columns, some, (), [*widths[:-1], 0], headings=first)
        else:
            _print_blocks(columns, some, first=first)
        first = False


def _leave_room(widths: Sequence[int]) -> bool:
    """Whether columns of these widths leave the last of them room, what it needs or ``LAST_COLUMN_MIN``."""
    taken = sum(widths[:-1]) + BETWEEN_COLUMNS * (len(widths) - 1)
    return make_console().width - taken >= min(widths[-1], LAST_COLUMN_MIN)


def _print_blocks(columns: Sequence[str], rows: Iterable[Sequence[str]], *, first: bool) -> None:
    """Prints each row as lines of names and values, with an empty line between two rows."""
    lines = [line for row in rows for line in (("", ""), *zip(columns, row, strict=True))]
    _print(("", ""), lines[first:], (), [max(map(cell_len, columns)), 0], headings=False)


def _print(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[str],
    widths: Sequence[int],
    *,
    headings: bool,
) -> None:
    grid = Grid(box=None, pad_edge=False, header_style="bold", show_header=headings)
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column in right else "left"
        grid.add_column(column, overflow="fold", justify=justify, min_width=width or None)
    for row in rows:
        grid.add_row(*map(escaped, row))
    make_console().print(grid)
