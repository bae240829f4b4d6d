"""Runs on Spark over items that handlers read beside others: lists in place of Spark, as one process has it."""

from collections import Counter
from decimal import Decimal

import pytest

from streamfold.cli.spark import AppLocation, SparkRun, row_partition, verified_on_spark
from streamfold.keys.table import MAIN
from streamfold.lifecycle.exports import open_export
from streamfold.lifecycle.other_rows import verify_exports
from streamfold.records.values import encode
from streamfold.settings import Settings
from tests.helpers.exports import TIME, write_export
from tests.helpers.joined_items import app, images, table, with_faults
from tests.helpers.rdds import LocalContext
from tests.helpers.records import item

LOCATION = AppLocation("tests.helpers.joined_items:app", (), {})
CHAIN = ("main", "BEST", "BEST")
"""A row of a row: a cluster takes that as exported, and one process folds it."""


@pytest.fixture(autouse=True)
def _lists(monkeypatch):
    monkeypatch.setattr("streamfold.cli.spark.spark_context", lambda _: LocalContext())


@pytest.fixture
def both(tmp_path):
    """Compares a table in this process and as a cluster does; gives the differences, and the items that failed."""

    def compare(stored):
        place = write_export(tmp_path / "export", stored, files=3, table="main")
        here = verify_exports(app, Settings(), app.routes, {"main": open_export(place, MAIN)}).rows
        found, failed = verified_on_spark(LOCATION, app, app.routes, {"main": place}, TIME, None)
        locally = [(each.item, each.handler, f"{type(each.error).__name__}: {each.error}") for each in here.failed]
        return (differences(here), sorted(locally), here.rows), (differences(found), sorted(failed), found.rows)

    return compare


def differences(found):
    return {each.row: (each.what, each.shown, each.expected) for each in found.different}


def with_items(seed, *more):
    return [*(encode(each)["M"] for each in more), *table(images(seed, 12))]


@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_finds_the_same_faults_as_one_process(both, seed):
    here, spark = both(with_faults(table(images(seed, 36)), seed))
    here[0].pop(CHAIN, None), spark[0].pop(CHAIN, None)
    assert spark == here
    assert len(here[0]) > 4
    assert here[1]


@pytest.mark.parametrize("seed", [3])
def test_a_cluster_finds_nothing_in_a_table_that_is_right(both, seed):
    here, spark = both(table(images(seed, 36)))
    assert spark == here
    assert (here[0], here[2] > 30) == ({}, True)


@pytest.fixture
def _few_parts(monkeypatch):
    """A root with more than 30 parts has too many."""
    monkeypatch.setattr("streamfold.commit.collections.PARTS_MAX", 30)
    monkeypatch.setattr("streamfold.commit.collections.PAGE_ITEMS", 10)
    monkeypatch.setattr("streamfold.lifecycle.joins.READ_MAX", 40)


@pytest.mark.usefixtures("_few_parts")
def test_a_root_with_more_parts_than_its_bound_fails_as_in_one_process(both):
    lines = (item("ORDER#many", f"ITEM#{n}", quantity=1) for n in range(60))
    here, spark = both(with_items(5, item("ORDER#many", "METADATA"), *lines))
    assert spark == here
    assert [failed for failed in spark[1] if "40 items and more are read" in failed[2]]


@pytest.mark.usefixtures("_few_parts")
def test_the_newest_parts_are_found_behind_many_others(both):
    labels = (item("ORDER#many", f"SHIPMENT#{n:06}#LABEL") for n in range(99))
    shipments = (item("ORDER#many", f"SHIPMENT#{n:06}") for n in range(76))
    here, spark = both(with_items(5, item("ORDER#many", "METADATA"), *labels, *shipments))
    assert spark == here
    assert here[0]["main", "STATE#many", "STATE"][2]["last"] == [74, 75]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tags": [f"t{n}" for n in range(41)]}, "An item refers to 41 others"),
        ({"product_key": "ORDER#1"}, "takes a whole key, and that of this item is none of"),
        ({"tags": "t1"}, "expected a list or a set of references"),
    ],
)
def test_an_item_whose_references_are_wrong_fails_as_in_one_process(both, given, text):
    here, spark = both(with_items(5, item("ORDER#x", "ITEM#x", quantity=1, **given)))
    assert spark == here
    assert any(text in failed[2] for failed in spark[1])


def test_an_item_whose_value_cannot_be_read_fails_as_in_one_process(both):
    damaged = {**encode(item("ORDER#x", "ITEM#x", quantity=1))["M"], "product_id": {"N": "x"}}
    here, spark = both([*with_items(5), damaged])
    assert spark == here
    assert any("is no attribute value" in failed[2] for failed in spark[1])


def anchored(tmp_path, handlers, items):
    """The items that a run visits, by their anchor."""
    place = write_export(tmp_path / "export", [encode(each)["M"] for each in items], files=3, table="main")
    run = SparkRun(LOCATION, None, place, 3, "main", handlers, None, (None, None))
    found = {}
    for (anchor, _), key in run.anchors(LocalContext(), app, 8).collect():
        found.setdefault(anchor, []).append(key)
    return found


def test_items_that_share_a_row_by_their_referent_go_to_one_worker(tmp_path):
    lines = [item(f"ORDER#{n}", "ITEM#a", quantity=1, product_id=str(n % 4)) for n in range(40)]
    products = [item(f"PRODUCT#{n}", "META", category=f"c{n % 2}") for n in range(4)]
    found = anchored(tmp_path, ["sales"], [*lines, *products])
    assert {anchor: len(keys) for anchor, keys in found.items()} == {
        "('main', 'CATEGORY#c0', 'SALES')": 20,
        "('main', 'CATEGORY#c1', 'SALES')": 20,
    }


def test_a_part_of_a_root_that_does_not_exist_leads_to_it_once(tmp_path):
    clicks = [item(f"USER#{n % 3}", f"CLICK#01#{n}") for n in range(30)]
    found = anchored(tmp_path, ["days"], [*clicks, item("USER#0", "DAY#01"), item("USER#9", "DAY#01")])
    (roots,) = found.values()
    assert sorted(roots) == [("main", f"USER#{n}", "DAY#01") for n in (0, 1, 2, 9)]


def test_equal_numbers_of_keys_have_one_partition():
    assert len({row_partition(("main", "A", number)) for number in (5, Decimal(5), Decimal("5.0"))}) == 1
    assert row_partition(("main", "A", 5)) != row_partition(("main", "A", 50))


def test_every_item_of_a_run_is_visited_once(tmp_path):
    items = images(7, 36)
    found = anchored(tmp_path, [route.name for route in app.routes], items)
    visited = Counter(key for keys in found.values() for key in keys)
    assert set(visited.values()) == {1}
    keys = {("main", each["PK"], each["SK"]) for each in items}
    sources = {key for key in keys if app.sources(key)}
    assert sources <= visited.keys()
    assert all(key[2].startswith("DAY#") for key in visited.keys() - sources)
