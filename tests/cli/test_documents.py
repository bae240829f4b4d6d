"""Documents on the command line: what replays, dry runs, redrives and ``show --index`` do with them."""

import json
from pathlib import Path

import boto3
import pytest

from tests.helpers.failures import parked_document
from tests.helpers.tables import make_table
from tests.search.scripted import Scripted, bulk

STATE = ("--state", "state.db")
URL = "http://127.0.0.1:9200"
SHOP = """
from pathlib import Path

from streamfold import App, Count, Document, Key, Router, Row, Sum

PRODUCT = Key("PRODUCT#{product_id}", "METADATA")
ORDER = Key("ORDER#{order_id}", "METADATA")
LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
SONG = Key("TENANT#{tenant}", "SONG#{song}")
router = Router()


@router.search(PRODUCT, to="products", fields={"title": "text"}, on_error="park")
def product(item):
    if item["title"] == "broken" and not Path("mended").exists():
        raise LookupError("no title")
    if "secret" not in item:
        yield Document(title=item["title"], price=item["price"])


@router.view(LINE, into=TOTAL)
def total(line):
    yield Row(total=Sum(line["price"]))


@router.search(ORDER, parts=[LINE, TOTAL], to="orders", fields={"total": "long"}, on_error="park")
def order(item, parts):
    if "broken" in item and not Path("mended").exists():
        raise LookupError("no order")
    yield Document(total=parts.one(TOTAL).get("total", 0), skus=[line.key["sku"] for line in parts(LINE)])


@router.search(SONG, to="songs-{tenant}", id="{tenant}#{song}#{language}", fields={"title": "text"})
def song(item):
    for language, title in item["titles"].items():
        yield Document(language=language, title=title)


app = App("shop", routers=[router])
"""
NO_SEARCH = SHOP.split("@router.search", maxsplit=1)[0] + 'app = App("shop", routers=[router])\n'
FILTERED = {"filter": {"bool": {"must_not": [{"exists": {"field": "_sf_gone"}}]}}}


@pytest.fixture
def folder(folder):
    folder.app(SHOP)
    return folder


@pytest.fixture
def records(source):
    return [
        source.put("PRODUCT#1", title="Lamp", price=10),
        source.put("PRODUCT#2", title="Chair", price=20),
        source.remove("PRODUCT#2"),
        source.put("ORDER#7", "LINE#a", price=3),
        source.put("ORDER#7", status="open"),
        source.put("TENANT#Acme", "SONG#1", titles={"en": "one", "de": "eins"}),
    ]


@pytest.fixture
def state(folder, records):
    """A folder with a state in which the records were replayed."""
    folder.run("replay", folder.records(*records), *STATE)
    return folder


@pytest.fixture
def server(monkeypatch):
    """A server that has an alias of each index, and takes each document."""
    scripted = Scripted()
    for name in ("products", "orders", "songs-%41cme"):
        aliases = {f"{name}~000001": {"aliases": {name: FILTERED}}}
        scripted.on("GET", f"/{name.replace('%', '%25')}/_alias", aliases)
    scripted.on("POST", "/_bulk", bulk(201))
    monkeypatch.setattr("streamfold.derivations.search.opensearch._transport", lambda *_: scripted)
    return scripted


def documents(folder, index, *more):
    """The documents that ``show --index --json`` prints, by id."""
    ran = folder.run("show", "--index", index, "--json", *more)
    assert ran.code == 0, ran.err
    return {line["id"]: line["document"] for line in map(json.loads, ran.out.splitlines())}


class TestShow:
    def test_documents_are_those_that_a_search_may_find(self, state):
        assert documents(state, "products", *STATE) == {"PRODUCT#1|METADATA": {"title": "Lamp", "price": 10}}
        assert documents(state, "orders", *STATE) == {"ORDER#7|METADATA": {"total": 3, "skus": ["a"]}}

    @pytest.mark.parametrize("name", ["songs-Acme", "songs-%41cme"])
    def test_an_index_of_a_template_is_named_with_its_values(self, state, name):
        assert set(documents(state, name, *STATE)) == {"Acme#1#de", "Acme#1#en"}

    def test_real_names_are_those_of_the_settings(self, folder, records, monkeypatch):
        monkeypatch.setenv("STREAMFOLD_INDEX_PRODUCTS", "prod-products")
        folder.run("replay", folder.records(*records), *STATE)

        assert documents(folder, "products", *STATE) == documents(folder, "prod-products", *STATE) != {}

    def test_a_person_gets_a_table(self, state):
        ran = state.run("show", "--index", "products", *STATE)

        assert [line.split() for line in ran.out.splitlines()] == [
            ["id", "document"],
            ["PRODUCT#1|METADATA", "price=10", "title=Lamp"],
        ]

    def test_hidden_documents_are_shown_when_asked_for(self, state):
        ran = state.run("show", "--index", "products", *STATE, "--hidden")

        assert "PRODUCT#2|METADATA  hidden since 2" in ran.out
        gone = json.loads(state.run("show", "--index", "products", *STATE, "--hidden", "--json").out.splitlines()[1])
        assert (gone["id"], gone["document"], gone["hidden_at"][-1]) == ("PRODUCT#2|METADATA", {}, "Z")

    def test_raw_shows_the_frameworks_own_fields(self, state):
        assert set(documents(state, "products", *STATE, "--raw")["PRODUCT#1|METADATA"]) == {"title", "price", "_sf_h"}
        assert "_sf_h=" in state.run("show", "--index", "products", *STATE, "--raw").out

    def test_digits_of_numbers_stay(self, folder, source):
        folder.run("replay", folder.records(source.put("PRODUCT#1", title="x", price=10**37 + 1)), *STATE)

        assert f'"price":{10**37 + 1}}}' in folder.run("show", "--index", "products", *STATE, "--json").out

    def test_limit_is_kept_and_what_is_left_out_is_said(self, state, monkeypatch):
        assert len(documents(state, "songs-Acme", *STATE, "--limit", 1)) == 1
        monkeypatch.setattr("streamfold.cli.output.LIMIT_ON_TERMINAL", 1)
        monkeypatch.setattr("streamfold.cli.output.on_terminal", lambda: True)

        ran = state.run("show", "--index", "songs-Acme", *STATE)

        assert len(ran.out.splitlines()) == 2
        assert ran.err.startswith(
            "... and more: the first 1 are shown; --limit N or --json shows others.\nDocuments of "
        )

    def test_nothing_to_show_is_said(self, state):
        ran = state.run("show", "--index", "songs-other", *STATE)

        assert (ran.code, ran.out, ran.err) == (0, "", "No documents.\n")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--index", "product"), "Index 'product' is not known: expected products, orders, songs-{tenant}."),
            (("--index", "products", "PRODUCT#1"), "--index shows documents: leave out PARTITION, --source,"),
            (("--index", "products", "--source"), "--index shows documents: leave out PARTITION, --source,"),
            (("--hidden",), "--hidden and --search-url belong to --index."),
            (("--search-url", URL), "--hidden and --search-url belong to --index."),
            (("--index", "products", "--engine", "dynamodb"), "No search server is named: expected --search-url https"),
            (("--index", "products", "--search-url", "x"), "Setting --search-url is no URL of a server"),
        ],
    )
    def test_what_cannot_be_shown_is_refused(self, state, arguments, message):
        ran = state.run("show", *arguments, *STATE)

        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err

    def test_an_alias_of_a_server_without_a_filter_is_refused(self, folder, server):
        server.on("GET", "/products/_alias", {"products~000001": {"aliases": {"products": {}}}})

        ran = folder.run("show", "--index", "products", "--search-url", URL)

        assert ran.code == 2
        assert "Error: Alias 'products' has no filter on products~000001" in ran.err


def test_explain_of_a_part_names_the_item_whose_document_gathers_it(state):
    ran = state.run("explain", "--item", "ORDER#7", "LINE#a", *STATE)
    assert (ran.code, "order (search) gathers it into the documents of ORDER#7 / METADATA" in ran.out) == (0, True)
    found = json.loads(state.run("explain", "--item", "ORDER#7", "LINE#a", "--json", *STATE).out)["handlers"]
    assert {each["handler"]: each["root"]["key"]["SK"]["S"] for each in found if "root" in each} == {
        "order": "METADATA"
    }
    ran = state.run("explain", "--item", "ORDER#7", "METADATA", *STATE)
    assert "gathers it" not in ran.out


class TestReplay:
    def test_documents_are_shown_under_their_index(self, folder, records):
        ran = folder.run("replay", folder.records(*records), *STATE)

        assert ran.code == 0, ran.err
        lines = [line.rstrip() for line in ran.out.splitlines()]
        first = lines.index("index products  (product)")
        assert lines[first + 1 : first + 3] == [
            "id                  document",
            "PRODUCT#1|METADATA  price=10  title=Lamp",
        ]
        songs = lines.index("index songs-{tenant}  (song)")
        assert [line.split() for line in lines[songs + 1 : songs + 3]] == [
            ["index", "id", "document"],
            ["songs-%41cme", "Acme#1#de", "language=de", "title=eins"],
        ]

    def test_a_replay_in_memory_shows_them_too(self, folder, records):
        assert "PRODUCT#1|METADATA  price=10  title=Lamp" in folder.run("replay", folder.records(*records)).out

    def test_an_index_without_documents_is_told_where_its_handler_had_records(self, folder, source):
        ran = folder.run("replay", folder.records(source.put("PRODUCT#1", title="x", price=1, secret=True)), *STATE)

        assert "index products  (product)\nno documents" in ran.out
        assert "index orders" not in ran.out

    @pytest.mark.parametrize(("samples", "count"), [("0", 0), ("1", 3), ("9", 4)])
    def test_json_has_as_many_as_are_asked_for(self, folder, records, samples, count):
        ran = folder.run("replay", folder.records(*records), *STATE, "--json", "--samples", samples)

        found = json.loads(ran.out).get("documents", [])
        assert len(found) == count
        assert all(set(each) == {"index", "id", "version", "document"} for each in found)

    def test_the_next_command_is_told(self, folder, records):
        out = folder.run("replay", folder.records(*records), *STATE).out

        assert "streamfold show --index products --state state.db    prints documents" in out

    def test_no_documents_are_offered_where_there_are_none(self, folder, source):
        out = folder.run("replay", folder.records(source.put("OTHER#1")), *STATE).out

        assert "Next: streamfold routes    prints the key chart\n" in out
        assert "streamfold show" not in out

    def test_the_first_search_that_has_documents_is_offered(self, folder, source):
        out = folder.run("replay", folder.records(source.put("ORDER#7", status="open")), *STATE).out

        assert "Next: streamfold show --index orders --state state.db    prints documents\n" in out

    def test_documents_go_to_a_server(self, folder, source, server):
        ran = folder.run(
            "replay", folder.records(source.put("PRODUCT#1", title="x", price=1)), *STATE, "--search-url", URL
        )

        assert ran.code == 0, ran.err
        ((head, body),) = server.sent("POST", "/_bulk")
        assert (head["index"]["_index"], head["index"]["_id"]) == ("products", "PRODUCT#1|METADATA")
        assert body["title"] == "x"
        assert documents(folder, "products", *STATE) == {}
        assert f"show --index products --search-url {URL}    prints documents" in ran.out

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (("--search-url", URL, "--dry-run"), "--search-url writes to a server, and --dry-run writes nothing: give"),
            (("--search-url", URL, "--chaos"), "--search-url"),
            (("--search-url", "http://search.example.com"), "is not encrypted: expected https://HOST. Plain http is"),
            (("--search-url", "https://search.example.com"), "Nobody can be asked for confirmation here: give --yes"),
        ],
    )
    def test_what_cannot_be_is_refused(self, folder, records, more, message):
        ran = folder.run("replay", folder.records(*records), *more)

        assert ran.code == 2
        assert message in ran.err

    def test_where_documents_go_is_said_before_a_server_is_written_to(self, folder, source, server):
        file = folder.records(source.put("PRODUCT#1", title="x", price=1))

        ran = folder.run("replay", file, "--search-url", "https://search.example.com", "--yes")

        assert ran.code == 0
        assert ran.err == "This writes documents to https://search.example.com.\n"

    def test_an_application_without_a_search_has_no_documents_to_send(self, folder, records, server):
        folder.app(NO_SEARCH)

        ran = folder.run("replay", folder.records(*records), "--search-url", URL)

        assert ran.code == 2
        assert ran.err == "Error: --search-url is the server of documents: the application has no search.\n"

    @pytest.mark.parametrize(
        ("aliases", "message"),
        [
            (404, "Alias 'products' does not exist. Expected one: streamfold search create INDEX makes it."),
            ({"products": {"aliases": {}}}, "'products' is an index, and has to be an alias"),
            ({"products~000001": {"aliases": {"products": {}}}}, "Alias 'products' has no filter on products~000001"),
            (401, "Expected credentials that it knows"),
        ],
    )
    def test_an_index_that_is_not_as_it_has_to_be_stops_the_replay(self, folder, source, server, aliases, message):
        server.on("GET", "/products/_alias", aliases)

        ran = folder.run("replay", folder.records(source.put("PRODUCT#1", title="x", price=1)), "--search-url", URL)

        assert ran.code == 2
        assert message in ran.err
        assert server.sent("POST", "/_bulk") == []

    def test_a_run_under_faults_proves_documents(self, folder, records):
        ran = folder.run("replay", folder.records(*records), "--chaos", "--runs", "3")

        assert ran.code == 0, ran.err
        assert "0 diverged" in ran.out


class TestDryRun:
    def test_documents_are_printed(self, folder, records):
        ran = folder.run("replay", folder.records(*records), "--dry-run")

        lines = ran.out.splitlines()
        assert "product: document PRODUCT#1|METADATA of index products: title=Lamp, price=10" in lines
        assert "product: hide document PRODUCT#2|METADATA of index products" in lines
        assert "order: document of ORDER#7 / METADATA and its parts" in lines
        assert "song: document Acme#1#en of index songs-%41cme: language=en, title=one" in lines

    def test_json_has_the_same_lines(self, folder, records):
        plan, _ = map(
            json.loads, folder.run("replay", folder.records(*records), "--dry-run", "--json").out.splitlines()
        )

        assert "product: document PRODUCT#1|METADATA of index products: title=Lamp, price=10" in plan["deferred"]

    def test_items_with_several_documents_are_hidden_whole(self, folder, source):
        records = [source.put("TENANT#Acme", "SONG#1", titles={"en": "one"}), source.remove("TENANT#Acme", "SONG#1")]

        out = folder.run("replay", folder.records(*records), "--dry-run").out

        assert out.startswith("song: hide all documents of TENANT#Acme / SONG#1 of index songs-%41cme\n")

    def test_documents_that_are_not_kept_are_deleted(self, folder, source):
        folder.app(SHOP.replace('to="products"', 'to="products", deletes="removed"'))

        records = [source.put("PRODUCT#1", title="x", price=1), source.remove("PRODUCT#1")]

        out = folder.run("replay", folder.records(*records), "--dry-run").out

        assert out.startswith("product: delete document PRODUCT#1|METADATA of index products\n")

    def test_an_unknown_image_names_the_item(self, folder, source):
        record = source.put("PRODUCT#1", title="x", price=1)
        del record["dynamodb"]["NewImage"]

        out = folder.run("replay", folder.records(record), "--dry-run").out

        assert out.startswith("product: document of PRODUCT#1 / METADATA\n")

    def test_a_handler_that_fails_is_told_of(self, folder, source):
        out = folder.run("replay", folder.records(source.put("PRODUCT#1", title="broken", price=1)), "--dry-run").out

        assert out.startswith("product: document of PRODUCT#1 / METADATA, which fails: LookupError: no title\n")

    def test_control_characters_do_not_reach_the_terminal(self, folder, source):
        out = folder.run("replay", folder.records(source.put("PRODUCT#\x1b", title="\x1b", price=1)), "--dry-run").out

        assert "\x1b" not in out
        assert r"document PRODUCT#\x1b|METADATA of index products: title=\x1b" in out


class TestRoutes:
    def test_index_and_parts_are_shown(self, folder):
        routes = {row["handler"]: row for row in map(json.loads, folder.run("routes", "--json").out.splitlines())}

        assert routes["product"]["targets"] == ["index products"]
        assert routes["order"]["parts"] == ["ORDER#{order_id} / LINE#{sku}", "ORDER#{order_id} / TOTAL"]
        assert "parts" not in routes["product"]
        assert (routes["song"]["targets"], routes["song"]["guard"]) == (["index songs-{tenant}"], "bump before read")

    def test_the_table_has_a_column_for_parts_where_there_are_any(self, folder):
        headings = folder.run("routes").out.splitlines()[0].split()

        assert headings[:4] == ["sources", "parts", "reads", "handler"]
        folder.app(NO_SEARCH + "router.audit(PRODUCT, name='audit')\n")
        assert "parts" not in folder.run("routes").out

    def test_the_index_of_a_search_that_takes_over_another_is_its_own(self, folder):
        folder.app(SHOP.replace('to="songs-{tenant}"', 'to="products", name="product_2", replaces="product"'))

        targets = [row["targets"] for row in map(json.loads, folder.run("routes", "--json").out.splitlines())]

        assert targets[-1] == ["index products~next"]

    def test_a_key_of_a_part_names_the_search(self, folder):
        ran = folder.run("routes", "--key", "ORDER#7", "LINE#a")

        assert ran.out == "ORDER#{order_id} / LINE#{sku}  order_id=7 sku=a  -> total, order\n"


class TestRedrive:
    @pytest.fixture
    def broken(self, folder, source):
        """A state with records of an item and of a part parked, whose cause is corrected since."""
        records = [
            source.put("PRODUCT#1", title="broken", price=1),
            source.put("ORDER#7", broken=True),
            source.put("ORDER#7", "LINE#a", price=3),
        ]
        folder.run("replay", folder.records(*records), *STATE, "--park", "parked.jsonl")
        assert {each["handler"] for each in parked(folder)} == {"product", "order"}
        Path("mended").write_text("")
        return folder

    def test_a_parked_record_is_redriven_and_the_document_follows(self, broken):
        assert documents(broken, "products", *STATE) == documents(broken, "orders", *STATE) == {}

        ran = broken.run("redrive", "parked.jsonl", *STATE, "--apply")

        assert ran.code == 0, ran.out + ran.err
        assert documents(broken, "products", *STATE) == {"PRODUCT#1|METADATA": {"title": "broken", "price": 1}}
        assert documents(broken, "orders", *STATE) == {"ORDER#7|METADATA": {"total": 3, "skus": ["a"]}}

    def test_nothing_is_written_without_apply(self, broken):
        ran = broken.run("redrive", "parked.jsonl", *STATE, "--json")

        assert {json.loads(line).get("outcome") for line in ran.out.splitlines()[:-1]} == {"applied"}
        assert documents(broken, "products", *STATE) == {}

    def test_an_old_record_leads_to_the_item_as_it_is(self, folder, source):
        old = source.put("PRODUCT#1", title="old", price=1)
        folder.run("replay", folder.records(old, source.put("PRODUCT#1", title="new", price=2)), *STATE)
        folder.write("parked.json", json.dumps(parked_document(old, "product")))

        ran = folder.run("redrive", "parked.json", *STATE, "--apply")

        assert ran.code == 0, ran.err
        assert documents(folder, "products", *STATE)["PRODUCT#1|METADATA"]["title"] == "new"

    def test_documents_go_to_a_server(self, broken, server):
        ran = broken.run("redrive", "parked.jsonl", *STATE, "--apply", "--search-url", URL)

        assert ran.code == 0, ran.err
        ids = [lines[0]["index"]["_id"] for lines in server.sent("POST", "/_bulk")]
        assert set(ids) == {"PRODUCT#1|METADATA", "ORDER#7|METADATA"}
        assert documents(broken, "products", *STATE) == {}

    def test_a_server_is_written_to_only_after_it_was_said(self, broken, server):
        asked = ("redrive", "parked.jsonl", *STATE, "--search-url", "https://search.example.com")

        assert broken.run(*asked).code == 0
        ran = broken.run(*asked, "--apply")
        assert (ran.code, server.sent("POST", "/_bulk")) == (2, [])
        assert "Nobody can be asked for confirmation here: give --yes to go on." in ran.err
        assert broken.run(*asked, "--apply", "--yes").code == 0


class TestRedriveOnDynamoDB:
    """What is said before anything is written (tests/on_local has the rest)."""

    ASKED = ("redrive", "parked.json", "--engine", "dynamodb", "--table", "main=main", "--yes")

    @pytest.fixture
    def given_up(self, folder, source, aws):
        """A table with an item, and the record of that item, parked."""
        client = boto3.client("dynamodb")
        make_table(client, "main", {"PK": "S", "SK": "S"})
        make_table(client, "shop-state", {"pk": "S", "sk": "S"})
        record = source.put("PRODUCT#1", title="as it is", price=1)
        client.put_item(TableName="main", Item=record["dynamodb"]["NewImage"])
        folder.write("parked.json", json.dumps(parked_document(record, "product")))
        return folder

    def test_where_documents_are_written_is_said(self, given_up, server, monkeypatch):
        monkeypatch.setenv("STREAMFOLD_SEARCH", "https://search.example.com")

        ran = given_up.run(*self.ASKED, "--apply")

        assert "This writes documents to https://search.example.com.\n" in ran.err

    def test_without_a_server_the_record_fails_and_stays(self, given_up):
        ran = given_up.run(*self.ASKED, "--apply")

        assert ran.code == 1
        assert (
            "Search 'product' has no server to write to: expected STREAMFOLD_SEARCH=https://..., or --search-url of a "
            "command."
        ) in ran.err
        assert (given_up.path / "parked.json").exists()


def parked(folder):
    return [json.loads(line) for line in (folder.path / "parked.jsonl").read_text().splitlines()]


def test_a_search_has_no_rows_to_show_and_says_where_its_documents_are(state):
    ran = state.run("show", *STATE, "--handler", "product")
    assert ran.err.endswith("is of kind search and writes no rows. Documents are shown with --index.\n")
