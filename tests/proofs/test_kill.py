"""A replay into a state file that is killed at random moments: run again, it gives the rows of a clean run."""

from random import Random

import pytest

from tests.helpers.commands import EVENTS, command_line, shown, streamfold
from tests.helpers.kills import check_kills

BATCH_RECORDS = 10
"""So few that a run takes long enough to be hit."""
START_SECONDS = 0.2
"""What a process needs to start: killed before, it has done nothing yet."""
KILLS = 10


def replay(file):
    return command_line("replay", *EVENTS, "--state", file, "--batch-size", BATCH_RECORDS)


def check_killed_replays(seed, folder):
    found = []

    def check(number):
        found.append(shown(streamfold("show", "--state", folder / f"{number}.db", "--json")))
        assert found[number] == found[0]

    check_kills(KILLS, Random(seed), START_SECONDS, lambda number: replay(folder / f"{number}.db"), check)


@pytest.mark.ci
def test_killed_replay_that_is_run_again_gives_the_same_rows(tmp_path):
    check_killed_replays(0, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 7))
def test_replay_that_is_killed_many_times_gives_the_same_rows(seed, tmp_path):
    check_killed_replays(seed, tmp_path)
