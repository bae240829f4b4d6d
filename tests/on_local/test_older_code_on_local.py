"""Code that knows no deltas beside this code, over one state: older code stops while deltas may be put.

Each plays a warm process of the older code and one of this code, as they are under a deployment and on the way back.
"""

import json
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter
from contextlib import closing
from io import BytesIO
from random import Random

import pytest

from streamfold.batch.manifest import change_deltas
from streamfold.keys.table import CONTRIBUTORS, is_marker
from streamfold.lifecycle.buckets import WayBack
from streamfold.runtime import DELTAS_AFTER_SECONDS, DeltasMark, Runtime
from streamfold.settings import Settings
from tests.helpers.commands import ROOT, environment
from tests.helpers.either_version import STATE, app, engine_of
from tests.helpers.source import Source
from tests.helpers.tables import make_table

OLDER = "1336f55c"
"""The last commit before deltas."""
OPENED_SECONDS = DELTAS_AFTER_SECONDS + 60
GROUPS = 4
BATCHES, BATCH_MAX = 3, 20
LIVE_MAX = 12


@pytest.fixture(scope="session")
def older_code(tmp_path_factory):
    """A folder with the framework as it was."""
    made = subprocess.run(["git", "archive", OLDER, "framework"], cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this clone has no commit {OLDER}: {made.stderr.decode()}")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder / "framework"


class Process:
    """A warm process of one version of the code."""

    def __init__(self, framework, endpoint, access_key, share):
        variables = {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCOUNT_ID_ENDPOINT_MODE": "disabled",
            "PYTHONPATH": f"{framework}{os.pathsep}{ROOT}",
        }
        command = [sys.executable, "-m", "tests.helpers.either_version", endpoint, str(share)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # Not in the folder of this code, whose package would come first.
        folder = framework.parent if framework.parent != ROOT else ROOT
        self.process = subprocess.Popen(command, cwd=folder, env=environment(**variables), text=True, **pipes)

    def take(self, records):
        """What became of a batch."""
        self.process.stdin.write(json.dumps(records) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()


class Writes:
    """Writes of items at random: they are inserted, amended, moved between groups, and removed."""

    def __init__(self, seed):
        self.random, self.source, self.live, self.number, self.made = Random(seed), Source(), {}, 0, []

    def batch(self):
        records = [self._next() for _ in range(self.random.randint(5, BATCH_MAX))]
        self.made.append(records)
        return records

    def again(self):
        """An earlier batch, which comes again, or a part of one."""
        records = self.random.choice(self.made)
        return records[self.random.randrange(len(records)) :]

    def _next(self):
        draw = self.random.random()
        if not self.live or (draw < 0.4 and len(self.live) < LIVE_MAX):
            self.number += 1
            return self._put(f"i{self.number}", self.random.randrange(GROUPS))
        name = self.random.choice(sorted(self.live))
        if draw > 0.7:
            del self.live[name]
            return self.source.remove(f"ITEM#{name}")
        return self._put(name, self.random.randrange(GROUPS) if draw > 0.5 else self.live[name])

    def _put(self, name, group):
        self.live[name] = group
        return self.source.put(f"ITEM#{name}", group=f"g{group}", amount=self.random.randint(-99, 99))

    def rows(self):
        """The rows that all writes lead to."""
        rows = {"CHANGES": Counter(changes=sum(map(len, self.made)))}
        for item in self.source.items.values():
            row = rows.setdefault(f"GROUP#{item['group']}", Counter())
            row.update(amount=item["amount"], items=1)
            row[CONTRIBUTORS] += 1
        return {key: +row for key, row in rows.items()}


def items_of(client, table):
    return sorted(client.scan(TableName=table, ConsistentRead=True)["Items"], key=str)


def rows_of(client):
    found = {}
    for row in items_of(client, "main"):
        if is_marker(row["PK"]["S"]):
            continue
        assert row.keys() <= {"PK", "SK", "amount", "items", "changes", CONTRIBUTORS}, row
        numbers = {name: int(value["N"]) for name, value in row.items() if "N" in value}
        found[row["PK"]["S"]] = +Counter(numbers)
    found["CHANGES"].pop(CONTRIBUTORS, None)
    return found


@pytest.fixture
def runtime(dynamodb):
    make_table(dynamodb, "main", {"PK": "S", "SK": "S"})
    make_table(dynamodb, STATE, {"pk": "S", "sk": "S"})
    return Runtime(app, engine_of(dynamodb), Settings())


def check(code, batch):
    assert code.take(batch) == {"failed": []}


def check_stops(code, batch, client):
    """Older code writes nothing, neither to the state nor to a row."""
    before = [items_of(client, table) for table in ("main", STATE)]
    answer = code.take(batch)
    assert answer["raised"] == "ManifestError", answer
    assert "(deltas)" in answer["message"]
    assert [items_of(client, table) for table in ("main", STATE)] == before


def named(client):
    """The ledger items and claims that name deltas."""
    return [item for item in items_of(client, STATE) if any(name == "p" or name.endswith(".p") for name in item)]


def turn(code, writes):
    """Some batches of one code's turn; earlier ones come again among them."""
    for _ in range(BATCHES):
        check(code, writes.batch())
        check(code, writes.again())


AT_NIGHT = [pytest.param(seed, 1 + seed % 2, 2, marks=pytest.mark.nightly) for seed in range(1, 13)]


@pytest.mark.parametrize(("seed", "share", "rounds"), [(0, 2, 1), *AT_NIGHT])
def test_older_code_and_this_code_take_turns(
    runtime, dynamodb, dynamodb_endpoint, access_key, older_code, seed, share, rounds
):
    def process(framework, share=0):
        return closing(Process(framework, dynamodb_endpoint, access_key, share))

    writes = Writes(seed)
    with process(older_code) as older, process(ROOT / "framework", share) as newer:
        turn(older, writes)
        assert rows_of(dynamodb) == writes.rows()
        for _ in range(rounds):
            change_deltas(runtime, lambda _: DeltasMark(time.time() - OPENED_SECONDS))
            turn(newer, writes)
            assert rows_of(dynamodb) == writes.rows()
            assert len(named(dynamodb)) > 5
            check_stops(older, writes.again(), dynamodb)
            with process(older_code) as cold:
                check_stops(cold, writes.again(), dynamodb)
            with process(ROOT / "framework", 3 - share) as another:
                turn(another, writes)
            back = WayBack(runtime, lambda _: None)
            assert back.close().closed
            turn(newer, writes)
            closed = change_deltas(runtime, lambda mark: mark._replace(closed=time.time() - OPENED_SECONDS))
            assert back.wait(closed)
            assert back.empty() == 0
            check_stops(older, writes.again(), dynamodb)
            assert back.take_away(closed)
            turn(older, writes)
            assert rows_of(dynamodb) == writes.rows()
        turn(newer, writes)
        assert rows_of(dynamodb) == writes.rows()
