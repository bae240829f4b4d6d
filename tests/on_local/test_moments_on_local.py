"""Histories in which time passes, on DynamoDB Local: clocks that differ, kills, visits that are late or come twice."""

import pytest

from tests.helpers.moment_histories import ON_TABLE, OnTable

HISTORIES = 50


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_histories_in_which_time_passes_leave_the_rows_of_their_end_and_call_each_timer_once(dynamodb, seed):
    history = OnTable(dynamodb, ON_TABLE[seed % len(ON_TABLE)], seed)
    history.run()
    assert history.difference() is None
