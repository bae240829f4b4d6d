"""Versions kept by number, after late redrives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.histories import records_of
from tests.helpers.late_redrive import LateRedrive
from tests.helpers.numbered import HISTORIES, REDACTING, expected, numbered


def check_redriven(history, random):
    late, records = LateRedrive(random, REDACTING), records_of(history)
    late.process(records)
    assert numbered(REDACTING, late.engine) == expected(records)
    late.redrive_some(0.7)
    assert numbered(REDACTING, late.engine) == expected(records)


every_history = given(HISTORIES, st.randoms(use_true_random=False))


@every_history
@settings(max_examples=40)
def test_records_that_are_redriven_late_lead_to_the_rows_of_the_model(history, random):
    check_redriven(history, random)


@pytest.mark.nightly
@every_history
@settings(max_examples=2000)
def test_records_that_are_redriven_late_lead_to_the_rows_of_the_model_in_many_histories(history, random):
    check_redriven(history, random)
