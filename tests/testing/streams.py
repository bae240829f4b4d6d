"""Streams that hold what a test says, for tests of the mapping."""

from dataclasses import dataclass, field

from tests.helpers.source import Source

START = 1_772_355_600.0


@dataclass
class Now:
    """A clock that stands still until it is moved."""

    now: float = START

    def advance(self, seconds):
        self.now += seconds


@dataclass
class Part:
    """A shard."""

    id: str = "shard-1"
    parent: str | None = None
    closed: bool = False
    records: list = field(default_factory=list)


@dataclass
class Stream:
    """A stream of the shards given."""

    shards: list
    clock: Now = field(default_factory=Now)
    arn: str = "arn:aws:dynamodb:us-east-1:123456789012:table/shop/stream/2026-03-01T09:00:00.000"


def records(*names, source=None, created=START):
    """A record per name, of the item with that name; a name that comes again changes its item."""
    source = source or Source()
    made = [source.put(f"ITEM#{name}", number=number) for number, name in enumerate(names)]
    for record in made:
        record["dynamodb"]["ApproximateCreationDateTime"] = created
    return made


def stream_of(*names):
    """A stream of one open shard."""
    return Stream([Part(records=records(*names))])


def names(batch):
    """The names of a batch's records, as one text."""
    return "".join(record["dynamodb"]["Keys"]["PK"]["S"].removeprefix("ITEM#") for record in batch)


def sequence(record):
    return record["dynamodb"]["SequenceNumber"]


class Function:
    """A function that fails on the records with these names, by raising or, with ``report``, by a partial response.

    ``events`` holds what it was given, ``requests`` the ids of the requests.
    """

    def __init__(self, poison="", *, report=False):
        self.poison, self.report = poison, report
        self.events, self.requests = [], []

    def __call__(self, event, context):
        self.events.append(names(event["Records"]))
        self.requests.append(context.aws_request_id)
        bad = [sequence(record) for record in event["Records"] if names([record]) in self.poison]
        if bad and not self.report:
            raise LookupError("poison")
        return {"batchItemFailures": [{"itemIdentifier": number} for number in bad]}
