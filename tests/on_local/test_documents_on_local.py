"""Documents of items in DynamoDB: replays and redrives send them to a server."""

import json

import pytest

from tests.cli import conftest
from tests.cli.test_documents import SHOP
from tests.helpers.failures import parked_document
from tests.search.scripted import Scripted, bulk

URL = "http://127.0.0.1:9200"
FILTER = {"filter": {"bool": {"must_not": {"exists": {"field": "_sf_gone"}}}}}
folder = conftest.folder


@pytest.fixture
def server(monkeypatch):
    """A server that has the index of products, and takes each document."""
    scripted = Scripted().on("POST", "/_bulk", bulk(201))
    scripted.on("GET", "/products/_alias", {"products~000001": {"aliases": {"products": FILTER}}})
    monkeypatch.setattr("streamfold.derivations.search.opensearch._transport", lambda *_: scripted)
    return scripted


@pytest.fixture
def on(folder, dynamodb_endpoint, dynamodb, access_key, monkeypatch):
    """The options of commands on an empty database."""
    folder.app(SHOP)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", dynamodb.meta.region_name)
    return ("--engine", "dynamodb", "--endpoint-url", dynamodb_endpoint)


@pytest.fixture
def record(source):
    return source.put("PRODUCT#1", title="as it is", price=1)


def titles(server):
    return [body["title"] for _, body in server.sent("POST", "/_bulk")]


def test_a_replay_that_puts_the_items_sends_their_documents(folder, on, record, server):
    rehearsal = ("replay", folder.records(record), *on, "--create-tables")

    without = folder.run(*rehearsal, "--search-url", URL)
    assert "Search product did not index 1 items" in without.out
    ran = folder.run(*rehearsal, "--put-sources", "--search-url", URL)

    assert ran.code == 0, ran.err
    assert titles(server) == ["as it is"]
    assert f"show --index products --search-url {URL}    prints documents" in ran.out


@pytest.mark.parametrize("named", [("--search-url", URL), ()])
def test_a_document_follows_a_redriven_record(folder, on, record, server, named, monkeypatch):
    folder.run("replay", folder.records(record), *on, "--create-tables", "--put-sources")
    assert titles(server) == []
    folder.write("parked.json", json.dumps(parked_document(record, "product")))
    if not named:
        monkeypatch.setenv("STREAMFOLD_SEARCH", URL)

    assert folder.run("redrive", "parked.json", *on, *named).code == 0
    assert titles(server) == []
    ran = folder.run("redrive", "parked.json", *on, *named, "--apply")

    assert ran.code == 0, ran.out + ran.err
    assert titles(server) == ["as it is"]
