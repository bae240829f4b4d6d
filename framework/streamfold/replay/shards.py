"""Walks the shards of a DynamoDB stream, parents before children, and yields pages of records in Lambda's form."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

from botocore.exceptions import ClientError

from streamfold.records.values import lambda_value

log = logging.getLogger(__name__)

EMPTY_PAGES_MAX = 10
"""Empty pages in a row after which an open shard counts as drained. An empty page is not the end (DynamoDB Streams API
Reference, GetRecords), and no document says how many may follow one another. A drained shard costs ten calls."""
FINISHED = "finished"
"""Stands in a cursor for a shard that was read to its end, in place of a sequence number."""

# Errors of DynamoDB Streams after which a reader can go on (API Reference, GetRecords).
EXPIRED = "ExpiredIteratorException"  # iterators last 15 minutes, and a page may be worked on for longer
TRIMMED = "TrimmedDataAccessException"
NOT_FOUND = "ResourceNotFoundException"

Client = Any
"""A low-level boto3 client: boto3 ships no types of its own."""
StreamRecord = dict[str, Any]
"""A stream record in the form in which Lambda delivers it."""


class ShardCursor(TypedDict):
    """How far a stream was read: per shard the last sequence number, or ``"finished"``. Plain JSON.

    ``{"stream_arn": "arn:...", "shards": {"shardId-1": "finished", "shardId-2": "4711"}}``; a shard that is not named
    is read from its beginning.
    """

    stream_arn: str
    shards: dict[str, str]


class ShardPage(NamedTuple):
    """Records that came together, and the cursor behind them. No records where only the cursor moved."""

    records: list[StreamRecord]
    cursor: ShardCursor


class SourceShard(NamedTuple):
    """What DescribeStream says about a shard. Only an open shard can get more records."""

    shard_id: str
    parent_id: str | None
    is_open: bool


def lambda_record(record: Mapping[str, Any], stream_arn: str) -> StreamRecord:
    """The Lambda form of a record that boto3's ``get_records`` returned.

    Times become epoch seconds (float), binary values base64 text at any depth, the identity's names lower-case;
    ``eventSourceARN`` is added.
    """
    change = dict(record["dynamodb"])
    if "ApproximateCreationDateTime" in change:
        change["ApproximateCreationDateTime"] = change["ApproximateCreationDateTime"].timestamp()
    for part in ("Keys", "NewImage", "OldImage"):
        if part in change:
            change[part] = {name: lambda_value(value) for name, value in change[part].items()}
    shaped = {**record, "dynamodb": change, "eventSourceARN": stream_arn}
    if identity := record.get("userIdentity"):
        shaped["userIdentity"] = {name[0].lower() + name[1:]: value for name, value in identity.items()}
    return shaped


class ShardWalk:
    """One reading of a stream: where each shard stands, with the iterator in use."""

    def __init__(self, streams: Client, cursor: ShardCursor, trimmed_shards: list[str]) -> None:
        self._streams = streams
        self._arn = cursor["stream_arn"]
        self._shards: list[SourceShard] = []
        self._positions = dict(cursor["shards"])
        self._iterators: dict[str, str] = {}
        self._empty_pages: Counter[str] = Counter()
        self._trimmed_shards = trimmed_shards
        self._is_disabled = False
        self._list_shards()

    def round(self) -> Iterator[ShardPage]:
        """Reads one page of each shard that may be read now: no busy shard keeps the others waiting."""
        shards = self._unread()
        for shard in shards:
            before = self._positions.get(shard.shard_id)
            records = self._read(shard.shard_id)
            if records or before != self._positions.get(shard.shard_id):
                yield ShardPage(records, {"stream_arn": self._arn, "shards": dict(self._positions)})
        if any(self._is_finished(shard.shard_id) for shard in shards):
            self._list_shards()

    def has_unread(self) -> bool:
        """Whether a shard is left to read, also among those that appeared or were closed meanwhile."""
        if not self._unread():
            self._list_shards()
        return bool(self._unread())

    def is_over(self) -> bool:
        """Whether nothing can come any more: the stream was switched off and every shard is finished."""
        return self._is_disabled and all(self._is_finished(shard.shard_id) for shard in self._shards)

    def look_again(self) -> None:
        """Lets every drained shard be asked once more."""
        self._empty_pages = Counter(dict.fromkeys(self._empty_pages, EMPTY_PAGES_MAX - 1))

    def _unread(self) -> list[SourceShard]:
        listed = {shard.shard_id for shard in self._shards}
        return [
            shard
            for shard in self._shards
            if not self._is_finished(shard.shard_id)
            # A parent that is no longer listed was trimmed: nobody can read it before its children.
            and (shard.parent_id not in listed or self._is_finished(shard.parent_id))
            and not (shard.is_open and self._empty_pages[shard.shard_id] >= EMPTY_PAGES_MAX)
        ]

    def _is_finished(self, shard_id: str | None) -> bool:
        return shard_id is not None and self._positions.get(shard_id) == FINISHED

    def _list_shards(self) -> None:
        shards: list[SourceShard] = []
        start: dict[str, str] = {}
        while True:
            page = self._streams.describe_stream(StreamArn=self._arn, **start)["StreamDescription"]
            shards += [_shard(described) for described in page["Shards"]]
            if "LastEvaluatedShardId" not in page:
                break
            start = {"ExclusiveStartShardId": page["LastEvaluatedShardId"]}
        self._shards = shards
        self._is_disabled = page["StreamStatus"] == "DISABLED"
        self._forget_unlisted({shard.shard_id for shard in shards})

    def _forget_unlisted(self, listed: set[str]) -> None:
        for shard_id in self._positions.keys() - listed:
            if not self._is_finished(shard_id):
                self._report_trimmed(shard_id)
            del self._positions[shard_id]

    def _read(self, shard_id: str) -> list[StreamRecord]:
        page = self._get_records(shard_id)
        records = [lambda_record(record, self._arn) for record in page["Records"]]
        self._empty_pages[shard_id] = 0 if records else self._empty_pages[shard_id] + 1
        if records:
            self._positions[shard_id] = records[-1]["dynamodb"]["SequenceNumber"]
        if page.get("NextShardIterator") is None:
            self._positions[shard_id] = FINISHED
        else:
            self._iterators[shard_id] = page["NextShardIterator"]
        return records

    def _get_records(self, shard_id: str) -> Mapping[str, Any]:
        """One page of the shard, without a next iterator where nothing of it can be read any more."""
        page: Mapping[str, Any]
        for is_last_try in (False, False, True):
            try:
                page = self._streams.get_records(ShardIterator=self._iterator(shard_id))
            except ClientError as error:
                code = error_code(error)
                if code not in (EXPIRED, TRIMMED, NOT_FOUND) or (code == EXPIRED and is_last_try):
                    raise
                self._iterators.pop(shard_id, None)
                if code != EXPIRED:
                    self._report_trimmed(shard_id)
                    # Only the oldest part of the shard may be gone: what is left begins at its horizon.
                    self._positions.pop(shard_id, None)
            else:
                return page
        return {"Records": []}

    def _iterator(self, shard_id: str) -> str:
        if shard_id not in self._iterators:
            last = self._positions.get(shard_id)
            start = (
                {"ShardIteratorType": "TRIM_HORIZON"}
                if last is None
                else {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": last}
            )
            answer = self._streams.get_shard_iterator(StreamArn=self._arn, ShardId=shard_id, **start)
            self._iterators[shard_id] = answer["ShardIterator"]
        return self._iterators[shard_id]

    def _report_trimmed(self, shard_id: str) -> None:
        if shard_id not in self._trimmed_shards:
            self._trimmed_shards.append(shard_id)
            log.warning("Shard %s lost records before they were read: a stream keeps them for 24 hours.", shard_id)


def _shard(described: Mapping[str, Any]) -> SourceShard:
    is_open = "EndingSequenceNumber" not in described.get("SequenceNumberRange", {})
    return SourceShard(described["ShardId"], described.get("ParentShardId"), is_open)


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
