"""``streamfold show``: rows as their readers see them."""

import json
import sqlite3

import pytest

from streamfold.cli.output import Grid, Report, write
from streamfold.engines import EmbeddedEngine
from tests.helpers.records import record

STATE = ("--state", "state.db")
NUMBERED = """
from streamfold import App, Count, Key, Router, Row, Sum, Table

READINGS = Table("readings", partition="Id", sort=None)
DAYS = Table("days", partition="year", sort="day")
router = Router()


@router.view(Key("{sensor:number}", table=READINGS), into=Key("{year:number}", "{day:number}", table=DAYS))
def days(item):
    yield Row(year=item["year"], day=item["day"], readings=Count())


app = App("shop", routers=[router])
"""
RAW = """
from streamfold import App, Delete, Key, Put, Router

SESSION = Key("SESSION#{session_id}", "METADATA")
router = Router()


@router.on(SESSION, into=Key("SEEN#{session_id}", "STATE"))
def seen(change):
    yield Put(blob=change.new["blob"]) if change.new else Delete()


app = App("shop", routers=[router])
"""
TWO = """
from streamfold import App, Count, Key, Router, Row

router = Router()


@router.view(Key("ORDER#{order_id}", "ITEM#{sku}"), into=Key("ALL", "ORDERS"))
def orders(item):
    yield Row(n=Count())


@router.view(Key("USER#{user_id}", "METADATA"), into=Key("ALL", "USERS"))
def users(item):
    yield Row(n=Count())


app = App("shop", routers=[router])
"""
SEVERAL = """
from streamfold import App, Count, Key, Router, Row

ITEM, ANY = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("ORDER#{order_id}", "{kind:rest}")
A, B = Key("A#{order_id}", "X"), Key("B#{order_id}", "X")
router = Router()


@router.view(ITEM, ANY, into=[A, B])
def orders(item, order_id):
    return [Row(target, lines=Count()) for target in (A, B)]


app = App("shop", routers=[router])
"""


@pytest.fixture
def state(folder, source):
    """A folder with a state of three orders, two of them of one partition's beginning."""
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (2, 1, 10)]
    folder.run("replay", folder.records(*records, source.put("PROFILE#1", name="Ana")), *STATE)
    return folder


def keys(ran):
    return [(item["PK"]["S"], item["SK"]["S"]) for item in ran.objects()]


def test_json_has_one_row_a_line_sorted_by_key_without_the_frameworks_own_attributes(state):
    ran = state.run("show", *STATE, "--json")

    assert ran.objects() == [
        {"PK": {"S": f"ORDER#{number}"}, "SK": {"S": "TOTAL"}, "lines": {"N": "1"}, "total": {"N": str(number)}}
        for number in (1, 10, 2)
    ]


def test_table_on_a_terminal_has_a_row_for_each(state):
    ran = state.run("show", *STATE)

    assert ran.out.splitlines()[0].split() == ["PK", "SK", "attributes"]
    assert ran.out.splitlines()[1].split() == ["ORDER#1", "TOTAL", "lines=1", "total=1"]


def test_partition_and_the_beginning_of_a_sort_key_narrow_what_is_shown(state):
    assert keys(state.run("show", "ORDER#1", *STATE, "--json")) == [("ORDER#1", "TOTAL")]
    assert keys(state.run("show", "ORDER#1", "TO", *STATE, "--json")) == [("ORDER#1", "TOTAL")]
    assert keys(state.run("show", "ORDER#1", "ITEM", *STATE, "--json")) == []


def test_source_items_are_shown_when_asked_for(state):
    assert keys(state.run("show", *STATE, "--source", "--json")) == [
        ("ORDER#1", "ITEM#a"),
        ("ORDER#10", "ITEM#a"),
        ("ORDER#2", "ITEM#a"),
        ("PROFILE#1", "METADATA"),
    ]


def test_state_items_are_shown_when_asked_for(state):
    items = state.run("show", *STATE, "--state-items", "--json").objects()

    assert [item["pk"]["S"].partition("#")[0] for item in items] == ["kinds", *["ledger"] * 3, "manifest"]


def test_one_partition_of_the_state_items_is_shown(state):
    (item,) = state.run("show", "manifest#shop", *STATE, "--state-items", "--json").objects()

    assert item["pk"] == {"S": "manifest#shop"}


def test_source_items_and_state_items_together_are_refused(state):
    ran = state.run("show", *STATE, "--source", "--state-items")

    assert ran.code == 2
    assert ran.err == "Error: --source and --state-items show different items: give one of them.\n"


def test_limit_is_kept_and_what_is_left_out_is_said(state, monkeypatch):
    monkeypatch.setattr("streamfold.cli.output.LIMIT_ON_TERMINAL", 2)
    monkeypatch.setattr("streamfold.cli.output.on_terminal", lambda: True)

    ran = state.run("show", *STATE)

    assert len(ran.out.splitlines()) == 3
    assert len(state.run("show", *STATE, "--limit", 3).out.splitlines()) == 4
    assert "the first 2 are shown" in ran.err
    assert len(state.run("show", *STATE, "--json", "--limit", 1).objects()) == 1


def test_every_row_goes_to_a_file_or_a_pipe_some_at_a_time_under_one_heading(state, monkeypatch):
    monkeypatch.setattr("streamfold.cli.output.LIMIT_ON_TERMINAL", 1)
    monkeypatch.setattr("streamfold.cli.output.ROWS_AT_A_TIME", 1)

    ran = state.run("show", *STATE)

    assert [line.split()[0] for line in ran.out.splitlines()] == ["PK", "ORDER#1", "ORDER#10", "ORDER#2"]
    assert [line.find("TOTAL") for line in ran.out.splitlines()[2:]] == [10, 10]
    assert ran.err == ""


def test_many_rows_are_not_all_read_before_the_first_is_printed(monkeypatch, capsys):
    monkeypatch.setattr("streamfold.cli.output.ROWS_AT_A_TIME", 2)
    printed = []

    def rows():
        for number in range(6):
            printed.append(capsys.readouterr().out.split())
            yield [str(number)]

    write(Report([Grid(["n"], rows(), long=True)]), None)

    assert printed == [[], [], ["n", "0", "1"], [], ["2", "3"], []]


WIDE = ("K" * 30, "S" * 30, "at=2026-03-01  changes=something  event=INSERT  item=an item")


def test_rows_that_do_not_fit_beside_their_keys_are_printed_as_blocks(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    write(Report([Grid(["PK", "SK", "attributes"], [WIDE, ("k", "s", "n=1")], long=True)]), None)

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        f"PK          {WIDE[0]}",
        f"SK          {WIDE[1]}",
        f"attributes  {WIDE[2]}",
        "",
        "PK          k",
        "SK          s",
        "attributes  n=1",
    ]


@pytest.mark.parametrize("columns", [30, 64, 80, 102, 120, 200])
def test_nothing_of_a_row_is_lost_however_narrow_the_terminal_is(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("streamfold.cli.output.ROWS_AT_A_TIME", 1)

    write(Report([Grid(["PK", "SK", "attributes"], [("k", "s", "n=1"), WIDE, ("k", "s", "n=2")], long=True)]), None)

    printed = "".join(capsys.readouterr().out.split())
    assert all(word in printed for word in ("n=1", "n=2", "changes=something", "event=INSERT", "K" * 18, "S" * 18))


def test_rows_of_one_handler_are_shown_or_the_items_that_it_reads(folder, source):
    folder.app(TWO)
    folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=2), source.put("USER#1", n=1)), *STATE)

    assert keys(folder.run("show", *STATE, "--handler", "users", "--json")) == [("ALL", "USERS")]
    assert keys(folder.run("show", "ALL", *STATE, "--handler", "users", "--json")) == [("ALL", "USERS")]
    assert keys(folder.run("show", *STATE, "--handler", "users", "--source", "--json")) == [("USER#1", "METADATA")]
    ran = folder.run("show", *STATE, "--handler", "user")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("--handler names 'user', which is no handler of the application: expected users.\n")


def test_source_items_are_found_without_looking_at_derived_rows(state, monkeypatch):
    monkeypatch.setattr(EmbeddedEngine, "items", None)

    assert len(state.run("show", *STATE, "--source", "--json").objects()) == 4


def test_rows_are_found_without_looking_at_source_items(state, monkeypatch):
    monkeypatch.setattr(EmbeddedEngine, "items", None)

    assert len(state.run("show", *STATE, "--json").objects()) == 3
    assert len(state.run("show", *STATE, "--handler", "order_total", "--json").objects()) == 3


def test_rows_of_a_handler_with_several_targets_stand_in_the_order_of_their_keys(folder, source):
    folder.app(SEVERAL)
    records = (source.put(f"ORDER#{order}", "ITEM#a", price=2) for order in "312")
    folder.run("replay", folder.records(*records), *STATE)

    found = keys(folder.run("show", *STATE, "--handler", "orders", "--json"))

    assert found == [(f"{place}#{order}", "X") for place in ("A", "B") for order in "123"]
    sources = keys(folder.run("show", *STATE, "--handler", "orders", "--source", "--json"))
    assert sources == [(f"ORDER#{order}", "ITEM#a") for order in "123"]


def test_attributes_stand_in_the_order_of_their_names_however_they_were_written(folder, source):
    folder.app(RAW.replace('blob=change.new["blob"]', "attributes={'b': {'z': 1, 'a': 2}, 'a': 1}"))
    folder.run("replay", folder.records(source.put("SESSION#1", blob=b"x")), *STATE)

    ran = folder.run("show", *STATE, "--json")

    assert '{"PK":{"S":"SEEN#1"},"SK":{"S":"STATE"},"a":{"N":"1"},"b":{"M":{"a":{"N":"2"},"z":{"N":"1"}}}}' in ran.out


def test_raw_shows_the_frameworks_own_attributes(state):
    (item,) = state.run("show", "ORDER#1", *STATE, "--json", "--raw").objects()

    assert item["_sf_n"] == {"N": "1"}


def test_tombstones_are_shown_only_raw(folder, source):
    folder.app(RAW)
    folder.run("replay", folder.records(source.put("SESSION#1", blob=b"x"), source.remove("SESSION#1")), *STATE)

    assert folder.run("show", *STATE, "--json").objects() == []
    (item,) = folder.run("show", *STATE, "--json", "--raw").objects()
    assert item["_sf_n"] == {"N": "0"}


def test_binary_values_are_base64_text(folder, source):
    folder.app(RAW)
    folder.run("replay", folder.records(source.put("SESSION#1", blob=b"\x00\xff")), *STATE)

    (item,) = folder.run("show", *STATE, "--json").objects()

    assert item["blob"] == {"B": "AP8="}


@pytest.mark.parametrize("text", ["[bold]loud[/bold]", "[/]", ":smile:", "ünï\u4f60"])
def test_text_is_printed_as_it_is(folder, source, text):
    folder.app(RAW)
    folder.run("replay", folder.records(source.put("SESSION#1", blob=text)), *STATE)

    assert f"blob={text}" in folder.run("show", *STATE).out


def test_control_characters_do_not_reach_the_terminal(folder, source):
    folder.app(RAW)
    folder.run("replay", folder.records(source.put("SESSION#1", blob="a\x1b[2Jb\nc")), *STATE)

    assert r"blob=a\x1b[2Jb\nc" in folder.run("show", *STATE).out


def test_nothing_to_show_is_said(state):
    ran = state.run("show", "ORDER#99", *STATE)

    assert (ran.code, ran.out, ran.err) == (0, "", "No rows.\n")


def test_number_keys_are_given_as_they_are_written(folder):
    folder.app(NUMBERED)
    records = [
        record(None, {"Id": number, "year": 2026, "day": day}, number, names=("Id",), table="readings")
        for number, day in ((1, 9), (2, 10), (3, -1))
    ]
    folder.run("replay", folder.records(*records), *STATE)

    assert [item["day"]["N"] for item in folder.run("show", "--table", "days", *STATE, "--json").objects()] == [
        "-1",
        "9",
        "10",
    ]
    assert len(folder.run("show", "2026", "9", "--table", "days", *STATE, "--json").objects()) == 1
    assert len(folder.run("show", "3", "--table", "readings", *STATE, "--source", "--json").objects()) == 1


def test_every_table_is_shown_under_its_name_unless_one_is_named(folder):
    folder.app(NUMBERED)
    item = {"Id": 1, "year": 2026, "day": 9}
    folder.run("replay", folder.records(record(None, item, names=("Id",), table="readings")), *STATE)

    assert "table readings" in folder.run("show", *STATE).out
    assert "table days" in folder.run("show", *STATE).out
    assert "table" not in folder.run("show", *STATE, "--table", "days").out


def test_table_that_is_not_declared_is_refused(state):
    ran = state.run("show", *STATE, "--table", "invoices=x")

    assert ran.code == 2
    assert ran.err == "Error: --table 'invoices=x': the application has no table 'invoices', only main.\n"


def test_state_that_is_not_there_names_the_command_that_makes_one(folder):
    ran = folder.run("show")

    assert ran.code == 2
    assert ran.err == (
        "Error: There is no state in .streamfold/replay.db: make one with streamfold replay FILES --state "
        ".streamfold/replay.db, or name yours with --state.\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [("show", "\udcff"), ("show", "ORDER#1", "\udcff"), ("history", "\ud800"), ("routes", "--key", "\udcff")],
)
def test_a_key_that_is_no_text_is_refused(folder, arguments):
    ran = folder.run(*arguments)

    assert ran.code == 2
    assert "expected text in UTF-8." in ran.err


@pytest.mark.parametrize("option", [("--pause",), ("--resume",), ("--end",), ("--ring",), ("--set", "x")])
def test_name_of_a_job_that_is_no_text_is_refused(folder, option):
    ran = folder.run("jobs", *option, "\udcff")

    assert (ran.code, ran.err) == (2, f"Error: {option[0]} is '\\udcff': expected text in UTF-8.\n")


@pytest.mark.parametrize("limit", [10**9 + 1, 2**63, pytest.param("9" * 5000, id="long")])
def test_limit_that_is_too_large_is_refused(folder, limit):
    ran = folder.run("show", "--limit", limit)

    assert ran.code == 2
    assert "Invalid value for '--limit'" in ran.err


def test_state_with_an_item_without_a_key_is_called_damaged(folder, source):
    folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=1)), "--state", "state.db")
    other = sqlite3.connect(folder.path / "state.db")
    other.execute("UPDATE items SET item = ?", ("{}",))
    other.commit()
    other.close()

    ran = folder.run("show", "--state", "state.db")

    assert ran.code == 2
    assert "An item of table 'main' has no attribute 'PK': the state is damaged. replay --fresh starts anew." in ran.err


def test_file_that_is_no_state_is_refused(folder):
    ran = folder.run("show", "--state", folder.write("state.db", "my only novel"))

    assert ran.code == 2
    assert "State file state.db cannot be opened" in ran.err


def test_show_on_dynamodb_asks_for_the_name_of_the_table(folder):
    ran = folder.run("show", "--engine", "dynamodb")

    assert ran.code == 2
    assert ran.err == "Error: The application's keys name no table: give the real one, --table main=REAL.\n"


LOOKED_UP = """
from streamfold import App, Count, Key, Lookup, Router, Row, Table

LINE, ROW = Key("L#{l}", "X"), Key("R#{c}", "T")
NUMBER = Key("{p:number}", table=Table("numbers", partition="id", sort=None))
router = Router()


@router.view(LINE, into=ROW, lookup={"number": Lookup(NUMBER, p="by")})
def sales(line, number):
    return Row(c=number["c"], n=Count())


app = App("sums", routers=[router])
"""


def test_items_of_a_table_that_only_a_lookup_names_are_shown(folder):
    folder.app(LOOKED_UP)
    referent = record(None, {"id": 7, "c": "X"}, 1, names=("id",), table="numbers")
    folder.run("replay", folder.records(referent), *STATE)
    shown = [("7",), ("--handler", "sales"), ("--table", "numbers")]
    assert [folder.run("show", *each, "--source", *STATE, "--json").objects()[0]["c"]["S"] for each in shown] == [
        "X"
    ] * 3


EXPIRING = """
from streamfold import App, Key, Router, Row, Table

router = Router()


@router.index(Key("SESSION#{session_id}", "METADATA"), into=Key("SEEN#{session_id}", "ROW", Table("main", ttl="until")))
def seen(session):
    return Row(until=session["until"])


app = App("shop", routers=[router])
"""
TEN_O_CLOCK = 1_772_359_200
LEFT_OUT = (
    "Rows that have expired by 2026-03-01T10:00:00Z, the time of the newest record, are left out: --raw shows them."
)


@pytest.fixture
def expiring(folder):
    """A state whose newest record is of ten o'clock, with a row that expired at nine, and one that expires at eleven.

    The older record comes last: it does not turn the clock of the state back.
    """
    folder.app(EXPIRING)
    sessions = [(hours, TEN_O_CLOCK + hours * 3600) for hours in (1, -1)]
    records = [
        record(None, {"PK": f"SESSION#{until}", "SK": "METADATA", "until": until}, number, at=TEN_O_CLOCK - number)
        for number, (_, until) in enumerate(sessions)
    ]
    folder.records(*records)
    return folder


def test_rows_that_have_expired_by_the_newest_record_are_left_out_of_show(expiring):
    expiring.run("replay", "records.jsonl", *STATE)

    shown, as_json = expiring.run("show", *STATE), expiring.run("show", *STATE, "--json")

    assert keys(as_json) == [(f"SEEN#{TEN_O_CLOCK + 3600}", "ROW")]
    assert LEFT_OUT in shown.out + shown.err
    assert "SEEN#1772355600" not in shown.out


def test_raw_shows_rows_that_have_expired_and_source_the_items(expiring):
    expiring.run("replay", "records.jsonl", *STATE)

    assert len(keys(expiring.run("show", *STATE, "--json", "--raw"))) == 2
    assert len(keys(expiring.run("show", *STATE, "--json", "--source"))) == 2


def test_samples_of_a_replay_leave_out_rows_that_have_expired(expiring):
    as_text = expiring.run("replay", "records.jsonl")
    as_json = expiring.run("replay", "records.jsonl", "--json", "--samples", "5")

    assert f"SEEN#{TEN_O_CLOCK + 3600}" in as_text.out
    assert "SEEN#1772355600" not in as_text.out
    assert "rows have expired by 2026-03-01T10:00:00Z, the time of the newest record, and are left out" in as_text.out
    assert [len(each["rows"]) for each in json.loads(as_json.out)["samples"]] == [1]


def test_rows_are_all_shown_where_no_record_has_a_time(expiring):
    lines = [json.loads(line) for line in (expiring.path / "records.jsonl").read_text().splitlines()]
    for each in lines:
        del each["dynamodb"]["ApproximateCreationDateTime"]
    expiring.run("replay", expiring.records(*lines), *STATE)

    assert len(keys(expiring.run("show", *STATE, "--json"))) == 2
