"""What processing needs of its surroundings: settings, clock, deadline; passed in, so that tests can play it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamfold.deadline import Deadline
from streamfold.parking import Parking
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.commit.plan import Removed
    from streamfold.derivations.archive.places import ArchivePlace
    from streamfold.records.change import ItemKey

SECONDS_A_DAY = 24 * 60 * 60
WARNINGS_MAX = 1000
"""Different near misses that are remembered, so that each is warned about once."""


@dataclass(slots=True)
class Run(Deadline):
    """One run over records: its settings, clock and deadline, and whether external handlers are called.

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
