"""Derived rows as their readers see them."""

from decimal import Decimal

import pytest

from streamfold import AUDIT, Key, Table
from streamfold.engines.deadline import Deadline
from streamfold.read import audit_item, average, filtered, has_more, item_key, rows, sharded

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
    with pytest.raises(
        TypeError, match=r"'name' is no number: give the function that combines its shards, combine=\{'name': max"
    ):
        sharded(table, SALES, 2, day="1")


def test_a_throttled_table_is_asked_after_pauses_and_not_for_ever(monkeypatch):
    pauses = []
    monkeypatch.setattr("streamfold.read.derived_rows.Deadline", lambda: Deadline(pause=pauses.append))
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
    with pytest.raises(TypeError, match="'titles' does not show whether it is complete"):
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


def test_an_item_of_others_under_the_key_of_a_shard_is_no_shard():
    foreign = {**SALES.key(day="1", shard=1), "n": "not a number"}
    copied = {**SALES.key(day="1", shard=2), "_sf_n": 1, "_sf_v": "00/label/7", "n": Decimal(100)}
    assert sharded(Shards(shard(0, n=Decimal(5)), foreign, copied), SALES, 4, day="1") == {"n": 5}
