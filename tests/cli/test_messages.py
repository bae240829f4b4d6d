"""Messages of commands name the remedy that helps."""

import json
from contextlib import closing
from sqlite3 import connect
from subprocess import PIPE, Popen

import pytest

from tests.cli.conftest import SHOP
from tests.helpers.commands import SECONDS_MAX, command_line, environment
from tests.helpers.exports import write_export
from tests.helpers.records import item, record

STATE = ("--state", "state.db")
FRESH = """

@router.view(ITEM, into=Key("ORDER#{order_id}", "FRESH"))
def fresh(item):
    return Row(n=Count())


app ="""
ITEMS = [{"PK": {"S": f"ORDER#{n}"}, "SK": {"S": "ITEM#a"}, "price": {"N": "1"}} for n in range(30)]


@pytest.fixture
def state(folder):
    folder.records(*(record(None, item(f"ORDER#{n}", "ITEM#a", price=1), n + 1) for n in range(3)))
    assert folder.run("replay", "records.jsonl", *STATE).code == 0
    return folder


def test_verify_of_a_handler_that_was_never_filled_names_backfill(state):
    state.app(SHOP.replace("\n\napp =", FRESH))

    ran = state.run("verify", *STATE)

    assert ran.code == 1
    assert "Different:" not in ran.out
    assert "--repair" not in ran.out
    assert "Handler 'fresh' is new to this state, and was not backfilled: 3 older items" in ran.out
    assert "Next: streamfold backfill fresh" in ran.out


@pytest.mark.parametrize("more", [(), ("fresh",)])
def test_verify_of_rows_of_a_handler_that_was_never_filled_names_backfill(state, more):
    state.app(SHOP.replace("\n\napp =", FRESH))

    ran = state.run("verify", "--rows", *more, *STATE)

    assert ran.code == 1
    assert "Missing:" not in ran.out
    assert "--repair" not in ran.out
    assert "Handler 'fresh' is new to this state, and was not backfilled: 3 rows" in ran.out
    assert "Next: streamfold backfill fresh" in ran.out


def test_verify_of_rows_names_repair_for_a_row_of_another_handler(state):
    state.app(SHOP.replace("\n\napp =", FRESH))
    with closing(connect(state.path / "state.db")) as connection, connection:
        connection.execute("DELETE FROM items WHERE pk = 'ORDER#1' AND sk = 'TOTAL'")

    ran = state.run("verify", "--rows", *STATE)

    assert "--rows --repair, corrects them" in ran.out
    assert "Next: streamfold backfill fresh" in ran.out


def test_verify_of_a_handler_that_was_filled_finds_nothing(state):
    state.app(SHOP.replace("\n\napp =", FRESH))
    assert state.run("backfill", *STATE).code == 0

    assert state.run("verify", *STATE).code == 0


@pytest.mark.parametrize("more", [(), ("--load",)])
def test_an_export_alone_gives_an_estimate_with_its_cost(folder, more):
    manifest = write_export(folder.path / "export", ITEMS, files=3)

    ran = folder.run("backfill", "--dry-run", "--export", manifest, *STATE, *more)

    assert ran.code == 0, ran
    assert "items        30 (as the export says)" in ran.err
    assert "write units  " in ran.err
    assert "cost         $" in ran.err
    assert ("--load creates a state" in ran.err) == (not more)
    assert not (folder.path / "state.db").exists()


def test_a_dry_run_on_dynamodb_needs_no_deployed_handler(on_aws):
    on_aws.deliver(record(None, item("ORDER#1", "ITEM#a", price=1)))
    on_aws.folder.app(SHOP.replace("\n\napp =", FRESH))
    before = on_aws.state()

    ran = on_aws.run("backfill", "fresh", "--dry-run")

    assert ran.code == 0, ran
    assert "Handler 'fresh' was not named by any function yet: deploy it before the run." in ran.err
    assert on_aws.state() == before
    assert "deploy it first" in on_aws.run("backfill", "fresh", "--yes").err


@pytest.mark.parametrize("damage", ["no manifest", "no summary", "no data", "a damaged file"])
def test_a_load_that_fails_leaves_no_state(folder, damage):
    manifest = write_export(folder.path / "export", ITEMS, files=2)
    broken = {
        "no manifest": "manifest-files.json",
        "no summary": "manifest-summary.json",
        "no data": "data/0001.json.gz",
    }
    if damage in broken:
        (folder.path / "export" / broken[damage]).unlink()
    else:
        (folder.path / "export" / "data" / "0001.json.gz").write_bytes(b"")

    ran = folder.run("backfill", "--load", "--export", manifest, "--yes", *STATE)

    assert ran.code == 2, ran
    assert list(folder.path.glob("state.db*")) == []
    assert "There is no state" in folder.run("show", *STATE).err


def test_a_load_that_fails_leaves_a_state_that_was_there_as_it_was(state):
    before = state.totals()

    ran = state.run("backfill", "--load", "--export", "no/manifest-files.json", "--yes", *STATE)

    assert (ran.code, state.totals()) == (2, before)


@pytest.mark.parametrize(
    "options",
    [("--pause", "a", "--end", "a"), ("--pause", "a", "--resume", "b"), ("--ring", "--set", "a", "read_units=1")],
)
def test_jobs_carries_out_one_thing_at_a_time(state, options):
    ran = state.run("jobs", *options, *STATE)

    assert ran.code == 2
    assert "do not go together: give one of them." in ran.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("backfill", "--spark-master", "local"), "--spark-master belongs to --runner spark."),
        (("rebuild", "order_total", "--spark-master", "local"), "--spark-master belongs to --runner spark."),
        (("verify", "--export", "x", "--spark-master", "local"), "--spark-master belongs to --runner spark."),
        (("work", "job", "--end", "--failed", "f"), "--failed is for parts that are done, and --end does none"),
        (("work", "job", "--end", "--sharing", "2"), "--sharing is for parts that are done, and --end does none"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(state, arguments, error):
    ran = state.run(*arguments, *(() if "--export" in arguments else STATE))

    assert (ran.code, error in ran.err) == (2, True), ran.err


def test_processes_are_not_given_to_spark(state):
    spark = ("--runner", "spark", "--export", "x", "--engine", "dynamodb", "--table", "main=shop", "--processes", "2")

    ran = state.run("backfill", *spark)

    assert (ran.code, "--runner spark has its own processes: leave --processes out." in ran.err) == (2, True)


@pytest.mark.parametrize("command", [("verify",), ("backfill", "--yes"), ("repair", "--key", "ORDER#1", "ITEM#a")])
def test_what_a_handler_prints_does_not_mix_with_json(state, command):
    state.app(SHOP.replace("(item):\n", '(item):\n    print("looked at")\n'))

    ran = state.run(*command, "--json", *STATE)

    assert "looked at" in ran.err
    json.loads(ran.out)


def test_work_refuses_a_line_that_is_no_number_while_its_input_stays_open(state):
    begun = state.run("backfill", "--runner", "elsewhere", "--offline", "--yes", *STATE)
    command = command_line("work", json.loads(begun.out)["job"], "--from-input", *STATE)

    process = Popen(command, cwd=state.path, env=environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    with process:
        process.stdin.write("abc\n")
        process.stdin.flush()
        code = process.wait(SECONDS_MAX)
        process.stdin.close()
        error = process.stderr.read()

    assert (code, "expected the number of a part, 0 to 1." in error) == (2, True)


def test_work_refuses_a_line_that_is_no_number(state):
    begun = state.run("backfill", "--runner", "elsewhere", "--offline", "--yes", *STATE)
    job = json.loads(begun.out)["job"]

    for line in (b"abc\n", b"-1\n", b"99999\n", "\u0663\n".encode()):
        ran = state.run("work", job, "--from-input", *STATE, stdin=line)
        assert ran.code == 2
        assert "expected the number of a part, 0 to 1." in ran.err


@pytest.mark.parametrize("command", [("work", "--asl"), ("replay", "--faults", "list")])
def test_what_is_printed_and_done_is_refused_with_a_wrong_option_too(state, command):
    assert state.run(*command).code == 0
    assert state.run(*command, "--engine", "nope").code == 2


def test_records_that_no_handler_wants_are_told_by_the_names_in_their_keys(folder):
    folder.app(SHOP.replace('"ORDER#{order_id}"', '"TENANT#{tenant}#ORDER#{order_id}"'))
    folder.records(
        record(None, item("TENANT#acme#INVOICE#1", "META"), 1),
        record(None, item("TENANT#beta#INVOICE#2", "META"), 2),
        record(None, item("TENANT#beta#USER#2", "LOGIN#3"), 3),
        record(None, item("OTHER#1", "META"), 4),
    )

    ran = folder.run("replay", "records.jsonl")

    assert "No handler wants 2 records of TENANT#*#INVOICE#* / META." in ran.out
    assert "No handler wants 1 record of TENANT#*#USER#* / LOGIN#*." in ran.out
    assert "No handler wants 1 record of OTHER#." in ran.out
