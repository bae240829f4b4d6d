"""The commands of a search on real servers: an index is created, written to, compared, shown and purged."""

import json
import time
from uuid import uuid4

import pytest

from tests.cli import conftest

APP = """
from streamfold import App, Document, Key, Router

PRODUCT = Key("PRODUCT#{product_id}", "METADATA")
router = Router()


@router.search(PRODUCT, to="INDEX", fields=FIELDS, settings="settings.json", deletes="DELETES")
def product(item):
    yield Document(title=item["title"], price=item["price"])


app = App("shop", routers=[router])
"""
FIELDS = {
    "title": {"type": "text", "analyzer": "own", "fields": {"raw": {"type": "keyword", "ignore_above": 256}}},
    "price": "double",
    "number": {"type": "keyword", "index": True, "doc_values": True, "norms": False, "null_value": "unknown"},
    "text": {"type": "text", "norms": True, "analyzer": "standard", "search_analyzer": "standard", "copy_to": "all"},
    "all": {"type": "text", "index_options": "positions", "store": False},
    "at": {"type": "date", "format": "strict_date_optional_time||epoch_millis"},
    "lines": {"type": "nested", "include_in_parent": False, "properties": {"sku": {"type": "keyword"}}},
    "more": {"type": "object", "enabled": True, "properties": {"n.m": {"type": "long", "coerce": True}}},
    "empty": {"type": "object"},
}
SETTINGS = {
    "index": {"number_of_replicas": 0, "refresh_interval": -1, "max_result_window": 20_000},
    "analysis": {"analyzer": {"own": {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "stop"]}}},
}
folder = conftest.folder
DAY_MS = 24 * 60 * 60 * 1000


class Shop:
    """An application with a search on a server, and the command line."""

    def __init__(self, folder, server):
        self.folder = folder
        self.server = server
        self.index = f"shop-{uuid4().hex[:8]}"
        self.declare()

    def declare(self, fields=FIELDS, settings=SETTINGS, deletes="kept"):
        self.folder.write("settings.json", json.dumps(settings))
        app = APP.replace("INDEX", self.index).replace("FIELDS", repr(fields)).replace("DELETES", deletes)
        self.folder.app(app)

    def run(self, *arguments):
        return self.folder.run(*arguments, "--search-url", self.server.url)

    def search(self, command, *more):
        return self.run("search", command, self.index, *more)

    def refresh(self):
        self.server.ask("POST", f"/{self.index}~*/_refresh")

    def shown(self, *more):
        self.refresh()
        ran = self.run("show", "--index", self.index, "--json", *more)
        assert ran.code == 0, ran.err
        return {line["id"]: line["document"] for line in map(json.loads, ran.out.splitlines())}


@pytest.fixture
def shop(folder, server):
    shop = Shop(folder, server)
    yield shop
    server.ask("DELETE", f"/{shop.index}*")


@pytest.mark.parametrize("deletes", ["kept", "removed"])
def test_a_created_index_is_as_declared_and_keeps_versions(shop, deletes):
    shop.declare(deletes=deletes)

    ran = shop.search("create")

    assert ran.code == 0, ran.err
    assert "The server refuses older versions" in ran.out
    same = shop.search("diff")
    assert (same.code, same.err) == (0, ""), same.out
    assert shop.shown("--hidden") == {}
    found = shop.server.ask("GET", f"/{shop.index}~000001/_settings?flat_settings=true")
    settings = found[f"{shop.index}~000001"]["settings"]
    assert settings.get("index.gc_deletes") == ("1h" if deletes == "removed" else None)
    assert "exists, for" in shop.search("create").err


def test_differences_are_told(shop):
    shop.search("create")
    shop.declare(
        fields={**FIELDS, "price": "long", "rating": "float", "number": {"type": "keyword", "doc_values": False}},
        settings={**SETTINGS, "index": {"number_of_replicas": 1}},
    )
    real = f"{shop.index}~000001"
    actions = [{"add": {"index": real, "alias": shop.index}}]
    shop.server.ask("POST", "/_aliases", {"actions": actions})

    ran = shop.search("diff")

    assert ran.code == 1
    assert ran.out.splitlines() == [
        (
            f"alias {shop.index}: expected an alias of one index that hides documents that are gone, "
            f"found no filter on {real}"
        ),
        "field price: expected long, found double",
        "field number doc_values: expected false, found nothing",
        "field number null_value: expected nothing, found unknown",
        "field rating: expected float, found nothing",
        "setting index.number_of_replicas: expected 1, found 0",
    ]


def test_documents_of_a_replay_are_on_the_server_and_hidden_ones_are_purged(shop, source):
    shop.search("create")
    records = [source.put(f"PRODUCT#{number}", title=f"T{number}", price=number) for number in range(3)]
    records += [source.remove("PRODUCT#1"), source.remove("PRODUCT#2")]

    ran = shop.run("replay", shop.folder.records(*records), "--state", "state.db")

    assert ran.code == 0, ran.err
    assert shop.shown() == {"PRODUCT#0|METADATA": {"title": "T0", "price": 0}}
    assert set(shop.shown("--hidden")) == {f"PRODUCT#{number}|METADATA" for number in range(3)}
    assert shop.search("purge").out.startswith("0 documents")
    age(shop, "PRODUCT#1|METADATA", days=31)
    age(shop, "PRODUCT#2|METADATA", days=31)
    assert "Dry run: 2 documents" in shop.search("purge", "--dry-run").out
    assert shop.search("purge", "--older-than", 90, "--dry-run").out.startswith("Dry run: 0 documents")
    assert shop.search("purge", "--yes").out.startswith("2 documents")
    assert set(shop.shown("--hidden")) == {"PRODUCT#0|METADATA"}


def age(shop, name, days):
    """Makes a document look as if it had been hidden long ago."""
    body = {"_sf_gone": True, "_sf_at": int(time.time() * 1000) - days * DAY_MS}
    path = f"/{shop.index}~000001/_doc/{name.replace('#', '%23').replace('|', '%7C')}?refresh=true"
    shop.server.ask("PUT", path, body)


def test_an_item_that_comes_back_after_a_purge_has_its_document_again(shop, source):
    shop.search("create")
    records = [source.put("PRODUCT#1", title="first", price=1), source.remove("PRODUCT#1")]
    shop.run("replay", shop.folder.records(*records), "--state", "state.db")
    age(shop, "PRODUCT#1|METADATA", days=31)
    assert shop.search("purge", "--yes").out.startswith("1 documents")

    again = shop.folder.records(source.put("PRODUCT#1", title="again", price=2), name="again.jsonl")
    assert shop.run("replay", again, "--state", "state.db").code == 0

    assert shop.shown()["PRODUCT#1|METADATA"]["title"] == "again"


LOCAL = ("--state", "state.db", "--tolerance", "0")


@pytest.fixture
def filled(shop, source):
    """A shop with three products."""
    shop.search("create")
    shop.source = source
    for number in range(3):
        change(shop, number, f"T{number}")
    return shop


def change(shop, number, title):
    records = shop.folder.records(shop.source.put(f"PRODUCT#{number}", title=title, price=number))
    ran = shop.run("replay", records, "--state", "state.db")
    assert ran.code == 0, ran.err


def titles(shop):
    return [found["title"] for _, found in sorted(shop.shown().items())]


def indices(shop):
    return sorted(shop.server.ask("GET", f"/{shop.index}*"))


def test_an_index_is_rebuilt_and_its_alias_moved_and_moved_back(filled):
    ran = filled.search("rebuild", *LOCAL, "--full")
    assert (ran.code, ran.out.splitlines()[:1]) == (0, [f"Alias {filled.index} names {filled.index}~000002."])
    change(filled, 0, "again")
    assert titles(filled) == ["again", "T1", "T2"]
    assert filled.search("diff").code == 0
    assert filled.search("rebuild", *LOCAL, "--back").code == 0
    change(filled, 1, "more")
    assert titles(filled) == ["again", "more", "T2"]
    assert filled.search("rebuild", *LOCAL, "--back").code == 0
    assert titles(filled) == ["again", "more", "T2"]
    assert filled.search("rebuild", *LOCAL, "--drop").code == 0
    change(filled, 2, "last")
    assert (titles(filled), indices(filled)) == (["again", "more", "last"], [f"{filled.index}~000002"])


def test_documents_that_somebody_changed_are_found_and_mended(filled):
    path = f"/{filled.index}~000001/_doc/"
    filled.server.ask("PUT", path + "PRODUCT%230%7CMETADATA?refresh=true", {"title": "x", "price": 0})
    filled.server.ask("DELETE", path + "PRODUCT%231%7CMETADATA?refresh=true")
    filled.server.ask("PUT", path + "PRODUCT%239%7CMETADATA?refresh=true", {"title": "ghost", "price": 9})
    ran = filled.search("verify", *LOCAL, "--repair")
    assert "1 different, 1 missing, 1 ghost" in ran.out, ran.err
    assert (ran.code, titles(filled)) == (0, ["T0", "T1", "T2"])
    assert "0 different, 0 missing, 0 ghost" in filled.search("verify", *LOCAL).out


def test_a_search_with_another_mapping_takes_the_alias_over(filled):
    text = (filled.folder.path / "handlers.py").read_text()
    own = text.index("@router.search"), text.index("\n\napp = App")
    other = text[own[0] : own[1]].replace('deletes="', 'name="next", replaces="product", deletes="')
    filled.folder.app(text[: own[1]] + "\n\n" + other.replace("def product", "def other") + text[own[1] :])
    following = f"{filled.index}~next"
    assert filled.run("search", "create", following).code == 0
    assert filled.run("search", "rebuild", following, "--abort", *LOCAL).code == 2
    change(filled, 0, "first")
    change(filled, 1, "second")
    change(filled, 2, "third")
    ran = filled.run("search", "rebuild", following, "--take-over", *LOCAL)
    assert (ran.code, f"names {following}~000001" in ran.out) == (0, True), ran.err
    change(filled, 0, "again")
    assert titles(filled) == ["again", "second", "third"]
    assert filled.search("rebuild", "--back", *LOCAL).code == 0
    assert titles(filled) == ["again", "second", "third"]


def test_a_replay_to_a_server_without_the_index_says_how_to_make_it(shop, source):
    ran = shop.run("replay", shop.folder.records(source.put("PRODUCT#1", title="x", price=1)))

    assert ran.code == 2
    assert f"Alias '{shop.index}' does not exist. Expected one: streamfold search create INDEX makes it." in ran.err
