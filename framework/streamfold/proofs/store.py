"""The store of a run: dictionaries, whose source items may be changed by handlers too, and what the application writes.

Attributes are derived onto source items, and cascades remove them, when a run comes to it: what the tables hold, and
which records they leave, cannot be written down before. So the changes of a history are here what the application
writes, each over what is there by then, and records come of its writes and of the handlers' alike. Archives and search
indexes of a run have a place here too.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from io import BytesIO
from random import Random
from typing import IO, NamedTuple

from streamfold.app import App
from streamfold.derivations.search.accepts import Accepts
from streamfold.derivations.search.indexes import accepts_of
from streamfold.derivations.search.local import LocalIndex
from streamfold.derivations.search.sink import Action, Answer
from streamfold.engines import StoredItem, Wanted
from streamfold.engines.local_writes import local_write
from streamfold.engines.memory import NONE, MemoryEngine
from streamfold.keys.table import DERIVED, Table
from streamfold.proofs.choices import Choices
from streamfold.proofs.histories import arriving
from streamfold.records.change import BY_OURSELVES, Change, ItemKey
from streamfold.records.images import derived_names
from streamfold.records.kinesis import KinesisChange
from streamfold.records.values import same
from streamfold.routes.application import Application
from streamfold.settings import Settings
from streamfold.testing.twin import changes_items
from streamfold.writes.guarded import DeleteSource, UpdateSource

FOLLOWING_DIGITS = 8
"""Digits of the number of a handler's write behind the application's last write of the item."""
BY_HANDLERS = "~"
"""Begins the end of such a version where records come through Kinesis: behind every digest of the same microsecond."""
FIRST_SEQUENCE = 9 * 10**39
"""Sequence numbers of records of what handlers wrote: they have more digits than others, and are no version."""
PLACE = "file:proof"
"""What archives of a run are told of their place, which is no folder."""


class DeliveredChange(NamedTuple):
    """A record of the tables, in the order of all writes, and whether the application wrote (``own``) or a handler.

    ``follows`` is the version of the record that led a cascade to a removal.
    """

    change: Change
    own: bool
    follows: str = ""


class ProofStore(MemoryEngine):
    """Dictionaries as ever; writes of source items leave records, which ``take`` is given."""

    def __init__(
        self,
        tables: Iterable[Table],
        wanted: Wanted | None = None,
        accepts: Callable[[str], Accepts | None] = lambda _: None,
    ) -> None:
        super().__init__(tables, wanted)
        self.accepts = accepts
        self.archived: dict[str, bytes] = {}
        self.delivered: list[DeliveredChange] = []
        self.take: Callable[[Change], None] = lambda _: None
        self._last: dict[ItemKey, Change] = {}

    def archive(self, name: str, content: bytes) -> None:
        """Writes a content of an archive."""
        self.archived[name] = content

    def bulk(self, actions: Sequence[Action]) -> list[Answer]:
        """Writes documents."""
        return LocalIndex(self, self.accepts).bulk(actions)

    def source(self, item: ItemKey) -> StoredItem | None:
        """A source item as it is now."""
        return self._sources.get(item, NONE)[1]

    def sources(self) -> Iterator[tuple[ItemKey, StoredItem]]:
        """All source items that are there."""
        return ((key, image) for key, (_, image) in self._sources.items() if image is not None)

    def write_own(self, given: Change, image: StoredItem | None) -> None:
        """Carries out what the application writes: an item whole, or none any more."""
        stored, before = self._sources.get(given.item, NONE)
        version = given.version_text if given.version_text > stored else _following(stored, given)
        if not _equal(before, image):
            self._write(given, version, before, image, own=True)

    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        stored, before = self._sources[write.key]
        after: StoredItem | None = None
        base = stored
        if isinstance(write, UpdateSource):
            table = self.tables[write.key[0]]
            after = local_write(write, table).after(write, before or {}, table, 0)
        else:
            base = max(stored, write.version)
        if not _equal(before, after):
            found = copy(self._last[write.key])
            found.sequence, found.expired = str(FIRST_SEQUENCE + len(self.delivered)), False
            self._write(found, _following(base, found), before, after, own=False)
            if isinstance(write, DeleteSource):
                self.delivered[-1] = self.delivered[-1]._replace(follows=write.version)

    def _write(
        self, given: Change, version: str, before: StoredItem | None, after: StoredItem | None, *, own: bool
    ) -> None:
        self._sources[given.item] = (version, after)
        change = self._last[given.item] = _as_found(given, version, before, after)
        self.delivered.append(DeliveredChange(change, own))
        self.take(change)


def proof_store(app: Application) -> ProofStore:
    """The store of a run of an application, whose indexes take what their searches declare."""
    return ProofStore(app.tables.values(), app.chains, accepts_of(app.routes, Settings()))


class Contents:
    """The archive of a store as a place: written through ``engine``, which may fail, and read from what is stored."""

    def __init__(self, store: ProofStore, write: Callable[[str, bytes], None]) -> None:
        self.store = store
        self.write = write

    def names(self, under: str) -> Iterator[str]:
        yield from sorted(name for name in self.store.archived if name.startswith(under))

    def folders(self, under: str) -> Iterator[str]:
        parts = (name.removeprefix(under).partition("/") for name in self.names(under))
        yield from sorted({first for first, mark, _ in parts if mark})

    def read(self, name: str) -> IO[bytes]:
        return BytesIO(self.store.archived[name])

    def __str__(self) -> str:
        return PLACE


class Documents(LocalIndex):
    """The search indexes of a store: written through ``send``, which may fail, and read from what is stored."""

    def __init__(self, store: ProofStore, send: Callable[[Sequence[Action]], list[Answer]]) -> None:
        super().__init__(store)
        self.send = send

    def bulk(self, actions: Sequence[Action]) -> list[Answer]:
        return self.send(actions)


def _as_found(given: Change, version: str, before: StoredItem | None, after: StoredItem | None) -> Change:
    """A change as the table finds it: what it was given as, if nobody else has written meanwhile."""
    event = "REMOVE" if after is None else "MODIFY" if before is not None else "INSERT"
    known = not given.has_old or _equal(given.old.raw or None, before)
    if known and (given.event, given.version_text) == (event, version) and _equal(given.new.raw or None, after):
        return given
    change = copy(given)
    change.event, change.version_text = event, version  # type: ignore[assignment]
    change._old = before if given.has_old else None  # noqa: SLF001 - a copy of its own
    change._new = after  # noqa: SLF001
    if isinstance(change, KinesisChange):  # whose identity has a digest of its images
        change._digest = change.identity_among(lambda _: True).rpartition("/")[2]  # noqa: SLF001
    return change


def _following(version: str, change: Change) -> str:
    """The next version behind one: before any that the application's next write of the item has."""
    mark = BY_HANDLERS if isinstance(change, KinesisChange) else BY_OURSELVES
    head, _, number = version.partition(mark)
    return f"{head}{mark}{int(number or 0) + 1:0{FOLLOWING_DIGITS}d}"


def _equal(one: StoredItem | None, other: StoredItem | None) -> bool:
    return one is other or (one is not None and other is not None and same({"M": one}, {"M": other}))


PUTS = ("put-back", "put-back-old", "put-back-unmarked")
"""How an application puts an item that bears derived attributes, if not without them: with those that it bears now, as
a writer has them who read it just before, with or without what says that they are derived; or with those that it bore
first."""
PACES = (0, 1, 2, 3, 5)
"""Writes of the application between two invocations of a shard; 0: as many as a batch takes."""


def drawn_pace(app: App, random: Random) -> int:
    """One of the paces; of an application whose items nobody else writes to always the same, without drawing."""
    return random.choice(PACES) if changes_items(app) else 0


@dataclass(slots=True, eq=False)
class Writer:
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
        self, store: ProofStore, lanes: Iterable[Writer], choices: Choices, log: Callable[[str], None], pace: int
    ) -> None:
        self.store = store
        self.lanes = list(lanes)
        self.choices = choices
        self.log = log
        self.pace = pace
        self.store.take = self._take
        self._lane_of: dict[ItemKey, Writer] = {}
        self._borne: dict[ItemKey, StoredItem] = {}
        self._newest: dict[ItemKey, str] = {}

    def write(self, lane: Writer, count: int) -> None:
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
    def waiting(self) -> list[Writer]:
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
        self.log(f"{given.name} is put with attributes that were derived onto it, {how}")
        names = derived_names(borne) - ({DERIVED} if how == "put-back-unmarked" else set())
        return {**{name: borne[name] for name in sorted(names & borne.keys())}, **image}

    def _take(self, change: Change) -> None:
        if change.new and DERIVED in change.new.raw:
            self._borne.setdefault(change.item, change.new.raw)
        self._lane_of[change.item].changes.append(change)
