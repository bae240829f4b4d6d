"""The deadline: tries and pauses that end before it, and what is not begun behind it."""

from unittest.mock import patch

import pytest

from streamfold import App, Key, Router, Row
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.engines.deadline import TRIES_MAX, Deadline
from streamfold.errors import NotStarted, ParkingError
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import item, record

ORDER = Key("ORDER#{order_id}", "METADATA")


def test_tries_are_parted_by_pauses_whose_longest_doubles():
    pauses = []
    with patch("random.random", return_value=1.0):
        assert list(Deadline(pause=pauses.append).tries()) == list(range(TRIES_MAX))
    assert pauses == [0.05 * 2**number for number in range(TRIES_MAX - 1)]


def test_a_pause_may_be_nearly_nothing():
    pauses = []
    with patch("random.random", return_value=0.0):
        Deadline(pause=pauses.append).back_off(5, throttled=True)
    assert pauses == [0.0]


def test_no_pause_is_longer_than_the_longest_of_all():
    pauses = []
    with patch("random.random", return_value=1.0):
        Deadline(pause=pauses.append).back_off(6, throttled=True)
    assert pauses == [10]


def test_no_try_is_made_whose_pause_outlasts_the_time():
    left, made = [10.3], []

    def pause(seconds):
        left[0] -= seconds

    deadline = Deadline(pause=pause, seconds_left=lambda: left[0], stop_seconds=10)
    with patch("random.random", return_value=1.0), pytest.raises(NotStarted):
        made.extend(deadline.tries())
    assert left[0] > 10


class Place:
    def __init__(self):
        self.parked = []

    def park(self, parked):
        self.parked.append(parked)


@pytest.mark.parametrize("attempts_max", [None, 1])
def test_a_record_is_neither_counted_nor_parked_when_the_time_is_over(attempts_max):
    router, left = Router(), [100.0]

    @router.view(ORDER, into=Key("CITY#{city}", "ORDERS"), on_error="park", attempts_max=attempts_max)
    def failing(order):
        left[0] = 1.0
        raise ValueError("no")
        yield Row()

    app, place = App("shop", routers=[router]), Place()
    engine = CountingEngine(MemoryEngine(app.tables.values()))
    run = Runtime(app, engine, Settings(), seconds_left=lambda: left[0], parking=place)
    (failure,) = process_event(run, [record(None, item("ORDER#1"), 1)]).failures
    assert isinstance(failure.error, ParkingError if attempts_max is None else ValueError)
    assert place.parked == []
    assert len(engine.named("swap_state")) == 1  # the manifest
