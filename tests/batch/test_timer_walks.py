"""Moments at which handlers are called once, under store calls in any order, with two faults each."""

import pytest

from tests.helpers.timer_walks import MORE, walked
from tests.helpers.wake_walks import SCRIPTS

QUICK, CI, NIGHTLY = 2, 20, 400
EACH = [*SCRIPTS, *MORE]


@pytest.mark.parametrize("script", EACH)
def test_a_walk_calls_each_moment_once(script):
    assert walked(script, QUICK) is None


def test_walks_over_moments_that_move_back_call_each_once():
    """The scripts by which mutants are noticed."""
    assert [found for script in EACH[:2] if (found := walked(script, 12))] == []


@pytest.mark.ci
@pytest.mark.parametrize("script", EACH)
def test_more_walks_call_each_moment_once(script):
    assert walked(script, CI, seed=1) is None


@pytest.mark.ci
def test_walks_with_deltas_call_each_moment_once():
    assert [found for script in EACH if (found := walked(script, 4, seed=2, deltas=True))] == []


@pytest.mark.nightly
@pytest.mark.parametrize("script", EACH)
def test_many_walks_call_each_moment_once(script):
    assert walked(script, NIGHTLY, seed=3, faults=3) is None
