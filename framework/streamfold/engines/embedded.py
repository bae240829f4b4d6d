"""The embedded engine: SQLite from the standard library, in memory or in a file that survives a kill of the process.

It stands for the application's tables, their streams (of derived rows only) and the state table. Rows, state and
stream records are written in one SQLite transaction, so that chains run in a local replay as they do on AWS.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

from streamfold.engines import OWN_VERSION, Counter, Declared, Finished, OwnRecord, Wanted, declared
from streamfold.engines.applied import (
    Attributes,
    counted_up,
    is_empty,
    item_too_large,
    refused_as_a_whole,
    row_after,
    state_after,
    without_left,
)
from streamfold.engines.conditions import revision_holds
from streamfold.engines.derived_stream import DerivedStream
from streamfold.engines.embedded_reads import StateReads
from streamfold.engines.keys import key_attributes, key_too_long
from streamfold.engines.own_records import change_of
from streamfold.engines.sources import carried_out, source_refusal
from streamfold.engines.state_file import StateFile
from streamfold.errors import HandlerError
from streamfold.keys.table import STATE, Table
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.records.encoded import to_json
from streamfold.records.sortable import sortable
from streamfold.writes.guarded import (
    VALIDATION,
    AbsentSource,
    CounterWrite,
    DeleteRow,
    DeleteState,
    Guard,
    GuardedWrite,
    PutMirror,
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
    SwapState,
)

COMPARED = Guard | SwapState | CounterWrite | PutMirror | DeleteState
"""Writes of state items that depend on what is stored."""


class EmbeddedEngine(StateReads):
    """SQLite behind the engine protocol.

    tables: the application, ``EmbeddedEngine(app)``, or its tables.
    path: the file of the state; None for a state in memory.
    wanted: the rows whose changes the own stream keeps, by default those that a handler of the application reads.
    actions_max: the most writes in a transaction. DynamoDB's limit brings its limit of 4 MB too; a larger one does not.
    """

    def __init__(
        self,
        tables: Declared | Iterable[Table],
        path: str | Path | None = None,
        wanted: Wanted | None = None,
        *,
        actions_max: int = ACTIONS_MAX,
    ) -> None:
        known, self.wanted = declared(tables, wanted)
        self.tables = {table.name: table for table in (*known, STATE)}
        self.path = path
        self.actions_max = actions_max
        super().__init__(StateFile(path))
        self._stream = DerivedStream(self._file)
        finalize(self, self._file.close)  # Python 3.13 warns of a connection that nobody closed

    def close(self) -> None:
        self._file.close()

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        return refused_as_a_whole(writes, self.actions_max) or self._transact(writes, expires_at)

    def insert_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        with self._file.transaction():  # a row that is refused has written nothing
            return [row.key for row in rows if self._row(row.key) is None and self._try(row, 0)]

    def put_pairs(self, pairs: Sequence[PutPair]) -> list[RowKey]:
        with self._file.transaction():  # a row that is refused has written nothing
            return [pair.key for pair in pairs if self._try(pair, 0)]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        removed = []
        with self._file.transaction():
            for key in rows:
                row = self._row(key)
                if is_empty(row):
                    self._store(key, row, None)
                    removed.append(key)
        return removed

    def forget(self, finished: Finished) -> None:
        with self._file.transaction():
            for key, texts in finished.items():
                if (item := without_left(texts, self._state(key))) is not None:
                    self._put_state(key, item)

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        wanted = {counter.key: counter for counter in counters}
        with self._file.transaction():
            counted = {key: counted_up(each, self._state(key), start, expires_at) for key, each in wanted.items()}
            for key, item in counted.items():
                self._put_state(key, item)
        return counted

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        with self._file.transaction():
            fits = revision_holds(revision, self._state(key))
            if fits:
                self._put_state(key, {**attributes, "r": revision + 1})
        return fits

    # What the store of a local replay does beyond the protocol: source images, and the stream of derived rows.

    def put_sources(self, images: Iterable[tuple[ItemKey, Mapping[str, Any] | None, str]]) -> None:
        """Puts source images (None: removed) unless a newer one is stored. They make no stream records."""
        with self._file.transaction():
            self._file.executemany(
                "INSERT INTO items VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET item = excluded.item, "
                "version = excluded.version WHERE version < excluded.version",
                (
                    (key[0], sortable(key[1]), sortable(key[2]), to_json(raw) if raw else None, version)
                    for key, raw, version in images
                ),
            )

    def pending(self, limit: int) -> list[OwnRecord]:
        return self._stream.pending(limit)

    def advance(self, sequence: int, done: Collection[int]) -> None:
        with self._file.transaction():
            self._stream.advance(sequence, done)

    def retry(self) -> None:
        with self._file.transaction():
            self._stream.retry()

    def _transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        with self._file.transaction():
            reasons = tuple(self._try(write, expires_at) for write in writes)
            if any(reasons):
                self._file.execute("ROLLBACK")
                return Refused(reasons)
        return None

    def _try(self, write: GuardedWrite, expires_at: int) -> Reason | None:
        try:
            return self._write(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))

    def _write(self, write: GuardedWrite, expires_at: int) -> Reason | None:
        if isinstance(write, StateWrite):
            found = self._state(write.key) if isinstance(write, COMPARED) else None
            item = state_after(write, found, expires_at)
            return item if isinstance(item, Reason) else self._put_state(write.key, item)
        if isinstance(write, SourceWrite):
            return self._source(write)
        before = self._row(write.key) if self._depends(write) else None
        after = row_after(write, before, self.tables[write.key[0]], expires_at)
        return after if isinstance(after, Reason) else self._store(write.key, before, after)

    def _source(self, write: SourceWrite) -> Reason | None:
        refusal = source_refusal(write, self._row(write.key))
        if refusal is not None or isinstance(write, AbsentSource):
            return refusal
        place, where = (write.key[0], *map(sortable, write.key[1:])), "WHERE tbl = ? AND pk = ? AND sk = ?"
        text, version = self._file.one(f"SELECT item, version FROM items {where}", place)  # noqa: S608
        keys = key_attributes(self.tables[write.key[0]], write.key)
        change, after = carried_out(write, keys, self._file.item(text), version or "")
        update = f"UPDATE items SET item = ?, version = ? {where}"  # noqa: S608 - constants
        self._file.execute(update, (after and to_json(after), change[OWN_VERSION], *place))
        if self._is_wanted(write.key):
            self._stream.add(change)
        return None

    def _depends(self, write: RowWrite | RecomputedRow) -> bool:
        """Whether a write, or its stream record, depends on the stored row."""
        whole = isinstance(write, PutRow | DeleteRow) and write.owner is None
        return not whole or self._is_wanted(write.key)

    def _is_wanted(self, key: RowKey) -> bool:
        return self.wanted is not None and self.wanted(key)

    def _store(self, key: RowKey, before: Attributes | None, after: Attributes | None) -> Reason | None:
        place = (key[0], sortable(key[1]), sortable(key[2]))
        if after is None:
            self._file.execute("DELETE FROM items WHERE tbl = ? AND pk = ? AND sk = ?", place)
        else:
            text = to_json(after)
            if (why := key_too_long(key) or item_too_large(key, after, len(text))) is not None:
                return why
            self._file.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, NULL)", (*place, text))
        if self._is_wanted(key):
            change = change_of(key[0], key_attributes(self.tables[key[0]], key), before, after)
            if change is not None:
                self._stream.add(change)
        return None

    def _put_state(self, key: StateKey, item: Mapping[str, Any] | None) -> Reason | None:
        if item is None:
            self._file.execute("DELETE FROM state WHERE pk = ? AND sk = ?", key)
            return None
        text = to_json(item)
        if (why := key_too_long(key) or item_too_large(key, item, len(text))) is not None:
            return why
        self._file.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (*key, text))
        return None
