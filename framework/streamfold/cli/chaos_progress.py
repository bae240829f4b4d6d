"""How far runs under faults are: a bar on a terminal, and elsewhere a line a minute."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import track

from streamfold.cli.grids import counted
from streamfold.cli.output import echo
from streamfold.cli.replay_lines import PROGRESS_EVERY_SECONDS


def shown_runs(seeds: Sequence[int], records: int) -> Iterable[int]:
    """The seeds of all runs, with progress; what is done first is told at once."""
    echo(
        f"Replaying {counted(records, 'record')} without faults, then {counted(len(seeds), 'time')} with faults.",
        err=True,
    )
    console = Console(stderr=True)
    if not console.is_terminal or os.environ.get("TERM") == "dumb":
        return by_the_minute(seeds)
    return track(seeds, "runs", console=console, transient=True)


def shown_tries(seed: int, tries_max: int) -> Callable[[], object]:
    """Says that a run diverged and is made shorter; returns what is called before each try, and tells of progress."""
    echo(
        f"The run with seed {seed} diverged. Looking for the fewest records and faults that do, in "
        f"{counted(tries_max, 'run')} at most.",
        err=True,
    )
    tries = by_the_minute(range(tries_max))
    return lambda: next(tries, None)


def by_the_minute(seeds: Sequence[int], clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Says on standard error, once a minute, how many runs are done."""
    begin = told = clock()
    for number, seed in enumerate(seeds):
        now = clock()
        if now - told >= PROGRESS_EVERY_SECONDS:
            echo(f"{number:,} of {len(seeds):,} runs in {(now - begin) / 60:.0f} min.", err=True)
            told = now
        yield seed
