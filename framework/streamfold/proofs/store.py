"""The store of a run: dictionaries, whose source items handlers may change, too, and the writes of the application.

During a run, handlers derive attributes onto source items, and cascades remove items. So the content of the tables and
their records are not known before. The changes of a history are therefore writes of the application, each over the
present item, and the writes of the application and of the handlers both leave records. The store also holds the
archives and search indexes of a run.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from io import BytesIO
from random import Random
from typing import IO, Any, NamedTuple

from streamfold.app import App
from streamfold.derivations.derivation import local_locations
from streamfold.derivations.expected import ItemVersion
from streamfold.engines.local_writes import local_write
from streamfold.engines.memory import NONE, MemoryEngine
from streamfold.engines.protocol import StoredItem, Wanted
from streamfold.keys.table import DERIVED, Table
from streamfold.proofs.faults import Choices
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
"""Separates this number in a version of Kinesis. It sorts behind every digest of the same microsecond."""
FIRST_SEQUENCE = 9 * 10**39
"""The first sequence number of records of handlers' writes. They have more digits than others, and are no version."""
LOCATION = "file:proof"
"""The location of the archives of a run, which is no folder."""


class DeliveredChange(NamedTuple):
    """A record of the tables, in the order of all writes, and whether the application wrote (``own``) or a handler.

    ``follows`` is the version of the record that led a cascade to a removal.
    """

    change: Change
    own: bool
    follows: str = ""


class ProofStore(MemoryEngine):
    """A ``MemoryEngine`` whose writes of source items leave records; ``take`` gets each of them."""

    def __init__(
        self,
        tables: Iterable[Table],
        wanted: Wanted | None = None,
    ) -> None:
        super().__init__(tables, wanted)
        self.opened: dict[str, Any] = {}  # locations outside of tables, by the names under which a run keeps them
        self.archived: dict[str, bytes] = {}
        self.delivered: list[DeliveredChange] = []
        self.take: Callable[[Change], None] = lambda _: None
        self._last: dict[ItemKey, Change] = {}

    def archive(self, name: str, content: bytes) -> None:
        """Keeps an object of an archive."""
        self.archived[name] = content

    def write_outside(self, written: Sequence[Any], name: str, call: str) -> list[Any]:
        """Writes to a location outside of tables by a call of its own."""
        return list(getattr(self.opened[name], call)(written))

    def source(self, item: ItemKey) -> StoredItem | None:
        """The present item, or None."""
        return self._sources.get(item, NONE)[1]

    def sources(self) -> Iterator[tuple[ItemKey, StoredItem]]:
        """All present items."""
        return ((key, image) for key, (_, image) in self._sources.items() if image is not None)

    def write_own(self, given: Change, image: StoredItem | None) -> None:
        """Makes a write of the application: puts an item, or removes it (None)."""
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
    store = ProofStore(app.tables.values(), app.chains)
    store.opened = local_locations(app, store, Settings())
    return store


class Contents:
    """The archive of a store as a location: writes go through ``write``, which may fail, and reads see the store."""

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
        return LOCATION


def _as_found(given: Change, version: str, before: StoredItem | None, after: StoredItem | None) -> Change:
    """A change as the table records it: the given one, unless a handler has changed the item meanwhile."""
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
    """The next version after one: before the version of the application's next write of the item."""
    mark = BY_HANDLERS if isinstance(change, KinesisChange) else BY_OURSELVES
    head, _, number = version.partition(mark)
    return f"{head}{mark}{int(number or 0) + 1:0{FOLLOWING_DIGITS}d}"


def _equal(one: StoredItem | None, other: StoredItem | None) -> bool:
    return one is other or (one is not None and other is not None and same({"M": one}, {"M": other}))


PUTS = ("put-back", "put-back-old", "put-back-unmarked")
"""Ways in which an application may put an item that has derived attributes, other than without them: with the present
ones, like a writer that has just read them, with or without the mark that they are derived; or with the first ones."""
PACES = (0, 1, 2, 3, 5)
"""Writes of the application between two invocations of a shard; 0: as many as a batch takes."""


def drawn_pace(app: App, random: Random) -> int:
    """One of the paces; always 0, without drawing, if no handler writes to items."""
    return random.choice(PACES) if changes_items(app) else 0


@dataclass(slots=True, eq=False)
class Writer:
    """One shard: its changes in order, the position up to which they are through, and those that were given up.

    ``waiting`` are the writes that the application has not made yet.
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

    @property
    def overtaken(self) -> set[ItemVersion]:
        """The changes that later ones of their items may overtake: given up, or arrived behind a later one."""
        arrived = [ItemVersion(change.item, change.version_text) for change in self.changes]
        newest: dict[ItemKey, str] = {}
        late: set[ItemVersion] = set()
        for each in dict.fromkeys(arrived):  # one that arrives twice counts where it came first
            if each.version < newest.setdefault(each.item, each.version):
                late.add(each)
            newest[each.item] = max(newest[each.item], each.version)
        return late | {ItemVersion(change.item, change.version_text) for change in self.given_up}

    def rest(self) -> Sequence[Change]:
        """Takes the changes that were not delivered yet; they count as delivered from now on."""
        changes, self.position = self.changes[self.position :], len(self.changes)
        return changes


class Writers:
    """Makes the writes of the application, and gives the records of all writes to the shards of their items."""

    def __init__(
        self, store: ProofStore, writers: Iterable[Writer], choices: Choices, log: Callable[[str], None], pace: int
    ) -> None:
        self.store = store
        self.shards = list(writers)
        self.choices = choices
        self.log = log
        self.pace = pace
        self.store.take = self._take
        self._writer_of: dict[ItemKey, Writer] = {}
        self._derived_first: dict[ItemKey, StoredItem] = {}
        self._newest: dict[ItemKey, str] = {}

    def write(self, writer: Writer, count: int) -> None:
        """Makes the next writes of a shard."""
        begin = len(writer.changes)
        for _ in range(min(count, len(writer.waiting))):
            given = writer.waiting.popleft()
            self._writer_of[given.item] = writer
            if self._newest.get(given.item, "") < given.identity_text:  # a recording may hold a record twice
                self._newest[given.item] = given.identity_text
                self.store.write_own(given, self._image(given))
        writer.changes[begin:] = arriving(writer.changes[begin:], self.choices)

    @property
    def waiting(self) -> list[Writer]:
        """The shards with pending writes of the application."""
        return [writer for writer in self.shards if writer.waiting]

    def _image(self, given: Change) -> StoredItem | None:
        """The item that is put: as given, or with attributes that handlers derived onto it before."""
        image, first = given.new.raw or None, self._derived_first.get(given.item)
        now = self.store.source(given.item)
        how = self.choices.choose("put", PUTS) if image and first else None
        derived = first if how == "put-back-old" else now
        if image is None or how is None or derived is None or DERIVED not in derived:
            return image
        self.log(f"{given.name} is put with attributes that were derived onto it, {how}")
        names = derived_names(derived) - ({DERIVED} if how == "put-back-unmarked" else set())
        return {**{name: derived[name] for name in sorted(names & derived.keys())}, **image}

    def _take(self, change: Change) -> None:
        if change.new and DERIVED in change.new.raw:
            self._derived_first.setdefault(change.item, change.new.raw)
        self._writer_of[change.item].changes.append(change)
