"""A DynamoDB stream in process, and a Kinesis data stream of the same changes: shards, sequence numbers, and records in
the format of Lambda. Kinesis may have late and repeated records.

Their time is that of a ``Clock``, which only a test advances.
"""

import json
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from streamfold.keys.table import ViewType
from streamfold.records.change import HAS_NEW, HAS_OLD, TIME_TO_LIVE
from streamfold.records.kinesis import BINARY, DATA_FIELDS, MICROSECONDS, PRECISION, SOURCE, TIME
from streamfold.records.values import lambda_value
from streamfold.testing.items import RecordsTrimmed, StoredImage, TwinError

if TYPE_CHECKING:
    from collections.abc import Callable

START = 1_772_355_600.0
"""The default start of a clock: 2026-03-01T09:00:00Z."""


class Clock:
    """Seconds since 1970, which only increase.

    ``Clock().now`` is 1772355600.0 on every day, so that a test makes the same records at every run.
    """

    __slots__ = ("advanced", "now")

    def __init__(self, now: float = START) -> None:
        self.now: float = now
        self.advanced: list[Callable[[], None]] = []  # called after each advance, of twins

    def advance(self, seconds: float) -> None:
        """Advances the time. Raises ``TwinError`` for negative seconds."""
        given: object = seconds
        if isinstance(given, bool) or not isinstance(given, (int, float)) or seconds < 0:
            raise TwinError(f"The clock cannot be advanced by {seconds!r}: expected seconds, 0 or more (86_400 a day).")
        self.now += seconds
        for each in self.advanced:
            each()

    def __repr__(self) -> str:
        return f"Clock({self.now!r})"


REGION = "us-east-1"
ACCOUNT = "123456789012"
EVENT_VERSION = "1.1"
"""The present version of AWS; a consumer may not rely on it (DynamoDB Streams API, Record)."""
RETENTION_SECONDS = 24 * 60 * 60
"""How long a stream keeps records, a disabled one too; older ones may go at any moment (Developer Guide, Streams)."""
RECORDS_MAX = 1000
"""Records of one page (DynamoDB Streams API, GetRecords). The limit of 1 MB a page is left out."""
CHILDREN_MAX = 2
TAIL_DIGITS = 20
"""Digits behind the leading part of a sequence number. On AWS that part counts up from about zero at the creation of
the stream, so within its first minutes numbers of 21, 22 and 23 digits follow one another; here it counts records."""
TAIL_STEP = 2_654_435_761
HASHES = 2**64
CREATED = "ApproximateCreationDateTime"

TwinRecord = dict[str, Any]
"""A stream record in the format of Lambda."""


@dataclass(slots=True, eq=False)
class Shard:
    """A part of a stream: the records of the partition keys whose hash is in ``[low, high)``, in order.

    ``starting`` and ``ending`` are the range of its sequence numbers; ``ending`` is None while it is open. The records
    are the stream's own: a caller must not change them.
    """

    id: str
    parent: str | None
    low: int
    high: int
    starting: str
    ending: str | None = None
    closed_at: float | None = None
    records: list[TwinRecord] = field(default_factory=list)
    trimmed: int = 0  # the last sequence number that is gone

    @property
    def closed(self) -> bool:
        return self.ending is not None


class StreamTwin:
    """The stream of a table, from the time when it is switched on until it is switched off. Made by ``TableTwin``.

    Each record appears once, and the records of an item are in the order of its changes (Developer Guide, Streams).
    There is no other guarantee: items are distributed over the shards by their partition key, and sequence numbers have
    gaps, differ in length and begin low again with the next stream.
    """

    def __init__(
        self, real_name: str, label: str, view: ViewType, clock: Clock, *, shards: int = 1, seed: int = 0
    ) -> None:
        if shards < 1:
            raise TwinError(f"A stream cannot have {shards} shards: expected 1 or more.")
        self.label = label
        self.arn: str = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{real_name}/stream/{self.label}"
        self.view: ViewType = view
        self.clock = clock
        self.enabled: bool = True
        self.shards: list[Shard] = []
        self._salt = _hash(f"{seed}/{self.arn}".encode())
        self._leading = 1 + self._salt % 3
        self._position = 0
        self._has_old, self._has_new = view in HAS_OLD, view in HAS_NEW
        self._shard_of: dict[str | bytes, Shard] = {}
        bounds = [HASHES * number // shards for number in range(shards + 1)]
        self._open(bounds, None)

    def append(self, old: StoredImage | None, new: StoredImage | None, *, expired: bool = False) -> TwinRecord:
        """Adds the record of a change from ``old`` to ``new``, of which one may be None.

        ``expired`` marks a deletion by time to live, which alone carries an identity (Developer Guide,
        time-to-live-ttl-streams).
        """
        self._position += 1
        item = new or old
        assert item is not None
        record: TwinRecord = {
            "eventID": blake2b(b"%d/%d" % (self._salt, self._position), digest_size=16).hexdigest(),
            "eventName": "INSERT" if old is None else "REMOVE" if new is None else "MODIFY",
            "eventVersion": EVENT_VERSION,
            "eventSource": "aws:dynamodb",
            "awsRegion": REGION,
            "dynamodb": self._change(item, old, new),
            "eventSourceARN": self.arn,
        }
        if expired:
            record["userIdentity"] = dict(TIME_TO_LIVE)
        (self._shard_of.get(item.key[0]) or self._find_shard(item.key[0])).records.append(record)
        return record

    def _change(self, item: StoredImage, old: StoredImage | None, new: StoredImage | None) -> dict[str, Any]:
        """The body of a record. An image that does not exist, or is not in the view, is an absent key, never null. The
        time is rounded down to the second. The size is that of the keys and of both images (DynamoDB Streams API,
        StreamRecord).
        """
        change: dict[str, Any] = {
            CREATED: float(self.clock.now // 1),
            "Keys": {name: lambda_value(value) for name, value in item.keys.items()},
        }
        size_bytes = item.keys_bytes
        if new is not None and self._has_new:
            change["NewImage"] = {name: lambda_value(value) for name, value in new.image.items()}
            size_bytes += new.image_bytes
        if old is not None and self._has_old:
            change["OldImage"] = {name: lambda_value(value) for name, value in old.image.items()}
            size_bytes += old.image_bytes
        change["SequenceNumber"] = self._next_number()
        change["SizeBytes"] = size_bytes
        change["StreamViewType"] = self.view
        return change

    def shard(self, shard_id: str) -> Shard:
        """The shard of this id. Raises ``TwinError`` if it does not exist, or was trimmed."""
        for shard in self.shards:
            if shard.id == shard_id:
                return shard
        known = ", ".join(shard.id for shard in self.shards)
        raise TwinError(f"Stream {self.arn} has no shard {shard_id!r}: expected one of {known or 'none; all trimmed'}.")

    def records(self, shard_id: str, after: str | None = None, limit: int = RECORDS_MAX) -> list[TwinRecord]:
        """A page of a shard's records, from the oldest remaining one or behind the sequence number ``after``.

        Raises ``RecordsTrimmed`` if records behind ``after`` are gone.
        """
        shard = self.shard(shard_id)
        if not 1 <= limit <= RECORDS_MAX:
            raise TwinError(f"A page cannot have {limit} records: expected 1 to {RECORDS_MAX}.")
        start = 0
        if after is not None:
            if int(after) < shard.trimmed:
                raise RecordsTrimmed(
                    f"Records of shard {shard_id} up to {shard.trimmed} are gone, so reading cannot go on behind "
                    f"{after}: a stream keeps them for 24 hours. Begin at the oldest one: after=None."
                )
            start = bisect_right(shard.records, int(after), key=sequence_of)
        return shard.records[start : start + limit]

    def split(self, shard_id: str, children: int = CHILDREN_MAX) -> list[Shard]:
        """Closes a shard and opens its children, which get the later records of its items. Shards split at any time,
        and a parent may have one child (Developer Guide, Streams).
        """
        parent = self.shard(shard_id)
        if not 1 <= children <= CHILDREN_MAX:
            raise TwinError(f"A shard cannot have {children} children: expected 1 or {CHILDREN_MAX}.")
        if parent.closed:
            raise TwinError(f"Shard {shard_id} is closed: expected an open one, such as {self._an_open_shard()}.")
        self._close(parent)
        middle = (parent.low + parent.high) // 2
        bounds = [parent.low, parent.high] if children == 1 else [parent.low, middle, parent.high]
        return self._open(bounds, parent.id)

    def trim(self, before: float | None = None) -> int:
        """Removes the records older than ``before``, seconds since 1970, or all that are older than 24 hours.

        Empty shards that have been closed for as long are removed too. Returns how many records were removed. Raises
        ``TwinError`` for a later ``before``: a stream keeps records for 24 hours.
        """
        horizon = self.clock.now - RETENTION_SECONDS
        if before is not None and before > horizon:
            raise TwinError(
                f"Records from before {before} cannot be trimmed: a stream keeps them for 24 hours, which is back to "
                f"{horizon} now. Advance the clock first."
            )
        horizon = horizon if before is None else before
        gone = sum(_trim(shard, horizon) for shard in self.shards)
        self.shards = [
            shard for shard in self.shards if shard.records or shard.closed_at is None or shard.closed_at >= horizon
        ]
        return gone

    def disable(self) -> None:
        """Closes every shard. Its records are readable for 24 hours (Developer Guide, Streams)."""
        self.enabled = False
        for shard in self.shards:
            if not shard.closed:
                self._close(shard)

    def _open(self, bounds: Sequence[int], parent: str | None) -> list[Shard]:
        """New shards between the bounds."""
        starting = self._next_number()
        shards = [Shard(self._shard_id(low), parent, low, high, starting) for low, high in pairwise(bounds)]
        self.shards += shards
        return shards

    def _shard_id(self, low: int) -> str:
        # Like an id of AWS: a time, and a random number.
        return (
            f"shardId-{int(self.clock.now * 1000):020d}-{_hash(f'{self.arn}/{self._leading}/{low}'.encode()) >> 32:08x}"
        )

    def _close(self, shard: Shard) -> None:
        shard.ending = self._next_number()
        shard.closed_at = self.clock.now
        self._shard_of.clear()

    def _find_shard(self, partition: str | bytes) -> Shard:
        position = _hash(partition.encode() if isinstance(partition, str) else partition)
        for shard in self.shards:
            if not shard.closed and shard.low <= position < shard.high:
                self._shard_of[partition] = shard
                return shard
        raise TwinError(f"Stream {self.arn} is switched off: it takes no more records.")

    def _an_open_shard(self) -> str:
        return next((repr(shard.id) for shard in self.shards if not shard.closed), "none; the stream is switched off")

    def _next_number(self) -> str:
        self._leading += 1 + ((self._leading + self._salt) * TAIL_STEP >> 12) % 3
        tail = (self._leading * TAIL_STEP + self._salt) % 10**16
        return f"{self._leading}{tail:0{TAIL_DIGITS}d}"


def label_after(before: str, now: float) -> str:
    """The label of a stream that is switched on at this time: ``2026-03-01T09:00:00.000``.

    A millisecond later if need be: every stream of a table has a label of its own, and they sort in time.
    """
    label = _label(now)
    return label if label > before else _label(datetime.fromisoformat(f"{before}+00:00").timestamp() + 0.001)


def _label(at: float) -> str:
    return datetime.fromtimestamp(round(at, 3), UTC).isoformat(timespec="milliseconds")[:-6]


def sequence_of(record: Mapping[str, Any]) -> int:
    """The sequence number as an integer: as texts, numbers of different lengths would sort wrongly."""
    return int(record["dynamodb"]["SequenceNumber"])


def _trim(shard: Shard, horizon: float) -> int:
    gone = bisect_left(shard.records, horizon, key=lambda record: float(record["dynamodb"][CREATED]))
    if gone:
        shard.trimmed = sequence_of(shard.records[gone - 1])
        del shard.records[:gone]
    return gone


def _hash(text: bytes) -> int:
    # Below 2**64, and the same in every process, unlike Python's own ``hash``.
    return int.from_bytes(blake2b(text, digest_size=8).digest())


KINESIS_FIRST = 49_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
"""Sequence numbers of Kinesis have 56 digits, and gaps."""
KINESIS_STEP = 1_000
KINESIS_SHARD = "shardId-000000000000"
KINESIS_EVENT_VERSION = "1.0"
UUID_BYTES = 16

Precision = Literal["MICROSECOND", "MILLISECOND"]


class KinesisTwin:
    """A Kinesis data stream for changes of tables, with records in the format of Lambda.

    ``append`` takes the record of a table twin's DynamoDB stream, with both images, and returns that of Kinesis: with
    the time of the change instead of a sequence number, and binary values encoded twice. ``again`` adds a second notice
    of the same change. Both are in its only shard, which a ``MappingTwin`` reads; ``clock`` is the table's.
    ``precision`` is that of the table's destination; AWS uses milliseconds by default.
    """

    def __init__(
        self, name: str = "changes", *, precision: Precision = "MICROSECOND", clock: Clock | None = None
    ) -> None:
        self.arn: str = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{name}"
        self.precision = precision
        self.clock: Clock = clock or Clock()
        self.shards: list[Shard] = [Shard(KINESIS_SHARD, None, 0, HASHES, str(KINESIS_FIRST))]
        self._time = 0
        self._number = 0

    def append(self, record: TwinRecord) -> TwinRecord:
        """Adds the record of Kinesis for a record of a DynamoDB stream. Raises ``TwinError`` if that lacks an image."""
        body = record["dynamodb"]
        if body["StreamViewType"] != "NEW_AND_OLD_IMAGES":
            raise TwinError(
                f"A record of view type {body['StreamViewType']} lacks an image that Kinesis needs: expected a table "
                "twin with NEW_AND_OLD_IMAGES."
            )
        self._time = max(self._time + 1, int(body[TIME]) * MICROSECONDS)
        images = {name: _encoded_again(body[name]) for name in DATA_FIELDS if name in body}
        change: dict[str, Any] = {TIME: self._time, **images, "SizeBytes": body.get("SizeBytes", 0)}
        if self.precision == "MICROSECOND":
            change[PRECISION] = self.precision
        else:  # the field is then left out
            change[TIME] //= 1000
        return self._wrapped(
            {
                "awsRegion": REGION,
                "eventName": record["eventName"],
                "userIdentity": record.get("userIdentity"),
                "recordFormat": "application/json",
                "tableName": record["eventSourceARN"].partition(":table/")[2].partition("/")[0],
                "dynamodb": change,
                "eventSource": "aws:dynamodb",
            }
        )

    def again(self, record: TwinRecord) -> TwinRecord:
        """Adds a second notice of the change of a record, with another event id and number."""
        return self._wrapped(json.loads(b64decode(record["kinesis"]["data"])))

    def _wrapped(self, data: TwinRecord) -> TwinRecord:
        self._number += 1
        record = kinesis_record(data, KINESIS_FIRST + self._number * KINESIS_STEP, self.arn)
        self.shards[0].records.append(record)
        return record


def piped(record: TwinRecord) -> TwinRecord:
    """A record as a pipe sends it: the members of the object ``kinesis`` are at the top (EventBridge User Guide,
    eb-pipes-kinesis).
    """
    return {**record["kinesis"], **{name: value for name, value in record.items() if name != "kinesis"}}


def kinesis_record(data: TwinRecord, number: int, arn: str) -> TwinRecord:
    event_id = str(UUID(bytes=blake2b(b"%d" % number, digest_size=UUID_BYTES).digest()))
    notice = {"awsRegion": data["awsRegion"], "eventID": event_id, **data} | {"eventID": event_id}
    text = json.dumps(notice, ensure_ascii=False)
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": blake2b(json.dumps(data["dynamodb"]["Keys"]).encode(), digest_size=16).hexdigest().upper(),
            "sequenceNumber": str(number),
            "data": b64encode(text.encode()).decode(),
            "approximateArrivalTimestamp": data["dynamodb"][TIME] // MICROSECONDS,
        },
        "eventSource": SOURCE,
        "eventVersion": KINESIS_EVENT_VERSION,
        "eventID": f"{KINESIS_SHARD}:{number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": f"arn:aws:iam::{ACCOUNT}:role/projector",
        "awsRegion": REGION,
        "eventSourceARN": arn,
    }


def _encoded_again(attributes: Mapping[str, Any]) -> dict[str, Any]:
    # Kinesis encodes the base64 text of binary values once more (Developer Guide, kds).
    return {name: _value(value) for name, value in attributes.items()}


def _value(value: Mapping[str, Any]) -> dict[str, Any]:
    ((tag, content),) = value.items()
    if tag == "M":
        return {tag: _encoded_again(content)}
    if tag == "L":
        return {tag: [_value(member) for member in content]}
    if tag in BINARY:
        return {tag: _encoded(content) if tag == "B" else [_encoded(member) for member in content]}
    return {tag: content}


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()
