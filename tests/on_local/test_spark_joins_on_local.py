"""``--runner spark`` with two cores on items that handlers read beside others, and what a task of it holds."""

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.commands import ROOT, command_line, environment, streamfold
from tests.helpers.exports import write_export
from tests.helpers.joined_items import app, images, table, with_faults
from tests.helpers.records import item
from tests.helpers.required import lacking
from tests.helpers.tables import make_table

pytestmark = pytest.mark.spark
APP = ("--app", "tests.helpers.joined_items:app")
ON_SPARK = (*APP, "--runner", "spark", "--spark-master", "local[2,4]", "--json")
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}"}
ITEMS = 1_000_000
HOT = 0.4
"""Share of the items that refer to one product."""
TASK_MEGABYTES_MAX = 400
SECONDS_MAX = 3_600


@pytest.fixture(autouse=True)
def _spark():
    if find_spec("pyspark") is None or not (shutil.which("java") or "JAVA_HOME" in os.environ):
        lacking("no PySpark, or no Java: run make spark")


def test_spark_finds_the_faults_that_one_process_finds(tmp_path):
    place = write_export(tmp_path / "export", with_faults(table(images(1, 300)), 1), files=3, table="main")
    handlers = [route.name for route in app.routes if route.name != "best"]  # a row of a row is taken as exported
    here = streamfold("verify", *handlers, "--export", place, *APP, "--json", folder=tmp_path, **ENVIRONMENT)
    spark = streamfold("verify", *handlers, "--export", place, *ON_SPARK, folder=tmp_path, **ENVIRONMENT)
    assert (here.code, spark.code) == (1, 1), spark.err
    found, wanted = json.loads(spark.out)["rows"], json.loads(here.out)["rows"]
    assert in_order(found) == in_order(wanted)
    assert len(wanted["different"]) > 4
    assert wanted["failed"]


def in_order(rows):
    texts = {name: [json.dumps(each, sort_keys=True) for each in rows[name]] for name in ("different", "failed")}
    return rows | {name: sorted(found) for name, found in texts.items()}


def test_spark_fills_a_table_by_rows_of_joined_items(dynamodb, dynamodb_endpoint, access_key, tmp_path):
    make_table(dynamodb, "main", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "shop-state", {"pk": "S", "sk": "S"})
    own = images(2, 150)
    for first in range(0, len(own), 25):
        puts = [{"PutRequest": {"Item": encode(each)["M"]}} for each in own[first : first + 25]]
        dynamodb.batch_write_item(RequestItems={"main": puts})
    place = write_export(tmp_path / "export", [encode(each)["M"] for each in own], files=3, table="main")
    engine = DynamoEngine(dynamodb, {name: (each, name) for name, each in app.tables.items()}, "shop-state")
    process_changes(Runtime(app, engine, Settings(), clock=lambda: 1.0), [])  # deployed long ago
    handlers = ("sales", "tagged", "sold", "state", "days")
    ran = streamfold(
        *("backfill", *handlers, "--export", place, *ON_SPARK),
        *("--engine", "dynamodb", "--table", "main=main", "--endpoint-url", dynamodb_endpoint),
        folder=tmp_path,
        AWS_ACCESS_KEY_ID=access_key,
        AWS_SECRET_ACCESS_KEY="secret",
        AWS_DEFAULT_REGION=dynamodb.meta.region_name,
        AWS_ACCOUNT_ID_ENDPOINT_MODE="disabled",
        **ENVIRONMENT,
    )
    assert ran.code == 1, ran.err
    wanted = {("main", each["PK"]["S"], each["SK"]["S"]): each for each in table(own)}
    into = [key for route in app.routes if route.name in handlers for key in route.into]
    rows = [key for key in wanted if any(each.takes(key) for each in into) and "CATEGORY" not in key[1]]
    assert {each["handler"] for each in json.loads(ran.out)["failures"]} == {"sales"}  # that it raises on
    found = engine.read_rows(rows)
    assert {key: without_stamp(encode(found.get(key))["M"]) for key in rows} == {
        key: without_stamp(wanted[key]) for key in rows
    }


def without_stamp(row):  # each process draws its own
    return {name: value for name, value in row.items() if name != "_sf_s"}


@pytest.mark.nightly
def test_no_task_needs_much_memory_where_two_fifths_of_a_million_items_have_one_referent(tmp_path):
    wrong = {"CATEGORY#c1", "STATE#5"}
    place = write_export(tmp_path / "export", many(ITEMS, wrong), files=16, total=ITEMS + ITEMS // 10 + 4, table="main")
    code, found, peak = watched("verify", "sales", "state", "--export", place, *ON_SPARK, folder=tmp_path)
    assert code == 1
    assert {each["key"]["PK"]["S"] for each in json.loads(found)["rows"]["different"]} == wrong
    print(f"{ITEMS:,} items: {peak} MB in a task at most")
    assert peak <= TASK_MEGABYTES_MAX


def many(number, wrong):
    """Lines of a tenth as many orders, products, and the rows of both; those that are wrong say 999."""
    orders, products = number // 10, number // 100
    lines, of_category, units = number - orders - products, [0] * 4, [0] * 4
    for n in range(lines):
        product = 0 if n % 10 < 10 * HOT else n % products
        of_category[product % 4] += 1
        units[product % 4] += n % 7
        more = {"quantity": n % 7, "product_id": str(product), "text": "x" * 100}
        yield stored(f"ORDER#{n % orders}", f"ITEM#{n}", **more)
    for n in range(products):
        yield stored(f"PRODUCT#{n}", "META", category=f"c{n % 4}", text="x" * 100)
    for n in range(orders):
        own = 999 if f"STATE#{n}" in wrong else lines // orders + (n < lines % orders)
        yield stored(f"ORDER#{n}", "METADATA")
        yield stored(f"STATE#{n}", "STATE", lines=own, last=[], tag="-", _sf_n=1)
    for n in range(4):
        shown = 999 if f"CATEGORY#c{n}" in wrong else units[n]
        counts = {"lines": of_category[n], "products": products // 4, "_sf_n": of_category[n] + products // 4}
        yield stored(f"CATEGORY#c{n}", "SALES", units=shown, **counts)


def stored(*key, **attributes):
    return encode(item(*key, **attributes))["M"]


def watched(*arguments, folder):
    """Runs a command; gives its code, what it printed, and the most megabytes that a worker of Python ever had."""
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        began = subprocess.Popen(
            command_line(*arguments), cwd=folder, env=environment(**ENVIRONMENT), stdout=out, stderr=err
        )
        peaks = [0]
        for _ in range(SECONDS_MAX):
            with suppress(subprocess.TimeoutExpired):
                began.wait(1)
                break
            peaks += workers_megabytes(began.pid)
        else:
            began.kill()
    return began.returncode, (folder / "out").read_text(), max(peaks)


def workers_megabytes(command):
    """The peak of each process of PySpark below a command."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, AttributeError):
            if b"pyspark.daemon" in (process / "cmdline").read_bytes() and command in parents(process):
                status = (process / "status").read_text()
                yield int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) // 1024


def parents(process):
    """The processes above one."""
    while (above := int(re.search(r"PPid:\s+(\d+)", (process / "status").read_text())[1])) > 1:
        yield above
        process = Path("/proc") / str(above)
