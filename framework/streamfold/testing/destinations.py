"""Failure destinations in process, which hold the documents of Lambda in S3, SQS and SNS, character for character.

A queue and a topic only get the numbers of the records, which are of use for the 24 hours that a stream keeps records.
A bucket gets the invocation's event too (Developer Guide, services-dynamodb-errors). ``GivingUp`` delivers the batches
that a mapping gives up.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Protocol

from streamfold.errors import SettingsError
from streamfold.testing.polling import PolledBatch, PolledShard
from streamfold.testing.stream import ACCOUNT, REGION, Clock, TwinRecord

Condition = Literal["RetryAttemptsExhausted", "RecordAgeExceeded"]

FIFO_SUFFIX = ".fifo"
"""Ends the names of queues and topics that Lambda refuses here (API Reference, OnFailure)."""
PLAIN_BELOW = 10_000_000
"""From here on the event in an object has times as ``1.789651658E9``: its writer prints numbers as Java does."""
CREATION_TIME = re.compile(r'("ApproximateCreationDateTime":)([0-9.]+)')
"""A record's time in compact JSON. Inside a text the quotes would be escaped, and an attribute holds an object."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """Records that Lambda gave up, and whether the failure destination has them."""

    shard_id: str
    records: tuple[TwinRecord, ...]
    condition: Condition
    delivered: bool


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """A batch that Lambda gives up, with all values that a destination may need.

    ``function_error`` is ``Unhandled`` if the function raised or ran out of time, None if its response was partial or
    not valid; ``responded`` is False if the records were never sent, or grew too old. Times are seconds since 1970,
    ``event`` is the JSON text of the function's event.
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
        """The metadata, as a queue gets it. ``approximateInvokeCount`` is 1 even if the function was never invoked."""
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
    """A destination of batches that are given up. If ``deliver`` raises, the batch is lost, and counted."""

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

    An envelope is not signed: only AWS has the key. ``denied`` makes every delivery fail.
    """

    def __init__(self, name: str = "failures", *, denied: bool = False) -> None:
        _check_standard("topic", name)
        self.arn: str = f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"
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

DROPPED = "DroppedEventCount"
DELIVERED = "OnFailureDestinationDeliveredEventCount"
NOT_DELIVERED = "DestinationDeliveryFailures"


class Names(NamedTuple):
    """The names in a failure document."""

    stream_arn: str
    function_arn: str
    mapping_id: str


class GivingUp:
    """Delivers records to a destination, and keeps a list of them. ``metrics`` is the mapping's."""

    def __init__(
        self,
        names: Names,
        destination: Destination | None,
        clock: Clock,
        new_id: Callable[[], str],
        metrics: Counter[str],
    ) -> None:
        self.discarded: list[Discarded] = []
        self._names = names
        self._destination = destination
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics

    def take(
        self, poller: PolledShard, batch: PolledBatch, count: int, condition: Condition, *, unhandled: bool = False
    ) -> None:
        """Delivers the first records of a batch. If the destination fails, they are lost for good (seen on AWS)."""
        given_up = PolledBatch(batch.records[:count], batch.request_id, batch.attempts)
        delivered = False
        if self._destination is not None:
            try:
                self._destination.deliver(self._failed_batch(poller, given_up, condition, unhandled=unhandled))
                delivered = True
            except Exception:  # noqa: BLE001 - any error of a destination is a refusal
                self._metrics[NOT_DELIVERED] += 1
        self._metrics[DELIVERED if delivered else DROPPED] += count
        records = tuple(polled.record for polled in given_up.records)
        self.discarded.append(Discarded(poller.shard_id, records, condition, delivered))

    def _failed_batch(
        self, poller: PolledShard, batch: PolledBatch, condition: Condition, *, unhandled: bool
    ) -> FailedBatch:
        first, last = batch.records[0], batch.records[-1]
        return FailedBatch(
            condition=condition,
            request_id=batch.request_id,
            invocations=batch.attempts,
            responded=condition == "RetryAttemptsExhausted",
            function_error="Unhandled" if unhandled else None,
            at=self._clock.now,
            shard_id=poller.shard_id,
            sequences=(batch.sequences[0], batch.sequences[-1]),
            created=(first.created, last.created),
            records=len(batch.records),
            object_id=self._new_id(),
            event=batch.event,
            **self._names._asdict(),
        )
