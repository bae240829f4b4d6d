"""``Now``: the time, as a handler may ask for it. It answers whether a moment has come, and remembers the moments.

A handler that only asks has, for one item, the same result at every time from the greatest moment that had come to the
smallest that had not. At the latter the item is derived again. Moments are counted in microseconds since 1970, in UTC.

``Timer`` is what a handler with ``at=`` gets at a moment of an item, and ``TimerChange`` the change in its place that
the kinds know.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from streamfold.errors import HandlerError, manual, shown
from streamfold.keys.field import ANY_PATTERN, EPOCH, KeyTime, datetime_text
from streamfold.keys.table import Table
from streamfold.records.change import ABSENT, Change, ItemKey, image_of
from streamfold.records.images import Image

if TYPE_CHECKING:
    from streamfold.records.change import Event

GivenMoment = datetime | str | int | Decimal
"""A moment as items have it: see ``microseconds_of``."""
M = TypeVar("M", bound=GivenMoment | None)

COME_MAX = 10_000
"""Moments that have come in one call of ``latest``: an endless generator that begins long ago would never end."""
SECONDS_BELOW = 10**11
"""Seconds since 1970 of the year 5138. Milliseconds since 1970 have more digits from March 1973 on."""
TEXTS_KEPT_MAX = 1_000
"""Texts of moments that are remembered: a step and a visit write and read those of an item several times."""
ANY = re.compile(ANY_PATTERN, re.ASCII)
MICROSECOND = timedelta(microseconds=1)
SECOND_MICROSECONDS = 1_000_000
FIRST_MICROSECONDS = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LAST_MICROSECONDS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
"""The moments that a text can hold: of the years 1 to 9999."""
EXPECTED = (
    'Expected a datetime with a time zone, a text like "2026-03-01T10:00:00Z", or whole seconds since 1970 '
    f"({manual('times')})."
)
EVENT = cast("Event", "TIMER")
"""In place of INSERT, MODIFY or REMOVE."""


def microseconds_of(moment: GivenMoment | None) -> int | None:
    """The microseconds since 1970 of a moment; None for None and ``""``, which never come.

    A moment is a ``datetime`` with a time zone, a text of ``{at:datetime.any}``, or whole seconds since 1970. Fractions
    of a microsecond are rounded up. Raises ``HandlerError`` for any other value, with the way to write the moment.
    """
    value: object = moment
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        return _of_datetime(value)
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return _of_seconds(value)
    if isinstance(value, date):
        raise no_moment(value, "is a date, and begins at another moment in each time zone", _of_day("day"))
    if isinstance(value, float):
        raise no_moment(
            value, "is a float, which rounds", "Write int(...) for whole seconds since 1970, or give a datetime."
        )
    raise no_moment(value, f"is of type {type(value).__name__}", EXPECTED)


def no_moment(value: object, fault: str, remedy: str) -> HandlerError:
    """Why a value is refused, and how it is written instead."""
    return HandlerError(f"The moment {shown(value)} {fault}. {remedy}")


@lru_cache(TEXTS_KEPT_MAX)
def moment_text(microseconds: int) -> str:
    """The text of a moment, ``2026-03-01T10:00:00.000000Z``. Texts sort as their moments."""
    return datetime_text(EPOCH + timedelta(microseconds=microseconds))


def moment_microseconds(text: str) -> int:
    """The microseconds since 1970 of a text: inverse to ``moment_text``. Raises ``HandlerError`` for other texts."""
    return _of_text(text)


class Now:
    """The time, as a handler gets it: ``def overdue(ticket, now: Now)``. It can be asked, and not read.

    Its item is derived again at the next moment that was asked and had not come. Ask last, after cheaper conditions:
    each moment that is asked, and is to come, costs a write at that moment.

    A test makes one by ``streamfold.testing.now("2026-03-01T10:00:00Z")``. See ``streamfold docs times``.
    """

    __slots__ = ("_at", "_is_over", "came_microseconds", "next_microseconds")

    def __init__(self, at_microseconds: int, /) -> None:
        self._at = at_microseconds
        self._is_over = False
        self.came_microseconds: int | None = None  # the greatest moment that was asked and had come
        self.next_microseconds: int | None = None  # the smallest that was asked and had not

    def passed(self, moment: GivenMoment | None, after: timedelta = timedelta(0)) -> bool:
        """Whether a moment has come; at the moment itself it has. ``after`` is added to the moment.

        A ``datetime`` has a time zone; a text is one of a ``datetime`` field; a number counts whole seconds since 1970.
        None and ``""`` never come. Raises ``HandlerError`` for other values.
        """
        self._check_in_call()
        given: object = after
        if not isinstance(given, timedelta):
            raise HandlerError(
                f"now.passed(..., after={shown(given)}) takes no {type(given).__name__}. Write a duration with its "
                "unit, for example after=timedelta(minutes=5)."
            )
        microseconds = microseconds_of(moment)
        return microseconds is not None and self._has_come(microseconds + after // MICROSECOND)

    def between(self, begin: GivenMoment | None, end: GivenMoment | None) -> bool:
        """Whether ``begin`` has come and ``end`` has not. Without an end, None, it stays so; with an end before the
        begin it never is.
        """
        return self.passed(begin) and not self.passed(end)

    def latest(self, moments: Iterable[M]) -> M | None:
        """Of ascending moments the last one that has come; None if none has.

        Stops at the first that has not come, so that an endless generator will do. Raises ``HandlerError`` where a
        moment is before the one that it follows, and where over 10,000 have come.
        """
        self._check_in_call()
        found: M | None = None
        before = FIRST_MICROSECONDS
        for count, moment in enumerate(moments):
            microseconds = microseconds_of(moment)
            if microseconds is None or not self._has_come(microseconds):
                break
            if microseconds < before:
                raise no_moment(moment, f"follows a later one, {shown(found)}", "now.latest() takes ascending moments.")
            if count == COME_MAX:
                raise no_moment(
                    moment,
                    f"is preceded by {COME_MAX:,} others that have come, and now.latest() takes no more",
                    "Begin the moments nearer to the item's own time.",
                )
            found, before = moment, microseconds
        return found

    def end(self) -> None:
        """Ends the call for which it was made: a question behind it would have no effect on any wake."""
        self._is_over = True

    def _has_come(self, microseconds: int) -> bool:
        if microseconds > LAST_MICROSECONDS:  # no text holds it, and nobody will see it
            return False
        microseconds = max(microseconds, FIRST_MICROSECONDS)
        if microseconds <= self._at:
            came = self.came_microseconds
            self.came_microseconds = microseconds if came is None else max(microseconds, came)
            return True
        earlier = self.next_microseconds
        self.next_microseconds = microseconds if earlier is None else min(microseconds, earlier)
        return False

    def _check_in_call(self) -> None:
        if self._is_over:
            raise HandlerError(
                "now is asked after the call that it was made for. Ask now.passed(...) within the handler, and keep "
                "the answer."
            )

    def __repr__(self) -> str:
        return "<streamfold.Now>"  # without the time: a row that holds it would be stale a second later

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # ``copy`` and ``inspect`` look for methods that most objects lack
            raise AttributeError(name)
        raise _unreadable(f"now.{name}")


def _unreadable(what: str) -> HandlerError:
    return HandlerError(
        f"{what}: the time cannot be read, because a result that holds the time is stale a moment later. Ask whether "
        "a moment has come: now.passed(moment), now.passed(moment, after=timedelta(minutes=5)), "
        "now.between(begin, end) or now.latest(moments)."
    )


def _refuses(operation: str) -> Callable[..., Any]:
    def method(_: Now, *__: object) -> Any:
        raise _unreadable(operation)

    return method


# By ``__eq__`` a row would show a time by chance, by ``__hash__`` a cache would keep the answers of another call.
for _method, _operation in {
    **{f"__{name}__": "now is compared" for name in ("lt", "le", "gt", "ge", "eq", "ne", "hash")},
    **{f"__{name}__": "now is calculated with" for name in ("add", "radd", "sub", "rsub", "mod", "floordiv")},
    **{f"__{name}__": "now is asked for its value" for name in ("bool", "int", "float", "index", "str", "format")},
}.items():
    setattr(Now, _method, _refuses(_operation))


def _of_datetime(value: datetime) -> int:
    if value.utcoffset() is None:
        raise no_moment(
            value,
            "has no time zone",
            "Give one, for example moment.replace(tzinfo=UTC), or tzinfo=ZoneInfo('Europe/Berlin') for a local time.",
        )
    beyond = value.nanoseconds if isinstance(value, KeyTime) else 0
    return (value - EPOCH) // MICROSECOND + bool(beyond)


@lru_cache(TEXTS_KEPT_MAX)
def _of_text(value: str) -> int:
    try:
        if ANY.fullmatch(value):
            return _of_datetime(KeyTime.of(value))
    except ValueError:
        pass
    if re.fullmatch(r"-?\d+", value):
        raise no_moment(value, "is a text of digits", "Write int(...) for whole seconds since 1970.")
    if re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise no_moment(
            value, "is a date, and begins at another moment in each time zone", _of_day("date.fromisoformat(...)")
        )
    raise no_moment(
        value,
        "is no text of a datetime field",
        f'{EXPECTED} datetime.fromisoformat(...) reads other offsets, as in "2026-03-01T11:00:00+01:00".',
    )


def _of_day(day: str) -> str:
    return (
        "Write its begin where the item is, for example "
        f"datetime.combine({day}, time(), ZoneInfo('Europe/Berlin')), with after=timedelta(days=1) for the day's end."
    )


def _of_seconds(value: int | Decimal) -> int:
    if isinstance(value, Decimal) and not (value.is_finite() and value == int(value)):
        raise no_moment(value, "is no whole number of seconds", "Give a datetime for fractions of a second.")
    seconds = int(value)
    if abs(seconds) >= SECONDS_BELOW:
        raise no_moment(
            value,
            "has too many digits for seconds since 1970",
            "Write datetime.fromtimestamp(int(...) / 1000, UTC) for milliseconds.",
        )
    return seconds * SECOND_MICROSECONDS


class Timer(NamedTuple):
    """What a handler with ``at=`` gets: the item as it is when the handler is called, and the moment.

    ``item`` is read-only. ``at`` is the moment that the function gave, an aware datetime in UTC: the present time may
    be later. Fields of the key are asked for by name, as in every handler.
    """

    item: Image
    at: datetime


class TimerChange(Change):
    """A moment of an item, where the kinds expect a change. It has no record, and its old image is empty.

    Its moment is its identity and its version: one claim, one note and one message id for each moment of an item, and
    of two moments of an item the later has the row.
    """

    __slots__ = ("moment",)

    def __init__(self, item: ItemKey, table: Table, image: Mapping[str, Any], moment: int) -> None:
        self.moment = moment  # epoch microseconds
        self.event, self.expired, self.view = EVENT, False, None
        self.record, self.sequence = {}, ""
        self.table, self.item = table, item
        self.version_text = moment_text(moment)
        self._old, self._new = ABSENT, image_of(image)
        self._at = moment // SECOND_MICROSECONDS

    @property
    def timer(self) -> Timer:
        return Timer(self.new, EPOCH + timedelta(microseconds=self.moment))
