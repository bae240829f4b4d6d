"""Keys of rows and state items as a store takes them."""

from typing import Any

from streamfold.derivations.attributes.stored import stored_key
from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX
from streamfold.keys.table import Table
from streamfold.records.values import encode
from streamfold.writes.guarded import VALIDATION, Reason, RowKey, StateKey

LETTER_BYTES_MAX = 4
"""Bytes of one letter in UTF-8 (RFC 3629, 3)."""


def key_attributes(table: Table, key: RowKey) -> dict[str, Any]:
    """The key of a row as attributes, encoded."""
    return {name: encode(value) for name, value in zip(table.attributes, stored_key(key)[1:], strict=False)}


def key_too_long(key: RowKey | StateKey) -> Reason | None:
    """Refuses a key of which DynamoDB would refuse a part for its length."""
    partition, sort = key if isinstance(key, StateKey) else stored_key(key)[1:]
    return _too_long(partition, PARTITION_BYTES_MAX) or _too_long(sort, SORT_BYTES_MAX)


def _too_long(value: object, bytes_max: int) -> Reason | None:
    if not isinstance(value, str | bytes) or len(value) * LETTER_BYTES_MAX <= bytes_max:
        return None
    size_bytes = len(value.encode() if isinstance(value, str) else value)
    if size_bytes <= bytes_max:
        return None
    return Reason(VALIDATION, None, f"a part of the key has {size_bytes} bytes, {bytes_max} at most")
