"""``streamfold verify``: what was lost or is of older code is found, and nothing else."""

import json
import sqlite3
from contextlib import closing

import pytest

from streamfold.runtime import Runtime
from tests.cli.conftest import SHOP
from tests.cli.test_repair import RAISING, SEARCH, TWO

STATE = ("--state", "state.db")
ROWS_LEFT = "Not compared: the rows themselves: streamfold verify --rows."
INDEXED = """
from streamfold import App, Key, Router, Row

router = Router()


@router.index(Key("BOOK#{isbn}", "TITLE"), into=Key("TITLES", "BOOK#{isbn}"))
def titles(book):
    return Row(title=book["title"])


app = App("shop", routers=[router])
"""

LARGEST = """
from streamfold import App, Key, Max, Router, Row

router = Router()


@router.view(Key("BOOK#{isbn}", "TITLE"), into=Key("PRICES", "ALL"))
def prices(book):
    return Row(most=Max(book["price"]))


app = App("shop", routers=[router])
"""

WHOLE = """
from streamfold import App, Key, Router, Row

router = Router()


@router.index(Key("ORDER#{order_id}", "ITEM#{sku}"), into=Key("COPY#{order_id}", "ITEM#{sku}"))
def copies(item):
    return Row(text="x" * 99 + "y" + "x" * 99)


app = App("shop", routers=[router])
"""


@pytest.fixture
def records(source):
    return [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 2, 3)]


@pytest.fixture
def state(folder, records):
    folder.run("replay", folder.records(*records), *STATE)
    return folder


def lose(folder, partition):
    """Takes the ledger item of an order's line away, and with it what says that it was counted."""
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        connection.execute("DELETE FROM state WHERE pk = ?", (f"ledger#shop#main#main#S#{partition}",))


def report(ran):
    return json.loads(ran.out)


def test_a_state_that_agrees_has_no_difference(state):
    ran = state.run("verify", *STATE)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"3 items: 3 equal, 0 different, 0 moving, 0 failed.\n{ROWS_LEFT}\n"


@pytest.mark.parametrize("how", [("--full",), ("--sample", 3), ()])
def test_an_item_that_was_lost_is_different(state, how):
    lose(state, "ORDER#2")

    ran = state.run("verify", *STATE, *how)

    assert ran.code == 1
    assert ran.out.splitlines() == [
        "Different: ORDER#2 / ITEM#a, handler 'order_total'",
        "  stored    nothing",
        "  expected  ORDER#2 / TOTAL  lines +1  total +2",
        "3 items: 2 equal, 1 different, 0 moving, 0 failed.",
        "Next: streamfold explain --item shows one of them; the same command with --repair corrects them.",
        ROWS_LEFT,
    ]


def test_plain_values_that_differ_are_named(folder, source):
    folder.app(INDEXED)
    folder.run("replay", folder.records(source.put("BOOK#1", "TITLE", title="Emma")), *STATE)
    folder.app(INDEXED.replace('book["title"]', 'book["title"].upper()'))

    assert folder.run("verify", *STATE).out.splitlines()[:3] == [
        "Different: BOOK#1 / TITLE, handler 'titles'",
        "  both      TITLES / BOOK#1  title (plain)  (with other values)",
        "1 item: 0 equal, 1 different, 0 moving, 0 failed.",
    ]


def test_entries_that_differ_only_in_their_order_are_told_by_it(folder, source):
    folder.app(LARGEST)
    folder.run("replay", folder.records(source.put("BOOK#1", "TITLE", price=5)), *STATE)
    folder.app(LARGEST.replace("Max", "Min"))

    assert folder.run("verify", *STATE).out.splitlines()[:3] == [
        "Different: BOOK#1 / TITLE, handler 'prices'",
        "  stored    PRICES / ALL  most by max:1 (entries)",
        "  expected  PRICES / ALL  most by min:1 (entries)",
    ]


def test_an_item_that_is_gone_and_still_counts_is_different(state):
    with closing(sqlite3.connect(state.path / "state.db")) as connection, connection:
        connection.execute("UPDATE items SET item = NULL WHERE pk = 'ORDER#2' AND version IS NOT NULL")

    found = report(state.run("verify", *STATE, "--full", "--json"))

    assert found["different"] == [
        {
            "table": "main",
            "key": {"PK": {"S": "ORDER#2"}, "SK": {"S": "ITEM#a"}},
            "handler": "order_total",
            "stored": '[["main","ORDER#2","TOTAL",{"lines":"1","total":"2"}]]',
            "expected": "",
        }
    ]
    assert report(state.run("verify", *STATE, "--json"))["different"] == found["different"]


def test_json_has_the_counts_and_repair_takes_it(state):
    state.app(SHOP.replace('Sum(item["price"])', 'Sum(2 * item["price"])'))
    ran = state.run("verify", *STATE, "--json")
    found = report(ran)

    assert ran.code == 1
    assert len(found.pop("different")) == 3
    assert found == {
        "application": "shop",
        "handlers": ["order_total"],
        "items": 3,
        "equal": 0,
        "moving": 0,
        "failed": [],
        "repaired": None,
        "not_compared": [{"handler": None, "why": "the rows themselves", "command": "streamfold verify --rows"}],
    }
    repaired = state.run("repair", "--from-verify", state.write("report.json", ran.out), *STATE)
    assert (repaired.code, repaired.out) == (
        0,
        "3 items: 3 contributions written, 0 equal, 0 failed; 3 writes of rows.\n",
    )
    assert state.run("verify", *STATE).code == 0


def test_what_differs_is_repaired_at_once_when_asked_for(state):
    state.app(SHOP.replace('Sum(item["price"])', 'Sum(2 * item["price"])'))

    ran = state.run("verify", *STATE, "--repair")

    assert ran.code == 1
    assert ran.out.splitlines()[-3:] == [
        "3 items: 0 equal, 3 different, 0 moving, 0 failed.",
        "3 items: 3 contributions written, 0 equal, 0 failed; 3 writes of rows.",
        ROWS_LEFT,
    ]
    assert state.totals() == {"ORDER#1": 2, "ORDER#2": 4, "ORDER#3": 6}
    assert report(state.run("verify", *STATE, "--repair", "--json"))["repaired"] is None


def test_an_item_on_which_the_handler_raises_is_told(state):
    state.app(RAISING)

    ran = state.run("verify", *STATE)

    assert ran.code == 1
    assert ran.err == "Failed: item ORDER#2 / ITEM#a, handler 'order_total': LookupError: no price 2\n"
    assert ran.out == f"3 items: 2 equal, 0 different, 0 moving, 1 failed.\n{ROWS_LEFT}\n"
    (failed,) = report(state.run("verify", *STATE, "--json"))["failed"]
    assert (failed["key"]["PK"], failed["error"]) == ({"S": "ORDER#2"}, "LookupError: no price 2")


def test_only_the_handlers_that_are_named_are_compared(folder, records):
    folder.app(TWO)
    folder.run("replay", folder.records(*records), *STATE)
    folder.app(TWO.replace('Sum(item["price"])', 'Sum(2 * item["price"])'))

    found = report(folder.run("verify", "everything", *STATE, "--json"))

    assert (found["handlers"], found["equal"], found["different"]) == (["everything"], 3, [])


def test_long_texts_are_shortened_for_a_person(state):
    state.app(SHOP.replace("lines=Count()", "lines=Count(), **{'a' * 400: Count()}"))

    lines = state.run("verify", *STATE).out.splitlines()

    assert all(len(line) < 320 for line in lines)
    assert "..." in lines[2]


def test_differences_beyond_those_shown_are_counted(state, monkeypatch):
    monkeypatch.setattr("streamfold.cli.output.SHOWN_MAX", 1)
    state.app(SHOP.replace('Sum(item["price"])', 'Sum(2 * item["price"])'))

    assert "... and 2 more; --json has them all." in state.run("verify", *STATE).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--full", "--sample", 5), "Error: --full compares all items, and --sample some: give one of them.\n"),
        (("--yes",), "Error: --yes belongs to --repair: nothing is written without it.\n"),
        (("--sample", 0), "Error: Invalid value for '--sample': 0 is not in the range x>=1.\n"),
        (("--tolerance", -1), "Error: Invalid value for '--tolerance': -1.0 is not in the range x>=0.\n"),
        (("totals",), "Error: The command names 'totals', which is no handler of the application: expected"),
    ],
)
def test_mistake_is_told(state, arguments, message):
    ran = state.run("verify", *arguments, *STATE)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_handler_whose_truth_is_the_changes_is_refused_and_otherwise_left_out(folder, records):
    folder.app(TWO)
    folder.run("replay", folder.records(*records), *STATE)

    named = folder.run("verify", "changes", *STATE)

    assert named.code == 2
    assert "Error: Handler 'changes' is of kind on: its rows follow from the changes of items" in named.err
    assert report(folder.run("verify", *STATE, "--json"))["handlers"] == ["order_total", "everything"]


def test_a_handler_that_keeps_nothing_in_the_ledger_is_refused(folder, source):
    folder.app(SEARCH)
    folder.run("replay", folder.records(source.put("ORDER#1")), *STATE)

    ran = folder.run("verify", "orders", *STATE)

    assert ran.code == 2
    assert (
        "Error: Handler 'orders' is of kind search: the state holds no contributions of it, so it cannot be" in ran.err
    )


def test_a_state_without_sources_is_refused(state):
    with closing(sqlite3.connect(state.path / "state.db")) as connection, connection:
        connection.execute("DELETE FROM items WHERE version IS NOT NULL")

    ran = state.run("verify", *STATE)

    assert ran.code == 2
    assert "Error: The state holds no source items of table 'main'" in ran.err


def test_items_on_dynamodb_are_compared_and_repaired(on_aws, records):
    on_aws.deliver(*records)
    key = {"pk": {"S": "ledger#shop#main#main#S#ORDER#2"}, "sk": {"S": "S#ITEM#a"}}
    on_aws.client.delete_item(TableName="shop-state", Key=key)

    ran = on_aws.run("verify", "--full", "--json", "--tolerance", 0.01)

    assert ran.code == 1, ran.err
    assert [each["key"]["PK"]["S"] for each in report(ran)["different"]] == ["ORDER#2"]
    assert report(ran)["equal"] == 2
    assert on_aws.run("verify", "--sample", 2, "--repair", "--tolerance", 0).code == 2
    assert on_aws.run("verify", "--full", "--repair", "--yes", "--tolerance", 0).code == 1
    assert report(on_aws.run("verify", "--json"))["equal"] == 3


def test_what_differs_on_dynamodb_waits_for_a_minute_unless_told_otherwise(on_aws, records, monkeypatch):
    seconds = []
    monkeypatch.setattr(Runtime, "wait", lambda _, each: seconds.append(each))
    on_aws.deliver(*records)
    on_aws.folder.app(RAISING.replace('raise LookupError("no price 2")', "return"))

    assert on_aws.run("verify").code == 1
    assert seconds == [60]


def change(folder, statement):
    """Changes the tables behind the back of everybody."""
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        connection.execute(statement)


def test_a_row_that_differs_is_shown_as_its_attributes_with_what_to_do(state):
    change(state, """UPDATE items SET item = replace(item, '"2"', '"9"') WHERE pk = 'ORDER#2' AND sk = 'TOTAL'""")

    ran = state.run("verify", "--rows", *STATE)

    assert ran.code == 1
    assert ran.out.splitlines() == [
        "Different: ORDER#2 / TOTAL",
        "  shown     lines=1  total=9",
        "  expected  lines=1  total=2",
        "3 rows: 1 different, 0 moving; a handler failed on 0 items.",
        (
            "Next: streamfold explain shows the sources of one; verify --full --repair, then --rows --repair, corrects "
            "them."
        ),
    ]
    assert "Next:" not in state.run("verify", "--rows", "--repair", *STATE).out


def test_a_row_that_differs_is_in_json_with_its_typed_attributes(state):
    change(state, "DELETE FROM items WHERE pk = 'ORDER#2' AND sk = 'TOTAL'")

    (found,) = report(state.run("verify", "--rows", "--json", *STATE))["different"]

    assert (found["what"], found["shown"]) == ("missing", None)
    assert found["expected"] == {"lines": {"N": "1"}, "total": {"N": "2"}}


def test_a_row_that_lacks_entries_is_shown_once(folder, source):
    folder.app(LARGEST)
    folder.run("replay", folder.records(source.put("BOOK#1", "TITLE", price=5)), *STATE)
    change(folder, "DELETE FROM entries")

    assert folder.run("verify", "--rows", *STATE).out.splitlines()[:3] == [
        "Unfounded: PRICES / ALL",
        "  both      most=5  (entries below it are missing)",
        "1 row: 1 different, 0 moving; a handler failed on 0 items.",
    ]


def test_sides_that_look_the_same_are_shown_once(state):
    state.app(WHOLE)
    state.run("replay", "records.jsonl", "--fresh", *STATE)
    change(state, """UPDATE items SET item = replace(item, 'xyx', 'xzx') WHERE pk = 'COPY#2'""")

    assert state.run("verify", "--rows", *STATE).out.splitlines()[1].endswith("(with other values)")


@pytest.fixture
def removed(folder, source):
    """A state in which somebody removed a row of two items, a third item made it again, and one of the two went."""
    folder.app(SUMS)
    puts = [source.put(f"PLAY#{number}", "X", score=number, day="1") for number in (1, 2)]
    assert folder.run("replay", folder.records(*puts), *STATE).code == 0
    change(folder, "DELETE FROM items WHERE pk = 'DAY#1'")
    for each in (source.put("PLAY#3", "X", score=3, day="1"), source.remove("PLAY#1", "X")):
        assert folder.run("replay", folder.records(each), *STATE).code == 0
    assert not folder.rows(*STATE)  # two items count in no row
    return folder


SUMS = """
from streamfold import App, Count, Key, Max, Router, Row, Sum

router = Router()
PLAY, DAY = Key("PLAY#{i}", "X"), Key("DAY#{day}", "STATS")


@router.view(PLAY, into=DAY)
def days(play):
    yield Row(day=play["day"], plays=Count(), total=Sum(play["score"]), best=Max(play["score"]))


app = App("shop", routers=[router])
"""
WHOLE_DAY = {"plays": {"N": "2"}, "total": {"N": "5"}, "best": {"N": "3"}}


def is_whole(folder):
    row = folder.rows(*STATE)["DAY#1 / STATS"]
    return {name: row[name] for name in WHOLE_DAY} == WHOLE_DAY


def test_a_full_comparison_tells_of_a_row_that_somebody_removed(removed):
    ran = removed.run("verify", "--full", *STATE)
    assert ran.code == 1
    assert "3 items: 3 equal, 0 different, 0 moving, 0 failed." in ran.out
    assert "Missing: DAY#1 / STATS" in ran.out
    (row,) = report(removed.run("verify", "--full", "--json", *STATE))["rows"]["different"]
    assert (row["what"], row["expected"]) == ("missing", WHOLE_DAY)


def test_a_full_repair_makes_a_row_the_fold_of_all_its_items(removed):
    assert removed.run("verify", "--full", "--repair", *STATE).code == 1
    assert is_whole(removed)
    assert removed.run("verify", "--full", *STATE).code == 0


def test_a_repair_of_rows_makes_a_row_the_fold_of_all_its_items(removed):
    assert removed.run("verify", "--rows", "--repair", *STATE).code == 1
    assert is_whole(removed)


def test_a_rebuild_makes_a_row_the_fold_of_all_its_items(removed):
    ran = removed.run("rebuild", "days", *STATE)
    assert ran.code == 0
    assert "1 row compared with the sum of all items." in ran.out
    assert is_whole(removed)
    found = report(removed.run("rebuild", "days", "--json", *STATE))
    assert (found["rows"], found["mended"], found["left"]) == (1, [], [])


@pytest.mark.parametrize("how", [(), ("--end",)])
def test_a_rebuild_elsewhere_makes_a_row_the_fold_of_all_its_items(removed, how):
    told = report(removed.run("rebuild", "days", *STATE, "--runner", "elsewhere"))
    for part in told["parts"] if how else ():
        assert removed.run("work", told["job"], "--part", part, *STATE).code == 0
    assert "1 row compared with the sum of all items." in removed.run("work", told["job"], *how, *STATE).out
    assert is_whole(removed)


def test_a_row_that_is_put_whole_is_told_as_missing_and_comes_back_with_its_items_next_change(folder, source):
    folder.app(INDEXED)
    folder.run("replay", folder.records(source.put("BOOK#1", "TITLE", title="Emma")), *STATE)
    change(folder, "DELETE FROM items WHERE pk = 'TITLES'")

    assert "Missing: TITLES / BOOK#1" in folder.run("verify", "--full", *STATE).out
    folder.run("replay", folder.records(source.put("BOOK#1", "TITLE", title="Emmy")), *STATE)
    assert folder.run("verify", "--full", *STATE).code == 0


FEED = """
from streamfold import App, Count, Key, Put, Router, Row, Table

MAIN = Table("main", ttl="expires")
POST, WATCH = Key("T#{ticket}", "C#{at:datetime.seconds}#{c}", table=MAIN), Key("T#{ticket}", "W#{user}", table=MAIN)
NEWS = Key("N#{user}", "{at:datetime.seconds}#{ticket}#{c}", table=MAIN)
TICKET = Key("T#{ticket}", "TICKET", table=MAIN)
router = Router()
router.audit(WATCH, name="history")


@router.feed(POST, audience=WATCH, into=NEWS, keep_days=36500)
def feed(post, watch):
    return Row(x=1)


@router.attributes(POST, of=TICKET)
def comments(post):
    return Row(comments=Count())


@router.on(WATCH, into=Key("SEEN#{ticket}", "{user}", table=MAIN))
def seen(change):
    return Put(n=1)


app = App("board", routers=[router])
"""


@pytest.fixture
def board(folder, source):
    folder.app(FEED)
    changes = [
        source.put("T#1", "TICKET", title="a"),
        source.put("T#1", "W#ada", since=1),
        source.put("T#1", "C#2026-03-01T08:00:00Z#a", text="b"),
    ]
    assert folder.run("replay", folder.records(*changes), *STATE).code == 0
    return folder


def execute(folder, statement):
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        assert connection.execute(statement).rowcount


def test_a_comparison_ends_with_what_it_did_not_look_at(board):
    ran = board.run("verify", "--full", *STATE)
    last = ran.out.splitlines()[-1]
    assert ran.code == 0
    assert last.startswith("Not compared: handler 'history'")
    assert "'feed'" in last
    assert "streamfold verify --rows feed" in last
    assert "'seen'" in last
    found = report(board.run("verify", "--full", "--json", *STATE))["not_compared"]
    assert {each["handler"] for each in found} == {"history", "feed", "seen"}


def test_rows_of_feeds_and_histories_that_were_removed_are_different(board):
    assert board.run("verify", "--rows", *STATE).code == 0
    execute(board, "DELETE FROM items WHERE pk = 'N#ada'")
    ran = board.run("verify", "--rows", *STATE)
    assert ran.code == 1
    assert "Missing: N#ada" in ran.out
    execute(board, "DELETE FROM items WHERE pk LIKE 'AUDIT#%'")
    assert "2 different" in board.run("verify", "--rows", *STATE).out
    assert "1 different" in board.run("verify", "--rows", "history", *STATE).out


@pytest.mark.parametrize(
    "changed",
    [
        """replace(item, '"changes":{"M":', '"changed":{"M":')""",
        """replace(item, '"changes":{"M":{', '"changes":{"M":{"x":{"N":"1"},')""",
        """replace(item, '"since"', '"until"')""",
        """replace(item, '"INSERT"', '"SOLD"')""",
    ],
    ids=["without what changed", "a number among what changed", "of another attribute", "of no event"],
)
def test_the_newest_row_of_a_history_that_somebody_changed_is_different(board, changed):
    execute(board, f"UPDATE items SET item = {changed} WHERE pk LIKE 'AUDIT#%'")
    ran = board.run("verify", "--rows", "history", *STATE)
    assert (ran.code, ran.err) == (1, "")
    assert "1 different" in ran.out


def test_a_history_of_records_without_times_is_compared_too(folder, source):
    folder.app(FEED)
    record = source.put("T#1", "W#ada", since=1)
    del record["dynamodb"]["ApproximateCreationDateTime"]
    assert folder.run("replay", folder.records(record), *STATE).code == 0
    assert folder.run("verify", "--rows", "history", *STATE).code == 0


def test_an_attribute_that_somebody_changed_is_different(board):
    execute(board, 'UPDATE items SET item = replace(item, \'"comments":{"N":"1"}\', \'"comments":{"N":"7"}\')')
    found = report(board.run("verify", "--rows", "comments", "--json", *STATE))
    assert [(each["shown"], each["expected"]) for each in found["different"]] == [
        ({"comments": {"N": "7"}}, {"comments": {"N": "1"}})
    ]


@pytest.mark.parametrize("option", [STATE, ("--engine", "dynamodb"), ("--endpoint-url", "http://127.0.0.1:1")])
def test_exports_are_not_compared_with_a_store(state, option):
    ran = state.run("verify", "--export", "manifest-files.json", *option)
    assert ran.code == 2
    assert f"{option[0]} names a store, which is not read" in ran.err


def test_rows_of_which_something_is_pending_are_counted_and_neither_compared_nor_corrected(on_aws, source):
    on_aws.deliver(source.put("ORDER#1", "ITEM#a", price=1), source.put("ORDER#2", "ITEM#a", price=2))
    on_aws.deliver_in_deltas(source.put("ORDER#1", "ITEM#b", price=5))
    before = on_aws.row("ORDER#1")

    ran = on_aws.run("verify", "--rows", "--tolerance", 0)

    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "2 rows: 0 different, 0 moving; a handler failed on 0 items.",
        "1 row not compared: additions to it are pending. Next: streamfold buckets shows them.",
    ]
    found = report(on_aws.run("verify", "--rows", "--tolerance", 0, "--repair", "--yes", "--json"))
    assert (found["pending_rows"], found["different"], found["mended"], found["left"]) == (1, [], [], [])
    assert on_aws.row("ORDER#1") == before


def test_the_state_shows_deltas_by_their_purpose(on_aws, source):
    on_aws.deliver(source.put("ORDER#1", "ITEM#a", price=1))
    on_aws.deliver_in_deltas(source.put("ORDER#1", "ITEM#b", price=5))

    assert "additions that wait for shared rows" in on_aws.run("state", "stats").out
