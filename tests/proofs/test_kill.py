"""A replay into a state file that is killed at random moments: run again, it gives the rows of a clean run."""

import json
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from random import Random

import pytest

from tests.helpers.commands import EVENTS, ROOT, command_line, environment, shown, streamfold
from tests.helpers.kills import check_kills

BATCH_RECORDS = 10
"""So few that a run takes long enough to be hit."""
START_SECONDS = 0.2
"""What a process needs to start: killed before, it has done nothing yet."""
KILLS = 10
SOME = [path for path in EVENTS if path.stem in ("bank", "documents", "iot", "search", "social")]
"""A third of the events: a run of them still takes several times as long as a process needs to start."""


def replay(file, events=EVENTS):
    return command_line("replay", *events, "--state", file, "--batch-size", BATCH_RECORDS)


def check_killed_replays(seed, folder, events=EVENTS):
    found = []

    def check(number):
        found.append(shown(streamfold("show", "--state", folder / f"{number}.db", "--json")))
        assert found[number] == found[0]

    check_kills(KILLS, Random(seed), START_SECONDS, lambda number: replay(folder / f"{number}.db", events), check)


def kill_behind(place, file):
    """Kills a replay into a new state once the state holds that many entries of its files."""
    process = subprocess.Popen(
        replay(file, SOME), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while entries_of(file) < place and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def entries_of(file):
    """How far the state says that its replay came; 0 while there is no state."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as state:
        for (text,) in state.execute("SELECT text FROM progress WHERE number = 0"):
            return json.loads(text)["entries"]
    return 0


@pytest.mark.ci
def test_killed_replay_loses_a_batch_at_most_and_goes_on_behind_it(tmp_path):
    clean, file = tmp_path / "clean.db", tmp_path / "state.db"
    assert streamfold(*replay(clean, SOME)[3:]).code == 0
    kill_behind(200, file)
    behind = entries_of(file)
    assert behind >= 200
    ran = streamfold(*replay(file, SOME)[3:])
    assert f"Continues after the first {behind:,} records" in ran.err
    found = [shown(streamfold("show", "--state", each, "--json")) for each in (clean, file)]
    assert found[0] == found[1]
    assert entries_of(file) == 0


@pytest.mark.ci
def test_killed_replay_that_is_run_again_gives_the_same_rows(tmp_path):
    assert len(SOME) == 5
    check_killed_replays(0, tmp_path, SOME)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 7))
def test_replay_that_is_killed_many_times_gives_the_same_rows(seed, tmp_path):
    check_killed_replays(seed, tmp_path)
