"""Eight kinds of faults, planted in a state while a writer goes on: all are found, explained and mended, none false."""

import pytest

from tests.bench.verified import verified
from tests.helpers.planted_faults import Shop

MIB_MAX = 300


@pytest.mark.parametrize("seed", [1, 2])
def test_faults_of_eight_kinds_are_found_explained_and_mended_while_a_writer_goes_on(seed):
    Shop(60, 4, seed).check()


@pytest.mark.nightly
def test_two_hundred_faults_in_a_large_table_are_found_explained_and_mended():
    Shop(5_000, 25, 3).check()


@pytest.mark.nightly
def test_two_hundred_faults_among_two_hundred_thousand_items_are_found_in_little_memory():
    found = verified(200_000, 25)
    print(found)
    assert (found.planted, found.lacking, found.false) == (200, 0, 0)
    assert found.mib < MIB_MAX


@pytest.mark.ci
def test_what_is_found_from_a_process_of_its_own_is_what_was_planted():
    found = verified(4_000, 2)
    assert (found.planted, found.lacking, found.false) == (16, 0, 0)
    assert found.mib < MIB_MAX
