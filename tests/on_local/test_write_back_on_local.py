"""Derived attributes on DynamoDB Local: what they make of an item comes back through its stream, and ends there."""

import json

import boto3
import pytest

from streamfold import App
from streamfold.engines import DynamoEngine
from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX
from streamfold.replay.stream import StreamReader, record_stream
from streamfold.settings import Settings
from tests.derivations.attributes.test_write_back import ORDER, ORDER_ITEM, declare
from tests.helpers.tables import make_table

ROUNDS_MAX = 8
STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}


class Shop:
    """A table with a stream, and its records processed until there are none."""

    def __init__(self, dynamodb, dynamodbstreams, access_key, folder):
        make_table(dynamodb, "shop", {"PK": "S", "SK": "S"}, StreamSpecification=STREAM)
        make_table(dynamodb, "shop-state", {"pk": "S", "sk": "S"})
        self.app = App("shop", routers=[declare()])
        self.engine = DynamoEngine(dynamodb, {"main": (self.app.tables["main"], "shop")}, "shop-state")
        self.reader = StreamReader(dynamodb, dynamodbstreams, "shop")
        self.out = folder / "shop.jsonl"
        self.read = 0
        session = {"endpoint_url": dynamodb.meta.endpoint_url, "region_name": dynamodb.meta.region_name}
        self.table = boto3.resource(
            "dynamodb", **session, aws_access_key_id=access_key, aws_secret_access_key="secret"
        ).Table("shop")

    def drain(self):
        """Processes what the stream holds, and what comes of that; returns how many rounds it took."""
        for number in range(ROUNDS_MAX):
            record_stream(self.reader, self.out)
            lines = self.out.read_text("utf-8").splitlines()[self.read :]
            if not lines:
                return number
            self.read += len(lines)
            assert self.app.process([json.loads(line) for line in lines], engine=self.engine, settings=Settings()) == []
        raise AssertionError("the stream does not come to an end")

    def order(self, number="1"):
        return self.table.get_item(Key=ORDER.key(order_id=number), ConsistentRead=True).get("Item")


@pytest.fixture
def shop(dynamodb, dynamodbstreams, access_key, tmp_path):
    return Shop(dynamodb, dynamodbstreams, access_key, tmp_path)


def test_an_item_gets_its_attributes_back_whatever_its_writer_puts(shop):
    put = shop.table.put_item
    put(Item={**ORDER_ITEM.key(order_id="1", sku="a"), "price": 5})
    assert shop.drain() >= 1
    assert shop.order() is None
    put(Item={**ORDER.key(order_id="1"), "status": "open", "at": "2026-03-01"})
    shop.drain()
    read = shop.order()
    assert (read["total"], read["highest"], read["GSI1PK"]) == (5, 5, "OPEN")
    put(Item={**ORDER_ITEM.key(order_id="1", sku="b"), "price": 7})
    put(Item={**read, "status": "paid"})
    shop.drain()
    order = shop.order()
    assert (order["total"], order["lines"], order["highest"], order["status"]) == (12, 2, 7, "paid")
    assert "GSI1PK" not in order


def test_items_with_the_longest_keys_get_their_attributes(shop):
    put, number = shop.table.put_item, "x" * (PARTITION_BYTES_MAX - len("ORDER#"))
    put(Item={**ORDER.key(order_id=number), "status": "paid", "at": "2026-03-01"})
    put(Item={**ORDER_ITEM.key(order_id=number, sku="y" * (SORT_BYTES_MAX - len("ITEM#"))), "price": 5})
    shop.drain()
    assert shop.order(number)["total"] == 5
    shop.table.delete_item(Key=ORDER_ITEM.key(order_id=number, sku="y" * (SORT_BYTES_MAX - len("ITEM#"))))
    shop.drain()
    assert "total" not in shop.order(number)
    assert not [item for item in shop.engine.state_items() if item["pk"]["S"].startswith("attributes#")]
