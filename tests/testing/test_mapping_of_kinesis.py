"""A mapping over Kinesis: batches, partial responses, lanes, age, filters, and what a destination gets."""

import json

import pytest

from streamfold.failures.failed_records import Delivered, StreamRange, left_of
from streamfold.testing import BucketTwin, KinesisTwin, MappingSettings, MappingTwin, QueueTwin, TableTwin
from streamfold.testing.polling import created_at, filtered_pattern, number_text, order_key, sequence_number
from streamfold.testing.stream import KINESIS_SHARD


class Notices:
    """A table whose changes go to Kinesis, and a mapping whose function fails on some of the items."""

    def __init__(self, *items, poison="", destination=None, **settings):
        self.table = TableTwin()
        self.stream = KinesisTwin(clock=self.table.clock)
        self.poison, self.batches = poison, []
        for number, item in enumerate(items):
            self.put(item, number)
        options = MappingSettings(report_item_failures=True, bisect=True, **settings)
        self.mapping = MappingTwin(self.stream, self.function, options, destination=destination)

    def put(self, item, number=0):
        self.stream.append(self.table.put({"PK": item, "SK": "x", "n": number}))

    def function(self, event, context):
        names = [name_of(record) for record in event["Records"]]
        self.batches.append("".join(names))
        failed = [record for record, name in zip(event["Records"], names, strict=True) if name in self.poison]
        return {"batchItemFailures": [{"itemIdentifier": record["kinesis"]["sequenceNumber"]} for record in failed]}


def name_of(record):
    return filtered_pattern(record)["data"]["dynamodb"]["Keys"]["PK"]["S"]


def test_a_mapping_reads_the_one_shard_in_order():
    notices = Notices(*"abcde", batch_size=2)
    made = notices.mapping.run()
    assert notices.batches == ["ab", "cd", "e"]
    assert {invocation.shard_id for invocation in made} == {KINESIS_SHARD}
    assert notices.mapping.caught_up


def test_a_failed_record_of_kinesis_is_given_up_alone():
    bucket = BucketTwin()
    notices = Notices(*"abcd", poison="b", destination=bucket, retries_max=1)
    notices.mapping.run()
    assert notices.batches == ["abcd", "bcd", "b", "b", "cd"]
    (document,) = bucket.documents()
    left = left_of(document)
    assert isinstance(left, Delivered)
    assert [name_of(record) for record in left.records] == ["b"]


def test_a_queue_gets_the_range_of_the_records_in_kinesis():
    queue = QueueTwin()
    notices = Notices(*"ab", poison="ab", destination=queue, retries_max=0)
    first, _ = (record["kinesis"]["sequenceNumber"] for record in notices.stream.shards[0].records)
    notices.mapping.run()
    document = queue.documents()[0]
    assert document["KinesisBatchInfo"]["approximateArrivalOfFirstRecord"].endswith(".000Z")
    assert left_of(document) == StreamRange(notices.stream.arn, KINESIS_SHARD, first, first)


def test_notices_of_an_item_keep_their_order_in_whatever_lane():
    notices = Notices(*"abcabcabc", parallelization_factor=3, batch_size=2)
    made = notices.mapping.run()
    assert len({invocation.lane for invocation in made}) > 1
    told = [record for invocation in made for record in invocation.records]
    for name in "abc":
        numbers = [sequence_number(record) for record in told if name_of(record) == name]
        assert (len(numbers), numbers) == (3, sorted(numbers))


def test_records_beyond_the_age_limit_are_given_up_unseen():
    notices = Notices("a", age_seconds_max=60)
    notices.table.clock.advance(61)
    notices.put("b")
    notices.mapping.run()
    assert notices.batches == ["b"]


@pytest.mark.parametrize(("kind", "expected"), [("INSERT", ["a", "b"]), ("MODIFY", ["a"]), ("REMOVE", [])])
def test_filters_see_the_data_decoded(kind, expected):
    notices = Notices("a", "b", filters=(json.dumps({"data": {"eventName": [kind]}}),), batch_size=1)
    notices.put("a", 7)
    notices.mapping.run()
    assert notices.batches == expected


def test_a_record_of_either_stream_tells_its_number_age_and_lane():
    table = TableTwin()
    record = table.put({"PK": "a", "SK": "x"})
    notice = KinesisTwin().append(record)
    assert number_text(record) == record["dynamodb"]["SequenceNumber"]
    assert number_text(notice) == notice["kinesis"]["sequenceNumber"]
    assert sequence_number(notice) == int(number_text(notice))
    assert created_at(record) == created_at(notice) == table.clock.now
    assert filtered_pattern(record) is record
    assert json.loads(order_key(record)) == record["dynamodb"]["Keys"]
