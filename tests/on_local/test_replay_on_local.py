"""Replays, ``show`` and ``record`` on DynamoDB Local: the same rows as on the embedded engine, in every case."""

import gzip
import json
import math
import random
import signal
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import boto3
import pytest

from handlers import app
from streamfold.replay.stream import StreamReader
from streamfold.testing import KinesisTwin
from tests.helpers import commands
from tests.helpers.commands import EVENTS, ROOT, SPECIAL, Ran, command_line, environment, shown
from tests.helpers.here import streamfold
from tests.helpers.kills import KILLS_CI, KILLS_NIGHTLY, check_kills, timed
from tests.helpers.template import create_table, load_template
from tests.on_local.conftest import client_of, new_access_key
from tests.workload import sessions

embedded_rows = partial(commands.embedded_rows, run=streamfold)
TABLE, STATE = "shop", "shop-state"
SHOP, SESSIONS = ROOT / "events" / "shop.jsonl", ROOT / "events" / "sessions.jsonl"
TEMPLATE = load_template()
AT_NIGHT = [pytest.mark.nightly]
REPLAYED = [
    *(pytest.param([file], id=file.stem) for file in SPECIAL),
    *(pytest.param([file], id=file.stem, marks=AT_NIGHT) for file in EVENTS),
    pytest.param(EVENTS, id="all", marks=AT_NIGHT),
]
"""The large files only at night: with each change, their beginnings, and all of them by the built function
(``test_artifact.py``)."""
BEGINNING = 100
WITH_SOURCES = [
    pytest.param(file, id=file.stem, marks=AT_NIGHT * (file.stem not in ("sessions", "gaming"))) for file in EVENTS
]
"""Sessions expire, and items of games change often."""
CHAINED = "TOTALS#ALL"
"""Partition of the one row whose handler, all_orders, reads derived rows."""

FLAT = """
from streamfold import App, Count, Key, Router, Row

router = Router()


@router.view(Key("SESSION#{session_id}", "METADATA"), into=Key("USER#{user_id}", "SESSIONS"))
def sessions(session):
    yield Row(user_id=session["user_id"], sessions=Count())


app = App("flat", routers=[router])
"""
"""An application without chains."""


CASCADING = """
from streamfold import App, Key, Router

router = Router()
router.cascade(Key("ORDER#{order_id}", "METADATA"), children=[Key("ORDER#{order_id}", "ITEM#{sku}")], name="cascade")

app = App("orders", routers=[router])
"""
"""An application that removes children."""


TWO_TABLES = """
from streamfold import App, Count, Key, Router, Row, Sum, Table

SHOP = Table("shop")
TOTALS = Table("totals", partition="name", sort=None)
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}", table=SHOP)
ORDER_TOTAL = Key("ORDER#{order_id}", table=TOTALS)
BY_LINES = Key("LINES#{lines}", "TOTAL", table=SHOP)
ALL = Key("ALL", table=TOTALS)

router = Router()


@router.view(ORDER_TOTAL, into=BY_LINES)
def by_lines(order):
    yield Row(lines=str(order["lines"]), orders=Count(), total=Sum(order["total"]))


@router.view(BY_LINES, into=ALL)
def everything(row):
    yield Row(orders=Sum(row["orders"]), total=Sum(row["total"]))


@router.view(ORDER_ITEM, into=ORDER_TOTAL)
def order_total(item):
    yield Row(total=Sum(item["price"] * item["quantity"]), lines=Count())


app = App("two", routers=[router])
"""
"""An application whose chain leads from one table to another, back, and there again; declared last to first."""


WITH_ITEMS = ("--create-tables", "--put-sources")
"""For handlers that look others up: what is not in the table is taken for removed."""


class Local:
    """Commands on the database of one test in DynamoDB Local."""

    def __init__(self, endpoint, access_key, client, streams):
        self.variables = {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": client.meta.region_name,
        }
        self.arguments = {
            "endpoint_url": endpoint,
            "region_name": client.meta.region_name,
            "aws_access_key_id": access_key,
            "aws_secret_access_key": "secret",
        }
        self.at = ("--endpoint-url", endpoint)
        self.on = ("--engine", "dynamodb", *self.at)
        self.client = client
        self.streams = streams

    def run(self, *arguments, **more):
        return streamfold(*arguments, **self.variables, **more)

    def replay(self, *files, code=0, **more):
        ran = self.run("replay", *files, *self.on, **more)
        assert ran.code == code, ran.err
        return ran

    def show(self, *arguments, table=f"main={TABLE}", **more):
        return self.run("show", *self.on, "--table", table, *arguments, **more)

    def rows(self, *arguments, **more):
        return shown(self.show("--json", *arguments, **more))

    def create(self, *, stream=True, state=STATE):
        template = TEMPLATE
        if not stream:
            template = load_template()
            del template["Resources"]["Table"]["Properties"]["StreamSpecification"]
        create_table(self.client, template, "Table", TABLE)
        create_table(self.client, template, "StateTable", state)

    def drop(self):
        for name in self.tables():
            self.client.delete_table(TableName=name)

    def stream_records(self, table=TABLE):
        reader = StreamReader(self.client, self.streams, table)
        return [record for page in reader.pages() for record in page.records]

    def row_count(self):
        return self.client.scan(TableName=TABLE, Select="COUNT")["Count"]

    def tables(self):
        return self.client.list_tables()["TableNames"]


@pytest.fixture
def local(dynamodb_endpoint, access_key, dynamodb, dynamodbstreams):
    return Local(dynamodb_endpoint, access_key, dynamodb, dynamodbstreams)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The first 300 records of the shop: enough of everything, and quick."""
    path = tmp_path_factory.mktemp("replay") / "small.jsonl"
    path.write_text("".join(SHOP.read_text("utf-8").splitlines(keepends=True)[:300]), "utf-8")
    return path


class Embedded(NamedTuple):
    """A state of the embedded engine, and its rows."""

    state: Path
    rows: set


@pytest.fixture(scope="module")
def embedded(small):
    """What the small file leads to on the embedded engine, for tests that only read it."""
    state = small.with_suffix(".db")
    return Embedded(state, embedded_rows(small, state=state))


class Replayed(NamedTuple):
    """A database that the small file was replayed into, and what the command printed."""

    local: Local
    ran: Ran


@pytest.fixture(scope="module")
def replayed(dynamodb_endpoint, dynamodb_control, small):
    """What the small file leads to on DynamoDB, for tests that only read it."""
    with new_access_key(dynamodb_control) as key, closing(client_of(dynamodb_endpoint, key)) as client:
        local = Local(dynamodb_endpoint, key, client, None)
        yield Replayed(local, local.replay(small, *WITH_ITEMS))


# --- the same rows as on the embedded engine --------------------------------------------------------------------------


@pytest.mark.parametrize("files", REPLAYED)
def test_replay_leads_to_the_rows_of_the_embedded_replay(local, tmp_path, files):
    local.create()  # without time to live: rows of old records would go while they are compared
    local.replay(*files, "--put-sources")
    assert local.rows() == embedded_rows(*files, state=tmp_path / "embedded.db")


@pytest.mark.parametrize("batch_records", [1, 7, 100])
def test_batch_size_makes_no_difference(local, small, embedded, batch_records):
    local.replay(small, *WITH_ITEMS, "--batch-size", batch_records)
    assert local.rows() == embedded.rows


def test_chains_are_followed_to_their_end(replayed, embedded):
    assert f"Created table {TABLE}." in replayed.ran.err
    (total,) = replayed.local.rows(CHAINED)
    assert total in shown(streamfold("show", "--state", embedded.state, "--json", CHAINED))


def test_the_beginnings_of_all_files_lead_to_the_rows_of_the_embedded_replay(local, tmp_path):
    begun = [tmp_path / file.name for file in EVENTS]
    for file, beginning in zip(EVENTS, begun, strict=True):
        beginning.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[:BEGINNING]), "utf-8")
    local.create()
    local.replay(*begun, "--put-sources")
    expected = embedded_rows(*begun, state=tmp_path / "embedded.db")
    assert without_late_authors(local.rows()) == without_late_authors(expected)


def without_late_authors(rows):
    """Rows, but the authors of posts that have expired in feeds.

    An author's change reaches young posts only, and on DynamoDB the machine's clock says which posts of a recording are
    young (``Runtime.item_clock``).
    """
    return {
        frozenset(pair for pair in row if pair[0] != "author") if is_expired_post(dict(row)) else row for row in rows
    }


def is_expired_post(row):
    partition, expires = row["PK"][1], row.get("expires", ("N", math.inf))[1]
    return partition.startswith("HOME#") and expires < time.time()


def test_chains_lead_from_table_to_table_and_back(local, tmp_path, small):
    (tmp_path / "two.py").write_text(TWO_TABLES)
    here = {"folder": tmp_path}
    local.replay(small, "--app", "two:app", "--table", "totals=numbers", "--create-tables", **here)
    assert local.tables() == ["numbers", "shop", "two-state"]
    rows = local.rows("--app", "two:app", table="totals=numbers", **here)
    assert rows == embedded_rows(small, state=tmp_path / "embedded.db", more=("--app", "two:app"), **here)
    assert {name for row in rows for name, _ in row} >= {"name", "PK"}


def test_notices_of_kinesis_late_and_twice_lead_to_the_rows_of_the_embedded_replay(local, tmp_path, small):
    kinesis = KinesisTwin()
    notices = [kinesis.append(json.loads(line)) for line in small.read_text("utf-8").splitlines()]
    notices += map(kinesis.again, notices[::3])
    random.Random(1).shuffle(notices)
    told = tmp_path / "told.jsonl"
    told.write_text("".join(json.dumps(notice) + "\n" for notice in notices), "utf-8")
    local.replay(told, "--create-tables", "--put-sources", "--batch-size", 7)
    assert local.rows() == embedded_rows(told, state=tmp_path / "embedded.db")


def test_second_replay_changes_nothing(local, small):
    local.replay(small, "--create-tables")
    rows, records = local.rows("--raw"), len(local.stream_records())
    local.replay(small)
    assert local.rows("--raw") == rows
    assert len(local.stream_records()) == records


def test_records_in_any_redelivery_lead_to_the_same_rows(local, tmp_path, small, embedded):
    lines = small.read_text("utf-8").splitlines(keepends=True)
    again = tmp_path / "again.jsonl.gz"
    again.write_bytes(gzip.compress("".join(lines[:200] + lines[120:] + lines[50:90] + lines).encode()))
    local.replay(again, *WITH_ITEMS, "--batch-size", 50)
    assert local.rows() == embedded.rows


# --- a table without a stream -----------------------------------------------------------------------------------------


def not_chained(rows):
    return {row for row in rows if ("PK", ("S", CHAINED)) not in row}


def test_chains_are_named_as_not_run_where_the_table_has_no_stream(local, small, embedded):
    local.create(stream=False)
    ran = local.replay(small, "--put-sources", code=1)
    assert f"Chains were not run: {', '.join(sorted(app.chained))}." in ran.err
    assert local.rows() == not_chained(embedded.rows)


def test_chains_are_named_as_not_run_where_the_stream_was_switched_off(local, small):
    local.create()
    local.client.update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})
    ran = local.replay(small, code=1)
    assert f"Chains were not run: {', '.join(sorted(app.chained))}." in ran.err


def test_rows_made_before_the_stream_was_there_are_chained_only_on_empty_tables(local, small):
    local.create(stream=False)
    assert "replay onto empty tables" in local.replay(small, code=1).err
    stream = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    local.client.update_table(TableName=TABLE, StreamSpecification=stream)
    local.replay(small)
    assert local.rows(CHAINED) == set()


def test_replay_without_chains_needs_no_stream(local, tmp_path):
    (tmp_path / "flat.py").write_text(FLAT)
    local.create(stream=False, state="flat-state")
    local.replay(SESSIONS, "--app", "flat:app", folder=tmp_path)
    more = ("--app", "flat:app")
    assert local.rows(*more, folder=tmp_path) == embedded_rows(
        SESSIONS, folder=tmp_path, state=tmp_path / "e.db", more=more
    )


def test_rehearsal_removes_children_of_the_items_that_it_put_and_a_replay_without_sources_leaves_them(
    local, tmp_path, source
):
    (tmp_path / "orders.py").write_text(CASCADING)
    records = [source.put("ORDER#1"), source.put("ORDER#1", "ITEM#a"), source.put("ORDER#2", "ITEM#a")]
    lines = "".join(f"{json.dumps(record)}\n" for record in (*records, source.remove("ORDER#1")))
    (tmp_path / "orders.jsonl").write_text(lines)
    more = ("--app", "orders:app")
    ran = local.replay("orders.jsonl", "--create-tables", *more, folder=tmp_path)
    assert "Cascade cascade was not carried out for 1 removed items" in ran.out
    ran = local.replay("orders.jsonl", "--put-sources", "--json", *more, folder=tmp_path)
    assert [row["removed"] for row in json.loads(ran.out)["handlers"]] == [1]
    left = local.client.scan(TableName="main")["Items"]
    assert [(item["PK"]["S"], item["SK"]["S"]) for item in left] == [("ORDER#2", "ITEM#a")]


# --- what the summary says --------------------------------------------------------------------------------------------


def test_summary_is_about_the_records_of_the_files_and_not_those_of_the_chains(local, tmp_path, small):
    ran = local.replay(small, "--create-tables", "--json")
    embedded = streamfold("replay", small, "--json")
    assert json.loads(ran.out)["unrouted"] == json.loads(embedded.out)["unrouted"]
    assert json.loads(ran.out)["known"] == 0


def test_command_that_is_named_to_show_the_rows_works(replayed, embedded):
    (named,) = [line for line in replayed.ran.out.splitlines() if line.startswith("Next: streamfold ")]
    command = named.removeprefix("Next: streamfold ").split("    ")[0].split()
    assert shown(replayed.local.run(*command, "--json")) == embedded.rows


def test_skipped_records_are_counted_without_an_option_that_dynamodb_does_not_have(local):
    local.replay(SESSIONS, "--create-tables")
    ran = local.replay(SESSIONS)
    assert "Known to the state before: " in ran.out
    assert "--fresh" not in ran.out


# --- source items -----------------------------------------------------------------------------------------------------


def test_source_items_are_written_only_when_asked_for(local):
    local.replay(SESSIONS, "--create-tables")
    assert local.rows("--source") == set()


@pytest.mark.parametrize("file", WITH_SOURCES)
def test_put_sources_leaves_the_newest_image_of_every_item(local, tmp_path, file):
    local.create()  # without time to live: old sessions would go
    local.replay(file, "--put-sources")
    state = tmp_path / "embedded.db"
    rows = embedded_rows(file, state=state)
    assert local.rows("--source") == shown(streamfold("show", "--state", state, "--source", "--json"))
    assert local.rows() == rows


def test_older_records_put_no_source_item_over_a_newer_one(local, tmp_path):
    lines = SESSIONS.read_text().splitlines(keepends=True)
    halves = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for half, some in zip(halves, (lines[:200], lines[200:]), strict=True):
        half.write_text("".join(some))
    local.create()
    for half in reversed(halves):
        local.replay(half, "--put-sources")
    embedded_rows(SESSIONS, state=tmp_path / "embedded.db")
    expected = shown(streamfold("show", "--state", tmp_path / "embedded.db", "--source", "--json"))
    assert local.rows("--source") == expected


# --- tables that are missing ------------------------------------------------------------------------------------------


def test_missing_tables_are_named_with_the_remedy(local, small):
    ran = local.replay(small, code=2)
    assert f"Error: Tables are missing: {TABLE}, {STATE} do not exist" in ran.err
    assert "--create-tables" in ran.err


def test_missing_state_table_alone_is_reported_and_nothing_is_written(local, small):
    create_table(local.client, TEMPLATE, "Table", TABLE)
    assert f"A table is missing: {STATE} does not exist" in local.replay(small, code=2).err
    assert local.stream_records() == []


@pytest.mark.parametrize("arguments", [(), ("--state-items",)])
def test_show_of_a_missing_table_says_so(local, arguments):
    ran = local.show(*arguments)
    assert ran.code == 2
    assert f"Error: Tables are missing: {TABLE}, {STATE} do not exist" in ran.err


def test_dry_run_creates_no_table_and_writes_nothing(local, small):
    ran = local.replay(small, "--create-tables", "--dry-run")
    assert "nothing was written" in ran.out
    assert local.tables() == []


def test_existing_tables_are_kept(local, small):
    local.create()
    assert "Created" not in local.replay(small, "--create-tables").err


def test_state_table_and_table_may_have_any_names(local, small, embedded):
    names = {"STREAMFOLD_STATE_TABLE": "ledger", "STREAMFOLD_TABLE_MAIN": TABLE}
    ran = streamfold("replay", small, *local.on, *WITH_ITEMS, **local.variables, **names)
    assert ran.code == 0
    assert local.tables() == ["ledger", TABLE]
    ran = streamfold("show", *local.on, "--json", **local.variables, **names)
    assert shown(ran) == embedded.rows


# --- files that do not tell the table ---------------------------------------------------------------------------------


def test_table_is_told_by_the_first_good_record_behind_bad_lines(local, tmp_path, small, embedded):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('no\n"no"\n' + small.read_text("utf-8"), "utf-8")
    ran = local.replay(bad, *WITH_ITEMS, "--keep-going", code=1)
    assert f"Bad line: {bad}:1" in ran.err
    assert local.tables() == [TABLE, STATE]
    assert local.rows() == embedded.rows


@pytest.mark.parametrize("text", ["", '{"eventName": "INS'], ids=["empty", "truncated"])
def test_file_without_a_good_record_creates_no_table(local, tmp_path, text):
    file = tmp_path / "none.jsonl"
    file.write_text(text, "utf-8")
    ran = local.replay(file, "--create-tables", code=2)
    assert "--table main=REAL" in ran.err
    assert (f"{file}:1" in ran.err) == bool(text)
    assert local.tables() == []


# --- show -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("ORDER#000001",), ("SALES#2026-03-01", "SKU#P"), ("--limit", "3"), ("ORDER#000001", "--limit", "1"), ("NOBODY",)],
    ids=" ".join,
)
def test_show_prints_the_same_rows_in_the_same_order(replayed, embedded, arguments):
    ran = replayed.local.show("--json", *arguments)
    expected = streamfold("show", "--state", embedded.state, "--json", *arguments)
    assert shown(ran) == shown(expected)
    assert keys_of(ran) == keys_of(expected)


def keys_of(ran):
    return [[json.loads(line)[name] for name in ("PK", "SK")] for line in ran.out.splitlines()]


def test_show_on_a_terminal_prints_a_table_of_rows(replayed):
    ran = replayed.local.show("ORDER#000001")
    assert ran.code == 0
    assert ran.out.split()[:4] == ["PK", "SK", "attributes", "ORDER#000001"]


def test_show_of_state_items_names_ledger_and_manifest(replayed):
    items = [json.loads(line) for line in replayed.local.show("--state-items", "--json").out.splitlines()]
    assert any("handlers" in item for item in items)
    assert any("order_total.v" in item for item in items)


def test_show_needs_the_real_name_of_a_table_that_the_application_does_not_name(local):
    ran = local.run("show", *local.on)
    assert ran.code == 2
    assert ran.err == "Error: The application's keys name no table: give the real one, --table main=REAL.\n"


# --- record -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(local):
    """A table to which a seeded workload writes: ``written(seed)`` runs it once more."""
    local.create()
    resource = boto3.resource("dynamodb", **local.arguments)
    yield lambda seed: sessions.run(resource.Table(TABLE), seed)
    resource.meta.client.close()


def record(local, out, *arguments, code=0, table=TABLE):
    ran = local.run("record", "--table", table, *local.at, "--out", out, *arguments)
    assert ran.code == code, ran.err
    return ran


def test_recorded_stream_replays_to_the_same_rows(local, written, tmp_path):
    written(1)
    out = tmp_path / "sessions.jsonl"
    ran = record(local, out)
    assert "will hold the contents of the items" in ran.err
    records = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert f"{len(records)} records (" in ran.out
    assert len(records) > 300

    local.replay(out)
    assert local.rows() == embedded_rows(out, state=tmp_path / "embedded.db")


def test_recording_goes_on_where_it_ended_and_holds_every_record_once(local, written, tmp_path):
    out = tmp_path / "sessions.jsonl"
    written(1)
    record(local, out)
    first = out.read_bytes()
    assert "0 records (nothing new)" in record(local, out).out
    assert out.read_bytes() == first

    written(2)
    summary = json.loads(record(local, out, "--json").out)
    records = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert out.read_bytes().startswith(first)
    assert summary["records"] == len(records) - len(first.splitlines())
    assert records == local.stream_records()


def test_recording_of_a_table_with_derived_rows_replays_to_the_same_rows(local, written, tmp_path):
    source, whole = tmp_path / "source.jsonl", tmp_path / "whole.jsonl"
    written(1)
    record(local, source)
    local.replay(source)
    record(local, whole)
    ran = streamfold("replay", whole, "--json")
    assert json.loads(ran.out)["derived"] > 0
    assert embedded_rows(whole, state=tmp_path / "embedded.db") == local.rows()


def test_recording_that_follows_ends_well_when_it_is_interrupted(local, written, tmp_path):
    out = tmp_path / "sessions.jsonl"
    command = command_line("record", "--table", TABLE, *local.at, "--out", out, "--follow")
    with subprocess.Popen(
        command, env=environment(**local.variables), stderr=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        written(1)
        expected = len(local.stream_records())
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") == expected)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"{expected} records (".encode() in printed


def test_recording_that_is_killed_goes_on_and_holds_every_record_once(local, written, tmp_path):
    out = tmp_path / "sessions.jsonl"
    written(1)
    for _ in range(3):
        command = command_line("record", "--table", TABLE, *local.at, "--out", out, "--follow")
        with subprocess.Popen(
            command, env=environment(**local.variables), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            wait_until(lambda: out.exists() and out.stat().st_size)
            time.sleep(random.uniform(0, 0.2))
            process.kill()
        written(2)
    record(local, out)
    assert [json.loads(line) for line in out.read_text("utf-8").splitlines()] == local.stream_records()


def test_record_of_a_missing_table_and_of_one_without_a_stream_says_so(local, tmp_path):
    assert "Table 'shop' does not exist" in record(local, tmp_path / "out.jsonl", code=2).err
    local.create(stream=False)
    assert "Table 'shop' has no stream" in record(local, tmp_path / "out.jsonl", code=2).err


def test_record_into_a_folder_that_is_missing_says_so(local, tmp_path):
    local.create()
    ran = record(local, tmp_path / "missing" / "out.jsonl", code=2)
    assert "Traceback" not in ran.err
    assert str(tmp_path / "missing") in ran.err


def wait_until(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- killed -----------------------------------------------------------------------------------------------------------

KILLED_BATCHES = (3, 10, 50, 1000)
KILLS = KILLS_CI // len(KILLED_BATCHES)
"""Kills of one test."""


def check_killed_replays(local, small, embedded, seed, batch_size):
    def command(number):
        local.drop()
        local.create()
        return command_line("replay", small, *local.on, "--put-sources", "--batch-size", batch_size)

    def check(number):
        assert local.rows() == embedded.rows

    local.create()
    begin_seconds = timed(command_line("show", *local.on, "--table", f"main={TABLE}"), **local.variables)
    check_kills(KILLS, random.Random(seed), begin_seconds, command, check, **local.variables)


@pytest.mark.longest
@pytest.mark.parametrize("batch_size", KILLED_BATCHES)
def test_replay_that_is_killed_at_any_moment_and_run_again_leads_to_the_same_rows(local, small, embedded, batch_size):
    check_killed_replays(local, small, embedded, 0, batch_size)


@pytest.mark.nightly
@pytest.mark.parametrize("batch_size", KILLED_BATCHES)
@pytest.mark.parametrize("seed", range(1, 1 + KILLS_NIGHTLY // KILLS_CI))
def test_replay_that_is_killed_many_times_leads_to_the_same_rows(local, small, embedded, seed, batch_size):
    check_killed_replays(local, small, embedded, seed, batch_size)
