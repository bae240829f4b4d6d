"""``--runner spark`` with two cores on exports, while a worker is killed with signal 9."""

import json
import os
import shutil
from importlib.util import find_spec

import pytest

from streamfold.batch.process import process_changes
from streamfold.cli.session import load_application
from streamfold.engines import DynamoEngine
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.commands import streamfold
from tests.helpers.exports import write_export
from tests.helpers.records import item
from tests.helpers.required import lacking
from tests.helpers.tables import make_table

pytestmark = pytest.mark.spark
ITEMS, FILLED, FILES, GROUPS, HOT = 50_000, 4_000, 4, 500, 2
SHOP = """
import os, signal, sys
from pathlib import Path

from streamfold import App, Count, Key, Max, Router, Row, Sum

ITEM = Key("ITEM#{item_id}", "METADATA")
router = Router()


def killed_once(item_id):
    flag = Path(__file__).parent / "killed"
    if item_id == "777" and "pyspark.worker" in sys.modules and not flag.exists():
        flag.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)


@router.view(ITEM, into=Key("TOTAL#{group}", "TOTAL"))
def total(item, item_id):
    killed_once(item_id)
    most = {"most": Max(item["amount"])} if item["group"] == "g7" else {}
    return Row(group=item["group"], total=Sum(item["amount"]), items=Count(), **most)


@router.view(ITEM, into=Key("HOT#{hot}", "TOTAL"))
def hot(item):
    return Row(hot=item["hot"], items=Count())


app = App("shop", routers=[router])
"""


@pytest.fixture(scope="module")
def spark():
    """The master of a local cluster: two cores, and a task is tried four times."""
    if find_spec("pyspark") is None or not (shutil.which("java") or "JAVA_HOME" in os.environ):
        lacking("no PySpark, or no Java: run make spark")
    return "local[2,4]"


def images(number=ITEMS):
    for n in range(number):
        yield item(f"ITEM#{n}", "METADATA", group=f"g{n % GROUPS}", hot=f"h{n % HOT}", amount=n % 7)


def rows(number=ITEMS):
    """The rows that the items add up to."""
    totals, hot = {}, {}
    for each in images(number):
        total, items = totals.get(each["group"], (0, 0))
        totals[each["group"]] = total + each["amount"], items + 1
        hot[each["hot"]] = hot.get(each["hot"], 0) + 1
    for group, (total, items) in totals.items():
        most = {"most": 6} if group == "g7" else {}
        yield item(f"TOTAL#{group}", "TOTAL", total=total, items=items, _sf_n=items, **most)
    for name, items in hot.items():
        yield item(f"HOT#{name}", "TOTAL", items=items, _sf_n=items)


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "on_cluster.py").write_text(SHOP)
    return "--app", "on_cluster:app", "--runner", "spark"


def test_rows_of_an_export_are_compared_while_a_worker_is_killed(spark, shop, tmp_path):
    right = list(rows())
    planted = [each for each in right if each["PK"] != "TOTAL#g3"]
    next(each for each in planted if each["PK"] == "TOTAL#g5")["total"] += 1
    next(each for each in planted if each["PK"] == "TOTAL#g7")["most"] = 5
    items = [encode(each)["M"] for each in (*images(), *planted)]
    place = write_export(tmp_path / "export", items, files=FILES)
    arguments = ("--export", place, "--spark-master", spark, "--json", *shop)
    ran = streamfold("verify", *arguments, folder=tmp_path)
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)["rows"]
    assert (tmp_path / "killed").exists()
    assert found["rows"] == GROUPS + HOT
    assert sorted((each["key"]["PK"]["S"], each["what"]) for each in found["different"]) == [
        ("TOTAL#g3", "missing"),
        ("TOTAL#g5", "different"),
        ("TOTAL#g7", "different"),
    ]


@pytest.mark.parametrize("number", [FILLED, pytest.param(ITEMS, marks=pytest.mark.nightly)])
def test_a_full_table_is_filled_by_row_while_a_worker_is_killed(
    number, spark, shop, dynamodb, dynamodb_endpoint, access_key, tmp_path, monkeypatch
):
    make_table(dynamodb, "main", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "shop-state", {"pk": "S", "sk": "S"})
    items = [encode(each)["M"] for each in images(number)]
    for first in range(0, number, 25):
        puts = [{"PutRequest": {"Item": each}} for each in items[first : first + 25]]
        dynamodb.batch_write_item(RequestItems={"main": puts})
    place = write_export(tmp_path / "export", items, files=FILES, table="main")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = load_application("on_cluster:app")
    engine = DynamoEngine(dynamodb, {name: (table, name) for name, table in app.tables.items()}, "shop-state")
    process_changes(Runtime(app, engine, Settings(), clock=lambda: 1.0), [])  # deployed long ago
    ran = streamfold(
        *("backfill", "--export", place, "--spark-master", spark, "--json", "--page", 2_000, *shop),
        *("--engine", "dynamodb", "--table", "main=main", "--endpoint-url", dynamodb_endpoint),
        folder=tmp_path,
        AWS_ACCESS_KEY_ID=access_key,
        AWS_SECRET_ACCESS_KEY="secret",
        AWS_DEFAULT_REGION=dynamodb.meta.region_name,
        AWS_ACCOUNT_ID_ENDPOINT_MODE="disabled",
    )
    assert ran.code == 0, ran.err
    assert (tmp_path / "killed").exists()
    assert json.loads(ran.out)["failed"] == 0
    wanted = {("main", each["PK"], each["SK"]): each for each in rows(number)}
    found = engine.read_rows(wanted)
    assert {key: row["items"] for key, row in found.items()} == {key: row["items"] for key, row in wanted.items()}
    assert all(found[key]["total"] == row["total"] for key, row in wanted.items() if "total" in row)
