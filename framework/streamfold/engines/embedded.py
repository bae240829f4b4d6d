"""The embedded engine: SQLite from the standard library, in memory or in a file that survives a kill of the process.

It stands for the application's tables, their streams (of derived rows only) and the state table. Rows, state and
stream records are written in one SQLite transaction, so that chains run in a local replay as they do on AWS.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, Self
from weakref import finalize

from streamfold.engines import OWN_VERSION, Declared, Inserted, OwnRecord, Wanted, declared
from streamfold.engines.derived_stream import DerivedStream
from streamfold.engines.embedded_reads import StateReads, place_of
from streamfold.engines.kept_items import KeptItem
from streamfold.engines.keys import key_attributes
from streamfold.engines.local_store import FoundItems, GuardedItems, carried_out
from streamfold.engines.local_writes import LocalWrite
from streamfold.engines.own_records import change_of
from streamfold.engines.progress import ReplayProgress
from streamfold.engines.state_file import StateFile
from streamfold.keys.table import CONTRIBUTORS, STATE, VERSION, Table
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import ItemKey
from streamfold.records.encoded import item_text
from streamfold.writes.guarded import ENTRIES, DeleteSource, GuardedWrite, PutRow, RowKey, StateKey, UpdateSource

PLACE = itemgetter(0, 1, 2)
PUT_ROW = "INSERT INTO items VALUES (?, ?, ?, ?, NULL) ON CONFLICT DO UPDATE SET item = excluded.item, version = NULL"
INSERT_ROW = "INSERT INTO items VALUES (?, ?, ?, ?, NULL) ON CONFLICT DO NOTHING"
LAST_NUMBER = "SELECT coalesce(max(rowid), 0) FROM items"
NUMBER = "SELECT rowid FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
DELETE_ROW = "DELETE FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
PUT_STATE = "INSERT INTO state VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET item = excluded.item"
PUT_ENTRY = "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET text = excluded.text"
DELETE_ENTRY = "DELETE FROM entries WHERE pk = ? AND sk = ?"
DELETE_STATE = "DELETE FROM state WHERE pk = ? AND sk = ?"
PUT_SOURCE = (
    "INSERT INTO items VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET item = excluded.item, "
    "version = excluded.version WHERE version < excluded.version"
)


class EmbeddedEngine(StateReads, GuardedItems):
    """SQLite behind the engine protocol.

    tables: the application, ``EmbeddedEngine(app)``, or its tables.
    path: the file of the state; None for a state in memory.
    wanted: the groups for which the own stream keeps the changes of a row, by default those whose handlers read it.
    actions_max: the most writes in a transaction. DynamoDB's limit brings its limit of 4 MB too; a larger one does not.

    Each call is one SQLite transaction, and so is all that is done in a ``batch``.
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
        self.progress = ReplayProgress(self._file)
        finalize(self, self._file.close)  # Python 3.13 warns of a connection that nobody closed

    @property
    def durable(self) -> Self | None:
        return self if self.path else None

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Does what is called inside in one SQLite transaction: all of it is there afterwards, or nothing if it raises.

        Nobody else can write meanwhile. Items are read once and written once, and what was read is kept for the next
        batch unless another process has written between them.
        """
        try:
            with self._file.transaction():
                if self._file.changed_by_others():
                    self._forget_all()
                self._in_batch = True
                yield
                self._write_out()
        except BaseException:
            self._forget_all()
            self._stream.forget()
            raise
        finally:
            self._in_batch = False

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        """Inserts rows. Nearly all of a history are new, so only those that were not inserted are looked for."""
        with self._work():
            texts = dict[RowKey, tuple[str, ...]]()
            for row in rows:
                done: FoundItems = {}
                local = self._local(row)
                known = row.key in self._rows.changed or self._depends(row, local)
                if known or self._try(row, local, 0, done) is not None:
                    return super().insert_rows(rows)  # as nothing was written yet
                if (item := done[row.key]) is not None and row.key not in texts:
                    self._rows.drop(row.key)
                    # At once: later it is not in the processor's cache.
                    texts[row.key] = (*place_of(row.key), item_text(item))
            there = self._not_inserted(texts)
            return super().insert_rows([row for row in rows if row.key in there])

    def _not_inserted(self, texts: Mapping[RowKey, tuple[str, ...]]) -> Collection[RowKey]:
        """Inserts new rows, and returns the keys of others. What is inserted gets higher numbers than all before."""
        last = self._file.one(LAST_NUMBER, ())[0]
        if self._file.put_all(INSERT_ROW, [*texts.values()]) == len(texts):
            return ()
        return {key for key, (*place, _) in texts.items() if self._file.one(NUMBER, place)[0] <= last}

    # What the store of a local replay does beyond the protocol: source images, and the stream of derived rows.

    def put_sources(self, images: Iterable[tuple[ItemKey, Mapping[str, Any] | None, str]]) -> None:
        """Puts source images (None: removed) unless a newer one is stored. They make no stream records."""
        with self._work():
            self._write_rows()
            places = []
            for key, raw, version in images:
                self._rows.drop(key)
                places.append((*place_of(key), item_text(raw) if raw else None, version))
            places.sort(key=PLACE)  # neighbours in the file are written one after another
            self._file.executemany(PUT_SOURCE, places)

    def pending(self, limit: int, group: str | None = None) -> list[OwnRecord]:
        return self._stream.pending(limit, group)

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        with self._work():
            self._stream.advance(sequence, done, group)

    def retry(self, group: str | None = None) -> None:
        with self._work():
            self._stream.retry(group)

    # What the guarded writes ask and do.

    @contextmanager
    def _work(self) -> Iterator[None]:
        if self._in_batch:
            yield
            return
        with self.batch():
            yield
        self._forget_all()  # outside of batches, others may write at any time

    def _look_ahead(self, writes: Sequence[GuardedWrite], local: Sequence[LocalWrite]) -> None:
        self._expect([write.key for write, how in zip(writes, local, strict=True) if self._depends(write, how)])

    def _any(self, key: RowKey) -> Mapping[str, Any] | None:
        return self._row(key)

    def _apply(self, done: FoundItems) -> None:
        for key, after in done.items():
            if isinstance(key, StateKey):
                self._states.change(key, after)
                continue
            if readers := self._readers(key):
                change = change_of(key[0], key_attributes(self.tables[key[0]], key), self._row(key), after)
                if change is not None:
                    self._stream.add(change, readers)
            self._rows.changed[key] = after

    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        self._write_rows()
        place, where = place_of(write.key), "WHERE tbl = ? AND pk = ? AND sk = ?"
        text, version = self._file.one(f"SELECT item, version FROM items {where}", place)  # noqa: S608
        change, after = carried_out(write, self.tables[write.key[0]], self._file.item(text), version or "")
        update = f"UPDATE items SET item = ?, version = ? {where}"  # noqa: S608 - constants
        self._file.execute(update, (after and item_text(after), change[OWN_VERSION], *place))
        self._rows.drop(write.key)
        self._stream.add(change, self._readers(write.key))

    def _write_out(self) -> None:
        self._write_rows()
        self._write_states()
        self._stream.write_out()

    def _write_rows(self) -> None:
        changed, self._rows.changed = self._rows.changed, {}
        texts, gone = [], []
        for key, item in changed.items():
            place = place_of(key)
            if item is None:
                gone.append(place)
                self._rows.keep(key, None, 0)
                continue
            text = item_text(item)
            texts.append((*place, text))
            if CONTRIBUTORS in item or VERSION in item:
                self._rows.keep(key, item, len(text))
            else:  # such as a row of a history, which is written once
                self._rows.drop(key)
        self._file.put_all(PUT_ROW, texts)
        self._file.put_all(DELETE_ROW, gone)

    def _write_states(self) -> None:
        entries, texts, gone = dict[StateKey, KeptItem](), [], []
        for key, item in self._states.take().items():
            if key.pk.startswith(ENTRIES):
                entries[key] = item
            elif item is None:
                gone.append(key)
                self._states.drop(key)
            else:
                text = item_text(item)
                texts.append((*key, text))
                self._states.keep(key, item, len(text))
        self._write_entries(entries)
        self._file.put_all(PUT_STATE, texts)
        self._file.put_all(DELETE_STATE, gone)

    def _write_entries(self, entries: Mapping[StateKey, KeptItem]) -> None:
        for key in entries:
            self._states.drop(key)  # it is read in the order of entries, and not by its key
        self._file.put_all(PUT_ENTRY, [(*key, item["s"]) for key, item in entries.items() if item is not None])
        self._file.put_all(DELETE_ENTRY, [key for key, item in entries.items() if item is None])
