"""What the application writes while a run goes on, where handlers write to its items too."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from streamfold.app import App
from streamfold.derivations.derivation import derivation
from streamfold.engines import StoredItem
from streamfold.keys.table import DERIVED
from streamfold.records.change import Change
from streamfold.records.images import derived_names
from streamfold.testing.choices import Choices
from streamfold.testing.kinesis import arriving
from streamfold.testing.store import ProofStore

if TYPE_CHECKING:
    from streamfold.records.change import ItemKey

PUTS = ("put-back", "put-back-old", "put-back-unmarked")
"""How an application puts an item that bears derived attributes, if not without them: with those that it bears now, as
a writer has them who read it just before, with or without what says that they are derived; or with those that it bore
first."""
PACES = (0, 1, 2, 3, 5)
"""Writes of the application between two invocations of a shard; 0: as many as a batch takes."""


def changes_items(app: App) -> bool:
    """Whether an application has handlers that read or write its own items."""
    return any(derivation(route).reads_items or route.kind.touches(route) for route in app.routes)


def drawn_pace(app: App, random: Random) -> int:
    """One of the paces; of an application whose items nobody else writes to always the same, without drawing."""
    return random.choice(PACES) if changes_items(app) else 0


@dataclass(slots=True, eq=False)
class WriterLane:
    """One shard: its changes in order, the place up to which they are through, and those that were given up.

    ``waiting`` is what the application has not written yet, where records are made as it writes.
    """

    name: str
    changes: list[Change]
    waiting: deque[Change] = field(default_factory=deque)
    position: int = 0
    attempts: int = 0
    invocations: int = 0
    given_up: list[Change] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.position >= len(self.changes) and not self.waiting

    def rest(self) -> Sequence[Change]:
        """What was not delivered yet; it is taken to be so from here on."""
        changes, self.position = self.changes[self.position :], len(self.changes)
        return changes


class Writers:
    """Carries out what the application writes, and gives the records of all writes to the lanes of their items."""

    def __init__(
        self, store: ProofStore, lanes: Iterable[WriterLane], choices: Choices, tell: Callable[[str], None], pace: int
    ) -> None:
        self.store = store
        self.lanes = list(lanes)
        self.choices = choices
        self.tell = tell
        self.pace = pace
        self.store.take = self._take
        self._lane_of: dict[ItemKey, WriterLane] = {}
        self._borne: dict[ItemKey, StoredItem] = {}
        self._newest: dict[ItemKey, str] = {}

    def write(self, lane: WriterLane, count: int) -> None:
        """Carries out so many of a lane's next writes."""
        begin = len(lane.changes)
        for _ in range(min(count, len(lane.waiting))):
            given = lane.waiting.popleft()
            self._lane_of[given.item] = lane
            if self._newest.get(given.item, "") < given.identity_text:  # a recording may hold a record twice
                self._newest[given.item] = given.identity_text
                self.store.write_own(given, self._image(given))
        lane.changes[begin:] = arriving(lane.changes[begin:], self.choices)

    @property
    def waiting(self) -> list[WriterLane]:
        """The lanes to whose items something is still to be written."""
        return [lane for lane in self.lanes if lane.waiting]

    def _image(self, given: Change) -> StoredItem | None:
        """The item as it is put: as given, or with attributes that handlers derived onto it earlier."""
        image, first = given.new.raw or None, self._borne.get(given.item)
        now = self.store.source(given.item)
        how = self.choices.choose("put", PUTS) if image and first else None
        borne = first if how == "put-back-old" else now
        if image is None or how is None or borne is None or DERIVED not in borne:
            return image
        self.tell(f"{given.name} is put with attributes that were derived onto it, {how}")
        names = derived_names(borne) - ({DERIVED} if how == "put-back-unmarked" else set())
        return {**{name: borne[name] for name in sorted(names & borne.keys())}, **image}

    def _take(self, change: Change) -> None:
        if change.new and DERIVED in change.new.raw:
            self._borne.setdefault(change.item, change.new.raw)
        self._lane_of[change.item].changes.append(change)
