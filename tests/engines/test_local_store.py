"""What a local replay asks of its store beyond the contract of all engines: SQLite, a batch of it, and dictionaries."""

from contextlib import closing, contextmanager

import pytest

from streamfold import Table
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.writes.guarded import AddRow, Claim, DeleteRow, PutRow, StateKey

SHOP = Table("shop")
SILENT = Table("silent")
NUMBERED = Table("numbered", partition="id", sort=None)
ITEM = ("shop", "ORDER#1", "METADATA")
CLAIM = Claim(StateKey("claim", "1"))
RECORDS_MAX = 10


def groups_of(row):
    """Rows of the partition "both" are read by two groups, those of table "silent" by none."""
    if row[0] == "silent":
        return []
    return ["first", "second"] if row[1] == "both" else ["first"]


@contextmanager
def in_a_batch(tables, **options):
    with closing(EmbeddedEngine(tables, **options)) as engine, engine.batch():
        yield engine


def on_its_own(engine):
    return lambda tables, **options: closing(engine(tables, **options))


@pytest.fixture(
    params=[on_its_own(EmbeddedEngine), in_a_batch, on_its_own(MemoryEngine)], ids=["SQLite", "batch", "dictionaries"]
)
def make(request):
    return lambda **options: request.param([SHOP, SILENT, NUMBERED], **options)


@pytest.fixture
def engine(make):
    with make(wanted=groups_of) as opened:
        yield opened


def put(engine, partition, sort="A", table="shop", **attributes):
    assert engine.transact([PutRow((table, partition, sort), attributes)], 0) is None


def image(text):
    return {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}, "text": {"S": text}}


def records(engine):
    return [record.record for record in engine.pending(RECORDS_MAX)]


def sequences(engine):
    return [record.sequence for record in engine.pending(RECORDS_MAX)]


def advance(engine, *done):
    engine.advance(engine.pending(RECORDS_MAX)[-1].sequence, done)


def partitions(items):
    return [item["PK"]["S"] for item in items]


def test_it_is_known_for_a_store_with_an_own_stream_that_seeks_by_prefix(engine):
    assert engine.own_stream is engine
    assert engine.by_prefix is engine


def test_transaction_may_be_larger_than_dynamodb_s_where_it_is_said_so(make):
    claims = [Claim(StateKey("claim", str(number))) for number in range(101)]
    large = [PutRow(("shop", "LARGE", str(number)), {"text": "x" * 380_000}) for number in range(12)]
    with make() as usual, make(actions_max=101) as larger:
        assert usual.transact(claims, 0) is not None
        assert usual.transact(large, 0) is not None
        assert larger.transact(claims, 0) is None
        assert larger.transact(large, 0) is None


# Source items


def test_newest_image_of_a_source_item_is_kept(engine):
    for version in ("v1", "v3", "v2"):
        engine.put_sources([(ITEM, image(version), version)])
    assert engine.read_source(ITEM) == image("v3")


def test_source_item_that_was_removed_is_none_until_a_newer_image_comes(engine):
    engine.put_sources([(ITEM, image("old"), "v1"), (ITEM, None, "v3"), (ITEM, image("late"), "v2")])
    assert engine.read_source(ITEM) is None
    assert list(engine.items(SHOP)) == []
    engine.put_sources([(ITEM, image("new"), "v4")])
    assert engine.read_source(ITEM) == image("new")


def test_source_items_stand_among_the_rows_in_the_order_of_their_keys(engine):
    put(engine, "ORDER#0")
    put(engine, "ORDER#2")
    engine.put_sources([(ITEM, image("source"), "v1")])
    assert partitions(engine.items(SHOP)) == ["ORDER#0", "ORDER#1", "ORDER#2"]


def test_derived_row_is_not_overwritten_by_a_source_image(engine):
    put(engine, "ORDER#1", "METADATA", derived=True)
    engine.put_sources([(ITEM, image("source"), "v1")])
    assert engine.read_source(ITEM)["derived"] == {"BOOL": True}
    assert [sorted(item) for item in engine.items(SHOP)] == [["PK", "SK", "derived"]]


def test_source_image_makes_no_record(engine):
    engine.put_sources([(ITEM, image("source"), "v1")])
    assert records(engine) == []


# Items by prefix


def test_items_are_found_by_the_beginning_of_their_partition_key(engine):
    for partition in ("B#2", "B", "A#1", "B#1", "B\U0010ffff", "C"):
        put(engine, partition)
    put(engine, "B#1", table="silent")
    assert partitions(engine.items_from(SHOP, "B#")) == ["B#1", "B#2"]
    assert partitions(engine.items_from(SHOP, "")) == ["A#1", "B", "B#1", "B#2", "B\U0010ffff", "C"]
    assert partitions(engine.items_from(SHOP, "none")) == []


def test_items_with_number_keys_are_all_found_by_an_empty_prefix(engine):
    for number in (10, -3, 9):
        put(engine, number, None, "numbered")
    assert [item["id"]["N"] for item in engine.items_from(NUMBERED, "")] == ["-3", "9", "10"]


def test_items_are_found_by_the_beginnings_of_both_parts_of_their_key(engine):
    for partition, sort in (("B#1", "A"), ("B#1", "T#1"), ("B#2", "T"), ("C", "T#1")):
        put(engine, partition, sort)
    found = [(item["PK"]["S"], item["SK"]["S"]) for item in engine.items_from(SHOP, "B#", "T")]
    assert found == [("B#1", "T#1"), ("B#2", "T")]


def test_derived_rows_are_found_without_the_source_items_between_them(engine):
    engine.put_sources([(ITEM, image("source"), "v1")])
    put(engine, "ORDER#0")
    put(engine, "ORDER#1", "METADATB")
    put(engine, "ORDER#2")
    assert partitions(engine.items_from(SHOP, "ORDER#", derived=True)) == ["ORDER#0", "ORDER#1", "ORDER#2"]
    assert partitions(engine.items_from(SHOP, "ORDER#", "METADAT", derived=True)) == ["ORDER#1"]


# The own stream


def test_record_of_a_row_has_its_key_and_both_images(engine):
    put(engine, "A", size=1)
    put(engine, "A", size=2)
    assert engine.transact([DeleteRow(("shop", "A", "A"))], 0) is None
    assert [record["eventName"] for record in records(engine)] == ["INSERT", "MODIFY", "REMOVE"]
    inserted, modified, removed = (record["dynamodb"] for record in records(engine))
    key = {"PK": {"S": "A"}, "SK": {"S": "A"}}
    assert inserted["Keys"] == modified["Keys"] == removed["Keys"] == key
    assert modified["OldImage"] == inserted["NewImage"] == {**key, "size": {"N": "1"}}
    assert removed["OldImage"] == modified["NewImage"] == {**key, "size": {"N": "2"}}
    assert "OldImage" not in inserted
    assert "NewImage" not in removed


def test_write_that_changes_nothing_makes_no_record(engine):
    put(engine, "A", sizes={1, 2})
    advance(engine, *sequences(engine))
    put(engine, "A", sizes={2, 1})
    engine.transact([DeleteRow(("shop", "none", "A"))], 0)
    engine.remove_empty([("shop", "A", "A")])
    assert records(engine) == []


def test_row_that_nobody_wants_and_a_refused_transaction_make_no_record(engine):
    put(engine, "A", table="silent")
    engine.transact([CLAIM], 0)
    assert engine.transact([PutRow(("shop", "A", "A"), {}), CLAIM], 0) is not None
    assert records(engine) == []


def test_row_that_is_removed_because_it_is_empty_makes_a_record(engine):
    engine.transact([AddRow(("shop", "A", "A"), {"units": 1}, 1)], 0)
    engine.transact([AddRow(("shop", "A", "A"), {"units": -1}, 0, contributors_min=1)], 0)
    engine.transact([AddRow(("shop", "A", "A"), {}, -1, contributors_min=1)], 0)
    advance(engine, *sequences(engine))
    assert engine.remove_empty([("shop", "A", "A")]) == [("shop", "A", "A")]
    assert [record["eventName"] for record in records(engine)] == ["REMOVE"]


def test_records_are_read_in_portions_from_the_place_that_was_noted(engine):
    for partition in "ABC":
        put(engine, partition)
    first, second = engine.pending(2)
    engine.advance(second.sequence, [first.sequence, second.sequence])
    (third,) = engine.pending(2)
    assert third.record["dynamodb"]["Keys"]["PK"] == {"S": "C"}
    assert first.sequence < second.sequence < third.sequence


def test_records_that_failed_come_again_after_a_retry_and_only_those(engine):
    for partition in "ABC":
        put(engine, partition)
    first, second, third = sequences(engine)
    advance(engine, first, third)
    assert records(engine) == []
    put(engine, "D")
    fourth = sequences(engine)
    advance(engine, *fourth)
    engine.retry()
    assert sequences(engine) == [second]
    advance(engine, second)
    engine.retry()
    assert records(engine) == []


def test_record_that_another_reader_was_done_with_does_not_come_again(engine):
    for partition in "AB":
        put(engine, partition)
    first, second = sequences(engine)
    engine.advance(second, [first])
    engine.advance(second, [first, second])  # a reader that began at the same place, and had no failure
    engine.retry()
    assert records(engine) == []


def test_place_that_a_slow_reader_notes_late_brings_no_record_back_that_is_done(engine):
    for partition in "ABC":
        put(engine, partition)
    first, second, third = sequences(engine)
    engine.advance(third, [first, second, third])
    engine.advance(first, [first])
    assert records(engine) == []


def places(engine, group=None):
    return [record.record["dynamodb"]["Keys"]["PK"]["S"] for record in engine.pending(RECORDS_MAX, group)]


def test_a_group_reads_only_its_own_records_and_all_groups_read_each_record_once(engine):
    for partition in ("A", "both", "B"):
        put(engine, partition)
    assert places(engine, "first") == places(engine) == ["A", "both", "B"]
    assert places(engine, "second") == ["both"]
    assert places(engine, "third") == []
    assert [len(engine.pending(limit)) for limit in (1, 2)] == [1, 2]


def test_a_record_that_one_group_was_done_with_waits_for_the_other(engine):
    put(engine, "both")
    (sequence,) = sequences(engine)
    engine.advance(sequence, [sequence], "first")
    engine.retry()
    assert (places(engine, "first"), places(engine, "second")) == ([], ["both"])
    engine.advance(sequence, [sequence], "second")
    engine.retry()
    assert places(engine) == []


def test_a_record_that_all_groups_were_done_with_waits_for_none(engine):
    put(engine, "both")
    advance(engine, *sequences(engine))
    for group in ("first", "second", None):
        engine.retry(group)
        assert places(engine, group) == []


def test_a_record_that_failed_in_one_group_comes_again_there_alone(engine):
    put(engine, "both")
    (sequence,) = sequences(engine)
    engine.advance(sequence, [], "first")
    engine.advance(sequence, [], "second")
    assert places(engine) == []
    engine.retry("first")
    assert (places(engine, "first"), places(engine, "second")) == (["both"], [])
    engine.retry("second")
    assert places(engine, "second") == ["both"]


def test_numbers_grow_where_no_record_is_left(engine):
    put(engine, "A")
    (first,) = sequences(engine)
    advance(engine, first)
    put(engine, "both")
    assert engine.pending(1)[0].sequence > first
