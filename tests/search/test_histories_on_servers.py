"""Histories over real servers that are killed in the middle, and that forget deletions after a second."""

from random import Random

import pytest

from tests.helpers.search_histories import KINDS, History
from tests.search.conftest import SERVERS, Place
from tests.search.servers import Server

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
def own_server(request, servers):
    """A server of this test alone, which it may kill."""
    servers(request.param)  # skips where there is none
    server = Server(request.param).start()
    yield server
    server.remove()


each_server = pytest.mark.parametrize("own_server", SERVERS, indirect=True)


@each_server
def test_fifty_histories_are_right_although_the_server_is_killed(own_server, open_sink):
    check_killed(own_server, open_sink, 50)


@pytest.mark.nightly
@each_server
def test_five_hundred_histories_are_right_although_the_server_is_killed(own_server, open_sink):
    check_killed(own_server, open_sink, 500, first=1000)
