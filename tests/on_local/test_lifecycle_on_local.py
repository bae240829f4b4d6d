"""Cascades and copies on DynamoDB Local: what its conditions refuse is what the local stores refuse."""

from contextlib import closing
from random import Random

import boto3
import pytest

from streamfold import App, Key, Router, Table
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import item, record
from tests.helpers.tables import make_table

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
REAL = {"main": "real-shop", "copies": "real-copies"}


def app_of(**declared):
    router = Router()
    for kind, options in declared.items():
        getattr(router, kind)(ORDER, **options)
    return App("shop", routers=[router])


class Shop:
    """An application over tables of its own, those of another region included."""

    def __init__(self, app, client, regional=None):
        self.app, self.client = app, client
        for table in app.tables.values():
            make_table(regional(table.region) if table.region else client, REAL[table.name], {"PK": "S", "SK": "S"})
        make_table(client, "state", {"pk": "S", "sk": "S"})
        tables = {name: (table, REAL[name]) for name, table in app.tables.items()}
        self.engine = DynamoEngine(client, tables, "state", pause=lambda _: None, regional=regional)

    def put(self, *items):
        for each in items:
            self.client.put_item(TableName="real-shop", Item=encode(each)["M"])

    def play(self, *records, actions=25, **more):
        run = Runtime(self.app, self.engine, Settings(chunk_actions=actions), pause=lambda _: None, **more)
        return process_event(run, list(records))

    def left(self, partition="ORDER#1"):
        return [each["SK"]["S"] for each in self.engine.items(self.app.tables["main"], partition)]


def children(count, partition="ORDER#1"):
    return [item(partition, f"ITEM#{number:05d}", price=number, tags={"a", "b"}) for number in range(count)]


@pytest.fixture
def shop(dynamodb):
    return Shop(app_of(cascade={"children": [ORDER_ITEM], "name": "cascade"}), dynamodb)


def test_children_go_over_interruptions_and_nothing_else_does(shop):
    random = Random(20260301)
    shop.put(*children(250), *children(3, "ORDER#10"), item("ORDER#1", "NOTE"))
    for _ in range(5):
        left = iter([60.0] * random.randint(1, 3))
        assert shop.play(record(item("ORDER#1"), None, 5), seconds_left=lambda left=left: next(left, 0.0)).failures
    assert not shop.play(record(item("ORDER#1"), None, 5)).failures
    assert (shop.left(), len(shop.left("ORDER#10"))) == (["NOTE"], 3)
    shop.put(*children(3))
    assert not shop.play(record(item("ORDER#1"), None, 5)).failures
    assert len(shop.left()) == 4


def test_children_of_an_item_that_exists_again_are_kept(shop):
    shop.put(item("ORDER#1"), *children(3))
    assert shop.play(record(item("ORDER#1"), None, 5)).counts["kept"] == {"cascade": 1}
    assert len(shop.left()) == 4


def test_copies_go_to_another_region_in_the_order_of_their_versions(dynamodb, dynamodb_endpoint, access_key):
    def regional(region):
        arguments = {"aws_access_key_id": access_key, "aws_secret_access_key": "secret"}
        return boto3.client("dynamodb", endpoint_url=dynamodb_endpoint, region_name=region, **arguments)

    shop = Shop(app_of(copy={"to": Table("copies", region="eu-west-1")}), dynamodb, regional)
    with closing(shop.engine):
        first, second = record(None, item("ORDER#1", n=1), 1), record(item("ORDER#1", n=1), item("ORDER#1", n=2), 2)
        for each in (second, first, second):
            assert not shop.play(each).failures
        (copy,) = [decode({"M": each}) for each in shop.engine.items(shop.app.tables["copies"])]
        assert (copy["n"], copy[VERSION][-1]) == (2, "2")
        assert not shop.play(record(item("ORDER#1", n=2), None, 3)).failures
        assert not shop.play(second).failures
        (tombstone,) = [decode({"M": each}) for each in shop.engine.items(shop.app.tables["copies"])]
        assert (tombstone[CONTRIBUTORS], "n" in tombstone) == (0, False)
        assert "real-copies" not in dynamodb.list_tables()["TableNames"]
