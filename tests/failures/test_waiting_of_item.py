"""The failed records of one item among waiting documents."""

import json

import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold.failures.failed_records import Waiting
from streamfold.failures.waiting_of_item import is_of_item, waiting_of_item
from streamfold.settings import Settings
from tests.helpers.failures import parked_document, queue_message, s3_object

ORDER = Key("ORDER#{order_id}", "METADATA")


def application():
    router = Router()

    @router.view(ORDER, into=Key("TOTAL", "TOTAL"))
    def total(order):
        yield Row(total=Sum(order["total"]))

    return App("shop", routers=[router])


@pytest.fixture
def records(source):
    return [source.put(f"ORDER#{number}", total=number) for number in (1, 2, 1)]


def found(*documents, item=("main", "ORDER#1", "METADATA"), settings=None):
    waiting = [Waiting(f"file:{number}", each) for number, each in enumerate(documents, 1)]
    return waiting_of_item(waiting, is_of_item(application(), settings or Settings(), item))


def sequence(record):
    return record["dynamodb"]["SequenceNumber"]


def test_a_parked_record_names_its_number_its_handler_and_the_request_that_failed(records):
    documents = [
        parked_document(records[0], "total", request_id="request-9", attempts=3),
        parked_document(records[1], "total"),
    ]
    (waiting,) = found(*documents).records
    assert (waiting.sequence, waiting.handler, waiting.request_id) == (sequence(records[0]), "total", "request-9")
    assert (waiting.why, waiting.attempts, waiting.location) == ("LookupError: no", 3, "file:1")


def test_a_batch_that_lambda_gave_up_names_its_request_and_each_record_of_the_item(records):
    waiting = found(json.loads(s3_object(*records))).records
    assert [each.sequence for each in waiting] == [sequence(records[0]), sequence(records[2])]
    assert {(each.request_id, each.handler, each.attempts) for each in waiting} == {("request-1", None, 4)}
    assert waiting[0].why == "given up by Lambda: RetryAttemptsExhausted"


def test_a_document_of_an_earlier_release_has_no_request(records):
    document = parked_document(records[0], "total")
    del document["request_id"]
    (waiting,) = found(document).records
    assert waiting.request_id is None


def test_an_item_that_was_visited_has_no_number(records):
    visited = {"visited": {"table": "main", "Keys": {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}}}}
    document = {**parked_document(records[0], "total"), "record": visited}
    (waiting,) = found(document).records
    assert waiting.sequence is None


def test_documents_without_records_are_counted_and_those_that_cannot_be_read_are_named(records):
    result = found(json.loads(queue_message(*records)), {"what": 1})
    assert (result.records, result.ranges) == ([], 1)
    assert result.unread[0].startswith("file:2: This is no failure document")


def test_a_record_of_another_table_is_no_record_of_the_item(records):
    result = found(parked_document(records[0], "total"), settings=Settings(tables={"main": "another"}))
    assert result.records == []
    assert "another" in result.unread[0]
