"""The key of a table's marker, which says whose rows the table has (``batch.ownership``).

The marker is an item of the table itself, so that a copy, a backup and a replica of the table bring it along. No
template matches the key of a marker, nor that of another item of the framework's own.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

from streamfold.keys.table import RESERVED_PREFIX, Table

if TYPE_CHECKING:
    from streamfold.keys.key_part import KeyValue

MARKER = RESERVED_PREFIX + "marker"
"""The text of a marker's key attributes."""
MARKER_BYTES = MARKER.encode()
MARKER_NUMBER = Decimal("-9.9999999999999999999999999999999999999E+125")
"""The least number that DynamoDB stores (API Reference, Data Types, Number): the least likely key of an item."""
MARKER_VALUES: Mapping[str, "KeyValue"] = {"S": MARKER, "B": MARKER_BYTES, "N": MARKER_NUMBER}
"""By the type of the key attribute."""


def marker_key(table: Table, types: Mapping[str, str]) -> tuple[str, "KeyValue", "KeyValue | None"]:
    sort = None if table.sort is None else MARKER_VALUES[types[table.sort]]
    return table.name, MARKER_VALUES[types[table.partition]], sort


def is_reserved(partition: object) -> bool:
    """Whether a partition key is one of the framework's own items, such as a marker or a reader's pulled authors."""
    if isinstance(partition, str):
        return partition.startswith(RESERVED_PREFIX)
    return partition in (MARKER_BYTES, MARKER_NUMBER)


def is_marker(partition: object) -> bool:
    return partition in (MARKER, MARKER_BYTES, MARKER_NUMBER)


def may_be_reserved(begins: str) -> bool:
    """Whether a partition key that begins so may be one of the framework's own; "" for a template without a literal."""
    return begins.startswith(RESERVED_PREFIX[: len(begins)])
