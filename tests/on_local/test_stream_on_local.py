"""The stream reader and the recording against DynamoDB Local, with shards that roll over."""

import json
import urllib.request
from itertools import pairwise
from uuid import uuid4

import pytest

from streamfold.replay.stream import FINISHED, StreamError, StreamReader, record_stream
from tests.helpers.tables import make_table

KEYS = {"PK": "S"}
STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}


@pytest.fixture
def table(dynamodb):
    name = f"stream-{uuid4().hex[:12]}"
    make_table(dynamodb, name, KEYS, StreamSpecification=STREAM)
    yield name
    dynamodb.delete_table(TableName=name)


@pytest.fixture
def reader(dynamodb, dynamodbstreams, table):
    return StreamReader(dynamodb, dynamodbstreams, table, pause_seconds=0.01)


@pytest.fixture
def roll_over(dynamodb_control, access_key):
    """Closes every open shard and opens its child."""

    def post():
        request = urllib.request.Request(f"{dynamodb_control}/rollover?key={access_key}", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.read() == b"ok 1\n"

    return post


def put(dynamodb, table, *numbers, **attributes):
    for number in numbers:
        dynamodb.put_item(TableName=table, Item={"PK": {"S": f"ITEM#{number}"}, **attributes})


def items(records):
    return [int(record["dynamodb"]["Keys"]["PK"]["S"].removeprefix("ITEM#")) for record in records]


def recorded(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_come_in_the_form_in_which_lambda_delivers_them(dynamodb, table, reader):
    image = {
        "deep": {"M": {"list": {"L": [{"B": b"\x00\xff"}, {"NULL": True}, {"M": {}}]}}},
        "binaries": {"BS": [b"\x01"]},
        "number": {"N": "-0.12345678901234567890123456789012345678"},
    }
    put(dynamodb, table, 1, **image)

    (page,) = reader.pages()
    (record,) = page.records

    assert record["dynamodb"]["NewImage"] == {
        "PK": {"S": "ITEM#1"},
        "deep": {"M": {"list": {"L": [{"B": "AP8="}, {"NULL": True}, {"M": {}}]}}},
        "binaries": {"BS": ["AQ=="]},
        "number": {"N": "-0.12345678901234567890123456789012345678"},
    }
    assert record["eventName"] == "INSERT"
    assert record["eventSource"] == "aws:dynamodb"
    assert record["eventSourceARN"] == reader.stream_arn()
    assert isinstance(record["dynamodb"]["ApproximateCreationDateTime"], float)
    assert json.loads(json.dumps(record)) == record


def test_shards_that_roll_over_are_read_in_order_and_once(dynamodb, table, reader, roll_over):
    for generation in range(3):
        put(dynamodb, table, *range(generation * 10, generation * 10 + 10))
        roll_over()

    pages = list(reader.pages())

    assert [number for page in pages for number in items(page.records)] == list(range(30))
    assert list(pages[-1].cursor["shards"].values())[:3] == [FINISHED] * 3
    assert reader.trimmed_shards == []


def test_shard_that_rolls_over_while_it_is_followed_is_left_for_its_child(dynamodb, table, reader, roll_over):
    put(dynamodb, table, 0)
    read = []
    for page in reader.pages(follow=True):
        read += items(page.records)
        if not page.records:
            continue
        if read[-1] == 4:
            reader.stop()
        roll_over()
        put(dynamodb, table, read[-1] + 1)
    assert read == [0, 1, 2, 3, 4]


def test_reading_resumes_behind_every_page_across_shards(dynamodb, table, reader, roll_over):
    for number in range(4):
        put(dynamodb, table, number)
        roll_over()
    whole = list(reader.pages())

    for page, following in pairwise(whole):
        assert next(reader.pages(page.cursor)).records == following.records


def test_more_than_a_page_of_records_is_recorded_whole(dynamodb, table, reader, tmp_path):
    out = tmp_path / "items.jsonl"
    for start in range(0, 1100, 25):
        requests = [{"PutRequest": {"Item": {"PK": {"S": f"ITEM#{number}"}}}} for number in range(start, start + 25)]
        dynamodb.batch_write_item(RequestItems={table: requests})

    assert record_stream(reader, out).events == {"INSERT": 1100}
    assert items(recorded(out)) == list(range(1100))


def test_recording_that_is_killed_and_resumed_holds_each_record_once(dynamodb, table, reader, tmp_path, roll_over):
    out = tmp_path / "items.jsonl"
    for number in range(5):
        put(dynamodb, table, number)
        roll_over()

    def kill(records):
        raise KeyboardInterrupt

    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            record_stream(reader, out, on_page=kill)
        with out.open("a") as file:
            file.write('{"eventID":')
    record_stream(reader, out)

    assert items(recorded(out)) == [0, 1, 2, 3, 4]


def test_stream_switched_off_and_on_refuses_the_old_cursor(dynamodb, table, reader):
    put(dynamodb, table, 1)
    *_, last = reader.pages()
    dynamodb.update_table(TableName=table, StreamSpecification={"StreamEnabled": False})
    assert [number for page in reader.pages(follow=True) for number in items(page.records)] == [1]
    dynamodb.update_table(
        TableName=table, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    )
    with pytest.raises(StreamError, match="switched off and on"):
        reader.pages(last.cursor)


def test_table_without_a_stream_and_missing_table_are_told_apart(dynamodb, dynamodbstreams):
    name = f"stream-{uuid4().hex[:12]}"
    with pytest.raises(StreamError, match="does not exist in region us-east-1"):
        StreamReader(dynamodb, dynamodbstreams, name).pages()
    make_table(dynamodb, name, KEYS)
    with pytest.raises(StreamError, match="has no stream"):
        StreamReader(dynamodb, dynamodbstreams, name).pages()
    dynamodb.delete_table(TableName=name)
