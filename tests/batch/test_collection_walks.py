"""Histories of roots and parts on the real code, whose store calls are put into any order, with faults."""

import pytest

from tests.helpers.collection_walks import DESIGNS, walked

QUICK, CI, NIGHTLY = 5, 125, 2_500
"""Histories of each of the eight designs: 1,000 in the long tier, 20,000 at night."""


@pytest.mark.parametrize("design", DESIGNS)
def test_some_histories_lead_to_the_rows_of_the_model(design):
    assert walked(design, QUICK) is None


@pytest.mark.ci
@pytest.mark.parametrize("design", DESIGNS)
def test_more_histories_lead_to_the_rows_of_the_model(design):
    assert walked(design, CI, seed=1) is None


@pytest.mark.nightly
@pytest.mark.parametrize("design", DESIGNS)
def test_many_histories_lead_to_the_rows_of_the_model(design):
    assert walked(design, NIGHTLY, seed=2, faults=3) is None
