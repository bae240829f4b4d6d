"""A pace: what is spent is held to its rates, under a clock that only waiting moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold.engines.deadline import Deadline
from streamfold.errors import NotStarted
from streamfold.jobs.rates import BURST_SECONDS, Pace


class Clock:
    """Seconds that pass while somebody waits."""

    def __init__(self):
        self.now = 1_000.0
        self.waits = []

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    @property
    def waited(self):
        return sum(self.waits)


@pytest.fixture
def clock():
    return Clock()


def pace(clock, read=0, write=0, **given):
    return Pace(Deadline(pause=clock.wait), read, write, clock=lambda: clock.now, **given)


def test_nothing_is_waited_for_without_a_limit(clock):
    free = pace(clock)
    for _ in range(100):
        free.spend(10**6, 10**6)
    assert (clock.waits, free.rates) == ([], (float("inf"), float("inf")))


def test_units_are_spent_at_their_rate(clock):
    held = pace(clock, write=100)
    for _ in range(10):
        held.spend(read=10**6, write=250)
    assert clock.waited == pytest.approx(25)


def test_slower_of_the_two_rates_holds(clock):
    held = pace(clock, read=1000, write=10)
    held.spend(read=100, write=50)
    assert clock.waited == pytest.approx(5)


def test_work_counts_as_waiting(clock):
    held = pace(clock, write=100)
    held.spend(write=100)
    clock.now += 0.5
    held.spend(write=100)
    assert clock.waited == pytest.approx(1.5)


def test_idle_time_is_kept_for_a_second_only(clock):
    held = pace(clock, write=100)
    clock.now += 3600
    held.spend(write=100)
    assert clock.waits == []
    held.spend(write=100)
    assert clock.waited == pytest.approx(1)


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 5000)), min_size=1, max_size=30),
)
def test_no_stretch_of_time_has_more_than_its_rate(rate, calls):
    clock = Clock()
    held, begun = pace(clock, write=rate), Clock().now
    spent = 0.0
    for seconds, units in calls:
        clock.now += seconds
        held.spend(write=units)
        spent += units
        assert spent <= rate * (clock.now - begun + BURST_SECONDS + 0.002)


def test_rates_are_changed_while_they_are_waited_for(clock):
    def faster():
        if clock.waited >= 5:
            held.change(write_units=1000)

    held = pace(clock, write=10, meanwhile=faster)
    held.spend(write=1050)
    assert clock.waited == pytest.approx(6)
    assert held.rates == (float("inf"), 1000)


def test_limit_is_taken_away(clock):
    held = pace(clock, read=5, write=10, meanwhile=lambda: held.change(read_units=0))
    held.spend(read=10**6)
    held.change(write_units=0)
    held.spend(write=10**6)
    assert clock.waits == [1.0]


def test_change_to_the_same_rate_changes_nothing(clock):
    held = pace(clock, read=0, write=100)
    held.throttled()
    held.change(0, 100)
    assert held.rates[1] == 50


def test_throttling_halves_and_time_lets_grow(clock):
    held = pace(clock, read=100, write=100)
    held.throttled()
    held.throttled()  # of another thread, at the same moment
    assert held.rates == (50, 50)
    clock.now += 2
    held.throttled()
    assert held.rates == pytest.approx((50 * 1.1**2 / 2, 50 * 1.1**2 / 2))
    clock.now += 3600
    held.spend()
    assert held.rates == (100, 100)


def test_throttling_without_a_limit_finds_one(clock):
    free = pace(clock)
    for _ in range(100):
        clock.now += 1
        free.spend(400, 400)
    free.throttled()
    assert free.rates == pytest.approx((200, 200), rel=0.2)
    before = clock.waited
    free.spend(write=1000)
    assert 2 < clock.waited - before < 6
    for _ in range(3):
        clock.now += 3600
        free.spend(write=1)
    assert free.rates[1] > 10**6


def test_rate_is_halved_no_further_than_1(clock):
    held = pace(clock, write=3)
    for _ in range(9):
        held.throttled()
        clock.now += 1
    assert held.rates[1] >= 1
    clock.now -= 100  # a clock that goes back does no harm
    held.spend(write=1)


def test_no_time_for_a_wait(clock):
    over = Deadline(seconds_left=lambda: 2_000 - clock.now, pause=clock.wait)
    held = Pace(over, 0, 10, clock=lambda: clock.now)
    clock.now = 1_990.0
    held.spend(write=1)
    with pytest.raises(NotStarted):
        held.spend(write=1000)
