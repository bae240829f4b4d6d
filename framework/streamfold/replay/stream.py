"""A table's DynamoDB stream, shard by shard and page by page, and its recording as JSON Lines."""

import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypedDict

from botocore.exceptions import ClientError

from streamfold.errors import StreamfoldError
from streamfold.records.values import lambda_value
from streamfold.settings.readers import make_private

log = logging.getLogger(__name__)

EMPTY_PAGES_MAX = 10
"""Empty pages in a row after which an open shard counts as drained. An empty page is not the end (DynamoDB Streams API
Reference, GetRecords), and no document bounds the number of empty pages in a row. A drained shard costs ten calls."""
FINISHED = "finished"
"""Marks a shard in a cursor that was read to its end, in place of a sequence number."""

# Errors of DynamoDB Streams after which a reader can go on (API Reference, GetRecords).
EXPIRED = "ExpiredIteratorException"  # iterators last 15 minutes, and a page may be processed for longer
TRIMMED = "TrimmedDataAccessException"
NOT_FOUND = "ResourceNotFoundException"

Client = Any
"""A low-level boto3 client: boto3 ships no types of its own."""
StreamRecord = dict[str, Any]
"""A stream record in the form in which Lambda delivers it."""

PAUSE_SECONDS = 1.0
"""Rest between two rounds over drained shards. DescribeStream allows 10 calls a second (API Reference)."""


class ShardCursor(TypedDict):
    """The progress through a stream: per shard the last sequence number, or ``"finished"``. Plain JSON.

    ``{"stream_arn": "arn:...", "shards": {"shardId-1": "finished", "shardId-2": "4711"}}``; an unnamed shard is read
    from its beginning.
    """

    stream_arn: str
    shards: dict[str, str]


class ShardPage(NamedTuple):
    """Records that were read together, and the cursor behind them. No records if only the cursor changed."""

    records: list[StreamRecord]
    cursor: ShardCursor


class SourceShard(NamedTuple):
    """A shard as DescribeStream describes it. Only an open shard can get more records."""

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
    """One reading of a stream: the position in each shard, with the iterator in use."""

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
        """Reads one page of each readable shard: a busy shard does not delay the others."""
        shards = self._unread()
        for shard in shards:
            before = self._positions.get(shard.shard_id)
            records = self._read(shard.shard_id)
            if records or before != self._positions.get(shard.shard_id):
                yield ShardPage(records, {"stream_arn": self._arn, "shards": dict(self._positions)})
        if any(self._is_finished(shard.shard_id) for shard in shards):
            self._list_shards()

    def has_unread(self) -> bool:
        """Whether a shard is still to be read, also among those that appeared or were closed meanwhile."""
        if not self._unread():
            self._list_shards()
        return bool(self._unread())

    def is_over(self) -> bool:
        """Whether no more records can come: the stream was switched off and every shard is finished."""
        return self._is_disabled and all(self._is_finished(shard.shard_id) for shard in self._shards)

    def look_again(self) -> None:
        """Lets every drained shard be read once more."""
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
        for shard_id in self._positions.keys() - {shard.shard_id for shard in shards}:
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
        """One page of the shard, without a next iterator if no more of the shard can be read."""
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
                    # Perhaps only the oldest records of the shard are gone: the remaining ones begin at its horizon.
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


class StreamError(StreamfoldError):
    """Raised if a table has no stream to read, or a cursor or recording does not belong to that stream."""


class StreamReader:
    """Reads a table's stream: parents before children, each record of the stream once per cursor.

    ``dynamodb`` and ``dynamodbstreams`` are low-level boto3 clients of one account and region. ``trimmed_shards`` lists
    the shards that lost records before they could be read: a stream keeps records for 24 hours.
    """

    def __init__(
        self, dynamodb: Client, dynamodbstreams: Client, table: str, *, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self.table = table
        self.trimmed_shards: list[str] = []
        self._dynamodb = dynamodb
        self._streams = dynamodbstreams
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends a reading that follows the stream, after the current page. May be called from another thread."""
        self._stopped.set()

    def stream_arn(self) -> str:
        """The ARN of the table's latest stream, which stays readable for 24 hours after it was switched off.

        Raises StreamError if the table does not exist, or never had a stream.
        """
        try:
            table = self._dynamodb.describe_table(TableName=self.table)["Table"]
        except ClientError as error:
            if error_code(error) != NOT_FOUND:
                raise
            raise StreamError(
                f"Table {self.table!r} does not exist in region {self._dynamodb.meta.region_name} at "
                f"{self._dynamodb.meta.endpoint_url}. Check the name, the region, the endpoint and the credentials."
            ) from error
        if "LatestStreamArn" not in table:
            raise StreamError(
                f"Table {self.table!r} has no stream: expected one with both images. Switch it on, for the changes "
                f"from then on: aws dynamodb update-table --table-name {self.table} "
                "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES"
            )
        return str(table["LatestStreamArn"])

    def pages(self, cursor: ShardCursor | None = None, *, follow: bool = False) -> Iterator[ShardPage]:
        """Yields the records of the stream behind ``cursor`` (None: all of them), page by page.

        Ends when every shard is drained. With ``follow`` it goes on until ``stop`` is called or the stream has been
        switched off and read to its end. Raises StreamError, at once, if the cursor is of another stream.
        """
        return self._walk(ShardWalk(self._streams, self._same_stream(cursor), self.trimmed_shards), follow=follow)

    def _walk(self, walk: ShardWalk, *, follow: bool) -> Iterator[ShardPage]:
        while not self._stopped.is_set():
            for page in walk.round():
                yield page
                if self._stopped.is_set():
                    return
            if walk.has_unread():
                continue
            if not follow or walk.is_over():
                return
            self._stopped.wait(self._pause_seconds)
            walk.look_again()

    def _same_stream(self, cursor: ShardCursor | None) -> ShardCursor:
        arn = self.stream_arn()
        if cursor is None:
            return {"stream_arn": arn, "shards": {}}
        if cursor["stream_arn"] != arn:
            raise StreamError(
                f"The cursor belongs to stream {cursor['stream_arn']}, but the stream of table {self.table!r} is now "
                f"{arn}: it was switched off and on, or the table was created again. Start a new recording, "
                "in another file and without that cursor; it will lack the old stream's records behind the cursor."
            )
        return cursor


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """The records that one call of ``record_stream`` added. ``events`` counts them by INSERT, MODIFY and REMOVE."""

    records: int
    pages: int
    events: Mapping[str, int]
    trimmed_shards: tuple[str, ...]


def record_stream(
    reader: StreamReader,
    out_path: Path,
    *,
    follow: bool = False,
    on_page: Callable[[Sequence[StreamRecord]], None] | None = None,
) -> RecordedStream:
    """Appends the stream's records to ``out_path`` as JSON Lines, each once, however often it is killed and resumed.

    ``OUT.cursor`` beside it holds the position in the stream and the length of OUT at that position. A page is on disk
    before the cursor is replaced, and OUT is cut to the cursor's length when the recording resumes. ``on_page`` is
    called with each page's records once they are on disk.

    Raises StreamError if the cursor does not match OUT or the table's stream.
    """
    cursor_path = out_path.with_name(out_path.name + ".cursor")
    length_bytes, cursor = _resume(out_path, cursor_path)
    source = reader.pages(cursor, follow=follow)
    events: Counter[str] = Counter()
    pages = 0
    # Before the first line: lines without a cursor are never ours, so they are never cut off.
    _replace(cursor_path, length_bytes, cursor)
    make_private(out_path)
    with out_path.open("ab") as out:
        out.truncate(length_bytes)
        for page in source:
            length_bytes += _append(out, page.records)
            _replace(cursor_path, length_bytes, page.cursor)
            events.update(record["eventName"] for record in page.records)
            pages += 1
            if on_page is not None:
                on_page(page.records)
    return RecordedStream(events.total(), pages, dict(events), tuple(reader.trimmed_shards))


def _resume(out_path: Path, cursor_path: Path) -> tuple[int, ShardCursor | None]:
    """The length in bytes of OUT that the cursor covers, and the cursor."""
    size_bytes = out_path.stat().st_size if out_path.exists() else 0
    if not cursor_path.exists():
        if size_bytes:
            raise StreamError(
                f"{out_path} holds {size_bytes} bytes, but {cursor_path.name} is missing: it holds the position in the "
                "stream. Put it back, or record into another file."
            )
        return 0, None
    try:
        saved = json.loads(cursor_path.read_text("utf-8"))
        length_bytes, cursor = int(saved["length_bytes"]), saved["cursor"]
    except (ValueError, KeyError, TypeError) as error:
        raise StreamError(f"{cursor_path} is no recording's cursor ({error!r}). Record into another file.") from error
    if size_bytes < length_bytes:
        raise StreamError(
            f"{out_path} holds {size_bytes} bytes, but {cursor_path.name} covers {length_bytes}: the file was "
            "shortened or replaced. Put it back, or record into another file."
        )
    return length_bytes, cursor


def _append(out: IO[bytes], records: Sequence[StreamRecord]) -> int:
    """Appends lines and returns their length in bytes, once they are on disk."""
    lines = b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
    out.write(lines)
    out.flush()
    os.fsync(out.fileno())
    return len(lines)


def _replace(cursor_path: Path, length_bytes: int, cursor: ShardCursor | None) -> None:
    new_path = cursor_path.with_name(cursor_path.name + ".new")
    make_private(new_path)
    with new_path.open("w", encoding="utf-8") as new:
        json.dump({"length_bytes": length_bytes, "cursor": cursor}, new)
        new.flush()
        os.fsync(new.fileno())
    # A power cut may restore an older cursor, which does no harm: the lines of OUT behind it are read again.
    new_path.replace(cursor_path)
