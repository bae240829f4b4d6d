"""Rows that expire at any moment hold what came to them since they were made, whatever else happens."""

import pytest

from tests.versions.api import SqliteStore
from tests.versions.expiring import broken

each_start = pytest.mark.parametrize("late", [False, True], ids=["both versions", "the new version alone"])
"""Which versions of the code let rows expire."""


def check(seeds, **options):
    for wrong in broken(seeds, **options):
        pytest.fail(wrong, pytrace=False)


@each_start
def test_rows_that_expire_hold_what_came_since(late):
    check(range(3), late=late)


def test_rows_that_expire_hold_what_came_since_in_sqlite():
    check(range(1), store=SqliteStore)


@pytest.mark.ci
@pytest.mark.parametrize("part", range(4))
@each_start
def test_rows_that_expire_hold_what_came_since_in_hundreds_of_histories(part, late):
    check(range(50 * part, 50 * part + 50), late=late)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(100))
@each_start
def test_rows_that_expire_hold_what_came_since_in_many_thousands(part, late):
    check(range(1000 + 100 * part, 1100 + 100 * part), late=late)
