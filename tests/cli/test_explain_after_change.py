"""``streamfold explain`` of a row that its items do not make: by other code, or because somebody changed it."""

import json
import sqlite3
from contextlib import closing

import pytest

STATE = ("--state", "state.db")
CODE = """
from streamfold import App, Key, Latest, Max, Min, Row, Router, Top

ITEM, DAY = Key("ITEM#{{item_id}}", "META"), Key("DAY#{{day}}", "ALL")
router = Router()


@router.view(ITEM, into=DAY)
def daily(item, item_id):
    return Row(day=item["day"], x={})


app = App("shop", routers=[router])
"""
FEED = """
from streamfold import App, Key, Row, Router, Table

MAIN = Table("main", ttl="expires")
POST = Key("WALL#{author}", "POST#{at:datetime.seconds}#{post}", table=MAIN)
EDGE = Key("WALL#{author}", "READER#{reader}", table=MAIN)
HOME = Key("HOME#{reader}", "{at:datetime.seconds}#{author}#{post}", table=MAIN)
router = Router()


@router.feed(POST, audience=EDGE, into=HOME, keep_days=36500)
def home(post, edge):
    return Row(text=post["text"])


app = App("shop", routers=[router])
"""


def filled(folder, source, code, *items):
    folder.app(code)
    assert folder.run("replay", folder.records(*(source.put(*key, **each) for key, each in items)), *STATE).code == 0


def explained(folder, *key):
    ran = folder.run("explain", *key, "--json", *STATE)
    return ran.code, json.loads(ran.out)


@pytest.fixture
def shop(folder, source):
    items = [((f"ITEM#{number}", "META"), {"day": "d", "n": number}) for number in range(1, 5)]
    filled(folder, source, CODE.format('Max(item["n"])'), *items)
    assert explained(folder, "DAY#d", "ALL")[0] == 0
    return folder


@pytest.mark.parametrize("new", ['Min(item["n"])', 'Max(-item["n"])', 'Latest(item_id, by=item["n"])'])
def test_a_row_that_the_code_of_now_makes_otherwise_is_not_right(shop, new):
    shop.app(CODE.format(new))
    code, found = explained(shop, "DAY#d", "ALL")
    assert (code, found["agrees"], found["outdated"]) == (1, False, 4)
    assert "4 of 4 contributions are not what the handlers make" in shop.run("explain", "DAY#d", "ALL", *STATE).out


def changed(folder, old, new, key):
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        found = connection.execute("UPDATE items SET item = replace(item, ?, ?) WHERE pk = ?", (old, new, key))
        assert found.rowcount == 1


def test_an_aggregate_that_somebody_changed_is_not_right(shop):
    changed(shop, '"x":{"N":"4"}', '"x":{"N":"8"}', "DAY#d")
    code, found = explained(shop, "DAY#d", "ALL")
    assert (code, found["differing"]) == (1, {"x": {"row": {"N": "8"}, "sum": {"N": "4"}}})


def test_a_row_of_a_feed_that_somebody_changed_is_not_right(folder, source):
    at, wall = "2026-02-01T00:00:00Z", "WALL#w"
    filled(folder, source, FEED, ((wall, "READER#r"), {}), ((wall, f"POST#{at}#p"), {"text": "first"}))
    key = ("HOME#r", f"{at}#w#p")
    assert explained(folder, *key)[0] == 0
    changed(folder, "first", "other", "HOME#r")
    code, found = explained(folder, *key)
    assert (code, found["differing"]) == (1, {"text": {"row": {"S": "other"}, "expected": {"S": "first"}}})
