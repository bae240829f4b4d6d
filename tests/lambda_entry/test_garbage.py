"""How often a function looks for cycles: hardly while it starts, then after some hundred thousand new containers."""

import gc

import pytest

from streamfold import App, lambda_entry
from streamfold.lambda_entry.function import Function
from streamfold.settings import Settings


@pytest.fixture(autouse=True)
def thresholds():
    """The process keeps its own; what other tests' functions froze is thawed."""
    kept = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*kept)
    gc.freeze()


def test_a_start_is_hardly_looked_through():
    gc.set_threshold(700)
    lambda_entry.collect_rarely()
    assert gc.get_threshold()[0] == lambda_entry.AT_START


@pytest.mark.parametrize("own", [0, lambda_entry.IN_BATCHES, lambda_entry.AT_START + 1])
def test_a_threshold_that_was_set_on_purpose_stays(own):
    gc.set_threshold(own)
    lambda_entry.collect_rarely()
    lambda_entry.collect_in_batches()
    assert gc.get_threshold()[0] == own
    assert gc.get_freeze_count() == 0


def test_a_function_that_is_made_leaves_out_what_the_start_made_and_looks_through_batches():
    gc.set_threshold(lambda_entry.AT_START)
    Function(App("garbage", []), Settings(), client=object())
    assert gc.get_threshold()[0] == lambda_entry.IN_BATCHES
    assert gc.get_freeze_count() > 0


def test_cycles_that_a_batch_makes_are_still_found():
    gc.set_threshold(lambda_entry.AT_START)
    lambda_entry.collect_in_batches()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() > 0
