"""What the embedded engine reads: state items, rows, entries, and the items of source tables."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from streamfold.engines import Entries, Page, ScanPage, ScanPlace, Segment, StoredItem
from streamfold.engines.kept_entries import kept_max
from streamfold.engines.kept_items import UNKNOWN, KeptItem, KeptItems, KeptStates
from streamfold.engines.scans import PlaceKey, hashes, place_after, start_after
from streamfold.engines.sources import NEW_IMAGES, page_of
from streamfold.engines.state_file import StateFile
from streamfold.errors import EngineError
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE, Table
from streamfold.records.change import ItemKey, item_key
from streamfold.records.sortable import sortable
from streamfold.records.values import decode, encode
from streamfold.writes.guarded import RowKey, StateKey

HIGHEST = "\U0010ffff"
BEHIND = "(pk, sk) > (:pk, :sk) AND (:whole OR hash_of(pk) BETWEEN :first AND :last)"
ROW_KEYS = f"SELECT pk, sk, item FROM items WHERE tbl = :tbl AND {BEHIND} AND item IS NOT NULL"  # noqa: S608 - constants
STATE_KEYS = f"SELECT pk, sk, NULL FROM state WHERE {BEHIND}"  # noqa: S608 - constants
ROW = "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
STATE_ITEM = "SELECT item FROM state WHERE pk = ? AND sk = ?"
ITEMS_FROM = (
    "SELECT item FROM items WHERE tbl = ? AND pk >= ? AND pk < ? AND sk >= ? AND sk < ? "
    "AND (version IS NULL OR NOT ?) AND item IS NOT NULL ORDER BY pk, sk"
)
SEVERAL = 64
"""Items that one statement reads. It is prepared for this number: what is left of a read is read one by one."""
ROWS = (
    f"SELECT i.tbl, i.pk, i.sk, i.item FROM (VALUES {', '.join(['(?, ?, ?)'] * SEVERAL)}) AS v CROSS JOIN items AS i "  # noqa: S608
    "ON i.tbl = v.column1 AND i.pk = v.column2 AND i.sk = v.column3"
)
STATE_ITEMS = (
    f"SELECT s.pk, s.sk, s.item FROM (VALUES {', '.join(['(?, ?)'] * SEVERAL)}) AS v CROSS JOIN state AS s "  # noqa: S608
    "ON s.pk = v.column1 AND s.sk = v.column2"
)
"""A cross join: it looks the values up by the index, and does not search the table for them."""

T = TypeVar("T")
NO_ITEM: tuple[KeptItem, int] = (None, 0)
PlaceText = tuple[str, ...]
"""A place in the file: the columns of its key."""


class StateReads(ABC):
    """The reads of the engine protocol, from a state file.

    In a batch, each item is read once. What the batch has changed is written before rows are read in order; entries are
    read with what has changed.
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

    def read_rows(self, keys: Iterable[RowKey]) -> dict[RowKey, dict[str, Any]]:
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
                found[key.sk] = item["s"]
        return sorted(found.items(), reverse=wanted.descending)[: wanted.most]

    def _read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        order = "DESC" if wanted.descending else "ASC"
        where = "pk = ? AND sk > ? AND sk < ?"
        query = f"SELECT sk, item FROM state WHERE {where} ORDER BY sk {order} LIMIT ?"  # noqa: S608 - constants
        found = self._file.all(query, (wanted.partition, wanted.after, wanted.before or HIGHEST, wanted.most))
        items = self._file.items([text for _, text in found])
        return [(place, item["s"]) for (place, _), item in zip(found, items, strict=True)]

    def read_source(self, item: ItemKey) -> StoredItem | None:
        row = self._row(item)
        if row is None and not self._keeps_sources(item[0]):
            raise EngineError(
                f"The state holds no source items of table {item[0]!r}, so it cannot be told whether an item is gone. "
                "Replay the records instead, which keeps them beside its rows: streamfold replay FILES --state FILE. "
                f"{NEW_IMAGES}"
            )
        return row

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return {item: source for item in items if (source := self.read_source(item)) is not None}

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        return self._items(table, partition)

    def items_from(self, table: Table, prefix: str, sort: str = "", *, derived: bool = False) -> Iterator[StoredItem]:
        """The items of a table whose key begins so. Those that are passed over are not parsed, nor mostly read."""
        values = (table.name, prefix, prefix + HIGHEST, sort, sort + HIGHEST, derived)
        return (self._file.item(text) for (text,) in self._asked(ITEMS_FROM, values))

    def source_items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        """The source items of a table, or of one partition of it, without derived rows."""
        return self._items(table, partition, "AND version IS NOT NULL")

    def page(self, table: Table, partition: KeyValue, begins: str, after: KeyValue | None, limit: int) -> Page:
        query = (
            "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk >= ? AND sk < ? AND sk > ? AND item IS NOT NULL "
            "ORDER BY sk LIMIT ?"
        )
        bounds = (begins, begins + HIGHEST, "" if after is None else sortable(after))
        rows = self._asked(query, (table.name, sortable(partition), *bounds, limit + 1))
        return page_of(table, [self._file.item(text) for (text,) in rows], limit)

    def scan(self, table: Table, part: Segment, after: ScanPlace | None, limit: int) -> ScanPage:
        """A segment is the keys whose hash fits, among all: reading ``n`` segments reads the keys ``n`` times."""
        first, end = hashes(part)
        pk, sk = start_after(after)
        values = {"tbl": table.name, "pk": pk, "sk": sk, "whole": part.of == 1, "first": first, "last": end - 1}
        query = f"{STATE_KEYS} UNION ALL {ROW_KEYS}" if table.name == STATE.name else ROW_KEYS
        rows = self._asked(f"{query} ORDER BY pk, sk LIMIT :most", {**values, "most": limit + 1})
        found = [(StateKey(pk, sk), text) for pk, sk, text in rows]
        keys = [self._scanned(table, key, text) for key, text in found[:limit]]
        return ScanPage(keys, place_after(found[limit - 1][0]) if len(found) > limit else None)

    def state_items(self) -> Iterator[StoredItem]:
        rows = self._asked("SELECT pk, sk, item FROM state ORDER BY pk, sk")
        return (encode({"pk": pk, "sk": sk, **self._file.item(text)})["M"] for pk, sk, text in rows)

    def state_partitions(self, prefix: str) -> list[str]:
        """The partition keys of state items that begin with this text."""
        query = "SELECT DISTINCT pk FROM state WHERE pk >= ? AND pk < ? ORDER BY pk"
        return [pk for (pk,) in self._asked(query, (prefix, prefix + HIGHEST))]

    def _items(self, table: Table, partition: Any, only: str = "") -> Iterator[StoredItem]:
        where, values = ("AND pk = ?", (sortable(partition),)) if partition is not None else ("", ())
        query = f"SELECT item FROM items WHERE tbl = ? {where} {only} AND item IS NOT NULL ORDER BY pk, sk"  # noqa: S608 - constants
        return (self._file.item(text) for (text,) in self._asked(query, (table.name, *values)))

    def _scanned(self, table: Table, key: StateKey, text: str | None) -> ItemKey:
        """The key of a state item, or that in the text of a row: of a number, the place does not tell its spelling."""
        if text is None:
            return (table.name, *key)
        item = self._file.item(text)
        return item_key({name: item[name] for name in table.attributes}, table)

    def _keeps_sources(self, table: str) -> bool:
        """Whether a source image of the table was ever put; only those have a version."""
        query = "SELECT 1 FROM items WHERE tbl = ? AND version IS NOT NULL LIMIT 1"
        return self._file.one(query, (table,)) is not None

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
        found = self._file.one(ROW, place_of(key))
        return self._item(found[0] if found else None)

    def _read_state(self, key: StateKey) -> tuple[KeptItem, int]:
        found = self._file.one(STATE_ITEM, key)
        return self._item(found[0] if found else None)

    def _expect(self, keys: Collection[PlaceKey]) -> None:
        """Reads items together that are asked for next, as far as they are not known; the last few, one by one."""
        if not self._in_batch:
            return
        kept, rows, states = self._states, list[RowKey](), list[StateKey]()
        for key in dict.fromkeys(keys):
            if not isinstance(key, StateKey):
                if self._rows.get(key) is UNKNOWN:
                    rows.append(key)
            elif kept.get(key) is UNKNOWN:
                states.append(key)
        for some in _several(states):
            read = self._file.all(STATE_ITEMS, list(chain.from_iterable(some)))
            found = _items_of(self._file, [((pk, sk), text) for pk, sk, text in read])
            for key in some:
                kept.keep(key, *found.get(key, NO_ITEM))
        for group in _several(rows):
            places = [place_of(key) for key in group]
            read = self._file.all(ROWS, list(chain.from_iterable(places)))
            found = _items_of(self._file, [((table, pk, sk), text) for table, pk, sk, text in read])
            for row, place in zip(group, places, strict=True):
                self._rows.keep(row, *found.get(place, NO_ITEM))

    def _item(self, text: str | None) -> tuple[KeptItem, int]:
        """The item of a stored text, and the length of the text."""
        return (self._file.item(text), len(text)) if text else (None, 0)

    def _asked(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Iterator[Any]:
        """The rows of a query, over what was written so far too."""
        if self._rows.changed:
            self._write_rows()
        if self._states.changed:
            self._write_states()
        return self._file.rows(query, values)

    def _forget_all(self) -> None:
        self._rows.clear()
        self._states.clear()

    @abstractmethod
    def _write_rows(self) -> None:
        """Writes the rows that the batch has changed."""

    @abstractmethod
    def _write_states(self) -> None:
        """Writes the state items that the batch has changed."""


def place_of(key: RowKey) -> tuple[str, str, str]:
    """The place of a row or a source item in the file."""
    return key[0], sortable(key[1]), sortable(key[2])


def _items_of(file: StateFile, read: Iterable[tuple[PlaceText, str | None]]) -> dict[PlaceText, tuple[KeptItem, int]]:
    """The items of stored texts, and the lengths of these; none for a place without a text."""
    texts = {place: text for place, text in read if text}
    items = file.items([*texts.values()])
    return {place: (item, len(text)) for (place, text), item in zip(texts.items(), items, strict=True)}


def _several(keys: Sequence[T]) -> Iterator[Sequence[T]]:
    """Groups of ``SEVERAL`` keys; those that make no whole group are left out."""
    return (keys[end - SEVERAL : end] for end in range(SEVERAL, len(keys) + 1, SEVERAL))
