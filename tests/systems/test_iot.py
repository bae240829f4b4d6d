"""Devices: latest readings and rollups from a list of the readings that are there at the end."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta

import pytest

from handlers.iot import DAY, HOUR, HOURS_KEPT, LATEST, READING
from tests.systems import Replayed, without_zeros


@pytest.fixture(scope="module")
def site():
    return Replayed("iot")


@pytest.fixture(scope="module")
def readings(site):
    """The readings that are there at the end, by device and time."""
    return site.items(READING)


def grouped(readings, name_of):
    """The temperatures of each device and whatever span of time ``name_of`` puts a reading into."""
    groups = defaultdict(list)
    for (device, at), reading in readings.items():
        groups[device, name_of(at)].append(reading["celsius"])
    return groups


def rollup(celsius):
    figures = {"lowest": min(celsius), "highest": max(celsius), "readings": len(celsius)}
    return without_zeros({**figures, "celsius_sum": sum(celsius), "celsius_count": len(celsius)})


def test_the_latest_reading_of_a_device_is_that_of_its_greatest_time(site, readings):
    latest = {}
    for (device, at), reading in sorted(readings.items(), key=lambda pair: pair[0]):
        shown = {"at": f"{at:%Y-%m-%dT%H:%M:%S}.000000Z", "celsius": reading["celsius"], "battery": reading["battery"]}
        latest[(device,)] = shown
    assert {fields: row["latest"] for fields, row in site.rows(LATEST).items()} == latest


def test_the_workload_takes_latest_readings_away(site, readings):
    gone = set(site.images(READING)) - set(readings)
    assert any(at > max(kept for name, kept in readings if name == device) - timedelta(days=1) for device, at in gone)


def test_hours_and_their_expiry_are_what_their_readings_come_to(site, readings):
    expected = {
        (device, f"{hour:%Y-%m-%dT%H}"): rollup(celsius)
        | {"expires": int((hour + timedelta(hours=1) + HOURS_KEPT).timestamp())}
        for (device, hour), celsius in grouped(readings, lambda at: datetime(*at.timetuple()[:4], tzinfo=UTC)).items()
    }
    assert len(expected) > 24
    assert site.rows(HOUR) == expected


def test_days_are_what_their_readings_come_to(site, readings):
    expected = {fields: rollup(celsius) for fields, celsius in grouped(readings, datetime.date).items()}
    assert {day for _, day in expected} > {date(2026, 3, 1)}
    assert site.rows(DAY) == expected
