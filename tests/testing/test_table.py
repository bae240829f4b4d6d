"""The table twin: what it takes and refuses, and which writes leave a record."""

import subprocess
import sys
from decimal import Decimal

import pytest

from streamfold import Key, Table
from streamfold.testing import (
    CheckItem,
    Clock,
    ConditionFailed,
    DeleteItem,
    PutItem,
    TableTwin,
    TransactionCancelled,
    TwinError,
    UpdateItem,
    WriteRefused,
)
from tests.helpers.commands import ROOT, environment

ORDER = Key("ORDER#{order_id}", "METADATA")
ONE = ("ORDER#1", "METADATA")
YEAR = 365 * 24 * 60 * 60


def row(number=1, **attributes):
    return {"PK": f"ORDER#{number}", "SK": "METADATA", **attributes}


def events(table):
    return [record["eventName"] for shard in table.stream.shards for record in shard.records]


def images(record):
    return [record["dynamodb"].get(name) for name in ("OldImage", "NewImage")]


def nested(levels):
    """A list in a list in a list."""
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.fixture
def table():
    return TableTwin(Table("main", ttl="expires"))


# --- what leaves a record ---------------------------------------------------------------------------------------------


def test_first_write_inserts_later_ones_modify_a_deletion_removes(table):
    table.put(row(total=1))
    table.put(row(total=2))
    table.update(ONE, put={"total": 3})
    table.delete(ONE)
    table.update(ONE)
    assert events(table) == ["INSERT", "MODIFY", "MODIFY", "REMOVE", "INSERT"]


def test_write_gives_its_record(table):
    assert table.put(row()) is table.stream.shards[0].records[0]


SAME = [
    (1, Decimal("1.0")),
    (Decimal("0.10"), Decimal("0.1")),
    (Decimal("-0"), 0),
    (Decimal("1E+3"), 1000),
    ({1, 2}, {Decimal("2.0"), Decimal(1)}),
    ({"a", "b", "c"}, {"c", "b", "a"}),
    ([{"deep": [Decimal("1.50")]}], [{"deep": [Decimal("1.5")]}]),
    (b"a", bytearray(b"a")),
]


@pytest.mark.parametrize(("before", "after"), SAME)
def test_write_that_changes_nothing_leaves_no_record(table, before, after):
    table.put(row(value=before))
    assert table.put(row(value=after)) is None
    assert table.update(ONE, put={"value": after}) is None
    assert table.transact(PutItem(row(value=after))) == []
    assert events(table) == ["INSERT"]


@pytest.mark.parametrize(
    ("before", "after"), [(1, True), (1, "1"), (["a"], {"a"}), ("a", b"a"), (0, False), ([1, 2], [2, 1]), ("", None)]
)
def test_values_of_other_types_or_orders_are_a_change(table, before, after):
    table.put(row(value=before))
    assert table.put(row(value=after))["eventName"] == "MODIFY"


def test_deleting_what_is_not_there_leaves_no_record(table):
    assert table.delete(ONE) is None
    assert table.update(ONE, remove=["total"])["eventName"] == "INSERT"
    assert table.update(ONE, remove=["total"]) is None
    assert table.update(ONE, add={"total": 0})["eventName"] == "MODIFY"
    assert table.update(ONE, add={"total": 0}) is None


def test_failed_condition_leaves_no_record_and_no_change(table):
    table.put(row(total=1))
    with pytest.raises(ConditionFailed, match=r"Item ORDER#1 / METADATA exists, .* requires that it does not exist"):
        table.put(row(total=2), exists=False)
    with pytest.raises(ConditionFailed, match="ORDER#2 / METADATA does not exist"):
        table.update(("ORDER#2", "METADATA"), put={"total": 2}, exists=True)
    with pytest.raises(ConditionFailed, match="does not exist"):
        table.delete(("ORDER#2", "METADATA"), exists=True)
    assert (table.items(), events(table)) == ([row(total=1)], ["INSERT"])


def test_condition_that_holds_lets_the_write_through(table):
    table.put(row(total=1), exists=False)
    table.update(ONE, put={"total": 2}, exists=True)
    table.delete(ONE, exists=True)
    assert events(table) == ["INSERT", "MODIFY", "REMOVE"]


# --- items and keys ---------------------------------------------------------------------------------------------------


def test_items_are_read_back_as_dynamodb_keeps_them(table):
    table.put(row(total=Decimal("1.10"), tags={"a"}, raw=bytearray(b"\x00"), deep=({"none": None},)))
    assert table.get(ONE) == row(total=Decimal("1.1"), tags={"a"}, raw=b"\x00", deep=[{"none": None}])
    assert table.items() == [table.get(ONE)]
    assert table.get(("ORDER#2", "METADATA")) is None


def test_item_that_was_read_or_written_is_a_copy(table):
    mine = row(tags=["a"])
    table.put(mine)
    mine["tags"].append("b")
    table.get(ONE)["tags"].append("c")
    assert table.get(ONE) == row(tags=["a"])


def test_key_is_a_mapping_or_a_tuple(table):
    table.put(row())
    assert (
        table.get(ORDER.key(order_id="1")) == table.get({"SK": "METADATA", "PK": "ORDER#1"}) == table.get(ONE) == row()
    )


def test_table_without_sort_key_takes_a_tuple_of_one():
    table = TableTwin(Table("t", partition="id", sort=None), key_types={"id": "N"})
    table.put({"id": Decimal("1.0"), "name": "a"})
    assert table.get((1,)) == table.get({"id": 1}) == {"id": 1, "name": "a"}


@pytest.mark.parametrize(
    "key", [("ORDER#1",), ("ORDER#1", "METADATA", "x"), {"PK": "ORDER#1"}, {"PK": "a", "SK": "b", "C": "c"}]
)
def test_key_with_other_attributes_is_refused(table, key):
    for write in (table.get, table.delete, table.update, CheckOf(table)):
        with pytest.raises(WriteRefused, match=r"was refused: expected PK and SK, as a mapping or a tuple"):
            write(key)


class CheckOf:
    """A check of a key by a transaction."""

    def __init__(self, table):
        self.table = table

    def __call__(self, key):
        self.table.transact(CheckItem(key))


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ({"PK": "a"}, r"found PK \(S\)\."),
        ({"PK": "a", "SK": 1}, r"found PK \(S\), SK \(N\)\."),
        ({"PK": True, "SK": "a"}, r"found PK \(BOOL\), SK \(S\)\."),
        ({}, "found none of it"),
    ],
)
def test_key_attribute_that_is_missing_or_of_another_type_is_refused(table, key, found):
    with pytest.raises(WriteRefused, match=rf"has the key PK \(S\), SK \(S\); {found}"):
        table.put({**key, "total": 1})


def test_types_of_key_attributes_can_be_declared():
    table = TableTwin(key_types={"PK": "B", "SK": "N"})
    table.put({"PK": b"a", "SK": 1})
    assert table.delete((b"a", Decimal("1.0")))["dynamodb"]["Keys"] == {"PK": {"B": "YQ=="}, "SK": {"N": "1"}}
    with pytest.raises(TwinError, match=r"key_types has 'SKU': 'N'; expected a key attribute of 'main' \(PK, SK\)"):
        TableTwin(key_types={"SKU": "N"})
    with pytest.raises(TwinError, match="one of S, N, B"):
        TableTwin(key_types={"SK": "BOOL"})


@pytest.mark.parametrize(
    ("partition", "sort", "fits"),
    [
        ("", "a", False),
        ("a", "", False),
        ("x" * 2048, "y" * 1024, True),
        ("x" * 2049, "a", False),
        ("a", "y" * 1025, False),
        ("ü" * 1024, "€" * 341, True),
        ("ü" * 1025, "a", False),
        ("a", "€" * 342, False),
    ],
)
def test_key_is_one_byte_or_more_and_within_its_limit(table, partition, sort, fits):
    if fits:
        assert table.put({"PK": partition, "SK": sort})
        return
    with pytest.raises(WriteRefused, match=r"bytes and was refused: expected 1 to (2048|1024)"):
        table.put({"PK": partition, "SK": sort})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1.5, r"use Decimal\('1\.5'\)"),
        (set(), "at least one"),
        ([{"deep": set()}], "at least one"),
        ({1, "a"}, "all text, all numbers or all bytes"),
        (Decimal("1E+126"), "38 digits"),
        (Decimal("NaN"), "finite"),
        ({"": 1}, "text that is not empty"),
        (nested(32), "nested deeper than the 32 levels"),
    ],
)
def test_value_that_dynamodb_has_not_is_refused(table, value, why):
    with pytest.raises(WriteRefused, match=why):
        table.put(row(value=value))
    with pytest.raises(WriteRefused, match=why):
        table.update(ONE, put={"value": value})
    assert table.items() == []


def test_value_of_32_levels_is_taken(table):
    assert table.put(row(value=nested(31)))["dynamodb"]["NewImage"]["value"]["L"]


def test_item_of_400_kilobytes_is_taken_and_one_byte_more_refused(table):
    room = 400 * 1024 - len("PKORDER#1SKMETADATAtext")
    table.put(row(text="x" * room))
    with pytest.raises(WriteRefused, match="has 409601 bytes and was refused: expected 409600 at most"):
        table.put(row(text="x" * (room + 1)))
    with pytest.raises(WriteRefused, match="409601 bytes"):
        table.update(ONE, put={"text": "x" * (room + 1)})


# --- updates ----------------------------------------------------------------------------------------------------------


def test_update_sets_adds_and_removes(table):
    table.put(row(status="new", total=Decimal("1.5"), note="x"))
    record = table.update(ONE, put={"status": "paid"}, add={"total": 2, "lines": 1}, remove=["note", "nothing"])
    assert table.get(ONE) == row(status="paid", total=Decimal("3.5"), lines=1)
    assert images(record)[1]["total"] == {"N": "3.5"}


def test_update_makes_the_item_that_is_not_there(table):
    record = table.update(ONE, add={"total": -3})
    assert record["eventName"] == "INSERT"
    assert table.items() == [row(total=-3)]


def test_sum_is_exact_and_refused_beyond_38_digits(table):
    table.put(row(total=10**37))
    table.update(ONE, add={"total": 1})
    assert table.get(ONE)["total"] == 10**37 + 1
    with pytest.raises(WriteRefused, match=r"The sum of .* 38 digits"):
        table.update(ONE, add={"total": Decimal("0.5")})


@pytest.mark.parametrize(("held", "amount"), [("a", 1), (1, "a"), ([1], 1), (None, 1)])
def test_only_numbers_can_be_added(table, held, amount):
    table.put(row(total=held))
    with pytest.raises(WriteRefused, match=r"'total' cannot be added to: .*; expected two numbers"):
        table.update(ONE, add={"total": amount})


@pytest.mark.parametrize("change", [{"put": {"PK": "a"}}, {"add": {"SK": 1}}, {"remove": ["SK"]}])
def test_key_attribute_cannot_be_updated(table, change):
    with pytest.raises(WriteRefused, match="is part of the key, which no update changes"):
        table.update(ONE, **change)


@pytest.mark.parametrize(
    "change", [{"put": {"a": 1}, "add": {"a": 1}}, {"put": {"a": 1}, "remove": ["a"]}, {"remove": ["a", "a"]}]
)
def test_attribute_cannot_be_in_an_update_twice(table, change):
    with pytest.raises(WriteRefused, match="'a' is in the update twice"):
        table.update(ONE, **change)


def test_names_to_remove_are_not_one_text(table):
    with pytest.raises(TwinError, match=r"remove='note'; expected names, such as \['note'\]"):
        table.update(ONE, remove="note")


# --- batches and transactions -----------------------------------------------------------------------------------------


def test_batch_puts_and_deletes_one_record_each(table):
    table.put(row(1))
    records = table.batch(puts=[row(2), row(3)], deletes=[ONE, ("ORDER#9", "METADATA")])
    assert [record["eventName"] for record in records] == ["INSERT", "INSERT", "REMOVE"]
    assert table.items() == [row(2), row(3)]


def test_batch_with_an_item_twice_is_refused_whole(table):
    with pytest.raises(WriteRefused, match="item ORDER#1 / METADATA is in them twice"):
        table.batch(puts=[row(2), row(1)], deletes=[ONE])
    with pytest.raises(WriteRefused, match="twice"):
        table.batch(puts=[row(1, total=1), row(1, total=2)])
    assert table.items() == []


@pytest.mark.parametrize("count", [0, 26])
def test_batch_has_1_to_25_writes(table, count):
    with pytest.raises(WriteRefused, match=f"A batch of {count} writes was refused: expected 1 to 25"):
        table.batch(puts=map(row, range(count)))
    assert len(table.batch(puts=map(row, range(25)))) == 25


def test_transaction_does_all_of_its_actions(table):
    table.put(row(1, total=1))
    table.put(row(2))
    records = table.transact(
        UpdateItem(ONE, add={"total": 5}),
        DeleteItem(("ORDER#2", "METADATA"), exists=True),
        PutItem(row(3), exists=False),
        CheckItem(("ORDER#4", "METADATA"), exists=False),
    )
    assert [record["eventName"] for record in records] == ["MODIFY", "REMOVE", "INSERT"]
    assert table.items() == [row(1, total=6), row(3)]


@pytest.mark.parametrize(
    "failing",
    [
        CheckItem(("ORDER#9", "METADATA")),
        CheckItem(("ORDER#2", "METADATA"), exists=False),
        PutItem(row(2, total=1), exists=False),
        UpdateItem(("ORDER#9", "METADATA"), put={"total": 1}, exists=True),
        DeleteItem(("ORDER#9", "METADATA"), exists=True),
    ],
)
def test_cancelled_transaction_changes_nothing_and_names_its_reasons(table, failing):
    table.put(row(2))
    with pytest.raises(TransactionCancelled, match=r"cancelled \[None, ConditionalCheckFailed, None\]") as caught:
        table.transact(PutItem(row(1)), failing, PutItem(row(3)))
    assert caught.value.reasons == ("None", "ConditionalCheckFailed", "None")
    assert (table.items(), events(table)) == ([row(2)], ["INSERT"])


def test_transaction_with_a_bad_action_changes_nothing(table):
    with pytest.raises(WriteRefused, match="float"):
        table.transact(PutItem(row(1)), PutItem(row(2, total=0.5)))
    assert table.items() == []


def test_transaction_holds_each_item_once_a_check_counts(table):
    table.put(row(1))
    with pytest.raises(WriteRefused, match="twice"):
        table.transact(CheckItem(ONE), PutItem(row(1, total=1)))


def test_check_leaves_its_item_as_it_is(table):
    table.put(row(1))
    assert len(table.transact(CheckItem(ONE), PutItem(row(2)))) == 1
    assert table.items() == [row(1), row(2)]


def test_update_of_a_transaction_has_to_change_something(table):
    with pytest.raises(WriteRefused, match="in a transaction it has to change something"):
        table.transact(PutItem(row(2)), UpdateItem(ONE))
    assert table.items() == []


@pytest.mark.parametrize("count", [0, 101])
def test_transaction_has_1_to_100_actions(table, count):
    with pytest.raises(WriteRefused, match=f"A transaction of {count} actions was refused: expected 1 to 100"):
        table.transact(*(PutItem(row(number)) for number in range(count)))
    assert len(table.transact(*(PutItem(row(number)) for number in range(100)))) == 100


def test_transaction_of_more_than_4_megabytes_is_refused(table):
    large = [PutItem(row(number, text="x" * 400_000)) for number in range(11)]
    with pytest.raises(WriteRefused, match="bytes was refused: expected 4194304 at most"):
        table.transact(*large)
    assert len(table.transact(*large[:10])) == 10


def test_records_of_a_transaction_may_be_in_several_shards():
    table = TableTwin(shards=4)
    table.transact(*(PutItem(row(number)) for number in range(40)))
    assert all(shard.records for shard in table.stream.shards)


# --- time to live -----------------------------------------------------------------------------------------------------


def test_item_whose_time_has_passed_is_removed_with_the_services_identity(table):
    table.put(row(1, expires=int(table.clock.now) + 60))
    table.put(row(2, expires=int(table.clock.now) + 61))
    assert table.expire() == []
    table.clock.advance(60)
    (record,) = table.expire()
    assert record["eventName"] == "REMOVE"
    assert record["userIdentity"] == {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    assert record["dynamodb"]["OldImage"]["PK"] == {"S": "ORDER#1"}
    assert [item["PK"] for item in table.items()] == ["ORDER#2"]


def test_every_record_has_an_identity_of_its_own(table):
    table.put(row(1, expires=1_772_355_600))
    table.expire()[0]["userIdentity"].clear()
    table.put(row(1, expires=1_772_355_600))
    assert table.expire()[0]["userIdentity"]["type"] == "Service"


def test_only_a_deletion_by_time_to_live_has_an_identity(table):
    assert "userIdentity" not in table.put(row())
    assert "userIdentity" not in table.delete(ONE)


def test_expired_item_is_there_until_it_is_removed(table):
    table.put(row(expires=1_772_355_600 - 60))
    assert table.get(ONE) == row(expires=1_772_355_600 - 60)
    assert table.update(ONE, put={"expires": 2_000_000_000})["eventName"] == "MODIFY"
    assert table.expire() == []


@pytest.mark.parametrize("expires", ["1", None, True, [1], {1, 2}])
def test_time_to_live_that_is_no_number_never_passes(table, expires):
    table.put(row(expires=expires))
    table.put(row(2))
    assert table.expire() == []


def test_time_to_live_that_passed_five_years_ago_is_ignored(table):
    now = int(table.clock.now)
    table.put(row(1, expires=now - 5 * YEAR))
    table.put(row(2, expires=now - 5 * YEAR - 1))
    table.put(row(3, expires=0))
    assert [record["dynamodb"]["Keys"]["PK"]["S"] for record in table.expire()] == ["ORDER#1"]


def test_table_without_time_to_live_cannot_expire():
    with pytest.raises(TwinError, match=r"has no time to live, .* Table\('main', ttl=\"expires\"\)"):
        TableTwin().expire()


# --- the stream on and off --------------------------------------------------------------------------------------------


def test_stream_that_is_switched_on_again_has_a_new_label_and_view(table):
    table.put(row(1))
    table.disable_stream()
    assert (table.put(row(2)), table.put(row(1, total=1)), table.delete(("ORDER#2", "METADATA"))) == (None, None, None)
    stream = table.enable_stream(view="NEW_IMAGE")
    record = table.put(row(1, total=2))
    old = table.streams[0]
    assert table.stream is stream
    assert (old.label, stream.label) == ("2026-03-01T09:00:00.000", "2026-03-01T09:00:00.001")
    assert record["eventSourceARN"] == stream.arn == old.arn.replace(old.label, stream.label)
    assert record["eventName"] == "MODIFY"
    assert images(record) == [None, {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}, "total": {"N": "2"}}]
    assert [len(shard.records) for shard in old.shards] == [1]
    assert all(shard.closed for shard in old.shards)
    assert not old.enabled
    assert stream.enabled


def test_view_is_the_tables_unless_another_is_asked_for():
    keys_only = Table("t", view="KEYS_ONLY")
    assert TableTwin(keys_only).stream.view == "KEYS_ONLY"
    assert TableTwin(keys_only, view="NEW_IMAGE").stream.view == "NEW_IMAGE"
    assert TableTwin().stream.view == "NEW_AND_OLD_IMAGES"
    with pytest.raises(TwinError, match="view='BOTH': expected one of NEW_AND_OLD_IMAGES, NEW_IMAGE"):
        TableTwin(view="BOTH")


def test_table_without_a_stream_takes_writes():
    table = TableTwin(stream=False)
    assert table.put(row()) is None
    assert table.items() == [row()]
    with pytest.raises(TwinError, match="never had a stream"):
        _ = table.stream
    with pytest.raises(TwinError, match="off already"):
        table.disable_stream()
    assert table.enable_stream().label == "2026-03-01T09:00:00.000"
    with pytest.raises(TwinError, match="on already"):
        table.enable_stream()


def test_twins_of_two_tables_share_a_clock():
    clock = Clock()
    first, second = TableTwin(clock=clock), TableTwin(Table("other"), clock=clock)
    clock.advance(5)
    times = [twin.put(row())["dynamodb"]["ApproximateCreationDateTime"] for twin in (first, second)]
    assert times == [clock.now, clock.now]


def test_twin_needs_no_client_and_no_hypothesis():
    program = "import sys, streamfold.testing; print({'boto3', 'botocore', 'hypothesis', 'sqlite3'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
