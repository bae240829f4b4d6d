"""``streamfold verify --rows --repair`` of rows of feeds, and of attributes on items: what is made of two sides."""

import json
import sqlite3
from contextlib import closing

import pytest

STATE = ("--state", "state.db")
AT, WALL, READER = "2026-02-01T00:00:00Z", "WALL#w", "HOME#r"
APP = """
from streamfold import App, Count, Key, Row, Router, Sum, Table

MAIN = Table("main", ttl="expires")
POST = Key("WALL#{author}", "POST#{at:datetime.seconds}#{post}", table=MAIN)
EDGE = Key("WALL#{author}", "READER#{reader}", table=MAIN)
HOME = Key("HOME#{reader}", "{at:datetime.seconds}#{author}#{post}", table=MAIN)
ORDER, LINE = Key("ORDER#{order_id}", "META", table=MAIN), Key("ORDER#{order_id}", "LINE#{sku}", table=MAIN)
router = Router()


@router.feed(POST, audience=EDGE, into=HOME, keep_days=36500)
def home(post, edge):
    return Row(text=post["text"])


@router.attributes(LINE, of=ORDER)
def lines_of_order(line):
    return Row(total=Sum(line["price"]), lines=Count())


router.audit(ORDER)
app = App("shop", routers=[router])
"""


@pytest.fixture
def shop(folder, source):
    """A reader of two posts, and an order with a line."""
    folder.app(APP)
    records = [
        source.put(WALL, "READER#r"),
        *(source.put(WALL, f"POST#{AT}#{name}", text=name) for name in ("kept", "lost")),
        source.put("ORDER#1", "META", buyer="ana"),
        source.put("ORDER#1", "LINE#a", price=5),
    ]
    assert folder.run("replay", folder.records(*records), *STATE).code == 0
    assert folder.run("verify", "--rows", *STATE).code == 0
    return folder


def change(folder, statement):
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        assert connection.execute(statement).rowcount > 0


def texts(folder):
    rows = folder.run("show", READER, "--json", *STATE).objects()
    return {row["text"]["S"] for row in rows}


def repaired(folder):
    """What a repair says of the rows, after which nothing differs."""
    found = json.loads(folder.run("verify", "--rows", "--repair", "--json", *STATE).out)
    assert (len(found["mended"]), found["left"]) == (len(found["different"]), [])
    assert folder.run("verify", "--rows", *STATE).code == 0
    return [(each["what"], each["PK"]["S"] if "PK" in each else None) for each in found["different"]]


LOST = f"DELETE FROM items WHERE pk = '{WALL}' AND sk LIKE 'POST#%lost'"
COPIES = "DELETE FROM state WHERE pk LIKE 'posts#%' OR pk LIKE 'edges#%'"


@pytest.mark.parametrize("also", [[], [COPIES]])
def test_rows_of_a_post_that_the_table_lost_are_removed(shop, also):
    for statement in (LOST, *also):
        change(shop, statement)
    assert len(repaired(shop)) == 1
    assert texts(shop) == {"kept"}


@pytest.mark.parametrize("also", [[], [COPIES]])
def test_rows_of_an_edge_that_the_table_lost_are_removed(shop, also):
    for statement in (f"DELETE FROM items WHERE pk = '{WALL}' AND sk = 'READER#r'", *also):
        change(shop, statement)
    assert len(repaired(shop)) == 2
    assert texts(shop) == set()


@pytest.mark.parametrize("also", [[], [COPIES]])
def test_a_row_of_a_feed_that_shows_something_else_is_written_again(shop, also):
    changed = f"UPDATE items SET item = replace(item, 'kept', 'other') WHERE pk = '{READER}' AND sk LIKE '%kept'"
    for statement in (changed, *also):
        change(shop, statement)
    assert len(repaired(shop)) == 1
    assert texts(shop) == {"kept", "lost"}


def test_a_row_of_a_feed_that_somebody_removed_is_written_again(shop):
    change(shop, f"DELETE FROM items WHERE pk = '{READER}' AND sk LIKE '%kept'")
    assert len(repaired(shop)) == 1
    assert texts(shop) == {"kept", "lost"}


def test_attributes_on_an_item_that_no_item_derives_any_more_are_taken_off(shop):
    change(shop, "DELETE FROM items WHERE pk LIKE 'attributes#%'")
    assert len(repaired(shop)) == 1
    assert '"total"' not in shop.run("show", "ORDER#1", "META", "--json", *STATE).out


def test_the_newest_row_of_a_history_is_left_with_the_reason(shop):
    change(shop, "UPDATE items SET item = replace(item, 'ana', 'bob') WHERE pk = 'ORDER#1' AND sk = 'META'")
    ran = shop.run("verify", "--rows", "--repair", *STATE)
    assert "follows from changes" in ran.out + ran.err


def test_an_item_of_a_writer_at_the_key_of_a_feeds_row_is_left(shop):
    marks = (
        "json_remove(item, '$._sf_v', '$._sf_x', '$._sf_n')",
        f"pk = '{READER}' AND sk LIKE '%lost'",
    )
    change(shop, f"UPDATE items SET item = {marks[0]} WHERE {marks[1]}")
    change(shop, LOST)
    before = texts(shop)
    ran = shop.run("verify", "--rows", "--repair", *STATE)
    assert ran.code in (0, 1)
    with closing(sqlite3.connect(shop.path / "state.db")) as connection:
        assert connection.execute(f"SELECT count(*) FROM items WHERE {marks[1]}").fetchone() == (1,)
    assert texts(shop) == before
