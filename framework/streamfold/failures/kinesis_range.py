"""Reads a range of a Kinesis shard again, to get the records of a failed batch back from their sequence numbers."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from streamfold.failures.documents import StreamRange
from streamfold.failures.stream_range import Fetched, NumberedRecords, fetched, gone, shard_gone
from streamfold.records.kinesis import SOURCE
from streamfold.replay.shards import NOT_FOUND, Client, StreamRecord, error_code

KEEPS = "a stream of Kinesis keeps them for 24 hours, unless its retention period was raised"
"""Developer Guide of Kinesis Data Streams, kinesis-extended-retention."""
INVALID = "InvalidArgumentException"
"""Kinesis returns it for a sequence number of another stream: the stream was deleted and created again."""


def fetch(kinesis: Client, part: StreamRange) -> Fetched:
    """Reads a range from its stream, in the form in which Lambda delivers its records.

    kinesis: a low-level client of Kinesis in the stream's account and region.

    Missing records raise nothing: ``Fetched.gone`` describes them.
    """
    try:
        answer = kinesis.get_shard_iterator(
            StreamARN=part.stream_arn,
            ShardId=part.shard_id,
            ShardIteratorType="AT_SEQUENCE_NUMBER",
            StartingSequenceNumber=part.first,
        )
        return fetched(part, _pages(kinesis, part, answer["ShardIterator"]), KEEPS)
    except ClientError as error:
        if error_code(error) not in (NOT_FOUND, INVALID):
            raise
    return Fetched([], gone(part, shard_gone(part), KEEPS))


def _pages(kinesis: Client, part: StreamRange, iterator: str | None) -> Iterator[NumberedRecords]:
    """The pages from an iterator to the end of the shard. An empty page ends them only at the tip of the stream."""
    while iterator is not None:
        page = kinesis.get_records(StreamARN=part.stream_arn, ShardIterator=iterator)
        yield [(int(record["SequenceNumber"]), lambda_record(record, part)) for record in page["Records"]]
        is_at_tip = not page["Records"] and page.get("MillisBehindLatest", 0) == 0
        iterator = None if is_at_tip else page.get("NextShardIterator")


def lambda_record(record: Mapping[str, Any], part: StreamRange) -> StreamRecord:
    """The Lambda form of a record that boto3's ``get_records`` returned (Lambda Developer Guide, with-kinesis)."""
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": record["PartitionKey"],
            "sequenceNumber": record["SequenceNumber"],
            "data": b64encode(record["Data"]).decode(),
            "approximateArrivalTimestamp": record["ApproximateArrivalTimestamp"].timestamp(),
        },
        "eventSource": SOURCE,
        "eventVersion": "1.0",
        "eventID": f"{part.shard_id}:{record['SequenceNumber']}",
        "eventName": "aws:kinesis:record",
        "awsRegion": part.stream_arn.split(":")[3],
        "eventSourceARN": part.stream_arn,
    }
