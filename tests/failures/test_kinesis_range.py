"""A part of a shard of Kinesis read again: what is in it, what is gone of it, and where the reading ends."""
# ruff: noqa: N803 - the arguments of AWS's API have capitals

from base64 import b64decode
from datetime import UTC, datetime

import boto3
import pytest
from botocore.exceptions import ClientError

from streamfold.failures.failed_records import StreamRange
from streamfold.failures.stream_range import fetch_kinesis as fetch
from streamfold.testing import KinesisTwin
from tests.helpers.source import Source


class Changes:
    """A stream of Kinesis in moto, with ten notices of changes in its one shard."""

    def __init__(self):
        self.client = boto3.client("kinesis")
        self.twin, self.source = KinesisTwin("changes"), Source()
        self.make()
        self.reported = [self.twin.append(self.source.put(f"ORDER#{n}", note="é")) for n in range(10)]
        self.numbers = [self.put(record) for record in self.reported]

    def make(self):
        self.client.create_stream(StreamName="changes", ShardCount=1)
        self.arn = self.client.describe_stream(StreamName="changes")["StreamDescription"]["StreamARN"]

    def put(self, record):
        """The number that the stream gives to a record."""
        data = b64decode(record["kinesis"]["data"])
        return self.client.put_record(StreamName="changes", Data=data, PartitionKey="a")["SequenceNumber"]

    def part(self, first, last, shard="shardId-000000000000"):
        return StreamRange(self.arn, shard, self.numbers[first], self.numbers[last])


@pytest.fixture
def changes(aws):
    return Changes()


@pytest.mark.parametrize(("first", "last"), [(0, 9), (3, 6), (9, 9), (0, 0)])
def test_a_range_gives_its_records_as_they_were_delivered(changes, first, last):
    records, gone = fetch(changes.client, changes.part(first, last))
    assert gone is None
    assert [record["kinesis"]["sequenceNumber"] for record in records] == changes.numbers[first : last + 1]
    wanted = [record["kinesis"]["data"] for record in changes.reported[first : last + 1]]
    assert [record["kinesis"]["data"] for record in records] == wanted


def test_a_record_has_the_form_in_which_lambda_delivers_it(changes):
    ((record,), _) = fetch(changes.client, changes.part(2, 2))
    delivered = changes.reported[2]
    assert record.keys() == delivered.keys() - {"invokeIdentityArn"}
    assert record["kinesis"].keys() == delivered["kinesis"].keys()
    assert record["eventID"] == f"shardId-000000000000:{changes.numbers[2]}"
    assert (record["eventSourceARN"], record["awsRegion"]) == (changes.arn, "us-east-1")


def test_what_is_left_of_a_range_is_given_and_the_rest_told(changes):
    part = changes.part(0, 2)._replace(first=str(int(changes.numbers[0]) - 1))
    records, gone = fetch(changes.client, part)
    assert len(records) == 3
    assert gone == (
        f"Records {part.first} to {part.last} of shard {part.shard_id} are gone, in whole or in part (the oldest "
        f"remaining one has {changes.numbers[0]}): a stream of Kinesis keeps them for 24 hours, unless its retention "
        "period was raised."
    )


def test_a_range_of_which_nothing_is_left_is_told(changes):
    part = changes.part(0, 0)._replace(first="100", last="200")
    assert fetch(changes.client, part).records == []
    assert "(none remains): a stream of Kinesis keeps them for 24 hours" in fetch(changes.client, part).gone


def test_a_shard_that_is_gone_is_told(changes):
    found = fetch(changes.client, changes.part(0, 1, shard="shardId-000000000009"))
    assert found.records == []
    assert f"shard shardId-000000000009 is no longer in stream {changes.arn}, or never was" in found.gone


def test_a_stream_that_is_gone_is_told(changes):
    changes.client.delete_stream(StreamName="changes")
    found = fetch(changes.client, changes.part(0, 1))
    assert found.records == []
    assert f"shard shardId-000000000000 is no longer in stream {changes.arn}, or never was" in found.gone


class Pages:
    """A shard whose pages come as they are given: records by number, or how far behind the tip an empty page is."""

    def __init__(self, *pages, refusal=None):
        self.pages, self.refusal, self.calls = pages, refusal, 0

    def get_shard_iterator(self, StreamARN, ShardId, ShardIteratorType, StartingSequenceNumber):
        if self.refusal:
            raise ClientError({"Error": {"Code": self.refusal, "Message": "no"}}, "GetShardIterator")
        return {"ShardIterator": "0"}

    def get_records(self, StreamARN, ShardIterator):
        self.calls += 1
        place = int(ShardIterator)
        page = self.pages[place % len(self.pages)]
        behind = page if isinstance(page, int) else 0
        records = [api_form(number) for number in ([] if isinstance(page, int) else page)]
        return {"Records": records, "MillisBehindLatest": behind, "NextShardIterator": str(place + 1)}


def api_form(number):
    return {
        "SequenceNumber": str(number),
        "Data": b"{}",
        "PartitionKey": "a",
        "ApproximateArrivalTimestamp": datetime(2026, 3, 1, tzinfo=UTC),
    }


PART = StreamRange("arn:aws:kinesis:us-east-1:123456789012:stream/changes", "shardId-000000000000", "5", "7")


def numbers(found):
    return [int(record["kinesis"]["sequenceNumber"]) for record in found.records]


def test_an_empty_page_behind_the_tip_is_not_the_end():
    pages = Pages([4, 5], 60_000, 60_000, [6, 7, 8], [9])
    found = fetch(pages, PART)
    assert (numbers(found), found.gone, pages.calls) == ([5, 6, 7], None, 4)


def test_an_empty_page_at_the_tip_is_the_end():
    pages = Pages([5, 6], 0)
    found = fetch(pages, PART)
    assert (numbers(found), pages.calls) == ([5, 6], 2)
    assert "(the oldest remaining one has 5)" in found.gone


def test_a_reading_that_comes_to_no_end_is_ended(monkeypatch):
    monkeypatch.setattr("streamfold.failures.stream_range.PAGES_MAX", 20)
    pages = Pages(60_000)
    assert "none remains" in fetch(pages, PART).gone
    assert pages.calls == 20


def test_numbers_of_a_stream_that_was_made_anew_are_told():
    found = fetch(Pages(refusal="InvalidArgumentException"), PART)
    assert found.records == []
    assert "shard shardId-000000000000 is no longer in stream" in found.gone


def test_any_other_refusal_is_raised():
    with pytest.raises(ClientError, match="AccessDeniedException"):
        fetch(Pages(refusal="AccessDeniedException"), PART)
