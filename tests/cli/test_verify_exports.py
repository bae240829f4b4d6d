"""``streamfold verify --export``: a state at the moment of its exports, without a store."""

import json
from contextlib import closing

import pytest

from streamfold.engines import EmbeddedEngine
from streamfold.keys.table import CONTRIBUTORS
from streamfold.records.values import encode
from streamfold.writes.guarded import DeleteState, PutState, StateKey
from tests.cli.test_fan_outs import SOCIAL
from tests.helpers.exports import write_export
from tests.helpers.rdds import LocalContext
from tests.helpers.records import item, record

MORE = """
router.audit(POST, name="history")
router.copy(POST, to=Table("texts"), name="texts")
"""


@pytest.fixture
def moment(folder):
    """Exports of a table and its state, made by a local replay."""
    records = [record(None, item(f"ORDER#{n % 3}", f"ITEM#{n}", price=n), n) for n in range(1, 31)]
    assert folder.run("replay", folder.records(*records), "--state", "state.db").code == 0
    app = folder.load()
    with closing(EmbeddedEngine(app, "state.db")) as engine:
        return list(engine.items(app.tables["main"])), list(engine.state_items())


def verify(folder, items, state=None, *more, **given):
    places = ["--export", write_export(folder.path / "shop", items, files=3)]
    if state is not None:
        places += ["--export", "state=" + write_export(folder.path / "state", state, table="shop-state", **given)]
    return folder.run("verify", *places, *more)


def test_a_moment_that_agrees_is_equal(folder, moment):
    ran = verify(folder, *moment)
    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "3 rows: 0 different, 0 moving; a handler failed on 0 items.",
            "30 items: 30 equal, 0 different, 0 moving, 0 failed.",
            "The exports are of 2026-03-01T09:00:00.000Z: records that were not delivered by then differ.",
        ],
    )


def test_rows_with_pending_additions_are_not_compared_if_the_state_is_exported(folder, on_aws, source):
    on_aws.deliver(source.put("ORDER#1", "ITEM#a", price=1), source.put("ORDER#2", "ITEM#a", price=2))
    on_aws.deliver_in_deltas(source.put("ORDER#1", "ITEM#b", price=5))
    items = on_aws.client.scan(TableName="shop")["Items"]
    ran = verify(folder, items, on_aws.state())
    assert (ran.code, ran.out.splitlines()[:2]) == (
        0,
        [
            "2 rows: 0 different, 0 moving; a handler failed on 0 items.",
            "1 row not compared: additions to it are pending. Next: streamfold buckets shows them.",
        ],
    )
    assert verify(folder, items).code == 1


def test_rows_and_parts_that_differ_are_found(folder, moment):
    items, state = moment
    items = [each for each in items if each["SK"] != {"S": "ITEM#7"}]  # its removal was lost
    items.append(encode(item("ORDER#9", "TOTAL", total=1, lines=1, **{CONTRIBUTORS: 1}))["M"])
    ran = verify(folder, items, state, "--json")
    found = json.loads(ran.out)
    assert ran.code == 1
    assert [each["key"]["SK"]["S"] for each in found["different"]] == ["ITEM#7"]
    rows = {(each["key"]["PK"]["S"], each["what"]) for each in found["rows"]["different"]}
    assert rows == {("ORDER#1", "different"), ("ORDER#9", "extra")}


def test_a_report_of_exports_is_what_repair_takes(folder, moment):
    items, state = moment
    next(each for each in items if each["SK"] == {"S": "ITEM#7"})["price"] = {"N": "70"}
    folder.write("report.json", verify(folder, items, state, "--json").out)
    ran = folder.run("repair", "--from-verify", "report.json", "--state", "state.db")
    assert (ran.code, ran.out.startswith("1 item: 1 contribution written")) == (0, True), ran.err


@pytest.fixture
def social(folder, source):
    """Exports of a table with a feed, a copy and an audit, and of its state."""
    folder.app(SOCIAL.replace("app = App", MORE + "\n\napp = App"))
    follows = [source.put(f"USER#r{number}", "FOLLOWS#b", name="n") for number in range(3)]
    posts = [source.put("USER#b", f"POST#2026-03-01T0{hour}:00:00Z#p{hour}", text=f"post {hour}") for hour in (1, 2)]
    ran = folder.run("replay", folder.records(*follows, *posts), "--state", "state.db")
    assert ran.code == 0, ran.err
    app = folder.load()
    with closing(EmbeddedEngine(app, "state.db")) as engine:
        return list(engine.items(app.tables["main"])), list(engine.state_items())


@pytest.mark.parametrize("with_state", [True, False])
def test_rows_of_feeds_that_agree_are_equal(folder, social, with_state):
    items, state = social
    ran = verify(folder, items, state if with_state else None, "timeline")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "6 rows: 0 different, 0 moving; a handler failed on 0 items.")


def test_rows_of_feeds_that_differ_are_found(folder, social):
    items, state = social
    rows = [each for each in items if each["PK"]["S"].startswith("FEED#")]
    rows[0]["text"] = {"S": "odd"}
    items.remove(rows[1])
    items.remove(next(each for each in items if each["PK"] == {"S": "USER#r2"}))  # the record of an unfollow was lost
    ran = verify(folder, items, state, "--json")
    found = [(each["key"]["PK"]["S"], each["what"]) for each in json.loads(ran.out)["rows"]["different"]]
    assert (ran.code, found) == (
        1,
        [("FEED#r0", "different"), ("FEED#r0", "missing"), ("FEED#r2", "extra"), ("FEED#r2", "extra")],
    )


def test_handlers_that_exports_do_not_tell_of_are_named_with_the_reason(folder, social):
    ran = verify(folder, *social)
    assert ran.code == 0
    assert "Not compared: handler 'history': it is of kind audit, and follows from changes" in ran.out
    report = json.loads(verify(folder, *social, "--json").out)
    assert report["handlers"] == ["timeline"]
    assert [each["handler"] for each in report["not_compared"]] == ["history", "texts"]


@pytest.mark.parametrize(
    ("handler", "text"),
    [("texts", "'texts' cannot be compared by exports: it is of kind copy"), ("history", "is of kind audit")],
)
def test_a_named_handler_that_exports_do_not_tell_of_is_refused(folder, social, handler, text):
    ran = verify(folder, *social, handler)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_spark_does_not_compare_feeds(folder, social):
    ran = verify(folder, social[0], None, "timeline", "--runner", "spark")
    assert (ran.code, "leave --runner out" in ran.err) == (2, True), ran.err


def test_without_an_export_of_the_state_only_rows_are_compared(folder, moment):
    ran = verify(folder, moment[0])
    assert (ran.code, " equal, " in ran.out) == (0, False)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"time": "2026-03-01T10:00:00.000Z"}, "The exports are of different times, 2026-03-01T09:00:00.000Z and"),
        ({"kind": "INCREMENTAL_EXPORT"}, "is INCREMENTAL_EXPORT: expected FULL_EXPORT"),
    ],
)
def test_exports_that_are_of_no_one_moment_are_refused(folder, moment, given, text):
    ran = verify(folder, *moment, **given)
    assert (ran.code, text in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--export", "other=x/manifest-files.json"], "has no table 'other'"),
        (["--export", "x/manifest-summary.json"], "expected the manifest-files.json of an export"),
        (["--export", "x/manifest-files.json", "--repair"], "--export compares all of the exports and repairs none"),
        (["--export", "state=state/manifest-files.json"], "of which there is no export: give --export NAME=MANIFEST"),
    ],
)
def test_what_cannot_be_compared_is_refused(folder, moment, arguments, text):
    verify(folder, *moment)
    ran = folder.run("verify", *arguments)
    assert (ran.code, text in ran.err) == (2, True), ran.err


LOOKED_UP = """
from streamfold import App, Count, Key, Router, Row

LINE, PRODUCT = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("PRODUCT#{product_id}", "META")
SALES, LINES = Key("CATEGORY#{category}", "SALES"), Key("LINES", "ALL")
router = Router()


@router.view(LINE, into=SALES, lookup={"product": PRODUCT})
def sales(line, product):
    return Row(category=product["category"], lines=Count())


@router.view(PRODUCT, into=SALES)
def products(product):
    return Row(category=product["category"], products=Count())


@router.view(LINE, into=LINES)
def lines(line):
    return Row(lines=Count())


app = App("shop", routers=[router])
"""


@pytest.fixture
def looked_up(folder):
    """Exports of a table with lines and their product, and of the state."""
    folder.app(LOOKED_UP)
    records = [record(None, item(f"ORDER#{n}", "ITEM#a", product_id="p"), n) for n in range(1, 4)]
    records.append(record(None, item("PRODUCT#p", "META", category="tea"), 9))
    assert folder.run("replay", folder.records(*records), "--state", "state.db").code == 0
    app = folder.load()
    with closing(EmbeddedEngine(app, "state.db")) as engine:
        return list(engine.items(app.tables["main"])), list(engine.state_items())


def test_items_are_joined_with_the_referents_of_their_exports(folder, looked_up):
    ran = verify(folder, *looked_up)
    assert (ran.code, ran.out.splitlines()[:2]) == (
        0,
        [
            "2 rows: 0 different, 0 moving; a handler failed on 0 items.",
            "4 items: 7 equal, 0 different, 0 moving, 0 failed.",
        ],
    )


def test_lost_and_idle_backlinks_of_an_export_are_reported(folder, looked_up):
    items, state = looked_up
    links = [each for each in state if each["pk"]["S"].startswith("refs#")]
    assert len(links) == 3
    state.remove(links[0])
    idle = links[1] | {"pk": {"S": links[1]["pk"]["S"].replace("PRODUCT#p", "PRODUCT#q")}}
    ran = verify(folder, items, [*state, idle])
    assert (ran.code, ran.out.count("without a backlink or a wake: 1 reference")) == (1, 1)
    assert "1 idle backlink: the next change of the referent drops each." in ran.out
    found = json.loads(verify(folder, items, [*state, idle], "--json").out)
    assert ([each["without_backlink"] for each in found["different"]], found["idle_backlinks"]) == ([1], 1)


def test_a_full_comparison_of_a_state_counts_idle_backlinks_and_its_repair_puts_lost_ones(folder, looked_up):
    app = folder.load()
    with closing(EmbeddedEngine(app, "state.db")) as engine:
        links = [each for each in engine.state_items() if each["pk"]["S"].startswith("refs#")]
        engine.transact([DeleteState(StateKey(links[0]["pk"]["S"], links[0]["sk"]["S"]))], 0)
        engine.insert_state([PutState(StateKey("refs#shop#sales#main#S#PRODUCT#q|S#META", "0"), links[1]["s"]["S"])])
    ran = folder.run("verify", "--full", "--repair", "--state", "state.db")
    assert (ran.code, "without a backlink or a wake: 1 reference" in ran.out) == (1, True), ran.err
    ran = folder.run("verify", "--full", "--state", "state.db")
    assert (ran.code, "1 idle backlink:" in ran.out) == (0, True), ran.out


def test_a_cluster_joins_items_with_the_referents_of_their_exports(folder, looked_up, monkeypatch):
    monkeypatch.setattr("streamfold.cli.spark.spark_context", lambda _: LocalContext())
    items = [each for each in looked_up[0] if each["PK"]["S"] != "ORDER#2"]
    here, spark = (verify(folder, items, None, "--json", *more) for more in ((), ("--runner", "spark")))
    assert (spark.code, json.loads(spark.out)) == (here.code, json.loads(here.out)), spark.err
    different = json.loads(spark.out)["rows"]["different"]
    assert [each["key"]["PK"]["S"] for each in different] == ["CATEGORY#tea", "LINES"]
