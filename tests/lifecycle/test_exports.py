"""Exports and recordings of any times, in any order, into a local state: the newest state of each item."""

import pytest

from tests.helpers.times_of_items import State


def check_seeds(first, count, tmp_path):
    refused = 0
    for seed in range(first, first + count):
        state = State(seed, tmp_path / str(seed))
        state.run()
        refused += sum(state.refused.values())
    return refused


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_exports_and_recordings_in_any_order_leave_the_newest_state_of_each_item(first, tmp_path):
    check_seeds(first, 25, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100, 1100, 250))
def test_many_exports_and_recordings_in_any_order_leave_the_newest_state_of_each_item(first, tmp_path):
    check_seeds(first, 250, tmp_path)
