"""The command line under calls that were drawn at random: no traceback, no control character, no wrong exit code."""

import gzip
import json
import os
import shutil
import traceback
from pathlib import Path

import pytest

from tests.cli.test_provenance import APPLICATION, FOLLOW, POST
from tests.helpers.commands import Ran, streamfold
from tests.helpers.fuzzed_commands import LEAVES, call, problem
from tests.helpers.records import item, record

CALLS = int(os.environ.get("STREAMFOLD_FUZZ_CALLS", "150"))
CALLS_NIGHTLY = 4_000
CALLS_OF_PROCESSES = 12
ESCAPE = "ORDER#\x1b]0;PWNED\x07\x1b[2J\r\n0 failures in all\x9b31m"
MORE = """
@router.view(LINE, into=Key("TOTAL#{order_id}", "TOTAL", table=MAIN))
def order_total(line):
    return Row(total=Sum(line["price"]))


router.audit(ORDER, name="order_audit")
app = App("shop", routers=[router])
"""
PACKED = gzip.compress(b'[{"dynamodb":{}}]\n')


@pytest.fixture
def shop(folder, monkeypatch):
    """A folder with an application, its state and files of all sorts, whose keys and errors hold control characters."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    folder.app(APPLICATION.replace('app = App("shop", routers=[router])', MORE))
    folder.write("broken.py", "raise RuntimeError('\\x1b[2J')")
    records = [
        record(None, item("ORDER#1", "META", status="open", **{"na\x1b[2Jme": "va\x1blue"}), 1),
        record(None, item("ORDER#1", "LINE#a", price=3), 2),
        record(None, item(ESCAPE, "META"), 3),
        record(None, item(ESCAPE, "LINE#\x1b[31m", price="\x1b[2J"), 4),
        record(None, item(ESCAPE, "OTHER\x07", price=3), 5),
        record(None, FOLLOW, 6),
        record(None, POST, 7),
    ]
    folder.records(*records)
    folder.records(*records[:2], name="folder/good.jsonl")
    folder.write("bad.jsonl", json.dumps(records[0]) + '\n{"a\x1b[2J": \n')
    folder.write("packed.jsonl.gz", PACKED[:-4])
    folder.write("keys", "ORDER#1\tMETA\nORDER#\x1b[2J\tMETA\n")
    folder.write("report.json", json.dumps({"application": "shop", "different": [], "failed": []}))
    folder.write("parked.jsonl", json.dumps({"parked": 1, "item": ESCAPE}) + "\n{}\n")
    assert folder.run("replay", "records.jsonl", "--state", "state.db").code == 1
    shutil.copy("state.db", "kept.db")
    return folder


def test_the_keys_of_what_failed_are_printed_without_control_characters(shop):
    for more in ((), ("--dry-run",), ("--chaos", "--runs", "1"), ("--json",)):
        ran = shop.run("replay", "records.jsonl", *more)

        assert problem(ran) == "", ran
        assert "\n0 failures in all" not in ran.out + ran.err


def run(shop, words):
    try:
        return shop.run(*words)
    except BaseException:  # noqa: BLE001 - what a process would end with
        return Ran(1, "", traceback.format_exc())


def fuzz(shop, seeds):
    for seed in seeds:
        words = call(seed)
        if not Path("state.db").exists() or seed % 50 == 0:
            shutil.copy("kept.db", "state.db")
        Path("new.db").unlink(missing_ok=True)
        ran = run(shop, words)
        wrong = problem(ran)
        assert not wrong, f"seed {seed}: streamfold {words!r}: {wrong}\n{ran}"


def test_every_command_is_called():
    assert {words for seed in range(CALLS) for words in LEAVES if call(seed)[: len(words)] == list(words)} == set(
        LEAVES
    )


@pytest.mark.slow
def test_calls_drawn_at_random_end_with_a_message_and_its_exit_code(shop):
    fuzz(shop, range(CALLS))


@pytest.mark.nightly
def test_many_calls_drawn_at_random_end_with_a_message_and_its_exit_code(shop):
    fuzz(shop, range(CALLS, CALLS + CALLS_NIGHTLY))


@pytest.mark.slow
def test_calls_of_processes_end_with_a_message_and_its_exit_code(shop):
    for seed in range(10_000, 10_000 + CALLS_OF_PROCESSES):
        words = [word.replace("\0", "") for word in call(seed)]
        ran = streamfold(*words, folder=shop.path, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x",
                         AWS_DEFAULT_REGION="eu-west-1", COLUMNS="200")  # fmt: skip
        wrong = problem(ran)
        assert not wrong, f"seed {seed}: streamfold {words!r}: {wrong}\n{ran}"
