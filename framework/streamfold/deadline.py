"""The one way to wait: a deadline behind which nothing is begun, and tries with pauses that end before it."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamfold.errors import NotStarted

TRIES_MAX = 8
"""Tries beside others that are in the way, or on a busy table; then the records come again."""
PAUSE_SECONDS_MAX = 0.05
"""The longest first pause, doubled each time: 6.35 seconds in all."""
THROTTLE_FACTOR = 4
"""How much longer the pauses are for a throttled table than for a conflict."""
TIME_OVER = "The invocation's time is nearly over; the record comes again."


@dataclass(slots=True, kw_only=True)
class Deadline:
    """How long work may go on. By default it has no end.

    seconds_left: the time until the invocation ends.
    stop_seconds: what the last call may take; with less time than that, nothing is begun.
    pause: sleeps for so many seconds.
    """

    seconds_left: Callable[[], float] = lambda: float("inf")
    stop_seconds: float = 0
    pause: Callable[[float], None] = time.sleep

    def enough_time(self) -> bool:
        """Whether something new may be begun."""
        return self.seconds_left() > self.stop_seconds

    def begin(self) -> None:
        """Raises ``NotStarted`` where nothing new may be begun."""
        if not self.enough_time():
            raise NotStarted(TIME_OVER)

    def wait(self, seconds: float) -> None:
        """Pauses. Raises ``NotStarted`` at once where nothing new could be begun after the pause."""
        if self.seconds_left() - seconds <= self.stop_seconds:
            raise NotStarted(TIME_OVER)
        self.pause(seconds)

    def back_off(self, number: int, *, throttled: bool = False) -> None:
        """Pauses after so many earlier pauses. Raises ``NotStarted`` as ``wait`` does.

        A pause is drawn between nothing and its longest (full jitter), so that those who were refused together do not
        come back together.
        """
        longest = PAUSE_SECONDS_MAX * (1 << number) * (THROTTLE_FACTOR if throttled else 1)
        self.wait(random.random() * longest)  # noqa: S311 - jitter

    def tries(self, tries_max: int = TRIES_MAX) -> Iterator[int]:
        """The numbers of tries from 0 on, with a pause before each but the first. Raises ``NotStarted`` as ``wait``
        does.
        """
        for number in range(tries_max):
            if number:
                self.back_off(number - 1)
            yield number
