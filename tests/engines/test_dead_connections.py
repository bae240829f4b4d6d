"""After a freeze of a function all kept connections are dead: no call fails because of that."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from streamfold.engines import DynamoEngine
from streamfold.engines import dynamodb_client as module
from streamfold.engines.dynamodb_client import make_client
from streamfold.errors import EngineUnavailable
from streamfold.keys.table import MAIN
from streamfold.parking import make_client as make_other_client
from streamfold.settings.limits import CALL_SECONDS_MAX, TRIES_MAX
from streamfold.writes.guarded import StateKey
from tests.helpers.freezing_server import FreezingServer

CALLS = 10


@pytest.fixture
def server(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    found = FreezingServer(b'{"Responses": {"state": []}}')
    yield found
    found.close()


@pytest.fixture
def engine(server):
    return DynamoEngine(make_client(server.url), {MAIN.name: (MAIN, "main")}, "state")


def call(engine):
    return engine.read_state([StateKey("a", "b")])


def test_no_call_fails_that_meets_dead_connections(server, engine):
    with ThreadPoolExecutor(CALLS) as threads:
        for _ in range(10):
            assert list(threads.map(call, [engine] * 2 * CALLS)) == [{}] * 2 * CALLS
            server.freeze()


def test_a_server_that_closes_each_connection_is_tried_once_more_and_no_oftener(server, engine):
    server.closed = True
    with pytest.raises(EngineUnavailable, match="ConnectionClosedError"):
        call(engine)
    assert server.requests == TRIES_MAX + 1


def test_the_third_try_is_left_out_if_it_could_outlast_the_longest_call(server, engine, monkeypatch):
    server.closed, now = True, iter(range(0, 100 * CALL_SECONDS_MAX, CALL_SECONDS_MAX))
    monkeypatch.setattr(module, "monotonic", lambda: next(now))
    with pytest.raises(EngineUnavailable, match="ConnectionClosedError"):
        call(engine)
    assert server.requests == TRIES_MAX


def test_clients_of_other_services_are_tried_once_more_too(server):
    server.closed = True
    with pytest.raises(module.ConnectionClosedError):
        make_other_client("sqs", server.url).list_queues()
    assert server.requests == TRIES_MAX + 1
