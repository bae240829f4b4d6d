"""A full table is adopted on DynamoDB Local, beside the writer and the live batches."""

import threading

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillRun, new_job
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import source_tables
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item
from tests.helpers.tables import make_table

ITEM = Key("ITEM#{item_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")
ITEMS, CHANGED = 1_000, 200


@pytest.fixture
def app():
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def total(item):
        return Row(group=item["group"], total=Sum(item["amount"]), items=Count())

    return App("shop", routers=[router])


def image(n, amount):
    return item(f"ITEM#{n}", "METADATA", group=f"g{n % 5}", amount=amount)


def test_a_full_table_is_filled_while_its_items_change(app, dynamodb):
    make_table(dynamodb, "main", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "state", {"pk": "S", "sk": "S"})
    engine = create_engine(app, dynamodb)
    for n in range(ITEMS):
        dynamodb.put_item(TableName="main", Item=encode(image(n, 1))["M"])

    def writer():
        """Changes items, and delivers each change as the stream would."""
        run = Runtime(app, create_engine(app, dynamodb), Settings())
        for n in range(CHANGED):
            dynamodb.put_item(TableName="main", Item=encode(image(n, 2))["M"])
            assert not process_changes(run, [change(image(n, 1), image(n, 2), n + 1)]).failures

    beside = threading.Thread(target=writer)
    beside.start()
    jobs, tables = Jobs(app.name, engine), source_tables(app.routes)
    job = new_job(jobs, "backfill", ["total"], tables, 4, by="test")
    progress = BackfillRun(jobs, job, Pages(Runtime(app, engine, Settings()), ["total"]), tables, page_items=100).run()
    beside.join()
    assert progress.report.failed == []
    rows = engine.read_rows([("main", f"TOTAL#g{n}", "TOTAL") for n in range(5)])
    assert sum(row["total"] for row in rows.values()) == ITEMS + CHANGED
    assert sum(row["items"] for row in rows.values()) == ITEMS
    assert RowsVerifier(Runtime(app, engine, Settings()), app.routes, live=False).verify().different == []


def create_engine(app, client):
    return DynamoEngine(client, {name: (table, name) for name, table in app.tables.items()}, "state")
