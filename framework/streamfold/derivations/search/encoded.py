"""Documents as JSON: every digit of a number stays, and sets, bytes and moments have one form.

| Python                | JSON                                                   |
| --------------------- | ------------------------------------------------------ |
| int, Decimal          | a number literal with all its digits                   |
| float                 | a number, as Python writes it                          |
| set                   | a list, sorted                                         |
| bytes                 | base64 text, as a field of type ``binary`` takes it    |
| datetime, date        | UTC ISO 8601 text, as rows have it                     |
| text, empty text too  | text                                                   |
"""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from streamfold.errors import HandlerError, shown
from streamfold.keys.field import Unreadable, datetime_text
from streamfold.keys.table import RESERVED_PREFIX
from streamfold.records.values import LEVELS_MAX, base64_text


def document_text(fields: Mapping[str, Any]) -> bytes:
    """The JSON of a document, in UTF-8.

    Raises ``HandlerError`` for a name that is reserved or no text, and for a value that JSON cannot hold.
    """
    for name in fields:
        if name.startswith(RESERVED_PREFIX):
            raise HandlerError(
                f"Field {shown(name)} cannot be used: names that begin with {RESERVED_PREFIX!r} are reserved."
            )
    try:
        return _text(fields, 0).encode()
    except UnicodeEncodeError:
        raise HandlerError("A text of the document cannot be sent: it holds half of a surrogate pair.") from None


def parsed(text: str | bytes) -> dict[str, Any]:
    """A document of its JSON, numbers as ``int`` or ``Decimal``."""
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


def own_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document without those of the framework."""
    return {name: value for name, value in document.items() if not name.startswith(RESERVED_PREFIX)}


def _text(value: Any, level: int) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, Decimal | float):
        return _number(value)
    if level >= LEVELS_MAX:
        raise HandlerError(f"A value of the document is nested deeper than {LEVELS_MAX} levels.")
    if isinstance(value, Mapping):
        pairs = (f"{_name(name)}:{_text(member, level + 1)}" for name, member in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(member, level + 1) for member in value)}]"
    if isinstance(value, AbstractSet):
        return f"[{','.join(_text(member, level + 1) for member in _sorted(value))}]"
    return json.dumps(_moment_or_bytes(value))


def _number(value: Decimal | float) -> str:
    finite = value.is_finite() if isinstance(value, Decimal) else isfinite(value)
    if not finite:
        raise HandlerError(f"Number {shown(value)} cannot be sent: JSON has finite numbers only.")
    return str(value) if isinstance(value, Decimal) else float.__repr__(value)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise HandlerError(f"Name {shown(name)} of a field cannot be used: expected text that is not empty.")
    return json.dumps(name, ensure_ascii=False)


def _sorted(members: AbstractSet[Any]) -> list[Any]:
    try:
        return sorted(members)
    except TypeError:
        raise HandlerError(f"Set {shown(set(members))} cannot be sent: expected members of one type.") from None


def _moment_or_bytes(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return base64_text(bytes(value))
    if isinstance(value, datetime):
        try:
            return datetime_text(value)
        except Unreadable as why:
            raise HandlerError(f"Value {shown(value)} cannot be sent: {why}.") from None
    if isinstance(value, date):
        return value.isoformat()
    raise HandlerError(
        f"Value {shown(value)} of type {type(value).__name__} cannot be sent: expected text, a number, bytes, bool, "
        "None, a list, a dict with text keys, a set, a datetime with time zone or a date."
    )
