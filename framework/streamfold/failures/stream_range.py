"""Reads a range of a DynamoDB or Kinesis shard again, to get the records of a failed batch by their numbers."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from streamfold.failures.failed_records import StreamRange
from streamfold.records.kinesis import SOURCE
from streamfold.replay.stream import (
    EMPTY_PAGES_MAX,
    NOT_FOUND,
    TRIMMED,
    Client,
    StreamRecord,
    error_code,
    lambda_record,
)

PAGES_MAX = 10_000
"""Pages read for one range. A batch has at most 10,000 records (Lambda API Reference, CreateEventSourceMapping), with
filtered-out records between them."""

KEEPS = "a stream keeps them for 24 hours"
NumberedRecords = list[tuple[int, StreamRecord]]
"""The records of one page in Lambda's form, each with its sequence number."""

KINESIS_KEEPS = "a stream of Kinesis keeps them for 24 hours, unless its retention period was raised"
"""Developer Guide of Kinesis Data Streams, kinesis-extended-retention."""
INVALID = "InvalidArgumentException"
"""Kinesis returns it for a sequence number of another stream: the stream was deleted and created again."""


class Fetched(NamedTuple):
    """The records of a range."""

    records: list[StreamRecord]  # those that the stream still holds, oldest first
    gone: str | None = None  # describes missing records; None: all are here


def fetch(streams: Client, part: StreamRange) -> Fetched:
    """Reads a range from its stream, which keeps records for 24 hours (Developer Guide, Streams).

    streams: a low-level client of DynamoDB Streams in the stream's account and region.

    Missing records raise nothing: ``Fetched.gone`` describes them.
    """
    try:
        return _read(streams, part, {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": part.first})
    except ClientError as error:
        if error_code(error) not in (TRIMMED, NOT_FOUND):
            raise
    # Perhaps only the oldest records are gone: the remaining ones begin at the shard's trim horizon.
    try:
        return _read(streams, part, {"ShardIteratorType": "TRIM_HORIZON"})
    except ClientError as error:
        if error_code(error) not in (TRIMMED, NOT_FOUND):
            raise
    return Fetched([], gone(part, shard_gone(part), KEEPS))


def _read(streams: Client, part: StreamRange, start: dict[str, str]) -> Fetched:
    answer = streams.get_shard_iterator(StreamArn=part.stream_arn, ShardId=part.shard_id, **start)
    return fetched(part, _pages(streams, part, answer["ShardIterator"]), KEEPS)


def _pages(streams: Client, part: StreamRange, iterator: str | None) -> Iterator[NumberedRecords]:
    empty_pages = 0
    while iterator is not None and empty_pages < EMPTY_PAGES_MAX:
        page = streams.get_records(ShardIterator=iterator)
        records = [lambda_record(record, part.stream_arn) for record in page["Records"]]
        yield [(int(record["dynamodb"]["SequenceNumber"]), record) for record in records]
        empty_pages = 0 if records else empty_pages + 1
        iterator = page.get("NextShardIterator")


def fetched(part: StreamRange, pages: Iterable[NumberedRecords], keeps: str) -> Fetched:
    """The records of a range, from the pages of its shard. Reading stops at the end of the range."""
    first, last = int(part.first), int(part.last)
    found: NumberedRecords = []
    for page in islice(pages, PAGES_MAX):
        found += [(number, record) for number, record in page if first <= number <= last]
        if any(number >= last for number, _ in page):
            break
    return Fetched([record for _, record in found], _missing([number for number, _ in found], part, keeps))


def _missing(found: list[int], part: StreamRange, keeps: str) -> str | None:
    """Describes missing records. Lambda delivered the first and the last one, so both are there unless trimmed."""
    if {int(part.first), int(part.last)} <= set(found):
        return None
    return gone(part, f"the oldest that is left has {found[0]}" if found else "none is left", keeps)


def gone(part: StreamRange, why: str, keeps: str) -> str:
    """The text for missing records: which ones, why, and how long a stream keeps records."""
    return (
        f"Records {part.first} to {part.last} of shard {part.shard_id} are gone, in whole or in part ({why}): {keeps}."
    )


def shard_gone(part: StreamRange) -> str:
    """The reason for a range whose shard or stream does not exist."""
    return f"shard {part.shard_id} is no longer in stream {part.stream_arn}, or never was"


def fetch_kinesis(kinesis: Client, part: StreamRange) -> Fetched:
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
        return fetched(part, _kinesis_pages(kinesis, part, answer["ShardIterator"]), KINESIS_KEEPS)
    except ClientError as error:
        if error_code(error) not in (NOT_FOUND, INVALID):
            raise
    return Fetched([], gone(part, shard_gone(part), KINESIS_KEEPS))


def _kinesis_pages(kinesis: Client, part: StreamRange, iterator: str | None) -> Iterator[NumberedRecords]:
    """The pages from an iterator to the end of the shard. An empty page ends them only at the tip of the stream."""
    while iterator is not None:
        page = kinesis.get_records(StreamARN=part.stream_arn, ShardIterator=iterator)
        yield [(int(record["SequenceNumber"]), kinesis_record(record, part)) for record in page["Records"]]
        is_at_tip = not page["Records"] and page.get("MillisBehindLatest", 0) == 0
        iterator = None if is_at_tip else page.get("NextShardIterator")


def kinesis_record(record: Mapping[str, Any], part: StreamRange) -> StreamRecord:
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
