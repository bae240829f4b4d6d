"""DynamoDB's attribute values, in the form in which Lambda and the stream files carry them, to Python and back.

boto3's deserialiser cannot do this: it refuses binary values given as base64 text, which is how Lambda delivers them,
and the pure rooms may not import it. Python values: ``str``, ``int`` or ``Decimal`` (exact, 38 digits), ``bytes``,
``bool``, ``None``, ``list``, ``dict`` and sets of text, numbers or bytes.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from streamfold.errors import HandlerError, RecordError, shown
from streamfold.keys.field import Unreadable, datetime_text
from streamfold.keys.table import checked_attribute_name
from streamfold.records.numbers import decode_number, number_text

LEVELS_MAX = 32
"""Levels of lists and maps in an item, the innermost value being one (Developer Guide, ServiceQuotas)."""


AttributeValue = Mapping[str, Any]
RawImage = Mapping[str, AttributeValue]


def decode(value: AttributeValue, level: int = 0) -> Any:
    """The Python value of a DynamoDB attribute value; binary may be bytes or base64 text.

    ``level`` says how deep in an item the value is; the item itself, as a map, is at level 0.
    Raises ``RecordError`` for what is no attribute value.
    """
    try:
        ((tag, content),) = value.items()
        if tag == "L":
            return [
                member["S"] if "S" in member and len(member) == 1 else decode(member, level + 1)
                for member in _inside(content, level)
            ]
        if tag == "M":
            return {
                name: member["S"] if "S" in member and len(member) == 1 else decode(member, level + 1)
                for name, member in _inside(content, level).items()
            }
        return DECODERS[tag](content)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        pass
    raise RecordError(f"{shown(value)} is no attribute value: {expected_content(value)}.")


def expected_content(value: Any) -> str:
    """What is wrong with an attribute value: its content, where it has one known type, or its form."""
    tag = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else None
    content = CONTENTS.get(tag) if isinstance(tag, str) else None
    return f"expected one of {TAGS} with its content" if content is None else f"its content is no {content}"


def _inside(content: Any, level: int) -> Any:
    if level >= LEVELS_MAX and content:
        raise RecordError(f"A value is nested deeper than the {LEVELS_MAX} levels that DynamoDB holds.")
    return content


class StoredMap(Mapping[str, Any]):
    """A map as it is stored: encoded as it stands, and decoded where it is read.

    Its values have to be as ``encode`` makes them: numbers in their one spelling, binary as ``bytes``.
    """

    __slots__ = ("stored",)

    def __init__(self, stored: RawImage) -> None:
        self.stored = stored

    def __getitem__(self, name: str) -> Any:
        return decode(self.stored[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __repr__(self) -> str:
        return repr(dict(self))


def decode_binary(content: str | bytes) -> bytes:
    return b64decode(content, validate=True) if isinstance(content, str) else bytes(content)


DECODERS: dict[str, Callable[[Any], Any]] = {
    "S": lambda content: content,
    "N": decode_number,
    "B": decode_binary,
    "BOOL": lambda content: content,
    "NULL": lambda _: None,
    "SS": set,
    "NS": lambda content: {decode_number(text) for text in content},
    "BS": lambda content: {decode_binary(text) for text in content},
}
CONTENTS = {
    "N": "number as text",
    "B": "base64",
    "SS": "list of texts",
    "NS": "list of numbers as text",
    "BS": "list of base64",
}
"""What the content of a type is, where another one is noticed."""
TAGS = "S N B BOOL NULL L M SS NS BS"


def encode(value: Any, level: int = 0) -> dict[str, Any]:
    """The DynamoDB attribute value of a Python value, binary as ``bytes``, members of sets sorted.

    ``datetime`` and ``date`` become UTC ISO text (``keys.field``). ``level`` says how deep in an
    item the value is; the item itself, as a map, is at level 0. Raises ``HandlerError`` for a float, a number beyond 38
    digits, an empty set, a moment without a time zone, more than 32 levels, or a type that DynamoDB does not have.
    """
    kind = type(value)  # asked first: nearly all values are of exactly these types
    if kind is str:
        return {"S": value if value.isascii() else _storable(value)}
    if kind is int or kind is Decimal:
        return {"N": number_text(value)}
    if kind is dict:
        return _encode_map(value, level)
    if kind is StoredMap:
        return {"M": value.stored}
    return _encode_other(value, level)


def _encode_map(value: Mapping[Any, Any], level: int) -> dict[str, Any]:
    if level >= LEVELS_MAX and value:
        raise _too_deep()
    try:
        return {
            "M": {
                name if type(name) is str and name and name.isascii() else checked_attribute_name(name): (
                    # as nearly always
                    {"S": member} if type(member) is str and member.isascii() else encode(member, level + 1)
                )
                for name, member in value.items()
            }
        }
    except HandlerError as error:
        raise error if level else _naming(value, error) from None


def _encode_other(value: Any, level: int) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    if value is None:
        return {"NULL": True}
    if isinstance(value, (list, tuple)):
        if level >= LEVELS_MAX and value:
            raise _too_deep()
        return {
            "L": [
                {"S": member} if type(member) is str and member.isascii() else encode(member, level + 1)
                for member in value
            ]
        }
    if isinstance(value, str):
        return {"S": _storable(value)}
    if isinstance(value, (int, Decimal)):
        return {"N": number_text(value)}
    if isinstance(value, Mapping):
        return _encode_map(value, level)
    if isinstance(value, (bytes, bytearray)):
        return {"B": bytes(value)}
    if isinstance(value, AbstractSet):
        return _encode_set(value)
    return _encode_moment(value)


def _naming(item: Mapping[Any, Any], error: HandlerError) -> HandlerError:
    """Why an item cannot be stored, with the name of its attribute that cannot."""
    for name, value in item.items():
        try:
            encode(value, 1)
        except HandlerError as why:
            return HandlerError(f"Attribute {shown(name)}: {why.marked}")
    return error


def _too_deep() -> HandlerError:
    return HandlerError(
        f"A value is nested deeper than the {LEVELS_MAX} levels that DynamoDB holds: store less of it, or its parts in "
        "attributes and rows of their own."
    )


def _storable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise HandlerError(f"Text {shown(text)} cannot be stored: it holds half of a surrogate pair.") from None
    return text


def _encode_moment(value: object) -> dict[str, str]:
    if isinstance(value, datetime):
        try:
            return {"S": datetime_text(value)}
        except Unreadable as why:
            raise HandlerError(f"Value {shown(value)} cannot be stored: {why}.") from None
    if isinstance(value, date):
        return {"S": value.isoformat()}
    if isinstance(value, float):
        raise HandlerError(
            f"Value {shown(value)} is a float, which is not exact: use Decimal({shown(str(value))}) or a whole number; "
            "in place of a / b, divide(a, b, places=2)."
        )
    raise HandlerError(
        f"Value {shown(value)} of type {type(value).__name__} cannot be stored: expected text, a number, bytes, bool, "
        "None, a list, a dict with text keys, a set, a datetime with time zone or a date."
    )


def _encode_set(members: AbstractSet[Any]) -> dict[str, Any]:
    encoded = [encode(member) for member in members]
    tags = {tag for value in encoded for tag in value}
    if len(tags) != 1 or (tag := tags.pop()) not in ("S", "N", "B"):
        raise HandlerError(
            f"Set {shown(set(members))} cannot be stored: expected members that are all text, all numbers or all "
            "bytes, at least one."
        )
    return {tag + "S": sorted(value[tag] for value in encoded)}


def lambda_value(value: AttributeValue) -> dict[str, Any]:
    """An attribute value as Lambda delivers it: binary as base64 text at any depth. Shares nothing with the one given.

    ``{}`` becomes ``{"M": {}}``: so DynamoDB Local's stream writes an empty map.
    """
    for tag, content in value.items():
        if tag == "M":
            return {"M": {name: lambda_value(member) for name, member in content.items()}}
        if tag == "L":
            return {"L": [lambda_value(member) for member in content]}
        if tag in ("SS", "NS"):
            return {tag: list(content)}
        if tag == "B":
            return {"B": base64_text(content)}
        if tag == "BS":
            return {"BS": [base64_text(member) for member in content]}
        return {tag: content}
    return {"M": {}}


def same(left: AttributeValue | None, right: AttributeValue | None) -> bool:
    """Whether two attribute values are equal to DynamoDB: numbers by value, sets in any order, types apart."""
    if left == right:
        return True
    if left is None or right is None or left.keys() != right.keys() or len(left) != 1:
        return False
    (tag,) = left
    mine, theirs = left[tag], right[tag]
    try:
        if tag == "M":
            return mine.keys() == theirs.keys() and all(same(mine[name], theirs[name]) for name in mine)
        if tag == "L":
            return len(mine) == len(theirs) and all(same(one, other) for one, other in zip(mine, theirs, strict=True))
    except (AttributeError, TypeError):  # no attribute value: who reads it says so
        return False
    return tag in ("N", "SS", "NS", "B", "BS") and bool(decode(left) == decode(right))


def base64_text(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{value!r} is not an attribute value")
