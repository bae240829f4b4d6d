"""Versions of an application over one state on DynamoDB Local, whose pages and keys have their limits."""

from functools import partial

import pytest

from tests.versions import test_expiring
from tests.versions.api import LocalStore
from tests.versions.shapes import NAMES
from tests.versions.test_versions import check

IN_MEMORY = ("swapped", "pages", "pages_changed")
"""A table is exchanged in memory only; steps over pages are hundreds of calls."""


@pytest.fixture
def store(dynamodb):
    """Makes stores of a database of their own."""
    return partial(LocalStore, client=dynamodb)


@pytest.mark.parametrize(
    "name",
    ["parents", "plain_to_shared", "top", "unmarked", "long_keys", pytest.param("large", marks=pytest.mark.longest)],
)
def test_versions_of_the_code_lead_to_the_rows_of_the_newest(store, name):
    check(name, range(1), store=store)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in IN_MEMORY), "mixed", "large"])
def test_versions_of_the_code_lead_to_the_rows_of_the_newest_in_a_hundred_histories(store, name):
    check(name, range(100, 101 if name == "large" else 105), store=store)


@pytest.mark.parametrize("late", [False, True])
def test_rows_that_expire_hold_what_came_since(store, late):
    test_expiring.check(range(1), store=store, late=late)


@pytest.mark.nightly
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("part", range(5))
def test_rows_that_expire_hold_what_came_since_in_a_hundred_histories(store, part, late):
    test_expiring.check(range(100 + 10 * part, 110 + 10 * part), store=store, late=late)
