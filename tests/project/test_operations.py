"""The recipe after a restore, as docs/operations.md has it."""

import re
from pathlib import Path

import boto3
import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillRun, new_job
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.sources import source_tables, wanted_routes
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.partiql import WithStatements
from tests.helpers.source import Source
from tests.helpers.tables import make_table

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
ITEM, TOTAL, OWN = Key("I#{i}", "X"), Key("TOTAL", "R"), Key("OWN#{i}", "Y")


def application():
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def total(item):
        yield Row(items=Count(), amount=Sum(item["amount"]))

    @router.index(ITEM, into=OWN)
    def own(item):
        yield Row(amount=item["amount"])

    router.audit(ITEM)
    return App("shop", routers=[router])


def fill(app, engine):
    """What ``streamfold backfill`` does."""
    routes = wanted_routes(app, ())
    names, tables, jobs = [route.name for route in routes], source_tables(routes), Jobs(app.name, engine)
    job = new_job(jobs, "backfill", names, tables, 1, by="test")
    progress = BackfillRun(jobs, job, Pages(Runtime(app, engine, Settings()), names), tables).run()
    assert progress.report.failed == []


@pytest.mark.usefixtures("aws")
def test_rows_of_a_restored_table_are_made_anew_from_its_items():
    recipe = {}
    exec(re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL).group(1), recipe)
    app, source, client = application(), Source(), WithStatements(boto3.client("dynamodb"))
    make_table(client, "restored", {"PK": "S", "SK": "S"})
    for state in ("state", "state-2"):
        make_table(client, state, {"pk": "S", "sk": "S"})
    engine = DynamoEngine(WithStatements(client), {"main": (app.tables["main"], "restored")}, "state")
    records = [source.put(f"I#{number}", "X", amount=number) for number in range(3)]
    assert process_event(Runtime(app, engine, Settings()), records).failures == []
    for record in records[:2]:  # what the backup has of the items is older than its rows
        client.put_item(TableName="restored", Item=record["dynamodb"]["NewImage"])
    own = {"PK": {"S": "OWN#9"}, "SK": {"S": "Y"}, "amount": {"N": "40"}}  # at the key of a row, by a writer
    client.put_item(TableName="restored", Item=own)

    recipe["remove_derived_rows"](app, boto3.resource("dynamodb").Table("restored"))
    anew = DynamoEngine(WithStatements(client), {"main": (app.tables["main"], "restored")}, "state-2")
    for _ in range(2):
        fill(application(), anew)

    rows = {row["PK"]["S"]: row for row in anew.items(app.tables["main"])}
    assert (rows["TOTAL"]["items"], rows["TOTAL"]["amount"]) == ({"N": "2"}, {"N": "1"})
    assert {key for key in rows if key.startswith("OWN")} == {"OWN#0", "OWN#1", "OWN#9"}
    assert rows["OWN#9"] == own
    assert len([key for key in rows if key.startswith("AUDIT")]) == 3
