"""What processing needs of the world: settings, clock, remaining time; passed in, so that tests can play it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamfold.commit.outcome import NotStarted
from streamfold.parking import Parking
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.commit.plan import Removed
    from streamfold.derivations.archive.places import ArchivePlace
    from streamfold.records.change import ItemKey

SECONDS_A_DAY = 24 * 60 * 60
TIME_OVER = "The invocation's time is nearly over; the record comes again."
WARNINGS_MAX = 1000
"""Different near misses that are remembered, so that each is warned about once."""


@dataclass(slots=True)
class Run:
    """What processing needs of the world: settings, clock, remaining time, and whether external handlers are called.

    ``warn`` is told of what is odd but not wrong, each thing once. ``actions`` overrides the setting ``chunk_actions``
    for a store without DynamoDB's limit. ``parking`` takes records that are given up, None where there is no place.
    ``handlers`` are those that a redrive runs, of records that have a place already: none is parked. None: all.
    ``archive``: removed items go to the buckets that are declared (True), only to a folder or where the setting says
    (None), or nowhere. ``places`` are those that were opened, by what names them.
    ``cascade``: children of removed items are removed; with ``later``, a dictionary, these items are only noted there.
    """

    settings: Settings
    external: bool = False
    clock: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    seconds_left: Callable[[], float] = lambda: float("inf")
    warn: Callable[[str], None] = lambda _: None
    warned: set[object] = field(default_factory=set)
    context: Any = None
    actions: int | None = None
    parking: Parking | None = None
    handlers: frozenset[str] | None = None
    archive: bool | None = None
    places: "dict[str, ArchivePlace]" = field(default_factory=dict)
    cascade: bool = True
    later: "dict[tuple[str, ItemKey], Removed] | None" = None

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
