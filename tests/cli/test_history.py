"""``streamfold history``: the life of one item, and the item as it was."""

import json

import pytest

from tests.helpers.records import record

STATE = ("--state", "state.db")
APP = """
from streamfold import App, Key, Router, Table

DEVICES = Table("devices", partition="Id", sort=None)
LOG = Table("log", partition="item", sort="version")
ORDER = Key("ORDER#{order_id}", "METADATA")
DEVICE = Key("{device:number}", table=DEVICES)
TILL = Key("TILL#{till}", "METADATA")
router = Router()
router.audit(ORDER, redact=["email"], actor="by", name="audit")
router.audit(DEVICE, into=Key("{item:rest}", "{version:rest}", table=LOG), name="devices", unchanged=False)
router.audit(ORDER, into=Key("LOG#{order_id}", "{version:rest}"), name="status", fields=["status"])
router.audit(TILL, into=Key("TILLS#{version}", "{item:rest}"), name="tills")
app = App("shop", routers=[router])
"""
ORDER = ("ORDER#1", "METADATA", *STATE, "--handler", "audit")
AT = "2026-03-01T09:00:00Z"
KEYS = {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}}


@pytest.fixture
def state(folder, source):
    """A folder with the history of an order, and of a device whose first change was not recorded."""
    folder.app(APP)
    order = [
        source.put("ORDER#1", status="placed", email="a@example.com", by="ana"),
        source.put("ORDER#1", status="paid", email="b@example.com", by="bo", text="x" * 40_000),
        source.remove("ORDER#1") | {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}},
    ]
    for number, one in enumerate(order):
        one["dynamodb"]["ApproximateCreationDateTime"] += number * 60
    images = [{"Id": 9, "name": "old", "state": state} for state in ("on", "off", "on")]
    device = [record(*images[place : place + 2], place + 2, names=("Id",), table="devices") for place in (0, 1)]
    folder.run("replay", folder.records(*order, *device), *STATE)
    return folder


def test_each_change_is_shown_with_its_time_who_made_it_and_each_difference(state):
    lines = [line.strip() for line in state.run("history", *ORDER).out.splitlines()]

    assert lines[0].split() == ["at", "event", "actor", "changes"]
    assert lines[1].split(maxsplit=3) == ["2026-03-01T09:00:00.000000Z", "INSERT", "ana", "by: nothing -> ana"]
    assert lines[2:4] == ["email: nothing -> (redacted)", "status: nothing -> placed"]
    assert lines[4].split(maxsplit=3)[1:] == ["MODIFY", "bo", "by: ana -> bo"]
    assert lines[5:7] == ["email: (redacted) -> (redacted)", "status: placed -> paid"]
    assert lines[7].startswith("text: nothing -> (40,000 bytes, SHA-256 ")
    assert "REMOVE (expired)" in lines[8]


def test_without_actors_there_is_no_column_for_them(state):
    assert state.run("history", "ORDER#1", "METADATA", *STATE, "--handler", "status").out.splitlines()[0].split() == [
        "at",
        "event",
        "changes",
    ]


def test_the_last_changes_only_are_shown_when_asked_for(state):
    lines = state.run("history", *ORDER, "--limit", 2, "--json").objects()

    assert [line["event"]["S"] for line in lines] == ["MODIFY", "REMOVE"]


def test_json_has_one_change_a_line(state):
    lines = state.run("history", *ORDER, "--json").objects()

    assert [line["PK"]["S"] for line in lines] == ["AUDIT#ORDER#1|METADATA"] * 3
    assert lines[1]["changes"]["M"]["status"] == {"M": {"new": {"S": "paid"}, "old": {"S": "placed"}}}


def test_the_item_is_shown_as_it_was(state):
    ran = state.run("history", *ORDER, "--at", "2026-03-01T09:01:00Z")

    assert [line.strip().split(maxsplit=1) for line in ran.out.splitlines()][:6] == [
        ["attribute", "value"],
        ["PK", "ORDER#1"],
        ["SK", "METADATA"],
        ["by", "bo"],
        ["status", "paid"],
        ["email", "(redacted)"],
    ]
    assert "text       (40,000 bytes, SHA-256 " in ran.out
    assert ran.err == ""


def test_the_item_as_it_was_is_one_json_object(state):
    known = json.loads(state.run("history", *ORDER, "--at", AT, "--json").out)

    assert known["item"] == {**KEYS, "by": {"S": "ana"}, "status": {"S": "placed"}}
    assert (known["exists"], known["redacted"], known["whole"], known["fields"]) == (True, ["email"], True, None)
    assert json.loads(state.run("history", *ORDER, "--at", "2026-03-01T10:00:00Z", "--json").out)["item"] is None


@pytest.mark.parametrize(
    ("arguments", "out", "err"),
    [
        ((*ORDER, "--at", "2026-03-01T08:59:59Z"), "", "Unknown before 2026-03-01T09:00:00.000000Z, the time of its"),
        ((*ORDER, "--at", "2026-03-01T10:00:00Z"), "It did not exist: removed at 2026-03-01T09:02:00.000000Z.", ""),
        (("ORDER#2", *ORDER[1:], "--at", AT), "", "No rows: no change of ORDER#2 / METADATA was recorded"),
        (("ORDER#2", *ORDER[1:]), "", "No rows: no change of ORDER#2 / METADATA was recorded"),
        (("ORDER#1", "METADATA", *STATE, "--handler", "status", "--at", AT), "", "only status are recorded"),
        (
            ("9", *STATE, "--at", AT),
            "",
            "attributes that no change has touched since 2026-03-01T09:00:00.000000Z are unknown",
        ),
    ],
    ids=["before", "removed", "no rows at a time", "no rows", "some fields", "not whole"],
)
def test_what_is_not_known_is_said(state, arguments, out, err):
    ran = state.run("history", *arguments)

    assert ran.code == 0
    assert out in ran.out
    assert err in ran.err


def test_an_item_with_a_number_for_its_key_is_named_as_it_is_written(state):
    ran = state.run("history", "9", *STATE, "--json")

    assert [json.loads(line)["item"]["S"] for line in ran.out.splitlines()] == ["9", "9"]
    assert "state: off -> on" in state.run("history", "9", *STATE).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ORDER#1", "METADATA"), "Several audits record the item ORDER#1 / METADATA: say which, --handler audit or "),
        (("ORDER#1",), "No audit records the item ORDER#1: expected PARTITION and SORT of ORDER#{order_id} / METADATA"),
        (("ORDER#1", "ITEM#a"), "No audit records the item ORDER#1 / ITEM#a: expected PARTITION and SORT of "),
        (("nine",), "No audit records the item nine: expected PARTITION and SORT of "),
        (("ORDER#1", "METADATA", "--handler", "x"), "--handler 'x' is no audit of 'shop': expected audit, devices, s"),
        (("ORDER#1", "METADATA", "--at", "noon"), "--at 'noon' is no time with a time zone: expected for example 2026"),
        (("ORDER#1", "METADATA", "--at", "2026-03-01T10:00:00"), "is no time with a time zone: expected for example"),
        (
            ("TILL#1", "METADATA"),
            "each row of an item is in another partition, so they cannot be read together. Give a",
        ),
        (("9", "--state", "none.db"), "There is no state in none.db: make one with streamfold replay FILES --state"),
        (("9", "--table", "x=y"), "--table 'x=y': the application has no table 'x', only "),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_with_what_was_expected(state, arguments, message):
    given = arguments if "--state" in arguments else (*arguments, *STATE)
    ran = state.run("history", *given)

    assert ran.code == 2
    assert message in ran.err


def test_an_application_without_an_audit_is_told_how_to_declare_one(folder):
    ran = folder.run("history", "ORDER#1", "ITEM#a")

    assert (ran.code, ran.err) == (2, "Error: Application 'shop' has no audit: declare one, router.audit(ORDER).\n")


def test_texts_that_look_like_something_else_are_quoted(state, source):
    values = {"absent": "", "empty": None, "flag": True, "number": 5, "word": "nothing", "count": "5", "edge": " a"}
    values |= {"list": ["", None, "a"], "mark": "(redacted)", "plain": "a b"}
    state.run("replay", state.records(source.put("ORDER#7", **values)), *STATE)

    ran = state.run("history", "ORDER#7", *ORDER[1:])

    lines = {line.strip().split("  ")[-1].strip() for line in ran.out.splitlines()}
    expected = {
        'absent: nothing -> ""',
        'count: nothing -> "5"',
        'edge: nothing -> " a"',
        "empty: nothing -> null",
        "flag: nothing -> true",
        'list: nothing -> ["", null, a]',
        'mark: nothing -> "(redacted)"',
        "number: nothing -> 5",
        "plain: nothing -> a b",
        'word: nothing -> "nothing"',
    }
    assert expected <= lines


def test_control_characters_do_not_reach_the_terminal(state, source):
    state.run("replay", state.records(source.put("ORDER#7", note="a\x1b[2Jb")), *STATE)

    assert r"note: nothing -> a\x1b[2Jb" in state.run("history", "ORDER#7", *ORDER[1:]).out


def test_changes_without_a_time_have_rows_and_no_time(folder, source):
    folder.app(APP)
    first, second = source.put("ORDER#1", status="placed"), source.put("ORDER#1", status="paid")
    for each in (first, second):
        del each["dynamodb"]["ApproximateCreationDateTime"]
    ran = folder.run("replay", folder.records(first, second), *STATE)
    assert "Nothing failed." in ran.out
    assert folder.run("history", *ORDER).out.count("status: ") == 2
    assert "no row of ORDER#1 / METADATA has a time" in folder.run("history", *ORDER, "--at", AT).err


def test_the_records_that_the_aws_cli_prints_have_a_history(folder, source):
    folder.app(APP)
    one = source.put("ORDER#1", status="placed")
    one["dynamodb"]["ApproximateCreationDateTime"] = "2026-03-01T10:00:00+01:00"
    del one["eventSourceARN"], one["dynamodb"]["StreamViewType"]
    folder.write("cli.json", json.dumps({"Records": [one], "NextShardIterator": "arn:x"}, indent=4))
    app = APP.replace("router.audit(DEVICE", "#").replace("DEVICE = ", "DEVICE = None  # ")
    folder.app(app)
    assert "Nothing failed." in folder.run("replay", "cli.json", *STATE).out
    assert AT in folder.run("history", *ORDER).out.replace(".000000Z", "Z")
