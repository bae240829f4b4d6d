"""Every deviation from an undisturbed run is a choice: drawn from a seed, given by a script, or enumerated.

The points of choice of a run are numbered in the order in which the run meets them. What was chosen at which point is
a ``Script``: a run with the same script meets the same points and goes the same way, so a failing one can be repeated,
shortened and written down. ``shortened`` leaves out all that can be left out while the run still fails.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple, TypeVar

Script = Mapping[int, str]
"""What is chosen at which point; nothing at all others."""


class TakenChoice(NamedTuple):
    """A deviation that was chosen: the number of its point, what kind of point that was, and the option."""

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
        """What was chosen so far."""
        return {taken.number: taken.option for taken in self.taken}

    def _choice(self, point: str, options: Sequence[str]) -> str | None:  # noqa: ARG002 - what others decide by
        return None


class Drawn(Choices):
    """Chooses at random, at ``rate`` of the points; only options of these names where ``only`` is given.

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
        left = options if self.only is None else [option for option in options if option.partition(" ")[0] in self.only]
        return self.random.choice(left) if left else None


class Scripted(Choices):
    """Chooses what a script says, where the point offers it."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def _choice(self, point: str, options: Sequence[str]) -> str | None:  # noqa: ARG002 - the number says it
        option = self._script.get(self.number)
        return option if option in options else None


Some = TypeVar("Some")
RUNS_MAX = 2000
"""Runs that are spent on making one failure short."""


class Budget:
    """How often a run may still be tried."""

    def __init__(self, runs: int = RUNS_MAX) -> None:
        self.runs = runs

    def spend(self) -> bool:
        self.runs -= 1
        return self.runs >= 0


def shortened(
    fails: Callable[[Sequence[Some], Script], bool], units: Sequence[Some], script: Script, budget: Budget
) -> tuple[Sequence[Some], Script]:
    """The fewest units and deviations that still fail, as far as leaving some out finds them."""
    kept, left = list(units), dict(script)
    before = None
    while before != (len(kept), len(left)):
        before = (len(kept), len(left))
        left = _only(left, _fewest(list(left), partial(_fails_with, fails, kept, left), budget))
        kept = _fewest(kept, partial(_fails_without, fails, left), budget)
    return kept, left


def _fails_with(
    fails: Callable[[Sequence[Some], Script], bool], units: Sequence[Some], script: Script, numbers: Sequence[int]
) -> bool:
    return fails(units, _only(script, numbers))


def _fails_without(fails: Callable[[Sequence[Some], Script], bool], script: Script, units: Sequence[Some]) -> bool:
    return fails(units, script)


def _only(script: Script, numbers: Sequence[int]) -> dict[int, str]:
    return {number: script[number] for number in numbers}


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
