"""Derived rows as their readers see them."""

from decimal import Decimal

import pytest
from boto3.dynamodb.conditions import Attr

from streamfold import AUDIT, Key, Table
from streamfold.read import audit_item, filtered, rows

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


def test_the_history_of_an_item_may_be_in_another_table():
    table = Table("plain", partition="id", sort=None)
    assert audit_item(Key("A#{x}", table=table).key(x="1|2"), table) == "A#1%7C2"
