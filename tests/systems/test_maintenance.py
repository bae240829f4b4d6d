"""Devices that somebody should look at: noisy and silent ones of each moment, from the readings of then."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random

import pytest

from handlers.iot import NOISY, READING, SILENT, app, noisy_devices, silent_devices
from streamfold import Part, Parts, Row
from streamfold.testing import now
from tests.systems import Folded, delivered_again, in_other_order, items_after, recorded

RECORDS, TIMES = recorded("iot/maintenance")
SIZES = (1, 7, 100, len(RECORDS))
HOUR = 60 * 60
MOMENTS = 6
"""Moments at which rows are compared, while records come."""


class Caretaker:
    """What a person would write down at a time who has all devices and readings of then: no code of the handlers."""

    def __init__(self, seconds=TIMES[-1]):
        self.time = datetime.fromtimestamp(seconds, UTC)
        self.devices, self.readings = {}, {}
        records = [record for record, time in zip(RECORDS, TIMES, strict=True) if time <= seconds]
        for (partition, sort), item in items_after(records).items():
            device = partition.removeprefix("DEVICE#")
            if sort == "METADATA":
                self.devices[device] = item
            else:
                at = datetime.fromisoformat(sort.removeprefix("READING#"))
                self.readings.setdefault(device, {})[at] = item["celsius"]

    def noisy(self):
        """The known devices of whose last ten readings two are further apart than the device may have them."""
        found = {}
        for device, item in self.devices.items():
            readings = self.readings.get(device, {})
            last = sorted(readings[at] for at in sorted(readings, reverse=True)[:10])
            if last and last[-1] - last[0] > item["tolerance"]:
                median = last[len(last) // 2]
                found[device] = {"room": item["room"], "spread": last[-1] - last[0], "median": median}
        return found

    def silent(self):
        """The devices, known or not, whose last reading is six hours old."""
        found = {}
        for device, readings in self.readings.items():
            if self.time - max(readings) >= timedelta(hours=6):
                since = f"{max(readings):%Y-%m-%dT%H:%M:%S}.000000Z"
                found[device] = {"room": self.devices.get(device, {}).get("room", "unknown"), "since": since}
        return found

    def rows(self):
        return self.noisy(), self.silent()


def rows(folded):
    """The same of a state."""
    noisy, silent = ({device: row for (device,), row in folded.rows(key).items()} for key in (NOISY, SILENT))
    return noisy, silent


@pytest.mark.parametrize("size", SIZES)
def test_rows_at_the_end_are_those_of_the_last_record_for_every_size_of_batches(size):
    assert rows(Folded(app, RECORDS, size)) == Caretaker().rows()


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_rows_are_those_of_any_moment_while_records_come(seed):
    seconds = Random(seed).randrange(TIMES[0], TIMES[-1])
    records = [record for record, time in zip(RECORDS, TIMES, strict=True) if time <= seconds]
    assert rows(Folded(app, records, 40, until=seconds)) == Caretaker(seconds).rows()


def test_devices_become_silent_while_nothing_is_written():
    folded = Folded(app, RECORDS)
    for seconds in range(TIMES[-1], TIMES[-1] + 8 * HOUR, HOUR):
        folded.add([], until=seconds)
        assert rows(folded) == Caretaker(seconds).rows()
    assert rows(folded)[1].keys() == Caretaker().readings.keys()


@pytest.mark.parametrize("seed", range(2))
def test_readings_may_come_in_any_order(seed):
    folded = Folded(app, in_other_order(RECORDS, Random(seed)), 7 + 30 * seed, until=TIMES[-1])
    assert rows(folded) == Caretaker().rows()


def test_records_that_are_delivered_again_change_nothing():
    folded = Folded(app, delivered_again(RECORDS, Random(1)), size=11)
    assert rows(folded) == Caretaker().rows()
    folded.add(RECORDS)
    assert rows(folded) == Caretaker().rows()


def test_the_recording_has_what_makes_the_newest_parts_hard():
    seen = [Caretaker(seconds) for seconds in TIMES]
    pairs = [*pairwise(seen)]
    assert sum(one.noisy() != other.noisy() for one, other in pairs) > 20
    assert sum(one.silent() != other.silent() for one, other in pairs) > 20
    assert any(row["room"] == "unknown" for each in seen for row in each.silent().values())
    late = unread = 0
    for one, other in pairs:
        for device, readings in one.readings.items():
            came = other.readings.get(device, {}).keys() - readings.keys()
            late += sum(at < max(readings) for at in came)
            unread += device not in other.readings
    assert late > 5, "readings older than the newest"
    assert unread > 0, "devices all of whose readings are gone"
    assert any((one.devices.keys() - other.devices.keys()) & other.readings.keys() for one, other in pairs)


def test_a_device_is_noisy_by_its_own_tolerance():
    parts = Parts({READING: [{"celsius": Decimal(value)} for value in (21, 20, 24)]})
    assert noisy_devices({"room": "hall", "tolerance": 4}, parts) is None
    row = Row(room="hall", spread=4, median=21)
    assert noisy_devices({"room": "hall", "tolerance": 3}, parts) == row
    assert noisy_devices({"room": "hall", "tolerance": 3}, Parts({READING: []})) is None


def test_a_device_is_silent_six_hours_after_its_last_reading():
    at = datetime(2026, 3, 1, 9, tzinfo=UTC)
    parts = Parts({READING: [Part({}, {"at": at})]})
    assert silent_devices({"room": "hall"}, parts, now("2026-03-01T14:59:59Z")) is None
    assert silent_devices({"room": "hall"}, parts, now("2026-03-01T15:00:00Z")) == Row(since=at, room="hall")
    assert silent_devices(None, parts, now("2026-03-01T15:00:00Z")) == Row(since=at, room="unknown")
    assert silent_devices({"room": "hall"}, Parts({READING: []}), now("2026-03-01T15:00:00Z")) is None
