"""How far runs under faults are: a bar on a terminal, and elsewhere a line from time to time."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import track

from streamfold.cli.grids import counted
from streamfold.cli.output import echo
from streamfold.cli.replay_lines import PROGRESS_EVERY_SECONDS

FIRST_SECONDS = 10.0
SECONDS_A_MINUTE = 60


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
    """Says on standard error how many runs are done: after ten seconds, then after twice as long, at last once a
    minute. A pipe or a log without any line looks as if nothing went on.
    """
    begin, next_seconds = clock(), FIRST_SECONDS
    for number, seed in enumerate(seeds):
        seconds = clock() - begin
        if seconds >= next_seconds:
            spent = f"{seconds / 60:.0f} min" if seconds >= SECONDS_A_MINUTE else f"{seconds:.0f} s"
            echo(f"{number:,} of {len(seeds):,} runs in {spent}.", err=True)
            next_seconds = min(2 * seconds, seconds + PROGRESS_EVERY_SECONDS)
        yield seed
