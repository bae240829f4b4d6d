"""What the embedded engine reads in order: the items of tables and of the state, all of them or page by page."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamfold.engines import Page, ScanPage, ScanPlace, Segment, StoredItem
from streamfold.engines.local_store import page_of
from streamfold.engines.scans import hashes, place_after, start_after
from streamfold.engines.state_file import StateFile
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE, Table
from streamfold.records.change import ItemKey, item_key
from streamfold.records.values import encode, sortable
from streamfold.writes.guarded import StateKey

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


class StatePages(ABC):
    """The reads in order, over all that was written so far."""

    _file: StateFile

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
        rows = self._asked(ALL_STATE)
        found = ((pk, sk, self._file.item(item) if entry is None else {"s": entry}) for pk, sk, item, entry in rows)
        return (encode({"pk": pk, "sk": sk, **attributes})["M"] for pk, sk, attributes in found)

    def state_partitions(self, prefix: str) -> list[str]:
        """The partition keys of state items that begin with this text."""
        found = self._asked(f"{PARTITIONS} ORDER BY pk", {"first": prefix, "end": prefix + HIGHEST})
        return [pk for (pk,) in found]

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

    def _asked(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Iterator[Any]:
        """The rows of a query, over what was written so far too."""
        self._write_changed()
        return self._file.rows(query, values)

    @abstractmethod
    def _write_changed(self) -> None:
        """Writes what the batch has changed."""
