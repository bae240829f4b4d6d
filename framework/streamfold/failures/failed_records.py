"""Failed records: the documents that hold them, and the files, S3 objects and queues where they wait to be redriven."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from streamfold.errors import LocationError, RecordError, SettingsError, refusal, shown
from streamfold.parking import Clients, Parked, make_client, queue_client
from streamfold.records.change import LOCALSTACK_DIGITS, SEQUENCE_DIGITS_MAX
from streamfold.records.envelope import RawRecord, records_of
from streamfold.replay.files import LINE_BYTES_MAX, BadLine, FileFormat, RecordedFiles, read_bytes
from streamfold.settings.readers import read_path

EXPECTED = (
    'a parked record {"parked": 1, ...}, or Lambda\'s document of a failed batch, {"requestContext": ..., '
    '"DDBStreamBatchInfo": {...}}, or "KinesisBatchInfo"'
)
RANGE = ("streamArn", "shardId", "startSequenceNumber", "endSequenceNumber")
PAYLOAD = "payload"
NOTIFICATION = "Notification"
"""The type of the envelope that SNS puts around a message (SNS Developer Guide, sns-message-and-json-formats)."""
MESSAGES = (("Records", "body", "'body'"), ("Messages", "Body", "'Body'"), ("Records", "Sns", "'Message' in 'Sns'"))
"""Lists of messages as Lambda and the AWS CLI give them: the list's name, a field that only messages have, and the path
of a message's content."""
FailureDocument = Mapping[str, Any]


class StreamRange(NamedTuple):
    """The range of a shard that holds a failed batch. It includes records that the mapping filtered out."""

    stream_arn: str  # of DynamoDB or of Kinesis
    shard_id: str
    first: str  # sequence number, inclusive
    last: str  # sequence number, inclusive

    @property
    def is_kinesis(self) -> bool:
        return self.stream_arn.split(":")[2:3] == ["kinesis"]


class DocumentFormat(NamedTuple):
    """The patterns that the fields of a stream range have to match."""

    arn: re.Pattern[str]
    number: re.Pattern[str]
    shard_id: re.Pattern[str]


DOCUMENT_FORMATS = {
    # DynamoDB Streams API, StreamRecord and Shard; LocalStack's numbers are longer
    "DDBStreamBatchInfo": DocumentFormat(
        re.compile(r"arn:[^:]*:dynamodb:.+"),
        re.compile(rf"[0-9]{{21,{SEQUENCE_DIGITS_MAX}}}|[0-9]{{{LOCALSTACK_DIGITS}}}"),
        re.compile(r".{28,65}"),
    ),
    # Kinesis API, StreamARN, SequenceNumber and ShardId
    "KinesisBatchInfo": DocumentFormat(
        re.compile(r"arn:aws[^:]*:kinesis:.*:[0-9]{12}:stream/\S+"),
        re.compile(r"0|[1-9][0-9]{0,128}"),
        re.compile(r"[a-zA-Z0-9_.-]{1,128}"),
    ),
}
"""The patterns of a range, by the name under which a document holds it."""


class Delivered(NamedTuple):
    """The records of a failed batch, as Lambda delivered them."""

    records: list[RawRecord]


WaitingDocument = Parked | Delivered | StreamRange
"""The contents of a document."""


def documents_of(value: Any) -> list[FailureDocument]:
    """The documents of a JSON value, one or a list. Raises ``RecordError`` for anything else."""
    documents = value if isinstance(value, list) else [value]
    for document in documents:
        if not isinstance(document, Mapping):
            raise RecordError(f"A document is {type(document).__name__}, {shown(document)}: expected {EXPECTED}.")
    return documents


def left_of(document: FailureDocument) -> WaitingDocument:
    """The contents of a document. Raises ``RecordError`` if it is no failure document."""
    document = _unwrapped(document)
    if "parked" in document:
        return Parked.of(document)
    if PAYLOAD in document:
        return Delivered(records_of(_parsed(PAYLOAD, document[PAYLOAD])))
    for name, expected in DOCUMENT_FORMATS.items():
        if isinstance(batch := document.get(name), Mapping):
            return _range(name, expected, batch)
    raise RecordError(_unknown(document))


def _unwrapped(document: FailureDocument) -> FailureDocument:
    """The document of a message, inside the envelope of SNS, too."""
    if document.get("Type") == NOTIFICATION and "Message" in document:
        (document,) = documents_of([_parsed("Message", document["Message"])])
    return document


def function_of(document: FailureDocument) -> str | None:
    """The name of the function that a batch was given to, by the ARN of a version or an alias, too.

    None for a document without one. Raises ``RecordError`` for an envelope that cannot be read.
    """
    context = _unwrapped(document).get("requestContext")
    pieces = str(context.get("functionArn", "")).split(":") if isinstance(context, Mapping) else []
    return pieces[6] if len(pieces) > 6 and pieces[5] == "function" else None


def _parsed(name: str, text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise RecordError(f"A document's {name!r} is {shown(text)}: expected JSON as a text.") from None


def _range(name: str, expected: DocumentFormat, batch: FailureDocument) -> StreamRange:
    given = {field: batch.get(field) for field in RANGE}
    found = StreamRange(*map(str, given.values()))
    numbers = all(expected.number.fullmatch(number) for number in (found.first, found.last))
    if not (numbers and expected.shard_id.fullmatch(found.shard_id) and expected.arn.fullmatch(found.stream_arn)):
        raise RecordError(
            f"A document's {name} has {shown(given)}: expected the ARN of a stream, the id of a shard and two "
            "sequence numbers. A window that ended without records needs no redrive."
        )
    return found


def _unknown(document: FailureDocument) -> str:
    for list_name, member, path in MESSAGES:
        messages = document.get(list_name)
        if isinstance(messages, list) and messages and isinstance(messages[0], Mapping) and member in messages[0]:
            return f"These are messages of a queue or topic: redrive takes the {path} of each."
    if "dynamodb" in document or "Records" in document:
        return "This is an event or a record, not a failure document: streamfold replay takes it."
    return f"This is no failure document: expected {EXPECTED}; found the keys {sorted(document)[:8]}."


DOCUMENTS = FileFormat(documents_of, EXPECTED)
MESSAGES_MAX = 10
"""Messages of one call (SQS API Reference, ReceiveMessage, DeleteMessageBatch)."""
WAIT_SECONDS = 2
"""A call that waits asks every server of the queue, so an empty answer means an empty queue (SQS Developer Guide,
sqs-short-and-long-polling)."""
HIDDEN_SECONDS = 900
"""How long a received message stays hidden from other readers. ``close`` shows the unacknowledged ones again."""
AGAIN_MAX = 100
"""Calls in a row that receive only known messages, which are visible again: new ones may be behind them."""
VISIBLE = ("InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid")
"""Codes of SQS for a message that is not hidden (SQS API Reference, ChangeMessageVisibility)."""
RECEIVES_MAX = 120_000
"""Calls for one queue: each receives a message, and so many may be in flight (SQS Developer Guide, quotas-queues)."""


class Waiting(NamedTuple):
    """A document that waits to be redriven."""

    location: str  # its location: file and line, S3 object, or message
    document: FailureDocument | None  # None: it could not be read
    why: str = ""  # why it could not be read
    receipt: str | None = None  # for ``acknowledge``, of a queue's message, or of an object that is to be cleared


class WaitingRecords(Protocol):
    """The location of waiting documents. Reading raises ``LocationError``."""

    def __iter__(self) -> Iterator[Waiting]: ...

    def acknowledge(self, receipt: str) -> None:
        """Deletes a message or an object after all of its records took effect."""
        ...

    def close(self) -> None:
        """Makes unacknowledged messages visible to the next reader."""
        ...


class Kept:
    """A location that keeps its documents after a redrive."""

    def acknowledge(self, receipt: str) -> None: ...

    def close(self) -> None: ...


class FileRecords(Kept):
    """A file, or all files of a folder and its subfolders in the order of their names, without hidden ones."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __iter__(self) -> Iterator[Waiting]:
        paths = sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]
        files = [path for path in paths if path.is_file() and not path.name.startswith(".")]
        yield from _waiting(RecordedFiles([str(path) for path in files], DOCUMENTS))


class S3Records(Kept):
    """One object, or all whose key begins with a text, in the order of their keys. ``clears``: objects are deleted once
    they are acknowledged.
    """

    def __init__(self, client: Any, bucket: str, prefix: str, *, clears: bool = False) -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = prefix
        self.clears = clears

    def __iter__(self) -> Iterator[Waiting]:
        for key in self._keys():
            name = f"s3://{self.bucket}/{key}"
            with _explained(name, "s3:GetObject"):
                content = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read(LINE_BYTES_MAX + 1)
            if len(content) > LINE_BYTES_MAX:
                yield Waiting(name, None, f"it is larger than {LINE_BYTES_MAX:,} bytes")
                continue
            found = list(_waiting(read_bytes(name, content, DOCUMENTS)))
            if self.clears and len(found) == 1:  # an object that somebody made of several documents stays
                found = [found[0]._replace(receipt=key)]
            yield from found

    def acknowledge(self, receipt: str) -> None:
        with _explained(f"s3://{self.bucket}/{receipt}", "s3:DeleteObject"):
            self.client.delete_object(Bucket=self.bucket, Key=receipt)

    def _keys(self) -> Iterator[str]:
        """The keys with the prefix. If one object has exactly that key (it is listed first), only that one."""
        with _explained(f"s3://{self.bucket}/{self.prefix}", "s3:ListBucket"):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
            for key in (each["Key"] for page in pages for each in page.get("Contents", ())):
                yield key
                if key == self.prefix:
                    return


class SqsRecords:
    """A queue. Received messages are hidden from other readers until they are acknowledged or the reader is closed."""

    def __init__(self, client: Any, url: str) -> None:
        self.client = client
        self.url = url
        self._pending: dict[str, None] = {}  # receipts, in the order of their messages

    def __iter__(self) -> Iterator[Waiting]:
        seen: set[str] = set()
        again = 0
        # A queue may never look empty, because messages become visible again: both bounds end the reading.
        for _ in range(RECEIVES_MAX):
            received = self._receive()
            self._pending.update((message["ReceiptHandle"], None) for message in received)
            messages = [message for message in received if message["MessageId"] not in seen]
            again = 0 if messages else again + 1
            if not received or again > AGAIN_MAX:
                return
            seen.update(message["MessageId"] for message in messages)
            yield from map(_of_message, messages)

    def _receive(self) -> list[Any]:
        with _explained(self.url, "sqs:ReceiveMessage"):
            answer = self.client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=MESSAGES_MAX,
                WaitTimeSeconds=WAIT_SECONDS,
                VisibilityTimeout=HIDDEN_SECONDS,
            )
        messages: list[Any] = answer.get("Messages", [])
        return messages

    def acknowledge(self, receipt: str) -> None:
        with _explained(self.url, "sqs:DeleteMessage"):
            self.client.delete_message(QueueUrl=self.url, ReceiptHandle=receipt)
        self._pending.pop(receipt, None)

    def close(self) -> None:
        pending, self._pending, refused = self._pending, {}, None
        for receipt in pending:
            try:
                with _explained(self.url, "sqs:ChangeMessageVisibility"):
                    self.client.change_message_visibility(QueueUrl=self.url, ReceiptHandle=receipt, VisibilityTimeout=0)
            except LocationError as error:
                # One refused message must not keep the others hidden, so the error is raised at the end.
                refused = refused if _is_visible(error) else error
        if refused is not None:
            raise refused


def open_location(name: str, clients: Clients | None = None, *, clears: bool = False) -> WaitingRecords:
    """The records at a location. ``clears``: objects are deleted once all of their records took effect.

    Raises ``SettingsError`` if the text names no location, or one of which nothing can be cleared.
    """
    make = clients or make_client
    if name.startswith("s3://"):
        bucket, _, prefix = name.removeprefix("s3://").partition("/")
        if not bucket:
            raise SettingsError(f"{name!r} names no bucket: expected s3://BUCKET/PREFIX.")
        return S3Records(make("s3"), bucket, prefix, clears=clears)
    if name.startswith(("https://", "http://")):
        return SqsRecords(clients("sqs") if clients else queue_client(name), name)
    if not read_path("The location of failed records", name).exists():
        raise SettingsError(
            f"{name!r} does not exist: expected a file or folder of documents, s3://BUCKET/PREFIX, or the URL of an "
            "SQS queue (https://sqs.REGION.amazonaws.com/ACCOUNT/NAME)."
        )
    if clears:
        raise SettingsError(f"--clear deletes objects in S3, and {name!r} is a file or a folder: delete it yourself.")
    return FileRecords(name)


def _is_visible(error: LocationError) -> bool:
    cause = error.__cause__
    # Its time was over, or it was deleted: either way it is not hidden.
    return isinstance(cause, ClientError) and cause.response["Error"]["Code"].rpartition(".")[2] in VISIBLE


def _of_message(message: Any) -> Waiting:
    name, receipt = f"message {message['MessageId']}", message["ReceiptHandle"]
    found = list(_waiting(read_bytes(name, message["Body"].encode(), DOCUMENTS)))
    if len(found) != 1:
        return Waiting(name, None, f"it holds {len(found)} documents: expected one", receipt)
    return found[0]._replace(location=name, receipt=receipt)


def _waiting(entries: Iterable[Any]) -> Iterator[Waiting]:
    for entry in entries:
        if isinstance(entry, BadLine):
            yield Waiting(str(entry.line), None, entry.why)
        else:
            yield Waiting(str(entry[0]), entry[1])


@contextmanager
def _explained(location: str, action: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise LocationError(f"{location} refused ({refusal(error)}). {action} is needed there.") from error
    except BotoCoreError as error:
        raise LocationError(f"{location} could not be reached ({error}).") from error
