"""``streamfold replay --chaos``: what passes, what is found, what is refused."""

import json
import shlex

import pytest

from streamfold.cli import chaos
from streamfold.cli.chaos import shown_tries
from streamfold.cli.output import each_counted
from streamfold.cli.replay import replay
from tests.cli.conftest import SHOP
from tests.helpers.commands import ROOT

REMEMBERS = """
from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
calls = []
router = Router()


@router.view(ITEM, into=TOTAL)
def order_total(item):
    calls.append(item)
    yield Row(total=Sum(len(calls)))


app = App("shop", routers=[router])
"""
WITH_EXTERNAL = """
from pathlib import Path

from streamfold import App, Key, Router

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()


@router.on(ITEM, external=True)
def send_mail(change, order_id, sku):
    Path("mails.txt").write_text(order_id)


app = App("shop", routers=[router])
"""


HASHED = """
from streamfold import App, Count, Key, Router, Row

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()


@router.view(ITEM, into=Key("BUCKET#{bucket}", "TOTAL"))
def buckets(item, order_id):
    yield Row(bucket=str(hash(order_id)), items=Count())


app = App("shop", routers=[router])
"""

WITH_OTHERS = SHOP.replace(
    "\n\napp =",
    """

for name in ("first", "second"):
    router.audit(Key("OTHER#{other}", name), name=name)


app =""",
)


@pytest.fixture
def alone(monkeypatch):
    """Handlers are called in this process alone, which takes a tenth of the time."""
    monkeypatch.setattr("streamfold.proofs.recorded.PROCESSES", 0)


@pytest.fixture
def records(source, folder):
    made = [source.put(f"ORDER#{n % 4}", f"ITEM#{n % 3}", price=n) for n in range(1, 25)]
    return folder.records(*made)


@pytest.mark.parametrize("events", ["sessions", pytest.param("music", marks=pytest.mark.nightly)])
def test_shipped_events_pass(folder, monkeypatch, events):
    folder._forget()
    monkeypatch.chdir(ROOT)
    (folder.path / "handlers.py").unlink()

    ran = folder.run("replay", f"events/{events}.jsonl", "--chaos", "--runs", 3)

    assert ran.code == 0, ran.err
    assert "3 runs of " in ran.out
    assert " 0 diverged." in ran.out


@pytest.mark.usefixtures("alone")
def test_a_table_counts_every_fault_and_nothing_is_written(folder, records):
    before = sorted(folder.path.iterdir())
    ran = folder.run("replay", records, "--chaos", "--runs", 5, "--json")

    found = json.loads(ran.out)
    assert ran.code == 0
    assert (found["records"], found["runs"], found["diverged"]) == (24, 5, [])
    assert found["faults"]
    assert all(row["injected"] >= row["runs"] > 0 for row in found["faults"])
    assert sorted(folder.path.iterdir()) == before


@pytest.mark.usefixtures("alone")
def test_what_is_done_is_told_before_it_is_done(folder, records):
    ran = folder.run("replay", records, "--chaos", "--runs", 2)
    assert ran.err == "Replaying 24 records without faults, then 2 times with faults.\n"
    assert folder.run("replay", records, "--chaos", "--runs", 2, "--json").err == ""


def test_that_a_diverged_run_is_made_shorter_is_told_before_it_is_done(capsys):
    tried = shown_tries(7, 2)
    assert [tried() for _ in range(3)] == [0, 1, None]
    said = "The run with seed 7 diverged. Looking for the fewest records and faults that do, in 2 runs at most.\n"
    assert capsys.readouterr().err == said


def test_progress_begins_within_seconds_where_there_is_no_terminal(capsys):
    now = iter([0.0, 0.0, 8.0, 12.0, 22.0, 26.0, 59.0])
    assert list(each_counted("runs", range(6), clock=lambda: next(now))) == [0, 1, 2, 3, 4, 5]
    lines = ["2 of 6 runs in 12 s.", "4 of 6 runs in 26 s.", "5 of 6 runs in 59 s."]
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.usefixtures("alone")
def test_what_a_handler_prints_under_faults_does_not_mix_with_json(folder, records):
    folder.app(SHOP.replace("(item):\n", '(item):\n    print("looked at")\n'))
    ran = folder.run("replay", records, "--chaos", "--runs", 2, "--json")
    assert json.loads(ran.out)["runs"] == 2
    assert "looked at" in ran.err


@pytest.mark.usefixtures("alone")
def test_the_same_seed_gives_the_same_output(folder, records):
    first = folder.run("replay", records, "--chaos", "--runs", 3, "--seed", 7)

    assert folder.run("replay", records, "--chaos", "--runs", 3, "--seed", 7) == first
    assert folder.run("replay", records, "--chaos", "--runs", 3, "--seed", 8) != first


@pytest.mark.usefixtures("alone")
def test_only_the_named_faults_are_injected(folder, records):
    ran = folder.run("replay", records, "--chaos", "--faults", "dies-after, overlap", "--json")

    assert {row["fault"] for row in json.loads(ran.out)["faults"]} == {"dies-after", "overlap"}


@pytest.mark.usefixtures("unguarded", "alone")
def test_plain_updates_diverge_and_the_command_told_repeats_it(folder, records):
    ran = folder.run("replay", records, "--chaos", "--runs", 6)

    assert ran.code == 1
    assert "The shortest steps that were found:\n  shard 1, record 1: " in ran.err
    command = next(line for line in ran.err.splitlines() if line.startswith("Again: ")).removeprefix("Again: ")
    again = folder.run(*shlex.split(command)[1:])
    assert again.code == 1
    assert command in again.err
    assert "1 runs of 24 records" in again.out
    assert " 1 diverged." in again.out


@pytest.mark.usefixtures("unguarded", "alone")
def test_diverged_runs_are_in_the_json_with_their_shortest_steps(folder, records):
    ran = folder.run("replay", records, "--chaos", "--runs", 6, "--json")

    found = json.loads(ran.out)
    assert ran.code == 1
    assert found["diverged"][0]["problem"]
    assert 0 < len(found["shortest"]["records"]) < found["records"]
    assert found["shortest"]["story"]
    assert any(row["diverged"] for row in found["faults"])


@pytest.mark.usefixtures("alone")
def test_a_handler_that_remembers_is_told_before_any_run(folder, records):
    folder.app(REMEMBERS)
    ran = folder.run("replay", records, "--chaos")

    assert ran.code == 1
    assert "Handler 'order_total'" in ran.err
    assert "is no function of its input" in ran.err
    assert "No run under faults was made" in ran.err


def test_a_handler_that_goes_by_hashes_is_told_before_any_run(folder, records):
    folder.app(HASHED)
    ran = folder.run("replay", records, "--chaos")

    assert ran.code == 1
    assert "Handler 'buckets'" in ran.err
    assert "in two processes it gives two results: it depends on hash()" in ran.err


@pytest.mark.usefixtures("alone")
def test_what_was_left_out_is_said(folder, source):
    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=1)), "--chaos", "--runs", 1)

    assert "Left out: no item is removed in the histories." in ran.out
    assert "Left out: other processes, in which hash() and the order of sets differ: processes=0." in ran.out


@pytest.mark.usefixtures("alone")
def test_a_record_that_a_handler_cannot_take_fails_the_clean_replay(folder, source):
    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price="seven")), "--chaos")

    assert ran.code == 1
    assert "The clean replay fails: " in ran.err
    assert "order_total" in ran.err


@pytest.mark.usefixtures("alone")
def test_records_of_declared_targets_are_left_out(folder, source):
    file = folder.records(source.put("ORDER#1", "ITEM#a", price=1), source.put("ORDER#1", "TOTAL", total=5))
    ran = folder.run("replay", file, "--chaos", "--runs", 1)

    assert ran.code == 0, ran.err
    assert "1 records of declared targets were not delivered" in ran.out


@pytest.mark.usefixtures("alone")
def test_external_handlers_are_not_called(folder, records):
    folder.app(WITH_EXTERNAL)
    ran = folder.run("replay", records, "--chaos", "--runs", 2)

    assert ran.code == 0, ran.err
    assert not (folder.path / "mails.txt").exists()


@pytest.mark.usefixtures("alone")
def test_a_bad_line_stops_unless_it_is_to_be_left_out(folder, records):
    bad = folder.write("bad.jsonl", "no json\n")
    stopped = folder.run("replay", records, bad, "--chaos", "--runs", 1)
    went_on = folder.run("replay", records, bad, "--chaos", "--runs", 1, "--keep-going")

    assert stopped.code == 2
    assert "Bad line: bad.jsonl:1: " in stopped.err
    assert went_on.code == 1
    assert "0 diverged" in went_on.out


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("view", "image"), [("KEYS_ONLY", "old"), ("NEW_IMAGE", "old"), ("OLD_IMAGE", "new")])
def test_a_record_without_an_image_is_told_with_its_line(folder, source, view, image):
    first, second = source.put("ORDER#1", "ITEM#a", price=1), source.put("ORDER#1", "ITEM#a", price=2)
    second["dynamodb"]["StreamViewType"] = view
    for name in {"NewImage", "OldImage"} - {"NewImage" if view == "NEW_IMAGE" else "OldImage" if "OLD" in view else ""}:
        del second["dynamodb"][name]
    records = folder.records(first, second)

    stopped = folder.run("replay", records, "--chaos", "--runs", 1)

    assert stopped.code == 2
    assert stopped.err == (
        f"Error: Bad line: records.jsonl:2: The {image} image of ORDER#1 / ITEM#a was asked for, but the stream's view "
        f"type is {view}. Switch the stream to NEW_AND_OLD_IMAGES. --keep-going leaves bad lines out.\n"
    )
    assert folder.run("replay", records, "--chaos", "--runs", 1, "--keep-going").code == 1


@pytest.mark.usefixtures("alone")
def test_handlers_that_are_not_proved_are_told_together_and_in_json_each(folder, records):
    folder.app(WITH_OTHERS)
    found = json.loads(folder.run("replay", records, "--chaos", "--runs", 1, "--json").out)

    assert (
        "Not proved: first, second (each: none of its items are in the histories).\n"
        in folder.run("replay", records, "--chaos", "--runs", 1).out
    )
    assert len(found["unproved"]) == 2


@pytest.mark.usefixtures("alone")
def test_more_records_than_memory_is_meant_for_are_refused(folder, records, monkeypatch):
    monkeypatch.setattr("streamfold.proofs.recorded.RECORDS_MAX", 23)
    ran = folder.run("replay", records, "--chaos")

    assert ran.code == 2
    assert "23 at most, and the files hold more: give it a part of them." in ran.err


@pytest.mark.usefixtures("alone")
def test_an_unknown_fault_is_told_with_the_nearest(folder, records):
    ran = folder.run("replay", records, "--chaos", "--faults", "overlapp")

    assert ran.code == 2
    assert "Fault 'overlapp' is not known. Did you mean 'overlap'?" in ran.err


@pytest.mark.parametrize("given", [(), ("--chaos",), ("no.jsonl", "--chaos")])
def test_faults_are_listed_whatever_else_is_given(folder, given):
    ran = folder.run("replay", *given, "--faults", "list")

    assert ran.code == 0
    assert {"dies-after", "overlap", "raises-once"} <= set(ran.out.split())
    assert "last-first of the calls in flight the last one is made first" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    "given",
    [
        "--state x.db",
        "--engine dynamodb",
        "--dry-run",
        "--external",
        "--put-sources",
        "--force",
        "--batch-size 5",
        "--fresh",
        "--park x.db",
        "--samples 1",
    ],
)
def test_options_that_make_no_sense_under_faults_are_refused(folder, records, given):
    ran = folder.run("replay", records, "--chaos", *given.split())

    assert ran.code == 2
    assert f"{given.split()[0]} does not go with --chaos" in ran.err
    assert not (folder.path / "x.db").exists()


@pytest.mark.parametrize("given", ["--runs 3", "--seed 1", "--faults overlap"])
def test_options_of_chaos_are_refused_without_it(folder, records, given):
    ran = folder.run("replay", records, *given.split())

    assert ran.code == 2
    assert f"{given.split()[0]} belongs to --chaos." in ran.err


PAGE = ("--html", "--rows", "--redact")


def test_every_option_of_a_replay_is_heeded_or_refused_under_faults():
    heeded = {"files", "--app", "--table", "--keep-going", "--json", "--chaos", *PAGE, *chaos.OWN}
    assert {parameter.opts[0] for parameter in replay.params} == heeded | {*chaos.REFUSED}
