"""Small histories under up to three deviations each, run after run in a fixed order, on the planner and committer."""

from collections import Counter

import pytest

from tests.helpers.exhaustive import DELTAS, DEVIATIONS_MAX, GUARDS, Enumerated, Strides, histories, runs

QUICK = Strides(90, 540, 720)
CI = Strides(23, 120, 160)
NIGHTLY = Strides(1, 20, 60)
DELTAS_QUICK, DELTAS_CI, DELTAS_NIGHTLY = Strides(200, 3_000, 1_000), Strides(60, 600, 400), Strides(5, 100, 150)
"""Runs with deltas have more points of choice."""
QUICK_RUNS = 600
CI_RUNS = 3_000
NIGHTLY_RUNS = 100_000


def _runs_without_a_problem(guard, strides):
    counts = Counter()
    for run in runs(GUARDS[guard](), strides, deltas=guard == DELTAS):
        assert run.problem is None, f"{run.scenario}, {run.batching or 'one batch'}: {run.problem}"
        counts[len(run.scenario.script)] += 1
    assert set(counts) == set(range(DEVIATIONS_MAX + 1))
    return counts.total()


@pytest.mark.parametrize("guard", GUARDS)
def test_some_small_runs_lead_to_the_declared_rows(guard):
    assert _runs_without_a_problem(guard, DELTAS_QUICK if guard == DELTAS else QUICK) >= QUICK_RUNS / len(GUARDS)


@pytest.mark.ci
@pytest.mark.parametrize("guard", GUARDS)
def test_every_nth_small_run_leads_to_the_declared_rows(guard):
    assert _runs_without_a_problem(guard, DELTAS_CI if guard == DELTAS else CI) >= CI_RUNS / len(GUARDS)


@pytest.mark.nightly
@pytest.mark.parametrize("guard", GUARDS)
def test_many_more_small_runs_lead_to_the_declared_rows(guard):
    assert _runs_without_a_problem(guard, DELTAS_NIGHTLY if guard == DELTAS else NIGHTLY) >= NIGHTLY_RUNS / len(GUARDS)


def test_all_histories_of_two_items_and_four_changes_are_there_once():
    found = [str(history) for history in map(list, histories())]
    assert len(found) == len(set(found)) == 1 + 4 + 4**2 + 4**3


def test_the_points_after_the_last_deviation_are_open():
    choices = Enumerated({2: "conflict"}, None)
    assert [choices.choose("transact", ["conflict", "raises-once"]) for _ in range(3)] == [None, "conflict", None]
    assert choices.open == [(3, "conflict")]
