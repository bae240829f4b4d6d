"""How long work may go on, the one way to wait, and an engine that begins no call when the time is nearly over.

After the deadline nothing is begun. Pauses between tries end before it.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from streamfold.engines.protocol import Engine
from streamfold.errors import NotStarted

TRIES_MAX = 8
"""Tries if others change the same items, or a table is busy; afterwards the records are retried."""
PAUSE_SECONDS_MAX = 0.05
"""The longest first pause, doubled each time: 6.35 seconds in all."""
THROTTLE_FACTOR = 4
"""How much longer the pauses are for a throttled table than for a conflict."""
PAUSE_SECONDS_LONGEST = 10
"""The longest pause of all, however many there were before."""
UNTIMED = ("own_stream", "by_prefix", "durable", "separate", "close")
"""What an engine has, and the end of its use: no calls of the store."""
TIME_OVER = "The invocation's time is nearly over; the record is retried."


def no_end() -> float:
    """The remaining time without a deadline."""
    return float("inf")


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Deadline:
    """How long work may go on. By default there is no end."""

    seconds_left: Callable[[], float] = no_end  # until the invocation ends
    stop_seconds: float = 0  # the time that the last call may take; with less time, no call is begun
    pause: Callable[[float], None] = time.sleep

    def enough_time(self) -> bool:
        """Whether something new may be begun."""
        return self.seconds_left() > self.stop_seconds

    def begin(self) -> None:
        """Raises ``NotStarted`` if nothing new may be begun."""
        if not self.enough_time():
            raise NotStarted(TIME_OVER)

    def wait(self, seconds: float) -> None:
        """Pauses. Raises ``NotStarted`` at once if nothing new could be begun after the pause."""
        if self.seconds_left() - seconds <= self.stop_seconds:
            raise NotStarted(TIME_OVER)
        self.pause(seconds)

    def back_off(self, number: int, *, throttled: bool = False) -> None:
        """Pauses after ``number`` earlier pauses. Raises ``NotStarted`` as ``wait`` does.

        The pause is random between 0 and its longest (full jitter), so that processes which were refused together do
        not come back together.
        """
        longest = PAUSE_SECONDS_MAX * (1 << number) * (THROTTLE_FACTOR if throttled else 1)
        self.wait(random.random() * min(longest, PAUSE_SECONDS_LONGEST))  # noqa: S311 - jitter

    def tries(self, tries_max: int = TRIES_MAX) -> Iterator[int]:
        """Counts tries from 0, with a pause before each but the first. Raises ``NotStarted`` as ``wait`` does."""
        for number in range(tries_max):
            if number:
                self.back_off(number - 1)
            yield number


def time_left(context: Any) -> Callable[[], float]:
    """The remaining seconds of an invocation; without a Lambda context there is no end."""
    return no_end if context is None else lambda: context.get_remaining_time_in_millis() / 1000


class Timed:
    """An engine whose calls raise ``NotStarted`` if there is no time for them.

    ``NotStarted`` is an ``EngineUnavailable``, which every stage after the commit handles anyway. So no stage can fail
    to check the deadline, and none loses the results of the stages before it.
    """

    def __init__(self, engine: Engine, deadline: Deadline) -> None:
        self.engine = engine
        self.deadline = deadline

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if name in UNTIMED or not callable(found):
            return found

        def timed(*arguments: Any, **options: Any) -> Any:
            self.deadline.begin()
            return found(*arguments, **options)

        return timed
