"""The engine reads a response as botocore does; responses of other calls are left to botocore."""

import json
from base64 import b64encode
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold.engines.dynamodb_client import PARSED as OPERATIONS
from streamfold.engines.dynamodb_client import called, watch
from streamfold.records import values as json_values
from streamfold.records.values import encode
from tests.helpers.values import texts, values
from tests.helpers.wire import Wire

EXAMPLES = 25
KEY = {"pk": {"S": "a"}}
USED = {"TableName": "t", "CapacityUnits": 1.5}
READS = {
    "batch_get_item": (
        {"RequestItems": {"t": {"Keys": [KEY]}}},
        lambda images: {
            "Responses": {"t": images},
            "UnprocessedKeys": {"t": {"Keys": images}},
            "ConsumedCapacity": [USED],
        },
    ),
    "get_item": ({"TableName": "t", "Key": KEY}, lambda images: {"Item": images[0], "ConsumedCapacity": USED}),
    "query": (
        {"TableName": "t", "KeyConditionExpression": "x"},
        lambda images: {"Items": images, "Count": len(images), "ScannedCount": 3, "LastEvaluatedKey": images[0]},
    ),
    "scan": ({"TableName": "t"}, lambda images: {"Items": images, "Count": len(images), "ConsumedCapacity": None}),
}
names = texts.filter(bool) | st.sampled_from(["B", "BS"])
images = st.dictionaries(names, values, max_size=4).map(lambda item: encode(item)["M"])


@pytest.fixture(scope="module")
def wire():
    found = Wire()
    watch(found.client.meta.events)
    return found


@pytest.fixture
def parsed(wire):
    """The bodies that botocore is left to parse."""
    found = []

    def note(response_dict, **_):
        found.append(response_dict["body"])

    wire.status, wire.answer, wire.content = 200, None, None
    events = [f"before-parse.dynamodb.{operation}" for operation in OPERATIONS]
    for event in events:
        wire.client.meta.events.register_last(event, note)
    yield found
    for event in events:
        wire.client.meta.events.unregister(event, note)


def asked(wire, operation, images):
    """The arguments of a read that finds these items."""
    arguments, answer = READS[operation]
    wire.content = json.dumps(answer(images), default=lambda value: b64encode(value).decode()).encode()
    return getattr(wire.client, operation), arguments


def told(answer):
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


@pytest.mark.parametrize("operation", READS)
@settings(max_examples=EXAMPLES)
@given(found=st.lists(images, min_size=1, max_size=3), library=st.sampled_from([None, json_values.ORJSON]))
def test_an_answer_says_what_botocore_reads_of_it(wire, operation, found, library):
    read, arguments = asked(wire, operation, found)
    with patch.object(json_values, "ORJSON", library):
        assert told(called(read, arguments)) == told(read(**arguments))


@pytest.mark.parametrize("operation", READS)
def test_botocore_parses_no_item_for_an_engine(wire, parsed, operation):
    read, arguments = asked(wire, operation, [{"n": {"N": "1"}}])
    assert called(read, arguments)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert parsed == [b"{}"]


@pytest.mark.parametrize("image", [{"b": {"B": b"x"}}, {"b": {"L": [{"BS": [b"x"]}]}}])
def test_binary_values_are_parsed_by_botocore(wire, parsed, image):
    read, arguments = asked(wire, "get_item", [image])
    assert called(read, arguments)["Item"] == image
    assert parsed == [wire.content]


def test_calls_of_others_are_parsed_by_botocore(wire, parsed):
    read, arguments = asked(wire, "get_item", [{"n": {"N": "1"}}])
    called(read, arguments)
    read(**arguments)
    assert parsed == [b"{}", wire.content]


def test_errors_are_parsed_by_botocore(wire, parsed):
    read, arguments = asked(wire, "get_item", [{}])
    wire.status, wire.content = 400, b'{"__type": "com.amazonaws#ValidationException", "message": "no"}'
    with pytest.raises(ClientError, match="no"):
        called(read, arguments)
    assert parsed == [wire.content]


def test_an_answer_that_is_no_json_is_parsed_by_botocore(wire, parsed):
    read, arguments = asked(wire, "get_item", [{}])
    wire.content = b'{"Item"'
    assert "Item" not in called(read, arguments)
    assert parsed == [wire.content]
