"""Every deviation from an undisturbed run is a choice: drawn from a seed, given by a script, or enumerated.

The points of choice of a run are numbered in the order in which the run meets them. The choices by number are a
``Script``. A run with the same script meets the same points and takes the same way, so a failing run can be repeated,
shortened and written down. ``shortened`` leaves out units and choices as long as the run still fails.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeVar

Script = Mapping[int, str]
"""The chosen option by the number of its point; no deviation at all other points."""


class TakenChoice(NamedTuple):
    """A deviation that was chosen: the number of its point, the kind of the point, and the option."""

    number: int
    point: str
    option: str


class Choices:
    """Chooses nothing, ever, and numbers the points."""

    def __init__(self) -> None:
        self.number = 0
        self.taken: list[TakenChoice] = []

    def choose(self, point: str, options: Sequence[str]) -> str | None:
        """One of the options, or None for the undisturbed way."""
        self.number += 1
        option = self._choice(point, options)
        if option is not None:
            self.taken.append(TakenChoice(self.number, point, option))
        return option

    @property
    def script(self) -> dict[int, str]:
        """The choices so far."""
        return {taken.number: taken.option for taken in self.taken}

    def _choice(self, point: str, options: Sequence[str]) -> str | None:  # noqa: ARG002 - subclasses decide by them
        return None


class Drawn(Choices):
    """Chooses at random, at ``rate`` of the points; with ``only``, options of these names only.

    ``offered`` names the options that there were to choose from.
    """

    def __init__(self, random: Random, rate: float, only: Collection[str] | None = None) -> None:
        super().__init__()
        self.random = random
        self.rate = rate
        self.only = only
        self.offered: set[str] = set()
        self._points: set[tuple[str, int]] = set()

    def _choice(self, point: str, options: Sequence[str]) -> str | None:
        if (point, len(options)) not in self._points:
            self._points.add((point, len(options)))
            names = {option.partition(" ")[0] for option in options}
            self.offered |= names if self.only is None else names & set(self.only)
        if self.random.random() >= self.rate:
            return None
        only = self.only
        allowed = options if only is None else [option for option in options if option.partition(" ")[0] in only]
        return self.random.choice(allowed) if allowed else None


class Scripted(Choices):
    """Chooses the options of a script. A point that does not offer the option of its number takes no deviation."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def _choice(self, point: str, options: Sequence[str]) -> str | None:  # noqa: ARG002 - the number decides
        option = self._script.get(self.number)
        return option if option in options else None


Some = TypeVar("Some")
RUNS_MAX = 2000
"""Runs that are spent on shortening one failure: without a bound, a long script would hold a test for hours."""


class Budget:
    """The number of runs that may still be tried."""

    def __init__(self, runs: int = RUNS_MAX) -> None:
        self.runs = runs

    def spend(self) -> bool:
        self.runs -= 1
        return self.runs >= 0


def shortened(
    fails: Callable[[Sequence[Some], Script], bool], units: Sequence[Some], script: Script, budget: Budget
) -> tuple[Sequence[Some], Script]:
    """The fewest units and deviations found that still fail. Leaves some out in turns until nothing more can go."""
    kept, chosen = list(units), dict(script)

    def only(numbers: Sequence[int]) -> dict[int, str]:
        return {number: script[number] for number in numbers}

    before = None
    while before != (len(kept), len(chosen)):  # fewer units may make choices superfluous, and the other way round
        before = (len(kept), len(chosen))
        chosen = only(_fewest(list(chosen), lambda numbers: fails(kept, only(numbers)), budget))  # noqa: B023 - called at once
        kept = _fewest(kept, lambda some: fails(some, chosen), budget)  # noqa: B023 - likewise
    return kept, chosen


def _fewest(things: list[Some], fails: Callable[[list[Some]], bool], budget: Budget) -> list[Some]:
    """Leaves out halves, then quarters, and so on to single things."""
    size = max(1, len(things) // 2)
    while things:
        start = 0
        while start < len(things):
            fewer = things[:start] + things[start + size :]
            if not budget.spend():
                return things
            if fails(fewer):
                things = fewer
            else:
                start += size
        if size == 1:
            return things
        size = max(1, size // 2)
    return things
