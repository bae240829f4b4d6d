"""Replaces the values of records by others, so that a recording can be shared and still derives the same rows.

A value is replaced token by token: a word, a run of digits, a time. One token has one substitute wherever it is, so
keys, references, copies and composed keys agree, and values that differ still differ. The secret behind the substitutes
is drawn for each run and kept nowhere.

- **Words** get letters drawn from the secret, in the same case. Text in binary values is text.
- **Numbers**, also in texts, keep their order, sign, number of digits and whether they have a fraction.
- **Times** in all notations are shifted by one secret number of weeks. Their order, weekdays and intervals stay, and
  times of one day, week or month remain in one day, week or month.
"""

import hmac
import json
import re
import secrets
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal, localcontext
from typing import Any

from streamfold.keys.field import ULID_LETTERS, ULID_TIME_LENGTH, ulid_milliseconds, ulid_of
from streamfold.records.values import DIGITS_MAX, LONG, AttributeValue

FACTOR_MAX = 97
"""The greatest factor of such amounts: one that is secret, and the same for all, so that sums of 0 stay."""
TRIES_MAX = 100
"""Substitutes of one length that are tried, before a longer one is taken."""
WEEKS_MAX = 1_980
"""The greatest move of times, in weeks: times since 2001 then keep the number of digits that they have as seconds."""
RECENT_DAYS = 730
"""The days whose months stay apart, where most times are. Months of others, as of birthdays, may join or divide."""
CYCLE_WEEKS = 1461
"""After 28 years every date has its weekday again (until 2100): the move if no other keeps all months apart."""
SECONDS_A_WEEK = 7 * 86_400
EPOCH, FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2001, 9, 9), date(2099, 12, 31)
LAST_SHIFTED = date(2065, 1, 1)
EPOCH_SECONDS = (1_000_000_000, 3_000_000_000)
EPOCH_END = 4_200_000_000
"""Whole numbers that are taken for times, from 2001 to 2065; and above all shifted ones."""
MILLION = 1_000_000
UNITS = (1, 1_000, MILLION, 1_000 * MILLION)
YEARS = (1900, 2100)
MONTHS_A_YEAR = 12
DAY = r"(?:19|20)\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
TOKEN = re.compile(
    rf"(?P<day>(?<![0-9A-Za-z-]){DAY}(?![0-9-]))(?P<clock>[T ]\d\d(?::\d\d){{0,2}}(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|(?P<week>(?<![0-9A-Za-z-])(?:19|20)\d\d-W[0-5]\d(?![0-9A-Za-z]))"
    r"|(?P<month>(?<![0-9A-Za-z-])(?:19|20)\d\d-(?:0[1-9]|1[0-2])(?![0-9A-Za-z-]))"
    r"|(?P<uuid>(?<![0-9A-Za-z])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z]))"
    rf"|(?P<ulid>(?<![0-9A-Za-z])[0-7][{ULID_LETTERS}]{{25}}(?![0-9A-Za-z]))"
    r"|(?P<decimal>(?<![\w.])\d{1,30}\.\d{1,20}(?![\w.]))"
    r"|(?P<counted>(?<![0-9A-Za-z])(?P<letters>[^\W\d_]{1,4})(?P<digits>[0-9]+)(?![^\W_]))"
    r"|(?P<number>(?<![^\W_])[0-9]+(?![^\W_]))"
    r"|(?P<word>[^\W_]+)"
)
JSON_SYNTAX = re.compile(
    r'"(?:[^"\\]|\\.)*"\s*:|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?[eE][+-]?\d+|\\u[0-9a-fA-F]{4}|\\.'
)
"""What stays of a text of JSON: names of objects, words that are no texts, numbers with exponents, escapes."""
VALUES_OF_NAMES = ("day", "week", "month", "uuid", "ulid", "number")
"""Tokens that are names of a dictionary, and not of a map that the application's code knows."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HEXADECIMAL = "0123456789abcdef"
DIGITS = "0123456789"
UUID_TIME_DIGITS = 12
"""Digits of a UUID of version 7 that are milliseconds since 1970 (RFC 9562, 5.7)."""
UUID_VERSION = 14
"""The position of a UUID's version."""
KEPT_IDENTITY = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
ACCOUNT = "123456789012"
KEPT_NUMBERS = (0, 1)
DRAWN_MIN = 10
"""Whole numbers below stay: there are too few to draw from, and most are counts."""


@dataclass
class KeptValues:
    """What is not replaced: the tokens, and the values that they are from, by attribute."""

    words: set[str] = field(default_factory=set)  # in lower case
    identifiers: set[str] = field(default_factory=set)  # values of keys' fields, which are replaced as names, too
    numbers: set[Decimal] = field(default_factory=set)
    balanced: set[Decimal] = field(default_factory=set)  # numbers whose sums stay 0: ``balanced_numbers``
    values: dict[str, list[str]] = field(default_factory=dict)

    def keep(self, text: str) -> None:
        """Keeps the tokens of a text."""
        for token in TOKEN.finditer(text):
            if token["word"] or token["counted"]:
                self.words.add(token[0].lower())
            elif token["number"] or token["decimal"]:
                self.numbers.add(Decimal(token[0]))


def scalars(path: str, value: AttributeValue) -> Iterator[tuple[str, str, str]]:
    """Texts, numbers and binary values in a value, each with the path of its attribute and its type; and the names of
    maps, with the type ``M``.
    """
    for tag, content in value.items():
        match tag:
            case "S" | "N" | "B":
                yield path, tag, content
            case "SS" | "NS" | "BS":
                yield from ((path, tag[0], member) for member in content)
            case "L":
                yield from (each for member in content for each in scalars(path, member))
            case "M":
                for name, member in content.items():
                    yield path, tag, name
                    yield from scalars(f"{path}.{name}", member)


class Pseudonyms:
    """Substitutes for the values of some records. All of them are looked at first: order needs all numbers."""

    def __init__(self, records: Iterable[Mapping[str, Any]], kept: KeptValues) -> None:
        self.kept = kept
        self._secret = secrets.token_bytes(32)
        self._random = secrets.SystemRandom()
        self._substitutes: dict[tuple[str, str], str] = {}
        self._used: set[tuple[str, str]] = set()
        self._binary: dict[bytes, bytes] = {}
        self._used_bytes: set[bytes] = set()
        self._days: set[date] = set()
        numbers: set[Decimal] = {Decimal(each) for each in KEPT_NUMBERS} | kept.numbers
        for record in records:
            self._look(record, numbers)
        self.weeks = self._move()
        newest = _densest(sorted(self._days) or [FIRST_DAY])[-1]
        self._months = _month_of(newest + timedelta(weeks=self.weeks)) - _month_of(newest)
        fixed = kept.numbers | set(map(Decimal, KEPT_NUMBERS))
        self._numbers = _Ordered(numbers - kept.balanced, fixed - kept.balanced, self._random)
        self._factor = self._scale(fixed - {Decimal(0)})

    def record(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A record with its substitutes. Sequence numbers stay, and so does the mark of an expiry."""
        body = dict(raw["dynamodb"])
        for name in ("Keys", "OldImage", "NewImage"):
            if body.get(name):
                body[name] = {attribute: self.value(value) for attribute, value in body[name].items()}
        if "ApproximateCreationDateTime" in body:
            body["ApproximateCreationDateTime"] += self.weeks * SECONDS_A_WEEK
        made = {name: value for name, value in raw.items() if name != "userIdentity"} | {"dynamodb": body}
        if raw.get("userIdentity") == KEPT_IDENTITY:
            made["userIdentity"] = KEPT_IDENTITY
        if isinstance(raw.get("eventID"), str):
            made["eventID"] = self._hashed("event", raw["eventID"], HEXADECIMAL, 32)
        if isinstance(arn := raw.get("eventSourceARN"), str):
            head, label = arn.partition("/stream/")[::2]
            head = re.sub(r":\d{12}:table/", f":{ACCOUNT}:table/", head)
            made["eventSourceARN"] = f"{head}/stream/{self.text(label)}"
        return made

    def value(self, value: AttributeValue) -> AttributeValue:
        """The substitute of an attribute value, at any depth. Names of attributes stay, identifiers as names do not."""
        made: dict[str, Any] = {}
        for tag, content in value.items():
            match tag:
                case "S":
                    made[tag] = self.text(content)
                case "N":
                    made[tag] = self.number(content)
                case "B":
                    made[tag] = self.binary(content)
                case "SS" | "NS" | "BS":
                    made[tag] = [self.value({tag[0]: member})[tag[0]] for member in content]
                case "L":
                    made[tag] = [self.value(member) for member in content]
                case "M":
                    made[tag] = {self._name(name): self.value(member) for name, member in content.items()}
                case _:
                    made[tag] = content
        return made

    def text(self, text: str) -> str:
        """The substitute of a text: of each of its tokens, with what is between them."""
        return "".join(piece if kept else TOKEN.sub(self._token, piece) for piece, kept in _pieces(text))

    def number(self, text: str) -> str:
        value = Decimal(text)
        return f"{'-' if value < 0 else ''}{self._substitute(abs(value)):f}"

    def binary(self, content: str) -> str:
        """The substitute of a binary value in base64: of its text, if it is one, else as many other bytes."""
        given = b64decode(content)
        if given not in self._binary:
            self._binary[given] = self._bytes(given)
            self._used_bytes.add(self._binary[given])
        return b64encode(self._binary[given]).decode()

    def _bytes(self, given: bytes) -> bytes:
        if (text := _text_of(given)) is not None:
            return self.text(text).encode()
        for attempt in range(TRIES_MAX * TRIES_MAX):
            found = self._stream(f"binary/{attempt}", given, len(given) + (attempt >= TRIES_MAX))
            if found not in self._used_bytes and _text_of(found) is None:
                return found
        raise AssertionError("more binary values than there are")  # 256 of each length are tried by chance

    def _name(self, name: str) -> str:
        # A map with identifiers as names is a dictionary; other names are part of the application's code.
        found = TOKEN.fullmatch(name)
        is_value = "@" in name or (found is not None and any(map(found.group, VALUES_OF_NAMES)))
        return self.text(name) if is_value or name in self.kept.identifiers else name

    def _look(self, record: Mapping[str, Any], numbers: set[Decimal]) -> None:
        body = record["dynamodb"]
        self._look_at_text(str(record.get("eventSourceARN", "")).partition("/stream/")[2], numbers)
        if isinstance(created := body.get("ApproximateCreationDateTime"), int | float):
            self._days.add(EPOCH + timedelta(seconds=created))
        images = [body[name] for name in ("Keys", "OldImage", "NewImage") if body.get(name)]
        values = [value for image in images for value in image.values()]
        for _, tag, content in [each for value in values for each in scalars("", value)]:
            if tag == "N":
                numbers.add(abs(Decimal(content)))
                self._look_at_time(abs(Decimal(content)))
            else:
                text = _text_of(b64decode(content)) if tag == "B" else content
                self._look_at_text(text or "", numbers)

    def _look_at_text(self, text: str, numbers: set[Decimal]) -> None:
        for token in [token for piece, kept in _pieces(text) if not kept for token in TOKEN.finditer(piece)]:
            if token["day"] and (day := _date_of(token["day"])):
                self._days.add(day)
            elif digits := token["digits"] or token["number"] or token["decimal"]:
                numbers.add(Decimal(digits))
                if token["number"]:
                    self._look_at_time(Decimal(digits))
            elif token["day"] or token["month"] or token["week"]:
                numbers.update(map(Decimal, re.findall(r"\d+", token[0])))

    def _look_at_time(self, value: Decimal) -> None:
        if (unit := _unit_of(value)) is not None:
            self._days.add(EPOCH + timedelta(seconds=int(value) // unit))

    def _move(self) -> int:
        """A number of weeks, drawn by the secret, after which the recent days are in as many months and years."""
        known = sorted(day for day in self._days if FIRST_DAY <= day <= LAST_DAY)
        if not known:
            return self._random.randrange(1, WEEKS_MAX)
        recent = _densest(known)
        first, last = (FIRST_DAY - known[0]).days // 7 + 1, (LAST_SHIFTED - recent[-1]).days // 7
        weeks = [each for each in range(max(first, -WEEKS_MAX), min(last, WEEKS_MAX)) if each]
        self._random.shuffle(weeks)
        return next((each for each in weeks if _keeps_months(recent, each)), CYCLE_WEEKS)

    def _scale(self, fixed: set[Decimal]) -> int:
        """The factor of the numbers whose sums stay 0: 1 if one of them has to stay, or if no product is free."""
        balanced = self.kept.balanced
        longest = max((len(each.as_tuple().digits) for each in balanced), default=0)
        if balanced & fixed or longest + len(str(FACTOR_MAX)) > DIGITS_MAX:
            return 1
        factors = self._random.sample(range(2, FACTOR_MAX + 1), FACTOR_MAX - 1)
        return next((each for each in factors if not self._numbers.has({each * one for one in balanced})), 1)

    def _token(self, token: re.Match[str]) -> str:
        text = token[0]
        if token["day"]:
            return self._day(token)
        if token["week"]:
            return self._week(text)
        if token["month"]:
            year, month = divmod(_month_of(date.fromisoformat(f"{text}-01")) + self._months, MONTHS_A_YEAR)
            return f"{year:04d}-{month + 1:02d}"
        if token["uuid"]:
            return self._uuid(text)
        if token["ulid"]:
            milliseconds = ulid_milliseconds(text) + self.weeks * SECONDS_A_WEEK * 1000
            rest = self._hashed("ulid", text[ULID_TIME_LENGTH:], ULID_LETTERS, len(text) - ULID_TIME_LENGTH)
            return ulid_of(milliseconds)[:ULID_TIME_LENGTH] + rest
        if token["decimal"]:
            return self._decimal(text)
        if token["number"]:
            return self._digits(text)
        if text.lower() in self.kept.words:
            return text
        if token["counted"] and len(text) - len(token["digits"]) < len(token["digits"]) + 1:
            return self._word(token["letters"]) + self._digits(token["digits"])
        return self._word(text)

    def _day(self, token: re.Match[str]) -> str:
        day = _date_of(token["day"])
        if day is None:  # 2026-02-30
            return self._digits_of(token[0])
        return (day + timedelta(weeks=self.weeks)).isoformat() + (token["clock"] or "")

    def _digits_of(self, text: str) -> str:
        return re.sub(r"\d+", lambda found: self._digits(found[0]), text)

    def _week(self, text: str) -> str:
        try:
            year, week, _ = (
                date.fromisocalendar(int(text[:4]), int(text[6:]), 1) + timedelta(weeks=self.weeks)
            ).isocalendar()
        except ValueError:
            return self._digits_of(text)
        return f"{year:04d}-W{week:02d}"

    def _uuid(self, text: str) -> str:
        bare = text.replace("-", "").lower()
        if text[UUID_VERSION] == "7":
            milliseconds = int(bare[:UUID_TIME_DIGITS], 16) + self.weeks * SECONDS_A_WEEK * 1000
            found = f"{milliseconds:012x}7{self._hashed('uuid7', bare[13:], HEXADECIMAL, 19)}"
        else:
            found = self._hashed("uuid", bare, HEXADECIMAL, 32)
            found = f"{found[:12]}{bare[12]}{found[13:]}"  # the version stays
        made = "-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:32]))
        return made.upper() if text.isupper() else made

    def _decimal(self, text: str) -> str:
        zeros = len(text) - len(text.rstrip("0"))
        made = f"{self._substitute(Decimal(text)):f}"
        return (made if "." in made else made + ".") + "0" * zeros

    def _digits(self, text: str) -> str:
        return f"{self._substitute(Decimal(text)):f}".zfill(len(text))

    def _substitute(self, value: Decimal) -> Decimal:
        if (unit := _unit_of(value)) is not None:
            return value + self.weeks * SECONDS_A_WEEK * unit
        if value in self.kept.balanced:
            with localcontext(LONG):
                return (value * self._factor).normalize()
        return self._numbers.substitute(value)

    def _word(self, text: str) -> str:
        lower = text.lower()
        if lower in self.kept.words:
            return text
        made = self._hashed("word", lower, LETTERS, len(lower), like=lower)
        if text == lower:
            return made
        if len(text) == len(lower):
            cased = "".join(new.upper() if old != old.lower() else new for old, new in zip(text, made, strict=False))
            return cased + made[len(text) :]
        return made

    def _hashed(self, kind: str, text: str, alphabet: str, length: int, like: str = "") -> str:
        """The substitute of a text, which no other text of this kind has. Digits of ``like`` are replaced by digits."""
        known = self._substitutes.get((kind, text))
        if known is not None:
            return known
        made = ""
        for attempt in range(TRIES_MAX * TRIES_MAX):
            letters = length + attempt // TRIES_MAX
            stream = self._stream(f"{kind}/{attempt}", text.encode(), 2 * letters)
            made = ""
            for index in range(letters):
                among = DIGITS if like[index : index + 1].isdigit() else alphabet
                made += among[int.from_bytes(stream[2 * index : 2 * index + 2]) % len(among)]
            if (kind, made) not in self._used and made not in self.kept.words:
                break
        self._used.add((kind, made))
        self._substitutes[kind, text] = made
        return made

    def _stream(self, kind: str, content: bytes, length: int) -> bytes:
        """So many bytes that follow from the secret and a content."""
        digests = [
            hmac.digest(self._secret, f"{kind}/{block}".encode() + b"\0" + content, "sha256")
            for block in range(length // 32 + 1)
        ]
        return b"".join(digests)[:length]


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text, and whether each is kept: of JSON its syntax and the names of its objects are."""
    if text[:1] not in ("{", "[") or not _is_json(text):
        yield text, False
        return
    end = 0
    for found in JSON_SYNTAX.finditer(text):
        yield text[end : found.start()], False
        yield found[0], True
        end = found.end()
    yield text[end:], False


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _text_of(content: bytes) -> str | None:
    """The text of a binary value, if it is one."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _date_of(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _densest(days: Sequence[date]) -> Sequence[date]:
    """Those of the days, which are sorted, in the two years that have most of them."""
    best = days[:0]
    for first, day in enumerate(days):
        found = days[first : bisect_right(days, day + timedelta(RECENT_DAYS))]
        best = max(best, found, key=len)
    return best


def _month_of(day: date) -> int:
    return day.year * MONTHS_A_YEAR + day.month - 1


def _keeps_months(days: Sequence[date], weeks: int) -> bool:
    """Whether all days move by one number of months, and days of one month or year remain in one month or year."""
    move = timedelta(weeks=weeks)
    months = {_month_of(day + move) - _month_of(day) for day in days}
    years = {(day.year, (day + move).year) for day in days}
    return len(months) == 1 and len(years) == len({old for old, _ in years}) == len({new for _, new in years})


def _unit_of(value: Decimal) -> int | None:
    # The units of a second in which a number is a time.
    return next((unit for unit in UNITS if EPOCH_SECONDS[0] * unit <= value < EPOCH_SECONDS[1] * unit), None)


class _Ordered:
    """Substitutes for numbers, from 0 on, in the order of the numbers.

    Whole numbers stay in their range of powers of ten, and between the numbers that stay; so do years. Those under 10,
    and fractions with too many digits, stay.
    """

    def __init__(self, numbers: Iterable[Decimal], kept: set[Decimal], random: secrets.SystemRandom) -> None:
        self._random = random
        self._found: dict[Decimal, Decimal] = {}
        with localcontext(LONG):
            groups: dict[int, list[Decimal]] = defaultdict(list)
            for value in sorted(each for each in numbers if _unit_of(each) is None):
                groups[int(value)].append(value)
            integers = self._integers(list(groups), sorted({int(each) for each in kept}))
            for integer, group in groups.items():
                fractions = [each - integer for each in group if each != integer]
                are_fixed = any(each in kept for each in group if each != integer)
                drawn = fractions if are_fixed else self._fractions(integer, fractions)
                by_fraction = dict(zip(fractions, drawn, strict=True))
                self._found |= {each: integers[integer] + by_fraction.get(each - integer, Decimal()) for each in group}

    def has(self, numbers: set[Decimal]) -> bool:
        """Whether one of these is a substitute."""
        return not numbers.isdisjoint(self._found.values())

    def substitute(self, number: Decimal) -> Decimal:
        return self._found[number]

    def _integers(self, integers: Sequence[int], fixed: Sequence[int]) -> dict[int, int]:
        bounds = sorted({*_bounds(max(integers, default=0)), *fixed, *(each + 1 for each in fixed)})
        groups: dict[int, list[int]] = defaultdict(list)
        for integer in integers:
            groups[bisect_right(bounds, _beside_times(integer)) - 1].append(integer)
        found: dict[int, int] = {}
        for number, group in groups.items():
            low, high = bounds[number], bounds[number + 1]
            drawn = group if low < DRAWN_MIN else self._sorted_sample(low, high, len(group))
            found.update(zip(group, drawn, strict=True))
        return found

    def _fractions(self, integer: int, fractions: Sequence[Decimal]) -> Sequence[Decimal]:
        digits = max((-int(each.as_tuple().exponent) for each in fractions), default=0)
        if len(str(integer)) + digits > DIGITS_MAX:
            return fractions
        return [
            Decimal(each).scaleb(-digits).normalize() for each in self._sorted_sample(1, 10**digits, len(fractions))
        ]

    def _sorted_sample(self, low: int, high: int, count: int) -> list[int]:
        """So many whole numbers of a range, which may be too long for ``random.sample``."""
        if 2 * count > high - low:
            return sorted(self._random.sample(range(low, high), count))
        drawn: set[int] = set()
        while len(drawn) < count:
            drawn.add(self._random.randrange(low, high))
        return sorted(drawn)


def _bounds(most: int) -> Iterator[int]:
    """The ends of the ranges in which whole numbers stay: powers of ten, years, and times."""
    yield 0
    power = 1
    while power <= max(most, EPOCH_END * UNITS[-1]) * 100:
        yield power
        power *= 10
    yield from YEARS
    yield from (end * unit for unit in UNITS for end in (EPOCH_SECONDS[0], EPOCH_END))


def _beside_times(integer: int) -> int:
    # Numbers between times and shifted times get substitutes above both.
    unit = next((unit for unit in UNITS if EPOCH_SECONDS[1] * unit <= integer < EPOCH_END * unit), None)
    return integer if unit is None else EPOCH_END * unit
