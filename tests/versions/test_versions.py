"""Whatever versions of an application work on one state at once, the newest code's rows are right in the end."""

from unittest.mock import patch

import pytest

from streamfold.batch import order
from streamfold.lifecycle import row_repair
from tests.versions.api import Broken, SqliteStore
from tests.versions.history import History, broken
from tests.versions.judge import judge
from tests.versions.shapes import LOST, NAMES, shape_of

PROFILES = [*NAMES, "mixed", *(name for name in LOST if name not in NAMES)]
SLOW = ("pages", "pages_changed", "long_keys", "mixed", "large_values", *LOST)
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
    check(name, range(1000, 1300 if name in LOST else 1840))


@pytest.mark.parametrize("name", ["parents", "plain_to_shared", "top", "unmarked", "long_keys", "large_values", "lost"])
def test_versions_of_the_code_lead_to_the_rows_of_the_newest_in_sqlite(name):
    check(name, range(1), store=SqliteStore)


def test_what_is_wrong_in_the_end_is_noticed():
    history = History(shape_of("added_and_retired", 0), 0)
    history.run()

    for place in history.store.items().keys() - history.known.keys():
        history.store.lose(place)

    with pytest.raises(Broken, match="expected"):
        judge(history)


def test_the_removal_of_a_row_that_nobody_notices_is_told():
    with patch.object(order, "is_of_counted_row", lambda _: False):
        assert any("does not notice" in wrong for wrong in broken("lost", range(8)))


def test_rows_that_are_not_made_anew_are_told():
    with patch.object(row_repair.RowCorrection, "correct", lambda *_: row_repair.RowsCorrected([], [])):
        assert any("expected" in wrong for wrong in broken("lost", range(8)))
