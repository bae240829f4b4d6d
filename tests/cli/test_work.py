"""``streamfold work``, and the processes of one run: killed, stopped, and in trouble."""

import gc
import json
import signal
import sys

import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold.cli.repair import error_text
from streamfold.cli.session import GivenOptions, Store
from streamfold.cli.work import Workers, add_page, failed_line, page_line, worker_command
from streamfold.derivations.expected import ItemFailed
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, SettingsError
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import BackfillProgress, RunHooks, job_segments
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.cli.conftest import SHOP
from tests.helpers.records import item, record

STATE = ("--state", "state.db")


@pytest.fixture
def full(folder):
    """A state with items that the handler counted, and a row that is not as they say."""
    records = [record(None, item("ORDER#1", f"ITEM#{n}", price=n), n) for n in range(1, 5)]
    assert folder.run("replay", folder.records(*records), *STATE).code == 0
    return folder


def views():
    router = Router()

    @router.view(Key("ORDER#{order_id}", "ITEM#{sku}"), into=Key("ORDER#{order_id}", "TOTAL"))
    def order_total(item):
        yield Row(total=Sum(item["price"]))

    return router


def begun(folder, *more):
    ran = folder.run("rebuild", "order_total", *STATE, "--runner", "elsewhere", *more)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_run_elsewhere_is_only_begun(full):
    told = begun(full, "--segments", "3", "--processes", "1")
    assert (told["parts"], told["sharing"]) == ([0, 1, 2, 3, 4, 5], 1)
    assert "order_total: open, 0 of 6 segments" in full.run("jobs", *STATE).out


def test_parts_are_done_one_by_one_and_the_job_is_ended(full):
    told = begun(full, "--segments", "2")
    for part in told["parts"][1:]:
        assert full.run("work", told["job"], "--part", part, *STATE).code == 0
    assert "1 parts of job" in full.run("work", told["job"], "--end", *STATE).err
    assert full.run("work", told["job"], "--part", told["parts"][0], *STATE).code == 0
    assert json.loads(full.run("work", told["job"], "--end", "--json", *STATE).out)["written"] == 4


def test_all_that_is_left_is_done_and_the_job_ended(full):
    told = begun(full)
    ran = full.run("work", told["job"], *STATE)
    assert (ran.code, "4 contributions written" in ran.out) == (0, True)
    assert "order_total: done" in full.run("jobs", *STATE).out


def test_a_process_takes_parts_from_its_input_and_tells_its_pages(full):
    told = begun(full)
    ran = full.run("work", told["job"], "--from-input", *STATE, stdin=b"0\n1\n")
    lines = ran.objects()
    assert [line["part"] for line in lines if "part" in line] == [0, 1]  # perhaps not done: the input ended


@pytest.fixture
def failing(full):
    """A job of which an item fails."""
    told = begun(full, "--segments", "1")
    full.app(
        SHOP.replace('yield Row(total=Sum(item["price"])', 'yield Row(total=Sum(item["price"] // (item["price"] != 3))')
    )
    return told["job"]


def test_items_that_fail_are_kept_by_the_process_that_meets_them(full, failing):
    ran = full.run("work", failing, "--part", "0", "--failed", "failed.jsonl", *STATE)
    assert (ran.code, "1 failed" in ran.out) == (1, True), ran.err
    full.app(SHOP)
    assert "1 item: " in full.run("repair", "--keys", "failed.jsonl", *STATE).out


def test_items_that_fail_are_told_before_the_page_is_done(full, failing, monkeypatch):
    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Jobs, "advance", dies)
    monkeypatch.setattr("streamfold.cli.work._Worker._given", lambda _: iter([0]))
    ran = full.run("work", failing, "--from-input", *STATE)
    (line,) = map(json.loads, ran.out.splitlines())
    assert (ran.code, line["read"], [each["key"]["SK"] for each in line["failed"]]) == (130, 0, [{"S": "ITEM#3"}])


def test_what_processes_tell_is_counted_and_kept():
    kept = []
    app = App("shop", routers=[views()])
    engine = MemoryEngine(app.tables.values())
    job = Jobs(app.name, engine).create("backfill", ("order_total",), "main", 2, by="test")
    parts = job_segments(Runtime(app, engine, Settings()), job, hooks=RunHooks(keep=kept.extend))
    failed = ItemFailed(("main", "ORDER#1", "ITEM#1"), "order_total", ValueError("no"))
    add_page(app, parts, json.loads(failed_line(app, [failed])))
    add_page(app, parts, json.loads(page_line(app, BackfillProgress(read=3, waits="it lags"))))
    assert [(each.item, error_text(each.error)) for each in kept] == [(failed.item, "ValueError: no")]
    assert (parts.progress.read, parts.progress.failed, parts.progress.waits) == (3, 1, "it lags")


@pytest.mark.parametrize("lag", [None, 90.0])
def test_processes_are_told_which_lag_to_heed(lag):
    store = Store("dynamodb", "", None)
    options = GivenOptions(store=store, application="shop:app", tables=("main=shop",), max_lag=lag, function="f")
    command = worker_command("job", options, 2)
    assert ("--max-lag" in command) == (lag is not None)
    assert lag is None or command[command.index("--max-lag") :][:4] == ["--max-lag", "90.0", "--function", "f"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["work", "nobody"], "Job nobody is not known"),
        (["backfill", "--processes", "2"], "a local state is one file, which one process writes"),
        (["backfill", "--runner", "somebody"], "elsewhere"),
        (["backfill", "--runner", "elsewhere", "--failed", "f"], "give --failed and --max-lag to each streamfold work"),
        (["backfill", "--runner", "spark"], "expected --export MANIFEST and --engine dynamodb"),
        (["work", "nobody", "--max-lag", "9"], "belong together"),
        (["work", "nobody", "--max-lag", "9", "--function", "f"], "no function works on a local state"),
        (["work", "nobody", "--failed", "no/f"], "There is no folder no"),
    ],
)
def test_what_cannot_be_is_refused(full, arguments, text):
    ran = full.run(*arguments, *STATE)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_a_part_that_the_job_does_not_have_is_refused(full):
    told = begun(full)
    assert "the job has parts 0 to 1" in full.run("work", told["job"], "--part", "7", *STATE).err


def test_the_state_machine_is_printed(folder):
    assert json.loads(folder.run("work", "--asl").out)["StartAt"] == "From an export?"


def test_a_function_carries_what_the_command_begun(on_aws, monkeypatch):
    on_aws.deliver(record(None, item("ORDER#1", "ITEM#1", price=1), 1))
    on_aws.client.put_item(TableName="shop", Item=encode(item("ORDER#1", "ITEM#2", price=2))["M"])
    ran = on_aws.run("backfill", "order_total", "--runner", "elsewhere", "--segments", "1", "--offline", "--yes")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    monkeypatch.setenv("STREAMFOLD_TABLE_MAIN", "shop")
    app = on_aws.app()
    for part in told["parts"]:
        assert app.work_handler({"job": told["job"], "part": part}, None)["done"]
    assert app.work_handler({"job": told["job"], "end": True}, None)["counts"]["written"] == 1
    assert on_aws.row("ORDER#1")["total"] == {"N": "3"}
    with pytest.raises(SettingsError, match="The event is no part of a run"):
        app.work_handler({}, None)


WORKER = """
import json, os, signal, sys
from pathlib import Path
here = Path(sys.argv[1])
for line in sys.stdin:
    part = int(line)
    {trouble}
    print(json.dumps({{"page": part}}), flush=True)
    print(json.dumps({{"part": part, "done": True}}), flush=True)
"""
DIES_ONCE = """
    flag = here / str(part)
    if part % 3 == 0 and not flag.exists():
        flag.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def workers(tmp_path, trouble="", parts=range(7), processes=2):
    gc.collect()  # or a thread here would end what an earlier test left of its state file
    lines = []
    command = [sys.executable, "-c", WORKER.format(trouble=trouble), str(tmp_path)]
    return Workers(command, parts, processes, lines.append), lines


def done(lines):
    return sorted(line["part"] for line in lines if line.get("done"))


def test_processes_share_the_parts(tmp_path):
    found, lines = workers(tmp_path)
    found.run()
    assert (done(lines), len(found.running)) == (list(range(7)), 2)


def test_a_killed_process_is_replaced_and_its_part_done(tmp_path):
    found, lines = workers(tmp_path, DIES_ONCE)
    found.run()
    assert (done(lines), found.deaths) == (list(range(7)), {0: 1, 3: 1, 6: 1})


def test_a_part_that_kills_every_process_stops_the_run(tmp_path):
    found, _ = workers(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", parts=[4], processes=1)
    with pytest.raises(EngineError, match="stopped with code -9 at part 4"):
        found.run()
    assert found.deaths == {4: 3}


@pytest.mark.parametrize(
    ("trouble", "text"),
    [("sys.exit(2)", "with code 2 at part"), ("print('hello', flush=True)", "a line that is no JSON object: hello")],
)
def test_a_process_that_ends_by_itself_stops_the_run(tmp_path, trouble, text):
    found, _ = workers(tmp_path, trouble)
    with pytest.raises(EngineError, match=text):
        found.run()
    assert all(process.returncode is not None for process in found.running)


@pytest.fixture
def interruptible():
    """Ctrl-C is heard, as it is not by a process that a shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_run_that_is_stopped_leaves_no_process(tmp_path):
    found, lines = workers(tmp_path, "import time; time.sleep(0.2)", parts=range(10_000))

    def interrupt(line):
        if not lines:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C, while the run is at work
        lines.append(line)

    found.take = interrupt
    with pytest.raises(KeyboardInterrupt):
        found.run()
    assert all(process.returncode is not None for process in found.running)
