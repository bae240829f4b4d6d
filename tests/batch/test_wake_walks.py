"""Changes and time that passes, whose store calls are put into any order, with two faults each."""

import pytest

from tests.helpers.wake_walks import MADE, SCRIPTS, walked

QUICK, CI, NIGHTLY = 1, 8, 180
FEW = ["one moment", "two items of a row"]


@pytest.mark.parametrize("handler", MADE)
def test_a_walk_over_each_script_leads_to_the_declared_rows_at_each_time(handler):
    assert [found for script in SCRIPTS if (found := walked(handler, script, QUICK))] == []


def test_walks_over_documents_lead_to_those_of_each_time():
    """The scripts by which mutants are noticed."""
    assert [found for script in FEW if (found := walked("documents", script, 8, seed=9))] == []


@pytest.mark.ci
@pytest.mark.parametrize("handler", MADE)
def test_more_walks_over_each_script_lead_to_the_declared_rows_at_each_time(handler):
    assert [found for script in SCRIPTS if (found := walked(handler, script, CI, seed=1))] == []


@pytest.mark.ci
@pytest.mark.parametrize("handler", ["counted", "leaders", "two"])
def test_walks_with_deltas_lead_to_the_declared_rows_at_each_time(handler):
    assert [found for script in SCRIPTS if (found := walked(handler, script, CI, seed=2, deltas=True))] == []


@pytest.mark.nightly
@pytest.mark.parametrize("handler", MADE)
def test_many_walks_over_each_script_lead_to_the_declared_rows_at_each_time(handler):
    assert [found for script in SCRIPTS if (found := walked(handler, script, NIGHTLY, seed=3))] == []
