"""A copy in another region."""

from contextlib import closing

import boto3
import pytest
from moto import mock_aws

from streamfold import App, Count, Key, Router, Row, Table
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine
from streamfold.records.values import decode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import item, record
from tests.helpers.tables import make_table

ORDER = Key("ORDER#{order_id}", "METADATA")
COPY = ("copies", "ORDER#1", "METADATA")


def test_a_copy_goes_to_its_own_region_while_rows_stay():
    router = Router()
    router.copy(ORDER, to=Table("copies", region="eu-west-1"), name="copy")
    there = Key("ORDER#{order_id}", "TOTAL")

    @router.view(ORDER, into=there)
    def orders(item):
        yield Row(orders=Count())

    app = App("shop", routers=[router])
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        near, far = (boto3.client("dynamodb", region_name=region) for region in ("us-east-1", "eu-west-1"))
        keys = {"PK": "S", "SK": "S"}
        make_table(near, "shop", keys)
        make_table(near, "shop-state", {"pk": "S", "sk": "S"})
        make_table(far, "orders-abroad", keys)
        real = {"main": "shop", "copies": "orders-abroad"}
        engine = DynamoEngine(near, {name: (table, real[name]) for name, table in app.tables.items()}, "shop-state")
        with closing(engine):
            report = process_event(Runtime(app, engine, Settings()), [record(None, item("ORDER#1", total=5), 1)])
            assert not report.failures
            assert [decode(row["total"]) for row in engine.items(app.tables["copies"])] == [5]
            assert engine.read_source(COPY)["total"] == {"N": "5"}
            assert [row["SK"] for row in engine.items(app.tables["main"])] == [{"S": "TOTAL"}]
