"""The services that take messages: the form, the limits and the answers of each, one request at a time."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from streamfold.derivations.publish.addresses import Address
from streamfold.derivations.publish.envelope import Message, MessageAttribute
from streamfold.derivations.publish.options import EVENTBRIDGE, SNS
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, redacted, refusal

KIB = 1024
BUS_ENTRIES_MAX, NEW_BUS_ENTRIES_MAX = 10, 100
"""Entries of one request (EventBridge API Reference, PutEvents; botocore, eventbridgev2)."""
BUS_BYTES_MAX = 999_999
"""The entries of a request of PutEvents together: less than 1 MB (EventBridge API Reference, PutEvents)."""
TIME_BYTES = 14
"""What the time of an entry counts (EventBridge User Guide, eb-putevents-size)."""
BATCH_ENTRIES_MAX = 10
"""Messages of one request (SQS API Reference, SendMessageBatch; SNS API Reference, PublishBatch)."""
QUEUE_BYTES_MAX = 1024 * KIB
"""The messages of a request together (SQS API Reference, SendMessageBatch). A queue may be set to less a message."""
TOPIC_BYTES_MAX = 256 * KIB
"""The messages of a request together, unless the topic is set to up to 1 MiB (SNS API Reference, PublishBatch)."""
THROTTLED = ("throttl", "toomanyrequests", "requestlimitexceeded", "slowdown")
"""In the code of an error that passes when less is sent."""
INTERNAL = ("internal", "serviceunavailable", "unavailable", "timeout")
"""In the code of an error of the service itself."""
FOR_GOOD = (
    "accessdenied", "authorizationerror", "notauthorized", "doesnotexist", "nonexistent", "notfound", "kmsdisabled",
    "kmsinvalid", "kmsnotfound", "kmsoptin", "kmsaccessdenied", "endpointdisabled", "invalidsecurity", "invalidaddress",
    "invalidclienttoken", "unrecognizedclient", "signature", "expiredtoken", "invalidaccesskey", "invalidstate",
)  # fmt: skip
"""In the code of an error of the destination, the key or the role, and of no message."""
SERVER_STATUS_MIN = 500


class DestinationThrottled(EngineUnavailable):
    """Raised when a destination takes no more for now."""


class RequestRefused(HandlerError):  # noqa: N818 - is about what became of it
    """Raised when a destination refuses a whole request for what is in one of its messages."""


class Limits(NamedTuple):
    """What one request takes."""

    entries: int
    bytes: int
    message_bytes: int


class MessageTarget(Protocol):
    """A destination. ``send`` returns the error of each message, and raises that of a whole request."""

    @property
    def limits(self) -> Limits: ...

    def bytes_of(self, message: Message) -> int:
        """What a message counts in a request."""
        ...

    def send(self, messages: Sequence[Message]) -> Sequence[Exception | None]: ...


class _Service:
    """A destination on AWS."""

    def __init__(self, address: Address, client: Any) -> None:
        self.address = address
        self.client = client

    def _called(self, call: Callable[..., Any], **arguments: Any) -> Mapping[str, Any]:
        """The answer to a request. Raises ``EngineError`` for an error of the destination, ``Throttled``,
        ``EngineUnavailable`` for an unknown outcome, and ``RequestRefused``.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found: Mapping[str, Any] = call(**arguments)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response["Error"]["Code"]
            raise self._error(code, refusal(error), is_server=status >= SERVER_STATUS_MIN) from error
        except BotoCoreError as error:
            raise EngineUnavailable(f"{self.address.to} could not be reached ({redacted(error)}).") from error
        return found

    def _error(self, code: str, what: str, *, is_server: bool = False) -> Exception:
        """The error of a request or an entry with this code."""
        word = code.rpartition(".")[2].replace("_", "").lower()
        to = str(self.address.to)
        if any(each in word for each in THROTTLED):
            return DestinationThrottled(f"{to} is throttled ({what}).")
        if any(each in word for each in FOR_GOOD):
            return EngineError(
                f"{to} refused a request with {what}. It has to exist, and the role has to be permitted."
            )
        if is_server or any(each in word for each in INTERNAL):
            return EngineUnavailable(f"{to} failed with {what}.")
        return RequestRefused(f"{to} refused a message with {what}.")


class Bus(_Service):
    """An event bus: without order and without deduplication."""

    limits: Limits = Limits(BUS_ENTRIES_MAX, BUS_BYTES_MAX, BUS_BYTES_MAX)

    def bytes_of(self, message: Message) -> int:
        return TIME_BYTES + sum(len(text.encode()) for text in (message.source, message.type, message.text))

    def send(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        answer = self._called(self.client.put_events, **self._request(messages))
        return [self._result(entry) for entry in answer["Entries"]]

    def _request(self, messages: Sequence[Message]) -> dict[str, Any]:
        return {"Entries": [{**_entry(each), "EventBusName": self.address.text} for each in messages]}

    def _result(self, entry: Mapping[str, Any]) -> Exception | None:
        if not (code := entry.get("ErrorCode")):
            return None
        return self._error(code, f"{code}: {redacted(entry.get('ErrorMessage', ''))}")


class NewBus(Bus):
    """A bus of the newer kind, which keeps the order of a group, and takes a repeated id as done."""

    limits: Limits = Limits(NEW_BUS_ENTRIES_MAX, BUS_BYTES_MAX, BUS_BYTES_MAX)

    def bytes_of(self, message: Message) -> int:
        return super().bytes_of(message) + len(message.group) + len(message.id)

    def _request(self, messages: Sequence[Message]) -> dict[str, Any]:
        fifo = ({"EventGroupId": each.group, "DeduplicationId": each.id} for each in messages)
        entries = [{**_entry(each), "SystemMetadata": own} for each, own in zip(messages, fifo, strict=True)]
        return {"EventBusArn": self.address.text, "Entries": entries}


def _entry(message: Message) -> dict[str, Any]:
    (change, *_) = message.changes
    time = {"Time": change.at} if change.has_at else {}
    return {"Source": message.source, "DetailType": message.type, "Detail": message.text, **time}


class _Batches(_Service):
    """A queue or a topic, whose requests are alike."""

    text_name = ""  # the parameter of the text

    def bytes_of(self, message: Message) -> int:
        attributes = sum(len(text.encode()) for each in message.attributes for text in each)
        return len(message.text.encode()) + attributes

    def _entries(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [self._entry(number, message) for number, message in enumerate(messages)]

    def _entry(self, number: int, message: Message) -> dict[str, Any]:
        fifo = {"MessageGroupId": message.group, "MessageDeduplicationId": message.id}
        return {
            "Id": str(number),
            self.text_name: message.text,
            "MessageAttributes": {each.name: _attribute(each) for each in message.attributes},
            **(fifo if self.address.is_fifo else {}),
        }

    def _results(self, answer: Mapping[str, Any], count: int) -> list[Exception | None]:
        taken = {entry["Id"] for entry in answer.get("Successful", ())}
        failed = {entry["Id"]: entry for entry in answer.get("Failed", ())}
        return [None if str(number) in taken else self._failed(failed.get(str(number))) for number in range(count)]

    def _failed(self, entry: Mapping[str, Any] | None) -> Exception:
        if entry is None:
            return EngineUnavailable(f"{self.address.to} gave no answer for a message.")
        what = f"{entry['Code']}: {redacted(entry.get('Message', ''))}"
        return self._error(entry["Code"], what, is_server=not entry.get("SenderFault", True))

    def _asked(self, call: Callable[..., Any], **arguments: Any) -> int | None:
        """The largest message that the destination is set to; None where it does not say so, or may not be asked."""
        try:
            size = self._called(call, **arguments).get("Attributes", {}).get("MaximumMessageSize")
        except (EngineError, HandlerError):  # a request that needs the answer is refused, and sent in smaller ones
            return None
        return None if size is None else int(size)


def _attribute(attribute: MessageAttribute) -> dict[str, str]:
    return {"DataType": attribute.type, "StringValue": attribute.text}


class Queue(_Batches):
    """An SQS queue. A FIFO queue keeps the order of a group, and drops ids for five minutes."""

    text_name = "MessageBody"

    @cached_property
    def limits(self) -> Limits:
        asked = self._asked(
            self.client.get_queue_attributes, QueueUrl=self.address.text, AttributeNames=["MaximumMessageSize"]
        )
        return Limits(BATCH_ENTRIES_MAX, QUEUE_BYTES_MAX, min(asked or QUEUE_BYTES_MAX, QUEUE_BYTES_MAX))

    def send(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        entries = self._entries(messages)
        answer = self._called(self.client.send_message_batch, QueueUrl=self.address.text, Entries=entries)
        return self._results(answer, len(messages))


class Topic(_Batches):
    """An SNS topic. A FIFO topic keeps the order of a group, and drops ids for five minutes."""

    text_name = "Message"

    @cached_property
    def limits(self) -> Limits:
        size = self._asked(self.client.get_topic_attributes, TopicArn=self.address.text) or TOPIC_BYTES_MAX
        return Limits(BATCH_ENTRIES_MAX, size, size)

    def send(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        entries = self._entries(messages)
        answer = self._called(self.client.publish_batch, TopicArn=self.address.text, PublishBatchRequestEntries=entries)
        return self._results(answer, len(messages))


def open_target(address: Address, make_client: Callable[..., Any]) -> MessageTarget:
    """The destination at an address. Raises as ``make_client``."""
    service = address.to.service
    bus = "eventbridgev2" if address.is_new_bus else "events"
    client = make_client(bus if service == EVENTBRIDGE else service, address.endpoint_url, address.region)
    if service == EVENTBRIDGE:
        return NewBus(address, client) if address.is_new_bus else Bus(address, client)
    return Topic(address, client) if service == SNS else Queue(address, client)
