"""The engine of a replay that keeps nothing, and of proofs: plain dictionaries, gone with the process.

It does what the embedded engine does, with the same conditions (``streamfold.engines.local_writes``) and under the same
contract tests. It is faster, because nothing is written as text and read back.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from streamfold.engines import OWN_VERSION, Declared, OwnRecord, StoredItem, Wanted, declared
from streamfold.engines.keys import key_attributes
from streamfold.engines.local_store import Attributes, FoundItems, GuardedItems, carried_out
from streamfold.engines.memory_reads import NONE, MemoryReads
from streamfold.engines.own_records import OwnRecords, change_of
from streamfold.keys.table import STATE, Table
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.writes.guarded import DeleteSource, RowKey, StateKey, UpdateSource

if TYPE_CHECKING:
    from streamfold.engines.scans import PlaceKey

ALONE = nullcontext()


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
        known, self.wanted = declared(tables, wanted)
        super().__init__({table.name: table for table in (*known, STATE)})
        self.actions_max = actions_max
        self.touched: set[PlaceKey] | None = None  # if a set: collects the keys that were written, for invariants
        self._stream = OwnRecords()

    @property
    def durable(self) -> None:
        """It keeps nothing."""

    def close(self) -> None:
        """Nothing is held open."""

    def put_sources(self, images: Iterable[tuple[ItemKey, StoredItem | None, str]]) -> None:
        """Puts source images (None: removed) unless a newer one is stored. They make no stream records."""
        for key, image, version in images:
            known = self._sources.get(key)
            if known is None or known[0] < version:
                self._sources[key] = (version, image)
                self.source_tables.add(key[0])

    # The stream of derived rows, which chains read.

    def pending(self, limit: int, group: str | None = None) -> list[OwnRecord]:
        return self._stream.pending(limit, group)

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        self._stream.advance(sequence, done, group)

    def retry(self, group: str | None = None) -> None:
        self._stream.retry(group)

    # What the guarded writes ask and do.

    def _work(self) -> AbstractContextManager[None]:
        return ALONE

    def _row(self, key: RowKey) -> Attributes | None:
        return self.rows.get(key)

    def _state(self, key: StateKey) -> dict[str, Any] | None:
        return self.state.get(key)

    def _any(self, key: RowKey) -> Mapping[str, Any] | None:
        return self._sources.get(key, NONE)[1] or self.rows.get(key)

    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        version, found = self._sources.get(write.key, NONE)
        found = found or self.rows.get(write.key, {})
        change, after = carried_out(write, self.tables[write.key[0]], found, version)
        self._sources[write.key] = (change[OWN_VERSION], after)
        self._stream.add(change, self._readers(write.key))

    def _apply(self, done: FoundItems) -> None:
        order = self._known_order()
        new = [key for key in done if key not in self.rows and key not in self.state] if order is not None else ()
        for key, after in done.items():
            if isinstance(key, StateKey):
                self._apply_state(key, after)
                continue
            if readers := self._readers(key):
                self._emit(key, self.rows.get(key), after, readers)
            if after is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = after
        if order is not None:
            order.add(new)
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

    def _emit(self, key: RowKey, before: Attributes | None, after: Attributes | None, readers: Collection[str]) -> None:
        change = change_of(key[0], key_attributes(self.tables[key[0]], key), before, after)
        if change is not None:
            self._stream.add(change, readers)
