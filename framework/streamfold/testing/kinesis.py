"""Kinesis Data Streams for DynamoDB in process: records of changes of tables, including late and repeated ones."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal
from uuid import UUID

from streamfold.records.kinesis import BINARY, DATA_FIELDS, MICROSECONDS, PRECISION, SOURCE, TIME
from streamfold.testing.errors import TwinError
from streamfold.testing.stream import ACCOUNT, HASHES, REGION, Clock, Shard, TwinRecord

FIRST = 49_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
"""Sequence numbers of Kinesis have 56 digits, and gaps."""
STEP = 1_000
SHARD = "shardId-000000000000"
EVENT_VERSION = "1.0"
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
        self.shards: list[Shard] = [Shard(SHARD, None, 0, HASHES, str(FIRST))]
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
        record = kinesis_record(data, FIRST + self._number * STEP, self.arn)
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
        "eventVersion": EVENT_VERSION,
        "eventID": f"{SHARD}:{number}",
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
