"""Reads the documents of failures: parked records, and the documents that Lambda writes to S3, SQS and SNS.

Lambda writes the whole event to a bucket, as JSON text inside JSON. To a queue or topic it writes only the shard and
the range of sequence numbers of the records (Lambda Developer Guide, services-dynamodb-errors and
kinesis-on-failure-destination).
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamfold.errors import RecordError, shown
from streamfold.parking import Parked
from streamfold.records.envelope import RawRecord, records_of
from streamfold.records.version import LOCALSTACK_DIGITS, SEQUENCE_DIGITS_MAX

EXPECTED = (
    'a parked record {"parked": 1, ...}, or what Lambda leaves of a failed batch, {"requestContext": ..., '
    '"DDBStreamBatchInfo": {...}}, or "KinesisBatchInfo"'
)
RANGE = ("streamArn", "shardId", "startSequenceNumber", "endSequenceNumber")
PAYLOAD = "payload"
NOTIFICATION = "Notification"
"""The type of the envelope that SNS puts around a message (SNS Developer Guide, sns-message-and-json-formats)."""
MESSAGES = (("Records", "body", "'body'"), ("Messages", "Body", "'Body'"), ("Records", "Sns", "'Message' in 'Sns'"))
"""Lists of messages as Lambda and the AWS CLI give them: the list's name, a name that tells a message, and where its
content is."""
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


class DocumentForm(NamedTuple):
    """The patterns that the parts of a stream range have to match."""

    arn: re.Pattern[str]
    number: re.Pattern[str]
    shard_id: re.Pattern[str]


FORMS = {
    # DynamoDB Streams API, StreamRecord and Shard; LocalStack's numbers are longer
    "DDBStreamBatchInfo": DocumentForm(
        re.compile(r"arn:[^:]*:dynamodb:.+"),
        re.compile(rf"[0-9]{{21,{SEQUENCE_DIGITS_MAX}}}|[0-9]{{{LOCALSTACK_DIGITS}}}"),
        re.compile(r".{28,65}"),
    ),
    # Kinesis API, StreamARN, SequenceNumber and ShardId
    "KinesisBatchInfo": DocumentForm(
        re.compile(r"arn:aws[^:]*:kinesis:.*:[0-9]{12}:stream/\S+"),
        re.compile(r"0|[1-9][0-9]{0,128}"),
        re.compile(r"[a-zA-Z0-9_.-]{1,128}"),
    ),
}
"""The patterns of a range, by the name under which a document holds it."""


class Delivered(NamedTuple):
    """The records of a failed batch, as Lambda delivered them."""

    records: list[RawRecord]


LeftDocument = Parked | Delivered | StreamRange
"""The contents of a document."""


def documents_of(value: Any) -> list[FailureDocument]:
    """The documents of a JSON value, one or a list. Raises ``RecordError`` for anything else."""
    documents = value if isinstance(value, list) else [value]
    for document in documents:
        if not isinstance(document, Mapping):
            raise RecordError(f"A document is {type(document).__name__}, {shown(document)}: expected {EXPECTED}.")
    return documents


def left_of(document: FailureDocument) -> LeftDocument:
    """The contents of a document. Raises ``RecordError`` if it is no document of a failure."""
    if document.get("Type") == NOTIFICATION and "Message" in document:
        (document,) = documents_of([_parsed("Message", document["Message"])])
    if "parked" in document:
        return Parked.of(document)
    if PAYLOAD in document:
        return Delivered(records_of(_parsed(PAYLOAD, document[PAYLOAD])))
    for name, form in FORMS.items():
        if isinstance(batch := document.get(name), Mapping):
            return _range(name, form, batch)
    raise RecordError(_unknown(document))


def _parsed(name: str, text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise RecordError(f"A document's {name!r} is {shown(text)}: expected JSON as a text.") from None


def _range(name: str, form: DocumentForm, batch: FailureDocument) -> StreamRange:
    told = {part: batch.get(part) for part in RANGE}
    found = StreamRange(*map(str, told.values()))
    numbers = all(form.number.fullmatch(number) for number in (found.first, found.last))
    if not (numbers and form.shard_id.fullmatch(found.shard_id) and form.arn.fullmatch(found.stream_arn)):
        raise RecordError(
            f"A document's {name} has {shown(told)}: expected the ARN of a stream, the id of a shard and two sequence "
            "numbers. Of a window that ended without records nothing is to be redriven."
        )
    return found


def _unknown(document: FailureDocument) -> str:
    for list_name, member, path in MESSAGES:
        messages = document.get(list_name)
        if isinstance(messages, list) and messages and isinstance(messages[0], Mapping) and member in messages[0]:
            return f"These are messages of a queue or topic: the {path} of each is what redrive takes."
    if "dynamodb" in document or "Records" in document:
        return "This is an event or a record, which no failure left: streamfold replay takes it."
    return f"This is no document that a failure leaves: expected {EXPECTED}; found the keys {sorted(document)[:8]}."
