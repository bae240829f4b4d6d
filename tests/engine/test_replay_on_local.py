"""Replays, ``show`` and ``record`` on DynamoDB Local: the same rows as on the embedded engine, in every case."""

import gzip
import json

import pytest

from streamfold.stream import StreamReader
from tests.commands import EVENTS, ROOT, SPECIAL, embedded_rows, shown, streamfold
from tests.template import create_table, load_template

TABLE, STATE = "shop", "shop-state"
SHOP, SESSIONS = ROOT / "events" / "shop.jsonl", ROOT / "events" / "sessions.jsonl"
TEMPLATE = load_template()
REPLAYED = [*([file] for file in [*EVENTS, *SPECIAL]), EVENTS]
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


class Local:
    """Commands on the database of one test in DynamoDB Local."""

    def __init__(self, endpoint, access_key, client, streams):
        self.variables = {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": client.meta.region_name,
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

    def stream_records(self, table=TABLE):
        reader = StreamReader(self.client, self.streams, table)
        return [record for page in reader.pages() for record in page.records]

    def tables(self):
        return self.client.list_tables()["TableNames"]


@pytest.fixture
def local(dynamodb_endpoint, access_key, dynamodb, dynamodbstreams):
    return Local(dynamodb_endpoint, access_key, dynamodb, dynamodbstreams)


@pytest.fixture
def small(tmp_path):
    """The first 300 records of the shop: enough of everything, and quick."""
    path = tmp_path / "small.jsonl"
    path.write_text("".join(SHOP.read_text("utf-8").splitlines(keepends=True)[:300]), "utf-8")
    return path


# --- the same rows as on the embedded engine --------------------------------------------------------------------------


@pytest.mark.parametrize("files", REPLAYED, ids=lambda files: files[0].stem if len(files) == 1 else "all")
def test_replay_leads_to_the_rows_of_the_embedded_replay(local, tmp_path, files):
    ran = local.replay(*files, "--create-tables")
    assert f"Created table {TABLE}." in ran.err
    assert local.rows() == embedded_rows(*files, state=tmp_path / "embedded.db")


@pytest.mark.parametrize("batch_records", [1, 7, 100])
def test_batch_size_makes_no_difference(local, tmp_path, small, batch_records):
    local.replay(small, "--create-tables", "--batch-size", batch_records)
    assert local.rows() == embedded_rows(small, state=tmp_path / "embedded.db")


def test_chains_are_followed_to_their_end(local, tmp_path, small):
    local.replay(small, "--create-tables")
    (total,) = local.rows("TOTALS#ALL")
    assert total in embedded_rows(small, state=tmp_path / "embedded.db", show=("TOTALS#ALL",))


def test_second_replay_changes_nothing(local, small):
    local.replay(small, "--create-tables")
    rows, records = local.rows("--raw"), len(local.stream_records())
    local.replay(small)
    assert local.rows("--raw") == rows
    assert len(local.stream_records()) == records


def test_records_in_any_redelivery_lead_to_the_same_rows(local, tmp_path, small):
    lines = small.read_text("utf-8").splitlines(keepends=True)
    again = tmp_path / "again.jsonl.gz"
    again.write_bytes(gzip.compress("".join(lines[:200] + lines[120:] + lines[50:90] + lines).encode()))
    local.replay(again, "--create-tables", "--batch-size", 50)
    assert local.rows() == embedded_rows(small, state=tmp_path / "embedded.db")


# --- a table without a stream -----------------------------------------------------------------------------------------


def not_chained(rows):
    return {row for row in rows if ("PK", ("S", CHAINED)) not in row}


def test_chains_are_named_as_not_run_where_the_table_has_no_stream(local, tmp_path, small):
    local.create(stream=False)
    ran = local.replay(small, code=1)
    assert "Chains were not run: all_orders." in ran.err
    assert local.rows() == not_chained(embedded_rows(small, state=tmp_path / "embedded.db"))


def test_chains_are_named_as_not_run_where_the_stream_was_switched_off(local, tmp_path, small):
    local.create()
    local.client.update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})
    ran = local.replay(small, code=1)
    assert "Chains were not run: all_orders." in ran.err


def test_rows_made_before_the_stream_was_there_are_chained_only_on_empty_tables(local, tmp_path, small):
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


# --- what the summary says --------------------------------------------------------------------------------------------


def test_summary_is_about_the_records_of_the_files_and_not_those_of_the_chains(local, tmp_path, small):
    ran = local.replay(small, "--create-tables", "--json")
    embedded = streamfold("replay", small, "--json")
    assert json.loads(ran.out)["unrouted"] == json.loads(embedded.out)["unrouted"]
    assert json.loads(ran.out)["known"] == 0


def test_command_that_is_named_to_show_the_rows_works(local, small):
    ran = local.replay(small, "--create-tables")
    (named,) = [line for line in ran.out.splitlines() if line.startswith("Next: streamfold ")]
    command = named.removeprefix("Next: streamfold ").split("    ")[0].split()
    assert shown(local.run(*command, "--json")) == local.rows()


def test_skipped_records_are_counted_without_an_option_that_dynamodb_does_not_have(local):
    local.replay(SESSIONS, "--create-tables")
    ran = local.replay(SESSIONS)
    assert "records were skipped, because the state already holds them" in ran.out
    assert "--fresh" not in ran.out


# --- source items -----------------------------------------------------------------------------------------------------


def test_source_items_are_written_only_when_asked_for(local, small):
    local.replay(small, "--create-tables")
    assert local.rows("--source") == set()


@pytest.mark.parametrize("file", EVENTS, ids=lambda file: file.stem)
def test_put_sources_leaves_the_newest_image_of_every_item(local, tmp_path, file):
    local.replay(file, "--create-tables", "--put-sources")
    state = tmp_path / "embedded.db"
    rows = embedded_rows(file, state=state)
    assert local.rows("--source") == shown(streamfold("show", "--state", state, "--source", "--json"))
    assert local.rows() == rows


# --- tables that are missing ------------------------------------------------------------------------------------------


def test_missing_tables_are_named_with_the_remedy(local, small):
    ran = local.replay(small, code=2)
    assert f"Error: A table is missing: one of {TABLE}, {STATE} does not exist" in ran.err
    assert "--create-tables" in ran.err


def test_missing_state_table_alone_is_reported_and_nothing_is_written(local, small):
    create_table(local.client, TEMPLATE, "Table", TABLE)
    assert "A table is missing" in local.replay(small, code=2).err
    assert local.stream_records() == []


@pytest.mark.parametrize("arguments", [(), ("--state-items",)])
def test_show_of_a_missing_table_says_so(local, arguments):
    ran = local.show(*arguments)
    assert ran.code == 2
    assert "Error: A table is missing" in ran.err


def test_dry_run_creates_no_table_and_writes_nothing(local, small):
    ran = local.replay(small, "--create-tables", "--dry-run")
    assert "nothing was written" in ran.out
    assert local.tables() == []


def test_existing_tables_are_kept(local, small):
    local.create()
    assert "Created" not in local.replay(small, "--create-tables").err


def test_state_table_and_table_may_have_any_names(local, tmp_path, small):
    names = {"STREAMFOLD_STATE_TABLE": "ledger", "STREAMFOLD_TABLE_MAIN": TABLE}
    ran = streamfold("replay", small, *local.on, "--create-tables", **local.variables, **names)
    assert ran.code == 0
    assert local.tables() == ["ledger", TABLE]
    ran = streamfold("show", *local.on, "--json", **local.variables, **names)
    assert shown(ran) == embedded_rows(small, state=tmp_path / "embedded.db")


# --- files that do not tell the table ---------------------------------------------------------------------------------


def test_table_is_told_by_the_first_good_record_behind_bad_lines(local, tmp_path, small):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"oh": \n"no"\n' + small.read_text("utf-8"), "utf-8")
    ran = local.replay(bad, "--create-tables", "--keep-going", code=1)
    assert f"Bad line: {bad}:1" in ran.err
    assert local.tables() == [TABLE, STATE]
    assert local.rows() == embedded_rows(small, state=tmp_path / "embedded.db")


@pytest.mark.parametrize("text", ["", '{"eventName": "INS'], ids=["empty", "truncated"])
def test_file_without_a_good_record_creates_no_table(local, tmp_path, text):
    file = tmp_path / "none.jsonl"
    file.write_text(text, "utf-8")
    ran = local.replay(file, "--create-tables", code=2)
    assert "--table main=REAL" in ran.err
    assert (f"{file}:1" in ran.err) == bool(text)
    assert local.tables() == []
