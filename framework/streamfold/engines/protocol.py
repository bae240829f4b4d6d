"""The protocol of the stores that carry out plans, and the types that its methods take and return."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import Table
from streamfold.records.change import ItemKey
from streamfold.writes.guarded import GuardedWrite, PutPostRow, PutRow, PutState, Refused, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.engines.state_file import ReplayProgress
    from streamfold.records.sources import SourceImage, StoredSource

StoredItem = Mapping[str, Any]
"""An item as stored: attribute names to DynamoDB attribute values, binary as bytes or base64 text."""
StateItems = Mapping[StateKey, dict[str, Any]]
"""State items as read, with Python values; absent items are missing."""


Finished = Mapping[StateKey, Mapping[str, str]]
"""Pending work of steps that is finished now: by ledger item and handler, the text in the item."""


Wanted = Callable[[RowKey], Collection[str]]
"""Gives the groups whose handlers read the changes of a row: an engine's own stream has a record for each group."""


class Declared(Protocol):
    """The attributes of an application (``App``) that an engine needs."""

    @property
    def tables(self) -> Mapping[str, Table]: ...

    def chains(self, row: RowKey) -> Collection[str]: ...


class Entries(NamedTuple):
    """Which entries of a partition to read."""

    partition: str
    most: int  # how many
    after: str = ""  # only sort positions greater than this
    descending: bool = False  # the largest sort positions first
    before: str = ""  # only sort positions less than this; with ``after``
    consistent: bool = True  # what was written can be read at once


class Counter(NamedTuple):
    """A state item whose number ``n`` is raised."""

    key: StateKey
    new: bool = False  # no item is expected, which saves a call; an existing item still decides
    expires: bool = True  # sets the time to live, which a new item always gets


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of inserting rows: the rows that were not inserted. Each other row is new."""

    missing: list[RowKey]  # rows that do not exist afterwards
    known: list[RowKey]  # rows that existed before, perhaps by a call whose response was lost
    refused: Mapping[RowKey, str] = field(default_factory=dict, compare=False)  # why the store never takes one


class Page(NamedTuple):
    """Some items of a partition."""

    items: Sequence[StoredItem]
    after: KeyValue | None  # the sort key after which the next page begins; None for the last page


ScanCursor = str
"""The cursor of a scan: a text that only the engine reads, and that may be stored."""


class Segment(NamedTuple):
    """A segment of a table, by a hash of the partition key."""

    number: int = 0  # from 0
    of: int = 1  # the number of segments


class ScanPage(NamedTuple):
    """Some keys of a table's segment."""

    keys: Sequence[ItemKey]  # none, perhaps, before the end too
    after: ScanCursor | None  # where the next page begins; None: the segment is read


class Engine(Protocol):
    """A store that declares its capabilities: no caller checks its type.

    Every method may raise ``EngineError`` (the store is missing or forbidden) and ``EngineUnavailable`` (the outcome is
    unknown; doing the same again is safe, because the guards decide).
    """

    @property
    def is_local(self) -> bool:
        """Whether the store is of this machine: one thread uses it, no stream of AWS delivers its changes, none of its
        calls is billed, and nothing else writes while a call reads.
        """
        ...

    @property
    def own_stream(self) -> "OwnStream | None":
        """The stream records of its own derived rows, if the store keeps them."""
        ...

    @property
    def by_prefix(self) -> "Seekable | None":
        """The store itself, if it finds items by the beginnings of their keys."""
        ...

    @property
    def durable(self) -> "KeptState | None":
        """The store itself, if it keeps a file of its own, with source items and the progress of replays."""
        ...

    @property
    def separate(self) -> "SeparateTables | None":
        """The store itself, if its rows and its state are tables of their own: one may be lost, restored or misnamed
        without the other.
        """
        ...

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        """Carries out all of the writes, or none and returns the reasons. ``expires_at``: epoch seconds, of writes that
        expire.
        """
        ...

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        """Inserts rows one by one, the first of each key. An existing row is not changed."""
        ...

    def insert_state(self, items: Sequence[PutState]) -> list[StateKey]:
        """Inserts state items one by one, without a time to live. An existing item is not changed.

        Returns the keys of the items that may be missing: their insertion was refused, or its outcome is unknown.
        """
        ...

    def put_post_rows(self, posts: Sequence[PutPostRow]) -> list[RowKey]:
        """Writes rows one by one, each under its own condition; returns the keys of refused rows. The caller writes
        these rows by ``transact``, whose refusal has the stored item.
        """
        ...

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """Removes the rows whose count of contributors is 0, and returns their keys."""
        ...

    def clear_pending(self, finished: Finished) -> None:
        """Removes pending work from ledger items, if an item still has exactly that text."""
        ...

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        """Raises the number ``n`` of state items by one, each item on its own; returns the items afterwards.

        An absent item begins with ``start + 1``. A repeated key is counted once. A counter is missing from the result
        if its item is busy at every try, or the outcome is unknown: then its number may be raised, even by more than
        one. Raises ``EngineUnavailable`` only if no call was answered.
        """
        ...

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        """The state items that exist, as plain values; eventually consistent by default."""
        ...

    def read_together(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        """The state items that exist, up to 100 of them as of one moment between transactions.

        Single reads may see one item of a transaction before another one (Developer Guide, transaction-apis).
        """
        ...

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        """The rows that exist, whole and as plain values; strongly consistent, unless that is not wanted."""
        ...

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        """Entries below a row: their sort positions and the texts of their values. It reads other state items with a
        text, too, such as claims: an item without a text has ``""``.
        """
        ...

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        """Writes a state item with the next revision if it has this one (0: no item); returns whether it did."""
        ...

    def read_source(self, item: ItemKey) -> StoredItem | None:
        """A source item as it is now, strongly consistent; None if there is none.

        Raises ``EngineError`` if the table is missing, may not be read, or was never kept in this store.
        """
        ...

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        """The source items that exist, as they are now, strongly consistent. Raises as ``read_source`` does."""
        ...

    def page(
        self,
        table: Table,
        partition: KeyValue,
        begins: str,
        after: KeyValue | None,
        limit: int,
        *,
        descending: bool = False,
    ) -> Page:
        """Some items of a partition in the order of their sort keys, strongly consistent.

        begins: only items whose sort key, a text, begins so; "" for all. after: only items with a greater sort key;
        None for all items. descending: the greatest sort key first; after: only items with a smaller one.
        """
        ...

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        """The items of a table, or of one partition of it, sorted by key where the store can."""
        ...

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        """Some keys of a table's segment, strongly consistent: source items and derived rows alike.

        A key that exists during the whole scan is in exactly one page of one segment. A key that is written or removed
        during the scan is in one page or in none. ``STATE`` has the keys of the state items. after: the cursor of the
        page before; None for the first page.
        """
        ...

    def state_items(self) -> Iterator[StoredItem]: ...

    def close(self) -> None: ...


OWN_VERSION = "version"
"""The attribute of an own stream's record that holds the version, if a cascade removed or updated a source item."""


class OwnRecord(NamedTuple):
    """A record of an engine's own stream of derived rows."""

    sequence: int  # its position in the stream
    record: dict[str, Any]


class ItemTimes:
    """The times of a batch's records by item, and the greatest of those that were folded into each row; epoch seconds.

    Unknown times are 0. The change of a row in the own stream gets the time of its row: were it that of another record
    of the batch, or of this machine, a feed would take the posts of an old recording for expired.
    """

    def __init__(self) -> None:
        self._items: dict[ItemKey, float] = {}
        self._rows: dict[RowKey | StateKey, float] = {}

    def note(self, item: ItemKey, seconds: float) -> None:
        if seconds > self._items.get(item, 0.0):
            self._items[item] = seconds

    def of(self, item: ItemKey) -> float:
        return self._items.get(item, 0.0)

    def fold(self, seconds: float, rows: Iterable[RowKey | StateKey]) -> None:
        """Notes that records up to this time are folded into rows."""
        if seconds:
            for row in rows:
                self._rows[row] = max(self._rows.get(row, 0.0), seconds)

    def of_row(self, row: RowKey | StateKey) -> float:
        return self._rows.get(row, 0.0)

    def clear(self) -> None:
        self._items.clear()
        self._rows.clear()


class OwnStream(Protocol):
    """The stream records of an engine's own derived rows, so that chains run without AWS.

    Each group of handlers has a queue of its own, with the records that its handlers read. A call is for one group, or
    for all groups together (None).
    """

    item_times: ItemTimes  # from which its records get their times

    @property
    def clock_seconds(self) -> float:
        """The clock of the state: the greatest time of the records that came, epoch seconds; 0: none had one."""
        ...

    def advance_clock(self, seconds: float) -> None:
        """Sets the clock of the state forward. An earlier time changes nothing."""
        ...

    @property
    def has_exports(self) -> bool:
        """Whether an export was loaded: its items have no versions, and compare by time."""
        ...

    def put_sources(self, images: "Iterable[SourceImage]") -> None:
        """Puts source images (None: removed) unless a newer one is stored. They make no stream records."""
        ...

    def stored_sources(self, items: Iterable[ItemKey]) -> "dict[ItemKey, StoredSource]":
        """The stored states of source items, also of those whose absence an export shows."""
        ...

    def source_seconds(self, item: ItemKey) -> float:
        """The time of the newest change of a source item, epoch seconds; 0 if it is not known."""
        ...

    def pending(self, limit: int, group: str | None = None) -> list[OwnRecord]:
        """The first records that were not processed yet."""
        ...

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        """Stores the position up to which records were read, and drops records that are ``done``."""
        ...

    def retry(self, group: str | None = None) -> None:
        """Makes the records that failed pending again."""
        ...


class Seekable(Protocol):
    """An engine that finds items by the beginnings of their keys."""

    def items_from(self, table: Table, prefix: str, sort: str = "", *, derived: bool = False) -> Iterator[StoredItem]:
        """The items of a table whose keys begin with these texts, sorted; with ``derived`` only derived rows."""
        ...

    def state_partitions(self, prefix: str) -> list[str]:
        """The partition keys of state items that begin with this text."""
        ...


class NamedTable(NamedTuple):
    """A table as the service knows it."""

    name: str
    id: str | None  # None where it may not be asked for


class SeparateTables(Engine, Protocol):
    """A store of several tables, the state among them."""

    def real_name(self, logical: str) -> str:
        """The real name of a table; ``STATE.name`` is the state."""
        ...

    def latest_seconds(self) -> float:
        """The present time by the store's answers, epoch seconds; infinite before it gave one that has its time."""
        ...

    def named_table(self, logical: str) -> NamedTable:
        """The real name and the id of a table, which is asked for."""
        ...


class KeptState(Engine, OwnStream, Protocol):
    """A store with an own stream and a file, which has source items and the progress of unfinished replays."""

    wanted: Wanted | None
    progress: "ReplayProgress"

    def batch(self) -> AbstractContextManager[None]:
        """Surrounds calls of which all take effect, or none if it raises; no other process can write meanwhile."""
        ...

    def source_items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        """The source items of a table, or of one partition of it, without derived rows."""
        ...

    def older_sources(self, table: Table, at: int) -> Iterator[StoredItem]:
        """The source items of a table that were last written until a time, epoch microseconds, or at an unknown one."""
        ...

    def covered_until(self, table: Table) -> int:
        """The time up to which loaded exports show a whole table, epoch microseconds; 0: none does."""
        ...

    def note_loaded(self, table: Table, at: int) -> None:
        """Notes up to which time loaded exports show a whole table; 0: they show some of its items."""
        ...
