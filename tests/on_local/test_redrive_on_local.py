"""Redrives on DynamoDB Local: records read from its streams by their numbers, and rows written to its tables."""

import json
import urllib.request

import pytest

from streamfold.failures.failed_records import StreamRange
from streamfold.failures.stream_range import fetch
from streamfold.ledger.state_keys import identity_key
from streamfold.replay.stream import StreamReader
from tests.helpers.commands import embedded_rows, shown
from tests.helpers.failures import parked_document, queue_message, s3_object
from tests.helpers.here import streamfold
from tests.helpers.template import create_table, load_template

TABLE = "shop"
APPLICATION = """
from streamfold import Add, App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()
router.audit(ITEM, name="audit")


@router.view(ITEM, into=Key("ORDER#{order_id}", "TOTAL"))
def order_total(item):
    yield Row(total=Sum(item["price"]), lines=Count())


@router.on(ITEM, into=Key("CHANGES", "TOTAL"))
def changes(change):
    yield Add(changes=1)


app = App("shop", routers=[router])
"""


class Shop:
    """An application in a folder of its own, and its tables in DynamoDB Local; records tell which is the main one."""

    def __init__(self, folder, endpoint, access_key, client, streams):
        self.folder, self.client, self.streams = folder, client, streams
        self.on = ("--engine", "dynamodb", "--endpoint-url", endpoint)
        self.variables = {
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": client.meta.region_name,
        }
        (folder / "handlers.py").write_text(APPLICATION)
        template = load_template()
        create_table(client, template, "Table", TABLE)
        create_table(client, template, "StateTable", "shop-state")

    def write_orders(self):
        """Six changes of three items; returns their records."""
        for price in (1, 2):
            for number in range(3):
                item = {"PK": {"S": f"ORDER#{number}"}, "SK": {"S": "ITEM#a"}, "price": {"N": str(price + number)}}
                self.client.put_item(TableName=TABLE, Item=item)
        return self.records()

    def records(self):
        return [record for page in StreamReader(self.client, self.streams, TABLE).pages() for record in page.records]

    def shard_id(self):
        arn = self.client.describe_table(TableName=TABLE)["Table"]["LatestStreamArn"]
        (shard,) = self.streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        return shard["ShardId"]

    def write(self, name, text):
        (self.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    def redrive(self, *arguments):
        return streamfold("redrive", *arguments, *self.on, "--json", folder=self.folder, **self.variables)

    def rows(self):
        return shown(
            streamfold("show", *self.on, "--table", f"main={TABLE}", "--json", folder=self.folder, **self.variables)
        )

    def replayed(self, records):
        """The rows that the records lead to, from a replay on the embedded engine."""
        self.write("records.jsonl", "\n".join(map(json.dumps, records)))
        return embedded_rows("records.jsonl", folder=self.folder, state=self.folder / "replay.db", run=streamfold)


@pytest.fixture
def shop(tmp_path, dynamodb_endpoint, access_key, dynamodb, dynamodbstreams):
    return Shop(tmp_path, dynamodb_endpoint, access_key, dynamodb, dynamodbstreams)


def counts(ran):
    return json.loads(ran.out.splitlines()[-1])["outcomes"]


def test_records_that_were_given_up_in_three_ways_are_made_good(shop):
    records = shop.write_orders()
    handlers = ("order_total", "changes", "audit")
    parked = "\n".join(json.dumps(parked_of(records[0], handler)) for handler in handlers)
    sources = [
        shop.write("parked.jsonl", parked),
        shop.write("object", s3_object(*records[1:4])),
        shop.write("message.json", queue_message(*records[4:], shard_id=shop.shard_id())),
    ]

    dry = shop.redrive(*sources)
    assert dry.code == 0, dry.err
    assert shop.rows() == set()

    ran = shop.redrive(*sources, "--apply")
    assert ran.code == 0, ran.err
    assert shop.rows() == shop.replayed(records)

    again = shop.redrive(*sources, "--apply")
    assert counts(again) == {"known": 12, "stale": 6}
    assert shop.rows() == shop.replayed(records)


def parked_of(record, handler):
    """A record of the table's own stream, parked for a handler."""
    label = record["eventSourceARN"].partition("/stream/")[2]
    sequence = record["dynamodb"]["SequenceNumber"]
    return parked_document(record, handler, version=f"00/{label}/{sequence:0>40}")


def test_records_that_are_trimmed_are_told_as_gone(shop, dynamodb_control, access_key):
    records = shop.write_orders()
    message = shop.write("message.json", queue_message(*records[1:3], shard_id=shop.shard_id()))
    request = urllib.request.Request(f"{dynamodb_control}/dilate?hours=25&key={access_key}", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"ok 1\n"
    ran = shop.redrive(message, "--apply")

    assert ran.code == 1, ran.err
    assert counts(ran) == {"gone": 1}
    assert shop.rows() == set()


def test_range_of_a_shard_is_read_from_its_first_number_to_its_last(shop):
    records = shop.write_orders()
    first, last = (records[place]["dynamodb"]["SequenceNumber"] for place in (2, 4))
    part = StreamRange(records[0]["eventSourceARN"], shop.shard_id(), first, last)

    assert fetch(shop.streams, part) == (records[2:5], None)
    assert fetch(shop.streams, part._replace(shard_id="shardId-00000001789649398921-b190244f")).records == []


def test_source_table_that_is_missing_stops_the_redrive_with_nothing_changed(shop):
    records = shop.write_orders()
    shop.client.delete_table(TableName=TABLE)

    ran = shop.redrive(shop.write("object", s3_object(*records)), "--apply")

    assert ran.code == 2
    assert "Error: A table is missing: shop does not exist" in ran.err
    keys = {item["pk"]["S"] for item in shop.client.scan(TableName="shop-state")["Items"]}
    assert {key for key in keys if "manifest" not in key} == {identity_key().pk}
