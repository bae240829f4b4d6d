"""Failure destinations in process, holding what Lambda writes to S3, SQS and SNS, character for character.

A queue and a topic get the numbers of the records only, good for the 24 hours that a stream keeps records; a bucket
gets the invocation's event too (Developer Guide, services-dynamodb-errors).
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, Protocol

from streamfold.errors import SettingsError
from streamfold.testing.stream import ACCOUNT, REGION

Condition = Literal["RetryAttemptsExhausted", "RecordAgeExceeded"]

FIFO_SUFFIX = ".fifo"
"""Ends the names of queues and topics that Lambda refuses here (API Reference, OnFailure)."""
PLAIN_BELOW = 10_000_000
"""From here on the event in an object has times as ``1.789651658E9``: its writer prints numbers as Java does."""
CREATION_TIME = re.compile(r'("ApproximateCreationDateTime":)([0-9.]+)')
"""A record's time in compact JSON. Inside a text the quotes would be escaped, and an attribute holds an object."""


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """A batch that Lambda gives up, with all that a destination may write of it.

    ``function_error`` is ``Unhandled`` where the function raised or ran out of time, None where its response was
    partial or not valid; ``responded`` is False where the records were never sent, or grew too old. Times are seconds
    since 1970, ``event`` is the JSON text that the function got.
    """

    condition: Condition
    request_id: str
    invocations: int
    responded: bool
    function_error: str | None
    at: float
    shard_id: str
    sequences: tuple[str, str]
    created: tuple[float, float]
    records: int
    stream_arn: str
    function_arn: str
    mapping_id: str
    object_id: str
    event: str

    def document(self) -> dict[str, Any]:
        """The metadata, as a queue gets it. ``approximateInvokeCount`` is 1 also where nothing was ever invoked."""
        context = {
            "requestId": self.request_id,
            "functionArn": self.function_arn,
            "condition": self.condition,
            "approximateInvokeCount": max(1, self.invocations),
        }
        is_kinesis = self.stream_arn.split(":")[2] == "kinesis"
        precision = "milliseconds" if is_kinesis else "seconds"
        response = {"statusCode": 200, "executedVersion": "$LATEST", "functionError": self.function_error}
        return {
            "requestContext": context,
            **({"responseContext": response} if self.responded else {}),
            "version": "1.0",
            "timestamp": _moment(self.at, "milliseconds"),
            "KinesisBatchInfo" if is_kinesis else "DDBStreamBatchInfo": {
                "shardId": self.shard_id,
                "startSequenceNumber": self.sequences[0],
                "endSequenceNumber": self.sequences[1],
                "approximateArrivalOfFirstRecord": _moment(self.created[0], precision),
                "approximateArrivalOfLastRecord": _moment(self.created[1], precision),
                "batchSize": self.records,
                "streamArn": self.stream_arn,
            },
        }

    def object_key(self) -> str:
        """``aws/lambda/<mapping>/<shard>/YYYY/MM/DD/YYYY-MM-DDTHH.MM.SS-<uuid>``."""
        at = datetime.fromtimestamp(self.at, UTC)
        return f"aws/lambda/{self.mapping_id}/{self.shard_id}/{at:%Y/%m/%d/%Y-%m-%dT%H.%M.%S}-{self.object_id}"


class Destination(Protocol):
    """Where batches go that are given up. Whatever ``deliver`` raises loses the batch, and is counted."""

    def deliver(self, batch: FailedBatch) -> None: ...


@dataclass(slots=True)
class BucketTwin:
    """An S3 bucket: ``objects`` by key, each the metadata and, as ``payload``, the event as a JSON text in the JSON.

    ``denied`` makes every delivery fail, as a missing permission does.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    denied: bool = False

    def deliver(self, batch: FailedBatch) -> None:
        _refuse_if(self.denied, "s3:PutObject")
        payload = CREATION_TIME.sub(lambda found: found[1] + _java_number(found[2]), batch.event)
        self.objects[batch.object_key()] = _compact({**batch.document(), "payload": payload}).encode()

    def documents(self) -> list[dict[str, Any]]:
        """The objects parsed, in the order of delivery."""
        return [json.loads(content) for content in self.objects.values()]


class QueueTwin:
    """A standard SQS queue: ``messages`` holds their bodies. ``denied`` makes every delivery fail."""

    def __init__(self, name: str = "failures", *, denied: bool = False) -> None:
        _check_standard("queue", name)
        self.messages: list[str] = []
        self.denied = denied

    def deliver(self, batch: FailedBatch) -> None:
        _refuse_if(self.denied, "sqs:SendMessage")
        self.messages.append(_compact(batch.document()))

    def documents(self) -> list[dict[str, Any]]:
        """The bodies parsed, in the order of delivery."""
        return [json.loads(body) for body in self.messages]


class TopicTwin:
    """A standard SNS topic: ``messages`` holds what its subscribers get, an envelope with the metadata as ``Message``.

    An envelope is not signed: there is no key that would fit. ``denied`` makes every delivery fail.
    """

    def __init__(self, name: str = "failures", *, denied: bool = False) -> None:
        _check_standard("topic", name)
        self.arn = f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"
        self.messages: list[str] = []
        self.denied = denied

    def deliver(self, batch: FailedBatch) -> None:
        _refuse_if(self.denied, "sns:Publish")
        envelope = {
            "Type": "Notification",
            "MessageId": batch.object_id,
            "TopicArn": self.arn,
            "Message": _compact(batch.document()),
            "Timestamp": _moment(batch.at, "milliseconds"),
            "SignatureVersion": "1",
            "Signature": "",
            "SigningCertURL": "",
            "UnsubscribeURL": "",
        }
        self.messages.append(_compact(envelope))

    def documents(self) -> list[dict[str, Any]]:
        """The metadata of the messages parsed, in the order of delivery."""
        return [json.loads(json.loads(envelope)["Message"]) for envelope in self.messages]


def _check_standard(kind: str, name: str) -> None:
    if name.endswith(FIFO_SUFFIX):
        raise SettingsError(f"The {kind} {name!r} is FIFO: Lambda takes standard queues and topics only.")


def _refuse_if(denied: bool, action: str) -> None:  # noqa: FBT001 - the name of the function asks for it
    if denied:
        raise PermissionError(f"AccessDenied: the mapping's role may not {action}")


def _moment(seconds: float, precision: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _java_number(text: str) -> str:
    if float(text) < PLAIN_BELOW:
        return text
    mantissa, _, exponent = f"{Decimal(text).normalize():E}".partition("E+")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}E{exponent}"


_compact: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
