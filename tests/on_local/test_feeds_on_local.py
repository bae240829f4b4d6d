"""Feeds on DynamoDB Local: histories, and pages as boto3 reads them."""

from datetime import UTC, datetime
from itertools import count

import boto3
import pytest
from botocore.config import Config

from streamfold import App, Router, Row
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.engines.dynamodb_client import Meter
from streamfold.keys.table import PARTNER_VERSION, VERSION
from streamfold.read import feed
from streamfold.read.feeds import EngineQueries, page, route_of
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.feed_histories import BEGIN, FEED, FOLLOW, POST, TABLE, History, applications, small
from tests.helpers.records import change, item
from tests.helpers.tables import make_table

SHAPES = {"pushed": {}, "pulled above 3": {"pull_above": 3}}
PAGE_READ = 25
PUSHED, PULLED = 1_000, 20


class OnDynamo(History):
    """A history whose store is DynamoDB."""

    def put(self, place, source):
        key = dict(zip(("PK", "SK"), place, strict=True))
        if source is None:
            self.engine.client.delete_item(TableName="main", Key=encode(key)["M"])
        else:
            self.engine.client.put_item(TableName="main", Item=encode(source)["M"])


def made_engine(client):
    make_table(client, "main", {"PK": "S", "SK": "S"})
    make_table(client, "social-state", {"pk": "S", "sk": "S"})
    return DynamoEngine(client, {"main": (TABLE, "main")}, "social-state", pause=lambda _: None)


@pytest.fixture
def engines(dynamodb_endpoint, access_key):
    """Makes engines, each on an empty database."""

    def made():
        client = boto3.client(
            "dynamodb",
            endpoint_url=dynamodb_endpoint,
            region_name="us-east-1",
            aws_access_key_id=f"{access_key}{next(numbers)}",
            aws_secret_access_key="secret",
            config=Config(account_id_endpoint_mode="disabled"),
        )
        clients.append(client)
        return made_engine(client)

    clients, numbers = [], count()
    yield made
    for client in clients:
        client.close()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("histories", [3, pytest.param(150, marks=pytest.mark.nightly)])
def test_readers_are_shown_what_the_items_say_on_dynamodb(engines, shape, histories):
    apps = applications(**SHAPES[shape])
    with small():
        for seed in range(histories):
            assert OnDynamo(apps, seed, engines()).run().wrong() is None, f"seed {seed}"


@pytest.fixture
def reader(dynamodb):
    """A feed of a thousand rows, and twenty authors who are pulled."""
    router = Router()

    @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=30, inline=1, pull_above=1)
    def timeline(post, follow):
        return Row(text=post["text"])

    app, engine, numbers = App("social", routers=[router]), made_engine(dynamodb), count(1)
    history = OnDynamo((app,), 0, engine)

    def write(key, fields, **values):
        place = key.compose(fields)
        history.put(place, item(*place, **values))
        run = Runtime(app, engine, Settings(), clock=lambda: BEGIN + 2_000, pause=lambda _: None)
        assert not process_changes(run, [change(None, item(*place, **values), next(numbers))]).failures
        assert not run_fan_outs(run).failures

    for author in (f"star{number:02}" for number in range(PULLED)):
        for follower in ("ada", "bob"):
            write(FOLLOW, {"reader_id": follower, "author_id": author}, name="x")
        for number in range(3):
            write(POST, {"author_id": author, "at": moment(number), "post_id": str(number)}, text=author)
    rows = [
        FEED.compose({"reader_id": "ada", "author_id": "friend", "at": moment(n), "post_id": f"{n}"})
        for n in range(PUSHED)
    ]
    versions = {VERSION: "v", PARTNER_VERSION: "v"}  # without the second a row counts as an item of a writer
    for some in range(0, PUSHED, 25):
        puts = [
            {"PutRequest": {"Item": encode(item(*row, text="friend", **versions))["M"]}}
            for row in rows[some : some + 25]
        ]
        dynamodb.batch_write_item(RequestItems={"main": puts})
    return timeline, engine


def moment(number):
    return datetime.fromtimestamp(BEGIN + number, UTC)


def test_a_page_takes_two_rounds_of_queries_and_is_what_the_items_say(dynamodb, reader):
    timeline, engine = reader
    meter = Meter(dynamodb)
    found = feed((dynamodb, "main"), timeline, reader_id="ada", now=BEGIN + 2_000)
    assert meter.take().requests <= PULLED + 2
    assert len(found.rows) == PAGE_READ
    shown, cursor = [*found.rows], found.cursor
    while cursor is not None:
        again = feed((dynamodb, "main"), timeline, reader_id="ada", cursor=cursor, limit=400)
        shown, cursor = [*shown, *again.rows], again.cursor
    route = route_of(timeline)
    everything = page(route, EngineQueries(engine), {"reader_id": "ada"}, 1000, None, 50, BEGIN + 2_000)
    assert len(shown) == PUSHED + 3 * PULLED
    assert shown[:1000] == everything.rows
    places = [row["SK"] for row in shown]
    assert places == sorted(places, reverse=True)
