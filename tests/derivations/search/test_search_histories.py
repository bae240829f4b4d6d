"""Runs of a few items, interleaved at every call: the index ends with what the items are."""

import pytest

from tests.helpers.search_histories import KINDS, check

each_kind = pytest.mark.parametrize("name", KINDS)


@each_kind
def test_documents_are_those_of_the_items_however_runs_overlap(name):
    check(name, 30)


@pytest.mark.ci
@each_kind
def test_documents_are_those_of_the_items_in_thousands_of_histories(name):
    check(name, 600, 100)


@pytest.mark.nightly
@each_kind
def test_documents_are_those_of_the_items_in_many_thousands_of_histories(name):
    check(name, 35_000, 10_000)
