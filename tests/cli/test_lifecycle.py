"""What commands show of cascades, copies and archives."""

import json

import pytest

from streamfold.read import archived

CASCADING = """
from streamfold import Add, App, Count, Key, Router, Row, Table

ORDER = Key("ORDER#{order_id}", "METADATA")
ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()
router.cascade(ORDER, children=[ITEM], name="cascade")
router.copy(ORDER, to=Table("copies", region="eu-west-1"), name="copy")


@router.view(ITEM, into=Key("ALL", "ITEMS"))
def items(item):
    yield Row(items=Count())


@router.on(ITEM, events=["REMOVE"], into=Key("GONE", "ITEMS"))
def gone(change):
    yield Add(gone=1)


app = App("shop", routers=[router])
"""
STATE = ("--state", "state.db")


@pytest.fixture
def shop(folder):
    folder.app(CASCADING)
    return folder


def orders(source):
    """Two orders of two items each."""
    for number in (1, 2):
        yield source.put(f"ORDER#{number}")
        for sku in "ab":
            yield source.put(f"ORDER#{number}", f"ITEM#{sku}")


def summary(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_replay_removes_the_children_and_their_rows_follow(shop, source):
    records = shop.records(*orders(source), source.remove("ORDER#1"))
    report = summary(shop.run("replay", records, *STATE, "--json"))
    removed = {row["handler"]: row["removed"] for row in report["handlers"]}
    assert (removed["cascade"], report["kept"], report["failure_count"]) == (2, {}, 0)
    assert list(shop.rows(*STATE, "--source")) == ["ORDER#2 / ITEM#a", "ORDER#2 / ITEM#b", "ORDER#2 / METADATA"]
    rows = shop.rows(*STATE)
    assert (rows["ALL / ITEMS"]["items"], rows["GONE / ITEMS"]["gone"]) == ({"N": "2"}, {"N": "2"})


def test_removals_that_the_recording_holds_are_not_made_a_second_time(shop, source):
    begin = [*orders(source), source.remove("ORDER#1")]
    records = shop.records(*begin, *(source.remove("ORDER#1", f"ITEM#{sku}") for sku in "ab"))
    report = summary(shop.run("replay", records, *STATE, "--json", "--batch-size", 1))
    assert sum(row["removed"] for row in report["handlers"] if row["handler"] == "cascade") == 0
    assert shop.rows(*STATE)["GONE / ITEMS"]["gone"] == {"N": "2"}


def test_children_of_an_item_that_a_later_record_brings_back_are_kept(shop, source):
    records = shop.records(*orders(source), source.remove("ORDER#1"), source.put("ORDER#1"))
    ran = shop.run("replay", records, *STATE, "--batch-size", 1)
    assert "Cascade cascade: 1 of the removed items exist again and keep their children." in ran.out
    assert len(shop.rows(*STATE, "--source")) == 6


def test_the_next_replay_goes_on_where_the_first_ended(shop, source):
    first = shop.records(*orders(source), source.remove("ORDER#1"), name="first.jsonl")
    shop.run("replay", first, *STATE)
    again = shop.records(source.put("ORDER#1"), source.put("ORDER#1", "ITEM#a"), name="second.jsonl")
    shop.run("replay", again, *STATE)
    shop.run("replay", first, *STATE)
    assert shop.rows(*STATE)["ALL / ITEMS"]["items"] == {"N": "3"}
    assert "ORDER#1 / ITEM#a" in shop.rows(*STATE, "--source")


def test_a_replay_that_keeps_nothing_removes_children_too(shop, source):
    records = shop.records(*orders(source), source.remove("ORDER#1"))
    report = summary(shop.run("replay", records, "--json"))
    assert {row["handler"]: row["removed"] for row in report["handlers"]}["cascade"] == 2


def test_a_dry_run_names_the_items_whose_children_would_go_and_the_copies(shop, source):
    records = shop.records(source.put("ORDER#1"), source.remove("ORDER#1"))
    ran = shop.run("replay", records, "--dry-run")
    assert "remove the children of ORDER#1 / METADATA" in ran.out
    assert "copy: remove copies: ORDER#1 / METADATA, if older\n" in ran.out


def test_routes_shows_what_a_cascade_removes_and_where_copies_go(shop):
    rows = shop.run("routes", "--json").objects()
    cascade, copy = rows[:2]
    assert (cascade["kind"], cascade["targets"]) == ("cascade", ["ORDER#{order_id} / ITEM#{sku}"])
    assert (copy["kind"], copy["targets"]) == ("copy", ["copies: ORDER#{order_id} / METADATA"])


ARCHIVING = """
from streamfold import App, Key, Router

SESSION = Key("SESSION#{session_id}", "METADATA")
router = Router()
router.archive(SESSION, to="s3://kept/sessions", name="archive")

app = App("shop", routers=[router])
"""


def test_a_replay_leaves_a_declared_bucket_alone_and_says_how_to_archive(folder, source):
    folder.app(ARCHIVING)
    source.put("SESSION#1")
    ran = folder.run("replay", folder.records(source.remove("SESSION#1")))
    assert ran.code == 0
    assert "Archive archive: 1 removed items are not in its bucket." in ran.out
    assert "to a folder with STREAMFOLD_ARCHIVE=file:FOLDER." in ran.out


def test_a_replay_archives_into_the_folder_of_the_setting(folder, source, monkeypatch):
    folder.app(ARCHIVING)
    monkeypatch.setenv("STREAMFOLD_ARCHIVE", f"file:{folder.path}/kept")
    source.put("SESSION#1", user="ana")
    report = summary(folder.run("replay", folder.records(source.remove("SESSION#1")), "--json"))
    assert {row["handler"]: row["written"] for row in report["handlers"]} == {"archive": 1}
    assert [kept.item["user"] for kept in archived(f"file:{folder.path}/kept", "archive")] == ["ana"]


def test_a_dry_run_names_the_items_that_would_be_archived(folder, source):
    folder.app(ARCHIVING)
    source.put("SESSION#1")
    assert (
        "archive SESSION#1 / METADATA"
        in folder.run("replay", folder.records(source.remove("SESSION#1")), "--dry-run").out
    )


def test_routes_shows_where_an_archive_goes(folder):
    folder.app(ARCHIVING)
    (row,) = folder.run("routes", "--json").objects()
    assert (row["kind"], row["targets"], row["guard"]) == ("archive", ["s3://kept/sessions"], "name by digest")
