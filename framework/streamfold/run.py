"""What processing needs of the world: settings, clock, remaining time; passed in, so that tests can play it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from streamfold.commit.outcome import NotStarted
from streamfold.settings import Settings

SECONDS_A_DAY = 24 * 60 * 60
TIME_OVER = "The invocation's time is nearly over; the record comes again."
WARNINGS_MAX = 1000
"""Different near misses that are remembered, so that each is warned about once."""


class ParkingPlace(Protocol):
    """Takes records that are given up."""

    def park(self, parked: Any, /) -> None:
        """Puts a record aside. Raises ``ParkingError`` unless it is safe there."""
        ...


Learned = WeakKeyDictionary[Any, Any]
"""What is known of a state, by engine and application (``batch.knowledge``)."""


@dataclass(slots=True)
class Run:
    """What processing needs of the world, and what it has learnt of it."""

    settings: Settings
    clock: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    seconds_left: Callable[[], float] = lambda: float("inf")
    warn: Callable[[str], None] = lambda _: None  # is told of what is odd but not wrong, each thing once
    warned: set[object] = field(default_factory=set)
    learned: Learned = field(default_factory=WeakKeyDictionary)  # of states: lives as long as the process
    context: Any = None  # of Lambda
    actions: int | None = None  # instead of the setting ``chunk_actions``, for a store without DynamoDB's limit
    parking: ParkingPlace | None = None  # takes records that are given up
    handlers: frozenset[str] | None = None  # only these run, for a redrive: their records have a place, none is parked
    outside: bool | None = None  # effects outside of the store are made: all (True), those in local folders, or none
    opened: dict[str, Any] = field(default_factory=dict)  # places outside of the store, by what names them
    source_items: bool = True  # the store holds the application's own items, which handlers may remove
    postponed: list[Any] | None = None  # takes what kinds finish last, for the end of a replay

    @property
    def actions_max(self) -> int:
        """How many writes a transaction has, for this store."""
        return self.actions or self.settings.chunk_actions

    def enough_time(self) -> bool:
        """Whether something new may be started."""
        return self.seconds_to_begin() > 0

    def seconds_to_begin(self) -> float:
        """How long something new may still be started."""
        return self.seconds_left() - self.settings.stop_seconds

    def begin(self) -> None:
        """Raises ``NotStarted`` where nothing new may be started."""
        if not self.enough_time():
            raise NotStarted(TIME_OVER)

    def wait(self, seconds: float) -> None:
        """Pauses. Raises ``NotStarted`` at once where nothing new could be started behind the pause."""
        if self.seconds_left() - seconds <= self.settings.stop_seconds:
            raise NotStarted(TIME_OVER)
        self.pause(seconds)

    def warn_once(self, subject: object, text: str) -> None:
        if subject not in self.warned and len(self.warned) < WARNINGS_MAX:
            self.warned.add(subject)
            self.warn(text)
