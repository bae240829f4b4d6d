"""The stream twin: the form of its records, sequence numbers, shards, paging, trimming."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from streamfold import Change, Table
from streamfold.keys.table import MAIN
from streamfold.records.change import Origin
from streamfold.testing import Clock, RecordsTrimmed, TableTwin, TwinError
from streamfold.testing.stream import RETENTION_SECONDS, label_after, sequence_of
from tests.helpers.commands import ROOT, environment

DAY = 24 * 60 * 60


def row(number, **attributes):
    return {"PK": f"ORDER#{number}", "SK": "METADATA", **attributes}


def filled(count=100, **twin):
    table = TableTwin(**twin)
    for number in range(count):
        table.put(row(number))
    return table


def numbers_of(records):
    return [record["dynamodb"]["SequenceNumber"] for record in records]


def orders(shard):
    return {record["dynamodb"]["Keys"]["PK"]["S"] for record in shard.records}


def everything(stream):
    return [record for shard in stream.shards for record in shard.records]


# --- the form of a record ---------------------------------------------------------------------------------------------


def test_record_has_the_fields_that_lambda_delivers():
    record = TableTwin(real_name="orders-prod", clock=Clock(1_789_649_599.9)).put(row(1, total=5))
    change = record.pop("dynamodb")
    assert len(bytes.fromhex(record.pop("eventID"))) == 16
    assert record == {
        "eventName": "INSERT",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/orders-prod/stream/2026-09-17T12:53:19.900",
    }
    assert change.pop("SequenceNumber").isdigit()
    assert change == {
        "ApproximateCreationDateTime": 1_789_649_599.0,
        "Keys": {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}},
        "NewImage": {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}, "total": {"N": "5"}},
        "SizeBytes": 19 + 26,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }


def test_record_is_a_change_to_streamfold():
    table = TableTwin()
    table.put(row(1, total=5))
    change = Change(table.put(row(1, total=6)), Origin(MAIN, f"00/{table.stream.label}/"))
    assert (change.old["total"], change.new["total"], change.changed) == (5, 6, {"total"})
    assert change.at.timestamp() == table.clock.now


def test_time_is_rounded_down_to_the_second_and_a_float():
    table = TableTwin(clock=Clock(1_772_355_600.999))
    time = table.put(row(1))["dynamodb"]["ApproximateCreationDateTime"]
    assert (time, type(time)) == (1_772_355_600.0, float)


@pytest.mark.parametrize(
    ("view", "inserted", "modified", "removed"),
    [
        ("NEW_AND_OLD_IMAGES", {"NewImage"}, {"NewImage", "OldImage"}, {"OldImage"}),
        ("NEW_IMAGE", {"NewImage"}, {"NewImage"}, set()),
        ("OLD_IMAGE", set(), {"OldImage"}, {"OldImage"}),
        ("KEYS_ONLY", set(), set(), set()),
    ],
)
def test_image_that_is_not_there_or_not_in_the_view_is_an_absent_key(view, inserted, modified, removed):
    table = TableTwin(view=view)
    records = [table.put(row(1)), table.put(row(1, total=1)), table.delete(("ORDER#1", "METADATA"))]
    assert [record["eventName"] for record in records] == ["INSERT", "MODIFY", "REMOVE"]
    images = [{"NewImage", "OldImage"} & record["dynamodb"].keys() for record in records]
    assert images == [inserted, modified, removed]
    assert {record["dynamodb"]["StreamViewType"] for record in records} == {view}


def test_size_is_that_of_keys_and_both_images():
    table = TableTwin(Table("t", partition="k", sort=None))
    put = table.put({"k": "a", "text": "xyz"})
    changed = table.put({"k": "a", "text": "x"})
    assert put["dynamodb"]["SizeBytes"] == 2 + (2 + 7)
    assert changed["dynamodb"]["SizeBytes"] == 2 + (2 + 7) + (2 + 5)


def test_binary_is_base64_text_at_any_depth_and_a_record_is_json():
    table = TableTwin(Table("t", partition="k", sort=None), key_types={"k": "B"})
    table.put({"k": b"\x00\xff", "deep": {"list": [{"sets": {b"b", b"a"}}]}, "one": b"\x01"})
    record = table.delete((b"\x00\xff",))
    assert json.loads(json.dumps(record)) == record
    assert record["dynamodb"]["Keys"] == {"k": {"B": "AP8="}}
    assert record["dynamodb"]["OldImage"] == {
        "k": {"B": "AP8="},
        "deep": {"M": {"list": {"L": [{"M": {"sets": {"BS": ["YQ==", "Yg=="]}}}]}}},
        "one": {"B": "AQ=="},
    }


def test_records_share_nothing_that_can_be_changed():
    table = TableTwin()
    attributes = {"list": [1], "map": {"a": {"b": 1}}, "texts": {"a"}, "numbers": {1, 2}}
    spoilt = table.put(row(1, **attributes))["dynamodb"]
    for image in (spoilt["Keys"], spoilt["NewImage"]):
        image["PK"]["S"] = "spoilt"
    spoilt["NewImage"]["list"]["L"].append("spoilt")
    spoilt["NewImage"]["map"]["M"]["a"]["M"].clear()
    spoilt["NewImage"]["texts"]["SS"].append("spoilt")
    spoilt["NewImage"]["numbers"]["NS"].clear()
    updated = table.update(("ORDER#1", "METADATA"), put={"more": 1})
    deleted = table.delete(("ORDER#1", "METADATA"))
    updated["dynamodb"]["NewImage"]["list"]["L"].clear()
    assert updated["dynamodb"]["OldImage"] == {
        "PK": {"S": "ORDER#1"},
        "SK": {"S": "METADATA"},
        "list": {"L": [{"N": "1"}]},
        "map": {"M": {"a": {"M": {"b": {"N": "1"}}}}},
        "texts": {"SS": ["a"]},
        "numbers": {"NS": ["1", "2"]},
    }
    assert deleted["dynamodb"]["OldImage"]["list"] == {"L": [{"N": "1"}]}


def test_event_ids_are_unique_and_a_function_of_seed_and_position():
    ids = [record["eventID"] for record in everything(filled(500).stream)]
    assert len(set(ids)) == 500
    assert ids == [record["eventID"] for record in everything(filled(500).stream)]
    assert not set(ids) & {record["eventID"] for record in everything(filled(500, seed=1).stream)}


# --- sequence numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_sequence_numbers_grow_in_value_and_length_with_gaps(seed):
    numbers = numbers_of(everything(filled(120, seed=seed).stream))
    assert all(number.isdigit() and 21 <= len(number) <= 40 for number in numbers)
    assert numbers == sorted(numbers, key=int) != sorted(numbers)
    assert {len(number) for number in numbers[:12]} == {21, 22}
    assert len(numbers[-1]) == 23
    assert len({int(right) - int(left) for left, right in pairwise(numbers)}) > 2


def test_sequence_numbers_restart_low_with_a_new_stream():
    table = filled(50)
    table.disable_stream()
    table.enable_stream()
    first = table.put(row(1, total=1))
    assert sequence_of(first) < sequence_of(table.streams[0].shards[0].records[10])


# --- shards -----------------------------------------------------------------------------------------------------------


def test_items_of_one_partition_key_stay_in_one_shard():
    table = TableTwin(shards=4)
    for number in range(60):
        for sort in "abc":
            table.put({"PK": f"ORDER#{number}", "SK": sort})
    shards = [orders(shard) for shard in table.stream.shards]
    assert all(shards)
    assert sum(map(len, shards)) == 60


def test_items_are_spread_alike_in_every_process():
    program = (
        "from streamfold.testing import TableTwin\n"
        "table = TableTwin(shards=4)\n"
        "for number in range(40): table.put({'PK': f'ORDER#{number}', 'SK': 'METADATA'})\n"
        "print([len(shard.records) for shard in table.stream.shards])"
    )
    printed = set()
    for hash_seed in "12":
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment(PYTHONHASHSEED=hash_seed),
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout.strip())
    assert printed == {str([len(shard.records) for shard in filled(40, shards=4).stream.shards])}


def test_shard_that_is_split_is_closed_and_its_children_take_its_items_on():
    table = filled(100, shards=2)
    (first, second), stream = table.stream.shards, table.stream
    before = orders(first)
    left, right = stream.split(first.id)
    for number in range(100):
        table.put(row(number, total=1))
    assert first.closed
    assert len(first.records) == len(before)
    assert (left.parent, right.parent, second.closed, left.closed) == (first.id, first.id, False, False)
    assert orders(left) | orders(right) == before
    assert orders(left)
    assert orders(right)
    assert not orders(left) & orders(right)


def test_parent_may_have_one_child():
    table = filled(10)
    (child,) = table.stream.split(table.stream.shards[0].id, children=1)
    table.put(row(3, total=1))
    assert orders(child) == {"ORDER#3"}


def test_sequence_numbers_grow_from_parent_to_child_and_stay_in_the_shards_range():
    table = filled(20)
    (parent,) = table.stream.shards
    child, other = table.stream.split(parent.id)
    for number in range(20):
        table.put(row(number, total=1))
    table.disable_stream()
    for shard in (parent, child, other):
        numbers = [int(shard.starting), *map(sequence_of, shard.records), int(shard.ending)]
        assert numbers == sorted(set(numbers))
    assert int(parent.ending) < int(child.starting)


def test_shard_ids_look_like_those_of_aws_and_are_unique():
    stream = filled(0, shards=3).stream
    stream.split(stream.split(stream.shards[0].id)[0].id)
    ids = [shard.id for shard in stream.shards]
    assert len(set(ids)) == 7
    assert all(name.startswith("shardId-0000000") and 28 <= len(name) <= 65 for name in ids)


def test_closed_shard_cannot_be_split_and_has_two_children_at_most():
    stream = filled(1).stream
    with pytest.raises(TwinError, match="cannot have 3 children: expected 1 or 2"):
        stream.split(stream.shards[0].id, children=3)
    stream.split(stream.shards[0].id)
    with pytest.raises(TwinError, match="is closed: expected an open one, such as 'shardId-"):
        stream.split(stream.shards[0].id)
    with pytest.raises(TwinError, match="has no shard 'shard-9': expected one of shardId-"):
        stream.split("shard-9")


def test_stream_has_at_least_one_shard():
    with pytest.raises(TwinError, match="cannot have 0 shards"):
        TableTwin(shards=0)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_of_a_shard_come_in_order_and_once():
    stream = filled(25).stream
    (shard,) = stream.shards
    pages, after = [], None
    while page := stream.records(shard.id, after, limit=10):
        pages.append(page)
        after = page[-1]["dynamodb"]["SequenceNumber"]
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [record for page in pages for record in page] == shard.records


def test_page_is_not_the_shards_own_list():
    stream = filled(3).stream
    stream.records(stream.shards[0].id).clear()
    assert len(stream.shards[0].records) == 3


@pytest.mark.parametrize("limit", [0, 1001])
def test_page_has_a_thousand_records_at_most(limit):
    stream = filled(1).stream
    with pytest.raises(TwinError, match=f"cannot have {limit} records: expected 1 to 1000"):
        stream.records(stream.shards[0].id, limit=limit)


# --- trimming ---------------------------------------------------------------------------------------------------------


def aged(hours):
    """A table with ten records, then ten more ``hours`` later."""
    table = filled(10)
    table.clock.advance(hours * 3600)
    for number in range(10):
        table.put(row(number, total=1))
    return table


def test_records_older_than_a_day_are_trimmed():
    table = aged(25)
    (shard,) = table.stream.shards
    kept = shard.records[10:]
    assert table.stream.trim() == 10
    assert shard.records == kept == table.stream.records(shard.id)


def test_records_of_the_last_day_stay():
    assert aged(24).stream.trim() == 0
    assert aged(24.1).stream.trim() == 10


def test_trimming_goes_as_far_as_is_asked():
    table = aged(25)
    start = table.clock.now - 25 * 3600
    assert table.stream.trim(before=start - 1) == 0
    assert table.stream.trim(before=start) == 0
    assert table.stream.trim(before=start + 1) == 10


def test_what_is_younger_than_a_day_cannot_be_trimmed():
    table = aged(1)
    with pytest.raises(TwinError, match="a stream keeps them for 24 hours"):
        table.stream.trim(before=table.clock.now - RETENTION_SECONDS + 1)


def test_reading_behind_a_record_whose_successors_are_gone_is_refused():
    table = aged(25)
    (shard,) = table.stream.shards
    third, last_gone = shard.records[2], shard.records[9]
    table.stream.trim()
    assert table.stream.records(shard.id, last_gone["dynamodb"]["SequenceNumber"]) == shard.records
    with pytest.raises(RecordsTrimmed, match="are gone, so reading cannot go on behind"):
        table.stream.records(shard.id, third["dynamodb"]["SequenceNumber"])


def test_closed_shard_of_which_nothing_is_left_goes_too():
    table = filled(10)
    children = table.stream.split(table.stream.shards[0].id)
    table.clock.advance(DAY + 1)
    table.stream.trim()
    assert table.stream.shards == children


def test_disabled_stream_stays_readable_for_a_day():
    table = filled(3)
    table.disable_stream()
    (shard,) = table.stream.shards
    table.clock.advance(DAY)
    assert len(table.stream.records(shard.id)) == 3
    table.clock.advance(2)
    table.stream.trim()
    with pytest.raises(TwinError, match="expected one of none; all trimmed"):
        table.stream.records(shard.id)


# --- labels -----------------------------------------------------------------------------------------------------------


def test_label_is_the_time_and_never_used_twice():
    assert label_after("", 1_772_355_600.0) == "2026-03-01T09:00:00.000"
    assert label_after("2026-03-01T09:00:00.000", 1_772_355_600.0) == "2026-03-01T09:00:00.001"
    assert label_after("2026-03-01T09:00:00.001", 1_772_355_600.0) == "2026-03-01T09:00:00.002"
    assert label_after("2026-03-01T09:00:00.999", 1_772_355_601.5) == "2026-03-01T09:00:01.500"


def test_clock_goes_forward_only():
    clock = Clock(10)
    clock.advance(2.5)
    assert (clock.now, repr(clock)) == (12.5, "Clock(12.5)")
    with pytest.raises(TwinError, match="cannot be advanced by -1: expected seconds"):
        clock.advance(-1)
