"""What failures leave behind, as it lies in its place: parked records, and what Lambda writes about a failed batch."""

import json

from streamfold import Version
from streamfold.parking import Parked
from streamfold.records.values import to_json
from streamfold.testing import BucketTwin, QueueTwin, TopicTwin
from streamfold.testing.destinations import FailedBatch
from tests.helpers.records import LABEL

SHARD = "shardId-00000001789649398921-b190244f"


def parked_record(record, handler, **more):
    """A record that is put aside for a handler."""
    body = record["dynamodb"]
    name = " / ".join(body["Keys"][key]["S"] for key in ("PK", "SK"))
    version = Version.of(0, LABEL, body["SequenceNumber"]).text
    parked = Parked("shop", handler, "main", name, version, "LookupError", "no", None, "2026-03-01T09:00:00Z", record)
    return parked._replace(**more)


def parked_document(record, handler, **more):
    return json.loads(parked_record(record, handler, **more).text())


def failed_batch(*records, shard_id=SHARD, function="projector"):
    """A batch that Lambda gives up."""
    sequences = [record["dynamodb"]["SequenceNumber"] for record in records]
    return FailedBatch(
        condition="RetryAttemptsExhausted",
        request_id="request-1",
        invocations=4,
        responded=True,
        function_error="Unhandled",
        at=1_772_355_660.0,
        shard_id=shard_id,
        sequences=(sequences[0], sequences[-1]),
        created=(1_772_355_600.0, 1_772_355_600.0),
        records=len(records),
        stream_arn=records[0]["eventSourceARN"],
        function_arn=f"arn:aws:lambda:us-east-1:123456789012:function:{function}",
        mapping_id="mapping-1",
        object_id="object-1",
        event=to_json({"Records": records}),
    )


def s3_object(*records, **more):
    """The content of the object that Lambda leaves in a bucket."""
    bucket = BucketTwin()
    bucket.deliver(failed_batch(*records, **more))
    (content,) = bucket.objects.values()
    return content


def queue_message(*records, **more):
    """The body of the message that Lambda leaves in a queue."""
    queue = QueueTwin()
    queue.deliver(failed_batch(*records, **more))
    return queue.messages[0]


def topic_message(*records):
    """The body of the message that a queue gets from the topic that Lambda leaves one in."""
    topic = TopicTwin()
    topic.deliver(failed_batch(*records))
    return topic.messages[0]
