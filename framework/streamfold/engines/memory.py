"""The engine of a replay that keeps nothing, and of proofs: plain dictionaries, gone with the process.

It does what the embedded engine does, with the same conditions (``streamfold.engines.applied``) and under the same
contract tests. It is faster, because nothing is written as text and read back.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from streamfold.engines import (
    OWN_VERSION,
    Counter,
    Declared,
    Finished,
    OwnRecord,
    StoredItem,
    Wanted,
    declared,
)
from streamfold.engines.applied import (
    Attributes,
    counted_up,
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
from streamfold.engines.memory_reads import NONE, MemoryReads
from streamfold.engines.own_records import OwnRecords, change_of
from streamfold.engines.scans import PlaceKey
from streamfold.engines.sources import carried_out, source_refusal
from streamfold.errors import HandlerError
from streamfold.keys.table import STATE, Table
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.writes.guarded import (
    VALIDATION,
    DeleteSource,
    GuardedWrite,
    PutPair,
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

FoundItems = dict[PlaceKey, dict[str, Any] | None]


class MemoryEngine(MemoryReads):
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

    def close(self) -> None:
        """Nothing is held open."""

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        return refused_as_a_whole(writes, self.actions_max) or self._transact(writes, expires_at)

    def insert_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        return [row.key for row in rows if not self._is_there(row.key) and self._transact([row], 0)]

    def put_pairs(self, pairs: Sequence[PutPair]) -> list[RowKey]:
        return [pair.key for pair in pairs if self._transact([pair], 0)]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        removed = [key for key in dict.fromkeys(rows) if is_empty(self.rows.get(key))]
        self._apply(dict.fromkeys(removed))
        return removed

    def forget(self, finished: Finished) -> None:
        for key, texts in finished.items():
            if (item := without_left(texts, self.state.get(key))) is not None:
                self._apply({key: item})

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        wanted = {counter.key: counter for counter in counters}
        counted: FoundItems = {
            key: counted_up(each, self.state.get(key), start, expires_at) for key, each in wanted.items()
        }
        self._apply(counted)
        return self.read_state(wanted)

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        fits = revision_holds(revision, self.state.get(key))
        if fits:
            self._apply({key: {**attributes, "r": revision + 1}})
        return fits

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
        order = self._order if self._order and self._order.is_of(self.rows, self.state, self._sources) else None
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
        if order is not None:
            order.add(done)
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
