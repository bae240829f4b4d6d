"""The fields of a key template: how each is written, read back and recognised, and which templates overlap."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow, Subnormal
from typing import Any, Literal, NamedTuple, TypeGuard

from streamfold.errors import manual

DIGITS = frozenset("0123456789")

DATE = r"\d{4}-\d\d-\d\d"
NUMBERS = Context(prec=38, Emin=-130, Emax=125, traps=[Inexact, InvalidOperation, Overflow, Subnormal])
"""Numbers of DynamoDB (Developer Guide, HowItWorks.NamingRulesDataTypes)."""
PADDED = re.compile(r"0([1-9]\d?)d")
OFFSET = ".offset"
"""Ends the name of a time that is written with ``+00:00`` in place of ``Z``."""
SECOND_DIGITS = {"datetime": 6, "datetime.seconds": 0, "datetime.milliseconds": 3, "datetime.nanoseconds": 9}


class Atom(NamedTuple):
    """One character of ``allowed``, or any character but those ``refused`` when ``allowed`` is None.

    With ``repeat`` it is one or more of them, with ``optional`` one or none, with both any number. After its character,
    matching goes on ``advance`` atoms later: 1 is the next atom.
    """

    allowed: frozenset[str] | None = None
    refused: frozenset[str] = frozenset()
    repeat: bool = False
    optional: bool = False
    advance: int = 1

    def takes(self, character: str) -> bool:
        if self.allowed is not None:
            return character in self.allowed
        return character not in self.refused


Atoms = tuple[Atom, ...]
States = frozenset[int]

INTEGER: Atoms = (
    Atom(frozenset("0"), optional=True, advance=4),
    Atom(frozenset("-"), optional=True),
    Atom(DIGITS - {"0"}),
    Atom(DIGITS, repeat=True, optional=True),
)
"""A whole number as ``str`` writes it: 0, or digits that begin with another, with or without a sign."""


def literal(text: str) -> Atoms:
    """The atoms that match exactly this text."""
    return tuple(Atom(frozenset(character)) for character in text)


def overlaps(one: Atoms, other: Atoms) -> bool:
    """Whether some text belongs to both."""
    if one == other:  # as for the target of one handler that is the source of another: no walk needed
        return True
    if _begin_differently(one, other):
        return False
    return _walk(one, other, lambda in_one, in_other: in_one and in_other)


def contains(outer: Atoms, inner: Atoms) -> bool:
    """Whether every text of ``inner`` belongs to ``outer``."""
    if outer == inner:
        return True
    if _begin_differently(outer, inner):
        return False
    return not _walk(inner, outer, lambda in_inner, in_outer: in_inner and not in_outer)


def _begin_differently(one: Atoms, other: Atoms) -> bool:
    """Whether the literals that both begin with differ: true of most pairs, and seen without a walk."""
    for mine, theirs in zip(one, other, strict=False):
        if not (_is_literal(mine) and _is_literal(theirs)):
            return False
        if mine != theirs:
            return True
    return False


def _is_literal(atom: Atom) -> bool:
    return atom.allowed is not None and len(atom.allowed) == 1 and not (atom.repeat or atom.optional)


def _walk(one: Atoms, other: Atoms, found: Callable[[bool, bool], bool]) -> bool:
    """Whether some text brings both automata to a pair of results that ``found`` accepts."""
    alphabet = _alphabet(one + other)
    start = (_closure(one, {0}), _closure(other, {0}))
    seen, waiting = {start}, [start]
    while waiting:  # bounded by the pairs of state sets of two short templates
        states = waiting.pop()
        if found(len(one) in states[0], len(other) in states[1]):
            return True
        for character in alphabet:
            following = (_step(one, states[0], character), _step(other, states[1], character))
            if following not in seen and following[0]:
                seen.add(following)
                waiting.append(following)
    return False


def _alphabet(atoms: Atoms) -> list[str]:
    """Every character that is named, and one that is named nowhere."""
    named = set().union(*((atom.allowed or atom.refused) for atom in atoms)) if atoms else set()
    other = next(chr(code) for code in range(0x2460, 0x2460 + len(named) + 1) if chr(code) not in named)
    return [*sorted(named), other]


def _closure(atoms: Atoms, states: Iterable[int]) -> States:
    """These states, and the states that follow without a character, over optional atoms."""
    reached: set[int] = set()
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        reached.add(state)
        if state < len(atoms) and atoms[state].optional:
            waiting.append(state + 1)
    return frozenset(reached)


def _step(atoms: Atoms, states: States, character: str) -> States:
    following = set()
    for state in states:
        if state < len(atoms) and atoms[state].takes(character):
            following.add(state + atoms[state].advance)
            if atoms[state].repeat:
                following.add(state)
    return _closure(atoms, following)


SECOND_DIGITS |= {spec + OFFSET: digits for spec, digits in SECOND_DIGITS.items()}
"""Digits of a second, by the field's name."""
ANY_TIME = "datetime.any"
EPOCH_DIGITS = {"seconds": 10, "milliseconds": 13}
"""Digits of a time since 1970, by unit: times from 2001 to 2286 have this number of digits without a leading zero."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS = {unit: timedelta(**{unit: 1}) for unit in EPOCH_DIGITS}
TIME_TEXTS = (*SECOND_DIGITS, ANY_TIME, *(f"epoch.{unit}" for unit in EPOCH_DIGITS))
TIME_NUMBERS = tuple(f"number.{unit}" for unit in EPOCH_DIGITS)
KINDS = (
    "{name}, {name:rest}, {name:06d}, {name:d}, {name:date}, {name:datetime}, {name:ulid}, {name:number}, "
    "{name:binary}, or another form of a time, such as {name:datetime.milliseconds}, {name:datetime.any}, "
    f"{{name:epoch.seconds}} or {{name:number.seconds}} ({manual('times')})"
)
ULID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32 (ULID specification, github.com/ulid/spec)."""
ULID_LENGTH = 26
ULID_TIME_LENGTH = 10
"""Letters that hold the milliseconds since 1970: 48 bits, so the first is 7 at most."""
ULID = f"[0-7][{ULID_LETTERS}]{{25}}"
"""Expressions of fields that few templates have: compiled when one is written, not at every start."""
MICROSECOND_DIGITS = 6
NO_ZONE = "it has no time zone; give one, for example datetime.now(UTC)"
NO_MOMENT = "it is not a moment like 2026-03-01T10:00:00Z"
ANY_PATTERN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|\+00:00)"


class Unreadable(Exception):  # noqa: N818 - internal: the key adds the template and raises KeyValueError
    """A value that could not be read back from the text it would make."""


class KeyTime(datetime):
    """A time that was read from a key, with the text that it had there: written again, it makes the same key.

    ``nanoseconds``: 0 to 999, the digits of the text beyond microseconds. A time computed from it has neither.
    """

    text: str | None = None
    nanoseconds: int = 0

    @classmethod
    def of(cls, text: str) -> "KeyTime":
        """The time of an ISO 8601 text. Raises ``ValueError`` for any other text."""
        found = cls.fromisoformat(text)
        fraction = re.search(r"\.\d{6}(\d+)", text)
        found.text, found.nanoseconds = text, int(fraction[1].ljust(3, "0")[:3]) if fraction else 0
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy without its text would make another key.
        return super().__reduce_ex__(protocol) if self.text is None else (KeyTime.of, (self.text,))


class Field(NamedTuple):
    """One field of a template: ``pattern`` recognises its text, ``write`` and ``read`` are inverse.

    ``atoms`` are the texts to compare templates by: those of the pattern. ``keeps_text``: several texts have one value,
    which remembers its text; another kind of field would read them as one value.
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
    keeps_text: bool = False

    def reads(self, text: str) -> bool:
        """Whether a text is one of this field."""
        try:
            return bool(re.fullmatch(self.pattern, text, re.DOTALL | re.ASCII)) and self.read(text) is not None
        except Unreadable:
            return False

    def __str__(self) -> str:
        return "{" + self.name + (f":{self.spec}" if self.spec else "") + "}"


def make_field(name: str, spec: str, delimiter: str) -> Field | None:
    """The field of this kind; None for an unknown kind."""
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
    if spec in TIME_TEXTS or spec in TIME_NUMBERS:
        return _time(name, spec)
    if spec == "ulid":
        atoms = (Atom(frozenset("01234567")), *(Atom(frozenset(ULID_LETTERS)),) * (ULID_LENGTH - 1))
        return Field(name, spec, str, ULID, atoms, _write_ulid, _same, "S", True)
    if spec == "number":
        return Field(name, spec, Decimal, "", (), _number, _same, "N")
    if spec == "binary":
        return Field(name, spec, bytes, "", (), _binary, _same, "B")
    return None


def nearest_spec(spec: str) -> str | None:
    """The name of a kind of field that is spelled much like this."""
    names = ("rest", "06d", "d", "date", "ulid", "number", "binary", *TIME_TEXTS, *TIME_NUMBERS)
    from difflib import get_close_matches  # only for a message: a function's start should not pay for it

    found = get_close_matches(spec, names, 1)
    return found[0] if found else None


def time_spec(value: object) -> str | None:
    """The kind of field that takes a value as a time; None if none does. A number from 1970 on is one of seconds,
    unless it has too many digits.
    """
    if isinstance(value, str):
        return next((spec for spec in (*SECOND_DIGITS, *TIME_TEXTS) if _is_of(spec, value)), None)
    if not _is_number(value):
        return None
    return next((spec for spec in TIME_NUMBERS if _is_of(spec, value)), None)


def _is_of(spec: str, value: str | int | Decimal) -> bool:
    field = make_field("x", spec, "")
    assert field is not None
    if isinstance(value, str):
        return field.reads(value)
    try:
        return bool(field.read(value))
    except Unreadable:
        return False


def equal_values(one: object, other: object) -> bool:
    """Whether two values of a field make one text: times that remember their texts may be equal, and make two."""
    return one == other and getattr(one, "text", None) == getattr(other, "text", None)


def datetime_text(value: datetime, digits: int = 6) -> str:
    """The one form in which a moment is written: UTC ISO 8601, fixed width, ``2026-03-01T10:00:00.000000Z``.

    Raises ``Unreadable`` when the moment has no time zone, or when ``digits`` of a second, 6 at most, cannot hold it.
    """
    if value.tzinfo is None:
        raise Unreadable(NO_ZONE)
    if value.microsecond % 10 ** (6 - digits):
        raise Unreadable(f"its microseconds do not fit {digits} digits of a second")
    try:
        text = value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    except OverflowError:
        raise Unreadable("it is outside the years 1 to 9999 in UTC") from None
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


ANY_ATOMS: Atoms = (
    *_shape("dddd-dd-ddTdd:dd:dd"),
    Atom(frozenset("Z"), optional=True, advance=19),  # to the end
    Atom(frozenset("+"), optional=True, advance=13),  # behind the other "+"
    *literal("."),
    Atom(DIGITS),
    *(Atom(DIGITS, optional=True),) * 8,
    Atom(frozenset("Z"), optional=True, advance=7),  # to the end
    *literal("+00:00"),
)
"""The texts of ``ANY_PATTERN``."""


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


def _time(name: str, spec: str) -> Field:
    if spec in SECOND_DIGITS:
        return _datetime(name, spec, SECOND_DIGITS[spec])
    if spec == ANY_TIME:
        return Field(name, spec, datetime, ANY_PATTERN, ANY_ATOMS, _write_any, _read_key_time, keeps_text=True)
    return _since_1970(name, spec)


def _datetime(name: str, spec: str, digits: int) -> Field:
    fraction = f"\\.\\d{{{digits}}}" if digits else ""
    end = "+00:00" if spec.endswith(OFFSET) else "Z"
    shape = "dddd-dd-ddTdd:dd:dd" + ("." + "d" * digits if digits else "") + end
    pattern = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d{fraction}{re.escape(end)}"
    exact = digits > MICROSECOND_DIGITS

    def write(value: object) -> str:
        moment = _moment(value)
        beyond = moment.nanoseconds if isinstance(moment, KeyTime) else 0
        if beyond and not exact:
            raise Unreadable(f"its nanoseconds do not fit {digits} digits of a second")
        text = datetime_text(moment, min(digits, MICROSECOND_DIGITS))
        return f"{text[:-1]}{beyond:03d}{end}" if exact else text[:-1] + end

    read = _read_key_time if exact else _read_datetime
    return Field(name, spec, datetime, pattern, _shape(shape), write, read, "S", True, exact)


def _moment(value: object) -> datetime:
    if isinstance(value, str):
        return _read_key_time(value)
    if not isinstance(value, datetime):
        raise Unreadable(f"it is of type {type(value).__name__}, not a datetime")
    return value


def _read_datetime(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Unreadable(NO_MOMENT) from None


def _read_key_time(text: str) -> KeyTime:
    try:
        return KeyTime.of(text)
    except ValueError:
        raise Unreadable(NO_MOMENT) from None


def _write_any(value: object) -> str:
    text = value.text if isinstance(value, KeyTime) else value
    if not isinstance(text, str):
        return datetime_text(_moment(value))
    if not re.fullmatch(ANY_PATTERN, text, re.ASCII):
        raise Unreadable(f"{NO_MOMENT} in UTC, with Z or +00:00")
    _read_key_time(text)
    return text


def _since_1970(name: str, spec: str) -> Field:
    form, _, unit = spec.partition(".")
    digits, of_one = EPOCH_DIGITS[unit], UNITS[unit]

    def write(value: object) -> int:
        moment = _moment(value)
        if moment.tzinfo is None:
            raise Unreadable(NO_ZONE)
        count, rest = divmod(moment - EPOCH, of_one)
        if rest or (isinstance(moment, KeyTime) and moment.nanoseconds):
            raise Unreadable(f"it is no whole number of {unit} since 1970")
        if not 0 <= count < 10**digits:
            raise Unreadable(f"its {unit} since 1970 do not have up to {digits} digits")
        return count

    def read(value: str | int | Decimal) -> datetime:
        count = int(value) if isinstance(value, str) or value == int(value) else -1
        if not 0 <= count < 10**digits:
            raise Unreadable(f"it is no number of {unit} since 1970, of up to {digits} digits")
        return EPOCH + count * of_one

    if form == "number":
        return Field(name, spec, datetime, "", (), write, read, "N")
    atoms = (Atom(DIGITS),) * digits
    return Field(
        name, spec, datetime, rf"\d{{{digits}}}", atoms, lambda value: f"{write(value):0{digits}d}", read, "S", True
    )


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
