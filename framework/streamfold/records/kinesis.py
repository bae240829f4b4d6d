"""Kinesis Data Streams for DynamoDB as a source: its records unwrapped, and read as changes.

A record reaches a function as base64 of JSON (Lambda Developer Guide, with-kinesis). A pipe leaves out the object
``kinesis`` around it (EventBridge User Guide, eb-pipes-kinesis). DynamoDB's change in the record has no sequence
number. Records may come in another order than the changes, and more than once, so order and identity are taken from the
change (Developer Guide, kds).
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from streamfold.errors import RecordError, shown
from streamfold.records.change import (
    EVENTS,
    SEQUENCE_DIGITS_MAX,
    Change,
    Origin,
    broken_image,
    check_images,
    contradicting,
    has_expired,
    is_time_to_live,
    item_key,
)
from streamfold.records.values import CANONICAL

SOURCE = "aws:kinesis"
LABEL = "kinesis"
"""The label in a version, in place of a stream's label: the time of a change is the table's, in every Kinesis stream.
"""
MICROSECOND = "MICROSECOND"
MICROSECONDS = 1_000_000
TIME = "ApproximateCreationDateTime"
PRECISION = "ApproximateCreationDateTimePrecision"
DATA_FIELDS = ("Keys", "OldImage", "NewImage")
BINARY = ("B", "BS")
SETS = ("SS", "NS", "BS")
DIGEST_BYTES = 16

Record = Mapping[str, Any]


def sequence_of(record: Record) -> Any:
    wrapped = record.get("kinesis", record)
    return wrapped.get("sequenceNumber") if isinstance(wrapped, Mapping) else None


def is_bare(record: Record) -> bool:
    """Whether a record is DynamoDB's change without the Kinesis record around it, as Firehose delivers it."""
    body = record.get("dynamodb")
    return isinstance(record.get("tableName"), str) and isinstance(body, Mapping) and "SequenceNumber" not in body


def wrapped(record: Record) -> Record:
    """A bare record with a Kinesis record around it. Firehose gives no sequence number: the event id replaces it."""
    number = str(record.get("eventID") or "firehose")
    return {
        "eventSource": SOURCE,
        "kinesis": {"sequenceNumber": number, "data": b64encode(json.dumps(record).encode()).decode()},
    }


def unwrapped(record: Record) -> dict[str, Any]:
    """DynamoDB's change in a Kinesis record, with binary values encoded as Lambda encodes them in stream records.

    Raises ``RecordError`` for anything else.
    """
    sequence, wrapped = sequence_of(record), record.get("kinesis", record)
    if not isinstance(sequence, str) or not sequence:
        raise RecordError(
            f"A Kinesis record has sequenceNumber={shown(sequence)}: expected text, by which a failure is reported. "
            "Does a pipe's input template leave it out? Then take the template away."
        )
    try:
        text = b64decode(wrapped["data"], validate=True).decode()
        data = json.loads(text)
        body, table = data["dynamodb"], data["tableName"]
        if not isinstance(body, dict) or not isinstance(table, str):
            raise TypeError
        if '"B"' in text or '"BS"' in text:
            body.update({name: _decoded_once(sequence, body[name]) for name in DATA_FIELDS if body.get(name)})
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise RecordError(
            f"Kinesis record {sequence} holds no change of a DynamoDB table: expected base64 of an object with "
            "'tableName' and 'dynamodb'. Is this the stream of the table's changes, and of nothing else?"
        ) from None
    found: dict[str, Any] = data
    return found


class KinesisChange(Change):
    """A change that came through Kinesis.

    Its version is the table's time of the change in microseconds. ``identity_text`` is the version with a digest of
    both images: every copy of a change has the same one, while event ids and sequence numbers differ. Raises
    ``RecordError`` for a record that is malformed, or less precise.
    """

    __slots__ = ("_digest",)
    in_order = False

    def __init__(self, record: Record, data: Record, origin: Origin) -> None:
        self.sequence: str = sequence_of(record)
        body, event = data["dynamodb"], data.get("eventName")
        if event not in EVENTS or not isinstance(body.get("Keys"), Mapping):
            raise RecordError(
                f"Kinesis record {self.sequence} has eventName={shown(event)} and Keys={shown(body.get('Keys'))}: "
                "expected INSERT, MODIFY or REMOVE, and the item's key attributes."
            )
        if any(image and not isinstance(image, Mapping) for image in map(body.get, DATA_FIELDS)):
            raise RecordError(broken_image(self.sequence))
        if body.get("OldImage") if event == "INSERT" else event == "REMOVE" and body.get("NewImage"):
            raise RecordError(contradicting(event, self.sequence))
        microseconds = self._microseconds(record, data)
        self.event = event
        self.record = record
        self.table = origin.table
        self.item = item_key(body["Keys"], origin.table)
        check_images(map(body.get, DATA_FIELDS[1:]), self.item, origin.table, self.sequence)
        self.version_text = origin.version_prefix + str(microseconds).zfill(SEQUENCE_DIGITS_MAX)
        try:
            self._digest = _digest(body)
        except RecursionError:
            raise RecordError(f"Kinesis record {self.sequence} is nested deeper than any item can be.") from None
        self.view = "NEW_AND_OLD_IMAGES"  # a record always carries both (Developer Guide, kds)
        self._old, self._new = body.get("OldImage") or None, body.get("NewImage") or None
        self._at = microseconds // MICROSECONDS
        self.expired: bool = event == "REMOVE" and (
            is_time_to_live(data.get("userIdentity")) or has_expired(self.table, self._old, lambda: self.at)
        )

    @property
    def identity_text(self) -> str:
        return f"{self.version_text}/{self._digest}"

    def identity_among(self, visible: Callable[[str], bool]) -> str:
        images = {"OldImage": self.old.raw, "NewImage": self.new.raw}
        seen = {field: {name: raw[name] for name in raw if visible(name)} for field, raw in images.items()}
        return f"{self.version_text}/{_digest(seen)}"

    def _microseconds(self, record: Record, data: Record) -> int:
        body = data["dynamodb"]
        time, precision = body.get(TIME), body.get(PRECISION)
        if precision == MICROSECOND and type(time) is int and 0 <= time < 10**SEQUENCE_DIGITS_MAX:
            return time
        raise RecordError(
            f"Kinesis record {self.sequence} has {TIME}={shown(time)} and {PRECISION}={shown(precision)}: expected "
            f"{MICROSECOND}, since the order of two changes of an item in one millisecond would be unknown. Run: "
            f"aws dynamodb update-kinesis-streaming-destination --table-name {data['tableName']} --stream-arn "
            f"{record.get('eventSourceARN', 'ARN')} --update-kinesis-streaming-configuration {PRECISION}={MICROSECOND}."
        )


def _digest(body: Record) -> str:
    return images_digest([body.get("OldImage") or {}, body.get("NewImage") or {}])


def images_digest(images: Sequence[Record]) -> str:
    """128 bits of images, the same for any order of attributes and of members of sets."""
    text = CANONICAL.encode(images)
    if any(f'"{tag}":[' in text for tag in SETS):
        text = CANONICAL.encode(_ordered(images))
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: sorted(content, key=str) if name in SETS and isinstance(content, list) else _ordered(content)
            for name, content in value.items()
        }
    return [_ordered(member) for member in value] if isinstance(value, list) else value


def _decoded_once(sequence: str, attributes: Record) -> dict[str, Any]:
    """Attributes whose binary values are base64 text. In Kinesis they are base64 of base64 (Developer Guide, kds).

    Raises ``RecordError``, with the attribute, for a value that is not encoded twice.
    """
    found = {}
    for name, value in attributes.items():
        try:
            found[name] = _value(value)
        except (UnicodeDecodeError, BinasciiError):
            raise RecordError(
                f"Kinesis record {sequence} has a binary value in attribute {shown(name)} that is not base64 of base64 "
                "text, as DynamoDB writes it there. Did another tool than DynamoDB write the record, or decode it once?"
            ) from None
    return found


def _value(value: Record) -> dict[str, Any]:
    ((tag, content),) = value.items()
    if tag == "M":
        return {tag: {name: _value(member) for name, member in content.items()}}
    if tag == "L":
        return {tag: [_value(member) for member in content]}
    if tag in BINARY:
        texts = [b64decode(member, validate=True).decode("ascii") for member in ([content] if tag == "B" else content)]
        for text in texts:
            b64decode(text, validate=True)
        return {tag: texts[0] if tag == "B" else texts}
    return {tag: content}
