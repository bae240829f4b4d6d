"""What explain and show say of a row of a feed, an item with derived attributes, and a document."""

import json

import pytest

from tests.helpers.records import item, record

APPLICATION = """
from streamfold import App, Count, Document, Key, Router, Row, Sum, Table

MAIN = Table("main", ttl="expires")
ORDER = Key("ORDER#{order_id}", "META", table=MAIN)
LINE = Key("ORDER#{order_id}", "LINE#{sku}", table=MAIN)
POST = Key("AUTHOR#{author_id}", "POST#{at:datetime.seconds}#{post_id}", table=MAIN)
FOLLOW = Key("AUTHOR#{author_id}", "FOLLOWER#{reader_id}", table=MAIN)
HOME = Key("HOME#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", table=MAIN)

router = Router()


@router.attributes(LINE, of=ORDER)
def order_sums(line):
    return Row(total=Sum(line["price"]), lines=Count())


@router.feed(POST, audience=FOLLOW, into=HOME, keep_days=36500)
def timeline(post, follow):
    return Row(text=post["text"])


@router.search(ORDER, to="orders", parts=[LINE], fields={"status": "keyword", "prices": "double"})
def order_document(order, parts):
    return Document(status=order["status"], prices=[line["price"] for line in parts(LINE)])


app = App("shop", routers=[router])
"""
AT = "2026-03-01T10:00:00Z"
POST = item("AUTHOR#bob", f"POST#{AT}#p1", text="hello")
FOLLOW = item("AUTHOR#bob", "FOLLOWER#ada")
STATE = ("--state", "state.db")


@pytest.fixture
def shop(folder):
    folder.app(APPLICATION)
    folder.records(
        record(None, item("ORDER#1", "META", status="open"), 1),
        record(None, item("ORDER#1", "LINE#a", price=3), 2),
        record(None, item("ORDER#1", "LINE#b", price=4), 3),
        record(None, FOLLOW, 4),
        record(None, POST, 5),
    )
    ran = folder.run("replay", "records.jsonl", *STATE)
    assert ran.code == 0, ran.err
    return folder


def test_an_item_with_derived_attributes_is_explained_by_the_items_that_they_are_made_of(shop):
    ran = shop.run("explain", "ORDER#1", "META", *STATE)

    assert ran.code == 0, ran
    assert ran.out.startswith("ORDER#1 / META is an item with derived attributes\n\norder_sums (attributes)  lines=2  ")
    for sku, number in (("a", 2), ("b", 3)):
        (line,) = (line for line in ran.out.splitlines() if f"LINE#{sku}" in line)
        assert line.startswith("order_sums")
        assert f"{number:041d}"[-20:] in line
    assert "sum  2 contributions" in ran.out
    assert ran.out.endswith("The item shows what its items contribute.\n")


def test_an_item_whose_attributes_somebody_changed_is_explained_as_different(shop):
    from streamfold.engines import EmbeddedEngine
    from streamfold.records.values import encode

    app = shop.load()
    engine = EmbeddedEngine(app, path="state.db")
    key = ("main", "ORDER#1", "META")
    engine.put_sources([(key, {**engine.read_source(key), **encode({"total": 8})["M"]}, "99")])
    engine.close()

    ran = shop.run("explain", "ORDER#1", "META", *STATE)

    assert ran.code == 1
    assert "The item does not show what its items contribute" in ran.out


def test_derived_attributes_are_explained_as_json(shop):
    found = json.loads(shop.run("explain", "ORDER#1", "META", "--json", *STATE).out)

    (handler,) = found["handlers"]
    assert (found["kind"], handler["handler"], handler["agrees"]) == ("attributes", "order_sums", True)
    assert handler["shown"] == {"total": {"N": "7"}, "lines": {"N": "2"}}
    assert {each["item"]["key"]["SK"]["S"] for each in handler["contributions"]} == {"LINE#a", "LINE#b"}


def test_a_row_of_a_feed_is_explained_by_its_post_and_its_edge(shop):
    ran = shop.run("explain", "HOME#ada", f"{AT}#bob#p1", *STATE)

    assert ran.code == 0, ran
    first, post, edge, last = ran.out.splitlines()
    assert first == f"HOME#ada / {AT}#bob#p1 is a row of feed 'timeline', made of:"
    assert post.startswith(f"  post  AUTHOR#bob / POST#{AT}#p1, at version 00/")
    assert edge.startswith("  edge  AUTHOR#bob / FOLLOWER#ada, at version 00/")
    assert last == "Both items exist."


def test_a_row_of_a_feed_whose_post_is_gone_is_explained_as_wrong(shop):
    from streamfold.engines import EmbeddedEngine

    engine = EmbeddedEngine(shop.load(), path="state.db")
    engine.put_sources([(("main", POST["PK"], POST["SK"]), None, "99")])
    engine.close()

    ran = shop.run("explain", "HOME#ada", f"{AT}#bob#p1", *STATE)

    assert ran.code == 1
    assert "which does not exist now" in ran.out


def test_a_row_of_a_feed_that_is_not_there_is_explained_by_what_it_would_be_made_of(shop):
    found = json.loads(shop.run("explain", "HOME#eve", f"{AT}#bob#p1", "--json", *STATE).out)

    assert (found["exists"], [each["exists"] for each in found["made_of"]]) == (False, [True, False])
    assert [each["role"] for each in found["made_of"]] == ["post", "edge"]


def test_a_document_is_explained_by_its_item_its_parts_and_its_run(shop):
    ran = shop.run("explain", "ORDER#1|META", "--index", "orders", *STATE)

    assert ran.code == 0, ran
    assert ran.out.startswith(
        "ORDER#1|META is a document of index orders, made by search 'order_document'\n  version  "
    )
    assert all(f"ORDER#1 / {sort}" in ran.out for sort in ("META", "LINE#a", "LINE#b"))
    assert ran.out.endswith("The document is what its handler makes of the item now.\n")


def test_a_document_that_is_not_there_is_explained_as_json(shop):
    found = json.loads(shop.run("explain", "ORDER#2|META", "--index", "orders", "--json", *STATE).out)

    assert (found["handler"], found["version"], found["differences"]) == ("order_document", None, [])
    assert [each["exists"] for each in found["made_of"]] == [False]


def test_show_says_what_a_row_of_a_feed_was_made_of(shop):
    ran = shop.run("show", "HOME#ada", f"{AT}#bob#p1", *STATE)

    assert "is a row of feed 'timeline', made of post AUTHOR#bob / POST#" in ran.err
    assert "and edge AUTHOR#bob / FOLLOWER#ada at version 00/" in ran.err


def test_show_says_which_attributes_of_an_item_are_derived(shop):
    for more in ((), ("--source",)):
        ran = shop.run("show", "ORDER#1", "META", *STATE, *more)

        assert (
            "is an item, onto which 'order_sums' derives lines, total, made of ORDER#1 / LINE#a at version" in ran.err
        )


def test_show_says_what_documents_are_made_of(shop):
    assert "Documents of search 'order_document'" in shop.run("show", "--index", "orders", *STATE).err


def test_show_prints_json_alone(shop):
    assert shop.run("show", "HOME#ada", f"{AT}#bob#p1", "--json", *STATE).err == ""


LOOKUPS = """
from streamfold import App, Document, Key, Lookup, Router

LINE = Key("ORDER#{order_id}", "ITEM#{sku}")
NOTE = Key("ORDER#{order_id}", "ITEM#{sku}#NOTE#{note}")
PRODUCT = Key("PRODUCT#{product_id}", "META")
AGENT = Key("AGENT#{agent_id}", "META")
router = Router()


@router.search(
    LINE,
    to="lines",
    parts=[NOTE],
    fields={"name": "text"},
    lookup={"product": PRODUCT, "agent": Lookup(AGENT, optional=True)},
)
def lines(line, parts, product, agent):
    return Document(name=product["name"], notes=len(parts(NOTE)))


app = App("shop", routers=[router])
"""


@pytest.fixture
def looked_up(folder):
    folder.app(LOOKUPS)
    folder.records(
        record(None, item("ORDER#1", "ITEM#a", product_id="p", agent_id="ada"), 1),
        record(None, item("PRODUCT#p", "META", name="tea"), 2),
        record(None, item("ORDER#2", "ITEM#a", product_id="q"), 3),
    )
    ran = folder.run("replay", "records.jsonl", *STATE)
    assert ran.code == 0, ran.err
    return folder


def test_a_document_is_explained_by_what_its_item_refers_to(looked_up):
    ran = looked_up.run("explain", "ORDER#1|ITEM#a", "--index", "lines", *STATE)

    assert ran.code == 0, ran
    roles = [line.split() for line in ran.out.splitlines() if line.split()[0] in ("item", "part", "referent")]
    assert [line[0] for line in roles] == ["item", "referent", "referent"]
    assert [line[1] for line in roles] == ["ORDER#1", "PRODUCT#p", "AGENT#ada"]
    assert " ".join(roles[2]).endswith("does not exist now")
    assert ran.out.endswith("The document is what its handler makes of the item now.\n")


def test_a_document_that_lacks_for_its_referent_is_explained(looked_up):
    found = json.loads(looked_up.run("explain", "ORDER#2|ITEM#a", "--index", "lines", "--json", *STATE).out)

    assert (found["differences"], found["error"]) == ([], None)
    assert [(each["role"], each["exists"]) for each in found["made_of"]] == [("item", True), ("referent", False)]


def test_the_chart_of_routes_shows_parts_and_lookups_of_a_search(looked_up):
    (route,) = map(json.loads, looked_up.run("routes", "--json", *STATE).out.splitlines())

    assert route["parts"] == ["ORDER#{order_id} / ITEM#{sku}#NOTE#{note}"]
    assert [each.partition(":")[0] for each in route["lookups"]] == ["product", "agent"]
