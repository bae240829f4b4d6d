"""Work that a store takes piece by piece: what it leaves is sent again, after pauses, while there is time."""

import random
from collections.abc import Callable
from typing import TypeVar

TRIES_MAX = 8
PAUSE_SECONDS_MAX = 0.05
"""The longest first pause, doubled each time: 6.35 seconds in all. Each is drawn between nothing and that (full
jitter), so that those who were refused together do not come back together."""

T = TypeVar("T")


def until_done(
    work: T,
    attempt: Callable[[T], T],
    pause: Callable[[float], None],
    seconds_left: Callable[[], float] = lambda: float("inf"),
    *,
    tries_max: int = TRIES_MAX,
) -> T:
    """Tries work, then what the attempt left of it; returns what tries or time did not suffice for."""
    for number in range(tries_max - 1):
        work = attempt(work)
        left = seconds_left() if work else 0
        if left <= 0:
            return work
        pause(min(random.random() * PAUSE_SECONDS_MAX * (1 << number), left))  # noqa: S311 - jitter
    return attempt(work)
