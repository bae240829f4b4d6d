"""``streamfold backfill``, ``rebuild`` and ``jobs`` on a local state, and keys of an export."""

import gzip
import json
from base64 import b64encode
from contextlib import closing
from hashlib import md5
from sqlite3 import connect

import pytest

from streamfold.engines import EmbeddedEngine
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillRun
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from tests.cli.conftest import SHOP
from tests.helpers.exports import write_export
from tests.helpers.records import item, record

STATE = ("--state", "state.db")
MORE = SHOP.replace(
    "\n\napp = App",
    """

ALL = Key("ALL", "LINES")


@router.view(ITEM, into=ALL)
def all_lines(item):
    if item["price"] == 13:
        raise LookupError("no price 13")
    yield Row(total=Sum(item["price"]), lines=Count())


router.audit(ITEM, name="history")


app = App""",
)


def lines(folder, prices):
    """Replays lines of one order."""
    records = [record(None, item("ORDER#1", f"ITEM#{n}", price=price), n) for n, price in enumerate(prices, 1)]
    assert folder.run("replay", folder.records(*records), *STATE).code == 0


@pytest.fixture
def old(folder):
    """A state that was made before a handler was added."""
    lines(folder, [1, 2, 3])
    folder.app(MORE)
    return folder


def test_a_new_handler_gets_the_items_that_were_there_before_it(old):
    ran = old.run("backfill", "all_lines", *STATE)
    assert (ran.code, "3 contributions written, 0 right before, 0 failed" in ran.out) == (0, True)
    assert old.rows(*STATE)["ALL / LINES"]["total"] == {"N": "6"}
    (line,) = (line for line in old.run("routes", *STATE).out.splitlines() if " all_lines " in line)
    assert "+00:00" not in line


def test_it_is_said_whose_keys_were_read(old):
    ran = old.run("backfill", "all_lines", *STATE)
    assert "backfill: 12 keys of the tables and the state read, 3 contributions written" in ran.out


def test_a_second_run_changes_nothing(old):
    old.run("backfill", *STATE)
    rows = old.rows(*STATE)
    assert "0 contributions written, 6 right before" in old.run("backfill", *STATE).out
    assert old.rows(*STATE) == rows


def test_a_dry_run_tells_what_it_would_do_and_writes_nothing(old):
    ran = old.run("backfill", "all_lines", *STATE, "--dry-run")
    assert (ran.code, ran.out) == (0, "")
    assert "of 4 looked at, handlers read 75%" in ran.err
    assert "ALL / LINES" not in old.rows(*STATE)


def test_an_item_on_which_the_handler_raises_is_told_and_its_key_is_kept(folder):
    lines(folder, [1, 13])
    folder.app(MORE)
    ran = folder.run("backfill", "all_lines", *STATE, "--failed", "failed.jsonl")
    assert ran.code == 1
    assert "Failed: item ORDER#1 / ITEM#2, handler 'all_lines': LookupError: no price 13" in ran.err
    assert json.loads((folder.path / "failed.jsonl").read_text())["key"]["SK"] == {"S": "ITEM#2"}
    assert folder.rows(*STATE)["ALL / LINES"]["total"] == {"N": "1"}


@pytest.mark.parametrize("command", ["backfill", "rebuild"])
def test_repair_takes_the_keys_of_items_that_failed(folder, command):
    lines(folder, [1, 13])
    folder.app(MORE)
    assert folder.run(command, "all_lines", *STATE, "--failed", "failed.jsonl").code == 1
    folder.app(MORE.replace("== 13", "== 14"))
    ran = folder.run("repair", "--keys", "failed.jsonl", "--handler", "all_lines", *STATE)
    assert (ran.code, ran.out) == (0, "1 item: 1 contribution written, 0 equal, 0 failed; 1 write of rows.\n")
    assert folder.rows(*STATE)["ALL / LINES"]["total"] == {"N": "14"}


@pytest.fixture
def dies_once(monkeypatch):
    """A run dies with its second page."""
    page, calls = BackfillRun._reconciled, []

    def dies(self, keys):
        calls.append(keys)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return page(self, keys)

    monkeypatch.setattr(BackfillRun, "_reconciled", dies)


def test_an_estimate_of_an_export_says_that_most_looked_up_items_are_not_in_its_sample(folder):
    folder.app(
        SHOP.replace("Sum\n", "Sum, Table\n", 1).replace(
            "@router.view(ITEM, into=TOTAL)\ndef order_total(item):",
            'PRODUCT = Key("P#{product_id}", None, Table("products", sort=None))\n'
            '@router.view(ITEM, into=TOTAL, lookup={"product": PRODUCT})\ndef order_total(item, product):',
        )
    )
    items = [encode(item(f"ORDER#{number}", "ITEM#a", product_id="p", price=1))["M"] for number in range(5)]
    place = write_export(folder.path / "export", items)
    ran = folder.run("backfill", "order_total", "--export", place, "--dry-run")
    assert (
        ran.code,
        "Items that order_total looks up or gathers are looked for in a sample of the export only" in ran.err,
    ) == (
        0,
        True,
    ), ran.err


@pytest.mark.usefixtures("dies_once")
def test_a_run_that_goes_on_keeps_the_keys_that_it_has_found(folder):
    lines(folder, [13, 1, 2, 13])
    folder.app(MORE)
    options = ("all_lines", *STATE, "--failed", "failed.jsonl", "--page", 2)
    assert folder.run("backfill", *options).code == 130
    assert len((folder.path / "failed.jsonl").read_text().splitlines()) == 1
    assert "goes on where it was" in folder.run("backfill", *options).err
    failed = [json.loads(line)["key"]["SK"]["S"] for line in (folder.path / "failed.jsonl").read_text().splitlines()]
    assert failed == ["ITEM#1", "ITEM#4"]


@pytest.fixture
def stopped(folder, dies_once):
    """A state with a run that was stopped after its first page."""
    lines(folder, [1, 2, 3, 4])
    folder.app(MORE)
    assert folder.run("backfill", "all_lines", *STATE, "--page", 2, "--write-units", 700).code == 130
    return folder


def test_a_run_that_goes_on_says_that_code_may_have_changed_since(stopped):
    ran = stopped.run("backfill", "all_lines", *STATE)
    assert ran.code == 0
    assert "derived by the code of that time. If the code has changed, start over: streamfold jobs --end " in ran.err


@pytest.mark.parametrize(("given", "rate"), [((), 700), (("--write-units", 900), 900)])
def test_a_run_goes_on_at_the_rates_that_are_given_now(stopped, given, rate):
    assert stopped.run("backfill", "all_lines", *STATE, *given).code == 0
    assert json.loads(stopped.run("jobs", *STATE, "--json").out)["write_units"] == rate


def test_a_run_says_why_it_waits_where_it_prints_json_too(stopped, monkeypatch):
    def resumed(*_):
        with closing(EmbeddedEngine([], str(stopped.path / "state.db"))) as engine:
            Jobs("shop", engine).change(identity, paused=False)

    identity = stopped.run("jobs", *STATE).out.split()[0]
    stopped.run("jobs", *STATE, "--pause", identity)
    monkeypatch.setattr(Runtime, "wait", resumed)
    ran = stopped.run("backfill", "all_lines", *STATE, "--json")
    assert (ran.code, f"Waiting: job {identity} is paused." in ran.err) == (0, True)
    assert json.loads(ran.out)["job"] == identity


def test_a_handler_that_is_switched_off_is_left_out_and_refused_by_name(old, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "all_lines")
    ran = old.run("backfill", *STATE)
    assert (ran.code, "'all_lines' is switched off (STREAMFOLD_HANDLERS_OFF): it is left out." in ran.err) == (0, True)
    assert "ALL / LINES" not in old.rows(*STATE)
    assert "is switched off" in old.run("rebuild", "all_lines", *STATE).err
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "all_lines,order_total")
    assert "There is no handler for backfill" in old.run("backfill", *STATE).err


def test_handlers_of_other_groups_are_left_out(folder, monkeypatch):
    lines(folder, [1])
    folder.app(MORE.replace("into=ALL)", 'into=ALL, group="other")'))
    monkeypatch.setenv("STREAMFOLD_GROUP", "main")
    assert "'all_lines' is of group 'other', and STREAMFOLD_GROUP is 'main'" in folder.run("backfill", *STATE).err
    assert "ALL / LINES" not in folder.rows(*STATE)


def test_a_file_of_keys_in_no_folder_is_refused_before_anything_is_done(old):
    ran = old.run("backfill", "all_lines", *STATE, "--failed", "nowhere/failed.jsonl")
    assert (ran.code, "There is no folder nowhere" in ran.err) == (2, True)
    assert "ALL / LINES" not in old.rows(*STATE)


def test_backfill_on_aws_asks_and_tells_where_it_writes(on_aws, source, monkeypatch):
    on_aws.deliver(source.put("ORDER#1", "ITEM#a", price=2))
    monkeypatch.setenv("STREAMFOLD_GATE_SECONDS", "0")
    refused = on_aws.run("backfill", "--segments", 2)
    assert (refused.code, "give --yes to write to AWS" in refused.err) == (2, True)
    ran = on_aws.run("backfill", "--segments", 2, "--yes")
    assert (ran.code, "This writes to AWS, account" in ran.err) == (0, True), ran.err
    assert "0 contributions written, 1 right before" in ran.out


def test_counts_are_printed_as_json(old):
    ran = old.run("backfill", "all_lines", *STATE, "--json")
    found = json.loads(ran.out)
    assert (found["written"], found["failed"], found["failures"]) == (3, 0, [])


def test_changed_code_is_led_to_all_items(folder):
    lines(folder, [1, 2, 3])
    folder.app(SHOP.replace('Sum(item["price"])', 'Sum(item["price"] * 10)'))
    assert "3 contributions written" in folder.run("rebuild", "order_total", *STATE).out
    assert folder.totals() == {"ORDER#1": 60}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing"], "'missing'"),
        (["history"], "its rows follow from the changes of items"),
        (["--load"], "--load puts the items of an export"),
        (
            ["--load", "--export", "x/manifest-files.json", "--dry-run"],
            "manifest-summary.json of the export cannot be read",
        ),
        (["--export", "summary.json"], "expected the manifest-files.json of an export"),
        (["--export", "nowhere/manifest-files.json"], "manifest-summary.json of the export cannot be read"),
        (["--state", "nowhere.db"], "There is no state in nowhere.db"),
    ],
)
def test_what_cannot_be_is_refused(old, arguments, text):
    ran = old.run("backfill", *([] if "--state" in arguments else STATE), *arguments)
    assert (ran.code, text in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("options", [("--max-lag", 60), ("--function", "projector")])
def test_a_lag_is_of_a_function_that_is_named(old, options):
    assert "belong together" in old.run("backfill", *STATE, *options).err


def test_no_function_lags_behind_a_local_state(old):
    assert "works on a local state" in old.run("backfill", *STATE, "--max-lag", 60, "--function", "projector").err


def export(folder, *items, images="Item", damage=b"", table="shop"):
    """Writes an export; returns the place of its manifest."""
    packed = gzip.compress("".join(json.dumps({images: encode(each)["M"]}) + "\n" for each in items).encode())
    files = {
        "itemCount": len(items),
        "md5Checksum": b64encode(md5(packed).digest()).decode(),
        "dataFileS3Key": "x/data/a.json.gz",
    }
    arn, time = f"arn:aws:dynamodb:eu-west-1:123456789012:table/{table}", "2026-03-01T00:00:00Z"
    summary = {"tableArn": arn, "outputFormat": "DYNAMODB_JSON", "exportTime": time}
    for name, content in (
        ("manifest-files.json", (json.dumps(files) + "\n").encode()),
        ("manifest-summary.json", json.dumps(summary).encode()),
    ):
        folder.write(f"export/{name}", content)
    (folder.path / "export" / "data").mkdir(exist_ok=True)
    (folder.path / "export" / "data" / "a.json.gz").write_bytes(packed + damage)
    return "export/manifest-files.json"


def test_keys_of_an_export_are_read_again_as_they_are_now(old):
    place = export(old, item("ORDER#1", "ITEM#1", price=99), item("ORDER#1", "ITEM#3", price=99), item("X", "Y"))
    assert old.run("backfill", "all_lines", *STATE, "--export", place).code == 0
    assert old.rows(*STATE)["ALL / LINES"]["total"] == {"N": "4"}


def test_the_items_of_an_export_show_a_view_of_the_real_table_without_a_replay_before(folder):
    place = export(folder, *(item("ORDER#7", f"ITEM#{n}", price=n) for n in range(1, 5)))
    assert folder.run("backfill", *STATE, "--export", place, "--load").code == 0
    assert folder.totals() == {"ORDER#7": 10}


def test_a_damaged_export_and_one_of_another_table_are_refused(old):
    place = export(old, item("ORDER#1", "ITEM#1", price=1), damage=b"x")
    assert "its MD5 is not that of the manifest" in old.run("backfill", "all_lines", *STATE, "--export", place).err
    place = export(old, item("ORDER#1", "ITEM#1", price=1))
    ran = old.run("backfill", "all_lines", *STATE, "--export", place, "--table", "main=other")
    assert "is of table 'shop': expected 'other'" in ran.err


def test_jobs_are_listed_and_changed(old):
    assert old.run("jobs", *STATE).out == "There are no jobs.\n"
    old.run("backfill", "all_lines", *STATE)
    listed = old.run("jobs", *STATE)
    assert "backfill all_lines: done, 2 of 2 segments" in listed.out
    identity = listed.out.split()[0]
    assert json.loads(old.run("jobs", *STATE, "--json").out)["state"] == "done"
    assert "has ended" in old.run("jobs", *STATE, "--pause", identity).err
    assert "expected read_units=N" in old.run("jobs", *STATE, "--set", identity, "speed=3").err
    assert "is not known" in old.run("jobs", *STATE, "--resume", "nobody").err


def test_rows_are_compared_with_what_their_sources_add_up_to(old):
    old.run("backfill", *STATE)
    ran = old.run("verify", "--rows", *STATE)
    counts, left = ran.out.splitlines()
    assert (ran.code, counts) == (0, "5 rows: 0 different, 0 moving; a handler failed on 0 items.")
    assert "items without a history of 'history', which is partial since" in left
    with closing(connect(old.path / "state.db")) as state:
        state.execute("UPDATE items SET item = replace(item, '\"6\"', '\"7\"') WHERE pk = 'ALL'")
        state.commit()
    ran = old.run("verify", "--rows", *STATE)
    assert ran.code == 1
    assert "Different: ALL / LINES" in ran.out
    assert json.loads(old.run("verify", "--rows", "--json", *STATE).out)["different"][0]["what"] == "different"
    assert "leave --full and --sample out" in old.run("verify", "--rows", "--full", *STATE).err
    ran = old.run("verify", "--rows", "--repair", *STATE)
    assert (ran.code, "Corrected by the state: 1 row. Not corrected: 0." in ran.out) == (1, True)
    assert old.run("verify", "--rows", *STATE).code == 0
