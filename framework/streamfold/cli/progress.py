"""Progress of a run over items, on a terminal."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


@contextmanager
def item_progress(what: str, total: int | None, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that takes the number of items done since its last call. Shows a bar on a terminal only."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        done = 0

        def advance(items: int) -> None:
            nonlocal done
            done += items
            progress.update(task, advance=items, description=f"{what}: {done:,} items")

        yield advance
