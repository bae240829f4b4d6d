"""States are lost, mistyped, restored, renamed, of another region, at any moment of a history."""

from collections import Counter

import pytest

from tests.helpers.lost_states import INCIDENTS, History, MemoryTables

AT_ONCE, IN_CI, EVERY_NIGHT = 40, 200, 2_000


def played(seeds):
    seen = Counter()
    for seed in seeds:
        history = History(seed, MemoryTables())
        try:
            history.play()
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {dict(history.seen)}") from error
        seen += history.seen
    assert set(seen) == set(INCIDENTS)


def test_a_batch_is_refused_or_each_row_is_the_fold():
    played(range(AT_ONCE))


@pytest.mark.ci
def test_a_batch_is_refused_or_each_row_is_the_fold_in_ci():
    played(range(1_000, 1_000 + IN_CI))


@pytest.mark.nightly
def test_a_batch_is_refused_or_each_row_is_the_fold_every_night():
    played(range(10_000, 10_000 + EVERY_NIGHT))
