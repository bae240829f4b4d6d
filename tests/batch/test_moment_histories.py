"""Histories in which time passes: kills, clocks that are apart, rests of the schedule, two versions of the code."""

import pytest

from tests.helpers.moment_histories import CASES, broken

QUICK, CI, NIGHTLY = 4, 80, 1_600
"""Of each case: some 1,000 with every change, 20,000 every night."""


@pytest.mark.parametrize("case", CASES)
def test_a_history_ends_with_the_declared_rows_and_each_timer_was_called_once(case):
    assert broken(case, range(QUICK)) is None


@pytest.mark.ci
@pytest.mark.parametrize("case", CASES)
def test_more_histories_end_with_the_declared_rows(case):
    assert broken(case, range(1_000, 1_000 + CI)) is None


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_many_histories_end_with_the_declared_rows(case):
    assert broken(case, range(100_000, 100_000 + NIGHTLY)) is None
