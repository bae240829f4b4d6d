"""Every kind with a lookup, in random histories of both sides under every fault: redelivered, repaired and redriven."""

import pytest

from streamfold.testing import check
from tests.helpers import looked_up

HANDLERS = [each for each in looked_up.EACH if not each.__name__.startswith("document")]
"""Those of a search are played beside their tests."""
TOGETHER = pytest.param(looked_up.TOGETHER, id="together")
each_handler = pytest.mark.parametrize(
    "handlers", [*(pytest.param([each], id=each.__name__) for each in HANDLERS), TOGETHER]
)


def check_histories(handlers, histories, seed):
    app = looked_up.made(*handlers)
    assert check(app, looked_up.items_of(app), histories=histories, seed=seed, processes=0).unproved == ()


@each_handler
def test_rows_are_those_of_the_items_and_their_referents(handlers):
    check_histories(handlers, 2, seed=0)


@pytest.mark.ci
@each_handler
def test_rows_are_those_of_the_items_and_their_referents_in_dozens_of_histories(handlers):
    check_histories(handlers, 30, seed=1)


@pytest.mark.nightly
@each_handler
@pytest.mark.parametrize("part", range(10))
def test_rows_are_those_of_the_items_and_their_referents_in_thousands_of_histories(handlers, part):
    check_histories(handlers, 500, seed=2 + part)
