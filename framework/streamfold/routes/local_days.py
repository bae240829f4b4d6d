"""Local days: the day, week and month of a moment in a time zone, and the moments at which a day begins and ends.

Days divide time without gaps and without overlaps: each moment is within the bounds of its day, and a day ends where
the next one begins. A day has 23 or 25 hours where clocks change.
"""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING

from streamfold.errors import HandlerError, manual, shown
from streamfold.keys.field import EPOCH
from streamfold.routes.moments import EXPECTED, GivenMoment, microseconds_of, no_moment

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
WEEK_DAYS = 7
MONDAY = 0
ZONES_MAX = 1024
"""Zones that a process keeps: the database has fewer than 600 names."""
ZONE_NAME = r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*"


def local_day_bounds(moment: GivenMoment, zone: str) -> tuple[datetime, datetime]:
    """The begin of a moment's day in a time zone, and its end, which is the begin of the next: times in UTC.

    ``moment``: as ``Now.passed`` takes it. ``zone``: a name of the tz database, ``"Europe/Zurich"``. Raises
    ``HandlerError`` for a time without a zone, for None, and for an unknown zone.
    """
    clock = _zone(zone)
    day = _day(_moment(moment), clock)
    try:
        return _begin(day, clock), _begin(day + DAY, clock)
    except OverflowError:
        raise no_moment(moment, f"has a day in {zone} that is outside the years 1 to 9999", EXPECTED) from None


def local_day(moment: GivenMoment, zone: str) -> date:
    """The day of a moment in a time zone: ``local_day(order["placed_at"], "Europe/Berlin")``.

    The moment is within ``local_day_bounds`` of the same arguments, which names the errors too.
    """
    return _day(_moment(moment), _zone(zone))


def local_week(moment: GivenMoment, zone: str, first_weekday: int = MONDAY) -> date:
    """The first day of a moment's week in a time zone.

    ``first_weekday``: 0 is Monday, 6 is Sunday, as ``date.weekday()`` counts. Raises as ``local_day``.
    """
    given: object = first_weekday
    if isinstance(given, bool) or given not in range(WEEK_DAYS):
        raise HandlerError(f"No week begins at the weekday {shown(given)}: expected 0, Monday, to 6, Sunday.")
    day = local_day(moment, zone)
    return day - (day.weekday() - first_weekday) % WEEK_DAYS * DAY


def local_month(moment: GivenMoment, zone: str) -> date:
    """The first day of a moment's month in a time zone.

    Raises as ``local_day``.
    """
    return local_day(moment, zone).replace(day=1)


def _moment(moment: GivenMoment) -> datetime:
    microseconds = microseconds_of(moment)
    if microseconds is None:
        raise HandlerError(f"{shown(moment)} is no moment, and has no local day: ask first whether the item has one.")
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise no_moment(moment, "is outside the years 1 to 9999", EXPECTED) from None


def _day(moment: datetime, clock: tzinfo) -> date:
    try:
        day = moment.astimezone(clock).date()
        # Where clocks went back over midnight (Newfoundland until 2011), the minute before is of the day before.
        return day if _begin(day, clock) <= moment else day - DAY
    except OverflowError:
        raise no_moment(moment, "is outside the years 1 to 9999 in its zone", EXPECTED) from None


def _begin(day: date, clock: tzinfo) -> datetime:
    """The moment from which on no clock of the zone shows an earlier day."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=clock)
    first, second = midnight.astimezone(UTC), midnight.replace(fold=1).astimezone(UTC)
    if first == second:
        return first
    if first < second:  # midnight comes twice: the second one counts if the day before is shown again between them
        return first if (second - SECOND).astimezone(clock).date() >= day else second
    # Clocks leave midnight out: the day begins when they are put forward, behind the second and at most at the first.
    early, late = second, first
    while late - early > SECOND:  # clocks are changed at whole seconds; at most 17 rounds a day
        middle = early + (late - early) // 2 // SECOND * SECOND
        if middle.astimezone(clock).date() >= day:
            late = middle
        else:
            early = middle
    return late


def _zone(name: str) -> "ZoneInfo":
    """The zone of the installed package ``tzdata``, which an application can pin; without it that of the machine."""
    given: object = name
    if isinstance(given, str) and re.fullmatch(ZONE_NAME, given, re.ASCII) and (found := _found_zone(given)):
        return found
    raise HandlerError(
        f"There is no time zone {shown(given)}: expected a name of the tz database, for example 'Europe/Berlin'. "
        f"A machine may have no database of its own: pip install 'streamfold[zones]' ({manual('times')})."
    )


@lru_cache(ZONES_MAX)
def _found_zone(name: str) -> "ZoneInfo | None":
    from importlib.resources import files
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # only where a handler asks for a day

    try:
        path = files("tzdata").joinpath("zoneinfo", *name.split("/"))
        with path.open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (ModuleNotFoundError, OSError, ValueError):  # no package, or one without this zone
        pass
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        return None
