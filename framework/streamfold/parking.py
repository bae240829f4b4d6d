"""The parking place: keeps records that a handler cannot process until they are redriven.

A parking place is an S3 prefix, an SQS queue or, locally, a JSON Lines file. It gets one document per record and
handler. Parking a record twice does no harm: in S3 the document is overwritten, elsewhere there are two of them.
"""

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from streamfold.errors import ParkingError, RecordError, SettingsError, redacted, refusal
from streamfold.records.values import CANONICAL, to_json
from streamfold.settings.limits import CONNECT_SECONDS_MAX, LANES_MAX, READ_SECONDS_MAX, TRIES_MAX
from streamfold.settings.readers import is_loopback, make_private, read_path

FORMAT = 1
"""The version of a parked record's document, under the name ``parked``."""
TEXTS = ("application", "handler", "table", "item", "version", "error_type", "error", "at")
"""The fields of a document that are text."""
MESSAGE_BYTES_MAX = 1024 * 1024
"""Size of an SQS message: 1 MiB (SQS API Reference, SendMessage). A queue may be set to less."""
ERROR_LETTERS_MAX = 2000
"""Longer error texts are cut: an error may quote a whole item, and the document holds the record anyway."""
NOT_IN_MESSAGES = ("\ufffe", "\uffff")
"""Characters that JSON does not escape and SQS refuses (SQS API Reference, SendMessage)."""
FIFO = ".fifo"

Clients = Callable[[str], Any]
"""Makes a low-level boto3 client for a service."""


class Parked(NamedTuple):
    """A record that is parked for one handler."""

    application: str
    handler: str
    table: str
    item: str  # the item's key as one text
    version: str  # identifies the change among all changes of its item
    error_type: str
    error: str
    attempts: int | None  # None: not counted
    at: str  # the time of parking, ISO text in UTC
    record: Mapping[str, Any]  # the stream record as delivered
    request_id: str | None = None  # of the invocation that parked it; None: outside of Lambda, or of an earlier release

    @property
    def name(self) -> str:
        """A name that only this record and handler have, the same whenever the record is parked."""
        digest = sha256(f"{self.table}#{self.item}".encode(errors="replace")).hexdigest()[:16]
        return f"{self.application}/{self.handler}/{self.version.replace('/', '_')}-{digest}.json"

    def text(self) -> str:
        """The document: one line of JSON, binary values as base64 text."""
        document = {"parked": FORMAT, **self._asdict()}
        text = to_json(document)
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair: perhaps why the handler failed
            return CANONICAL.encode(document)
        return text

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Parked":
        """Reads a document. Raises ``RecordError`` for one of another format."""
        if document.get("parked") != FORMAT:
            raise RecordError(
                f"A parked record has the format {document.get('parked')!r}: this version reads {FORMAT}. "
                "It was parked by another version of streamfold."
            )
        try:
            parked = cls(**{name: document[name] for name in cls._fields if name not in cls._field_defaults})
        except KeyError as missing:
            raise RecordError(f"A parked record has no {missing}: expected {', '.join(cls._fields)}.") from None
        if not isinstance(document["record"], Mapping):
            raise RecordError("A parked record is damaged: expected 'record' to be an object.")
        if broken := [name for name in TEXTS if not isinstance(document[name], str)]:
            raise RecordError(f"A parked record is damaged: expected {', '.join(map(repr, broken))} to be text.")
        request_id = document.get("request_id")  # documents of earlier releases have none
        return parked._replace(request_id=request_id if isinstance(request_id, str) else None)


class Parking(Protocol):
    """A parking place. ``park`` raises ``ParkingError`` unless the record is safe there."""

    def park(self, parked: Parked) -> None: ...


class FileParking:
    """A JSON Lines file. A record counts as parked once it is on disk."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def park(self, parked: Parked) -> None:
        try:
            make_private(self.path)
            with self.path.open("ab+") as file:
                if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n":
                    # A writer that died, or had no room, wrote an incomplete line: the next document needs its own.
                    file.write(b"\n")
                file.write(parked.text().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ParkingError(f"File {self.path} cannot be written: {error.strerror or error}.") from error

    def __str__(self) -> str:
        return str(self.path)


class S3Parking:
    """A prefix in an S3 bucket, one object a record and handler."""

    def __init__(self, clients: Clients, bucket: str, prefix: str) -> None:
        self._clients = clients
        self.bucket = bucket
        self.prefix = prefix

    @cached_property
    def client(self) -> Any:
        """Made for the first parked record: few functions park any, and a client takes long to make."""
        return _made(self._clients, "s3")

    def park(self, parked: Parked) -> None:
        with_prefix, body = self.prefix + parked.name, parked.text().encode()
        arguments = {"Bucket": self.bucket, "Key": with_prefix, "Body": body, "ContentType": "application/json"}
        _called(f"{self}", "s3:PutObject", self.client.put_object, **arguments)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


class SqsParking:
    """A standard SQS queue, one message a record and handler."""

    def __init__(self, clients: Clients, url: str) -> None:
        self._clients = clients
        self.url = url

    @cached_property
    def client(self) -> Any:
        """Made for the first record that is parked, as for S3."""
        return _made(self._clients, "sqs")

    def park(self, parked: Parked) -> None:
        body = parked.text()
        for character in NOT_IN_MESSAGES:
            body = body.replace(character, f"\\u{ord(character):04x}")
        if (size := len(body.encode())) > MESSAGE_BYTES_MAX:
            raise ParkingError(
                f"The record has {size} bytes, and a message of {self} {MESSAGE_BYTES_MAX} at most. A bucket takes "
                "records of any size: STREAMFOLD_PARK=s3://BUCKET/PREFIX."
            )
        _called(f"{self}", "sqs:SendMessage", self.client.send_message, QueueUrl=self.url, MessageBody=body)

    def __str__(self) -> str:
        return self.url


def open_parking(place: str, clients: Clients | None = None) -> Parking:
    """Opens the parking place that a setting names. Raises ``SettingsError`` for text that names none."""
    make = clients or make_client
    if place.startswith("s3://"):
        bucket, prefix = s3_location(place)
        return S3Parking(make, bucket, prefix)
    if place.startswith(("https://", "http://")):
        if place.endswith(FIFO):
            raise SettingsError(
                f"The parking place {place!r} is a FIFO queue, which would hold records behind one another: expected "
                "the URL of a standard queue."
            )
        return SqsParking(clients or (lambda _: queue_client(place)), place)
    if place.startswith("arn:") or "://" in place:
        raise SettingsError(
            f"The parking place {place!r} is not known: expected s3://BUCKET/PREFIX, the URL of an SQS queue "
            "(https://sqs.REGION.amazonaws.com/ACCOUNT/NAME), or the path of a JSON Lines file."
        )
    path = read_path("The parking place", place)
    if not path.parent.is_dir() or path.is_dir():
        raise SettingsError(
            f"The parking place {place!r} cannot be a file: expected the path of a JSON Lines file in an existing "
            "folder."
        )
    return FileParking(place)


def s3_location(location: str) -> tuple[str, str]:
    """Bucket and prefix of ``s3://bucket/prefix``; the prefix ends with a slash or is empty."""
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    if not bucket:
        raise SettingsError(f"{location!r} names no bucket: expected s3://BUCKET/PREFIX.")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def queue_client(url: str) -> Any:
    """A client for the queue with this URL. Raises as ``make_client``.

    boto3 ignores the host of a queue's URL and sends to its region's endpoint. A queue on a loopback host belongs to an
    emulator, so its client sends to the host of the URL.
    """
    address = urlsplit(url)
    return make_client("sqs", f"{address.scheme}://{address.netloc}" if is_loopback(url) else None)


def make_client(
    service: str, endpoint_url: str | None = None, region: str | None = None, role: str | None = None
) -> Any:
    """A client with bounded time-outs and retries. Raises ``SettingsError`` where boto3 cannot make one.

    endpoint_url: where requests go; None: to ``AWS_ENDPOINT_URL`` of the environment, or to AWS. region: None for that
    of the environment. role: the ARN of one that calls are made by.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, NoRegionError

    from streamfold.engines.dynamodb_client import SET_REGION, retry_closed, session

    config = Config(
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
        retries={"mode": "standard", "total_max_attempts": TRIES_MAX},
        max_pool_connections=LANES_MAX,  # of calls side by side
    )
    try:
        return retry_closed(session(role).client(service, region, endpoint_url=endpoint_url, config=config))
    except NoRegionError:
        raise SettingsError(f"The client of {service} cannot be made without an AWS region: {SET_REGION}") from None
    except (BotoCoreError, ValueError) as error:
        raise SettingsError(f"The client of {service} cannot be made: {error}") from None


def _made(clients: Clients, service: str) -> Any:
    """A client. Raises ``ParkingError``, as a ``SettingsError`` would stop the run; the record is retried."""
    try:
        return clients(service)
    except SettingsError as error:
        raise ParkingError(str(error)) from None


def _called(destination: str, action: str, call: Callable[..., Any], **arguments: Any) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        call(**arguments)
    except ClientError as error:
        why = f"{destination} did not take the record ({refusal(error)}). The function needs {action} there."
        raise ParkingError(why) from error
    except BotoCoreError as error:
        raise ParkingError(f"{destination} could not be reached ({redacted(error)}).") from error
