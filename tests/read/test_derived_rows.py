"""Derived rows as their readers see them."""

from datetime import UTC, datetime
from decimal import Decimal

import boto3
import pytest
from boto3.dynamodb.conditions import Attr

from streamfold import AUDIT, App, Count, Key, Max, Router, Row, Table, Top
from streamfold.batch.process import process_event
from streamfold.engines.dynamodb import DynamoEngine
from streamfold.keys.table import MAIN
from streamfold.read import as_of, audit_item, average, filtered, has_more, history, item_key, rows, sharded, top
from streamfold.run import Deadline, Run
from streamfold.settings import Settings
from tests.helpers.past import BORN, rows_of
from tests.helpers.source import Source
from tests.helpers.template import create_table, load_template

ORDER = Key("ORDER#{order_id}", "METADATA")


@pytest.mark.parametrize("absent", [0, Decimal(0)])
def test_rows_without_contributors_and_tombstones_are_dropped(absent):
    present = {"PK": "A", "total": 5, "_sf_n": Decimal(2), "_sf_v": "00/label/7"}
    assert list(rows([present, {"PK": "B", "_sf_n": absent}])) == [{"PK": "A", "total": 5}]


def test_items_of_the_application_itself_are_rows():
    assert list(rows([{"PK": "A"}])) == [{"PK": "A"}]


PRESENT = "(attribute_not_exists(#present) OR #present <> :absent)"


def test_a_query_is_filtered_by_dynamodb():
    found = filtered(ORDER.query(order_id="1"))
    assert found["KeyConditionExpression"] == "#partition = :partition AND #sort = :sort"
    assert found["FilterExpression"] == PRESENT
    assert found["ExpressionAttributeNames"]["#present"] == "_sf_n"
    assert found["ExpressionAttributeValues"] == {":partition": "ORDER#1", ":sort": "METADATA", ":absent": 0}


def test_a_scan_is_filtered_too():
    assert filtered({}) == {
        "FilterExpression": PRESENT,
        "ExpressionAttributeNames": {"#present": "_sf_n"},
        "ExpressionAttributeValues": {":absent": 0},
    }


def test_a_filter_that_is_there_already_is_kept():
    found = filtered({"FilterExpression": "a = :a OR b = :a", "ExpressionAttributeValues": {":a": 1}})
    assert found["FilterExpression"] == f"(a = :a OR b = :a) AND {PRESENT}"
    assert found["ExpressionAttributeValues"] == {":a": 1, ":absent": 0}


def test_a_filter_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"FilterExpression=.*: expected text, because a condition of boto3"):
        filtered({"FilterExpression": Attr("a").eq(1)})


def test_the_query_that_was_given_is_left_as_it_was():
    query = ORDER.query(order_id="1")
    filtered(query)
    assert query == ORDER.query(order_id="1")


def test_the_history_of_an_item_is_one_partition():
    item = audit_item(ORDER.key(order_id="1"))
    assert item == "ORDER#1|METADATA"
    assert AUDIT.query(item=item)["ExpressionAttributeValues"][":partition"] == "AUDIT#ORDER#1|METADATA"


READINGS = Table("readings", partition="id", sort="at")


@pytest.mark.parametrize(
    ("source", "key"),
    [
        (ORDER, ORDER.key(order_id="1|2%7C")),
        (Key("A#{x}", table=Table("plain", partition="id", sort=None)), {"id": "A#1"}),
        (Key("{n:number}", "{b:binary}", table=READINGS), {"id": Decimal("1.5"), "at": b"\x00|"}),
    ],
)
def test_the_key_of_an_item_is_read_from_the_row_of_its_history(source, key):
    assert item_key(audit_item(key, source.table), source) == key


@pytest.mark.parametrize("item", ["ORDER#1|TOTAL", "ORDER#1", "A|B|C", "sha256:" + "0" * 64])
def test_a_row_of_another_item_or_with_a_digest_tells_no_key(item):
    assert item_key(item, ORDER) is None


def test_the_history_of_an_item_may_be_in_another_table():
    table = Table("plain", partition="id", sort=None)
    assert audit_item(Key("A#{x}", table=table).key(x="1|2"), table) == "A#1%7C2"


SALES = Key("SALES#{day}#{shard:02d}", "TOTAL")


class Shards:
    """boto3's table, as far as shards are read from it: one request answers two keys at most."""

    name = "shop"

    def __init__(self, *items, answers=True):
        self.items = list(items)
        self.answers = answers
        self.meta = self.client = self

    def batch_get_item(self, RequestItems):  # noqa: N803 - boto3's name
        keys = RequestItems[self.name]["Keys"]
        now = keys[:2] if self.answers else []
        found = [item for item in self.items if {"PK": item["PK"], "SK": item["SK"]} in now]
        left = {self.name: {"Keys": keys[len(now) :]}} if keys[len(now) :] else {}
        return {"Responses": {self.name: found}, "UnprocessedKeys": left}


def shard(number, **values):
    return {**SALES.key(day="1", shard=number), "_sf_n": 1, **values}


def test_the_shards_of_a_row_are_added_up():
    table = Shards(shard(0, n=Decimal(5)), shard(3, n=Decimal("0.5"), m=Decimal(1)), shard(2, n=Decimal(9), _sf_n=0))
    assert sharded(table, SALES, 5, day="1") == {"n": Decimal("5.5"), "m": Decimal(1)}
    assert sharded(Shards(), SALES, 5, day="1") is None


def test_what_is_no_number_says_how_its_shards_are_combined():
    table = Shards(shard(0, name="b"), shard(1, name="a"))
    assert sharded(table, SALES, 2, {"name": min}, day="1") == {"name": "a"}
    with pytest.raises(TypeError, match=r"'name' is no number: say how its shards are combined, combine=\{'name': max"):
        sharded(table, SALES, 2, day="1")


def test_a_throttled_table_is_asked_after_pauses_and_not_for_ever(monkeypatch):
    pauses = []
    monkeypatch.setattr("streamfold.read.tables.Deadline", lambda: Deadline(pause=pauses.append))
    with pytest.raises(TimeoutError, match="left keys unread 8 times in a row"):
        sharded(Shards(answers=False), SALES, 2, day="1")
    assert len(pauses) == 7
    assert 0 < sum(pauses) < 6.35


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"titles": ["a"], "_sf_e_titles": "list:1 Sa#x"}, True),
        ({"titles": ["a"], "_sf_e_titles": "list:1 "}, False),
        ({}, False),
    ],
)
def test_a_collection_says_whether_there_are_more_values(row, expected):
    assert has_more(row, "titles") is expected


def test_a_collection_without_the_attributes_of_the_framework_does_not_say_whether_it_is_whole():
    with pytest.raises(TypeError, match="'titles' does not say whether it is whole"):
        has_more({"titles": ["a"]}, "titles")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"score_sum": Decimal(7), "score_count": Decimal(2)}, Decimal("3.5")),
        ({"score_sum": 1, "score_count": 3}, Decimal("0." + "3" * 38)),
        ({"score_sum": 0, "score_count": 4}, Decimal(0)),
        ({"score_sum": 0, "score_count": 0}, None),
        ({}, None),
    ],
)
def test_an_average_is_the_sum_by_the_count_and_none_without_a_source(row, expected):
    assert average(row, "score") == expected


# History.

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


# Lists of the greatest.

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
    assert process_event(app, records, engine, Run(Settings())).failures == []
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
