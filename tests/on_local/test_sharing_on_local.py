"""Processes that add to shared rows by deltas on DynamoDB Local, and are killed: every row is the fold in the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from streamfold.batch.manifest import change_deltas
from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.keys.table import CONTRIBUTORS, OWNER, is_marker
from streamfold.lifecycle.row_repair import reconcile_rows
from streamfold.records.values import encode
from streamfold.runtime import DELTAS_AFTER_SECONDS, DeltasMark, Runtime
from streamfold.settings import Settings
from tests.helpers.commands import ROOT, environment
from tests.helpers.sharing_processes import app, folded
from tests.helpers.tables import make_table

SECONDS_MAX = 600
OPENED_SECONDS = DELTAS_AFTER_SECONDS + 600
"""How long ago deltas were opened: also the slowest clock puts some."""


@pytest.fixture
def runtime(dynamodb):
    make_table(dynamodb, "main", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "sharing-state", {"pk": "S", "sk": "S"})
    engine = DynamoEngine(dynamodb, {name: (table, name) for name, table in app.tables.items()}, "sharing-state")
    runtime = Runtime(app, engine, Settings())
    process_changes(runtime, [])
    change_deltas(runtime, lambda _: DeltasMark(time.time() - OPENED_SECONDS))
    return runtime


def play(folder, endpoint, access_key, *numbers):
    """Plays all processes; returns what they counted, as far as they were not killed."""
    variables = {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCOUNT_ID_ENDPOINT_MODE": "disabled",
        "PYTHONWARNINGS": "default",
    }
    command = [sys.executable, "-m", "tests.helpers.sharing_processes", folder, endpoint, *numbers]
    process = subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        env=environment(**variables),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, err = process.communicate(timeout=SECONDS_MAX)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # it and the processes that it began, which have a session of their own
        process.communicate()
        raise
    assert process.returncode == 0, err
    counts = Counter()
    for file in folder.glob("*.counts"):
        for line in file.read_text().splitlines():
            counts.update(json.loads(line))
    return counts


def rows_of(client):
    (found,) = [client.scan(TableName="main", ConsistentRead=True)["Items"]]
    return {
        (row["PK"]["S"], row["SK"]["S"]): {name: int(value["N"]) for name, value in row.items() if "N" in value}
        for row in found
        if not is_marker(row["PK"]["S"])
    }


@pytest.fixture
def check(runtime, dynamodb, dynamodb_endpoint, access_key, tmp_path):
    """Plays processes, and checks rows and state in the end."""

    def check(seed, *, kills, stops, records, removals=0):
        counts = play(tmp_path, dynamodb_endpoint, access_key, seed, kills, stops, removals, records)
        print(dict(counts))
        rows, items = folded(tmp_path, seed)
        if removals:
            for each in items:
                dynamodb.put_item(TableName="main", Item=encode(each)["M"])
            found = reconcile_rows(runtime, ["total", "by_customer"])
            assert found.corrected.corrected
            assert not found.corrected.remaining
            for each in items:
                dynamodb.delete_item(TableName="main", Key={name: {"S": each[name]} for name in ("PK", "SK")})
        found = rows_of(dynamodb)
        for row in found.values():
            row.pop(CONTRIBUTORS, None)
        assert {key: +Counter(row) for key, row in found.items()} == {key: +row for key, row in rows.items()}
        assert not [row for row in dynamodb.scan(TableName="main")["Items"] if OWNER in row]
        assert not [item for item in runtime.engine.state_items() if item["pk"]["S"].startswith("delta#")]
        return counts

    return check


def test_processes_that_are_killed_leave_every_row_the_fold(check):
    counts = check(1, kills=12, stops=1, records=45)
    assert counts["put"] > 30
    assert counts["merged"] > counts["merges"] > 15
    assert counts["emptied"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 103))
def test_processes_that_are_killed_a_hundred_times_leave_every_row_the_fold(check, seed):
    counts = check(seed, kills=100, stops=10, records=300)
    assert counts["emptied"] > 10


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(200, 203))
def test_rows_that_are_removed_by_hand_meanwhile_are_the_fold_once_they_are_corrected(check, seed):
    check(seed, kills=10, stops=2, records=60, removals=8)
