"""A stream record as a change: keys, images, version, time, and what is no record."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfold import Change, Table, Version
from streamfold.errors import ImageError, RecordError
from streamfold.keys.table import MAIN
from streamfold.records.change import (
    ABSENT,
    BY_OURSELVES,
    EXPIRED_SECONDS_MAX,
    Origin,
    item_name,
    name_components,
    typed,
)
from streamfold.records.images import hidden
from streamfold.records.values import same
from tests.helpers.records import LABEL, VERSION_PREFIX, change, item, record

OLD, NEW = item("ORDER#1", status="new"), item("ORDER#1", status="paid")
TIME_TO_LIVE = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
SAMPLES = Path(__file__).parents[1] / "samples"
SAMPLE = json.loads((SAMPLES / "aws_sample.json").read_text())
LOCALSTACK = json.loads((SAMPLES / "localstack.json").read_text())["Records"]


def changed_record(**parts):
    """The record of a change with some of its parts replaced; None takes a part away."""
    raw = record(OLD, NEW)
    for name, value in parts.items():
        place = raw if name in ("eventName", "dynamodb", "userIdentity") else raw["dynamodb"]
        place[name] = value
        if value is None:
            del place[name]
    return raw


def change_of(raw, table=MAIN):
    return Change(raw, Origin(table, VERSION_PREFIX))


def test_a_change_has_event_keys_and_both_images():
    found = change(OLD, NEW)
    assert found.event == "MODIFY"
    assert found.keys == {"PK": "ORDER#1", "SK": "METADATA"}
    assert (found.old, found.new) == (OLD, NEW)
    assert found.item == ("main", "ORDER#1", "METADATA")


@pytest.mark.parametrize(("old", "new", "event"), [(None, NEW, "INSERT"), (OLD, None, "REMOVE")])
def test_the_image_that_there_is_not_is_empty(old, new, event):
    found = change(old, new)
    assert event == found.event
    assert (old or {}, new or {}) == (dict(found.old), dict(found.new))


def test_the_keys_of_a_change_are_read_only():
    changed = change(None, item("ORDER#1"))
    with pytest.raises(TypeError, match="read-only"):
        changed.keys["PK"] = "ORDER#2"
    assert changed.keys == {"PK": "ORDER#1", "SK": "METADATA"}


@pytest.mark.parametrize("absent", [{"_sf_n": 0}, {"_sf_n": 0, "_sf_v": "00/label/7", "total": 0}])
def test_a_tombstone_and_a_row_without_contributors_are_absent_images(absent):
    found = change(item("ORDER#1", **absent), item("ORDER#1", _sf_n=2, total=5))
    assert found.old is ABSENT
    assert item("ORDER#1", total=5) == dict(found.new)


def test_changed_names_the_attributes_whose_values_differ():
    old = item("ORDER#1", status="new", total=5, tags={"a", "b"}, note="x", _sf_v="1")
    new = item("ORDER#1", status="paid", total=5, tags={"b", "a"}, paid=True, _sf_v="2")
    assert {"status", "note", "paid"} == change(old, new).changed


def test_a_number_spelled_differently_has_not_changed():
    raw = record(item("A", n=1), item("A", n=1))
    raw["dynamodb"]["NewImage"]["n"] = {"N": "1.0"}
    assert frozenset() == change_of(raw).changed


def test_all_attributes_of_an_item_that_came_or_went_have_changed():
    assert {"PK", "SK", "status"} == change(None, NEW).changed == change(OLD, None).changed


EVENTS = {"INSERT": (None, NEW), "MODIFY": (OLD, NEW), "REMOVE": (OLD, None)}


@pytest.mark.parametrize(
    ("view", "event", "has_old", "has_new"),
    [
        ("NEW_AND_OLD_IMAGES", "MODIFY", True, True),
        ("NEW_IMAGE", "INSERT", True, True),
        ("NEW_IMAGE", "MODIFY", False, True),
        ("NEW_IMAGE", "REMOVE", False, True),
        ("OLD_IMAGE", "INSERT", True, False),
        ("OLD_IMAGE", "MODIFY", True, False),
        ("OLD_IMAGE", "REMOVE", True, True),
        ("KEYS_ONLY", "INSERT", True, False),
        ("KEYS_ONLY", "MODIFY", False, False),
        ("KEYS_ONLY", "REMOVE", False, True),
    ],
)
def test_a_view_type_says_which_images_are_known_be_it_that_there_is_none(view, event, has_old, has_new):
    found = change(*EVENTS[event], view=view)
    assert (has_old, has_new) == (found.has_old, found.has_new)


@pytest.mark.parametrize(("view", "which"), [("NEW_IMAGE", "old"), ("OLD_IMAGE", "new"), ("KEYS_ONLY", "changed")])
def test_asking_for_an_image_that_the_view_type_lacks_raises(view, which):
    with pytest.raises(ImageError, match=f"of ORDER#1 / METADATA was asked for, but the stream's view type is {view}"):
        getattr(change(OLD, NEW, view=view), which)


@pytest.mark.parametrize(("name", "which"), [("OldImage", "old"), ("NewImage", "new")])
@pytest.mark.parametrize("view", ["NEW_AND_OLD_IMAGES", None])
@pytest.mark.parametrize("raw", [None, {}])
def test_an_image_that_a_record_should_carry_and_does_not_is_not_taken_for_absent(name, which, view, raw):
    found = change_of(changed_record(**{name: raw, "StreamViewType": view}))
    with pytest.raises(ImageError, match=f"The {which} image of ORDER#1 / METADATA .* the record does not carry it"):
        getattr(found, which)


def test_a_record_without_view_type_has_the_images_that_it_carries():
    found = change_of(changed_record(StreamViewType=None))
    assert (found.old, found.new) == (OLD, NEW)


@pytest.mark.parametrize(
    ("identity", "event", "expired"),
    [
        (TIME_TO_LIVE, "REMOVE", True),
        ({"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}, "REMOVE", True),
        ({"type": "User", "principalId": "dynamodb.amazonaws.com"}, "REMOVE", False),
        ({}, "REMOVE", False),
        ("dynamodb.amazonaws.com", "REMOVE", False),
        (TIME_TO_LIVE, "MODIFY", False),
    ],
)
def test_expired_tells_a_deletion_by_time_to_live(identity, event, expired):
    raw = {**record(*EVENTS[event]), "userIdentity": identity}
    assert expired == change_of(raw).expired


TIMED = Table("main", ttl="expires")
AT = 1_772_355_600


def removal(expires, identity=None, table=TIMED, at=AT):
    """The removal of an item that has a time to live, as a replica of a global table sees it: without identity."""
    raw = record(item("ORDER#1", expires=0), None)
    raw["dynamodb"]["OldImage"]["expires"] = expires
    raw["dynamodb"]["ApproximateCreationDateTime"] = at
    return change_of(raw | ({"userIdentity": identity} if identity else {}), table)


@pytest.mark.parametrize(
    ("expires", "expired"),
    [
        ({"N": str(AT - 1)}, True),
        ({"N": str(AT)}, True),
        ({"N": str(AT + 1)}, False),
        ({"N": f"{AT - 1}.5"}, True),
        ({"N": str(AT - EXPIRED_SECONDS_MAX)}, True),
        ({"N": str(AT - EXPIRED_SECONDS_MAX - 1)}, False),
        ({"N": "0"}, False),
        ({"N": "9E+125"}, False),
        ({"S": str(AT - 1)}, False),
        ({"N": "soon"}, False),
        ({"N": None}, False),
        ("soon", False),
        (None, False),
    ],
)
def test_a_removal_of_an_item_whose_time_to_live_had_passed_counts_as_expired_without_identity(expires, expired):
    assert removal(expires).expired is expired


def test_an_identity_tells_an_expiry_whatever_the_item_holds():
    assert removal({"N": str(AT + 1)}, TIME_TO_LIVE).expired


def test_an_attribute_that_the_table_does_not_name_expires_nothing():
    assert not removal({"N": str(AT - 1)}, table=MAIN).expired


@pytest.mark.parametrize("at", [None, "yesterday"])
def test_a_removal_without_a_time_is_judged_by_its_identity_alone(at):
    assert not removal({"N": str(AT - 1)}, at=at).expired


def test_a_change_of_an_item_whose_time_to_live_has_passed_is_no_expiry():
    raw = record(item("ORDER#1", expires=1), item("ORDER#1", expires=2))
    assert not change_of(raw, TIMED).expired


REPLICATED = {"aws:rep:deleting": False, "aws:rep:updatetime": 5, "aws:rep:updateregion": "eu-west-1"}


@pytest.mark.parametrize(
    ("old", "new", "is_hidden"),
    [
        ({"total": 1}, {"total": 1, **REPLICATED}, True),
        ({"total": 1, **REPLICATED}, {"total": 1, **REPLICATED, "aws:rep:updatetime": 6}, True),
        ({"total": 1, **REPLICATED}, {"total": 1}, True),
        ({"tags": {"a", "b"}}, {"tags": {"b", "a"}, **REPLICATED}, True),
        ({"total": 1}, {"total": 1, "_sf_v": "x"}, True),
        ({"total": 1}, {"total": 2, **REPLICATED}, False),
        ({"total": 1}, {**REPLICATED}, False),
        ({}, {"total": 1, **REPLICATED}, False),
        ({"total": 1}, {"total": 1}, False),
    ],
)
def test_a_change_of_hidden_attributes_alone_is_no_reason_to_run(old, new, is_hidden):
    found = change(item("ORDER#1", **old), item("ORDER#1", **new))
    assert found.is_hidden is is_hidden
    assert (found.as_written() is None) is is_hidden


values = st.sampled_from([{"N": "1"}, {"N": "1.0"}, {"S": "1"}, {"SS": ["a", "b"]}, {"SS": ["b", "a"]}, "broken"])
names = st.sampled_from(["total", "tags", "aws:rep:updatetime", "_sf_v"])
images = st.dictionaries(names, values)


def alike(one, other):
    """Whether two values are equal: two spellings of a number are."""
    return one == other or (isinstance(one, dict) and isinstance(other, dict) and same(one, other))


@example({"total": {"N": "1"}}, {"total": {"N": "1.0"}, "aws:rep:updatetime": "broken"})
@given(images, images)
def test_hidden_changes_are_those_in_which_something_changed_and_no_attribute_that_can_be_read(old, new):
    raw = record(item("ORDER#1"), item("ORDER#1"))
    raw["dynamodb"]["OldImage"] |= old
    raw["dynamodb"]["NewImage"] |= new
    found = change_of(raw)
    broken = any(old.get(name) != new.get(name) and "broken" in (old.get(name), new.get(name)) for name in {*old, *new})
    if not broken:
        assert found.is_hidden == (raw["dynamodb"]["OldImage"] != raw["dynamodb"]["NewImage"] and not found.changed)
    elif found.is_hidden:
        differing = [name for name in {*old, *new} if not alike(old.get(name), new.get(name))]
        assert all(map(hidden, differing))


@pytest.mark.parametrize("view", ["NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"])
def test_a_change_of_which_an_image_is_not_known_counts(view):
    found = change(item("ORDER#1", total=1), item("ORDER#1", total=1, **REPLICATED), view=view)
    assert found.as_written() is found


@pytest.mark.parametrize("seconds", [1_772_355_600, 1_772_355_600.0, "1772355600", "1.7723556E9"])
def test_the_time_of_a_change_is_aware_in_every_spelling(seconds):
    found = change_of(changed_record(ApproximateCreationDateTime=seconds))
    assert datetime(2026, 3, 1, 9, tzinfo=UTC) == found.at


@pytest.mark.parametrize(
    "text", ["2026-03-01T09:00:00+00:00", "2026-03-01T10:00:00+01:00", "2026-03-01T09:00:00.999000+00:00"]
)
def test_a_time_that_the_aws_cli_prints_is_read(text):
    found = change_of(changed_record(ApproximateCreationDateTime=text))
    assert (found.at, found.has_at) == (datetime(2026, 3, 1, 9, tzinfo=UTC), True)


def test_a_text_without_a_time_zone_is_no_time():
    found = change_of(changed_record(ApproximateCreationDateTime="2026-03-01T09:00:00"))
    with pytest.raises(RecordError, match="expected seconds since 1970, or a time with its time zone"):
        found.at  # noqa: B018 - reading it is what raises


def test_a_time_with_a_fraction_is_rounded_down_to_the_second():
    found = change_of(changed_record(ApproximateCreationDateTime=1_772_355_600.999))
    assert datetime(2026, 3, 1, 9, tzinfo=UTC) == found.at


@pytest.mark.parametrize("seconds", [None, "yesterday", 1e20, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused_with_what_was_found(seconds):
    found = change_of(changed_record(ApproximateCreationDateTime=seconds))
    with pytest.raises(RecordError, match=r"Record 1 has ApproximateCreationDateTime=.*: expected seconds since 1970"):
        found.at  # noqa: B018 - reading it is what raises


sequences = st.one_of(st.integers(0, 10**40 - 1), st.integers(10**39, 10**41), st.integers(0, 10**56 - 1))
labels = st.sampled_from([LABEL, "2026-03-02T00:00:00.000", "2025-12-31T23:59:59.999"])
versions = st.tuples(st.integers(0, 99), labels, sequences)


@given(versions, versions)
def test_versions_are_ordered_by_epoch_then_stream_then_sequence_as_numbers(one, other):
    assert (one < other) == (Version.of(*one) < Version.of(*other))
    assert (one == other) == (Version.of(*one) == Version.of(*other))


@given(versions)
def test_a_version_gives_back_what_it_was_made_of(parts):
    version = Version.of(*parts)
    assert parts == (version.epoch, version.label, version.sequence)
    assert version.text == str(version)


def test_the_sequence_numbers_that_aws_gave_one_shard_are_in_order():
    numbers = ["9700001729061958505432", "11800004292221743404033", "100000000005391461882"]
    found = [change(OLD, NEW, number) for number in numbers]
    assert sorted(numbers, key=int) == [each.sequence for each in sorted(found, key=lambda each: each.version)]


def test_zeros_before_a_number_do_not_change_its_version():
    long = "0" * 16 + "7" * 40
    assert change(OLD, NEW, long).version == change(OLD, NEW, "7" * 40).version
    assert change(OLD, NEW, "9" * 40).version < change(OLD, NEW, "0" * 15 + "1" + "0" * 40).version


def test_the_numbers_of_localstack_are_in_order_and_after_those_of_aws():
    before, (one, other) = change(OLD, NEW, "9" * 40), map(change_of, LOCALSTACK)
    assert [each.sequence for each in (one, other)] == [each["dynamodb"]["SequenceNumber"] for each in LOCALSTACK]
    assert before.version_text < one.version_text < other.version_text
    assert one.version_text + BY_OURSELVES < other.version_text
    assert int(other.sequence) == other.version.sequence


def test_a_change_s_version_is_its_origin_s_prefix_and_its_padded_number():
    found = change(OLD, NEW, 77)
    assert Version.of(0, LABEL, 77) == found.version
    assert found.version_text == f"00/{LABEL}/{'77':0>40}"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"dynamodb": None}, "A record has no 'dynamodb' object: expected a DynamoDB stream record, found the keys"),
        ({"eventName": None}, "A record has eventName=None: expected INSERT, MODIFY or REMOVE."),
        ({"eventName": "UPSERT"}, "A record has eventName='UPSERT': expected INSERT, MODIFY or REMOVE."),
        ({"eventName": ["INSERT"]}, "A record has eventName=['INSERT']: expected INSERT, MODIFY or REMOVE."),
        ({"SequenceNumber": None}, "A record has SequenceNumber=None: expected up to 40 digits as text."),
        ({"SequenceNumber": 5}, "A record has SequenceNumber=5: expected up to 40 digits as text."),
        ({"SequenceNumber": ""}, "A record has SequenceNumber='': expected up to 40 digits as text."),
        ({"SequenceNumber": "²"}, "A record has SequenceNumber='²': expected up to 40 digits as text."),
        (
            {"SequenceNumber": "1" * 130},
            f"A record has SequenceNumber='{'1' * 130}': expected up to 40 digits as text.",
        ),
        ({"SequenceNumber": "1" * 57}, f"A record has SequenceNumber='{'1' * 57}': expected up to 40 digits as text."),
        ({"Keys": None}, "Record 1 has no 'Keys': expected the item's key attributes."),
        ({"Keys": {}}, "A record has the key attributes none: table 'main' is declared with PK, SK. Other names are "),
        ({"Keys": 5}, "A record has the key attributes 5: table 'main' is declared with PK, SK."),
        ({"Keys": {"id": {"S": "1"}}}, "A record has the key attributes id: table 'main' is declared with PK, SK."),
        ({"Keys": {"PK": {"S": "1"}}}, "A record has the key attributes PK: table 'main' is declared with PK, SK."),
        ({"Keys": {"PK": {"S": "1"}, "SK": {"S": "1", "N": "1"}}}, "{'N': '1', 'S': '1'} is no attribute value: "),
        ({"Keys": {"PK": {"S": "1"}, "SK": {"L": []}}}, "A record has the key value {'L': []}: expected text (S), a "),
        ({"Keys": {"PK": {"S": "1"}, "SK": {"N": "x"}}}, "{'N': 'x'} is no attribute value: its content is no number"),
    ],
)
def test_a_malformed_record_is_refused_with_what_was_expected(parts, message):
    with pytest.raises(RecordError) as caught:
        change_of(changed_record(**parts))
    assert message in str(caught.value)


KEY = {"PK": {"S": "ORDER#1"}, "SK": {"S": "METADATA"}}


@pytest.mark.parametrize("which", ["OldImage", "NewImage"])
@pytest.mark.parametrize(
    "image",
    [
        {"x": {"N": "1"}},
        {"PK": {"S": "ORDER#1"}},
        {**KEY, "SK": {"S": "OTHER"}},
        {**KEY, "PK": {"N": "1"}},
        {**KEY, "PK": None},
        {**KEY, "PK": {"Q": "ORDER#1"}},
    ],
    ids=["none", "sort key missing", "another", "another type", "null", "unreadable"],
)
def test_an_image_with_another_key_than_its_record_is_malformed(which, image):
    with pytest.raises(RecordError) as caught:
        change_of(changed_record(**{which: image}))
    assert "is of item ORDER#1 / METADATA, and an image in it has the key {" in str(caught.value)
    assert "expected the key attributes PK, SK with the values of 'Keys'." in str(caught.value)


@pytest.mark.parametrize(
    ("event", "image", "words"), [("INSERT", "OldImage", "an OldImage"), ("REMOVE", "NewImage", "a NewImage")]
)
def test_a_record_whose_event_and_images_contradict_each_other_is_refused(event, image, words):
    raw = changed_record(**{image: {**KEY, "x": {"N": "1"}}})
    raw["eventName"] = event
    with pytest.raises(RecordError, match=f"Record 1 is of event {event} and has {words}: expected the record as"):
        change_of(raw)


def test_an_image_may_write_the_number_of_its_key_in_another_way():
    table = Table("raw", partition="N", sort=None)
    raw = record({"N": 5}, {"N": 5, "x": 1}, names=("N",))
    raw["dynamodb"]["NewImage"]["N"] = {"N": "5.0"}
    assert change_of(raw, table).item == ("raw", 5, None)


@pytest.mark.parametrize("raw", [None, "text", 5, []])
def test_what_is_no_object_is_no_record(raw):
    with pytest.raises(RecordError, match="expected an object with 'eventName' and 'dynamodb'"):
        change_of(raw)


def test_number_and_binary_keys_are_decoded():
    table = Table("raw", partition="N", sort="B")
    found = change({"N": 5, "B": b"\0"}, {"N": 5, "B": b"\0", "x": 1}, table=table)
    assert found.keys == {"N": 5, "B": b"\0"}


def test_a_table_with_a_partition_key_only_has_one_key_attribute():
    table = Table("orders", partition="id", sort=None)
    found = change(None, {"id": "1"}, table=table)
    assert found.item == ("orders", "1", None)
    assert found.keys == {"id": "1"}


keys = st.text("a|%#7C25", max_size=4)


@given(st.tuples(keys, keys), st.tuples(keys, keys))
def test_the_name_of_an_item_is_never_that_of_another(one, other):
    assert (one == other) == (item_name(("main", *one)) == item_name(("main", *other)))


@given(keys, keys)
def test_the_name_of_an_item_tells_its_key_again(partition, sort):
    assert name_components(item_name(("main", partition, sort))) == [partition, sort]
    assert name_components(item_name(("main", partition, None))) == [partition]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("ORDER#1", "METADATA"), "ORDER#1 METADATA"),
        (("BOOKING#b|9", "INFO"), "'BOOKING#b|9' INFO"),
        (("100%", "#1"), "100% '#1'"),
        (("a b", None), "'a b'"),
        ((7, b"\x00\xff"), "7 00ff"),
    ],
)
def test_a_name_is_shown_as_the_key_that_one_types(key, text):
    assert typed(item_name(("main", *key))) == text


def test_the_name_of_an_item_does_not_depend_on_how_a_number_is_spelled():
    names = {item_name(("raw", number, b"\0\1")) for number in (100, Decimal("1E+2"), Decimal("100.0"))}
    assert {"100|0001"} == names


def test_two_deliveries_of_one_change_are_equal():
    one, again = change(OLD, NEW, 7), change(OLD, NEW, 7)
    assert one == again
    assert len({one, again}) == 1
    assert one not in (change(OLD, NEW, 8), change(item("ORDER#2"), item("ORDER#2", n=1), 7), "ORDER#1")


def test_a_change_shows_what_it_is():
    assert f"<Change MODIFY ORDER#1 / METADATA {Version.of(0, LABEL, 1)}>" == repr(change(OLD, NEW))


def test_the_sample_event_that_aws_publishes_is_understood():
    table = Table("sample", partition="Id", sort=None)
    found = [change_of(raw, table) for raw in SAMPLE["Records"]]
    assert [each.event for each in found] == ["INSERT", "MODIFY", "REMOVE"]
    assert found[1].old == {"Id": 101, "Message": "New item!"}
