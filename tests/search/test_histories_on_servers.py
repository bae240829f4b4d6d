"""Histories over real servers that are killed in the middle, and that forget deletions after a second."""

from random import Random

import pytest

from tests.helpers.search_histories import KINDS, History
from tests.search.conftest import Place

AT_ONCE = 25
STEPS_DEAD = 40
"""Steps of all histories while the server is away."""
KILLED_AFTER = range(50, 250)


def check_killed(server, open_sink, histories, first=0):
    """Runs histories, many at once, with a ``kill -9`` of the server in the middle of each group."""
    for start in range(first, first + histories, AT_ONCE):
        places = [Place(open_sink(server), server).create(**{"index.gc_deletes": "1s"}) for _ in range(AT_ONCE)]
        kinds = [made() for made in KINDS.values()]
        running = [
            History(kinds[number % len(kinds)], start + number, place.sink, place.index)
            for number, place in enumerate(places)
        ]
        _run(running, server, Random(start))
        for history, place in zip(running, places, strict=True):
            history.end()
            place.refresh()
            assert history.wrong() is None, f"seed {start + running.index(history)}"
            place.remove()


def _run(running, server, random):
    killed_after, steps = random.choice(KILLED_AFTER), 0
    while left := [history for history in running if not history.is_over]:
        steps += 1
        if steps == killed_after:
            server.kill()
        elif steps == killed_after + STEPS_DEAD:
            server.start()
        random.choice(left).step()
    if killed_after <= steps < killed_after + STEPS_DEAD:
        server.start()


@pytest.fixture
def mortal(server):
    """A server that a test may kill: for the tests behind it, it is there again."""
    yield server
    if server.is_gone:
        server.start()


def test_histories_are_right_although_the_server_is_killed(mortal, open_sink):
    check_killed(mortal, open_sink, AT_ONCE)


@pytest.mark.nightly
def test_five_hundred_histories_are_right_although_the_server_is_killed(mortal, open_sink):
    check_killed(mortal, open_sink, 500, first=1000)
