"""A recording under faults: where its changes go, what a run tells, and what is found and made short."""

from itertools import groupby

import pytest

from streamfold import App, Router
from streamfold.proofs.driver import NOW, Driver
from streamfold.proofs.faults import Scripted
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.recorded import SHARDS, Recording
from tests.helpers.expenses import EXPENSE, GROUP, group_total
from tests.helpers.records import change, item


def make_app(function=group_total):
    router = Router()
    router.view(EXPENSE, into=GROUP)(function)
    return App("shop", routers=[router])


def amended(items, times, group="a"):
    """Changes of so many items, each put and then amended so many times, one item after the other."""
    found = []
    for number in range(items):
        images = [None, *(item(f"EXPENSE#{number}", group=group, amount=10 * number + n) for n in range(times))]
        found += [change(*images[n : n + 2], len(found) + n + 1) for n in range(times)]
    return found


@pytest.fixture
def recording():
    return Recording(make_app(), amended(12, 3))


@pytest.fixture
def diverged(recording, unguarded):
    """The recording's first run that diverges on a store without guards."""
    assert recording.clean_problem() is None
    return next(run for run in map(recording.run, range(50)) if run.problem)


def test_changes_of_an_item_stay_in_one_shard_in_their_order(recording):
    assert len(recording.shards) == SHARDS
    assert recording.records == 36 == sum(map(len, recording.shards))
    for shard in recording.shards:
        for _, changes in groupby(sorted(shard, key=lambda change: change.item), lambda change: change.item):
            versions = [change.version_text for change in changes]
            assert versions == sorted(versions)
            assert len(versions) == 3


def test_no_run_is_earlier_than_its_last_record():
    later = change(None, item("EXPENSE#1", group="a", amount=1), at=NOW + 86_400)
    driver = Driver(FaultyHandlers(make_app()), [[later]], Scripted({}), 25)
    assert driver.now == NOW + 86_400


def test_partition_is_in_the_same_shard_of_every_recording():
    first, second = (_shards_of(Recording(make_app(), amended(30, times))) for times in (1, 2))
    assert first == second
    assert set(first.values()) == set(range(SHARDS))


def _shards_of(recording):
    return {change.item[1]: number for number, shard in enumerate(recording.shards) for change in shard}


def test_clean_run_gives_the_rows_that_others_are_compared_with(recording):
    assert recording.clean_problem() is None
    total = sum(10 * number + 2 for number in range(12))
    assert recording.expected == {("main", "GROUP#a", "TOTAL"): {"total": {"N": str(total)}, "expenses": {"N": "12"}}}


def test_run_is_told_with_its_faults_and_is_the_same_for_its_seed(recording):
    recording.clean_problem()
    run, again, other = recording.run(3), recording.run(3), recording.run(4)
    assert run.problem is None
    assert run.faults.total() == len(run.script) > 0
    assert run == again != other


def test_only_the_faults_that_are_asked_for_are_injected(recording):
    recording.clean_problem()
    runs = [recording.run(seed, {"answer-lost", "overlap"}) for seed in range(10)]
    assert {fault for run in runs for fault in run.faults} == {"answer-lost", "overlap"}


def test_recording_without_changes_passes():
    empty = Recording(make_app(), [])
    assert empty.clean_problem() is None
    assert empty.run(0).problem is None


def test_handler_that_fails_on_a_record_fails_the_clean_run():
    problem = Recording(make_app(), amended(1, 1, group="broken")).clean_problem()
    assert problem.startswith("The clean replay fails: handler 'group_total'")
    assert "LookupError: no group" in problem


def test_oracle_that_says_otherwise_is_told_as_a_bug(recording, monkeypatch):
    monkeypatch.setattr("streamfold.proofs.recorded.expected_all", lambda *_: {})
    problem = recording.clean_problem()
    assert problem.startswith("The clean replay and the oracle differ, which is a bug worth reporting. Rows differ")


def test_run_that_diverged_is_led_back_to_few_items_and_the_steps_of_their_story(recording, diverged):
    shortest = recording.shortest(diverged)
    assert shortest.problem
    assert 0 < len(shortest.records) <= 6
    assert shortest.records[0].startswith("shard 1, record 1: INSERT EXPENSE#")
    assert shortest.story


def test_large_recording_is_shortened_less_far(recording, diverged, monkeypatch):
    monkeypatch.setattr("streamfold.proofs.recorded.SHORTEN_RECORDS_MAX", recording.records)
    monkeypatch.setattr("streamfold.proofs.recorded.SHORTEN_RUNS_MIN", 2)
    tried = []
    monkeypatch.setattr(recording, "_problem", lambda *given: tried.append(given) or "Rows differ")
    recording.shortest(diverged)
    assert len(tried) <= 2 + 1  # the last is told
