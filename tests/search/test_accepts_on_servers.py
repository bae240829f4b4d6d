"""What the local index takes and refuses is what servers take and refuse."""

import json
import urllib.error
import urllib.request

import pytest

from tests.helpers.document_cases import CASES


def created(server, name, case):
    """Whether the server made an index; one without a module lacks some types."""
    try:
        server.ask("PUT", f"/{name}", {"mappings": case.mapping, "settings": case.settings})
    except urllib.error.HTTPError as refused:
        text = refused.read().decode()
        assert "No handler for type" in text, text
        return False
    return True


def status(server, name, document):
    """The status of a document that is sent by a bulk of its own."""
    lines = f"{json.dumps({'index': {'_index': name, '_id': 'a'}})}\n{document}\n".encode()
    request = urllib.request.Request(f"{server.url}/_bulk", lines, {"content-type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        (item,) = json.loads(answer.read())["items"]
    return item["index"]["status"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_server_takes_and_refuses_the_same(server, case):
    name = "accepts"
    if not created(server, name, case):
        pytest.skip("the server lacks the type")
    try:
        wrong = [text[:80] for text in case.taken if status(server, name, text) not in (200, 201)]
        wrong += [text[:80] for text in case.refused if status(server, name, text) != 400]
        assert wrong == []
    finally:
        server.ask("DELETE", f"/{name}")
