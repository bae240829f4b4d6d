"""A part of a shard read again: what is in it, what is gone of it, and where the reading ends."""
# ruff: noqa: N803 - the arguments of AWS's API have capitals

from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from streamfold.failures.failed_records import StreamRange
from streamfold.failures.stream_range import fetch
from streamfold.replay.stream import EMPTY_PAGES_MAX
from streamfold.testing import Clock, RecordsTrimmed, TableTwin, TwinError

CREATED = "ApproximateCreationDateTime"
DAY_SECONDS = 24 * 60 * 60


class Streams:
    """The API of a stream twin. ``page`` records come at once, before ``gaps`` empty pages."""

    def __init__(self, stream, page=2, gaps=0):
        self.stream, self.page, self.gaps = stream, page, gaps
        self.calls = 0

    def get_shard_iterator(self, StreamArn, ShardId, ShardIteratorType, SequenceNumber=None):
        assert StreamArn == self.stream.arn
        try:
            self.stream.shard(ShardId)
        except TwinError:
            raise refusal("ResourceNotFoundException") from None
        # At a number is behind the one before it.
        after = str(int(SequenceNumber) - 1) if ShardIteratorType == "AT_SEQUENCE_NUMBER" else None
        return {"ShardIterator": (ShardId, after, self.gaps)}

    def get_records(self, ShardIterator):
        self.calls += 1
        shard_id, after, gaps = ShardIterator
        try:
            records = self.stream.records(shard_id, after, self.page) if not gaps else []
        except RecordsTrimmed:
            raise refusal("TrimmedDataAccessException") from None
        if records:
            after = records[-1]["dynamodb"]["SequenceNumber"]
        elif not gaps and self.stream.shard(shard_id).closed:
            return {"Records": []}
        return {"Records": list(map(api_form, records)), "NextShardIterator": (shard_id, after, max(gaps - 1, 0))}


def api_form(record):
    """A record as the API gives it: its time is a moment."""
    body = {**record["dynamodb"], CREATED: datetime.fromtimestamp(record["dynamodb"][CREATED], UTC)}
    return {name: value for name, value in record.items() if name != "eventSourceARN"} | {"dynamodb": body}


def refusal(code):
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetRecords")


@pytest.fixture
def table():
    table = TableTwin(clock=Clock())
    for number in range(10):
        table.put({"PK": f"ORDER#{number}", "SK": "METADATA"})
        table.clock.advance(60)
    return table


@pytest.fixture
def written(table):
    return table.stream.records(table.stream.shards[0].id)


def part_of(table, records):
    first, last = (records[place]["dynamodb"]["SequenceNumber"] for place in (0, -1))
    return StreamRange(table.stream.arn, table.stream.shards[0].id, first, last)


@pytest.mark.parametrize("page", [1, 2, 3, 100])
@pytest.mark.parametrize(("start", "end"), [(0, 10), (3, 7), (9, 10), (0, 1)])
def test_a_range_gives_its_records_as_they_were_delivered(table, written, page, start, end):
    assert fetch(Streams(table.stream, page), part_of(table, written[start:end])) == (written[start:end], None)


def test_reading_ends_behind_the_range(table, written):
    streams = Streams(table.stream)
    fetch(streams, part_of(table, written[:2]))
    assert streams.calls == 1


def test_an_empty_page_is_not_the_end(table, written):
    streams = Streams(table.stream, gaps=EMPTY_PAGES_MAX - 1)
    assert fetch(streams, part_of(table, written[2:4])) == (written[2:4], None)


def test_a_range_that_goes_on_giving_empty_pages_is_told_as_gone(table, written):
    streams = Streams(table.stream, gaps=10**6)
    fetched = fetch(streams, part_of(table, written[2:4]))
    assert streams.calls == EMPTY_PAGES_MAX
    assert fetched.records == []
    assert "are gone" in fetched.gone


def test_a_shard_that_is_closed_is_read_to_its_end(table, written):
    table.stream.split(table.stream.shards[0].id)
    assert fetch(Streams(table.stream), part_of(table, written[5:])) == (written[5:], None)


def test_what_is_left_of_a_range_is_given_and_the_rest_told(table, written):
    part = part_of(table, written[:6])
    table.clock.advance(DAY_SECONDS - 7 * 60)
    gone = table.stream.trim()
    assert 0 < gone < 6

    fetched = fetch(Streams(table.stream), part)

    assert fetched.records == written[gone:6]
    assert fetched.gone == (
        f"Records {part.first} to {part.last} of shard {part.shard_id} are gone, in whole or in part (the oldest "
        f"remaining one has {written[gone]['dynamodb']['SequenceNumber']}): a stream keeps them for 24 hours."
    )


def test_a_range_of_which_nothing_is_left_is_told(table, written):
    part = part_of(table, written[:2])
    table.clock.advance(DAY_SECONDS - 5 * 60)
    table.stream.trim()

    fetched = fetch(Streams(table.stream), part)

    assert fetched.records == []
    assert "are gone, in whole or in part (none remains): a stream keeps them for 24 hours." in fetched.gone


def test_a_shard_that_is_gone_is_told(table, written):
    part = part_of(table, written)._replace(shard_id="shardId-1")
    fetched = fetch(Streams(table.stream), part)
    assert fetched.records == []
    assert fetched.gone == (
        f"Records {part.first} to {part.last} of shard shardId-1 are gone, in whole or in part (shard shardId-1 is no "
        f"longer in stream {part.stream_arn}, or never was): a stream keeps them for 24 hours."
    )


def test_any_other_refusal_is_raised(table, written):
    streams = Streams(table.stream)
    streams.get_records = lambda **_: (_ for _ in ()).throw(refusal("LimitExceededException"))
    with pytest.raises(ClientError, match="LimitExceededException"):
        fetch(streams, part_of(table, written))
