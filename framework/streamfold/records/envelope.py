"""Events of Lambda, a pipe or a file, unwrapped to raw stream records, and the table and stream of each record."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.errors import RecordError, manual, shown
from streamfold.keys.table import MAIN, Table, check_real_names
from streamfold.records.change import UNLABELLED, Change, Origin
from streamfold.records.kinesis import LABEL, KinesisChange, sequence_of, unwrapped
from streamfold.records.kinesis import SOURCE as KINESIS_SOURCE
from streamfold.settings import Settings, environment_name

EXPECTED = (
    'a Lambda event {"Records": [...]}, a list of records of a DynamoDB or Kinesis stream, as pipes send it, '
    'or one record with "eventName" and "dynamodb", or with "kinesis"'
)
REDRIVE = "and no event: streamfold redrive FILE takes it."
EXPORTED = "and no event: streamfold backfill --export PLACE/manifest-files.json takes the whole export."
OTHERS = (
    (("parked",), f"a parked record, {REDRIVE}"),
    (("DDBStreamBatchInfo",), f"what Lambda leaves of a failed batch, {REDRIVE}"),
    (("KinesisBatchInfo",), f"what Lambda leaves of a failed batch, {REDRIVE}"),
    (("requestContext", "payload"), f"what Lambda leaves of a failed batch, {REDRIVE}"),
    (
        ("requestContext", "requestPayload"),
        "the document of an asynchronous invocation: its 'requestPayload' is the event.",
    ),
    (
        ("TopicArn", "Message"),
        "a notification of SNS. If its 'Message' is a failed batch, streamfold redrive FILE takes it.",
    ),
    (("EventSource", "Sns"), "a notification of SNS: its 'Message' is the text that was sent."),
    (("detail-type", "detail"), "an event of EventBridge: its 'detail' is the object that was sent."),
    (("Item",), f"an item of a table's export to S3, {EXPORTED}"),
    (("Keys", "Metadata"), f"an item of a table's incremental export to S3, {EXPORTED}"),
    (("Keys", "NewImage"), f"an item of a table's incremental export to S3, {EXPORTED}"),
    (("Keys", "OldImage"), f"an item of a table's incremental export to S3, {EXPORTED}"),
    (("dataFileS3Key",), f"the list of files of a table's export to S3, {EXPORTED}"),
    (("exportArn",), f"the summary of a table's export to S3, {EXPORTED}"),
    (("manifestFilesS3Key",), f"the summary of a table's export to S3, {EXPORTED}"),
    (
        ("Items",),
        "the output of a scan or query, items and no changes: streamfold backfill reads the items of a table.",
    ),
    (("Data", "SequenceNumber"), "a record of Kinesis as GetRecords gives it: expected one as Lambda gives it."),
)
"""Other objects of AWS: the names that identify them, and where they belong."""
SOURCE = "aws:dynamodb"
STREAM, KINESIS = "stream", "kinesis"
"""The source kinds of a table: its DynamoDB stream, or Kinesis Data Streams for DynamoDB."""

RawRecord = Mapping[str, Any]
CheckRecord = Callable[[Table], object]
"""Raises ``RecordError`` if a record cannot be of a table."""


class Seen(NamedTuple):
    """A table as its records show it: its source kind, its real name, and the id of the table that has this name now.

    None where the name or id is unknown: for a record without an ARN, and without permission to describe tables.
    """

    source: str
    name: str | None = None
    id: str | None = None


def is_kinesis(record: RawRecord) -> bool:
    """Whether a raw record is of Kinesis, from Lambda or from a pipe."""
    return "kinesis" in record or record.get("eventSource") == KINESIS_SOURCE


def records_of(event: Any) -> list[RawRecord]:
    """The raw records of an event. Raises ``RecordError`` for anything else, with what was expected."""
    if type(event) is dict and "dynamodb" in event:  # as nearly always; asking an abstract class takes longer
        return [event]
    if isinstance(event, Mapping) and ("dynamodb" in event or is_kinesis(event)):
        return [event]
    records = event.get("Records") if isinstance(event, Mapping) else event
    if not isinstance(records, list):
        if isinstance(event, Mapping) and (known := _recognised(event)):
            raise RecordError(known)
        keys = f"an object with the keys {shown(sorted(map(str, event))[:8])}" if isinstance(event, Mapping) else None
        found = keys or type(event).__name__
        raise RecordError(f"This is no event that streamfold knows: expected {EXPECTED}; found {found}.")
    for record in records:
        if type(record) is not dict and not isinstance(record, Mapping):  # an abstract class takes longer to ask
            raise RecordError(f"A record is {type(record).__name__}, {shown(record)}: expected {EXPECTED}.")
        if record.get("eventSource", SOURCE) not in (SOURCE, KINESIS_SOURCE):
            source = record["eventSource"]
            body = " The 'body' of each message is the text that was sent." if source == "aws:sqs" else ""
            raise RecordError(
                f"A record comes from {shown(source)}: expected a DynamoDB stream ({SOURCE}) or Kinesis "
                f"({KINESIS_SOURCE}).{body}"
            )
        if "dynamodb" not in record and not is_kinesis(record) and (known := _recognised(record)):
            raise RecordError(known)
    return records


def _recognised(value: Mapping[str, Any]) -> str | None:
    found = next((message for names, message in OTHERS if all(name in value for name in names)), None)
    return found and f"This is {found} Expected {EXPECTED}."


def number_of(record: RawRecord) -> str | None:
    """The sequence number by which a record is reported, from a stream or Kinesis; None where there is none."""
    body = record.get("dynamodb")
    found = sequence_of(record) if is_kinesis(record) else isinstance(body, Mapping) and body.get("SequenceNumber")
    return found if isinstance(found, str) and found else None


def described(source: str) -> str:
    """A source kind in words, for messages."""
    return "Kinesis" if source == KINESIS else "its DynamoDB stream"


class Origins:
    """Finds the table and the stream of a record, from its ARN. A record of Kinesis names its table itself.

    An application whose keys name no table adopts the first table whose records fit, and refuses records of a second.

    ``check_adopted`` is called before, with the table's real name and the ARN of the stream, and raises ``RecordError``
    if the table must not be adopted.

    ``warn`` is called once about records without an ARN. ``others`` are tables that hold no sources: their records are
    accepted, because recordings may have some. ``identify`` gives the id of a table, from its real name and the ARN of
    its stream. It is called once for each stream, so again when a table has a new stream. ``sources`` has an entry for
    every table that was seen. A second kind of source is refused, because versions of the two do not compare.
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        settings: Settings,
        warn: Callable[[str], None] = lambda _: None,
        others: Mapping[str, Table] = MappingProxyType({}),
        identify: Callable[[Table, str, Any], str | None] = lambda *_: None,
        check_adopted: Callable[[str, Any], None] = lambda *_: None,
    ) -> None:
        self.tables = tables
        self.others: dict[str, Table] = {
            name: table for name, table in others.items() if name not in {*tables, MAIN.name}
        }
        self.settings = settings
        named = {**self.others, **tables}
        if len(named) > 1:
            check_real_names(
                {name: (table, settings.real_name(name) or name) for name, table in named.items()},
                None,
                settings.role_of,
            )
        self.adopted: str | None = settings.real_name(MAIN.name)
        self.sources: dict[str, Seen] = {}
        self._warn = warn
        self._identify = identify
        self._check_adopted = check_adopted
        self._known: dict[Any, Origin] = {}

    def change(self, record: RawRecord) -> Change:
        """The change of a raw record. Raises ``RecordError``."""
        arn = record.get("eventSourceARN")
        try:
            origin = self._known.get(arn)
        except TypeError:  # an object or a list, which is no ARN
            origin = None
        if origin is None:
            if is_kinesis(record):
                return self._kinesis_change(record)
            origin = self._known[arn] = self._origin(arn, lambda table: Change(record, Origin(table, "")))
        return Change(record, origin)

    def table_of(self, arn: str) -> Table:
        """The table of a stream's ARN. Raises ``RecordError`` for one that the application does not know."""
        return self._origin(arn).table

    def real_names(self) -> dict[str, str]:
        """The real names of the source tables as far as they are set or seen."""
        return {name: self._real_name(name) for name in self.tables if name != MAIN.name or self.adopted}

    def _kinesis_change(self, record: RawRecord) -> Change:
        data = unwrapped(record)
        location = (KINESIS, data["tableName"])
        origin = self._known.get(location)
        if origin is None:
            arn = record.get("eventSourceARN")
            table = self._table(
                data["tableName"], KINESIS, arn, lambda table: KinesisChange(record, data, Origin(table, ""))
            )
            origin = self._known[location] = Origin(table, f"{self.settings.epoch:02d}/{LABEL}/")
        return KinesisChange(record, data, origin)

    def _table(self, real: str, source: str, arn: Any, check: CheckRecord) -> Table:
        """The table of a real name. Raises ``RecordError`` for one that is unknown, or known from another source."""
        table = {**self.others, **self.tables}[self._logical(real, arn, check)]
        if table.name in self.tables:
            self._see(table, Seen(source, real, self._identify(table, real, arn) if source == STREAM else None))
        return table

    def _see(self, table: Table, seen: Seen) -> None:
        known = self.sources.get(table.name, seen)
        if known.source != seen.source:
            raise RecordError(
                f"A record of table {table.name!r} comes from {described(seen.source)}, and others came from "
                f"{described(known.source)}: versions of the two do not compare, and each change would count twice. "
                f"Read the table through one of them; to change from one to the other, see {manual('sources')}."
            )
        self.sources[table.name] = Seen(seen.source, seen.name or known.name, seen.id or known.id)

    def _origin(self, arn: Any, check: CheckRecord = lambda _: None) -> Origin:
        if arn is None:
            return self._unlabelled()
        head, _, label = (arn if isinstance(arn, str) else "").partition("/stream/")
        real = head.partition(":table/")[2]
        if not real or not label:
            raise RecordError(
                f"A record has eventSourceARN={shown(arn)}: expected "
                "arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/LABEL."
            )
        return Origin(self._table(real, STREAM, arn, check), f"{self.settings.epoch:02d}/{label}/")

    def _unlabelled(self) -> Origin:
        if len(self.tables) > 1:
            raise RecordError(
                "A record has no eventSourceARN, and the application reads several tables "
                f"({', '.join(self.tables)}): its table is unknown."
            )
        self._warn(
            f"Records without a stream ARN are given the stream label {UNLABELLED}: their versions sort before the "
            "versions of every real stream."
        )
        table = next(iter(self.tables.values()))
        self._see(table, Seen(STREAM))
        return Origin(table, f"{self.settings.epoch:02d}/{UNLABELLED}/")

    def _logical(self, real: str, arn: Any, check: CheckRecord) -> str:
        for name in (*self.tables, *self.others):
            if name != MAIN.name and self._real_name(name) == real:
                return name
        if MAIN.name in self.tables and self.adopted in (None, real):
            if self.adopted is None:  # a record that has other keys is of another table
                check(self.tables[MAIN.name])
                self._check_adopted(real, arn)
            self.adopted = real
            return MAIN.name
        raise RecordError(self._unknown(real))

    def _real_name(self, name: str) -> str:
        return self.settings.real_name(name) or (self.adopted or name if name == MAIN.name else name)

    def _unknown(self, real: str) -> str:
        known = ", ".join(f"{name!r} (really {self._real_name(name)!r})" for name in self.tables)
        first = next(iter(self.tables))
        return (
            f"A record is of table {real!r}, but the application knows {known}. Is that the table? Then set --table "
            f"{first}={real}, or STREAMFOLD_TABLE_{environment_name(first)}={real}. Is it a second table? Then "
            "declare it, Table(...), and give it to its Keys."
        )
