"""Whatever versions of an application work on one state at once, the newest code's rows are right in the end."""

import pytest

from tests.versions.api import Broken, SqliteStore
from tests.versions.history import History, broken
from tests.versions.judge import judge
from tests.versions.shapes import LOST, NAMES, shape_of

PROFILES = [*NAMES, "mixed", *(name for name in LOST if name not in NAMES)]
SLOW = ("pages", "pages_changed", "long_keys", "mixed", "large_values")
"""Histories that take several times as long as others."""

each_profile = pytest.mark.parametrize("name", PROFILES)


def check(name, seeds, **options):
    for wrong in broken(name, seeds, **options):
        pytest.fail(wrong, pytrace=False)


@each_profile
def test_versions_of_the_code_lead_to_the_rows_of_the_newest(name):
    check(name, range(1))


@pytest.mark.ci
@each_profile
def test_versions_of_the_code_lead_to_the_rows_of_the_newest_in_a_thousand_histories(name):
    check(name, range(12 if name in SLOW else 47))


@pytest.mark.nightly
@each_profile
def test_versions_of_the_code_lead_to_the_rows_of_the_newest_in_many_thousands(name):
    check(name, range(1000, 1840))


@pytest.mark.parametrize("name", ["parents", "plain_to_shared", "top", "unmarked", "long_keys", "large_values"])
def test_versions_of_the_code_lead_to_the_rows_of_the_newest_in_sqlite(name):
    check(name, range(1), store=SqliteStore)


def test_what_is_wrong_in_the_end_is_noticed():
    history = History(shape_of("added_and_retired", 0), 0)
    history.run()

    for place in history.store.items().keys() - history.known.keys():
        history.store.lose(place)

    with pytest.raises(Broken, match="expected"):
        judge(history)
