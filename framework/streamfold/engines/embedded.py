"""The embedded engine: SQLite from the standard library, in memory or in a file that survives a kill of the process.

It replaces the application's tables, their streams (of derived rows only) and the state table. Rows, state and stream
records are written in one SQLite transaction, so that chains run in a local replay as they do on AWS.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import finalize

from streamfold.engines.item_cache import UNKNOWN, KeptItem, KeptItems, KeptStates, kept_max
from streamfold.engines.keys import ItemOrRowKey, cursor_after, hash_of, hashes, start_after
from streamfold.engines.local_store import NEW_IMAGES, FoundItems, GuardedItems, page_of
from streamfold.engines.local_writes import LocalWrite
from streamfold.engines.own_stream import DerivedStream
from streamfold.engines.protocol import (
    Declared,
    Entries,
    Inserted,
    Page,
    ScanCursor,
    ScanPage,
    Segment,
    StoredItem,
    Wanted,
)
from streamfold.engines.state_file import ReplayProgress, StateFile
from streamfold.errors import EngineError
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import CONTRIBUTORS, STATE, VERSION, Table
from streamfold.records.change import ItemKey, item_key
from streamfold.records.kinesis import MICROSECONDS
from streamfold.records.sources import SourceImage, StoredSource, digest_of, kept
from streamfold.records.values import decode, encode, item_text, sortable
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import ENTRIES, DeleteSource, GuardedWrite, PutRow, RowKey, StateKey, UpdateSource

HIGHEST = "\U0010ffff"
BEHIND = "(pk, sk) > (:pk, :sk) AND (:whole OR hash_of(pk) BETWEEN :first AND :last)"
ROW_KEYS = f"SELECT pk, sk, item FROM items WHERE tbl = :tbl AND {BEHIND} AND item IS NOT NULL"  # noqa: S608 - constants
STATE_TABLES = ("state", "entries")
STATE_KEYS = " UNION ALL ".join(f"SELECT pk, sk, NULL FROM {table} WHERE {BEHIND}" for table in STATE_TABLES)  # noqa: S608 - constants
ALL_STATE = "SELECT pk, sk, item, NULL FROM state UNION ALL SELECT pk, sk, NULL, text FROM entries ORDER BY pk, sk"
PARTITIONS = " UNION ".join(f"SELECT pk FROM {table} WHERE pk >= :first AND pk < :end" for table in STATE_TABLES)  # noqa: S608 - constants
ITEMS_FROM = (
    "SELECT item FROM items WHERE tbl = ? AND pk >= ? AND pk < ? AND sk >= ? AND sk < ? "
    "AND (version IS NULL OR NOT ?) AND item IS NOT NULL ORDER BY pk, sk"
)

ROW = "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
STATE_ITEM = "SELECT item FROM state WHERE pk = ? AND sk = ?"
ENTRY = "SELECT text FROM entries WHERE pk = ? AND sk = ?"
SEVERAL = 64
"""Items that one statement reads. It is prepared for this number: the remaining items of a read are read one by one."""
ROWS = (
    f"SELECT i.tbl, i.pk, i.sk, i.item FROM (VALUES {', '.join(['(?, ?, ?)'] * SEVERAL)}) AS v CROSS JOIN items AS i "  # noqa: S608
    "ON i.tbl = v.column1 AND i.pk = v.column2 AND i.sk = v.column3"
)
STATE_ITEMS = (
    f"SELECT s.pk, s.sk, s.item FROM (VALUES {', '.join(['(?, ?)'] * SEVERAL)}) AS v CROSS JOIN state AS s "  # noqa: S608
    "ON s.pk = v.column1 AND s.sk = v.column2"
)
SEVERAL_ENTRIES = STATE_ITEMS.replace("s.item", "s.text").replace("JOIN state", "JOIN entries")
"""A cross join: it looks the values up by the index, and does not search the table for them."""

T = TypeVar("T")
NO_ITEM: tuple[KeptItem, int] = (None, 0)
PrimaryKey = tuple[str, ...]
"""The key of a row in the file: its key columns."""

KEY_COLUMNS = itemgetter(0, 1, 2)
PUT_ROW = (
    "INSERT INTO items (tbl, pk, sk, item) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET item = excluded.item, version = NULL"
)
INSERT_ROW = "INSERT INTO items (tbl, pk, sk, item) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
LAST_NUMBER = "SELECT coalesce(max(rowid), 0) FROM items"
NUMBER = "SELECT rowid FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
DELETE_ROW = "DELETE FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
PUT_STATE = "INSERT INTO state VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET item = excluded.item"
PUT_ENTRY = "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET text = excluded.text"
DELETE_ENTRY = "DELETE FROM entries WHERE pk = ? AND sk = ?"
DELETE_STATE = "DELETE FROM state WHERE pk = ? AND sk = ?"
CLOCK = "SELECT at FROM clock"
SET_CLOCK = "UPDATE clock SET at = max(at, ?)"
SET_SOURCE = (
    "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET item = excluded.item, "
    "version = excluded.version, at = excluded.at, before = excluded.before, exported = excluded.exported "
    "WHERE version IS NOT NULL"
)
"""A derived row has no version: no source item replaces it."""
PUT_SOURCE = f"{SET_SOURCE} AND version < excluded.version"
"""Of a state without an export: records compare by version."""
SOURCE = "SELECT version, item, at, before, exported FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
OLDER_SOURCES = (
    "SELECT item FROM items WHERE tbl = ? AND version IS NOT NULL AND item IS NOT NULL "
    "AND (at IS NULL OR at <= ?) ORDER BY pk, sk"
)
LOADED = "SELECT tbl, at FROM loaded"
SET_LOADED = "INSERT INTO loaded VALUES (?, ?) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)"


class StatePages(ABC):
    """The reads in order, over all that was written so far."""

    _file: StateFile

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        return self._items(table, partition)

    def items_from(self, table: Table, prefix: str, sort: str = "", *, derived: bool = False) -> Iterator[StoredItem]:
        """The items of a table whose key begins so. Skipped items are not parsed, and mostly not read."""
        values = (table.name, prefix, prefix + HIGHEST, sort, sort + HIGHEST, derived)
        return (self._file.item(text) for (text,) in self._asked(ITEMS_FROM, values))

    def source_items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        return self._items(table, partition, "AND version IS NOT NULL")

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
        within = "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk >= ? AND sk < ? AND item IS NOT NULL AND "
        query = within + ("sk < ? ORDER BY sk DESC LIMIT ?" if descending else "sk > ? ORDER BY sk LIMIT ?")
        first = HIGHEST if descending else ""
        bounds = (begins, begins + HIGHEST, first if after is None else sortable(after))
        rows = self._asked(query, (table.name, sortable(partition), *bounds, limit + 1))
        return page_of(table, self._file.items([text for (text,) in rows]), limit)

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        """A segment has the keys whose hash is in its range: reading ``n`` segments reads the keys ``n`` times."""
        first, end = hashes(segment)
        pk, sk = start_after(after)
        values = {"tbl": table.name, "pk": pk, "sk": sk, "whole": segment.of == 1, "first": first, "last": end - 1}
        query = f"{STATE_KEYS} UNION ALL {ROW_KEYS}" if table.name == STATE.name else ROW_KEYS
        rows = self._asked(f"{query} ORDER BY pk, sk LIMIT :most", {**values, "most": limit + 1})
        found = [(StateKey(pk, sk), text) for pk, sk, text in rows]
        keys = [self._scanned(table, key, text) for key, text in found[:limit]]
        return ScanPage(keys, cursor_after(found[limit - 1][0]) if len(found) > limit else None)

    def state_items(self) -> Iterator[StoredItem]:
        rows = self._asked(ALL_STATE)
        found = ((pk, sk, self._file.item(item) if entry is None else {"s": entry}) for pk, sk, item, entry in rows)
        return (encode({"pk": pk, "sk": sk, **attributes})["M"] for pk, sk, attributes in found)

    def state_partitions(self, prefix: str) -> list[str]:
        found = self._asked(f"{PARTITIONS} ORDER BY pk", {"first": prefix, "end": prefix + HIGHEST})
        return [pk for (pk,) in found]

    def _items(self, table: Table, partition: Any, only: str = "") -> Iterator[StoredItem]:
        where, values = ("AND pk = ?", (sortable(partition),)) if partition is not None else ("", ())
        query = f"SELECT item FROM items WHERE tbl = ? {where} {only} AND item IS NOT NULL ORDER BY pk, sk"  # noqa: S608 - constants
        return (self._file.item(text) for (text,) in self._asked(query, (table.name, *values)))

    def _scanned(self, table: Table, key: StateKey, text: str | None) -> ItemKey:
        """The key of a state item, or the key in a row's text: key columns do not have the spelling of a number."""
        if text is None:
            return (table.name, *key)
        item = self._file.item(text)
        return item_key({name: item[name] for name in table.attributes}, table)

    def _asked(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Iterator[Any]:
        # A query reads the file, so the changes of the batch have to be written first.
        self._write_changed()
        return self._file.rows(query, values)

    @abstractmethod
    def _write_changed(self) -> None:
        """Writes the changes of the batch."""


class StateReads(StatePages):
    """The reads of the engine protocol, from a state file.

    In a batch, each item is read once. The batch's changes are written before rows are read in order; entries are read
    together with their changes.
    """

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._in_batch = False
        self._rows: KeptItems[RowKey] = KeptItems()
        self._states = KeptStates()

    def read_state(
        self,
        keys: Iterable[StateKey],
        *,
        consistent: bool = False,  # noqa: ARG002 - it always is
    ) -> dict[StateKey, dict[str, Any]]:
        wanted = list(keys)
        self._expect(wanted)
        found = ((key, self._state(key)) for key in wanted)
        return {key: dict(item) for key, item in found if item is not None}

    def read_together(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        return self.read_state(keys)

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        del consistent  # writes can be read at once
        wanted = list(keys)
        self._expect(wanted)
        found = ((key, self._row(key)) for key in wanted)
        return {key: decode({"M": row}) for key, row in found if row is not None}

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        if not self._in_batch:
            return self._read_entries(wanted)
        entries, partition = self._states.entries, wanted.partition
        if not entries.knows(partition):
            most = kept_max(wanted.most)
            entries.take(partition, self._with_changed(Entries(partition, most + 1)), most)
        kept = entries.read(wanted)
        return self._with_changed(wanted) if kept is None else kept

    def _with_changed(self, wanted: Entries) -> list[tuple[str, str]]:
        """The entries of the file, as the batch has changed them since."""
        changed = self._states.changed_in(wanted.partition)
        if not changed:
            return self._read_entries(wanted)
        found = dict(self._read_entries(wanted._replace(most=wanted.most + len(changed))))
        for key in changed:
            item = self._states.changed[key]
            if item is None:
                found.pop(key.sk, None)
            elif wanted.after < key.sk < (wanted.before or HIGHEST):
                found[key.sk] = item.get("s", "")
        return sorted(found.items(), reverse=wanted.descending)[: wanted.most]

    def _read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        order = "DESC" if wanted.descending else "ASC"
        of_entries = wanted.partition.startswith(ENTRIES)
        table = "sk, text FROM entries" if of_entries else "sk, item FROM state"
        query = f"SELECT {table} WHERE pk = ? AND sk > ? AND sk < ? ORDER BY sk {order} LIMIT ?"
        found = self._file.all(query, (wanted.partition, wanted.after, wanted.before or HIGHEST, wanted.most))
        if of_entries:
            return found
        items = self._file.items([text for _, text in found])
        return [(key_in_file, item.get("s", "")) for (key_in_file, _), item in zip(found, items, strict=True)]

    def read_source(self, item: ItemKey) -> StoredItem | None:
        row = self._row(item)
        if row is None and not self._keeps_sources(item[0]):
            raise EngineError(
                f"The state holds no source items of table {item[0]!r}, so a missing item cannot be recognised. "
                "Replay the records instead, which keeps them beside its rows: streamfold replay FILES --state "
                f"FILE. {NEW_IMAGES}"
            )
        return row

    def _keeps_sources(self, table: str) -> bool:
        # Only a source image that was put has a version.
        query = "SELECT 1 FROM items WHERE tbl = ? AND version IS NOT NULL LIMIT 1"
        loaded = "SELECT 1 FROM loaded WHERE tbl = ?"  # an export may be empty
        return any(self._file.one(each, (table,)) is not None for each in (query, loaded))

    def _row(self, key: RowKey) -> KeptItem:
        if not self._in_batch:
            return self._read_row(key)[0]
        item = self._rows.get(key)
        if item is UNKNOWN:
            item, letters = self._read_row(key)
            self._rows.keep(key, item, letters)
        return item

    def _state(self, key: StateKey) -> KeptItem:
        if not self._in_batch:
            return self._read_state(key)[0]
        item = self._states.get(key)
        if item is UNKNOWN:
            item, letters = self._read_state(key)
            self._states.keep(key, item, letters)
        return item

    def _read_row(self, key: RowKey) -> tuple[KeptItem, int]:
        found = self._file.one(ROW, key_columns(key))
        return self._item(found[0] if found else None)

    def _read_state(self, key: StateKey) -> tuple[KeptItem, int]:
        if key.pk.startswith(ENTRIES):
            found = self._file.one(ENTRY, key)
            return ({"s": found[0]}, len(found[0])) if found else NO_ITEM
        found = self._file.one(STATE_ITEM, key)
        return self._item(found[0] if found else None)

    def _expect(self, keys: Collection[ItemOrRowKey]) -> None:
        """Reads items together that are asked for next, as far as they are not known; the last few, one by one."""
        if not self._in_batch:
            return
        rows, entries, states = list[RowKey](), list[StateKey](), list[StateKey]()
        for key in dict.fromkeys(keys):
            if not isinstance(key, StateKey):
                if self._rows.get(key) is UNKNOWN:
                    rows.append(key)
            elif self._states.get(key) is UNKNOWN:
                (entries if key.pk.startswith(ENTRIES) else states).append(key)
        for group in _several(rows):
            keys_in_file = [key_columns(key) for key in group]
            read = self._file.all(ROWS, list(chain.from_iterable(keys_in_file)))
            found = _items_of(self._file, [((table, pk, sk), text) for table, pk, sk, text in read])
            for row, key_in_file in zip(group, keys_in_file, strict=True):
                self._rows.keep(row, *found.get(key_in_file, NO_ITEM))
        for some in _several(states):
            read = self._file.all(STATE_ITEMS, list(chain.from_iterable(some)))
            self._keep_states(some, _items_of(self._file, [((pk, sk), text) for pk, sk, text in read]))
        for some in _several(entries):
            read = self._file.all(SEVERAL_ENTRIES, list(chain.from_iterable(some)))
            self._keep_states(some, {(pk, sk): ({"s": text}, len(text)) for pk, sk, text in read})

    def _keep_states(self, keys: Sequence[StateKey], found: Mapping[PrimaryKey, tuple[KeptItem, int]]) -> None:
        for key in keys:
            self._states.keep(key, *found.get(key, NO_ITEM))

    def _item(self, text: str | None) -> tuple[KeptItem, int]:
        return (self._file.item(text), len(text)) if text else (None, 0)

    def _write_changed(self) -> None:
        if self._rows.changed:
            self._write_rows()
        if self._states.changed:
            self._write_states()

    def _drop_all(self) -> None:
        self._rows.clear()
        self._states.clear()

    @abstractmethod
    def _write_rows(self) -> None:
        """Writes the rows that the batch has changed."""

    @abstractmethod
    def _write_states(self) -> None:
        """Writes the state items that the batch has changed."""


def key_columns(key: RowKey) -> tuple[str, str, str]:
    return key[0], sortable(key[1]), sortable(key[2])


def _source_row(item: ItemKey, source: StoredSource) -> tuple[Any, ...]:
    text = item_text(source.raw) if source.raw else None
    return (*key_columns(item), text, source.version, source.at, source.before, source.exported)


def _items_of(file: StateFile, read: Iterable[tuple[PrimaryKey, str | None]]) -> dict[PrimaryKey, tuple[KeptItem, int]]:
    """The items of stored texts, and the lengths of the texts; none for a key without a text."""
    texts = {key_in_file: text for key_in_file, text in read if text}
    items = file.items([*texts.values()])
    return {key_in_file: (item, len(text)) for (key_in_file, text), item in zip(texts.items(), items, strict=True)}


def _several(keys: Sequence[T]) -> Iterator[Sequence[T]]:
    # Complete groups only: the statement is prepared for ``SEVERAL`` keys, and the remaining ones are read one by one.
    return (keys[end - SEVERAL : end] for end in range(SEVERAL, len(keys) + 1, SEVERAL))


class EmbeddedEngine(StateReads, GuardedItems):
    """SQLite behind the engine protocol.

    ``tables``: the application, ``EmbeddedEngine(app)``, or its tables. ``path``: the file of the state; None for a
    state in memory. ``wanted``: the groups for which the own stream keeps the changes of a row, by default those whose
    handlers read it. ``actions_max``: the most writes in a transaction. With DynamoDB's limit, its limit of 4 MB
    applies too; with a larger one it does not.

    Each call is one SQLite transaction, and so is a ``batch`` with all of its calls.
    """

    def __init__(
        self,
        tables: Declared | Iterable[Table],
        path: str | Path | None = None,
        wanted: Wanted | None = None,
        *,
        actions_max: int = ACTIONS_MAX,
    ) -> None:
        GuardedItems.__init__(self, tables, wanted, actions_max)
        StateReads.__init__(self, StateFile(path))
        self.path = path
        self._file.create_function("hash_of", 1, hash_of, deterministic=True)
        self._stream: DerivedStream = DerivedStream(self._file)
        self.progress: ReplayProgress = ReplayProgress(self._file)
        finalize(self, self._file.close)  # Python 3.13 warns of a connection that nobody closed

    @property
    def durable(self) -> Self | None:
        return self if self.path else None

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Makes all calls inside one SQLite transaction: all of them take effect, or none if it raises. No other
        process can write meanwhile. Items are read once and written once, and are kept for the next batch unless
        another process has written between them.
        """
        try:
            with self._file.transaction():
                # Another process wrote since the last batch: kept items would hide its changes.
                if self._file.changed_by_others():
                    self._drop_all()
                self._in_batch = True
                yield
                self._write_out()
        except BaseException:
            # The file was rolled back: kept items and stream positions would claim writes that it does not have.
            self._drop_all()
            self._stream.drop()
            raise
        finally:
            self._in_batch = False

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        """Inserts rows. Nearly all rows of a history are new, so only rows that were not inserted are searched."""
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
                    texts[row.key] = (*key_columns(row.key), item_text(item))
            there = self._not_inserted(texts)
            return super().insert_rows([row for row in rows if row.key in there])

    def _not_inserted(self, texts: Mapping[RowKey, tuple[str, ...]]) -> Collection[RowKey]:
        """Inserts new rows, and returns the keys of others. Inserted rows get higher numbers than all before."""
        last = self._file.one(LAST_NUMBER, ())[0]
        if self._file.put_all(INSERT_ROW, [*texts.values()]) == len(texts):
            return ()
        return {key for key, (*key_in_file, _) in texts.items() if self._file.one(NUMBER, key_in_file)[0] <= last}

    # Beyond the protocol, for local replays: source images, and the stream of derived rows.

    def put_sources(self, images: Iterable[SourceImage | tuple[ItemKey, Mapping[str, Any] | None, str]]) -> None:
        with self._work():
            self._write_rows()
            by_version, loaded = [], self._loaded()
            for given in images:
                image = SourceImage(*given)
                self._rows.drop(image.item)
                if loaded or image.exported:
                    self._put_by_time(image, loaded)
                else:
                    new = StoredSource(image.version, image.raw, image.at, digest_of(image.old))
                    by_version.append(_source_row(image.item, new))
            by_version.sort(key=KEY_COLUMNS)  # neighbours in the file are written one after another
            self._file.executemany(PUT_SOURCE, by_version)

    def _put_by_time(self, image: SourceImage, loaded: Mapping[str, int]) -> None:
        if (new := kept(image, self._source(image.item, loaded))) is not None:
            self._file.execute(SET_SOURCE, _source_row(image.item, new))

    @property
    def has_exports(self) -> bool:
        return bool(self._loaded())

    def stored_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredSource]:
        loaded = self._loaded()
        found = ((item, self._source(item, loaded)) for item in items)
        return {item: stored for item, stored in found if stored is not None}

    def older_sources(self, table: Table, at: int) -> Iterator[StoredItem]:
        return (self._file.item(text) for (text,) in self._asked(OLDER_SOURCES, (table.name, at)))

    def covered_until(self, table: Table) -> int:
        return self._loaded().get(table.name, 0)

    def note_loaded(self, table: Table, at: int) -> None:
        with self._work():
            self._file.execute(SET_LOADED, (table.name, at))

    def source_seconds(self, item: ItemKey) -> float:
        found = self._file.one(SOURCE, key_columns(item))
        return (found[2] or 0) / MICROSECONDS if found else 0.0

    def _loaded(self) -> dict[str, int]:
        return dict(self._file.all(LOADED, ()))

    def _source(self, item: ItemKey, loaded: Mapping[str, int]) -> StoredSource | None:
        """The stored state of a source item. One that a full export of its table lacks is gone since its time."""
        found = self._file.one(SOURCE, key_columns(item))
        if found is None or found[0] is None:
            return StoredSource("", None, loaded[item[0]], "", exported=True) if loaded.get(item[0]) else None
        version, text, at, before, exported = found
        return StoredSource(version, self._file.item(text) if text else None, at, before, bool(exported))

    @property
    def clock_seconds(self) -> float:
        return float(self._file.one(CLOCK, ())[0])

    def advance_clock(self, seconds: float) -> None:
        if seconds > self.clock_seconds:
            with self._work():
                self._file.execute(SET_CLOCK, (seconds,))

    # Reads and changes of guarded writes.

    @contextmanager
    def _work(self) -> Iterator[None]:
        if self._in_batch:
            yield
            return
        with self.batch():
            yield
        self._drop_all()  # outside of batches, others may write at any time

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
                self._record(key, self._row(key), after, readers)
            self._rows.changed[key] = after

    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        self._write_rows()
        key_in_file, where = key_columns(write.key), "WHERE tbl = ? AND pk = ? AND sk = ?"
        text, version = self._file.one(f"SELECT item, version FROM items {where}", key_in_file)  # noqa: S608
        after, following = self._record_source(write, self._file.item(text), version or "")
        update = f"UPDATE items SET item = ?, version = ? {where}"  # noqa: S608 - constants
        self._file.execute(update, (after and item_text(after), following, *key_in_file))
        self._rows.drop(write.key)

    def _write_out(self) -> None:
        self._write_rows()
        self._write_states()
        self._stream.write_out()

    def _write_rows(self) -> None:
        changed, self._rows.changed = self._rows.changed, {}
        texts, gone = [], []
        for key, item in changed.items():
            key_in_file = key_columns(key)
            if item is None:
                gone.append(key_in_file)
                self._rows.keep(key, None, 0)
                continue
            text = item_text(item)
            texts.append((*key_in_file, text))
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
