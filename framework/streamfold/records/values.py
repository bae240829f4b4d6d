"""DynamoDB's attribute values to Python and back, and items as JSON: exact numbers, equality, order, rounding, sizes.

Attribute values are encoded as in Lambda's events and in stream files. The extra ``fast`` brings orjson for JSON.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime
from decimal import (
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    Rounded,
    Underflow,
)
from hashlib import blake2b
from typing import Any, Self, TypeVar, cast, dataclass_transform

from streamfold.errors import HandlerError, RecordError, redacted, shown
from streamfold.keys.field import Unreadable, datetime_text
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import checked_attribute_name

DIGITS_MAX = 38
INTEGER_MAX = 10**DIGITS_MAX - 1
INTEGER_MIN = -INTEGER_MAX
EXPONENT_MAX, EXPONENT_MIN = 125, -130
"""Numbers of DynamoDB: 38 digits, 1E-130 to 9.99E+125 (Developer Guide, HowItWorks.NamingRulesDataTypes)."""
EXACT = Context(prec=DIGITS_MAX, traps=[Inexact, Rounded, InvalidOperation, DivisionByZero, Overflow, Underflow])
"""The context of all arithmetic in handlers and planner: a result of more than 38 digits raises, and is never rounded.
"""
HOW_TO_ROUND = "To round on purpose: divide(a, b, places=2) or rounded(n, places=2), of streamfold."
"""The end of each message about a number that is not exact; docs/numbers.md has the rest."""
WIDE = Context(prec=300, traps=[Inexact, InvalidOperation])
"""Holds every sum and difference of two numbers exactly; one with more than 38 digits is refused when it is written."""
Number = int | Decimal

LONG = Context(prec=300, traps=[])
"""A quotient of two numbers of 38 digits that is no tie differs from every tie before its 80th digit: a quotient of so
many digits rounds as the exact one would."""

EXPONENT_OFFSET = 500
NINES = str.maketrans("0123456789", "9876543210")

T = TypeVar("T")

LEVELS_MAX = 32
"""Levels of lists and maps in an item, the innermost value being one (Developer Guide, ServiceQuotas)."""


ITEM_BYTES_MAX = 400 * 1024
"""Size of an item with its attribute names (Developer Guide, ServiceQuotas)."""

AttributeValue = Mapping[str, Any]
RawImage = Mapping[str, AttributeValue]


def decode_number(text: str) -> int | Decimal:
    return int(text) if text.isdigit() or (text[1:].isdigit() and text[0] == "-") else Decimal(text)


def minus(one: Number, other: Number) -> Number:
    """The difference of two numbers, exact whatever its digits."""
    if isinstance(one, int) and isinstance(other, int):
        return one - other
    return WIDE.subtract(one, other)


def number_text(value: int | Decimal) -> str:
    """The one spelling of a number: ``1.5``, ``100``, ``0``.

    Raises ``HandlerError`` where DynamoDB could not hold it.
    """
    if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:
        return f"{value}"
    if isinstance(value, int):  # too large, or of a class with a text of its own
        value = Decimal(int(value))
    text = str(value)
    # The usual number is its own text, less zeros at its end; exponents, NaN and Infinity hold a capital letter.
    if len(text) <= DIGITS_MAX and "E" not in text and "N" not in text and "I" not in text:
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if not value.is_finite():
        raise HandlerError(f"Number {redacted(value)} cannot be stored: expected a finite number.")
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    bare = text.rstrip("0")
    if not bare:
        return "0"
    shift = cast("int", exponent) + len(text) - len(bare)
    if len(bare) > DIGITS_MAX or not EXPONENT_MIN <= shift + len(bare) - 1 <= EXPONENT_MAX:
        raise HandlerError(
            f"Number {redacted(f'{value!s:.60}')} cannot be stored: DynamoDB holds {DIGITS_MAX} digits, from "
            f"1E{EXPONENT_MIN} to 9.99E+{EXPONENT_MAX}. {HOW_TO_ROUND}"
        )
    return format(Decimal((sign, tuple(map(int, bare)), shift)), "f")


def alike(one: Any, other: Any) -> bool:
    """Whether two decoded values are equal: numbers by value, ``True`` and ``False`` only to themselves."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def is_zero(value: Any) -> bool:
    """Whether a decoded value is the number 0, which means the same as no attribute."""
    return value is not False and bool(value == 0)


def divide(dividend: Number, divisor: Number, /, *, places: int, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """A quotient, rounded once, to so many places: ``divide(2, 3, places=2)`` is ``Decimal("0.67")``.

    ``rounding`` is one of decimal's, ``decimal.ROUND_HALF_UP``; the default rounds a tie to the even digit. Raises
    ``HandlerError`` for a divisor of 0, for a float, and for a quotient of more than 38 digits.
    """
    message = f"divide({shown(dividend)}, {shown(divisor)}, places={shown(places)})"
    above, below = _exact(dividend, message), _exact(divisor, message)
    if not below:
        raise HandlerError(f"{message} divides by zero: yield nothing for such an item, or choose a value for it.")
    return _rounded(LONG.divide(above, below), places, rounding, message)


def rounded(value: Number, /, *, places: int, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """A number with so many places: ``rounded(Decimal("2.345"), places=2)`` is ``Decimal("2.34")``.

    A whole number has them too: ``f"{rounded(3, places=2)}"`` is ``3.00``. Takes and raises what ``divide`` does.
    """
    message = f"rounded({shown(value)}, places={shown(places)})"
    return _rounded(_exact(value, message), places, rounding, message)


def inexact_text(error: DecimalException) -> str:
    """Why a handler's arithmetic is refused, and what to do instead."""
    signals = error.args[0] if error.args and isinstance(error.args[0], list) else [type(error)]
    names = {signal.__name__ for signal in signals}
    if isinstance(error, DivisionByZero) or "DivisionUndefined" in names:
        return "divided by zero: yield nothing for such an item, or choose a value for it."
    if "ConversionSyntax" in names:
        return "made a Decimal of text that is no number: yield nothing for such an item."
    what = type(error).__name__
    return (
        f"computed a number that {DIGITS_MAX} digits cannot hold exactly ({what}). Results are never rounded on the "
        f"way. {HOW_TO_ROUND}"
    )


def _exact(value: Any, message: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise HandlerError(f"{message} takes {shown(value)} of type {type(value).__name__}: expected int or Decimal.")
    if isinstance(value, Decimal) and not value.is_finite():
        raise HandlerError(f"{message} takes {shown(value)}: expected a finite number.")
    return Decimal(value)


def _rounded(value: Decimal, places: Any, rounding: str, message: str) -> Decimal:
    if isinstance(places, bool) or not isinstance(places, int) or not 0 <= places < DIGITS_MAX:
        raise HandlerError(f"{message} has places={shown(places)}: expected a whole number from 0 to {DIGITS_MAX - 1}.")
    context = Context(prec=DIGITS_MAX, rounding=rounding, traps=[InvalidOperation])
    try:
        found = value.quantize(Decimal(1).scaleb(-places), context=context)
    except InvalidOperation:
        raise HandlerError(f"{message} has more than {DIGITS_MAX} digits: expected fewer places.") from None
    return found or abs(found)  # no minus before a zero


def sortable(value: KeyValue | None) -> str:
    """Text for a key value; ``""`` for none. Types do not mix within one key attribute."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else _number(Decimal(number_text(value)))


def _number(value: Decimal) -> str:
    if not value:
        return "1"
    digits = "".join(map(str, value.as_tuple().digits)).rstrip("0")
    text = f"{value.adjusted() + EXPONENT_OFFSET:03d}{digits}"
    # A negative number of more digits is smaller: complement, and end above every digit.
    return f"2{text}" if value > 0 else f"0{text.translate(NINES)}~"


class Nothing(dict[str, Any]):
    """The empty mapping. Unlike other dicts it may be the default of an attribute; nobody adds to it."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return 0


class Value:
    """The methods of all values."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._held() == other._held()

    def __hash__(self) -> int:
        return hash(self._held())

    def __repr__(self) -> str:
        held = zip(self.__slots__, self._held(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={content!r}' for name, content in held)})"

    def _held(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__slots__])

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**{**dict(zip(self.__slots__, self._held(), strict=True)), **changes})


@dataclass_transform(frozen_default=True)
def value(made: type[T]) -> type[T]:
    """Makes a class of values. Type checkers refuse changes of an instance; nothing watches for them at run time."""
    return dataclass(slots=True, eq=False, repr=False, match_args=False)(made)


def decode(value: AttributeValue, level: int = 0) -> Any:
    """The Python value of a DynamoDB attribute value; binary may be bytes or base64 text.

    ``level`` is the depth of the value in an item; the item itself, as a map, is at level 0. Raises ``RecordError`` for
    a malformed value.
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
    """The message for a malformed attribute value: about its content, if it has one known type, or about its type."""
    tag = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else None
    content = CONTENTS.get(tag) if isinstance(tag, str) else None
    return f"expected one of {TAGS} with its content" if content is None else f"its content is no {content}"


def _inside(content: Any, level: int) -> Any:
    if level >= LEVELS_MAX and content:
        raise RecordError(f"A value is nested deeper than the {LEVELS_MAX} levels that DynamoDB holds.")
    return content


class StoredMap(Mapping[str, Any]):
    """A map as it is stored: encoded unchanged, and decoded where it is read.

    Its values must be encoded as ``encode`` does: numbers in their one spelling, binary as ``bytes``.
    """

    __slots__ = ("stored",)

    def __init__(self, stored: RawImage) -> None:
        self.stored: RawImage = stored

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
"""The expected content of each type, for messages."""
TAGS = "S N B BOOL NULL L M SS NS BS"


def encode(value: Any, level: int = 0) -> dict[str, Any]:
    """The DynamoDB attribute value of a Python value, binary as ``bytes``, members of sets sorted.

    ``datetime`` and ``date`` become UTC ISO text (``keys.field``). ``level`` is the depth of the value in an item; the
    item itself, as a map, is at level 0. Raises ``HandlerError`` for a float, a number beyond 38 digits, an empty set,
    a moment without a time zone, more than 32 levels, or a type that DynamoDB does not have.
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
            "bytes, at least one. Leave an empty set out; a list takes members of any types."
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


def same(one: AttributeValue | None, other: AttributeValue | None) -> bool:
    """Whether two attribute values are equal to DynamoDB: numbers by value, sets in any order, types apart."""
    if one == other:
        return True
    if one is None or other is None or one.keys() != other.keys() or len(one) != 1:
        return False
    (tag,) = one
    mine, theirs = one[tag], other[tag]
    try:
        if tag == "M":
            return mine.keys() == theirs.keys() and all(same(mine[name], theirs[name]) for name in mine)
        if tag == "L":
            return len(mine) == len(theirs) and all(same(one, other) for one, other in zip(mine, theirs, strict=True))
    except (AttributeError, TypeError):  # malformed: the handler that reads it raises the error
        return False
    return tag in ("N", "SS", "NS", "B", "BS") and bool(decode(one) == decode(other))


def base64_text(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{value!r} is not an attribute value")


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
    size = 0
    for name, value in encoded.items():
        size += _text_bytes(name)
        for tag, content in value.items():
            size += _text_bytes(content) if tag == "S" else _value_bytes(tag, content)
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _value_bytes(tag: str, content: Any) -> int:
    if tag == "S":
        return _text_bytes(content)
    if tag == "N":
        return len(content) // 2 + 2
    if tag == "B":
        return len(decode_binary(content))
    if tag in ("SS", "NS", "BS"):
        return 3 + sum(_value_bytes(tag[0], member) + 1 for member in content)
    if tag == "L":
        return 3 + sum(_value_bytes(*member) + 1 for each in content for member in each.items())
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


def request_json(parameters: Mapping[str, Any]) -> bytes:
    """The JSON of a request's parameters, in UTF-8. Raises ``TypeError`` for a value that JSON does not have."""
    if ORJSON is not None:
        try:
            return bytes(ORJSON.dumps(parameters, _binary))
        except TypeError:
            pass
    return REQUEST_JSON.encode(parameters).encode("ascii")


def parsed_response(text: bytes) -> Any:
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


REQUEST_JSON = Encoder(separators=(",", ":"), default=_binary)
