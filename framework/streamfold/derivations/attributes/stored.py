"""The place of derived attributes before they are copied onto their items."""

from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX, Key, KeyValue, KeyValues
from streamfold.keys.table import STATE
from streamfold.records.change import ItemKey, key_text

if TYPE_CHECKING:
    from streamfold.writes.guarded import RowKey


def is_truth(place: tuple[KeyValue | None, ...]) -> bool:
    """Whether a row is one of derived attributes."""
    return place[0] == STATE.name


MARK = "@"
"""Begins a derived attribute's name in its truth: the state table's own attributes have other names."""


class Truth(NamedTuple):
    """Where a handler's attributes of an item are kept: rows of the state table, one for each item of ``of``."""

    application: str
    handler: str
    of: Key

    def row(self, values: KeyValues) -> "RowKey":
        """The row of an item with these key values."""
        partition, sort = values
        place = "" if sort is None else key_text(sort)
        return STATE.name, self._prefix + key_text(partition), f"{self.handler}#{place}"

    def item(self, row: "RowKey") -> ItemKey:
        """The item of such a row."""
        partition = str(row[1]).removeprefix(self._prefix)
        sort = str(row[2]).removeprefix(self.handler + "#")
        kinds = [part.attribute_type for part in self.of.parts]
        return self.of.table.name, _value(partition, kinds[0]), _value(sort, kinds[1]) if len(kinds) > 1 else None

    def holds(self, row: "RowKey") -> bool:
        """Whether a row is one of this handler's."""
        return str(row[2]).partition("#")[0] == self.handler

    @property
    def whose(self) -> str:
        """Whose attributes they are, as their items say it: no name of an application or a handler holds a ``/``."""
        return f"{self.application}/{self.handler}"

    @property
    def _prefix(self) -> str:
        return f"attributes#{self.application}#{self.of.table.name}#"


def stored_key(row: "RowKey") -> "RowKey":
    """The key under which a store keeps a row: its own, but for a truth's where that is too long for a key.

    Ledgers know a truth by its own key, which tells the item that bears its attributes.
    """
    if row[0] != STATE.name:
        return row
    partition, sort = str(row[1]), str(row[2])
    application, handler = partition.split("#", 2)[1], sort.partition("#")[0]
    # Neither can be the key of another truth: a table's name would follow the one, "#" the other's handler.
    short_partition = _short(partition, f"attributes#{application}#sha256:", PARTITION_BYTES_MAX)
    return STATE.name, short_partition, _short(sort, f"{handler}:sha256:", SORT_BYTES_MAX)


def _short(text: str, prefix: str, bytes_max: int) -> str:
    if len(text.encode()) <= bytes_max:
        return text
    return prefix + sha256(text.encode()).hexdigest()


def _value(text: str, kind: str) -> KeyValue:
    if kind == "S":
        return text
    return bytes.fromhex(text) if kind == "B" else Decimal(text)
