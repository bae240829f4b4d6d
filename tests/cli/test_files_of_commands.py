"""Files that commands read and write: names that can be none, who may read what they make, and a closed input."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from streamfold.parking import FileParking, Parked
from streamfold.replay.stream import record_stream
from tests.helpers.commands import command_line, environment
from tests.helpers.records import item, record

LONG = "{" + "a" * 300
READING = {
    "replay": ["replay", "{}"],
    "replay --chaos": ["replay", "{}", "--chaos"],
    "replay --state": ["replay", "records.jsonl", "--state", "{}"],
    "replay --park": ["replay", "records.jsonl", "--park", "{}"],
    "redrive": ["redrive", "{}", "--state", "state.db"],
    "repair --keys": ["repair", "--keys", "{}", "--state", "state.db"],
    "repair --from-verify": ["repair", "--from-verify", "{}", "--state", "state.db"],
    "repair --export": ["repair", "--export", "{}/manifest-files.json", "--state", "state.db"],
    "repair --failed": ["repair", "--key", "a", "b", "--failed", "{}", "--state", "state.db"],
    "backfill --failed": ["backfill", "--failed", "{}", "--state", "state.db"],
    "backfill --export": ["backfill", "--export", "{}/manifest-files.json", "--state", "state.db"],
    "work --failed": ["work", "a", "--failed", "{}", "--state", "state.db"],
    "record --out": ["record", "--table", "t", "--out", "{}", "--endpoint-url", "http://127.0.0.1:1"],
    "show --state": ["show", "--state", "{}"],
    "diff --old": ["diff", "--old", "handlers:app@./{}", "--state", "state.db"],
}


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir() if path.is_file()}


@pytest.fixture
def state(folder):
    folder.records(record(None, item("ORDER#1", "ITEM#a", price=1)))
    assert folder.run("replay", "records.jsonl", "--state", "state.db").code == 0
    return folder


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("name", [LONG, "a\0b", "\udcff"])
def test_a_name_that_no_file_can_have_is_one_message(state, command, name):
    ran = state.run(*(argument.format(name) if argument != LONG else name for argument in READING[command]))

    assert ran.code in (1, 2), ran
    assert "Traceback" not in ran.err
    assert ran.err


@pytest.mark.parametrize("command", READING)
def test_an_empty_name_does_not_stand_for_the_folder(state, command):
    ran = state.run(*(argument.replace("{}/", "").format("") for argument in READING[command]))

    assert ran.code == 2 or "export" in command or command in ("replay --park", "diff --old"), ran
    assert "Traceback" not in ran.err


def test_an_empty_place_of_a_redrive_reads_nothing(state):
    ran = state.run("redrive", "", "--state", "state.db")

    assert (ran.code, ran.out) == (2, "")
    assert "it is empty" in ran.err


@pytest.mark.parametrize("command", [["replay", "-"], ["replay", "-", "--chaos"], ["redrive", "records.jsonl"]])
def test_a_closed_standard_input_is_one_message(state, command):
    closed = f"exec {' '.join(command_line(*command))} --app handlers:app <&-"

    ran = subprocess.run(
        ["sh", "-c", closed], cwd=state.path, env=environment(), capture_output=True, text=True, check=False
    )

    assert ran.returncode in (1, 2)
    assert "Traceback" not in ran.stderr


def test_an_output_that_is_full_ends_a_command_with_one_message(state):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            command_line("settings", "--json"),
            cwd=state.path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr


def test_a_state_is_made_for_its_owner_alone(folder, monkeypatch):
    before = os.umask(0)
    try:
        folder.records(record(None, item("ORDER#1", "ITEM#a", price=1)))
        folder.run("replay", "records.jsonl", "--state", "state.db")
    finally:
        os.umask(before)

    assert {mode for name, mode in modes(folder).items() if name.startswith("state.db")} == {0o600}


def test_a_state_that_is_there_keeps_its_mode(state):
    (state.path / "state.db").chmod(0o640)

    assert state.run("show", "--state", "state.db").code == 0
    assert modes(state)["state.db"] == 0o640


def test_keys_that_failed_are_kept_for_their_owner_alone(state):
    state.run("repair", "--key", "ORDER#1", "ITEM#a", "--state", "state.db", "--failed", "failed.jsonl")

    assert modes(state)["failed.jsonl"] == 0o600


def test_a_parked_record_is_kept_for_its_owner_alone(folder):
    texts = ("shop", "h", "main", "item", "00/x/1", "ValueError", "text")
    FileParking(str(folder.path / "parked.jsonl")).park(Parked(*texts, 1, "2026-03-01T00:00:00Z", {}))

    assert modes(folder)["parked.jsonl"] == 0o600


def test_a_recording_is_kept_for_its_owner_alone(folder):
    record_stream(_Stream(), folder.path / "out.jsonl")

    assert {name: mode for name, mode in modes(folder).items() if name.startswith("out")} == {
        "out.jsonl": 0o600,
        "out.jsonl.cursor": 0o600,
    }


class _Stream:
    trimmed_shards = ()

    def pages(self, cursor, *, follow=False):
        return iter(())


def test_keys_are_read_line_by_line_and_a_line_that_is_too_long_is_refused(state, monkeypatch):
    monkeypatch.setattr("streamfold.replay.files.LINE_BYTES_MAX", 200)
    state.write("keys", f"ORDER#1\tITEM#a\n{'x' * 300}\n")

    ran = state.run("repair", "--keys", "keys", "--state", "state.db")

    assert ran.code == 2
    assert "its line 2 is longer than" in ran.err


def test_a_report_in_several_lines_is_read(state):
    report = {"application": "shop", "different": [], "failed": []}
    state.write("report.json", json.dumps(report, indent=2))

    assert state.run("repair", "--from-verify", "report.json", "--state", "state.db").code == 0
