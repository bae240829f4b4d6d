"""Runs each workload on a table of its own making and records the table's stream to ``events/``.

    make events        or, where DynamoDB Local runs already:   DYNAMODB_ENDPOINT=... python -m tests.workload.record

Names of subjects record these alone: ``python -m tests.workload.record bank``.

A record has the time that the workload's clock showed at its write. A second run gives the same records but for
sequence numbers, stream labels and event ids.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import boto3
from botocore.exceptions import ClientError

from streamfold.replay.stream import StreamReader, record_stream
from tests.workload import (
    Clock,
    bank,
    catalogue,
    deadlines,
    deliveries,
    documents,
    gaming,
    iot,
    labels,
    maintenance,
    music,
    search,
    sessions,
    shop,
    social,
    tenants,
    tickets,
)

EVENTS = Path(__file__).parents[2] / "events"
TABLE = "shop"
SUBJECTS = {
    "shop": (shop.run, 20260301),
    "music": (music.run, 20260302),
    "sessions": (sessions.run, 20260303),
    "bank": (bank.run, 20260304),
    "social": (social.run, 20260305),
    "documents": (documents.run, 20260306),
    "iot": (iot.run, 20260307),
    "gaming": (gaming.run, 20260308),
    "search": (search.run, 20260310),
    "catalogue": (catalogue.run, 20260313),
    "tickets": (tickets.run, 20260312),
    "desk/deadlines": (deadlines.run, 20260314),
    "documents/labels": (labels.run, 20260317),
    "iot/maintenance": (maintenance.run, 20260316),
    "shop/deliveries": (deliveries.run, 20260315),
    "tenants/tasks": (tenants.run, 20260309),
    "tenants/activity": (tenants.run_activity, 20260311),
}
EXPIRY = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
"""Who deletes an expired item: DynamoDB Developer Guide, time-to-live-ttl-streams. DynamoDB Local does not say it."""
KINDS = ("INSERT", "MODIFY", "REMOVE")
COUNTS_BEGIN, COUNTS_END = "<!-- counts: written by make events -->", "<!-- end of counts -->"


def client_arguments(endpoint):
    """The arguments of every client. The access key is a database of its own within DynamoDB Local."""
    return {
        "endpoint_url": endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "workload",
        "aws_secret_access_key": "unused",
    }


def fresh_table(resource):
    """Makes the table anew, with nothing in it or in its stream."""
    try:
        resource.Table(TABLE).delete()
    except ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
    return resource.create_table(
        TableName=TABLE,
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")],
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )


def with_expiry(line, expired):
    """The line with the service's identity in it, where it tells the removal of an expired item."""
    record = json.loads(line)
    keys = record["dynamodb"]["Keys"]
    if record["eventName"] != "REMOVE" or (keys["PK"]["S"], keys["SK"]["S"]) not in expired:
        return line
    return json.dumps({**record, "userIdentity": EXPIRY}, separators=(",", ":"))


class RecordTimes:
    """The time of the workload's clock at each record of a stream, in its order. It reads the stream after each write.

    DynamoDB Local shows a record at once, and keeps one shard for four hours.
    """

    def __init__(self, streams, stream_arn):
        self.times = []
        self._streams = streams
        (shard,) = streams.describe_stream(StreamArn=stream_arn)["StreamDescription"]["Shards"]
        self._position = streams.get_shard_iterator(
            StreamArn=stream_arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]

    def note(self, **_):
        """Gives the records of the last write the present time. botocore calls it after each call of the table."""
        page = self._streams.get_records(ShardIterator=self._position)
        self._position = page["NextShardIterator"]
        self.times += [Clock.latest.now.timestamp()] * len(page["Records"])


def with_times(lines, times):
    """The lines with these times in place of the recording's."""
    for line, time in zip(lines, times, strict=True):
        record = json.loads(line)
        record["dynamodb"]["ApproximateCreationDateTime"] = time
        yield json.dumps(record, separators=(",", ":"))


def record(subject, endpoint, folder):
    """Runs a subject and returns the lines of its stream."""
    run, seed = SUBJECTS[subject]
    arguments = client_arguments(endpoint)
    clients = boto3.client("dynamodb", **arguments), boto3.client("dynamodbstreams", **arguments)
    table = fresh_table(boto3.resource("dynamodb", **arguments))
    record_times = RecordTimes(clients[1], table.latest_stream_arn)
    table.meta.client.meta.events.register("after-call.dynamodb", record_times.note)
    expired = run(table, seed) or set()
    out = folder / f"{subject}.jsonl"
    out.parent.mkdir(exist_ok=True)
    record_stream(StreamReader(*clients, TABLE), out)
    lines = with_times(out.read_text("utf-8").splitlines(), record_times.times)
    return [with_expiry(line, expired) for line in lines]


def count_row(subject, lines):
    """A row of the table in ``events/README.md``."""
    records = [json.loads(line) for line in lines]
    kinds = Counter(record["eventName"] for record in records)
    expired = sum("userIdentity" in record for record in records)
    columns = [f"`{subject}.jsonl`", SUBJECTS[subject][1], *(kinds[kind] for kind in KINDS), expired, len(records)]
    return "| " + " | ".join(str(column) for column in columns) + " |"


def write_counts(rows):
    """Replaces the counts in ``events/README.md``."""
    readme = EVENTS / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(COUNTS_BEGIN)
    _, _, after = rest.partition(COUNTS_END)
    head = ["| file | seed | INSERT | MODIFY | REMOVE | of these expired | records |", "|---|---|---|---|---|---|---|"]
    table = "\n".join([COUNTS_BEGIN, *head, *rows, COUNTS_END])
    readme.write_text(before + table + after, "utf-8")


def main(subjects):
    """Records these subjects, or every one. Returns the exit code."""
    endpoint = os.environ.get("DYNAMODB_ENDPOINT")
    if not endpoint:
        print("DYNAMODB_ENDPOINT is not set: run `make events`, which starts DynamoDB Local.", file=sys.stderr)
        return 2
    if unknown := sorted(set(subjects) - SUBJECTS.keys()):
        print(f"{', '.join(unknown)}: expected some of {', '.join(SUBJECTS)}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        recorded = {subject: record(subject, endpoint, Path(folder)) for subject in subjects or SUBJECTS}
    for subject, lines in recorded.items():
        (EVENTS / subject).parent.mkdir(exist_ok=True)
        (EVENTS / f"{subject}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    rows = [count_row(subject, (EVENTS / f"{subject}.jsonl").read_text("utf-8").splitlines()) for subject in SUBJECTS]
    write_counts(rows)
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
