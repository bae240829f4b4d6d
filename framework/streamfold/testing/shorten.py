"""Shortens a failing run: leaves out all that can be left out while the run still fails."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from streamfold.testing.choices import Script

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
