"""The place of derived attributes before they are copied onto their items."""

from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from streamfold.keys.key import Key, KeyValues
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE
from streamfold.records.change import ItemKey
from streamfold.records.item_names import key_text
from streamfold.routes.route import Route

if TYPE_CHECKING:
    from streamfold.writes.guarded import RowKey


MARK = "@"
"""Begins a derived attribute's name in its stored row: the state table's own attributes have other names."""


class StoredAttributes(NamedTuple):
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


class AttributesOptions(NamedTuple):
    """What a handler of attributes declares beside its sources, and what its application makes of it."""

    of: Key | None = None  # the items that bear the attributes, where that is not the source
    stored_attributes: StoredAttributes | None = None


def stored_of(route: Route) -> StoredAttributes | None:
    """Where the attributes of a route are kept; None for a route of another kind."""
    return route.options.stored_attributes if isinstance(route.options, AttributesOptions) else None


def _value(text: str, kind: str) -> KeyValue:
    if kind == "S":
        return text
    return bytes.fromhex(text) if kind == "B" else Decimal(text)
