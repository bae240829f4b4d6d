"""Changes of items and of what they refer to, whose store calls are put into any order, with two faults each."""

import pytest

from tests.helpers.lookup_walks import SCRIPTS, explored, walked

QUICK, CI, NIGHTLY = 6, 60, 5_000
SHORT = ("insert, referent changes", "item before its referent", "referent comes, goes", "item older than the handler")
STATES_MAX, STATES_NIGHTLY_MAX = 5_000, 100_000


@pytest.mark.parametrize("script", SCRIPTS)
def test_some_walks_over_each_script_lead_to_the_declared_rows(script):
    assert walked(script, QUICK) is None


@pytest.mark.ci
@pytest.mark.parametrize("script", SCRIPTS)
def test_more_walks_over_each_script_lead_to_the_declared_rows(script):
    assert walked(script, CI, seed=1) is None


@pytest.mark.nightly
@pytest.mark.parametrize("script", SCRIPTS)
def test_many_walks_over_each_script_lead_to_the_declared_rows(script):
    assert walked(script, NIGHTLY, seed=2) is None


@pytest.mark.ci
@pytest.mark.parametrize("script", SHORT)
def test_every_order_of_the_calls_of_a_short_script_leads_to_the_declared_rows(script):
    found = explored(script, 0, STATES_MAX)
    assert (found.wrong, found.complete) == (None, True)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "faults"), [*((script, 1) for script in SHORT), ("both sides change", 0), ("both sides change", 1)]
)
def test_orders_of_the_calls_with_a_fault_lead_to_the_declared_rows(script, faults):
    assert explored(script, faults, STATES_NIGHTLY_MAX).wrong is None
