"""``streamfold retire``: what it takes, refuses, prints and leaves."""

import json

import pytest

from tests.cli.test_explain import SHOP as WITH_ATTRIBUTES
from tests.cli.test_repair import CHAIN, TWO

STATE = ("--state", "state.db")
WITHOUT = TWO.replace('@router.view(ITEM, into=Key("ALL", "TOTAL"))\n', "").replace(
    "routers=[router]", 'routers=[router], retired=["everything"]'
)


@pytest.fixture
def records(source):
    return [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 2, 3)]


@pytest.fixture
def state(folder, records):
    folder.app(TWO)
    folder.run("replay", folder.records(*records), *STATE)
    return folder


def ledger(folder):
    lines = folder.run("show", *STATE, "--json", "--state-items").out.splitlines()
    return [item for item in map(json.loads, lines) if item["pk"]["S"].startswith("ledger#")]


def report(ran):
    return json.loads(ran.out)


def test_what_a_handler_contributed_is_taken_back_and_its_parts_go(state):
    ran = state.run("retire", "everything", "--rows", "remove", *STATE)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        (
            "Handler everything: 3 ledger items, 3 with a contribution; 4 writes of rows, 3 removed from the state, "
            "0 kept."
        ),
        'Next: take the handler out of the code, App(..., retired=["everything"]).',
    ]
    assert [key for key in state.rows(*STATE) if "ORDER" not in key] == ["CHANGES / TOTAL"]
    assert all("everything.v" not in item and "order_total.v" in item for item in ledger(state))


def test_rows_that_are_kept_stay(state):
    before = state.rows(*STATE)

    assert state.run("retire", "everything", "--rows", "keep", *STATE).code == 0

    assert state.rows(*STATE) == before
    assert all("everything.v" not in item for item in ledger(state))


def test_a_handler_is_not_retired_while_a_run_leads_it_to_items(state):
    job = json.loads(state.run("backfill", "everything", "--runner", "elsewhere", *STATE).out.splitlines()[-1])["job"]
    before = state.rows(*STATE)

    ran = state.run("retire", "everything", "--rows", "keep", *STATE)

    assert ran.code == 2
    assert f"Job {job} runs handler 'everything' over all items, and has not ended" in ran.err
    assert f"streamfold jobs --end {job}." in ran.err
    assert state.rows(*STATE) == before
    assert state.run("jobs", "--end", job, *STATE).code == 0
    assert state.run("retire", "everything", "--rows", "keep", *STATE).code == 0
    assert state.rows(*STATE) == before


def test_a_retired_handler_leaves_the_state_without_its_code(state):
    state.app(WITHOUT)

    assert state.run("retire", "everything", "--rows", "keep", *STATE).code == 0
    ran = state.run("retire", "everything", "--rows", "remove", *STATE)

    assert ran.code == 2
    assert "Error: Handler 'everything' is retired, and its rows can only be taken back by code" in ran.err


def test_a_dry_run_counts_and_writes_nothing(state):
    before = ledger(state)

    ran = state.run("retire", "everything", "--rows", "remove", *STATE, "--dry-run")
    keep = state.run("retire", "everything", "--rows", "keep", *STATE, "--dry-run")

    assert ran.code == 0
    assert ran.out.startswith(
        "Dry run: 3 ledger items, 3 with a contribution. Contributions would be taken back from rows."
    )
    assert "Rows would be kept. Nothing was written." in keep.out
    assert ledger(state) == before


def test_json_has_the_counts(state):
    assert report(state.run("retire", "everything", "--rows", "remove", *STATE, "--json")) == {
        "handler": "everything",
        "rows": "remove",
        "dry_run": False,
        "parts": 3,
        "stored": 3,
        "row_writes": 4,
        "dropped": 3,
        "kept": [],
        "chains_failed": 0,
    }


def test_parts_that_are_kept_are_told(state, monkeypatch):
    monkeypatch.setattr("streamfold.engines.embedded.EmbeddedEngine.swap_state", lambda *_: False)
    monkeypatch.setattr("streamfold.engines.deadline.Deadline.wait", lambda *_: None)
    monkeypatch.setattr("streamfold.cli.output.SHOWN_MAX", 2)

    ran = state.run("retire", "everything", "--rows", "keep", *STATE)

    assert ran.code == 1
    assert ran.err.splitlines() == [
        "Kept: item ORDER#1 / ITEM#a: Others changed it at each of 8 tries.",
        "Kept: item ORDER#2 / ITEM#a: Others changed it at each of 8 tries.",
        "... and 1 more; --json has them all.",
    ]
    assert "Next:" not in ran.out


def test_handlers_behind_the_rows_follow(folder, records):
    folder.app(CHAIN)
    folder.run("replay", folder.records(*records), *STATE)

    assert folder.run("retire", "order_total", "--rows", "remove", *STATE).code == 0

    assert folder.rows(*STATE) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("everything",), "Error: Missing option '--rows'."),
        (
            ("everythin", "--rows", "keep"),
            "Error: The command names 'everythin', which is no handler of the application",
        ),
        (("changes", "--rows", "keep"), "Error: Handler 'changes' is of kind on: the state keeps nothing of it that"),
        (("--rows", "keep"), "Error: Missing argument 'HANDLER'."),
    ],
)
def test_mistake_is_told(state, arguments, message):
    ran = state.run("retire", *arguments, *STATE)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_handler_on_dynamodb_is_switched_off_first(on_aws, records, monkeypatch):
    on_aws.folder.app(TWO)
    on_aws.deliver(*records)
    manifest = on_aws.manifest()

    running = on_aws.run("retire", "everything", "--rows", "remove", "--yes")
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "everything")
    asked = on_aws.run("retire", "everything", "--rows", "remove")
    ran = on_aws.run("retire", "everything", "--rows", "remove", "--yes")

    assert running.code == 2
    assert "Error: Handler 'everything' is not switched off: a record that reaches it afterwards would" in running.err
    assert asked.code == 2
    assert "Nobody can be asked for confirmation here: give --yes" in asked.err
    assert ran.code == 0, ran.err
    assert on_aws.row("ALL") is None
    assert on_aws.row("ORDER#2")["total"] == {"N": "2"}
    assert on_aws.manifest() == manifest
    assert not any("everything.v" in item for item in on_aws.state())


def test_attributes_that_a_handler_derived_onto_items_go(folder, records):
    folder.app(WITH_ATTRIBUTES)
    folder.run("replay", folder.records(*records), *STATE)
    assert "GSI" in folder.rows(*STATE, "--source")["ORDER#1 / ITEM#a"]

    ran = folder.run("retire", "derived", "--rows", "remove", *STATE)

    assert ran.code == 0, ran.err
    assert "GSI" not in folder.rows(*STATE, "--source")["ORDER#1 / ITEM#a"]
    assert folder.run("explain", "ORDER#1", "TOTAL", *STATE).code == 0
