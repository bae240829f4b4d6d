"""``streamfold search``: indexes on a server as they are declared, and what was hidden long ago."""

import json
from copy import deepcopy

import pytest

from streamfold.derivations.search.sink import VISIBLE
from tests.search.scripted import Scripted, bulk
from tests.search.stub import serving

SHOP = """
from streamfold import App, Document, Key, Router

PRODUCT = Key("PRODUCT#{product_id}", "METADATA")
router = Router()


@router.search(PRODUCT, to="products", fields={"title": "text", "price": "double"}, settings="settings.json")
def product(item):
    yield Document(title=item["title"], price=item["price"])


app = App("shop", routers=[router])
"""
NO_SEARCH = 'from streamfold import App\n\napp = App("shop", routers=[])\n'
URL = "http://127.0.0.1:9200"
ON = ("--search-url", URL)
MAPPING = {
    "dynamic": "false",
    "properties": {
        "title": {"type": "text"},
        "price": {"type": "double"},
        "_sf_gone": {"type": "boolean"},
        "_sf_at": {"type": "date", "format": "epoch_millis"},
        "_sf_h": {"type": "keyword"},
    },
}
AS_DECLARED = {
    "products~000001": {
        "aliases": {"products": {"filter": VISIBLE}},
        "mappings": MAPPING,
        "settings": {"index.number_of_replicas": "0", "index.uuid": "x"},
    }
}
FILTERED = "alias products: expected an alias of one index that hides documents that are gone"
UNSAFE = (
    "An older run could overwrite a newer one, and a document could be older than its item. Expected a server that "
    "refuses version 4 of a document that it holds in version 5, as domains of OpenSearch Service do. The index was "
    "created, and is empty: delete it, and use another server."
)
NOW = 1_800_000_000
DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def folder(folder, monkeypatch):
    folder.app(SHOP)
    folder.write("settings.json", '{"number_of_replicas": 0}')
    monkeypatch.setattr("streamfold.cli.search.time.time", lambda: NOW)
    return folder


@pytest.fixture
def server(monkeypatch):
    """A server on which there is nothing yet."""
    scripted = Scripted().on("PUT", "/products~000001", {"acknowledged": True})
    scripted.on("POST", "/_bulk", bulk(201), bulk(409), bulk(200, verb="delete"))
    monkeypatch.setattr("streamfold.derivations.search.opensearch._transport", lambda *_: scripted)
    return scripted


@pytest.fixture
def there(server):
    """A server on which the index is as declared."""
    alias = {"products~000001": {"aliases": AS_DECLARED["products~000001"]["aliases"]}}
    return server.on("GET", "/products", deepcopy(AS_DECLARED)).on("GET", "/products/_alias", alias)


def refused(ran):
    assert (ran.code, ran.out) == (2, ""), ran
    return ran.err


class TestCreate:
    def test_a_setting_that_names_no_index_is_told_before_the_declared_one_is_made(self, folder, monkeypatch):
        monkeypatch.setenv("STREAMFOLD_INDEX_PRODUCT", "staging-products")
        for command in (("search", "create", "products", "--dry-run"), ("show", "--index", "products", *ON)):
            assert "Did you mean STREAMFOLD_INDEX_PRODUCTS?" in folder.run(*command).err

    def test_index_and_alias_are_made_in_one_request(self, folder, server):
        ran = folder.run("search", "create", "products", *ON)

        assert ran.code == 0, ran.err
        ((body,),) = server.sent("PUT", "/products~000001")
        assert body["settings"] == {"index.number_of_replicas": 0}
        assert body["mappings"]["properties"] == MAPPING["properties"]
        assert body["aliases"] == {"products": {"filter": VISIBLE, "is_write_index": True}}
        assert ran.out == (
            f"Created index products~000001 with alias products on {URL}.\n"
            "The server refuses older versions: no document will be older than its item.\n"
        )

    def test_the_document_that_tries_the_index_is_hidden_and_removed(self, folder, server):
        folder.run("search", "create", "products", *ON)

        (newer, body), (older, _), (gone,) = server.sent("POST", "/_bulk")
        assert body["_sf_gone"] is True
        assert [newer["index"]["version"], older["index"]["version"], gone["delete"]["version"]] == [5, 4, 6]
        assert {each["_id"] for each in (newer["index"], older["index"], gone["delete"])} == {"_sf_probe"}

    def test_json_says_what_was_made(self, folder, server):
        ran = folder.run("search", "create", "products", *ON, "--json")

        assert json.loads(ran.out) == {
            "index": "products~000001",
            "alias": "products",
            "versions_hold": True,
            "why": "",
        }

    @pytest.mark.parametrize(
        ("answers", "why"),
        [
            (
                [bulk(201), bulk(200), bulk(200, verb="delete")],
                "It took version 4 of a document after version 5 (200).",
            ),
            ([bulk(400), bulk(400), bulk(400, verb="delete")], "It did not take version 5 of a document (400: why)."),
            ([bulk(201), bulk(409), bulk(400, verb="delete")], "It did not delete a document in version 6 (400)."),
            ([400], f"OpenSearch at {URL} refused a request with 400 (refused)."),
        ],
    )
    def test_a_server_that_keeps_no_versions_is_told_of(self, folder, server, answers, why):
        server.on("POST", "/_bulk", *answers)

        ran = folder.run("search", "create", "products", *ON)

        assert ran.code == 1
        assert ran.err.splitlines() == [
            f"The server does not refuse older versions of documents. {why}",
            UNSAFE,
        ]
        server.on("POST", "/_bulk", *answers)
        found = json.loads(folder.run("search", "create", "products", *ON, "--json").out)
        assert (found["versions_hold"], found["why"]) == (False, why)

    def test_a_server_that_is_busy_is_no_server_without_versions(self, folder, server):
        server.on("POST", "/_bulk", 503)

        ran = folder.run("search", "create", "products", *ON)

        assert ran.code == 2
        assert ran.err == f"Error: OpenSearch at {URL} refused a request with 503 (refused).\n"

    def test_a_dry_run_prints_the_request_and_needs_no_server(self, folder):
        ran = folder.run("search", "create", "products", "--dry-run")

        assert ran.code == 0, ran.err
        request, _, body = ran.out.partition("\n")
        assert request == "PUT /products~000001"
        assert json.loads(body)["settings"] == {"index.number_of_replicas": 0}
        found = json.loads(folder.run("search", "create", "products", "--dry-run", "--json").out)
        assert (found["method"], found["path"], found["body"]) == ("PUT", "/products~000001", json.loads(body))

    def test_an_alias_that_is_there_is_refused(self, folder, there):
        assert refused(folder.run("search", "create", "products", *ON)) == (
            "Error: Alias 'products' exists, for products~000001: nothing was created. streamfold search diff "
            "products shows whether they are as declared.\n"
        )

    def test_an_index_where_the_alias_should_be_is_refused(self, folder, server):
        server.on("GET", "/products", {"products": {"aliases": {}}})

        assert refused(folder.run("search", "create", "products", *ON)) == (
            "Error: 'products' is an index, and has to be an alias: searches would show documents of items that are "
            "gone. Delete the index, or give the search another name, and run the command again.\n"
        )

    def test_an_index_without_its_alias_is_refused(self, folder, server):
        server.on("GET", "/products~000001", {"products~000001": {"aliases": {}}})

        assert refused(folder.run("search", "create", "products", *ON)) == (
            "Error: Index 'products~000001' exists, and alias 'products' does not. Expected neither of them: delete "
            "the index if nobody needs it, or give it the alias that --dry-run prints.\n"
        )


class TestDiff:
    def test_an_index_as_declared_has_no_differences(self, folder, there):
        ran = folder.run("search", "diff", "products", *ON)

        assert (ran.code, ran.out, ran.err) == (0, f"Index products on {URL} is as declared.\n", "")
        assert json.loads(folder.run("search", "diff", "products", *ON, "--json").out) == {
            "alias": "products",
            "differences": [],
        }

    def test_what_differs_is_told_line_by_line(self, folder, there):
        found = deepcopy(AS_DECLARED)
        index = found["products~000001"]
        index["aliases"]["products"] = {}
        index["settings"]["index.number_of_replicas"] = "1"
        index["mappings"]["properties"] |= {"price": {"type": "long"}, "old": {"type": "keyword"}}
        del index["mappings"]["properties"]["title"]
        there.on("GET", "/products", found)

        ran = folder.run("search", "diff", "products", *ON)

        assert ran.code == 1
        assert ran.out.splitlines() == [
            f"{FILTERED}, found no filter on products~000001",
            "field title: expected text, found nothing",
            "field price: expected double, found long",
            "field old: expected nothing, found keyword",
            "setting index.number_of_replicas: expected 0, found 1",
        ]
        assert f"Index products on {URL} differs from its declaration. Missing fields and settings" in ran.err
        told = json.loads(folder.run("search", "diff", "products", *ON, "--json").out)["differences"]
        assert told[2] == {"what": "field", "name": "price", "expected": "double", "found": "long", "behind": None}

    @pytest.mark.parametrize(
        ("found", "line"),
        [
            (404, "found nothing"),
            ({"products": AS_DECLARED["products~000001"]}, "found an index"),
        ],
    )
    def test_an_alias_that_is_none(self, folder, server, found, line):
        server.on("GET", "/products", found)

        ran = folder.run("search", "diff", "products", *ON)

        assert ran.code == 1
        assert ran.out == f"{FILTERED}, {line}\n"

    def test_several_indices_are_compared_each(self, folder, server):
        second = deepcopy(AS_DECLARED["products~000001"])
        second["mappings"]["properties"]["price"] = {"type": "long"}
        server.on("GET", "/products", {**AS_DECLARED, "products~000002": second})

        ran = folder.run("search", "diff", "products", *ON)

        assert ran.out.splitlines() == [
            f"{FILTERED}, found several indices and none to write to",
            "field price of products~000002: expected double, found long",
        ]


class TestPurge:
    @pytest.fixture
    def hidden(self, there):
        """Three documents that were hidden long ago, on two pages."""
        there.on("POST", "/products~000001/_count", {"count": 3})
        there.on("POST", "/products~000001/_search", *(page(numbers) for numbers in ([1, 2], [3], [])))
        return there.on("POST", "/_bulk", bulk(200, 409, verb="delete"), bulk(200, verb="delete"))

    def test_documents_are_removed_if_they_are_still_what_was_found(self, folder, hidden):
        ran = folder.run("search", "purge", "products", *ON, "--yes")

        assert ran.code == 0, ran.err
        first, second = hidden.sent("POST", "/_bulk")
        assert [each["delete"] for each in first] == [deletion(1), deletion(2)]
        assert [each["delete"] for each in second] == [deletion(3)]
        assert ran.out == (
            "2 documents of index products were removed, hidden over 30 days ago. 1 were written meanwhile and are "
            "kept.\n"
        )
        assert ran.err == f"This removes 3 documents of index products on {URL}, hidden over 30 days ago.\n"

    @pytest.mark.parametrize(("more", "days"), [((), 30), (("--older-than", "90"), 90)])
    def test_only_documents_that_were_hidden_long_ago_are_sought(self, folder, hidden, more, days):
        folder.run("search", "purge", "products", *ON, "--yes", *more)

        ((asked,),) = hidden.sent("POST", "/products~000001/_count")
        gone, old = asked["query"]["bool"]["filter"]
        assert gone == {"term": {"_sf_gone": True}}
        assert old == {"range": {"_sf_at": {"lt": NOW * 1000 - days * DAY_MS, "format": "epoch_millis"}}}
        assert hidden.sent("POST", "/products~000001/_search")[0][0]["query"] == asked["query"]

    def test_a_dry_run_counts(self, folder, hidden):
        ran = folder.run("search", "purge", "products", *ON, "--dry-run")

        assert (ran.code, ran.err) == (0, "")
        assert ran.out == "Dry run: 3 documents of index products were hidden over 30 days ago; none was removed.\n"
        assert hidden.sent("POST", "/_bulk") == []

    def test_nothing_is_removed_where_nobody_can_be_asked(self, folder, hidden):
        ran = folder.run("search", "purge", "products", *ON)

        assert ran.code == 2
        assert ran.err.endswith("Error: Nobody can be asked for confirmation here: give --yes to go on.\n")
        assert hidden.sent("POST", "/_bulk") == []

    def test_where_there_is_nothing_nobody_is_asked(self, folder, hidden):
        hidden.on("POST", "/products~000001/_count", {"count": 0})

        ran = folder.run("search", "purge", "products", *ON)

        assert (ran.code, ran.out) == (0, "0 documents of index products were removed, hidden over 30 days ago.\n")

    def test_json_has_the_counts(self, folder, hidden):
        ran = folder.run("search", "purge", "products", *ON, "--yes", "--json")

        counts = {"found": 3, "removed": 2, "changed": 1}
        assert json.loads(ran.out) == {"alias": "products", "days": 30, "dry_run": False, **counts}

    def test_less_than_the_retention_is_refused(self, folder, hidden, monkeypatch):
        monkeypatch.setenv("STREAMFOLD_RETENTION_DAYS", "45")

        assert refused(folder.run("search", "purge", "products", *ON, "--older-than", "44")) == (
            "Error: --older-than 44 is less than STREAMFOLD_RETENTION_DAYS=45: records that are older than a removal "
            "may still come, and would bring its document back. Expected 45 or more.\n"
        )

    def test_a_server_that_does_not_remove_is_told_of_and_what_was_removed_is_kept(self, folder, hidden):
        hidden.on("POST", "/_bulk", bulk(200, 429, verb="delete"))

        ran = folder.run("search", "purge", "products", *ON, "--yes")

        assert ran.code == 2
        assert "OpenSearch did not remove a document (429: why)." in ran.err

    def test_a_progress_bar_is_for_terminals(self, folder, hidden, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")

        ran = folder.run("search", "purge", "products", *ON, "--yes")

        assert ran.code == 0
        assert "removing" in ran.err


def page(numbers):
    hits = [{"_index": "products~000001", "_id": f"{n}", "_seq_no": n, "_primary_term": 1} for n in numbers]
    return {"hits": {"hits": hits}}


def deletion(number):
    return {"_index": "products~000001", "_id": f"{number}", "if_seq_no": number, "if_primary_term": 1}


COMMANDS = ("create", "diff", "purge")
each_command = pytest.mark.parametrize("command", COMMANDS)


@each_command
def test_a_server_has_to_be_named(folder, command):
    assert refused(folder.run("search", command, "products")) == (
        "Error: No search server is named: expected --search-url https://HOST, or STREAMFOLD_SEARCH.\n"
    )


@each_command
def test_the_server_of_the_settings_is_used(folder, command, there, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_SEARCH", URL)

    assert "No search server" not in folder.run("search", command, "products").err
    assert there.requests


@each_command
def test_an_index_that_is_not_declared_is_refused(folder, command, server):
    message = refused(folder.run("search", command, "orders", *ON))
    assert message == "Error: Index 'orders' is not known: expected products.\n"


@each_command
def test_an_application_without_a_search_has_no_index(folder, command, server):
    folder.app(NO_SEARCH)

    message = refused(folder.run("search", command, "products", *ON))
    assert message == "Error: Index 'products' is not known: the application has no search.\n"


@each_command
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("search.example.com", "Setting --search-url is no URL of a server: expected https://HOST, without"),
        ("http://search.example.com", "Setting --search-url='http://search.example.com' is not encrypted: expected"),
        ("https://me:secret@search.example.com", "Setting --search-url is no URL of a server: expected https://HOST"),
    ],
)
def test_a_wrong_url_is_refused(folder, command, url, message):
    told = refused(folder.run("search", command, "products", "--search-url", url))
    assert message in told
    assert "secret" not in told


@each_command
def test_credentials_that_are_refused(folder, command):
    with serving() as stub:
        stub.answer(401, b"Unauthorized")
        told = refused(folder.run("search", command, "products", "--search-url", stub.url))
    assert f"OpenSearch at {stub.url} refused a request with 401" in told
    assert "Expected credentials that it knows: STREAMFOLD_SEARCH_USER and STREAMFOLD_SEARCH_PASSWORD" in told


@each_command
def test_a_server_that_does_not_answer(folder, command):
    told = refused(folder.run("search", command, "products", "--search-url", "http://127.0.0.1:9"))
    assert "Nothing answers at http://127.0.0.1:9" in told


@each_command
def test_without_the_extra_the_command_says_what_to_install(folder, command, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opensearchpy", None)

    assert "pip install '.[search]'" in refused(folder.run("search", command, "products", *ON))


def test_purge_of_an_alias_without_a_filter_is_refused(folder, server):
    server.on("GET", "/products/_alias", {"products~000001": {"aliases": {"products": {}}}})

    told = refused(folder.run("search", "purge", "products", *ON, "--yes"))
    assert "Error: Alias 'products' has no filter on products~000001: searches would show documents of items" in told
    assert "streamfold search create INDEX --dry-run prints an alias with it." in told


def test_purge_of_an_index_where_the_alias_should_be_is_refused(folder, server):
    server.on("GET", "/products/_alias", {"products": {"aliases": {}}})

    told = refused(folder.run("search", "purge", "products", *ON, "--yes"))
    assert "Error: 'products' is an index, and has to be an alias" in told
