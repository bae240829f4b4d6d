"""Requests of commands that work for hours are sent again when a connection breaks; those of functions are not."""

import pytest
from opensearchpy.exceptions import ConnectionError as BrokenConnection
from opensearchpy.exceptions import RequestError, TransportError

from streamfold.derivations.search.opensearch import COMMAND_TRIES, SearchCalls
from streamfold.errors import EngineError, EngineUnavailable

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
