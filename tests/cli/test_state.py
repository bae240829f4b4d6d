"""``streamfold state``: the size of the state, and what should expire."""

import json
import sqlite3
from contextlib import closing

import pytest

STATE = ("--state", "state.db")


@pytest.fixture
def state(folder, source):
    """A state of two orders of which one is gone, and should expire."""
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 2)]
    folder.run("replay", folder.records(*records, source.remove("ORDER#1", "ITEM#a")), *STATE)
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        query = "UPDATE state SET item = json_remove(item, '$.ttl') WHERE pk LIKE 'ledger#%'"
        connection.execute(query)
    return folder


def report(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_items_and_bytes_are_shown_by_purpose(state):
    ran = state.run("state", "stats", *STATE)

    headings, *lines, _, total = ran.out.splitlines()
    assert ran.code == 0
    assert headings.split() == ["purpose", "items", "bytes", "expiring", "what"]
    assert {line.split()[0]: line.split()[1] for line in lines} == {"ledger": "2", "kinds": "1", "manifest": "1"}
    assert total.startswith("4 items, ")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("x" * 5000, "it is longer than the file system takes", id="long"),
        ("shop\0.db", "it holds a NUL"),
        ("\udcff.db", "it is no text in UTF-8"),
    ],
)
def test_name_that_no_state_file_can_have_is_refused_by_each_command(state, name, why):
    commands = [("state", "stats"), ("show",), ("replay", "records.jsonl"), ("replay", "records.jsonl", "--fresh")]
    for command in commands:
        ran = state.run(*command, "--state", name)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("Error: State file '")
        assert ran.err.endswith(f"' can be no file: {why}. Name another.\n")


def test_json_has_the_same_numbers(state):
    found = report(state.run("state", "stats", *STATE, "--json"))

    assert found["purposes"]["ledger"]["items"] == 2
    assert found["purposes"]["ledger"]["expiring"] == 0
    assert found["items"] == 4
    assert found["bytes"] == sum(each["bytes"] for each in found["purposes"].values())


def test_what_holds_nothing_gets_a_time_to_live_once(state):
    dry = state.run("state", "gc", *STATE, "--dry-run")
    ran = state.run("state", "gc", *STATE)

    assert dry.out == "Dry run: 1 empty ledger items never expire. Nothing was written.\n"
    assert (ran.code, ran.out) == (0, "1 of 1 empty ledger items got a time to live.\n")
    assert report(state.run("state", "stats", *STATE, "--json"))["purposes"]["ledger"]["expiring"] == 1
    assert report(state.run("state", "gc", *STATE, "--json")) == {
        "dry_run": False,
        "found": 0,
        "marked": 0,
        "busy": [],
    }
    assert state.totals() == {"ORDER#2": 2}


def test_an_item_that_others_change_all_the_time_is_told(state, monkeypatch):
    monkeypatch.setattr("streamfold.engines.embedded.EmbeddedEngine.swap_state", lambda *_: False)
    monkeypatch.setattr("streamfold.engines.deadline.Deadline.wait", lambda *_: None)

    ran = state.run("state", "gc", *STATE)

    assert ran.code == 1
    assert ran.err == (
        "Busy: state item ledger#shop#main#main#S#ORDER#1 / S#ITEM#a: other writers changed it at every try.\n"
    )


@pytest.mark.parametrize("command", ["stats", "gc"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_is_there(folder, command, option):
    ran = folder.run("state", command, option)

    assert ran.code == 0
    assert ran.out.startswith(f"Usage: streamfold state {command}")


def test_a_state_that_is_not_there_is_told(folder):
    ran = folder.run("state", "stats")

    assert ran.code == 2
    assert "Error: There is no state in .streamfold/replay.db: make one with" in ran.err


@pytest.mark.parametrize("command", [("verify",), ("replay", "records.jsonl"), ("replay", "records.jsonl", "--fresh")])
def test_a_folder_in_place_of_a_state_is_told(folder, command):
    folder.write("records.jsonl", "")
    folder.write("states/shop.db", "")

    ran = folder.run(*command, "--state", "states")

    assert ran.code == 2
    assert ran.err == "Error: State file states is a folder: expected a file, for example states/replay.db.\n"


def test_a_state_on_dynamodb_is_marked_once_it_was_said_where(on_aws, source):
    on_aws.deliver(source.put("ORDER#1", "ITEM#a", price=1))
    on_aws.deliver(source.remove("ORDER#1", "ITEM#a"))
    key = {"pk": {"S": "ledger#shop#main#main#S#ORDER#1"}, "sk": {"S": "S#ITEM#a"}}
    removed = {"UpdateExpression": "REMOVE #t", "ExpressionAttributeNames": {"#t": "ttl"}}
    on_aws.client.update_item(TableName="shop-state", Key=key, **removed)

    asked, ran = on_aws.run("state", "gc"), on_aws.run("state", "gc", "--yes")

    assert (asked.code, ran.code) == (2, 0)
    assert "give --yes to write to AWS." in asked.err
    assert "ttl" in on_aws.client.get_item(TableName="shop-state", Key=key)["Item"]
    assert report(on_aws.run("state", "stats", "--json"))["purposes"]["ledger"]["expiring"] == 1
