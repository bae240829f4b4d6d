"""Commands on an application whose rows are made of an item, of the items of its partition, and of lists of others."""

import json
import re
from contextlib import closing

import pytest

from streamfold.engines import EmbeddedEngine
from streamfold.records.values import encode
from tests.helpers.records import item

SHOP = """
from streamfold import App, Count, Every, Key, Lookup, Newest, Router, Row

ORDER, LINE = Key("ORDER#{order_id}", "META"), Key("ORDER#{order_id}", "LINE#{sku}")
USER, LOGIN = Key("USER#{user_id}", "META"), Key("USER#{user_id}", "LOGIN#{at}")
TAG = Key("TAG#{tag}", "META")

router = Router()


@router.view(ORDER, into=Key("STATE#{state}", "ORDERS"), parts=[Every(LINE, reads=["shipped"])])
def states(order, parts):
    return Row(state="open" if any(not each["shipped"] for each in parts(LINE)) else "shipped", orders=Count())


@router.index(USER, into=Key("LOCKED#{user_id}", "LOGINS"), parts=[Newest(LOGIN, 2)], optional=True)
def locked(user, parts, user_id):
    return Row(known=user is not None, last=[each["ok"] for each in parts(LOGIN)])


@router.index(ORDER, into=Key("TAGGED#{order_id}", "TAGS"), lookup={"tags": Lookup(TAG, tag="tags", many=True)})
def tagged(order, tags):
    return Row(names=[tag["name"] for tag in tags])


app = App("shop", routers=[router])
"""


class Shop:
    """A folder with the application, and a state of its records."""

    def __init__(self, folder, source):
        self.folder, self.source = folder, source
        folder.app(SHOP)
        put = source.put
        self.records = [
            put("TAG#a", "META", name="Alpha"),
            put("TAG#b", "META", name="Beta"),
            put("ORDER#1", "META", tags=["b", "a"]),
            put("ORDER#1", "LINE#tea", shipped=False),
            put("ORDER#1", "LINE#cup", shipped=True),
            put("ORDER#2", "META", tags=["a"]),
            put("ORDER#2", "LINE#tea", shipped=True),
            put("USER#u", "META", name="ada"),
            *(put("USER#u", f"LOGIN#{number}", ok=number % 2 == 0) for number in range(4)),
            *(put("USER#v", f"LOGIN#{number}", ok=False) for number in range(2)),
        ]
        ran = self.replay()
        assert ran.code == 0, ran.err

    def replay(self, *more):
        return self.folder.run("replay", self.folder.records(*self.records), "--state", "state.db", "--fresh", *more)

    def lose(self, partition, sort, **attributes):
        """An item changes, or goes without attributes, and the record is lost."""
        with closing(EmbeddedEngine(self.folder.load().tables.values(), "state.db")) as engine:
            image = encode(item(partition, sort, **attributes))["M"] if attributes else None
            engine.put_sources([(("main", partition, sort), image, "9" * 40)])

    def run(self, *arguments):
        return self.folder.run(*arguments, "--state", "state.db")

    def row(self, key):
        found = self.folder.rows("--state", "state.db").get(key)
        return found and {name: value for name, value in found.items() if name not in ("PK", "SK")}


@pytest.fixture
def shop(folder, source):
    return Shop(folder, source)


LOST = {
    "a part": (("ORDER#2", "LINE#tea", False), "STATE#open / ORDERS", {"orders": {"N": "2"}}),
    "a part of an absent root": (
        ("USER#v", "LOGIN#2", True),
        "LOCKED#v / LOGINS",
        {"known": {"BOOL": False}, "last": {"L": [{"BOOL": False}, {"BOOL": True}]}},
    ),
    "a referent of a list": (
        ("TAG#a", "META", "New"),
        "TAGGED#1 / TAGS",
        {"names": {"L": [{"S": "Beta"}, {"S": "New"}]}},
    ),
}
ATTRIBUTES = {"LINE": "shipped", "LOGIN": "ok", "META": "name"}


@pytest.fixture(params=LOST)
def lost(request, shop):
    """A shop that lost the record of an item; the item's key, the row that is wrong, and what the row should show."""
    (partition, sort, value), row, expected = LOST[request.param]
    shop.lose(partition, sort, **{ATTRIBUTES[sort.partition("#")[0]]: value})
    assert shop.row(row) != expected
    return shop, (partition, sort), row, expected


def test_a_repair_of_what_lost_its_record_corrects_the_rows_made_with_it(lost):
    shop, key, row, expected = lost
    planned = shop.run("repair", "--key", *key, "--dry-run")
    assert (planned.code, "Nothing was written" in planned.out) == (0, True), planned.err
    assert shop.row(row) != expected
    ran = shop.run("repair", "--key", *key)
    assert (ran.code, shop.row(row)) == (0, expected), ran.err
    assert shop.run("verify", "--full").code == 0


@pytest.mark.parametrize("what", ["verify", "verify --full --repair", "rebuild states locked tagged"])
def test_what_a_lost_record_left_is_found_and_corrected(lost, what):
    shop, _, row, expected = lost
    ran = shop.run(*what.split())
    assert ran.code == (0 if what.startswith("rebuild") else 1), ran.out
    if what == "verify":
        assert ", 1 different," in ran.out or ", 2 different," in ran.out
    else:
        assert shop.row(row) == expected
        assert shop.run("verify", "--full").code == 0


def test_explain_names_the_parts_of_a_root_and_what_it_refers_to(shop):
    ran = shop.run("explain", "--item", "ORDER#1", "META")
    assert ran.code == 0
    assert (
        "  parts    2 of ORDER#{order_id} / LINE#{sku}, of which shipped counts: ORDER#1 / LINE#cup, ORDER#1 / LINE#tea"
        in ran.out.splitlines()
    )
    assert "  refers   TAG#b / META" in ran.out.splitlines()
    found = {
        each["handler"]: each
        for each in json.loads(shop.run("explain", "--item", "ORDER#1", "META", "--json").out)["handlers"]
    }
    assert [each["key"]["SK"]["S"] for each in found["states"]["parts"][0]["read"]] == ["LINE#cup", "LINE#tea"]
    assert [each["key"]["PK"]["S"] for each in found["tagged"]["refers_to"]] == ["TAG#b", "TAG#a"]


def test_explain_names_few_of_many_parts(shop):
    for number in range(12):
        shop.lose("ORDER#1", f"LINE#{number:02}", shipped=True)
    (line,) = (each for each in shop.run("explain", "--item", "ORDER#1", "META").out.splitlines() if "  parts" in each)
    assert (line.count("LINE#"), line.endswith("ORDER#1 / LINE#09, and 4 more")) == (11, True)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("ORDER#1", "LINE#tea"), "states (view) gathers it into ORDER#1 / META"),
        (
            ("ORDER#9", "LINE#tea"),
            "states (view) gathers it into ORDER#9 / META, which does not exist: nothing is made of it",
        ),
        (("USER#u", "LOGIN#0"), "locked (index) gathers it into USER#u / META, not among the newest 2"),
        (("USER#u", "LOGIN#3"), "locked (index) gathers it into USER#u / META, among the newest 2"),
        (("USER#v", "LOGIN#0"), "locked (index) gathers it into USER#v / META, which does not exist"),
        (("TAG#a", "META"), "tagged (index) looks it up for 2 items: ORDER#1 / META, ORDER#2 / META"),
    ],
)
def test_explain_says_what_a_part_or_a_referent_is_read_for(shop, key, expected):
    ran = shop.run("explain", "--item", *key)
    assert (ran.code, expected in ran.out.splitlines()) == (0, True), ran.out
    found = json.loads(shop.run("explain", "--item", *key, "--json").out)
    (said,) = found.get("gathered_into") or found["looked_up_by"]
    assert said["handler"] == expected.split()[0]
    if "newest 2" in expected:
        assert said["read"] is ("not among" not in expected)


def test_explain_says_why_the_parts_of_a_root_cannot_be_read(shop, monkeypatch):
    monkeypatch.setattr("streamfold.commit.collections.PARTS_MAX", 1)
    ran = shop.run("explain", "--item", "ORDER#1", "LINE#tea")
    assert "gathers it into ORDER#1 / META: Unprocessable: view 'states' would gather over 1 parts" in ran.out
    assert shop.run("explain", "--item", "ORDER#1", "META").code == 1


def test_routes_mark_what_a_change_of_a_part_reads(shop):
    found = {each["handler"]: each for each in shop.folder.run("routes", "--json").objects()}
    assert {name: each.get("reads") for name, each in found.items()} == {
        "states": "every part",
        "locked": "the newest parts, also without the item",
        "tagged": None,
    }
    assert found["tagged"]["lookups"] == ["tags: main: TAG#{tag} / META, tag=each of tags"]
    assert "states  (reads every part, view, guard ledger" in shop.folder.run("routes").out


def test_the_graph_draws_parts_and_referents(shop):
    drawn = shop.folder.run("graph").out
    names = {name: node for node, name in re.findall(r'(n\d+)[(\[]+"([^"<]+)', drawn)}
    for key, arrow, handler in (
        ("ORDER#{order_id} / LINE#{sku}", "-->", "states"),
        ("USER#{user_id} / LOGIN#{at}", "-->", "locked"),
        ("TAG#{tag} / META", "-.->", "tagged"),
    ):
        assert f"{names[key]} {arrow} {names[handler]}" in drawn
