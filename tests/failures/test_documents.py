"""Documents that failures leave: what each gives, and what is said of those that are none."""

import json

import pytest

from streamfold.errors import RecordError
from streamfold.failures.failed_records import Delivered, StreamRange, documents_of, left_of
from tests.helpers.failures import SHARD, parked_document, parked_record, queue_message, s3_object, topic_message

BATCH = "DDBStreamBatchInfo"


@pytest.fixture
def records(source):
    return [source.put("ORDER#1", price=1), source.put("ORDER#1", price=2, photo="é")]


@pytest.fixture
def part(records):
    sequences = [record["dynamodb"]["SequenceNumber"] for record in records]
    return StreamRange(records[0]["eventSourceARN"], SHARD, *sequences)


def test_a_parked_record_is_given_with_its_handler(records):
    assert left_of(parked_document(records[0], "total")) == parked_record(records[0], "total")


def test_an_object_of_a_bucket_gives_the_records_as_they_were_delivered(records):
    left = left_of(json.loads(s3_object(*records)))
    assert left == Delivered(records)


def test_a_message_of_a_queue_gives_the_range_of_the_records(records, part):
    assert left_of(json.loads(queue_message(*records))) == part


def test_a_message_of_a_topic_is_taken_out_of_its_envelope(records, part):
    assert left_of(json.loads(topic_message(*records))) == part


def test_the_document_of_a_pipe_gives_its_range(records, part):
    document = json.loads(queue_message(*records))
    assert left_of({"context": {"partnerResourceArn": "arn"}, BATCH: document[BATCH]}) == part


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"a": 1}, "This is no failure document: expected a parked record"),
        ({"Records": []}, "This is an event or a record, not a failure document: streamfold replay takes it."),
        ({"eventName": "INSERT", "dynamodb": {}}, "This is an event or a record, not a failure document"),
        (
            {"Records": [{"eventSource": "aws:sqs", "body": "{}"}]},
            "These are messages of a queue or topic: redrive takes the 'body'",
        ),
        (
            {"Records": [{"EventSource": "aws:sns", "Sns": {}}]},
            "These are messages of a queue or topic: redrive takes the 'Message' in 'Sns'",
        ),
        (
            {"Messages": [{"MessageId": "1", "Body": "{}"}]},
            "These are messages of a queue or topic: redrive takes the 'Body'",
        ),
        ({"KinesisBatchInfo": {}}, "A document's KinesisBatchInfo has {"),
        ({"parked": 2}, "A parked record has the format 2"),
        ({"payload": "{"}, "A document's 'payload' is '{': expected JSON as a text."),
        ({"payload": {}}, "A document's 'payload' is {}: expected JSON as a text."),
        ({"payload": "17"}, "This is no event that streamfold knows"),
        ({"Type": "Notification", "Message": "hello"}, "A document's 'Message' is 'hello': expected JSON as a text."),
        ({"Type": "Notification", "Message": "17"}, "A document is int, 17: expected a parked record"),
    ],
)
def test_what_is_no_document_is_refused_with_what_was_expected(document, message):
    with pytest.raises(RecordError) as raised:
        left_of(document)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("name", ["streamArn", "shardId", "startSequenceNumber", "endSequenceNumber"])
def test_a_range_that_lacks_an_end_is_refused(records, name):
    document = json.loads(queue_message(*records))
    del document[BATCH][name]
    with pytest.raises(RecordError, match=f"'{name}': None.*: expected the ARN of a stream, the id of"):
        left_of(document)


@pytest.mark.parametrize(
    ("name", "value"), [("endSequenceNumber", "12"), ("shardId", "12"), ("startSequenceNumber", 12)]
)
def test_a_range_with_a_value_that_no_stream_gives_is_refused(records, name, value):
    document = json.loads(queue_message(*records))
    document[BATCH][name] = value
    with pytest.raises(RecordError, match=f"'{name}': {value!r}"):
        left_of(document)


def test_a_range_of_localstacks_longer_numbers_is_read(records):
    document = json.loads(queue_message(*records))
    document[BATCH] |= {"startSequenceNumber": "4" * 56, "endSequenceNumber": "5" * 56}
    left = left_of(document)
    assert (left.first, left.last) == ("4" * 56, "5" * 56)


KINESIS = {
    "streamArn": "arn:aws:kinesis:us-east-2:123456789012:stream/changes",
    "shardId": "shardId-000000000001",
    "startSequenceNumber": "49601189658422359378836298521827638475320189012309704722",
    "endSequenceNumber": "49601189658422359378836298522902373528957594348623495186",
}


def test_a_message_about_a_batch_of_kinesis_gives_the_range_of_the_records(records, part):
    left = left_of({"requestContext": {}, "KinesisBatchInfo": {**KINESIS, "batchSize": 500}})
    assert left == StreamRange(*KINESIS.values())
    assert (left.is_kinesis, part.is_kinesis) == (True, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endSequenceNumber", "012"),
        ("startSequenceNumber", None),
        ("shardId", ""),
        ("streamArn", "arn:aws:dynamodb:x:1:t"),
    ],
)
def test_a_range_with_a_value_that_kinesis_does_not_give_is_refused(name, value):
    with pytest.raises(RecordError, match=f"KinesisBatchInfo has .*'{name}': {value!r}"):
        left_of({"KinesisBatchInfo": {**KINESIS, name: value}})


def test_a_list_gives_its_documents_and_one_gives_itself():
    assert documents_of([{"a": 1}, {"b": 1}]) == [{"a": 1}, {"b": 1}]
    assert documents_of({"a": 1}) == [{"a": 1}]


@pytest.mark.parametrize("value", [17, "text", None, [{}, 17]])
def test_a_value_that_is_no_object_is_refused(value):
    with pytest.raises(RecordError, match="expected a parked record"):
        documents_of(value)
