"""Commands on an application whose rows are made of an item, of the items of its partition, and of lists of others."""

import json
import re
from contextlib import closing

import pytest

from streamfold.cli.dev_fold import Edition, KnownRows, Order
from streamfold.engines import EmbeddedEngine
from streamfold.records.values import encode
from streamfold.replay.files import RecordedFiles
from streamfold.writes.guarded import DeleteState, StateKey
from tests.helpers.exports import write_export
from tests.helpers.failures import parked_document
from tests.helpers.records import item
from tests.helpers.source import Source

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


def test_explain_names_a_backlink_that_is_lost_as_verify_does(shop):
    with closing(EmbeddedEngine(shop.folder.load(), "state.db")) as engine:
        (link,) = (
            StateKey(each["pk"]["S"], each["sk"]["S"])
            for each in engine.state_items()
            if each["pk"]["S"].startswith("refs#shop#tagged#") and "TAG#b" in each["pk"]["S"]
        )
        engine.transact([DeleteState(link)], 0)
    ran = shop.run("explain", "--item", "ORDER#1", "META")
    assert (ran.code, "tagged (index) differs" in ran.out.splitlines()) == (1, True), ran.out
    assert "  lacking  the backlink of TAG#b / META, whose changes do not reach the item: repair puts it" in ran.out
    found = json.loads(shop.run("explain", "--item", "ORDER#1", "META", "--json").out)["handlers"]
    (lacking,) = (each["without_backlink"] for each in found if "without_backlink" in each)
    assert [each["key"]["PK"]["S"] for each in lacking] == ["TAG#b"]
    assert shop.run("repair", "--key", "ORDER#1", "META").code == 0
    assert shop.run("explain", "--item", "ORDER#1", "META").code == 0


def test_explain_says_why_the_parts_of_a_root_cannot_be_read(shop, monkeypatch):
    monkeypatch.setattr("streamfold.commit.collections.PARTS_MAX", 1)
    ran = shop.run("explain", "--item", "ORDER#1", "LINE#tea")
    assert "\n\nstates (view) gathers it into ORDER#1 / META: Unprocessable: view 'states' would gather" in ran.out
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


def exported(shop, *more):
    """The items of the shop's table, and those of its state."""
    with closing(EmbeddedEngine(shop.folder.load().tables.values(), "state.db")) as engine:
        table = shop.folder.load().tables["main"]
        places = {"main": engine.items(table), "state": engine.state_items()}
        tables = {"main": "shop", "state": "shop-state"}
        given = [
            f"--export={name}=" + write_export(shop.folder.path / name, list(items), files=2, table=tables[name])
            for name, items in places.items()
        ]
    return shop.folder.run("verify", *given, *more)


def test_exports_that_agree_are_equal(shop):
    ran = exported(shop)
    assert ran.code == 0, ran.out
    assert " 0 different, 0 moving; a handler failed on 0 items." in ran.out.splitlines()[0]


def test_exports_tell_of_a_lost_record_and_their_report_is_repaired(lost):
    shop, _, row, expected = lost
    ran = exported(shop, "--json")
    found = json.loads(ran.out)
    wrong = {" / ".join(each["key"][name]["S"] for name in ("PK", "SK")) for each in found["rows"]["different"]}
    assert (ran.code, row in wrong) == (1, True)
    shop.folder.write("report.json", ran.out)
    assert shop.run("repair", "--from-verify", "report.json").code == 0
    assert shop.row(row) == expected
    assert exported(shop).code == 0


PARKS = SHOP.replace("parts=[Every(LINE", 'on_error="park", parts=[Every(LINE').replace(
    "def states(order, parts):",
    """def states(order, parts):
    if not Path("corrected").exists() and any(line.key["sku"] == "odd" for line in parts(LINE)):
        raise LookupError("an odd line")""",
)


def test_a_root_that_a_change_of_a_part_parked_is_redriven(shop):
    shop.folder.app(PARKS.replace("from streamfold", "from pathlib import Path\n\nfrom streamfold", 1))
    shop.records.append(shop.source.put("ORDER#2", "LINE#odd", shipped=False))
    shop.records.append(shop.source.put("ORDER#2", "LINE#odd", shipped=False, note="again"))
    ran = shop.replay("--park", "parked.jsonl", "--batch-size", 1)
    assert (ran.code, shop.row("STATE#shipped / ORDERS")["orders"]) == (1, {"N": "1"})
    parked = [json.loads(line) for line in (shop.folder.path / "parked.jsonl").read_text("utf-8").splitlines()]
    assert len({json.dumps(each["record"], sort_keys=True) for each in parked}) == 1  # of the root, under one name
    shop.folder.write("corrected", "")
    ran = shop.run("redrive", "parked.jsonl", "--apply")
    assert ran.code == 0, ran.out + ran.err
    assert (shop.row("STATE#shipped / ORDERS"), shop.row("STATE#open / ORDERS")) == (None, {"orders": {"N": "2"}})
    assert shop.run("verify", "--full").code == 0


@pytest.mark.parametrize("version", ["0", "2026-03-01T09:00:00.000000Z"])
def test_an_item_that_a_part_or_a_moment_visited_is_redriven_whatever_names_the_visit(shop, version):
    shop.lose("ORDER#2", "META", tags=[])
    visited = {"visited": {"table": "main", "Keys": {"PK": {"S": "ORDER#2"}, "SK": {"S": "META"}}}}
    document = parked_document(shop.records[0], handler="tagged") | {"record": visited, "version": version}
    shop.folder.write("parked.jsonl", json.dumps(document) + "\n")
    ran = shop.run("redrive", "parked.jsonl", "--apply")
    assert (ran.code, shop.row("TAGGED#2 / TAGS")) == (0, {"names": {"L": []}}), ran.out + ran.err


def test_a_part_whose_own_record_was_parked_is_redriven_to_its_root(shop):
    shop.lose("ORDER#2", "LINE#tea", shipped=False)
    document = parked_document(shop.source.put("ORDER#2", "LINE#tea", shipped=False), handler="states")
    shop.folder.write("parked.jsonl", json.dumps(document) + "\n")
    ran = shop.run("redrive", "parked.jsonl", "--apply")
    assert (ran.code, shop.row("STATE#open / ORDERS")) == (0, {"orders": {"N": "2"}}), ran.out + ran.err


def test_a_handler_with_parts_is_retired_with_the_rows_of_absent_roots(shop):
    ran = shop.run("retire", "locked", "--rows", "remove")
    assert (ran.code, shop.row("LOCKED#v / LOGINS"), shop.row("LOCKED#u / LOGINS")) == (0, None, None), ran.err
    assert shop.row("STATE#open / ORDERS") == {"orders": {"N": "1"}}


def test_a_replay_warns_once_of_parts_that_were_there_before_the_records(shop):
    warning = "Handlers states gather parts, and items were there before the records: parts that no record shows"
    assert warning not in shop.replay().err
    shop.records = shop.records[3:]  # the order's first record is a change now
    shop.records = [shop.source.put("ORDER#1", f"LINE#{sku}", shipped=True) for sku in ("tea", "cup")]
    assert shop.replay().err.count(warning) == 1


def test_a_million_records_cost_the_reads_of_their_collections(shop):
    def read_units(lines):
        source = Source()
        records = [source.put("ORDER#1", "META", tags=[])]
        records += [source.put("ORDER#1", f"LINE#{number}", shipped=True, text="x" * 200) for number in range(lines)]
        ran = shop.folder.run("replay", shop.folder.records(*records), "--cost", "--json")
        assert ran.code == 0, ran.err
        found = json.loads(ran.out)
        assert "states" in found["saved_without"]
        return found["batches"]["1"]["read_units"] * len(records) / 1e6

    few, many = read_units(4), read_units(40)
    # A visit reads the root and the ledger item, a unit each; n lines of 230 bytes in 4 KB blocks beside them.
    blocks = sum(-(-230 * number // 4096) for number in range(1, 41))
    assert 40 * 2 + blocks - 4 <= many <= 40 * 4 + blocks + 8, (few, many)


def test_diff_compares_rows_of_roots_with_their_parts_also_of_absent_roots(shop):
    shop.folder.write("before/handlers.py", SHOP.replace("for each in parts(LOGIN)]", "for each in parts(LOGIN)][:1]"))
    ran = shop.run("diff", "--old", "handlers:app@./before", "--json")
    found = json.loads(ran.out)
    changed = {(each["handler"], each["row"]["key"]["PK"]["S"]) for each in found["changes"]}
    assert (ran.code, changed) == (1, {("locked", "LOCKED#u"), ("locked", "LOCKED#v")}), ran.err
    assert shop.run("diff", "--old", "handlers:app@.").code == 0


def test_diff_says_that_it_leaves_out_rows_of_absent_roots_that_only_the_old_code_makes(shop):
    shop.folder.write("before/handlers.py", SHOP)
    shop.folder.app(SHOP.replace(", optional=True", ""))
    ran = shop.run("diff", "locked", "--old", "handlers:app@./before")
    assert "calls handler 'locked' without its item too (optional=True): the rows of absent items" in ran.err
    shop.folder.app(SHOP)
    assert "without its item too" not in shop.run("diff", "locked", "--old", "handlers:app@./before").err


DERIVED = SHOP.replace(
    "app = App",
    """TOTAL = Key("ORDER#{order_id}", "TOTAL#{kind}")


@router.view(LINE, into=TOTAL)
def totals(line, order_id):
    return Row(order_id=order_id, kind="all", lines=Count(), shipped=Sum(int(line["shipped"])))


@router.index(ORDER, into=Key("SUM#{order_id}", "ROW"), parts=[TOTAL])
def sums(order, parts):
    return Row(lines=[each["lines"] for each in parts(TOTAL)])


app = App""",
).replace("Router, Row", "Router, Row, Sum")
EDITS = (
    (SHOP, "Newest(LOGIN, 2)", "Newest(LOGIN, 1)", {"locked"}),
    (SHOP, "any(not each", "any(each", {"states"}),
    (DERIVED, "lines=Count()", "lines=Sum(2)", {"totals", "sums"}),
    (DERIVED, "lines=[each", "lines=[-each", {"sums"}),
)


@pytest.mark.parametrize(("before", "old", "new", "concerned"), EDITS)
def test_dev_folds_what_an_edit_concerns_and_no_row_differs_from_a_fold_of_everything(
    shop, before, old, new, concerned
):
    assert old in before
    file = shop.folder.records(*shop.records)

    def edited(text, known):
        shop.folder.app(text)
        shop.folder._forget()
        edition = Edition(Order("handlers:app", file, (), (), 10, as_json=False), known)
        edition.load()
        return edition.edited(list(RecordedFiles([file])), ["handlers.py"])

    known = KnownRows()
    assert edited(before, known).summary.clean
    done, anew = edited(before.replace(old, new), known), KnownRows()
    assert {route.name for route in done.handlers} == concerned
    edited(before.replace(old, new), anew)
    assert {name: rows for name, rows in known.rows.items() if rows} == {
        n: rows for n, rows in anew.rows.items() if rows
    }


def test_verify_gathers_rows_that_are_derived_and_finds_a_lost_record_behind_them(shop):
    shop.folder.app(DERIVED)
    assert shop.replay().code == 0
    assert shop.run("verify", "--full").code == 0
    shop.lose("ORDER#2", "LINE#cup", shipped=True)
    assert shop.run("verify", "--rows").out.count("ORDER#2 / TOTAL#all") == 1
    assert shop.run("repair", "--key", "ORDER#2", "LINE#cup").code == 0
    assert shop.row("SUM#2 / ROW") == {"lines": {"L": [{"N": "2"}]}}
    assert shop.run("verify", "--full").code == 0


def test_a_handler_that_gained_parts_is_rebuilt_and_one_that_lost_them_is_refused(shop):
    without = SHOP.replace(', parts=[Every(LINE, reads=["shipped"])]', "").replace("(order, parts)", "(order)")
    without = without.replace('"open" if any(not each["shipped"] for each in parts(LINE)) else "shipped"', '"open"')
    shop.folder.app(without)
    assert shop.replay().code == 0
    assert shop.row("STATE#open / ORDERS") == {"orders": {"N": "2"}}
    shop.folder.app(SHOP)
    assert (shop.run("verify").code, shop.run("rebuild", "states").code) == (1, 0)
    assert shop.row("STATE#open / ORDERS") == {"orders": {"N": "1"}}
    assert shop.run("verify", "--full").code == 0
    shop.folder.app(without)
    more = shop.folder.records(shop.source.put("ORDER#3", "META", tags=[]), name="more.jsonl")
    ran = shop.folder.run("replay", more, "--state", "state.db")
    assert (ran.code, "changed its targets" in ran.err) == (2, True), ran.err
