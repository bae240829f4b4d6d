"""Reads a part of a shard again, by sequence numbers: what a failed batch held of which only the numbers are known."""

from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from streamfold.documents import StreamRange
from streamfold.stream import EMPTY_PAGES_MAX, NOT_FOUND, TRIMMED, Client, Record, error_code, lambda_record

PAGES_MAX = 10_000
"""Pages that are read for one range. A batch has 10,000 records at most (Lambda API Reference,
CreateEventSourceMapping); those that the mapping filtered out lie between them."""


class Fetched(NamedTuple):
    """The records of a range that are left, oldest first; ``gone`` says what is missing, None when nothing is."""

    records: list[Record]
    gone: str | None = None


def fetch(streams: Client, part: StreamRange) -> Fetched:
    """Reads a range from its stream, which keeps records for 24 hours (Developer Guide, Streams).

    ``streams`` is a low-level client of DynamoDB Streams in the stream's account and region. That records are gone is
    no error: ``gone`` tells it.
    """
    try:
        return _read(streams, part, {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": part.first})
    except ClientError as error:
        if error_code(error) not in (TRIMMED, NOT_FOUND):
            raise
    # The oldest part alone may be gone: what is left of the shard begins at its horizon.
    try:
        return _read(streams, part, {"ShardIteratorType": "TRIM_HORIZON"})
    except ClientError as error:
        if error_code(error) not in (TRIMMED, NOT_FOUND):
            raise
    return Fetched([], _gone(part, f"shard {part.shard_id} is no longer in stream {part.stream_arn}, or never was"))


def _read(streams: Client, part: StreamRange, start: dict[str, str]) -> Fetched:
    answer = streams.get_shard_iterator(StreamArn=part.stream_arn, ShardId=part.shard_id, **start)
    iterator: str | None = answer["ShardIterator"]
    records: list[Record] = []
    empty_pages, is_read = 0, False
    for _ in range(PAGES_MAX):
        if iterator is None or is_read or empty_pages >= EMPTY_PAGES_MAX:
            break
        page = streams.get_records(ShardIterator=iterator)
        records += [lambda_record(record, part.stream_arn) for record in page["Records"] if _is_in(record, part)]
        is_read = any(_number(record) >= int(part.last) for record in page["Records"])
        empty_pages = 0 if page["Records"] else empty_pages + 1
        iterator = page.get("NextShardIterator")
    return Fetched(records, _missing(records, part))


def _missing(records: list[Record], part: StreamRange) -> str | None:
    """What is missing of a range. Its first and last record were delivered: they are in it while it lasts."""
    found = {record["dynamodb"]["SequenceNumber"].lstrip("0") for record in records}
    ends = [end for end in dict.fromkeys((part.first, part.last)) if end.lstrip("0") not in found]
    if not ends:
        return None
    oldest = f"the oldest that is left has {records[0]['dynamodb']['SequenceNumber']}" if records else "none is left"
    return _gone(part, oldest)


def _gone(part: StreamRange, why: str) -> str:
    return (
        f"Records {part.first} to {part.last} of shard {part.shard_id} are gone, in whole or in part ({why}): a stream "
        "keeps them for 24 hours."
    )


def _is_in(record: dict[str, Any], part: StreamRange) -> bool:
    return int(part.first) <= _number(record) <= int(part.last)


def _number(record: dict[str, Any]) -> int:
    return int(record["dynamodb"]["SequenceNumber"])
