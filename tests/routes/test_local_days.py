"""Local days: of 23, 24 and 25 hours, and in zones whose clocks are changed at midnight."""

import calendar
import sys
import zoneinfo
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfold import local_day, local_day_bounds, local_month, local_week
from streamfold.errors import HandlerError
from streamfold.routes import local_days

HOUR = timedelta(hours=1)
ZONES = sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})


def at(text):
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("moment", "zone", "begin", "end"),
    [
        ("2026-03-01T12:00:00Z", "Europe/Zurich", "2026-02-28T23:00:00Z", "2026-03-01T23:00:00Z"),
        ("2026-03-29T12:00:00Z", "Europe/Zurich", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),  # 23 hours
        ("2026-10-25T12:00:00Z", "Europe/Zurich", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),  # 25 hours
        ("2026-03-01T12:00:00Z", "Asia/Kolkata", "2026-02-28T18:30:00Z", "2026-03-01T18:30:00Z"),
        ("2026-04-05T12:00:00Z", "Australia/Lord_Howe", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z"),  # 24.5 hours
        ("2018-11-04T12:00:00Z", "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),  # no midnight
        ("2024-11-03T12:00:00Z", "America/Havana", "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z"),  # two midnights
        ("2010-11-07T12:00:00Z", "America/St_Johns", "2010-11-07T03:30:00Z", "2010-11-08T03:30:00Z"),  # 00:01 to 23:01
        ("1919-03-31T12:00:00Z", "America/Toronto", "1919-03-31T04:30:00Z", "1919-04-01T04:00:00Z"),  # 23:30 to 00:30
        ("2011-12-30T09:59:59Z", "Pacific/Apia", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),  # 29, then 31
        ("2011-12-30T10:00:00Z", "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
        ("2026-03-01T12:00:00Z", "UTC", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"),
    ],
)
def test_a_local_day_begins_and_ends_at_these_moments(moment, zone, begin, end):
    assert local_day_bounds(moment, zone) == (at(begin), at(end))


def test_the_hour_that_comes_twice_is_of_one_day():
    assert local_day("2026-10-25T00:30:00Z", "Europe/Berlin") == local_day("2026-10-25T01:30:00Z", "Europe/Berlin")
    assert local_day("2026-10-25T22:59:59Z", "Europe/Berlin") == date(2026, 10, 25)
    assert local_day("2026-10-25T23:00:00Z", "Europe/Berlin") == date(2026, 10, 26)


def test_a_week_begins_on_monday_or_on_the_weekday_that_is_given():
    sunday = "2026-03-01T12:00:00Z"
    assert local_week(sunday, "Europe/Berlin") == date(2026, 2, 23)
    assert local_week(sunday, "Europe/Berlin", calendar.SUNDAY) == date(2026, 3, 1)
    assert local_week(sunday, "Europe/Berlin", calendar.SATURDAY) == date(2026, 2, 28)


def test_a_month_is_that_of_the_local_day():
    assert local_month("2026-02-28T22:59:59Z", "Europe/Berlin") == date(2026, 2, 1)
    assert local_month("2026-02-28T23:00:00Z", "Europe/Berlin") == date(2026, 3, 1)


@pytest.mark.parametrize("function", [local_day, local_week, local_month, local_day_bounds])
@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (datetime(2026, 3, 1, 12, tzinfo=UTC).replace(tzinfo=None), "has no time zone"),
        (date(2026, 3, 1), "is a date"),
        ("2026-03-01", "is a date"),
        (None, "no moment"),
        ("", "no moment"),
        (1_772_359_200_123, "too many digits"),
        (99_999_999_999 * -1, "outside the years 1 to 9999"),
    ],
)
def test_what_is_no_moment_has_no_local_day(function, moment, message):
    with pytest.raises(HandlerError, match=message):
        function(moment, "Europe/Berlin")


@pytest.mark.parametrize("zone", ["Europe/Berln", "", "../../etc/passwd", "/etc/localtime", "Europe", None, 1, ["UTC"]])
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(HandlerError, match=r"no time zone .*'Europe/Berlin'.*streamfold\[zones\]"):
        local_day("2026-03-01T12:00:00Z", zone)


@pytest.mark.parametrize("weekday", [-1, 7, True, None, "sunday", 0.5])
def test_no_week_begins_at_another_weekday(weekday):
    with pytest.raises(HandlerError, match="expected 0, Monday, to 6, Sunday"):
        local_week("2026-03-01T12:00:00Z", "UTC", weekday)


def test_the_first_and_the_last_day_of_all_are_refused_where_a_bound_is_missing():
    with pytest.raises(HandlerError, match="outside the years 1 to 9999"):
        local_day_bounds(datetime.max.replace(tzinfo=UTC), "UTC")
    with pytest.raises(HandlerError, match="outside the years 1 to 9999"):
        local_day(datetime.min.replace(tzinfo=UTC), "America/New_York")


moments = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
zones = st.sampled_from(ZONES)


@given(moments, zones)
@example(at("2010-11-07T02:30:30Z"), "America/St_Johns")
@example(at("2010-11-07T03:00:00Z"), "America/St_Johns")
@example(at("1919-03-31T04:31:00Z"), "America/Toronto")
def test_days_divide_time(moment, zone):
    """Each moment is within its day, each day ends where the next begins, and all its moments are of one day."""
    begin, end = local_day_bounds(moment, zone)
    assert begin <= moment < end
    assert local_day_bounds(end, zone)[0] == end
    assert local_day_bounds(begin - timedelta(microseconds=1), zone)[1] == begin
    day = local_day(moment, zone)
    assert {local_day(each, zone) for each in (begin, end - timedelta(microseconds=1))} == {day}
    assert timedelta(0) < local_day(end, zone) - day <= timedelta(days=2)
    assert local_week(moment, zone) <= day < local_week(moment, zone) + timedelta(days=7)
    assert local_month(moment, zone).replace(day=day.day) == day


@given(moments.filter(lambda moment: moment.year > 2011), zones)
def test_a_day_is_that_of_the_wall_clock(moment, zone):
    assert local_day(moment, zone) == moment.astimezone(local_days._found_zone(zone)).date()


@pytest.fixture
def cleared():
    local_days._found_zone.cache_clear()
    yield
    local_days._found_zone.cache_clear()


def test_the_installed_package_counts_and_not_the_database_of_the_machine(tmp_path, monkeypatch, cleared):
    folder = tmp_path / "tzdata" / "zoneinfo" / "Europe"
    folder.mkdir(parents=True)
    (tmp_path / "tzdata" / "__init__.py").touch()
    with (files("tzdata") / "zoneinfo" / "Asia" / "Tokyo").open("rb") as tokyo:
        (folder / "Berlin").write_bytes(tokyo.read())
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tzdata"]:
        monkeypatch.delitem(sys.modules, name)
    assert local_day("2026-03-01T15:00:00Z", "Europe/Berlin") == date(2026, 3, 2)
    assert local_day("2026-03-01T15:00:00Z", "Asia/Tokyo") == date(2026, 3, 2), "the machine's, as the package has none"


def test_without_the_package_the_database_of_the_machine_counts(monkeypatch, cleared):
    monkeypatch.setitem(sys.modules, "tzdata", None)
    assert local_day("2026-03-01T15:00:00Z", "Asia/Tokyo") == date(2026, 3, 2)
