"""The whole way to Lambda: what ``sam build`` makes, called with recorded batches, over the tables of its template.

The interpreter finds the built function and the packages of Lambda's own runtime, nothing else: what was left out of
the build is missing here as it would be there.
"""

import gzip
import json
import subprocess
import time
from collections import Counter
from random import Random

import boto3
import pytest

from handlers.sessions import SESSION
from handlers.shop import ORDER
from streamfold.keys.table import MARKED
from streamfold.replay.stream import StreamReader
from tests.helpers.artifact import (
    BATCH_RECORDS,
    BUILD,
    FUNCTIONS,
    NAMES,
    RUNTIME,
    TABLES,
    Function,
    RuntimeFunction,
    bucket,
    built_template,
    isolated,
)
from tests.helpers.commands import EVENTS, ROOT, as_set, embedded_rows
from tests.helpers.template import create_table
from tests.workload import sessions, tickets

TASK = BUILD / "Projector"
SMALL = ROOT / "events" / "special" / "order_modified_twice_in_batch.json"
MEGABYTES = {"Projector": 4.7, "Spreader": 4.7, "Searcher": 13}
"""Unzipped, with byte code. Moments, timers, collections and publishers took the first two from 4.08 to 4.53."""
WITH_REFERENTS = ("CATEGORY#", "HOME#", "SUPPLIER#", "TEAM#", "TIER#")
"""Rows that need items, which are not in the table if only records are delivered."""
SMALL_BATCH, MEMORY_OF_A_BATCH = 25, 4 * 1024 * 1024
LOCKS = {"Searcher": "lambda-search.txt"}
"""The examples use no Powertools, so only the function that searches brings packages along."""


@pytest.fixture(scope="module")
def template():
    return built_template()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture(name="bucket")
def of_removed_items():
    with bucket() as made:
        yield made


@pytest.fixture
def variables(dynamodb_endpoint, access_key, bucket):
    return {
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_endpoint,
        "AWS_ENDPOINT_URL_S3": bucket[1],
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": "secret",
    }


@pytest.fixture
def function(template, log, variables):
    with log.open("w") as file:
        function = Function(template, "Projector", file, **variables)
        yield function
        function.end()


@pytest.fixture
def tables(template, dynamodb):
    for resource in TABLES:
        create_table(dynamodb, template, resource, NAMES[resource])
    return dynamodb


@pytest.fixture
def drain(function, tables, dynamodbstreams):
    """Delivers what the table's stream holds, and what comes of that, until it holds no more."""
    reader = StreamReader(tables, dynamodbstreams, NAMES["Table"])

    def deliver_all():
        cursor, delivered = None, True
        while delivered:
            delivered = False
            for page in reader.pages(cursor):
                cursor, delivered = page.cursor, True
                function.deliver(page.records)

    return deliver_all


def items(client):
    found = client.get_paginator("scan").paginate(TableName=NAMES["Table"]).search("Items[]")
    return [item for item in found if item.get("_sf_n") != {"N": "0"} and MARKED not in item]


def rows(client, *, without=()):
    """The rows as their readers see them."""
    shown = [item for item in items(client) if not item["PK"]["S"].startswith(without)] if without else items(client)
    return as_set({name: value for name, value in item.items() if not name.startswith("_sf_")} for item in shown)


def recorded(*files):
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


@pytest.mark.longest
def test_recorded_batches_lead_to_the_rows_of_the_embedded_replay_and_to_an_archive_of_what_was_removed(
    function, tables, drain, bucket, tmp_path
):
    records = recorded(*EVENTS)
    function.deliver(records)
    check_archive(bucket[0], records)
    drain()
    expected = embedded_rows(*EVENTS, state=tmp_path / "embedded.db")
    expected = {row for row in expected if not dict(row)["PK"][1].startswith(WITH_REFERENTS)}
    assert rows(tables, without=WITH_REFERENTS) == expected


class Killed:
    """Environments of a function, each of which ends with a kill; a batch comes again until one answers."""

    def __init__(self, template, log, random, variables):
        self.made = lambda: RuntimeFunction(template, "Projector", log, **variables)
        self.function, self.random = self.made(), random
        self.kills, self.seconds = Counter(), 0.0

    def deliver(self, records):
        for start in range(0, len(records), SMALL_BATCH):
            event = {"Records": records[start : start + SMALL_BATCH]}
            limits = self.limits()
            began = time.monotonic()
            answer = self.function(event, **limits)
            self.seconds = self.seconds if limits else time.monotonic() - began
            while answer is None:
                self.kills += Counter(limits.keys())
                self.function.end()
                self.function = self.made()
                answer = self.function(event)
            assert answer == {"batchItemFailures": []}

    def limits(self):
        """Nothing in half of the batches; else a moment to kill it, or the memory above which it is killed."""
        if not self.seconds or self.random.random() < 1 / 2:
            return {}
        if self.random.random() < 2 / 3:
            return {"kill_after": self.random.random() * self.seconds}
        return {"bytes_max": self.function.resident_bytes() + self.random.randrange(MEMORY_OF_A_BATCH)}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 10))])
def test_functions_that_are_killed_at_any_moment_or_run_out_of_memory_lead_to_the_rows_of_a_replay(
    seed, template, log, variables, tables, dynamodbstreams, tmp_path
):
    recording = ROOT / "events" / "bank.jsonl"
    with log.open("w") as file:
        killed = Killed(template, file, Random(seed), variables)
        killed.deliver(recorded(recording))
        for page in StreamReader(tables, dynamodbstreams, NAMES["Table"]).pages():
            killed.deliver(page.records)
        killed.function.end()
    print(f"kills: {dict(killed.kills)}")
    assert killed.kills.total() >= 2
    assert rows(tables) == embedded_rows(recording, state=tmp_path / "embedded.db")


def check_archive(objects, records):
    """Every order and session that was removed lies in the archive, and nothing else does."""
    removed = [record["dynamodb"] for record in records if record["eventName"] == "REMOVE"]
    expected = {body["SequenceNumber"].lstrip("0") for body in removed if is_archived(body["Keys"])}
    kept = [json.loads(line) for content in objects.values() for line in gzip.decompress(content).splitlines()]
    assert {line["version"].rpartition("/")[2].lstrip("0") for line in kept} == expected
    assert {path.split("/")[1] for path in objects} == {NAMES["ArchiveBucket"]}


def is_archived(keys):
    names = {name: value["S"] for name, value in keys.items()}
    return ORDER.match(names) is not None or SESSION.match(names) is not None


@pytest.mark.parametrize(
    ("workload", "sources"), [(sessions, ("SESSION#",)), (tickets, ("TICKET#", "AGENT#", "PROJECT#"))]
)
def test_items_that_are_written_to_the_table_lead_to_the_rows_of_the_embedded_replay(
    workload, sources, tables, drain, dynamodbstreams, dynamodb_endpoint, access_key, tmp_path
):
    keys = {"aws_access_key_id": access_key, "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    resource = boto3.resource("dynamodb", endpoint_url=dynamodb_endpoint, **keys)
    workload.run(resource.Table(NAMES["Table"]), 1)
    resource.meta.client.close()
    pages = StreamReader(tables, dynamodbstreams, NAMES["Table"]).pages()
    out = tmp_path / "items.jsonl"
    out.write_text("".join(json.dumps(record) + "\n" for page in pages for record in page.records), "utf-8")

    drain()

    assert rows(tables, without=sources) == embedded_rows(out, state=tmp_path / "embedded.db")


def test_batch_that_comes_again_changes_nothing(function, tables, drain):
    event = json.loads(SMALL.read_text("utf-8"))
    function(event)
    drain()
    before = items(tables)
    assert function(event) == {"batchItemFailures": []}
    assert function({"Records": event["Records"][1:]}) == {"batchItemFailures": []}
    drain()
    assert items(tables) == before


def test_record_that_cannot_be_read_is_reported_by_its_number_and_the_others_are_processed(function, tables):
    good, bad, *_ = json.loads(SMALL.read_text("utf-8"))["Records"]
    del bad["dynamodb"]["Keys"]
    number = bad["dynamodb"]["SequenceNumber"]
    assert function({"Records": [good, bad]}) == {"batchItemFailures": [{"itemIdentifier": number}]}
    assert items(tables)


def test_event_that_is_no_batch_of_records_fails_the_invocation(function, tables):
    answer = function({"detail": {}})
    assert answer["errorType"] == "RecordError"
    assert 'a Lambda event {"Records": [...]}' in answer["errorMessage"]


def test_missing_table_fails_the_invocation_and_names_it(function):
    answer = function(json.loads(SMALL.read_text("utf-8")))
    assert answer["errorType"] == "EngineError"
    assert "Tables are missing: shop, shop-state do not exist" in answer["errorMessage"]


def test_log_tells_counts_and_metrics_and_nothing_of_what_items_hold(function, tables, log):
    records = recorded(EVENTS[0])[:BATCH_RECORDS]
    function.deliver(records)
    function.end()
    lines = log.read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    (measured,) = [entry for entry in entries if "_aws" in entry]
    assert (measured["service"], measured["records"], measured["failed"]) == ("shop", BATCH_RECORDS, 0)

    held = {text for record in records for text in texts(record["dynamodb"]["NewImage"])}
    assert len(held) > 50
    assert not [text for text in held if text in "".join(lines)]


def texts(image):
    return {value["S"] for value in image.values() if len(value.get("S", "")) > 6}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_artifact_holds_the_function_and_its_lock_and_nothing_of_the_runtime(template, name):
    packages = {path.name.split("-")[0].lower() for path in (BUILD / name).glob("*.dist-info")}
    lock = (ROOT / ".requirements" / LOCKS[name]).read_text("utf-8") if name in LOCKS else ""
    assert packages == {line.split("==")[0].replace("-", "_") for line in lock.splitlines() if "==" in line}
    tops = {path.name for path in (BUILD / name).iterdir()}
    assert {"streamfold", "handlers"} <= tops
    assert not {"boto3", "botocore", "click", "rich", "tests", "bin"} & tops
    assert ("opensearchpy" in tops) == (name == "Searcher")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_artifact_runs_on_any_processor_and_is_small(template, name):
    files = [path for path in (BUILD / name).rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".so"]
    runtime = template["Resources"][name]["Properties"]["Runtime"].removeprefix("python").replace(".", "")
    tags = {path.suffixes[0] for path in files if path.suffix == ".pyc"}
    assert tags <= {f".cpython-{runtime}"}  # byte code of another Python would be of no use
    assert sum(path.stat().st_size for path in files) < MEGABYTES[name] * 1_000_000


@pytest.mark.parametrize("module", ["click", "rich", "hypothesis", "tests", "opensearchpy"])
def test_interpreter_finds_nothing_beside_the_function_and_its_runtime(template, module):
    path = f"import sys; sys.path[:0] = {[str(TASK), str(RUNTIME)]}; import boto3, handlers; import {module}"
    ran = subprocess.run(isolated("-c", path), cwd="/", capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1] == f"ModuleNotFoundError: No module named '{module}'"
