"""Runs over items of AWS send documents of searches to the server of the settings, in one process too."""

import pytest

from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import MemoryEngine
from streamfold.keys.table import MAIN

SHOP = """
from streamfold import App, Document, Key, Router

PRODUCT = Key("PRODUCT#{product_id}", "META")
router = Router()


@router.search(PRODUCT, to="products", fields={"title": "keyword"})
def products(item):
    return Document(title=item["title"])


app = App("shop", routers=[router])
"""


@pytest.fixture
def shop(on_aws, folder, source, monkeypatch):
    """A product on AWS whose document no index has, and an index on a server."""
    folder.app(SHOP)
    on_aws.deliver(source.put("PRODUCT#1", "META", title="tea"))
    on_aws.index = LocalIndex(MemoryEngine([MAIN]))
    monkeypatch.setattr(LocalIndex, "close", lambda _: None, raising=False)
    monkeypatch.setattr("streamfold.derivations.search.opensearch.open_search", lambda *_: on_aws.index)
    monkeypatch.setenv("STREAMFOLD_SEARCH", "http://127.0.0.1:9200")
    return on_aws


@pytest.mark.parametrize(
    "command",
    [
        ("backfill", "products", "--offline", "--yes"),
        ("backfill", "products", "--offline", "--yes", "--processes", "1"),
        ("rebuild", "products", "--offline", "--yes"),
        ("repair", "--key", "PRODUCT#1", "META", "--yes"),
    ],
)
def test_a_run_over_items_of_aws_sends_their_documents(shop, command):
    ran = shop.run(*command)
    assert ran.code == 0, ran.out + ran.err
    assert [each.body["title"] for each in shop.index.documents("products")] == ["tea"]


def test_a_dry_run_sends_no_document(shop):
    assert shop.run("backfill", "products", "--offline", "--dry-run").code == 0
    assert list(shop.index.documents("products")) == []
