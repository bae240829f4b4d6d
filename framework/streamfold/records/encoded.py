"""Encoded items: their JSON, their digest and their size."""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from streamfold.errors import HandlerError
from streamfold.records.values import AttributeValue, base64_text, decode_binary

ITEM_BYTES_MAX = 400 * 1024
"""Size of an item with its attribute names (Developer Guide, ServiceQuotas)."""


def to_json(item: Mapping[str, Any]) -> str:
    """One line of DynamoDB JSON; bytes become base64 text."""
    return COMPACT.encode(item)


def to_sorted_json(item: Mapping[str, Any]) -> str:
    """The same with names in their order, however the item was written: equal items are equal lines."""
    return UNESCAPED.encode(item)


COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=base64_text)
CANONICAL = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=base64_text)
UNESCAPED = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False, default=base64_text)
"""Canonical too, for texts that are stored by the thousand: an escape is three times a Cyrillic or Greek letter."""


def digest(encoded: Mapping[str, Any]) -> str:
    """A digest of encoded attributes, the same whatever their order: 128 bits as text."""
    text = CANONICAL.encode(encoded)
    if len(text) > ITEM_BYTES_MAX and (size := item_bytes(encoded)) > ITEM_BYTES_MAX:
        raise HandlerError(
            f"The row has {size} bytes; DynamoDB takes items of {ITEM_BYTES_MAX} at most. Store less of it."
        )
    return b64encode(blake2b(text.encode(), digest_size=16).digest())[:22].decode()


def item_bytes(encoded: Mapping[str, Any]) -> int:
    """The size of an item as DynamoDB counts it (Developer Guide, CapacityUnitCalculations), numbers rounded up."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in encoded.items())


def _value_bytes(value: AttributeValue) -> int:
    tag, content = next(iter(value.items()))
    if tag == "S":
        return len(content.encode())
    if tag == "N":
        return len(content) // 2 + 2
    if tag == "B":
        return len(decode_binary(content))
    if tag in ("SS", "NS", "BS"):
        return 3 + sum(_value_bytes({tag[0]: member}) + 1 for member in content)
    if tag == "L":
        return 3 + sum(_value_bytes(member) + 1 for member in content)
    if tag == "M":
        return 3 + len(content) + item_bytes(content)
    return 1
