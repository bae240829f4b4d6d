"""Failure destinations: the documents that AWS writes, name by name and character by character."""

import json

import pytest

from streamfold.errors import SettingsError
from streamfold.testing import BucketTwin, MappingSettings, MappingTwin, QueueTwin, TopicTwin
from streamfold.testing.destinations import FailedBatch
from tests.testing.streams import Function, sequence, stream_of

ARN = "arn:aws:dynamodb:us-east-1:111122223333:table/t/stream/2026-09-17T12:49:54.528"
METADATA = {
    "requestContext": {
        "requestId": "r-1",
        "functionArn": "arn:aws:lambda:us-east-1:111122223333:function:f",
        "condition": "RetryAttemptsExhausted",
        "approximateInvokeCount": 4,
    },
    "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
    "version": "1.0",
    "timestamp": "2026-09-17T13:29:12.967Z",
    "DDBStreamBatchInfo": {
        "shardId": "shardId-1",
        "startSequenceNumber": "9700001729061958505432",
        "endSequenceNumber": "11800004292221743404033",
        "approximateArrivalOfFirstRecord": "2026-09-17T13:27:38Z",
        "approximateArrivalOfLastRecord": "2026-09-17T13:27:40Z",
        "batchSize": 4,
        "streamArn": ARN,
    },
}
EVENT = '{"Records":[{"dynamodb":{"ApproximateCreationDateTime":1789651658.0,"NewImage":{"text":{"S":"é"}}}}]}'


def failed(**changed):
    values = {
        "condition": "RetryAttemptsExhausted",
        "request_id": "r-1",
        "invocations": 4,
        "responded": True,
        "function_error": "Unhandled",
        "at": 1789651752.967,
        "shard_id": "shardId-1",
        "sequences": ("9700001729061958505432", "11800004292221743404033"),
        "created": (1789651658.0, 1789651660.0),
        "records": 4,
        "stream_arn": ARN,
        "function_arn": "arn:aws:lambda:us-east-1:111122223333:function:f",
        "mapping_id": "m-1",
        "object_id": "o-1",
        "event": EVENT,
    }
    return FailedBatch(**values | changed)


def test_a_queue_gets_the_metadata_in_the_order_of_aws():
    queue = QueueTwin()
    queue.deliver(failed())
    assert queue.messages == [json.dumps(METADATA, separators=(",", ":"))]


def test_a_topic_gets_the_metadata_as_text_in_an_envelope():
    topic = TopicTwin("lost")
    topic.deliver(failed())
    envelope = json.loads(topic.messages[0])
    assert (envelope["Type"], envelope["TopicArn"]) == ("Notification", "arn:aws:sns:us-east-1:123456789012:lost")
    assert json.loads(envelope["Message"]) == METADATA
    assert topic.documents() == [METADATA]


def test_a_bucket_gets_the_event_too_as_a_text_in_the_document():
    bucket = BucketTwin()
    bucket.deliver(failed())
    (document,) = bucket.documents()
    assert {name: value for name, value in document.items() if name != "payload"} == METADATA
    assert json.loads(document["payload"]) == json.loads(EVENT)
    assert list(document)[-1] == "payload"


def test_a_payload_has_times_as_java_prints_them():
    bucket = BucketTwin()
    bucket.deliver(failed())
    assert '"ApproximateCreationDateTime":1.789651658E9,' in bucket.documents()[0]["payload"]


@pytest.mark.parametrize(
    ("number", "printed"),
    [("1789651658.5", "1.7896516585E9"), ("2000000000.0", "2.0E9"), ("5.0", "5.0")],
)
def test_other_times_too(number, printed):
    bucket = BucketTwin()
    bucket.deliver(failed(event=EVENT.replace("1789651658.0", number)))
    assert f":{printed}," in bucket.documents()[0]["payload"]


def test_a_text_that_looks_like_a_time_stays_as_it_is():
    text = json.dumps({"S": '"ApproximateCreationDateTime":1789651658.0'})
    bucket = BucketTwin()
    bucket.deliver(failed(event=text))
    assert bucket.documents()[0]["payload"] == text


def test_an_objects_key_holds_mapping_shard_and_day():
    bucket = BucketTwin()
    bucket.deliver(failed())
    assert list(bucket.objects) == ["aws/lambda/m-1/shardId-1/2026/09/17/2026-09-17T13.29.12-o-1"]


def test_a_partial_response_leaves_no_function_error():
    assert failed(function_error=None).document()["responseContext"]["functionError"] is None


def test_records_that_grew_too_old_have_no_response_and_count_one_invocation():
    document = failed(condition="RecordAgeExceeded", responded=False, invocations=0).document()
    assert "responseContext" not in document
    assert document["requestContext"]["approximateInvokeCount"] == 1


@pytest.mark.parametrize("kind", [QueueTwin, TopicTwin])
def test_a_fifo_destination_is_refused(kind):
    with pytest.raises(SettingsError, match=r"'lost.fifo' is FIFO: Lambda takes standard"):
        kind("lost.fifo")


@pytest.mark.parametrize("destination", [BucketTwin(denied=True), QueueTwin(denied=True), TopicTwin(denied=True)])
def test_a_denied_delivery_says_which_permission_is_missing(destination):
    with pytest.raises(PermissionError, match=r"AccessDenied: the mapping's role may not (s3|sqs|sns):"):
        destination.deliver(failed())


def given_up(function, destination):
    """What a mapping delivers of three records, of which the second is poison."""
    settings = MappingSettings(retries_max=1, report_item_failures=True)
    stream = stream_of(*"abc")
    MappingTwin(stream, function, settings, destination=destination).run()
    return stream.shards[0].records, destination.documents()[0]


def test_a_mapping_hands_over_numbers_times_and_counts_of_its_batch():
    records, document = given_up(Function("b"), QueueTwin())
    info = document["DDBStreamBatchInfo"]
    assert (info["startSequenceNumber"], info["endSequenceNumber"]) == (sequence(records[0]), sequence(records[-1]))
    assert (info["batchSize"], info["approximateArrivalOfLastRecord"]) == (3, "2026-03-01T09:00:00Z")
    assert document["requestContext"]["approximateInvokeCount"] == 2
    assert document["responseContext"]["functionError"] == "Unhandled"


def test_a_mapping_hands_over_the_event_of_the_last_invocation():
    records, document = given_up(Function("b", report=True), BucketTwin())
    assert json.loads(document["payload"]) == {"Records": records[1:]}
    assert document["responseContext"]["functionError"] is None
