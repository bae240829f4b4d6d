"""``kill -9`` at random moments of a command that is run again after each: once it ends, its rows are clean."""

import signal
import subprocess
import time

from tests.helpers.commands import ROOT, environment

KILLS_CI, KILLS_NIGHTLY = 20, 200
"""On DynamoDB Local."""
STATES_MAX = 20
"""New states per kill that is asked for: runs that end before they are hit are no failure, but have an end."""
LAST_MOMENT = 0.9
"""Of the time that the last whole run took, so that most runs are hit."""


def timed(command, **variables):
    """How many seconds a run takes that nobody disturbs."""
    began = time.monotonic()
    assert not killed(command, None, **variables)
    return time.monotonic() - began


def killed(command, seconds, **variables):
    """Whether a process had to be killed after so many seconds; False when it ended before, all well."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(**variables), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, err
    return False


def check_kills(count, random, begin_seconds, command, check, **variables):
    """Kills that many runs, each at a moment after ``begin_seconds``.

    ``command(number)`` is that of the n-th new state, ``check(number)`` looks at its rows when it was run to its end.
    State 0 has a clean run; of each other so many runs are killed as do not end before.
    """
    seconds, kills = timed(command(0), **variables), 0
    check(0)
    for number in range(1, count * STATES_MAX):
        run = command(number)
        while kills < count and killed(run, _moment(random, begin_seconds, seconds), **variables):
            kills += 1
        seconds = timed(run, **variables)
        check(number)
        if kills == count:
            return
    raise AssertionError(f"{kills} of {count} runs were hit")


def _moment(random, begin_seconds, whole_seconds):
    return random.uniform(begin_seconds, max(begin_seconds, LAST_MOMENT * whole_seconds))
