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

    records: list[StreamRecord]  # that the stream still holds, oldest first
    gone: str | None = None  # describes missing records; None: all are here


def fetch(streams: Client, wanted: StreamRange) -> Fetched:
    """Reads a range from its stream, which keeps records for 24 hours (Developer Guide, Streams).

    streams: a low-level client of DynamoDB Streams in the stream's account and region.

    Missing records raise nothing: ``Fetched.gone`` describes them.
    """
    try:
        return _read(streams, wanted, {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": wanted.first})
    except ClientError as error:
        if error_code(error) not in (TRIMMED, NOT_FOUND):
            raise
    # Perhaps only the oldest records are gone: the remaining ones begin at the shard's trim horizon.
    try:
        return _read(streams, wanted, {"ShardIteratorType": "TRIM_HORIZON"})
    except ClientError as error:
        if error_code(error) not in (TRIMMED, NOT_FOUND):
            raise
    return Fetched([], gone(wanted, shard_gone(wanted), KEEPS))


def _read(streams: Client, wanted: StreamRange, start: dict[str, str]) -> Fetched:
    answer = streams.get_shard_iterator(StreamArn=wanted.stream_arn, ShardId=wanted.shard_id, **start)
    return fetched(wanted, _pages(streams, wanted, answer["ShardIterator"]), KEEPS)


def _pages(streams: Client, wanted: StreamRange, iterator: str | None) -> Iterator[NumberedRecords]:
    empty_pages = 0
    while iterator is not None and empty_pages < EMPTY_PAGES_MAX:
        page = streams.get_records(ShardIterator=iterator)
        records = [lambda_record(record, wanted.stream_arn) for record in page["Records"]]
        yield [(int(record["dynamodb"]["SequenceNumber"]), record) for record in records]
        empty_pages = 0 if records else empty_pages + 1
        iterator = page.get("NextShardIterator")


def fetched(wanted: StreamRange, pages: Iterable[NumberedRecords], keeps: str) -> Fetched:
    """The records of a range, from the pages of its shard. Reading stops at the end of the range."""
    first, last = int(wanted.first), int(wanted.last)
    found: NumberedRecords = []
    # A busy shard may hold any number of records between two of the batch: PAGES_MAX bounds the reading.
    for page in islice(pages, PAGES_MAX):
        found += [(number, record) for number, record in page if first <= number <= last]
        if any(number >= last for number, _ in page):
            break
    return Fetched([record for _, record in found], _missing([number for number, _ in found], wanted, keeps))


def _missing(found: list[int], wanted: StreamRange, keeps: str) -> str | None:
    """Describes missing records. Lambda delivered the first and the last one, so a missing one was trimmed."""
    if {int(wanted.first), int(wanted.last)} <= set(found):
        return None
    return gone(wanted, f"the oldest remaining one has {found[0]}" if found else "none remains", keeps)


def gone(wanted: StreamRange, why: str, keeps: str) -> str:
    """The message for missing records: their numbers, the reason, and how long a stream keeps records."""
    numbers = f"Records {wanted.first} to {wanted.last}"
    return f"{numbers} of shard {wanted.shard_id} are gone, in whole or in part ({why}): {keeps}."


def shard_gone(wanted: StreamRange) -> str:
    """The reason if the shard or stream of a range does not exist."""
    return f"shard {wanted.shard_id} is no longer in stream {wanted.stream_arn}, or never was"


def fetch_kinesis(kinesis: Client, wanted: StreamRange) -> Fetched:
    """Reads a range from its stream, as Lambda delivers its records.

    kinesis: a low-level client of Kinesis in the stream's account and region.

    Missing records raise nothing: ``Fetched.gone`` describes them.
    """
    try:
        answer = kinesis.get_shard_iterator(
            StreamARN=wanted.stream_arn,
            ShardId=wanted.shard_id,
            ShardIteratorType="AT_SEQUENCE_NUMBER",
            StartingSequenceNumber=wanted.first,
        )
        return fetched(wanted, _kinesis_pages(kinesis, wanted, answer["ShardIterator"]), KINESIS_KEEPS)
    except ClientError as error:
        if error_code(error) not in (NOT_FOUND, INVALID):
            raise
    return Fetched([], gone(wanted, shard_gone(wanted), KINESIS_KEEPS))


def _kinesis_pages(kinesis: Client, wanted: StreamRange, iterator: str | None) -> Iterator[NumberedRecords]:
    """The pages from an iterator to the end of the shard. An empty page ends them only at the tip of the stream."""
    while iterator is not None:
        page = kinesis.get_records(StreamARN=wanted.stream_arn, ShardIterator=iterator)
        yield [(int(record["SequenceNumber"]), kinesis_record(record, wanted)) for record in page["Records"]]
        is_at_tip = not page["Records"] and page.get("MillisBehindLatest", 0) == 0
        iterator = None if is_at_tip else page.get("NextShardIterator")


def kinesis_record(record: Mapping[str, Any], wanted: StreamRange) -> StreamRecord:
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
        "eventID": f"{wanted.shard_id}:{record['SequenceNumber']}",
        "eventName": "aws:kinesis:record",
        "awsRegion": wanted.stream_arn.split(":")[3],
        "eventSourceARN": wanted.stream_arn,
    }
