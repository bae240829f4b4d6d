"""The kinds of field that a key template may hold: how each is written, read back and recognised.

=========================  ======================  =============================================================
in a template              Python value            text in the key
=========================  ======================  =============================================================
``{name}``                 ``str``                 any text without the table's delimiter, one letter or more
``{name:rest}``            ``str``                 any text, one letter or more; only at the end of its part
``{name:06d}``             ``int``, 0 or more      zero padded to that width, so text order is numeric order
``{name:d}``               ``int``                 plain digits; text order is *not* numeric order
``{name:date}``            ``datetime.date``       ``2026-03-01``
``{name:datetime}``        ``datetime.datetime``   ``2026-03-01T10:00:00.000000Z``: UTC, so text order is time order
``{name:datetime.seconds}``, ``{name:datetime.milliseconds}``: the same with less; what would be cut off is refused
``{name:ulid}``            ``str``                 a ULID, 26 letters: text order is time order
``{name:number}``          ``int``, ``Decimal``    the whole key attribute, of DynamoDB type N
``{name:binary}``          ``bytes``               the whole key attribute, of DynamoDB type B
=========================  ======================  =============================================================
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow, Subnormal
from typing import Any, Literal, NamedTuple, TypeGuard

from streamfold.keys.template_language import DIGITS, INTEGER, Atom, Atoms, literal

DATE = r"\d{4}-\d\d-\d\d"
NUMBERS = Context(prec=38, Emin=-130, Emax=125, traps=[Inexact, InvalidOperation, Overflow, Subnormal])
"""Numbers of DynamoDB (Developer Guide, HowItWorks.NamingRulesDataTypes)."""
PADDED = re.compile(r"0([1-9]\d?)d")
MICROSECOND_DIGITS = {"datetime": 6, "datetime.milliseconds": 3, "datetime.seconds": 0}
KINDS = (
    "{name}, {name:rest}, {name:06d}, {name:d}, {name:date}, {name:datetime}, {name:ulid}, {name:number} or "
    "{name:binary}"
)
ULID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32 (ULID specification, github.com/ulid/spec)."""
ULID_LENGTH = 26
ULID_TIME_LENGTH = 10
"""Letters that hold the milliseconds since 1970: 48 bits, so the first is 7 at most."""
ULID = f"[0-7][{ULID_LETTERS}]{{25}}"
"""Expressions of fields that few templates have: compiled when one is written, not at every start."""


class Unreadable(Exception):  # noqa: N818 - internal: the key adds the template and raises KeyValueError
    """A value that could not be read back from the text it would make."""


class Field(NamedTuple):
    """One field of a template: ``pattern`` recognises its text, ``write`` and ``read`` are inverse.

    ``atoms`` are the texts to compare templates by: those of the pattern.
    """

    name: str
    spec: str
    python_type: type
    pattern: str
    atoms: Atoms
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    attribute_type: Literal["S", "N", "B"] = "S"
    fixed_width: bool = False

    def reads(self, text: str) -> bool:
        """Whether a text is one of this field."""
        try:
            return bool(re.fullmatch(self.pattern, text, re.DOTALL | re.ASCII)) and self.read(text) is not None
        except Unreadable:
            return False

    def __str__(self) -> str:
        return "{" + self.name + (f":{self.spec}" if self.spec else "") + "}"


def make_field(name: str, spec: str, delimiter: str) -> Field | None:
    """The field of this kind, or None when there is no such kind."""
    if spec == "":
        return _text(name, delimiter)
    if spec == "rest":
        return Field(name, spec, str, ".+", (Atom(repeat=True),), _write_text, _same)
    if padded := PADDED.fullmatch(spec):
        return _padded(name, spec, int(padded[1]))
    if spec == "d":
        return Field(name, spec, int, r"0|-?[1-9]\d*", INTEGER, lambda value: str(_integer(value)), int)
    if spec == "date":
        return Field(name, spec, date, DATE, _shape("dddd-dd-dd"), _write_date, _read_date, "S", True)
    if spec in MICROSECOND_DIGITS:
        return _datetime(name, spec, MICROSECOND_DIGITS[spec])
    if spec == "ulid":
        atoms = (Atom(frozenset("01234567")), *(Atom(frozenset(ULID_LETTERS)),) * (ULID_LENGTH - 1))
        return Field(name, spec, str, ULID, atoms, _write_ulid, _same, "S", True)
    if spec == "number":
        return Field(name, spec, Decimal, "", (), _number, _same, "N")
    if spec == "binary":
        return Field(name, spec, bytes, "", (), _binary, _same, "B")
    return None


def datetime_text(value: datetime, digits: int = 6) -> str:
    """The one form in which a moment is written: UTC ISO 8601, fixed width, ``2026-03-01T10:00:00.000000Z``.

    Raises ``Unreadable`` when the moment has no time zone, or when ``digits`` of a second cannot hold it.
    """
    if value.tzinfo is None:
        raise Unreadable("it has no time zone; give one, for example datetime.now(UTC)")
    if value.microsecond % 10 ** (6 - digits):
        raise Unreadable(f"its microseconds do not fit {digits} digits of a second")
    try:
        text = value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    except OverflowError:
        raise Unreadable("it lies outside the years 1 to 9999 in UTC") from None
    return text[: 19 + (digits and digits + 1)] + "Z"


def ulid_milliseconds(ulid: str) -> int:
    """The time that a ULID begins with, in milliseconds since 1970."""
    milliseconds = 0
    for letter in ulid[:ULID_TIME_LENGTH]:
        milliseconds = milliseconds * len(ULID_LETTERS) + ULID_LETTERS.index(letter)
    return milliseconds


def ulid_of(milliseconds: int) -> str:
    """The smallest ULID of a time, in milliseconds since 1970: none of this time, or later, sorts before it."""
    letters = ""
    for _ in range(ULID_TIME_LENGTH):
        milliseconds, place = divmod(milliseconds, len(ULID_LETTERS))
        letters = ULID_LETTERS[place] + letters
    return letters.ljust(ULID_LENGTH, ULID_LETTERS[0])


def _write_ulid(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(ULID, value, re.ASCII):
        raise Unreadable("it is no ULID: expected 26 digits and capital letters without I, L, O and U, 7... at most")
    return value


def _same(value: Any) -> Any:
    return value


def _write_text(value: object) -> str:
    if not isinstance(value, str):
        raise Unreadable(
            f"it is of type {type(value).__name__} and would come back as text; give text or type the field"
        )
    if not value:
        raise Unreadable("it is empty, as no field may be: yield nothing for it, or a row of a key without the field")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unreadable("it holds half of a surrogate pair") from None
    return value


def _text(name: str, delimiter: str) -> Field:
    def write(value: object) -> str:
        if type(value) is str and value and value.isascii() and delimiter not in value:
            return value
        if delimiter in (text := _write_text(value)):
            raise Unreadable(f"it holds the delimiter {delimiter!r}; only a last field written {{{name}:rest}} may")
        return text

    refused = frozenset(delimiter)
    return Field(name, "", str, f"[^{re.escape(delimiter)}]+", (Atom(refused=refused, repeat=True),), write, _same)


def _integer(value: object) -> int:
    if not _is_number(value) or value != int(value):
        raise Unreadable("it is not a whole number")
    return int(value)


def _is_number(value: object) -> TypeGuard[int | Decimal]:
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) and not isinstance(value, bool)


def _padded(name: str, spec: str, width: int) -> Field:
    def write(value: object) -> str:
        number = _integer(value)
        if number < 0:
            raise Unreadable("it is negative, and padded text would not sort as its number")
        if len(text := f"{number:0{width}d}") > width:
            raise Unreadable(f"it has more than {width} digits, and padded text would not sort as its number")
        return text

    return Field(name, spec, int, rf"\d{{{width}}}", (Atom(DIGITS),) * width, write, int, "S", True)


def _shape(shape: str) -> Atoms:
    return tuple(Atom(DIGITS) if character == "d" else literal(character)[0] for character in shape)


def _write_date(value: object) -> str:
    if isinstance(value, str):
        return _read_date(value).isoformat()
    if isinstance(value, datetime) or not isinstance(value, date):
        raise Unreadable(f"it is of type {type(value).__name__}, not a date; a moment's day is moment.date()")
    return value.isoformat()


def _read_date(text: str) -> date:
    try:
        if not re.fullmatch(DATE, text, re.ASCII):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise Unreadable("it is not a date like 2026-03-01") from None


def _datetime(name: str, spec: str, digits: int) -> Field:
    fraction = f"\\.\\d{{{digits}}}" if digits else ""
    shape = "dddd-dd-ddTdd:dd:dd" + ("." + "d" * digits if digits else "") + "Z"

    def write(value: object) -> str:
        if isinstance(value, str):
            value = _read_datetime(value)
        if not isinstance(value, datetime):
            raise Unreadable(f"it is of type {type(value).__name__}, not a datetime")
        return datetime_text(value, digits)

    pattern = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d{fraction}Z"
    return Field(name, spec, datetime, pattern, _shape(shape), write, _read_datetime, "S", True)


def _read_datetime(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Unreadable("it is not a moment like 2026-03-01T10:00:00Z") from None


def _number(value: object) -> int | Decimal:
    if not _is_number(value):
        raise Unreadable("it is not a number (int or Decimal)")
    try:
        NUMBERS.create_decimal(value)
    except DecimalException:
        raise Unreadable("DynamoDB holds 38 digits, from 1E-130 to 9.99E+125") from None
    return value


def _binary(value: object) -> bytes:
    if not isinstance(value, bytes) or not value:
        raise Unreadable("it is not bytes with content")
    return value
