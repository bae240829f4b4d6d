"""Keys of rows and state items as a store takes them."""

from hashlib import sha256
from typing import Any

from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX
from streamfold.keys.key_part import LETTER_BYTES_MAX
from streamfold.keys.table import STATE, Table
from streamfold.records.values import encode
from streamfold.writes.guarded import VALIDATION, Reason, RowKey, StateKey

SHORT_LETTERS = SORT_BYTES_MAX // LETTER_BYTES_MAX
"""Letters that either part of a key may have."""


def stored_key(row: RowKey) -> RowKey:
    """The key under which a store keeps a row: its own, but where that of a row of the state table is too long.

    The ledger knows such a row by its own key, ``attributes#APPLICATION#...`` and ``HANDLER#...``: it tells the item.
    """
    if row[0] != STATE.name:
        return row
    partition, sort = str(row[1]), str(row[2])
    what, application, _ = partition.split("#", 2)
    handler = sort.partition("#")[0]
    # Neither can be the key of another row: a table's name would follow the one, "#" the other's handler.
    short_partition = _short(partition, f"{what}#{application}#sha256:", PARTITION_BYTES_MAX)
    return row[0], short_partition, _short(sort, f"{handler}:sha256:", SORT_BYTES_MAX)


def _short(text: str, prefix: str, bytes_max: int) -> str:
    return text if len(text.encode()) <= bytes_max else prefix + sha256(text.encode()).hexdigest()


def key_attributes(table: Table, key: RowKey) -> dict[str, Any]:
    """The key of a row as attributes, encoded."""
    _, partition, sort = stored_key(key)
    if type(partition) is str and type(sort) is str and partition.isascii() and sort.isascii() and table.sort:
        return {table.partition: {"S": partition}, table.sort: {"S": sort}}  # as nearly always
    own = {table.partition: encode(partition)}
    if table.sort is not None:
        own[table.sort] = encode(sort)
    return own


def key_too_long(key: RowKey | StateKey) -> Reason | None:
    """Refuses a key of which DynamoDB would refuse a part for its length."""
    partition, sort = key[-2], key[-1]
    if type(partition) is str and type(sort) is str and len(partition) <= SHORT_LETTERS >= len(sort):
        return None  # as nearly always
    if not isinstance(key, StateKey):
        partition, sort = stored_key(key)[1:]
    return _too_long(partition, PARTITION_BYTES_MAX) or _too_long(sort, SORT_BYTES_MAX)


def _too_long(value: object, bytes_max: int) -> Reason | None:
    if not isinstance(value, (str, bytes)) or len(value) * LETTER_BYTES_MAX <= bytes_max:
        return None
    size_bytes = len(value.encode() if isinstance(value, str) else value)
    if size_bytes <= bytes_max:
        return None
    return Reason(VALIDATION, None, f"a part of the key has {size_bytes} bytes, {bytes_max} at most")
