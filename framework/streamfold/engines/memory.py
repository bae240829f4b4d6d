"""The engine of a replay that keeps nothing, and of proofs: plain dictionaries, gone with the process.

It does what the embedded engine does, with the same conditions (``streamfold.engines.applied``) and under the same
contract tests. It is faster, because nothing is written as text and read back.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from streamfold.engines import OWN_VERSION, Declared, Entries, Finished, OwnRecord, Page, StoredItem, Wanted, declared
from streamfold.engines.applied import (
    Attributes,
    is_empty,
    item_too_large,
    letters,
    refused_as_a_whole,
    row_after,
    state_after,
    without_left,
)
from streamfold.engines.conditions import revision_holds
from streamfold.engines.keys import key_attributes, key_too_long
from streamfold.engines.own_records import OwnRecords, change_of
from streamfold.engines.sources import carried_out, page_of, source_refusal
from streamfold.errors import EngineError, HandlerError
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE, Table
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.records.sortable import sortable
from streamfold.records.values import decode, encode
from streamfold.writes.guarded import (
    VALIDATION,
    DeleteSource,
    GuardedWrite,
    PutRow,
    Reason,
    RecomputedRow,
    Refused,
    RowKey,
    RowWrite,
    SourceWrite,
    StateKey,
    StateWrite,
    UpdateSource,
)

PlaceKey = RowKey | StateKey
NONE: tuple[str, StoredItem | None] = ("", None)
FoundItems = dict[PlaceKey, dict[str, Any] | None]


class MemoryEngine:
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
        known, self.wanted = declared(tables, wanted)
        self.tables = {table.name: table for table in (*known, STATE)}
        self.actions_max = actions_max
        self.rows: dict[RowKey, Attributes] = {}
        self.state: dict[StateKey, dict[str, Any]] = {}
        self.touched: set[PlaceKey] | None = None  # if a set: collects the keys that were written, for invariants
        self.source_tables: set[str] = set()
        self._places: dict[str, list[str]] = {}
        self._sources: dict[ItemKey, tuple[str, StoredItem | None]] = {}
        self._stream = OwnRecords()

    def close(self) -> None:
        """Nothing is held open."""

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        return refused_as_a_whole(writes, self.actions_max) or self._transact(writes, expires_at)

    def insert_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        return [row.key for row in rows if not self._is_there(row.key) and self._transact([row], 0)]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        removed = [key for key in dict.fromkeys(rows) if is_empty(self.rows.get(key))]
        self._apply(dict.fromkeys(removed))
        return removed

    def forget(self, finished: Finished) -> None:
        for key, texts in finished.items():
            if (item := without_left(texts, self.state.get(key))) is not None:
                self._apply({key: item})

    def read_state(
        self,
        keys: Iterable[StateKey],
        *,
        consistent: bool = False,  # noqa: ARG002 - it always is
    ) -> dict[StateKey, dict[str, Any]]:
        return {key: dict(self.state[key]) for key in keys if key in self.state}

    def read_rows(self, keys: Iterable[RowKey]) -> dict[RowKey, dict[str, Any]]:
        found = ((key, self.rows.get(key) or self._sources.get(key, NONE)[1]) for key in keys)
        return {key: decode({"M": row}) for key, row in found if row is not None}

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        places = self._places.get(wanted.partition, [])
        if wanted.after:
            end = bisect_right(places, wanted.before) if wanted.before else None
            places = places[bisect_right(places, wanted.after) : end]
        first = places[: -wanted.most - 1 : -1] if wanted.descending else places[: wanted.most]
        return [(place, self.state[StateKey(wanted.partition, place)]["s"]) for place in first]

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        fits = revision_holds(revision, self.state.get(key))
        if fits:
            self._apply({key: {**attributes, "r": revision + 1}})
        return fits

    def read_source(self, item: ItemKey) -> StoredItem | None:
        _, source = self._sources.get(item, ("", None))
        source = self.rows.get(item, source)
        if source is None and item[0] not in self.source_tables:
            raise EngineError(
                f"No source items of table {item[0]!r} were put, so it cannot be told whether an item is gone. "
                "A replay with --state FILE keeps them beside its rows."
            )
        return source

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        return self._sorted(key for key in self._keys(table) if partition in (None, key[1]))

    def page(self, table: Table, partition: KeyValue, begins: str, after: KeyValue | None, limit: int) -> Page:
        first = "" if after is None else sortable(after)
        keys = (key for key in self._keys(table) if key[1] == partition)
        wanted = [key for key in keys if sortable(key[2]).startswith(begins) and sortable(key[2]) > first]
        return page_of(table, list(islice(self._sorted(wanted), limit + 1)), limit)

    def items_from(self, table: Table, prefix: str) -> Iterator[StoredItem]:
        """The items of a table whose partition key begins with this text."""
        return self._sorted(key for key in self._keys(table) if sortable(key[1]).startswith(prefix))

    def state_items(self) -> Iterator[StoredItem]:
        return (encode({**key._asdict(), **item})["M"] for key, item in sorted(self.state.items()))

    def put_sources(self, images: Iterable[tuple[ItemKey, StoredItem | None, str]]) -> None:
        """Puts source images (None: removed) unless a newer one is stored. They make no stream records."""
        for key, image, version in images:
            known = self._sources.get(key)
            if known is None or known[0] < version:
                self._sources[key] = (version, image)
                self.source_tables.add(key[0])

    # The stream of derived rows, which chains read.

    def pending(self, limit: int) -> list[OwnRecord]:
        return self._stream.pending(limit)

    def advance(self, sequence: int, done: Collection[int]) -> None:
        self._stream.advance(sequence, done)

    def retry(self) -> None:
        self._stream.retry()

    def _keys(self, table: Table) -> Iterator[RowKey]:
        """The keys of the items of a table: of derived rows, and of source items that are there."""
        yield from (key for key in self.rows if key[0] == table.name)
        for key, (_, image) in self._sources.items():
            if key[0] == table.name and image is not None and key not in self.rows:
                yield key

    def _is_there(self, key: RowKey) -> bool:
        return key in self.rows or self._sources.get(key, NONE)[1] is not None

    def _sorted(self, keys: Iterable[RowKey]) -> Iterator[StoredItem]:
        for key in sorted(keys, key=lambda key: (sortable(key[1]), sortable(key[2]))):
            if (item := self.rows.get(key) or self._sources[key][1]) is not None:
                yield item

    def _transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        done: FoundItems = {}
        reasons = tuple(self._try(write, expires_at, done) for write in writes)
        if any(reasons):
            return Refused(reasons)
        self._apply(done)
        for write in writes:
            if isinstance(write, DeleteSource | UpdateSource):
                self._write_source(write)
        return None

    def _try(self, write: GuardedWrite, expires_at: int, done: FoundItems) -> Reason | None:
        """Adds the item after a write to ``done``, or returns why the write is refused."""
        if isinstance(write, SourceWrite):
            return source_refusal(write, self._sources.get(write.key, NONE)[1] or self.rows.get(write.key))
        try:
            after = self._after(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        if isinstance(after, Reason):
            return after
        if after is not None and (why := key_too_long(write.key) or item_too_large(write.key, after, letters(after))):
            return why
        done[write.key] = after
        return None

    def _after(self, write: StateWrite | RowWrite | RecomputedRow, expires_at: int) -> dict[str, Any] | Reason | None:
        if isinstance(write, StateWrite):
            return state_after(write, self.state.get(write.key), expires_at)
        return row_after(write, self.rows.get(write.key), self.tables[write.key[0]], expires_at)

    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        version, found = self._sources.get(write.key, NONE)
        keys = key_attributes(self.tables[write.key[0]], write.key)
        change, after = carried_out(write, keys, found or self.rows.get(write.key, {}), version)
        self._sources[write.key] = (change[OWN_VERSION], after)
        if self.wanted is not None and self.wanted(write.key):
            self._stream.add(change)

    def _apply(self, done: FoundItems) -> None:
        for key, after in done.items():
            if isinstance(key, StateKey):
                self._apply_state(key, after)
                continue
            if self.wanted is not None and self.wanted(key):
                self._emit(key, self.rows.get(key), after)
            if after is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = after
        if self.touched is not None:
            self.touched.update(done)

    def _apply_state(self, key: StateKey, after: dict[str, Any] | None) -> None:
        """Keeps the places of each partition sorted, because entries are read in order."""
        if after is None:
            if self.state.pop(key, None) is not None:
                places = self._places[key.pk]
                del places[bisect_left(places, key.sk)]
            return
        if key not in self.state:
            insort(self._places.setdefault(key.pk, []), key.sk)
        self.state[key] = after

    def _emit(self, key: RowKey, before: Attributes | None, after: Attributes | None) -> None:
        change = change_of(key[0], key_attributes(self.tables[key[0]], key), before, after)
        if change is not None:
            self._stream.add(change)
