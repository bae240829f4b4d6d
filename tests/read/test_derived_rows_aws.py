"""Histories and lists as they are read from tables, with boto3's table and its client."""

from datetime import UTC, datetime

import boto3
import pytest
from boto3.dynamodb.conditions import Attr

from streamfold import App, Count, Key, Max, Router, Row, Top
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine
from streamfold.keys.table import MAIN
from streamfold.read import as_of, filtered, history, sharded, top
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.history_rows import BORN, rows_of
from tests.helpers.source import Source
from tests.helpers.template import create_table, load_template

ORDER = Key("ORDER#{order_id}", "METADATA")


def test_a_filter_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"FilterExpression=.*: expected text, because a condition of boto3"):
        filtered({"FilterExpression": Attr("a").eq(1)})


LIFE = [(BORN, {"n": 1}), (BORN + 60, {"n": 2, "note": b"x"}), (BORN + 120, None)]

BY_ORDER = Key("LOG#{order_id}", "{version}#{item:rest}")


@pytest.fixture
def shop(aws):
    """The table "shop" in moto, as boto3's ``Table``."""
    client = boto3.client("dynamodb")
    create_table(client, load_template(), "Table", "shop")
    return boto3.resource("dynamodb").Table("shop")


def put(table, rows):
    for row in rows:
        table.put_item(Item=row)


def as_client(table):
    return boto3.client("dynamodb"), table.name


def itself(table):
    return table


@pytest.mark.parametrize("reader", [itself, as_client])
def test_the_history_of_an_item_is_read_oldest_first_as_plain_items(shop, reader):
    put(shop, reversed(rows_of(LIFE)))
    put(shop, [{"PK": "AUDIT#ORDER#1|METADATA2", "SK": "v"}])
    found = list(history(reader(shop), ORDER, order_id="1"))
    assert [row["event"] for row in found] == ["INSERT", "MODIFY", "REMOVE"]
    assert found[1]["changes"]["n"] == {"old": 1, "new": 2}
    assert list(history(reader(shop), ORDER, order_id="2")) == []


@pytest.mark.parametrize("reader", [itself, as_client])
def test_a_history_of_several_pages_is_read_to_its_end(shop, reader):
    put(shop, rows_of([(BORN + number, {"n": number, "text": "x" * 30_000}) for number in range(40)]))
    assert len(list(history(reader(shop), ORDER, order_id="1"))) == 40


@pytest.mark.parametrize("reader", [itself, as_client])
def test_an_item_is_read_as_it_was(shop, reader):
    put(shop, rows_of(LIFE))
    items = [
        as_of(reader(shop), ORDER, datetime.fromtimestamp(BORN + seconds, UTC), order_id="1").item
        for seconds in (59, 60, 120)
    ]
    assert items == [ORDER.key(order_id="1") | {"n": 1}, ORDER.key(order_id="1") | {"n": 2, "note": b"x"}, None]


def test_the_history_of_one_item_is_told_from_that_of_its_neighbours_in_a_target_of_its_own(shop):
    put(shop, rows_of(LIFE, into=BY_ORDER))
    put(
        shop,
        [
            {**row, "SK": row["SK"].replace("METADATA", "ITEM#b"), "item": "ORDER#1|ITEM#b"}
            for row in rows_of(LIFE[:2], into=BY_ORDER)
        ],
    )
    put(shop, [{"PK": "LOG#1", "SK": "no history"}])
    assert len(list(history(shop, ORDER, BY_ORDER, order_id="1"))) == 3
    line = Key("ORDER#{order_id}", "ITEM#{sku}")
    assert len(list(history(shop, line, BY_ORDER, order_id="1", sku="b"))) == 2


PLAY = Key("GAME#{game}", "PLAY#{play}")

LEADERS = Key("GAME#{game}", "LEADERS")

SPREAD_LEADERS = Key("GAME#{game}", "LEADERS#{shard:02d}")


def played(shop, into, shards=None):
    """The table, once six plays of a game were folded into rows of it."""
    router = Router()

    @router.view(PLAY, into=into, shards=shards)
    def leaders(play_item, play):
        yield Row(n=Count(), best=Max(play_item["score"]), leaders=Top(3, {"play": play}, by=play_item["score"]))

    client, source, app = boto3.client("dynamodb"), Source(), App("games", routers=[router])
    create_table(client, load_template(), "StateTable", "state")
    records = [
        source.put("GAME#a", f"PLAY#{play}", score=score)
        for play, score in zip("abcdef", (1, 9, 3, 9, 9, 2), strict=True)
    ]
    engine = DynamoEngine(client, {"main": (MAIN, shop.name)}, "state")
    assert process_event(Runtime(app, engine, Settings()), records).failures == []
    return shop


FIRST_THREE = [{"play": "b"}, {"play": "d"}, {"play": "e"}]


@pytest.mark.parametrize("reader", [itself, as_client])
def test_a_list_of_the_greatest_is_read_from_its_row(shop, reader):
    table = reader(played(shop, LEADERS))
    assert top(table, LEADERS, 0, "leaders", game="a") == FIRST_THREE
    assert top(table, LEADERS, 0, "leaders", game="b") == []
    assert top(table, LEADERS, 0, "trailers", game="a") == []


@pytest.mark.parametrize("reader", [itself, as_client])
def test_the_lists_of_shards_are_one_list_with_the_ties_of_one_row(shop, reader):
    table = reader(played(shop, SPREAD_LEADERS, 4))
    assert top(table, SPREAD_LEADERS, 4, "leaders", game="a") == FIRST_THREE
    assert top(table, SPREAD_LEADERS, 4, "leaders", game="b") == []
    assert sharded(table, SPREAD_LEADERS, 4, game="a") == {"n": 6, "best": 9, "leaders": FIRST_THREE}


def test_what_is_no_list_is_no_list_of_the_greatest(shop):
    with pytest.raises(TypeError, match=r"Attribute 'best' is Decimal\('9'\): expected the list of a Top."):
        top(played(shop, SPREAD_LEADERS, 4), SPREAD_LEADERS, 4, "best", game="a")
    with pytest.raises(TypeError, match=r"Attribute 'best' is Decimal\('9'\): expected the list of a Top."):
        top(shop, SPREAD_LEADERS, 0, "best", game="a", shard=0)
