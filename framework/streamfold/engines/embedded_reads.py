"""What the embedded engine reads: state items, rows, entries, and the items of source tables."""

from collections.abc import Iterable, Iterator
from typing import Any

from streamfold.engines import Entries, Page, ScanPage, ScanPlace, Segment, StoredItem
from streamfold.engines.applied import Attributes
from streamfold.engines.scans import hashes, place_after, start_after
from streamfold.engines.sources import page_of
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


class StateReads:
    """The reads of the engine protocol, from a state file."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def read_state(
        self,
        keys: Iterable[StateKey],
        *,
        consistent: bool = False,  # noqa: ARG002 - it always is
    ) -> dict[StateKey, dict[str, Any]]:
        found = ((key, self._state(key)) for key in keys)
        return {key: item for key, item in found if item is not None}

    def read_rows(self, keys: Iterable[RowKey]) -> dict[RowKey, dict[str, Any]]:
        found = ((key, self._row(key)) for key in keys)
        return {key: decode({"M": row}) for key, row in found if row is not None}

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        order = "DESC" if wanted.descending else "ASC"
        where = "pk = ? AND sk > ? AND sk < ?"
        query = f"SELECT sk, item FROM state WHERE {where} ORDER BY sk {order} LIMIT ?"  # noqa: S608 - constants
        rows = self._file.rows(query, (wanted.partition, wanted.after, wanted.before or HIGHEST, wanted.most))
        return [(place, self._file.item(text)["s"]) for place, text in rows]

    def read_source(self, item: ItemKey) -> StoredItem | None:
        row = self._row(item)
        if row is None and not self._keeps_sources(item[0]):
            raise EngineError(
                f"The state holds no source items of table {item[0]!r}, so it cannot be told whether an item is gone. "
                "Replay the records instead, which keeps them beside its rows: streamfold replay FILES --state FILE."
            )
        return row

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return {item: source for item in items if (source := self.read_source(item)) is not None}

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        return self._items(table, partition)

    def items_from(self, table: Table, prefix: str) -> Iterator[StoredItem]:
        """The items of a table whose partition key begins with this text."""
        query = "SELECT item FROM items WHERE tbl = ? AND pk >= ? AND pk < ? AND item IS NOT NULL ORDER BY pk, sk"
        values = (table.name, prefix, prefix + HIGHEST)
        return (self._file.item(text) for (text,) in self._file.rows(query, values))

    def source_items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        """The source items of a table, or of one partition of it, without derived rows."""
        return self._items(table, partition, "AND version IS NOT NULL")

    def page(self, table: Table, partition: KeyValue, begins: str, after: KeyValue | None, limit: int) -> Page:
        query = (
            "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk >= ? AND sk < ? AND sk > ? AND item IS NOT NULL "
            "ORDER BY sk LIMIT ?"
        )
        bounds = (begins, begins + HIGHEST, "" if after is None else sortable(after))
        rows = self._file.rows(query, (table.name, sortable(partition), *bounds, limit + 1))
        return page_of(table, [self._file.item(text) for (text,) in rows], limit)

    def scan(self, table: Table, part: Segment, after: ScanPlace | None, limit: int) -> ScanPage:
        """A segment is the keys whose hash fits, among all: reading ``n`` segments reads the keys ``n`` times."""
        first, end = hashes(part)
        pk, sk = start_after(after)
        values = {"tbl": table.name, "pk": pk, "sk": sk, "whole": part.of == 1, "first": first, "last": end - 1}
        query = f"{STATE_KEYS} UNION ALL {ROW_KEYS}" if table.name == STATE.name else ROW_KEYS
        rows = self._file.rows(f"{query} ORDER BY pk, sk LIMIT :most", {**values, "most": limit + 1})
        found = [(StateKey(pk, sk), text) for pk, sk, text in rows]
        keys = [self._scanned(table, key, text) for key, text in found[:limit]]
        return ScanPage(keys, place_after(found[limit - 1][0]) if len(found) > limit else None)

    def state_items(self) -> Iterator[StoredItem]:
        rows = self._file.rows("SELECT pk, sk, item FROM state ORDER BY pk, sk")
        return (encode({"pk": pk, "sk": sk, **self._file.item(text)})["M"] for pk, sk, text in rows)

    def _items(self, table: Table, partition: Any, only: str = "") -> Iterator[StoredItem]:
        where, values = ("AND pk = ?", (sortable(partition),)) if partition is not None else ("", ())
        query = f"SELECT item FROM items WHERE tbl = ? {where} {only} AND item IS NOT NULL ORDER BY pk, sk"  # noqa: S608 - constants
        return (self._file.item(text) for (text,) in self._file.rows(query, (table.name, *values)))

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

    def _row(self, key: RowKey) -> Attributes | None:
        found = self._file.one(
            "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk = ?", (key[0], sortable(key[1]), sortable(key[2]))
        )
        return self._file.item(found[0]) if found and found[0] else None

    def _state(self, key: StateKey) -> dict[str, Any] | None:
        found = self._file.one("SELECT item FROM state WHERE pk = ? AND sk = ?", key)
        return self._file.item(found[0]) if found else None
