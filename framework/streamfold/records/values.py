"""DynamoDB's attribute values, in the form in which Lambda and the stream files carry them, to Python and back.

boto3's deserialiser cannot do this: it refuses binary values given as base64 text, which is how Lambda delivers them,
and the pure rooms may not import it. Python values: ``str``, ``int`` or ``Decimal`` (exact, 38 digits), ``bytes``,
``bool``, ``None``, ``list``, ``dict`` and sets of text, numbers or bytes.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow, Rounded, Underflow
from hashlib import blake2b
from typing import Any, TypeAlias, cast

from streamfold.errors import AttributeMissing, HandlerError, RecordError, shown, told
from streamfold.keys.field import Unreadable, datetime_text
from streamfold.keys.table import DERIVED, RESERVED_PREFIX

DIGITS_MAX = 38
WHOLE_MAX = 10**DIGITS_MAX - 1
EXPONENT_MAX, EXPONENT_MIN = 125, -130
"""Numbers of DynamoDB: 38 digits, 1E-130 to 9.99E+125 (Developer Guide, HowItWorks.NamingRulesDataTypes)."""
ITEM_BYTES_MAX = 400 * 1024
"""Size of an item with its attribute names (Developer Guide, ServiceQuotas)."""
LEVELS_MAX = 32
"""Levels of lists and maps in an item, the innermost value being one (Developer Guide, ServiceQuotas)."""

EXACT = Context(prec=DIGITS_MAX, traps=[Inexact, Rounded, InvalidOperation, DivisionByZero, Overflow, Underflow])
"""The context of all arithmetic in handlers and planner: what would need more than 38 digits raises, never rounds."""

HOW_TO_ROUND = "To round on purpose: divide(a, b, places=2) or rounded(n, places=2), of streamfold."
"""The end of each message about a number that is not exact; docs/numbers.md has the rest."""

WIDE = Context(prec=300, traps=[Inexact, InvalidOperation])
"""Holds every sum and difference of two numbers exactly; one with more than 38 digits is refused when it is written."""

LEGACY_REPLICATION_PREFIX = "aws:rep:"
"""Attributes that global tables of version 2017.11.29 add to an item (Developer Guide, globaltables_HowItWorks)."""

HIDDEN = (RESERVED_PREFIX, LEGACY_REPLICATION_PREFIX)

Number = int | Decimal
Item: TypeAlias = Mapping[str, Any]
"""An item as a handler sees it: a read-only mapping of attribute names to Python values; a test may pass a ``dict``."""
AttributeValue = Mapping[str, Any]
RawImage = Mapping[str, AttributeValue]


def hidden(name: str) -> bool:
    """Whether an attribute belongs to the framework or to replication, not to the application."""
    return name.startswith(HIDDEN)


def decode(value: AttributeValue, level: int = 0) -> Any:
    """The Python value of a DynamoDB attribute value; binary may be bytes or base64 text.

    ``level`` says how deep in an item the value is; the item itself, as a map, is at level 0.
    Raises ``RecordError`` for what is no attribute value.
    """
    try:
        ((tag, content),) = value.items()
        if tag == "L":
            return [decode(member, level + 1) for member in _inside(content, level)]
        if tag == "M":
            return {name: decode(member, level + 1) for name, member in _inside(content, level).items()}
        return DECODERS[tag](content)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        pass
    raise RecordError(f"{shown(value)} is no attribute value: {_expected(value)}.")


def _expected(value: Any) -> str:
    """What is wrong with an attribute value: its content, where it has one known type, or its form."""
    tag = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else None
    content = CONTENTS.get(tag) if isinstance(tag, str) else None
    return f"expected one of {TAGS} with its content" if content is None else f"its content is no {content}"


def _inside(content: Any, level: int) -> Any:
    if level >= LEVELS_MAX and content:
        raise RecordError(f"A value is nested deeper than the {LEVELS_MAX} levels that DynamoDB holds.")
    return content


def decode_number(text: str) -> int | Decimal:
    """The number of a text, exactly; whole numbers as ``int``."""
    return int(text) if text.isdigit() or (text[1:].isdigit() and text[0] == "-") else Decimal(text)


def _decode_binary(content: str | bytes) -> bytes:
    return b64decode(content, validate=True) if isinstance(content, str) else bytes(content)


DECODERS: dict[str, Callable[[Any], Any]] = {
    "S": lambda content: content,
    "N": decode_number,
    "B": _decode_binary,
    "BOOL": lambda content: content,
    "NULL": lambda _: None,
    "SS": set,
    "NS": lambda content: {decode_number(text) for text in content},
    "BS": lambda content: {_decode_binary(text) for text in content},
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
    if isinstance(value, str):
        return {"S": value if value.isascii() else _storable(value)}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | Decimal):
        return {"N": number_text(value)}
    if value is None:
        return {"NULL": True}
    if isinstance(value, Mapping):
        _check_level(value, level)
        try:
            return {"M": {_attribute_name(name): encode(member, level + 1) for name, member in value.items()}}
        except HandlerError as error:
            raise error if level else _naming(value, error) from None
    if isinstance(value, list | tuple):
        _check_level(value, level)
        return {"L": [encode(member, level + 1) for member in value]}
    if isinstance(value, bytes | bytearray):
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


def _check_level(content: Any, level: int) -> None:
    if level >= LEVELS_MAX and content:
        raise HandlerError(
            f"A value is nested deeper than the {LEVELS_MAX} levels that DynamoDB holds: store less of it, or its "
            "parts in attributes and rows of their own."
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


def _attribute_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise HandlerError(f"Name {shown(name)} of a map entry cannot be used: expected text that is not empty.")
    return name


def _encode_set(members: AbstractSet[Any]) -> dict[str, Any]:
    encoded = [encode(member) for member in members]
    tags = {tag for value in encoded for tag in value}
    if len(tags) != 1 or (tag := tags.pop()) not in ("S", "N", "B"):
        raise HandlerError(
            f"Set {shown(set(members))} cannot be stored: expected members that are all text, all numbers or all "
            "bytes, at least one."
        )
    return {tag + "S": sorted(value[tag] for value in encoded)}


def number_text(value: int | Decimal) -> str:
    """The one spelling of a number: ``1.5``, ``100``, ``0``.

    Raises ``HandlerError`` where DynamoDB could not hold it.
    """
    if isinstance(value, int):
        if -WHOLE_MAX <= value <= WHOLE_MAX:
            return int.__repr__(value)  # not str(), which a member of an enumeration has of its own
        value = Decimal(value)
    text = str(value)
    # The usual number is its own text, less zeros at its end; exponents, NaN and Infinity hold a capital letter.
    if len(text) <= DIGITS_MAX and "E" not in text and "N" not in text and "I" not in text:
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if not value.is_finite():
        raise HandlerError(f"Number {told(value)} cannot be stored: expected a finite number.")
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    bare = text.rstrip("0")
    if not bare:
        return "0"
    shift = cast("int", exponent) + len(text) - len(bare)
    if len(bare) > DIGITS_MAX or not EXPONENT_MIN <= shift + len(bare) - 1 <= EXPONENT_MAX:
        raise HandlerError(
            f"Number {told(f'{value!s:.60}')} cannot be stored: DynamoDB holds {DIGITS_MAX} digits, from "
            f"1E{EXPONENT_MIN} to 9.99E+{EXPONENT_MAX}. {HOW_TO_ROUND}"
        )
    return format(Decimal((sign, tuple(map(int, bare)), shift)), "f")


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
            return {"B": _base64_text(content)}
        if tag == "BS":
            return {"BS": [_base64_text(member) for member in content]}
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
    if tag == "M":
        return mine.keys() == theirs.keys() and all(same(mine[name], theirs[name]) for name in mine)
    if tag == "L":
        return len(mine) == len(theirs) and all(same(one, other) for one, other in zip(mine, theirs, strict=True))
    return tag in ("N", "SS", "NS", "B", "BS") and bool(decode(left) == decode(right))


class Image(Mapping[str, Any]):
    """An item's image, read-only, decoded where it is read; empty and falsy when there is none.

    The framework's own attributes are hidden. Lists, maps and sets come fresh at every access, so a handler that
    changes one changes its own copy only.
    """

    __slots__ = ("_decoded", "raw")

    def __init__(self, raw: RawImage) -> None:
        self.raw = raw
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        decoded = self._decoded
        if name in decoded:
            return decoded[name]
        try:
            tagged = self.raw[name]
        except KeyError:
            raise AttributeMissing(name) from None
        if name.startswith(HIDDEN):
            raise AttributeMissing(name)
        try:
            if len(tagged) != 1:
                raise TypeError
            if "S" in tagged:
                return tagged["S"]
            if "N" not in tagged:
                return decode(tagged, 1)
            number = decoded[name] = decode_number(tagged["N"])
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            raise RecordError(
                f"Attribute {shown(name)} is {shown(tagged)}, which is no attribute value: {_expected(tagged)}."
            ) from None
        return number

    def __contains__(self, name: object) -> bool:
        return name in self.raw and not hidden(str(name))

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.raw if not hidden(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self.raw)

    def __repr__(self) -> str:
        return f"Image({dict(self)!r})"


def derived_by(raw: RawImage) -> dict[str, str]:
    """The attributes that an image says were derived onto its item, each with whose it is: ``APPLICATION/HANDLER``."""
    try:
        names = raw[DERIVED]["M"] if DERIVED in raw else {}
        return {name: whose for whose in sorted(names) for name in names[whose]["SS"]}
    except (KeyError, TypeError):  # not written by the framework: it says nothing
        return {}


def derived_names(*images: RawImage) -> frozenset[str]:
    """The attributes that images say were derived onto their item, and the one that says it."""
    bearing = [image for image in images if DERIVED in image]
    return frozenset((DERIVED,)).union(*map(derived_by, bearing)) if bearing else frozenset()


def without(raw: RawImage, names: Collection[str]) -> RawImage:
    """An image without these attributes."""
    return {name: value for name, value in raw.items() if name not in names} if names else raw


def without_derived(raw: RawImage) -> RawImage:
    """An image without the attributes that the framework derived onto the item."""
    return without(raw, derived_names(raw))


def to_json(item: Mapping[str, Any]) -> str:
    """One line of DynamoDB JSON; bytes become base64 text."""
    return COMPACT.encode(item)


def to_sorted_json(item: Mapping[str, Any]) -> str:
    """The same with names in their order, however the item was written: equal items are equal lines."""
    return UNESCAPED.encode(item)


def _base64_text(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{value!r} is not an attribute value")


COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_base64_text)
CANONICAL = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=_base64_text)
UNESCAPED = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False, default=_base64_text)
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
        return len(_decode_binary(content))
    if tag in ("SS", "NS", "BS"):
        return 3 + sum(_value_bytes({tag[0]: member}) + 1 for member in content)
    if tag == "L":
        return 3 + sum(_value_bytes(member) + 1 for member in content)
    if tag == "M":
        return 3 + len(content) + item_bytes(content)
    return 1
