"""Items as JSON, with their digest and size; by orjson where the extra ``fast`` is installed."""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from streamfold.errors import HandlerError
from streamfold.records.values import AttributeValue, base64_text, decode_binary

ITEM_BYTES_MAX = 400 * 1024
"""Size of an item with its attribute names (Developer Guide, ServiceQuotas)."""


class Encoder(json.JSONEncoder):
    """A JSON encoder that is made once: the standard library's encoder makes its C object again for each value.

    It does not look for values that hold themselves, because no item can have one.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(check_circular=False, **options)
        make: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]  # None: there is no C part
        text = json.encoder.encode_basestring_ascii if self.ensure_ascii else json.encoder.encode_basestring
        colon, comma = self.key_separator, self.item_separator
        fixed = (self.default, text, self.indent, colon, comma, self.sort_keys, self.skipkeys, self.allow_nan)
        self._encoded = make(None, *fixed) if make else None

    def encode(self, value: Any) -> str:
        return "".join(self._encoded(value, 0)) if self._encoded else super().encode(value)


def to_json(item: Mapping[str, Any]) -> str:
    """One line of DynamoDB JSON; bytes become base64 text."""
    return COMPACT.encode(item)


def to_sorted_json(item: Mapping[str, Any]) -> str:
    """The same with names in their order, however the item was written: equal items are equal lines."""
    return UNESCAPED.encode(item)


COMPACT = Encoder(separators=(",", ":"), ensure_ascii=False, default=base64_text)
CANONICAL = Encoder(separators=(",", ":"), sort_keys=True, default=base64_text)
UNESCAPED = Encoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False, default=base64_text)
"""Canonical too, for texts that are stored by the thousand: an escape is three times a Cyrillic or Greek letter."""


def digest(encoded: Mapping[str, Any]) -> str:
    """A digest of encoded attributes in any order: 128 bits as text."""
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


try:
    import orjson
except ImportError:
    ORJSON: Any = None
else:
    ORJSON = orjson


def item_text(item: Mapping[str, Any]) -> str:
    """One line of DynamoDB JSON, as ``to_json`` makes it."""
    if ORJSON is not None:
        try:
            return str(ORJSON.dumps(item, base64_text), "utf-8")
        except TypeError:
            pass
    return to_json(item)


def body_json(parameters: Mapping[str, Any]) -> bytes:
    """The JSON of a request's parameters, in UTF-8. Raises ``TypeError`` for a value that JSON does not have."""
    if ORJSON is not None:
        try:
            return bytes(ORJSON.dumps(parameters, _binary))
        except TypeError:
            pass
    return BODIES.encode(parameters).encode("ascii")


def parsed_answer(text: bytes) -> Any:
    """The response of DynamoDB from its JSON, in which the numbers of items are texts, and other numbers are small.

    Raises ``ValueError`` for text that is no JSON.
    """
    if ORJSON is not None:
        try:
            return ORJSON.loads(text)
        except ValueError:
            pass
    return json.loads(text)


def _binary(value: object) -> str:
    """Binary values, as botocore encodes them."""
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode("ascii")
    raise TypeError(f"{type(value).__name__} is no part of a request")


BODIES = Encoder(separators=(",", ":"), default=_binary)
