"""The values that a type of a mapping takes, by type (``CHECKS``).

Measured on OpenSearch 2.19.6 and 3.6.0, as ``accepts.py``, which applies the checks to documents.
"""

import re
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from ipaddress import ip_address, ip_network
from math import inf, isfinite, nan, trunc
from typing import Any

TERM_BYTES_MAX = 32_766
"""The longest value of a keyword (Lucene, IndexWriter.MAX_TERM_LENGTH)."""
NUMBER_LETTERS_MAX = 1000
"""The longest literal of a number (Jackson, StreamReadConstraints)."""
MIN_NANOS, MAX_NANOS = 1970, 2262
"""The first and the last year of ``date_nanos``."""

Check = Callable[[Any, Mapping[str, Any]], str | None]
"""Why a value is refused under the options of its field; None if it is taken."""


def is_true(value: object) -> bool:
    return value is True or value == "true"


def is_false(value: object) -> bool:
    return value is False or value == "false"


def is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Whole:
    """Checks whole numbers. A fraction is cut off before or after the check of the range, as on the server."""

    minimum: int
    most: int
    cuts_numbers: bool
    cuts_texts: bool
    reads_floats: bool  # texts are read as floating-point numbers, with spaces, NaN and suffixes

    def __call__(self, value: Any, options: Mapping[str, Any]) -> str | None:
        number, why = _read_number(value, options, floats=self.reads_floats)
        if why or number is None or number != number:  # noqa: PLR0124 - NaN
            return why
        if not isinstance(value, str) and is_false(options["coerce"]) and number != _cut(number):
            return f"{value} cannot be converted without data loss"
        cuts = self.cuts_texts if isinstance(value, str) else self.cuts_numbers
        if not self.minimum <= (_cut(number) if cuts else number) <= self.most:
            return f"value [{value}] is out of range"
        return None


@dataclass(frozen=True, slots=True)
class Floating:
    """Checks floating-point numbers, which must be finite in their format (of ``struct``)."""

    format: str

    def __call__(self, value: Any, options: Mapping[str, Any]) -> str | None:
        number, why = _read_number(value, options, floats=True)
        if why or number is None:
            return why
        try:
            is_finite = isfinite(struct.unpack(self.format, struct.pack(self.format, float(number)))[0])
        except OverflowError:
            is_finite = False
        return None if is_finite else f"only finite values are supported, but got [{value}]"


DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+", re.ASCII)
BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's ``trim`` removes."""


def _read_number(value: Any, options: Mapping[str, Any], *, floats: bool) -> tuple[Any, str | None]:
    """A number, or the reason why there is none; neither for an empty text."""
    if is_number(value):
        return value, None
    if not isinstance(value, str):
        return None, f"a value of type {type(value).__name__} is not numeric"
    if is_false(options["coerce"]):
        return None, "the number is passed as text"
    if not value:
        return None, None
    text = value.strip(BLANKS) if floats else value
    if floats and text.lstrip("+-") in ("NaN", "Infinity"):
        return (nan if text.endswith("N") else -inf if text[0] == "-" else inf), None
    if floats and HEXADECIMAL.fullmatch(text.rstrip("dDfF") if "p" in text.lower() else text):
        return float.fromhex(text.rstrip("dDfF")), None
    if floats and text[-1:] in tuple("dDfF"):
        text = text[:-1]
    if not DECIMAL.fullmatch(text):
        return None, f"for input [{value}]"
    try:
        return Decimal(text), None
    except InvalidOperation:  # an exponent that no number has
        return inf, None


def _cut(number: Any) -> Any:
    try:
        if abs(number) < 1:
            return 0
        return number if isinstance(number, Decimal) and number.adjusted() > NUMBER_LETTERS_MAX else trunc(number)
    except OverflowError:
        return number


def _boolean(value: Any, options: Mapping[str, Any]) -> str | None:
    del options
    if isinstance(value, bool) or (isinstance(value, str) and value in ("true", "false", "")):
        return None
    return f"[{value}] is not a boolean: only [true] or [false] are allowed"


def _keyword(value: Any, options: Mapping[str, Any]) -> str | None:
    if isinstance(value, Mapping):
        return "cannot get text on an object"
    kept = not (is_false(options.get("index")) and is_false(options.get("doc_values")))
    return _immense(value, options.get("ignore_above")) if kept else None


def _immense(value: Any, ignore_above: Any = None) -> str | None:
    text = str(value)
    if len(text) * 4 <= TERM_BYTES_MAX or len(text.encode("utf-16-le")) // 2 > int(ignore_above or 2**31 - 1):
        return None
    size = len(text.encode())
    return None if size <= TERM_BYTES_MAX else f"an immense term of {size} bytes: {TERM_BYTES_MAX} at most"


def _text(value: Any, options: Mapping[str, Any]) -> str | None:
    if isinstance(value, Mapping):
        return "cannot get text on an object"
    is_one_term = options.get("analyzer") == "keyword" and not is_false(options.get("index"))
    return _immense(value) if is_one_term else None


def _constant(value: Any, options: Mapping[str, Any]) -> str | None:
    if isinstance(value, Mapping):
        return "cannot get text on an object"
    wanted = options.get("value")
    return None if wanted is None or str(value) == str(wanted) else f"the field must have the value [{wanted}]"


def _ip(value: Any, options: Mapping[str, Any]) -> str | None:
    del options
    try:
        ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return f"[{value}] is not an IP string literal"
    return None


def _binary(value: Any, options: Mapping[str, Any]) -> str | None:
    if isinstance(value, Mapping):
        return "cannot get text on an object"
    if not is_true(options.get("doc_values")):
        return None
    try:
        b64decode(value if isinstance(value, str) else "!", validate=True)
    except ValueError:
        return "expected base64 text"
    return None


def _flat_object(value: Any, options: Mapping[str, Any]) -> str | None:
    del options
    return None if isinstance(value, Mapping) else "expected an object"


def _completion(value: Any, options: Mapping[str, Any]) -> str | None:
    del options
    if isinstance(value, Mapping):
        unknown = value.keys() - {"input", "weight", "contexts"}
        return f"unknown field name [{min(unknown)}]" if unknown else None
    return None if isinstance(value, str) else "expected text or an object"


# --- dates ------------------------------------------------------------------------------------------------------------

DEFAULT_FORMATS = "strict_date_time_no_millis||strict_date_optional_time||epoch_millis"
EPOCH = re.compile(r"-?\d+(?:\.\d*)?", re.ASCII)
YEAR = r"(?P<y>[+-]\d{4,9}|\d{4})"
DAY = r"-(?P<M>\d\d)-(?P<d>\d\d)"
ZONE = r"(?:Z|[+-](?P<zh>\d\d)(?::?(?P<zm>\d\d))?|[A-Z][A-Za-z_]*(?:[/+-][A-Za-z0-9_+-]+)*)"
SECONDS = r"(?P<H>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
OPTIONAL_TIME = (
    rf"{YEAR}(?:-(?P<M>\d\d)(?:-(?P<d>\d\d)(?:T(?:(?P<H>\d\d)(?::(?P<m>\d\d)(?::(?P<s>\d\d)(?:[.,]\d{{1,9}})?)?)?"
    rf"{ZONE}?)?)?)?)?"
)
FORMATS = {
    name: re.compile(pattern, re.ASCII)
    for name, pattern in {
        "strict_date_optional_time": OPTIONAL_TIME,
        "strict_date_optional_time_nanos": OPTIONAL_TIME,
        "iso8601": OPTIONAL_TIME,
        "strict_date_time_no_millis": rf"{YEAR}{DAY}T{SECONDS}{ZONE}",
        "strict_date_time": rf"{YEAR}{DAY}T{SECONDS}(?:\.\d{{1,9}})?{ZONE}",
        "strict_date_hour_minute_second": rf"{YEAR}{DAY}T{SECONDS}",
        "strict_date": r"[+-]?\d{4,9}-\d\d-\d\d",
        "strict_year": YEAR,
        "basic_date": r"(?P<y>\d{4})(?P<M>\d\d)(?P<d>\d\d)",
    }.items()
}
"""Formats of dates with known texts; the groups have the letters of Java's patterns."""
LETTERS = {"yyyy": r"(?P<y>\d{4})", "uuuu": r"(?P<y>\d{4})"} | {
    letter * 2: rf"(?P<{letter}>\d\d)" for letter in ("M", "d", "H", "m", "s")
}


SORTED_DATE = re.compile(r"\d{4}(?:-\d\d(?:-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{3})?)?Z?)?)?)?", re.ASCII)
"""Dates of one length whose texts sort as their times."""


def _date(value: Any, options: Mapping[str, Any]) -> str | None:
    if isinstance(value, Mapping | bool):
        return "expected a date"
    text, formats = str(value), str(options.get("format", DEFAULT_FORMATS)).split("||")
    for name in formats:
        if (taken := _in_format(text, name)) is None or taken:
            return None
    return f"failed to parse date field [{text}] with format [{'||'.join(formats)}]"


def _date_nanos(value: Any, options: Mapping[str, Any]) -> str | None:
    if why := _date(value, options):
        return why
    if "format" in options:
        return None
    text = str(value)
    found = FORMATS["strict_date_optional_time"].fullmatch(text)
    year = int(found["y"]) if found else 1970 + Decimal(text) / (1000 * 86_400 * 366)
    is_in_range = MIN_NANOS <= year <= MAX_NANOS
    return None if is_in_range else f"date [{text}] is outside of the years {MIN_NANOS} to {MAX_NANOS}"


def _in_format(text: str, name: str) -> bool | None:
    """Whether a text has a format; None for an unknown format."""
    if name in ("epoch_millis", "epoch_second"):
        return EPOCH.fullmatch(text) is not None and abs(int(text.partition(".")[0])) < 2**63
    pattern = FORMATS.get(name) or _pattern(name)
    if pattern is None:
        return None
    found = pattern.fullmatch(text)
    return found is not None and _is_moment(found.groupdict())


def _pattern(name: str) -> re.Pattern[str] | None:
    """A pattern of Java's as a regular expression, if all of its fields have a fixed width."""
    parts = re.findall(r"([A-Za-z])(\1*)|'([^']*)'|(.)", name)
    texts = [
        LETTERS.get(letter + more) if letter else re.escape(quoted + other) for letter, more, quoted, other in parts
    ]
    known = [text for text in texts if text is not None]
    names = re.findall(r"\?P<(\w)>", "".join(known))
    if len(known) < len(texts) or len(names) > len(set(names)) or "y" not in names:
        return None
    return re.compile("".join(known), re.ASCII)


def _is_moment(parts: Mapping[str, str | None]) -> bool:
    if not ({"M", "H", "zh"} & {name for name, value in parts.items() if value}):
        return True
    year, month, day = (int(parts.get(name) or 1) for name in "yMd")
    hour, minute, second = (int(parts.get(name) or 0) for name in "Hms")
    zone = int(parts.get("zh") or 0) * 60 + int(parts.get("zm") or 0)
    try:
        date(2000 + year % 400, month, day)  # leap years repeat after 400 years
    except ValueError:
        return False
    return hour <= 23 and minute <= 59 and second <= 59 and zone <= 18 * 60 and int(parts.get("zm") or 0) <= 59


# --- ranges and points ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """Checks a range of values of another type."""

    bound: Check

    def __call__(self, value: Any, options: Mapping[str, Any]) -> str | None:
        if not isinstance(value, Mapping):
            return "expected an object with gte, gt, lte or lt"
        if unknown := value.keys() - {"gte", "gt", "lte", "lt"}:
            return f"unknown parameter [{min(unknown)}]"
        for each in value.values():
            if each is not None and (why := self.bound(each, options)):
                return why
        return _crossed(value, self.bound, options)


def _crossed(bounds: Mapping[str, Any], bound: Check, options: Mapping[str, Any]) -> str | None:
    """Whether a range ends before it begins: ``gt`` and ``lt`` exclude their value. Only two numbers, or two dates in
    one format, are compared.
    """
    minimum, most = (bounds.get(name, bounds.get(other)) for name, other in (("gte", "gt"), ("lte", "lt")))
    is_above, is_below = bounds.get("gte") is None, bounds.get("lte") is None
    if isinstance(bound, Whole) and is_number(minimum) and is_number(most):
        is_crossed = _cut(minimum) + is_above > _cut(most) - is_below
    elif (is_number(minimum) and is_number(most)) or _are_like_dates(minimum, most, options):
        is_crossed = minimum > most or (minimum == most and (is_above or is_below))
    else:
        return None
    return f"min value ({minimum}) is greater than max value ({most})" if is_crossed else None


def _are_like_dates(one: Any, other: Any, options: Mapping[str, Any]) -> bool:
    # Such dates sort as their times.
    are_texts = isinstance(one, str) and isinstance(other, str) and len(one) == len(other)
    return are_texts and "format" not in options and all(map(SORTED_DATE.fullmatch, (one, other)))


def _ip_range(value: Any, options: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return Range(_ip)(value, options)
    try:
        ip_network(value if "/" in value else "", strict=False)
    except ValueError:
        return f"expected [ip/prefix] but was [{value}]"
    return None


def _geo_point(value: Any, options: Mapping[str, Any]) -> str | None:
    del options
    if isinstance(value, Mapping):
        if "type" in value or "geohash" in value:  # other forms of a point, which are not checked
            return None
        if value.keys() != {"lat", "lon"}:
            return "field must be either [lat], [lon] or [geohash]"
        return _place(value["lat"], value["lon"])
    if isinstance(value, list):
        return _place(value[1], value[0]) if len(value) in (2, 3) else "expected a longitude and a latitude"
    if not isinstance(value, str) or not value:
        return "geo_point expected"
    parts = value.split(",")
    return _place(*parts[:2]) if len(parts) in (2, 3) else None  # a geohash, or well-known text


def _place(latitude: Any, longitude: Any) -> str | None:
    for name, given, most in (("latitude", latitude, 90), ("longitude", longitude, 180)):
        try:
            if isinstance(given, bool) or not abs(float(given)) <= most:
                return f"illegal {name} value [{given}]"
        except (TypeError, ValueError, OverflowError):
            return f"[{name}] must be a valid number"
    return None


LONG = Whole(-(2**63), 2**63 - 1, cuts_numbers=True, cuts_texts=True, reads_floats=False)
INTEGER = Whole(-(2**31), 2**31 - 1, cuts_numbers=False, cuts_texts=False, reads_floats=True)
FLOAT, DOUBLE = Floating("<f"), Floating("<d")
CHECKS: Mapping[str, Check] = {
    "long": LONG,
    "unsigned_long": Whole(0, 2**64 - 1, cuts_numbers=True, cuts_texts=True, reads_floats=False),
    "integer": INTEGER,
    "short": Whole(-(2**15), 2**15 - 1, cuts_numbers=True, cuts_texts=False, reads_floats=True),
    "byte": Whole(-(2**7), 2**7 - 1, cuts_numbers=True, cuts_texts=True, reads_floats=True),
    "float": FLOAT,
    "half_float": Floating("<e"),
    "double": DOUBLE,
    "scaled_float": DOUBLE,
    "boolean": _boolean,
    "keyword": _keyword,
    "text": _text,
    "match_only_text": _text,
    "search_as_you_type": _text,
    "wildcard": _text,
    "constant_keyword": _constant,
    "date": _date,
    "date_nanos": _date_nanos,
    "ip": _ip,
    "binary": _binary,
    "flat_object": _flat_object,
    "completion": _completion,
    "geo_point": _geo_point,
    "integer_range": Range(INTEGER),
    "long_range": Range(LONG),
    "float_range": Range(FLOAT),
    "double_range": Range(DOUBLE),
    "date_range": Range(_date),
    "ip_range": _ip_range,
}
"""The types that are checked."""
