"""What a server may answer to a request, or leave unanswered, and what that means for the next one."""

import json
import socket

import pytest

from streamfold.derivations.search.opensearch import open_search
from streamfold.derivations.search.sink import Action, Answer, IndexBusy, TooLarge
from streamfold.errors import EngineError, EngineUnavailable, EngineUnreachable, is_fatal, public
from streamfold.settings import Settings

ACTIONS = [Action("products", "secret-1", 7, b'{"title":"secret"}')]


@pytest.fixture
def sink(stub):
    opened = open_search(Settings(search=stub.url))
    yield opened
    opened.close()


def refused(sink, call=lambda sink: sink.bulk(ACTIONS)):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of which class, the test looks
        call(sink)
    return raised.value


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"error":{"type":"x_content_exception","reason":"secret"}}', EngineError, "400 x_content_exception"),
        (401, b"Unauthorized", EngineError, "401 (...). Expected credentials that it knows: STREAMFOLD_SEARCH_USER"),
        (403, b'{"message":"User is not authorized"}', EngineError, "403 (...). Expected permissions for this index"),
        (
            404,
            b'{"error":"secret","status":404}',
            EngineError,
            "404 (...). Expected an existing index:",
        ),
        (301, b"", EngineError, "301"),
        (408, b"", EngineUnavailable, "408"),
        (413, b"", TooLarge, "takes no request of this size (413)"),
        (429, b'{"error":{"type":"circuit_breaking_exception"}}', IndexBusy, "429 circuit_breaking_exception"),
        (429, b"429 Too Many Requests /_bulk", IndexBusy, "429 (...)"),
        (500, b'{"error":{"type":"exception","reason":"secret"}}', EngineUnavailable, "500 exception (...)"),
        (502, b"<html>Bad Gateway</html>", EngineUnavailable, "502 (...)"),
        (503, b"", EngineUnavailable, "503"),
        (504, b'{"message":null}', EngineUnavailable, "504"),
    ],
)
def test_a_refused_request_says_whether_another_try_helps(stub, sink, status, body, kind, message):
    stub.answer(status, body)
    error = refused(sink)
    assert type(error) is kind
    told = public(error.marked if isinstance(error, EngineError) else str(error))
    assert f"OpenSearch at {stub.url} " in told
    assert message in told
    assert "secret" not in told


def test_a_request_is_sent_once(stub, sink):
    for status in (429, 502, 503):
        stub.requests.clear()
        stub.answer(status, b"")
        refused(sink)
        assert len(stub.requests) == 1


@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_an_answer_that_is_no_json_tells_nothing(stub, sink, kind):
    stub.answer(200, b"<html>Welcome</html>", kind)
    assert type(refused(sink)) is EngineUnavailable


@pytest.mark.parametrize("body", [b"", b"{}", b'{"items":[]}'])
def test_an_answer_that_leaves_out_documents_tells_nothing(stub, sink, body):
    stub.answer(200, body)
    error = refused(sink)
    assert type(error) is EngineUnavailable
    assert "answered 0 of 1 documents" in str(error)


def test_a_broken_connection_leaves_the_outcome_open(stub, sink):
    stub.break_off()
    error = refused(sink)
    assert type(error) is EngineUnavailable
    assert f"The connection to {stub.url} was broken" in str(error)


def test_where_nothing_listens_nothing_was_sent():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        sink = open_search(Settings(search=f"http://127.0.0.1:{unused.getsockname()[1]}"))
        error = refused(sink)
        sink.close()
    assert type(error) is EngineUnreachable
    assert "is STREAMFOLD_SEARCH right?" in str(error)


def test_a_host_that_is_not_known_is_not_reachable():
    sink = open_search(Settings(search="https://search.invalid"))
    error = refused(sink)
    sink.close()
    assert type(error) is EngineUnreachable
    assert "search.invalid" in str(error)


def test_no_answer_in_time_leaves_the_outcome_open(monkeypatch):
    monkeypatch.setattr("streamfold.derivations.search.opensearch.READ_SECONDS_MAX", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sink = open_search(Settings(search=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        error = refused(sink)
        sink.close()
    assert type(error) is EngineUnavailable
    assert "did not answer in time" in str(error)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (b'{"type":"mapper_parsing_exception","reason":"failed to parse"}', Answer(400, "failed to parse")),
        (
            b'{"type":"a","reason":"failed","caused_by":{"type":"b","reason":"why","caused_by":{"reason":"really"}}}',
            Answer(400, "failed: really"),
        ),
        (b'{"type":"odd_exception"}', Answer(400, "odd_exception")),
    ],
)
def test_a_refused_document_is_answered_with_its_innermost_cause(stub, sink, error, answer):
    stub.answer(200, b'{"items":[{"index":{"status":400,"error":%s}}]}' % error)
    assert sink.bulk(ACTIONS) == [answer]


@pytest.mark.parametrize("call", ["check", "read", "documents"])
def test_other_requests_raise_the_same_errors(stub, sink, call):
    calls = {
        "check": lambda sink: sink.check("products"),
        "read": lambda sink: sink.read("products", ["secret-1"]),
        "documents": lambda sink: list(sink.documents("products")),
    }
    for status, kind in {403: EngineError, 429: IndexBusy, 503: EngineUnavailable}.items():
        stub.answer(status, b"")
        assert type(refused(sink, calls[call])) is kind
    stub.answer(404, b'{"error":{"type":"index_not_found_exception"},"status":404}')
    error = refused(sink, calls[call])
    assert str(error) == "Alias 'products' does not exist. Expected one: streamfold search create INDEX makes it."


def test_an_alias_is_looked_at_once_until_it_takes_no_documents(stub, sink):
    alias = b'{"products-1":{"aliases":{"products":{"filter":{"bool":{"must_not":{"exists":{"field":"_sf_gone"}}}}}}}}'
    stub.answer(200, alias)
    for _ in range(3):
        sink.check("products")
    assert len(stub.requests) == 1
    stub.answer(200, b'{"items":[{"index":{"status":404,"error":{"type":"index_not_found_exception"}}}]}')
    refused(sink)
    stub.answer(200, alias)
    sink.check("products")
    assert len(stub.requests) == 3


def test_a_collection_that_takes_no_ids_is_a_fault_of_the_server_and_not_of_each_document(stub, sink):
    reason = "Document ID is not supported in create/index operation request"
    item = {"index": {"status": 400, "error": {"type": "illegal_argument_exception", "reason": reason}}}
    stub.answer(200, json.dumps({"items": [item] * len(ACTIONS)}).encode())
    error = refused(sink)
    assert (type(error), is_fatal(error)) == (EngineError, True)
    assert "Expected a collection of the type SEARCH" in public(error.marked)


@pytest.mark.parametrize(
    ("settings", "is_named"),
    [({}, True), ({"search_user": "ada", "search_password": "secret"}, False), ({"search_service": "none"}, True)],
)
def test_a_403_of_a_request_that_nobody_signed_says_so(stub, settings, is_named):
    sink = open_search(Settings(search=stub.url, **settings))
    stub.answer(403, b'{"message":"Missing Authentication Token"}')
    assert ("STREAMFOLD_SEARCH_SERVICE=es or aoss, or" in refused(sink).marked) is is_named
    sink.close()
