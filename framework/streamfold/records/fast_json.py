"""JSON by orjson where the extra ``fast`` is installed. Otherwise, and for what orjson does not take, by ``json``.

Both make the same of an item, so that a state may be written by one and read by the other.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from streamfold.records.encoded import Encoder, to_json
from streamfold.records.values import base64_text

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
    """The JSON of a request's parameters, in UTF-8. Raises ``TypeError`` for what no JSON is made of."""
    if ORJSON is not None:
        try:
            return bytes(ORJSON.dumps(parameters, _binary))
        except TypeError:
            pass
    return BODIES.encode(parameters).encode("ascii")


def parsed_answer(text: bytes) -> Any:
    """What an answer of DynamoDB says: in its JSON, the numbers of items are texts, and others are small.

    Raises ``ValueError`` for what is no JSON.
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
