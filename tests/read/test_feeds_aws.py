"""Feeds read through boto3: the pages that a local state gives, in two rounds of queries."""

from datetime import datetime, timedelta

import boto3
import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.derivations.feed.spreading import PULL, UNTIL
from streamfold.read import feed, feeds
from streamfold.read.feeds import EngineQueries, page, route_of
from streamfold.records.values import decode
from streamfold.testing import Clock, Twin

TABLE = Table("main", ttl="expires")
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", TABLE)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", TABLE)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", TABLE)
AUTHORS, PULLED = 6, 3
BEGIN = datetime.fromisoformat("2026-03-01T08:00:00Z")


class Read:
    """A feed on a table of AWS, which holds what a twin has made, and the queries that were sent."""

    def __init__(self):
        router = Router()

        @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=30, inline=1, pull_above=2)
        def timeline(post, follow):
            return None if post["text"] == "muted" else Row(text=post["text"])

        self.timeline = timeline
        self.twin = Twin(App("social", routers=[router]), clock=Clock())
        self._write()
        self.table = boto3.resource("dynamodb", region_name="us-east-1").create_table(
            TableName="shop",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
        )
        self.queries = 0
        self.table.meta.client.meta.events.register("before-call.dynamodb.Query", self._count)
        for item in self.twin.engine.items(TABLE):
            self.table.put_item(Item=decode({"M": item}))

    def _count(self, **_):
        self.queries += 1

    def _write(self):
        """Some authors with three followers, who are pulled, and some with one."""
        for author in range(AUTHORS):
            for reader in ("ana", "cy", "dee") if author < PULLED else ("ana",):
                self.twin.put(FOLLOW, reader_id=reader, author_id=f"a{author}")
        for minute in range(30):
            text = "muted" if minute % 5 == 0 else f"post {minute}"
            place = {"author_id": f"a{minute % AUTHORS}", "at": BEGIN + timedelta(minutes=minute), "post_id": "p"}
            self.twin.put(POST, **place, text=text)

    def pages(self, place, limit):
        """All pages, through boto3."""
        found, cursor = [], None
        while True:
            page = feed(place, self.timeline, reader_id="ana", limit=limit, cursor=cursor, now=self.twin.clock.now)
            found.append([row["text"] for row in page.rows])
            cursor = page.cursor
            if cursor is None:
                return found


@pytest.fixture
def read(aws):
    found = Read()
    for item in found.twin.tables["main"].items():
        found.table.put_item(Item=item)
    return found


@pytest.mark.parametrize("limit", [1, 4, 25])
def test_pages_are_those_of_the_twin(read, limit):
    expected = [f"post {minute}" for minute in reversed(range(30)) if minute % 5]
    found = read.pages(read.table, limit)
    assert [text for page in found for text in page] == expected
    assert all(len(page) == limit for page in found[:-1])


def test_a_client_and_the_name_of_its_table_will_do(read):
    client = boto3.client("dynamodb", region_name="us-east-1")
    assert read.pages((client, "shop"), 4) == read.pages(read.table, 4)


def test_a_page_takes_two_queries_and_one_for_each_pulled_author(read):
    page = feed(read.table, read.timeline, reader_id="ana", limit=4, now=read.twin.clock.now)
    assert len(page.rows) == 4
    assert read.queries == 2 + PULLED


def test_more_pulled_authors_than_are_read_are_told(read):
    page = feed(read.table, read.timeline, reader_id="ana", pulls_most=PULLED - 1, now=read.twin.clock.now)
    assert page.partial
    assert not feed(read.table, read.timeline, reader_id="ana", pulls_most=PULLED, now=read.twin.clock.now).partial


def left_by(read, monkeypatch, pages_max):
    """What the reader sees who has left two of three pulled authors, if one author is read for a page."""
    for author in range(1, PULLED):
        read.twin.delete(FOLLOW, reader_id="ana", author_id=f"a{author}")
    monkeypatch.setattr(feeds, "PULL_PAGES_MAX", pages_max)
    queries = EngineQueries(read.twin.engine)
    return page(route_of(read.timeline), queries, {"reader_id": "ana"}, 100, None, 1, read.twin.clock.now)


def test_authors_whom_a_reader_has_left_hide_no_pulled_one(read, monkeypatch):
    found = left_by(read, monkeypatch, 20)
    assert "post 6" in [row["text"] for row in found.rows]
    assert not found.partial


def test_more_authors_whom_a_reader_has_left_than_are_read_are_told(read, monkeypatch):
    assert left_by(read, monkeypatch, 1).partial


def test_an_author_whose_last_pulled_post_is_too_old_is_read_no_more(read):
    (row, *_) = read.table.query(
        KeyConditionExpression=boto3.dynamodb.conditions.Key("PK").eq(f"{PULL}timeline#FEED#ana")
    )["Items"]
    read.table.put_item(Item={**row, UNTIL: "POST#2025-01-01T00:00:00Z#p"})
    read.queries = 0
    feed(read.table, read.timeline, reader_id="ana", now=read.twin.clock.now)
    assert read.queries == 2 + PULLED - 1
