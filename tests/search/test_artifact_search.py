"""The whole way to an index: items written to a table, its stream, the built functions, queries on a real server."""

import boto3
import pytest

from handlers import app
from streamfold.read import rows
from streamfold.records.values import decode
from streamfold.replay.stream import StreamReader
from tests.helpers.artifact import NAMES, TABLES, Function, bucket, built_template
from tests.helpers.queries import (
    HITS_MAX,
    Answer,
    create_indices,
    orders_found,
    page_query,
    products_found,
    remove_indices,
    song_query,
    songs_found,
)
from tests.helpers.template import create_table
from tests.search.test_queries import VERSION
from tests.workload import search, shop
from tests.workload.record import SUBJECTS

_, SEED = SUBJECTS["search"]
pytestmark = [pytest.mark.engine, pytest.mark.opensearch]


@pytest.fixture
def server(servers):
    server = servers(VERSION)
    create_indices(app, server)
    yield server
    remove_indices(app, server)


@pytest.fixture
def environment(dynamodb_endpoint, access_key):
    with bucket() as (_, endpoint):
        yield {
            "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_endpoint,
            "AWS_ENDPOINT_URL_S3": endpoint,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": "secret",
        }


@pytest.fixture
def functions(server, environment, tmp_path):
    """The function of the rows and that of the documents."""
    template = built_template()
    of_index = {"STREAMFOLD_SEARCH": server.url, "STREAMFOLD_SEARCH_SERVICE": "none"}
    with (tmp_path / "log").open("w") as log:
        both = [
            Function(template, "Projector", log, **environment),
            Function(template, "Searcher", log, **environment, **of_index),
        ]
        yield both
        for function in both:
            function.end()


@pytest.fixture
def table(dynamodb, dynamodb_endpoint, access_key):
    """The table of the template, beside its state; boto3's, for the workloads."""
    for resource in TABLES:
        create_table(dynamodb, built_template(), resource, NAMES[resource])
    keys = {"aws_access_key_id": access_key, "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    resource = boto3.resource("dynamodb", endpoint_url=dynamodb_endpoint, **keys)
    yield resource.Table(NAMES["Table"])
    resource.meta.client.close()


def place_orders(table, seed, steps=150):
    """A shorter life of the shop."""
    placed = shop.Shop(table, seed)
    placed.open_accounts()
    for _ in range(30):
        placed.place()
    placed.take_steps(shop.STEP_WEIGHTS, steps)


def deliver_all(reader, functions):
    """Delivers what the stream holds to both functions, and what comes of that, until it holds no more."""
    cursor, delivered = None, True
    while delivered:
        delivered = False
        for page in reader.pages(cursor):
            cursor, delivered = page.cursor, True
            for function in functions:
                function.deliver(page.records)


def items_of(client):
    """Gives the items of a key in the table, by the fields of the key."""
    pages = client.get_paginator("scan").paginate(TableName=NAMES["Table"], ConsistentRead=True)
    items = [*rows(decode({"M": item}) for page in pages for item in page["Items"])]

    def items_of_key(key):
        matches = ((key.match(item), item) for item in items)
        return {tuple(fields.values()): item for fields, item in matches if fields is not None}

    return items_of_key


def test_items_that_are_written_to_the_table_are_found_counted_and_sorted(
    table, functions, server, dynamodb, dynamodbstreams
):
    search.run(table, SEED)
    place_orders(table, 2)
    reader = StreamReader(dynamodb, dynamodbstreams, NAMES["Table"])
    deliver_all(reader, functions)
    items = items_of(dynamodb)

    ids, categories = products_found(items)
    answer = Answer(server, "products", page_query("products"))
    assert len(ids) > 1
    assert (answer.ids, answer.facet) == (ids, categories)

    ids = orders_found(items)
    answer = Answer(server, "orders", page_query("orders"))
    assert answer.total == len(ids) > 0
    assert answer.ids == ids[:HITS_MAX]

    ids, languages = songs_found(items, lambda title, *_: "House" in title)
    answer = Answer(server, "songs", song_query("house"))
    assert ids
    assert (set(answer.ids), answer.facet) == (ids, languages)


def test_what_comes_again_changes_no_answer(table, functions, server, dynamodb, dynamodbstreams):
    search.run(table, 1)
    reader = StreamReader(dynamodb, dynamodbstreams, NAMES["Table"])
    deliver_all(reader, functions)
    before = Answer(server, "products", page_query("products"))
    _, searcher = functions
    for page in StreamReader(dynamodb, dynamodbstreams, NAMES["Table"]).pages():
        searcher.deliver(page.records[::-1])
    after = Answer(server, "products", page_query("products"))
    assert (after.ids, after.facet) == (before.ids, before.facet)
    assert (before.ids, before.facet) == products_found(items_of(dynamodb))
