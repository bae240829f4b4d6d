"""Requests of commands that work for hours are sent again when a connection breaks; those of functions once more, and
only if the server had closed the connection.
"""

import pytest
from opensearchpy.exceptions import ConnectionError as BrokenConnection
from opensearchpy.exceptions import RequestError, TransportError

from streamfold.derivations.search import opensearch
from streamfold.derivations.search.opensearch import COMMAND_TRIES, SearchCalls, open_search
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.settings import Settings
from streamfold.settings.limits import CALL_SECONDS_MAX
from tests.helpers.freezing_server import FreezingServer

BROKEN = BrokenConnection("N/A", "the connection was dropped", OSError())
BUSY = TransportError(503, "unavailable", {})
EXISTS = RequestError(
    400, "resource_already_exists_exception", {"error": {"type": "resource_already_exists_exception"}}
)


class Transport:
    def __init__(self, *answers):
        self.answers = list(answers)

    def perform_request(self, *arguments, **more):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def calls(*answers, tries=COMMAND_TRIES):
    found = SearchCalls(Transport(*answers), "https://search.test")
    found.tries, found.pauses = tries, []
    found.pause = found.pauses.append
    return found


@pytest.mark.parametrize("broken", [BROKEN, BUSY])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_command_sends_a_request_again_whose_connection_broke(broken, method):
    found = calls(broken, broken, {"ok": True})

    assert found.ask(method, "/products") == {"ok": True}
    assert found.pauses == [0.5, 1.0]


def test_documents_are_sent_again_too():
    assert calls(BROKEN, {"items": []}).send("POST", "/_bulk", b"", {}) == {"items": []}


def test_a_command_ends_where_the_server_stays_away():
    found = calls(*[BROKEN] * COMMAND_TRIES)

    with pytest.raises(EngineUnavailable, match="was broken"):
        found.ask("GET", "/products")
    assert found.transport.answers == []


def test_a_function_sends_a_request_once():
    found = calls(BROKEN, {"ok": True}, tries=1)

    with pytest.raises(EngineUnavailable):
        found.ask("GET", "/products")
    assert len(found.transport.answers) == 1


def test_an_index_that_the_broken_try_made_is_made():
    assert calls(BROKEN, EXISTS).ask("PUT", "/products-000002") == {}


def test_an_index_that_was_there_before_is_refused():
    with pytest.raises(EngineError, match="resource_already_exists_exception"):
        calls(EXISTS).ask("PUT", "/products-000002")


@pytest.fixture
def server():
    found = FreezingServer(b"{}")
    yield found
    found.close()


@pytest.fixture
def function(server):
    """The calls of a function."""
    sink = open_search(Settings(search=server.url))
    yield sink.calls
    sink.close()


def test_a_function_sends_a_request_once_more_after_a_freeze(server, function):
    assert function.ask("GET", "/products") == {}
    server.freeze()
    assert function.send("POST", "/_bulk", b"", {}) == {}
    assert server.requests == 3


def test_a_server_that_closes_each_connection_is_asked_twice_by_a_function(server, function):
    server.closed = True
    with pytest.raises(EngineUnavailable, match="was broken"):
        function.ask("GET", "/products")
    assert server.requests == 2


def test_a_function_sends_nothing_again_once_the_time_of_a_call_is_over(server, function, monkeypatch):
    server.closed, now = True, iter(range(0, 100, CALL_SECONDS_MAX))
    monkeypatch.setattr(opensearch, "monotonic", lambda: next(now))
    with pytest.raises(EngineUnavailable, match="was broken"):
        function.ask("GET", "/products")
    assert server.requests == 1
