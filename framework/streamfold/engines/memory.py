"""The engine of a replay without a file, and of proofs: plain dictionaries, which end with the process.

It does what the embedded engine does, with the same conditions (``streamfold.engines.local_writes``) and under the same
contract tests. It is faster, because items are never written as text and parsed.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, takewhile
from math import inf
from typing import Any

from streamfold.engines.keys import ItemOrRowKey, KeyOrder, cursor_after, stored_key
from streamfold.engines.local_store import NEW_IMAGES, FoundItems, GuardedItems, page_of
from streamfold.engines.protocol import (
    Declared,
    Entries,
    NamedTable,
    Page,
    ScanCursor,
    ScanPage,
    Segment,
    StoredItem,
    Wanted,
)
from streamfold.errors import EngineError
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE, Table, is_marker, is_writers
from streamfold.records.change import ItemKey
from streamfold.records.kinesis import MICROSECONDS
from streamfold.records.sources import SourceImage, StoredSource
from streamfold.records.values import decode, encode, sortable
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import DeleteSource, RowKey, StateKey, UpdateSource

NONE: tuple[str, StoredItem | None] = ("", None)
"""The entry of a source item that was never put: the version, the item."""

NO_CONTEXT = nullcontext()


class MemoryReads:
    """The reads of the engine protocol, from dictionaries."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, dict[str, Any]] = {}
        self.state: dict[StateKey, dict[str, Any]] = {}
        self.source_tables: set[str] = set()
        self._positions: dict[str, list[str]] = {}
        self._sources: dict[ItemKey, tuple[str, StoredItem | None]] = {}
        self._order: KeyOrder | None = None

    def read_state(
        self,
        keys: Iterable[StateKey],
        *,
        consistent: bool = False,  # noqa: ARG002 - it always is
    ) -> dict[StateKey, dict[str, Any]]:
        return {key: dict(self.state[key]) for key in keys if key in self.state}

    def read_together(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        return self.read_state(keys)

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        del consistent  # what is written can be read at once
        found = ((key, self.rows.get(key) or self._sources.get(key, NONE)[1]) for key in keys)
        return {key: decode({"M": row}) for key, row in found if row is not None}

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        positions = self._positions.get(wanted.partition, [])
        if wanted.after:
            end = bisect_left(positions, wanted.before) if wanted.before else None
            positions = positions[bisect_right(positions, wanted.after) : end]
        first = positions[: -wanted.most - 1 : -1] if wanted.descending else positions[: wanted.most]
        return [(position, self.state[StateKey(wanted.partition, position)].get("s", "")) for position in first]

    def read_source(self, item: ItemKey) -> StoredItem | None:
        source = self.rows.get(item, self._sources.get(item, NONE)[1])
        if source is None and item[0] not in self.source_tables:
            raise EngineError(
                f"No source items of table {item[0]!r} were put, so a missing item cannot be recognised. A replay "
                f"with --state FILE keeps them beside its rows. {NEW_IMAGES}"
            )
        return source

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        if partition is None:
            return self._sorted(self._keys(table))
        return map(self._item, self._in_partition(table, partition))

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
        behind = "" if after is None else sortable(after)
        keys = self._in_partition(table, partition, begins if descending else max(begins, behind))
        wanted: Iterator[RowKey] = takewhile(lambda key: sortable(key[2]).startswith(begins), keys)
        if descending:
            wanted = (key for key in reversed([*wanted]) if not behind or sortable(key[2]) < behind)
        found = (self._item(key) for key in wanted if descending or sortable(key[2]) > behind)
        return page_of(table, list(islice(found, limit + 1)), limit)

    def items_from(self, table: Table, prefix: str, sort: str = "", *, derived: bool = False) -> Iterator[StoredItem]:
        """The items of a table whose key begins so."""
        keys = (key for key in self.rows if key[0] == table.name) if derived else self._keys(table)
        found = (key for key in keys if sortable(key[1]).startswith(prefix))
        return self._sorted(key for key in found if sortable(key[2]).startswith(sort))

    def state_partitions(self, prefix: str) -> list[str]:
        return sorted(pk for pk in self._positions if pk.startswith(prefix) and self._positions[pk])

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        keys = self._in_order().walk(table.name, segment, after)
        found = list(islice(filter(self._is_kept, keys), limit + 1))
        items = [(STATE.name, *key) if isinstance(key, StateKey) else stored_key(key) for key in found[:limit]]
        return ScanPage(items, cursor_after(found[limit - 1]) if len(found) > limit else None)

    def state_items(self) -> Iterator[StoredItem]:
        return (encode({**key._asdict(), **item})["M"] for key, item in sorted(self.state.items()))

    def _in_partition(self, table: Table, partition: KeyValue, first: str = "") -> Iterator[RowKey]:
        """The keys of a partition's items in order, from a sort position on."""
        for key in self._in_order().partition(table.name, sortable(partition), first):
            if not isinstance(key, StateKey) and self._is_there(key):
                yield key

    def _in_order(self) -> KeyOrder:
        self._order = self._known_order() or KeyOrder(self.rows, self.state, self._sources)
        return self._order

    def _known_order(self) -> KeyOrder | None:
        # Only while the order is of the present dictionaries.
        return self._order if self._order and self._order.is_of(self.rows, self.state, self._sources) else None

    def _keys(self, table: Table) -> Iterator[RowKey]:
        """The keys of the items of a table: of derived rows, and of present source items."""
        yield from (key for key in self.rows if key[0] == table.name and not is_marker(key[1]))
        for key, (_, image) in self._sources.items():
            if key[0] == table.name and image is not None and key not in self.rows:
                yield key

    def _is_there(self, key: RowKey) -> bool:
        return key in self.rows or self._sources.get(key, NONE)[1] is not None

    def _is_kept(self, key: ItemOrRowKey) -> bool:
        return key in self.state if isinstance(key, StateKey) else self._is_there(key) and not is_marker(key[1])

    def _sorted(self, keys: Iterable[RowKey]) -> Iterator[StoredItem]:
        return map(self._item, sorted(keys, key=lambda key: (sortable(key[1]), sortable(key[2]))))

    def _item(self, key: RowKey) -> StoredItem:
        return self.rows.get(key) or self._sources[key][1] or {}


class MemoryEngine(MemoryReads, GuardedItems):
    """Dictionaries of rows (as DynamoDB attribute values) and of state items (as plain values).

    ``tables``, ``wanted`` and ``actions_max`` are those of ``EmbeddedEngine``. Stored values are never changed in
    place.
    """

    def __init__(
        self,
        tables: Declared | Iterable[Table],
        wanted: Wanted | None = None,
        *,
        actions_max: int = ACTIONS_MAX,
    ) -> None:
        GuardedItems.__init__(self, tables, wanted, actions_max)
        MemoryReads.__init__(self)
        self.named: Mapping[str, NamedTable] | None = None  # by logical name; set by tests that part rows and state
        self.touched: set[ItemOrRowKey] | None = None  # if a set: collects the keys that were written, for invariants
        self._source_times: dict[ItemKey, int] = {}  # of the newest record of each, epoch microseconds
        self.clock_seconds: float = 0.0

    @property
    def durable(self) -> None:
        """It keeps nothing."""

    @property
    def separate(self) -> "MemoryEngine | None":
        return None if self.named is None else self

    def real_name(self, logical: str) -> str:
        return self.named_table(logical).name

    def named_table(self, logical: str) -> NamedTable:
        assert self.named is not None, "asked of a store with separate tables"
        return self.named[logical]

    def latest_seconds(self) -> float:
        return inf  # it has no clock

    def close(self) -> None:
        """Nothing is held open."""

    def put_sources(self, images: Iterable[SourceImage | tuple[ItemKey, StoredItem | None, str]]) -> None:
        for given in images:
            image = SourceImage(*given)
            known = self._sources.get(image.item)
            if known is None or known[0] < image.version:
                self._sources[image.item] = (image.version, image.raw)
                self._source_times[image.item] = image.at or 0
                self.source_tables.add(image.item[0])

    def put_over_rows(self, images: Iterable[SourceImage | tuple[ItemKey, StoredItem | None, str]]) -> None:
        """Puts source images as their writer does on DynamoDB, also in the place of rows."""
        put = [SourceImage(*given) for given in images]
        self.put_sources(put)
        for image in put:
            if image.item in self.rows and is_writers(image.raw):
                del self.rows[image.item]

    @property
    def has_exports(self) -> bool:
        return False

    def stored_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredSource]:
        return {item: StoredSource(*self._sources[item]) for item in items if item in self._sources}

    def source_seconds(self, item: ItemKey) -> float:
        return self._source_times.get(item, 0) / MICROSECONDS

    def advance_clock(self, seconds: float) -> None:
        self.clock_seconds = max(self.clock_seconds, seconds)

    # Reads and changes of guarded writes.

    def _work(self) -> AbstractContextManager[None]:
        return NO_CONTEXT

    def _row(self, key: RowKey) -> Mapping[str, Any] | None:
        if (row := self.rows.get(key)) is not None:
            return row
        source = self._sources.get(key, NONE)[1]
        # A row may be a source too, of a fold that makes it anew.
        return source if source is not None and is_writers(source) else None

    def _state(self, key: StateKey) -> dict[str, Any] | None:
        return self.state.get(key)

    def _any(self, key: RowKey) -> Mapping[str, Any] | None:
        return self._sources.get(key, NONE)[1] or self.rows.get(key)

    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        version, found = self._sources.get(write.key, NONE)
        found = found or self.rows.get(write.key, {})
        after, following = self._record_source(write, found, version)
        self._sources[write.key] = (following, after)

    def _apply(self, done: FoundItems) -> None:
        order = self._known_order()
        new = [key for key in done if key not in self.rows and key not in self.state] if order is not None else ()
        for key, after in done.items():
            if isinstance(key, StateKey):
                self._apply_state(key, after)
                continue
            if readers := self._readers(key):
                self._record(key, self.rows.get(key), after, readers)
            if after is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = after
        if order is not None:
            order.add(new)
        if self.touched is not None:
            self.touched.update(done)

    def _apply_state(self, key: StateKey, after: dict[str, Any] | None) -> None:
        """Keeps the sort positions of each partition sorted, because entries are read in order."""
        if after is None:
            if self.state.pop(key, None) is not None:
                positions = self._positions[key.pk]
                del positions[bisect_left(positions, key.sk)]
            return
        if key not in self.state:
            insort(self._positions.setdefault(key.pk, []), key.sk)
        self.state[key] = after
