"""Runs the command line as a person does, in a process of its own, and reads the rows that it prints."""

import json
import os
import subprocess
import sys
from base64 import b64decode
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EVENTS = sorted((ROOT / "events").glob("*.jsonl"))
SPECIAL = sorted((ROOT / "events" / "special").glob("*.json"))
SECONDS_MAX = 300


class Ran(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def objects(self):
        """The JSON objects that it printed, one a line."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


def environment(**more):
    """This process's environment without anything that AWS's SDKs or streamfold would read, then ``more``."""
    foreign = ("AWS_", "STREAMFOLD_", "POWERTOOLS_", "PYTHON")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # No look for credentials at the address of a cloud machine, nor in a home folder.
    quiet = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    return {**own, **quiet, "PYTHONPATH": str(ROOT / "framework"), "PYTHONWARNINGS": "error", **more}


def command_line(*arguments):
    return [sys.executable, "-m", "streamfold", *map(str, arguments)]


def streamfold(*arguments, folder=ROOT, stdin=None, **variables):
    """Runs ``streamfold ARGUMENTS`` in a folder, with these environment variables."""
    done = subprocess.run(
        command_line(*arguments),
        cwd=folder,
        env=environment(**variables),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def embedded_rows(*files, folder=ROOT, state, more=(), show=(), run=streamfold):
    """The rows that a replay of files on the embedded engine leads to; ``run`` runs a command."""
    ran = run("replay", *files, "--state", state, "--fresh", *more, folder=folder)
    assert ran.code == 0, ran.err
    return shown(run("show", "--state", state, "--json", *more, *show, folder=folder))


def shown(ran):
    """The items that ``show --json`` printed, as comparable values, each once."""
    assert ran.code == 0, ran.err
    return as_set(json.loads(line) for line in ran.out.splitlines())


def as_set(items):
    """Items in DynamoDB JSON as a set of comparable values; 0 and absent are alike, binary may be base64 text."""
    comparable = ([(name, _comparable(value)) for name, value in item.items()] for item in items)
    rows = [frozenset(pair for pair in row if pair[1] != ("N", 0)) for row in comparable]
    found = set(rows)
    assert len(found) == len(rows)
    return found


def _comparable(value):
    ((kind, content),) = value.items()
    match kind:
        case "N":
            return kind, Decimal(content)
        case "B":
            return kind, content if isinstance(content, bytes) else b64decode(content)
        case "SS" | "NS" | "BS":
            return kind, frozenset(_comparable({kind[0]: member}) for member in content)
        case "L":
            return kind, tuple(_comparable(member) for member in content)
        case "M":
            return kind, frozenset((name, _comparable(member)) for name, member in content.items())
    return kind, content
