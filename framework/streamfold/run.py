"""What processing needs of its surroundings: settings, clock, deadline; passed in, so that tests can play it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from streamfold.deadline import Deadline
from streamfold.settings import Settings

SECONDS_A_DAY = 24 * 60 * 60
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
class Run(Deadline):
    """One run over records: its settings, clock and deadline, and what it has learnt of the state."""

    settings: Settings
    clock: Callable[[], float] = time.time
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

    def __post_init__(self) -> None:
        self.stop_seconds = self.settings.stop_seconds

    @property
    def chunk_actions(self) -> int:
        """Writes in one transaction."""
        return self.actions or self.settings.chunk_actions

    @property
    def expires_at(self) -> int:
        """The time to live of what is written now."""
        return int(self.clock()) + self.settings.retention_days * SECONDS_A_DAY

    def warn_once(self, subject: object, text: str) -> None:
        if subject not in self.warned and len(self.warned) < WARNINGS_MAX:
            self.warned.add(subject)
            self.warn(text)
