"""``kill -9`` at a random moment of a replay, then the same command again, until it ends: the rows are the clean
ones.
"""

import signal
import subprocess
import time
from random import Random

import pytest

from tests.commands import EVENTS, ROOT, command_line, environment, shown, streamfold

BATCH_RECORDS = 10
"""So few that a run takes long enough to be hit."""
START_SECONDS = 0.2
"""What a process needs to start: killed before, it has done nothing yet."""


def replay(file):
    return command_line("replay", *EVENTS, "--state", file, "--batch-size", BATCH_RECORDS)


def rows(file):
    return shown(streamfold("show", "--state", file, "--json"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The rows of an undisturbed run, and how long it took."""
    file, began = tmp_path_factory.mktemp("clean") / "state.db", time.monotonic()
    assert not killed(replay(file), None)
    return rows(file), time.monotonic() - began


def killed(command, seconds):
    """Whether a process had to be killed after so many seconds; False when it ended before, all well."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, err
    return False


def check_kills(seed, count, folder, clean):
    """Kills that many times. A run that ends between two kills is compared, and the next has a new state."""
    random, kills = Random(seed), 0
    (clean_rows, clean_seconds), files = clean, (folder / f"{number}.db" for number in range(1000))
    while kills < count:
        file = next(files)
        while kills < count and killed(replay(file), random.uniform(START_SECONDS, 0.9 * clean_seconds)):
            kills += 1
        assert not killed(replay(file), None)
        assert rows(file) == clean_rows


@pytest.mark.parametrize("seed", range(2))
def test_killed_replay_that_is_run_again_gives_the_same_rows(seed, tmp_path, clean):
    check_kills(seed, 10, tmp_path, clean)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 7))
def test_replay_that_is_killed_many_times_gives_the_same_rows(seed, tmp_path, clean):
    check_kills(seed, 10, tmp_path, clean)
