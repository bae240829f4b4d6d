"""A backfill by several processes on DynamoDB Local, one of which is killed with signal 9."""

import json
import re

import pytest

from streamfold import App
from streamfold.batch.process import process_changes
from streamfold.cli.session import load_application
from streamfold.engines import DynamoEngine
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.commands import streamfold
from tests.helpers.records import item
from tests.helpers.tables import make_table

ITEMS = 1_500
SHOP = """
import os, signal, sys
from pathlib import Path

from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ITEM#{item_id}", "METADATA")
router = Router()


@router.view(ITEM, into=Key("TOTAL#{group}", "TOTAL"))
def total(item, item_id):
    flag = Path(__file__).parent / "killed"
    if item_id == "777" and "work" in sys.argv and not flag.exists():
        flag.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return Row(group=item["group"], total=Sum(item["amount"]), items=Count())


app = App("shop", routers=[router])
"""


@pytest.fixture
def shop(dynamodb, tmp_path, monkeypatch):
    make_table(dynamodb, "main", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "shop-state", {"pk": "S", "sk": "S"})
    (tmp_path / "many_processes.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = load_application("many_processes:app")
    for first in range(0, ITEMS, 25):
        images = [item(f"ITEM#{n}", "METADATA", group=f"g{n % 3}", amount=n) for n in range(first, first + 25)]
        puts = [{"PutRequest": {"Item": encode(image)["M"]}} for image in images]
        dynamodb.batch_write_item(RequestItems={"main": puts})
    process_changes(Runtime(app, engine_of(app, dynamodb), Settings(), clock=lambda: 1.0), [])  # deployed long ago
    return app


def engine_of(app: App, client):
    return DynamoEngine(client, {name: (table, name) for name, table in app.tables.items()}, "shop-state")


def test_a_killed_process_costs_a_page_and_nothing_else(shop, dynamodb, dynamodb_endpoint, access_key, tmp_path):
    arguments = ("--engine", "dynamodb", "--table", "main=main", "--endpoint-url", dynamodb_endpoint)
    variables = {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": dynamodb.meta.region_name,
        "AWS_ACCOUNT_ID_ENDPOINT_MODE": "disabled",
        "STREAMFOLD_APP": "many_processes:app",
    }
    asked = ("backfill", *arguments, "--processes", 2, "--segments", 4, "--page", 100, "--json")
    ran = streamfold(*asked, folder=tmp_path, **variables)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    killed = len(re.findall(r"was killed \(signal 9\)", ran.err))
    assert (killed, told["failed"]) == (1, 0)
    engine = engine_of(shop, dynamodb)
    rows = engine.read_rows([("main", f"TOTAL#g{n}", "TOTAL") for n in range(3)])
    assert sum(row["items"] for row in rows.values()) == ITEMS
    assert sum(row["total"] for row in rows.values()) == sum(range(ITEMS))
    assert told["read"] <= ITEMS * 2 + 100 + 3 + 10  # items and ledger items, and the page that was done again
    assert RowsVerifier(Runtime(shop, engine, Settings()), shop.routes, live=False).verify().different == []
