"""Long fan-outs on DynamoDB Local: opened, left, rung for, and shown."""

import json
import time

import pytest

from streamfold.batch.fan_outs import enqueue_open, run_fan_outs
from streamfold.batch.process import process_event
from streamfold.derivations.feed.posts import EDGES, Sided, StoredCopies, StoredCopy
from streamfold.engines import DynamoEngine
from streamfold.engines.dynamodb_client import Meter
from streamfold.jobs.fan_outs import SEGMENTS
from streamfold.records.values import encode
from streamfold.runtime import Runtime, Threads
from streamfold.settings import Settings
from tests.cli import test_fan_outs
from tests.helpers.commands import environment, streamfold
from tests.helpers.doorbells import Clock, Messages, body, queue_function
from tests.helpers.feed_histories import BEGIN, TABLE, applications, edge_key, post_key
from tests.helpers.records import item, record
from tests.helpers.source import Source
from tests.helpers.tables import make_table

SOCIAL = test_fan_outs.SOCIAL.replace("keep_days=30", "keep_days=30_000")  # DynamoDB Local removes what has expired
READERS = 40
OF_A_FAN_OUT = 10 * SEGMENTS
"""Requests of a fan-out whatever its size: it is opened, and each of its lanes looks at it."""
OPTIONS = ("--engine", "dynamodb", "--table", "main=main")


@pytest.fixture
def social(tmp_path, dynamodb_endpoint, access_key):
    """A folder with the application, a recording, and how commands run there."""
    (tmp_path / "handlers.py").write_text(SOCIAL)
    source = Source()
    records = [source.put(f"USER#r{number}", "FOLLOWS#b", name="n") for number in range(READERS)]
    records += [source.put("USER#b", f"POST#2026-03-01T0{hour}:00:00Z#p{hour}", text=f"post {hour}") for hour in (1, 2)]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def run(*arguments):
        key = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        endpoint = ("--endpoint-url", dynamodb_endpoint)
        return streamfold(*arguments, *OPTIONS, *endpoint, folder=tmp_path, PYTHONPATH=_path(tmp_path), **key)

    run.records = records
    return run


def _path(folder):
    return f"{folder}:{environment()['PYTHONPATH']}"


def test_a_replay_works_on_its_fan_outs_and_a_feed_is_shown(social, dynamodb):
    ran = social("replay", "records.jsonl", "--create-tables")
    assert ran.code == 0, ran.err
    assert rows(dynamodb) == 2 * READERS
    assert social("jobs").out == "There are no jobs.\n"
    shown = social("show", "FEED#r1", "--feed", "timeline", "--json")
    assert shown.code == 0, shown.err
    assert [row["text"]["S"] for row in json.loads(shown.out)["rows"]] == ["post 2", "post 1"]


def test_what_a_function_left_open_goes_on_by_messages_or_by_hand(social, dynamodb, tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    assert social("replay", "none.jsonl", "--create-tables").code == 0
    namespace = {}
    exec(SOCIAL, namespace)
    app = namespace["app"]
    engine = DynamoEngine(dynamodb, {"main": (app.tables["main"], "main")}, "social-state")
    run = Runtime(app, engine, Settings())
    assert process_event(run, social.records).failures == []
    assert (len(run.queued), rows(dynamodb)) == (32, 0)
    first = run.queued[:16]
    function = queue_function(app, engine, Messages())
    messages = [{"eventSource": "aws:sqs", "messageId": str(each), "body": body(each)} for each in first]
    assert function({"Records": messages}, Clock()) == {"batchItemFailures": []}
    assert rows(dynamodb) == READERS
    (line,) = social("jobs", "--json").out.splitlines()
    assert (json.loads(line)["lanes_done"], json.loads(line)["state"]) == (0, "open")
    ran = social("jobs", "--ring")
    assert ran.code == 0, ran.err
    assert "Processed 16 segments: 40 rows written." in ran.err
    assert rows(dynamodb) == 2 * READERS
    assert enqueue_open(run) == 0
    assert run_fan_outs(run).failures == []


@pytest.mark.parametrize("followers", [2_500, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_a_post_reaches_all_followers(dynamodb, followers):
    app, *_ = applications()
    make_table(dynamodb, "main", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "social-state", {"pk": "S", "sk": "S"})
    engine = DynamoEngine(dynamodb, {"main": (TABLE, "main")}, "social-state", pause=lambda _: None)
    run = Runtime(app, engine, Settings(), clock=lambda: BEGIN + 10, slots=Threads(Settings().lanes))
    follow(run, followers)
    meter = Meter(dynamodb)
    began = time.monotonic()
    assert not process_event(run, [record(None, item(*post_key("1"), text="hello"), 2)]).failures
    assert not run_fan_outs(run).failures
    requests = meter.consumed.requests  # DynamoDB Local tells no units of statements
    print(f"{followers:,} followers: {requests / followers:.4f} requests each, in {time.monotonic() - began:.0f} s")
    assert rows(dynamodb) == followers
    assert requests <= 0.045 * followers + OF_A_FAN_OUT


def follow(runtime, followers):
    """Mirrors so many edges, without a record for each."""
    (route,) = runtime.application.routes
    copies = StoredCopies(runtime, route)
    for first in range(0, followers, 100):
        writes = []
        for number in range(first, min(first + 100, followers)):
            place = edge_key(f"reader-{number:06}")
            edge = StoredCopy("00/2026", ("main", *place), encode(item(*place, name="one"))["M"], gone=False)
            sided = Sided(EDGES, edge.item, copies.fields_of(EDGES, edge.item))
            writes.append(copies.write(sided, edge, BEGIN))
        assert runtime.engine.transact(writes, int(BEGIN) * 2) is None


def rows(client):
    """How many rows of feeds there are."""
    pages = client.get_paginator("scan").paginate(TableName="main", ProjectionExpression="PK")
    return sum(item["PK"]["S"].startswith("FEED#") for page in pages for item in page["Items"])
