"""Tables on a terminal, or in a file."""

import os
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as Grid

COLUMNS_IN_FILES = 10_000
"""How wide a table in a file or a pipe may be: neither has a width, and what is folded cannot be searched."""


def make_console() -> Console:
    """A console that prints text as it is: brackets and colons in data are no markup."""
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = COLUMNS_IN_FILES
    return console


def print_grid(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Prints rows under headings; columns named in ``right`` are numbers."""
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold", justify="right" if column in right else "left")
    for row in rows:
        grid.add_row(*row)
    make_console().print(grid)
