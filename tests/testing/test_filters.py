"""Filter patterns: what they let through, what surprises in them, and which are refused."""

import json

import pytest

from streamfold.errors import SettingsError
from streamfold.testing import MappingSettings
from streamfold.testing.mapping_settings import Filters
from tests.helpers.records import item, record

NEW = item("ORDER#1", "METADATA", status="paid", total=7, gift=True, tags=["a", "b"], note=None, empty="")
INSERT = record(None, NEW, 100)
REMOVE = record(NEW, None, 107)


def passes(pattern, given=INSERT):
    return Filters([json.dumps(pattern)])(given)


def image(attribute, tag, *entries):
    return {"dynamodb": {"NewImage": {attribute: {tag: list(entries)}}}}


def test_without_patterns_every_record_passes():
    assert Filters()(INSERT)


def test_one_of_several_patterns_is_enough():
    filters = Filters(['{"eventName": ["REMOVE"]}', '{"eventName": ["INSERT"]}'])
    assert filters(INSERT)
    assert not Filters(['{"eventName": ["REMOVE"]}'])(INSERT)


def test_every_member_of_a_pattern_has_to_fit():
    assert passes({"eventName": ["INSERT"], **image("status", "S", "paid")})
    assert not passes({"eventName": ["INSERT"], **image("status", "S", "open")})


def test_one_entry_of_a_list_is_enough():
    assert passes({"eventName": ["MODIFY", "INSERT"]})


@pytest.mark.parametrize(
    ("entry", "fits"),
    [
        ("paid", True),
        ("Paid", False),
        ({"equals-ignore-case": "PAID"}, True),
        ({"equals-ignore-case": "open"}, False),
        ({"prefix": "pa"}, True),
        ({"prefix": "id"}, False),
        ({"suffix": "id"}, True),
        ({"suffix": "pa"}, False),
        ({"anything-but": "open"}, True),
        ({"anything-but": ["open", "paid"]}, False),
        ({"exists": True}, True),
        ({"exists": False}, False),
        ("", False),
    ],
)
def test_operators_on_text(entry, fits):
    assert passes(image("status", "S", entry)) is fits


def test_the_empty_text_and_null_are_values():
    assert passes(image("empty", "S", ""))
    assert passes({"extra": [None]}, {**INSERT, "extra": None})
    assert passes({"extra": [{"exists": True}]}, {**INSERT, "extra": None})


def test_true_is_not_the_number_one():
    assert passes(image("gift", "BOOL", True))
    assert not passes(image("gift", "BOOL", 1))


def test_a_key_pattern_names_the_type_tag():
    assert passes({"dynamodb": {"Keys": {"PK": {"S": [{"prefix": "ORDER#"}]}}}})
    assert not passes({"dynamodb": {"Keys": {"PK": [{"prefix": "ORDER#"}]}}})


def test_numeric_never_fits_a_number_attribute():
    assert not passes(image("total", "N", {"numeric": ["=", 7]}))
    assert passes(image("total", "N", "7"))


@pytest.mark.parametrize(
    ("bounds", "fits"), [(["=", 5], True), ([">", 5], False), ([">=", 5, "<", 6], True), ([">", 0, "<=", 4], False)]
)
def test_numeric_fits_what_is_a_number_in_the_record(bounds, fits):
    assert passes({"dynamodb": {"SizeBytes": [{"numeric": bounds}]}}, {"dynamodb": {"SizeBytes": 5}}) is fits


def test_exists_looks_at_values_only():
    present = {"dynamodb": {"NewImage": {"status": [{"exists": True}]}}}
    absent = {"dynamodb": {"NewImage": {"status": [{"exists": False}]}}}
    assert not passes(present)
    assert passes(absent)
    assert passes(absent, REMOVE)


def test_what_is_not_there_fits_exists_false_alone():
    assert passes(image("missing", "S", {"exists": False}))
    assert not passes(image("missing", "S", {"anything-but": "x"}))
    assert passes(image("status", "S", {"exists": False}), REMOVE)


def test_a_filter_on_the_new_image_leaves_out_removals():
    assert not passes(image("status", "S", "paid"), REMOVE)


def test_one_member_of_a_list_in_the_record_is_enough():
    listed = {"dynamodb": {"NewImage": {"tags": {"L": [{"S": "a"}, {"S": "b"}]}, "set": {"SS": ["x", "y"]}}}}
    assert passes(image("set", "SS", "y"), listed)
    assert passes({"dynamodb": {"NewImage": {"tags": {"L": {"S": ["b"]}}}}}, listed)
    assert not passes({"dynamodb": {"NewImage": {"tags": {"L": {"S": ["c"]}}}}}, listed)
    assert not passes({"dynamodb": {"NewImage": {"tags": {"L": [{"exists": True}]}}}}, listed)


def test_branches_of_or_beside_other_members():
    pattern = {"eventName": ["INSERT"], "$or": [image("status", "S", "open"), image("total", "N", "7")]}
    assert passes(pattern)
    assert not passes(pattern | {"eventName": ["REMOVE"]})
    assert not passes({"$or": [image("status", "S", "open"), image("total", "N", "8")]})


def test_of_two_members_of_one_name_the_last_is_the_only_one():
    text = '{"dynamodb": {"NewImage": {"status": {"S": ["open"]}}}, "dynamodb": {"NewImage": {"total": {"N": ["7"]}}}}'
    assert Filters([text])(INSERT)


def test_a_deletion_by_time_to_live_can_be_filtered():
    pattern = {"userIdentity": {"type": ["Service"], "principalId": ["dynamodb.amazonaws.com"]}}
    expired = REMOVE | {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
    assert passes(pattern, expired)
    assert not passes(pattern, REMOVE)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected an object such as"),
        ("7", "expected an object such as"),
        ("{}", "an object is empty"),
        ('{"eventName": "INSERT"}', "expected a list of values, or an object"),
        ('{"eventName": []}', "expected a list of values, or an object"),
        ('{"eventName": [["INSERT"]]}', "a list holds a list"),
        ('{"eventName": [{"like": "x"}]}', "operator 'like' is not known: expected exists, prefix"),
        ('{"eventName": [{}]}', "holds 0 operators: expected one"),
        ('{"eventName": [{"prefix": 5}]}', "expected a text"),
        ('{"eventName": [{"exists": "yes"}]}', "expected true or false"),
        ('{"eventName": [{"anything-but": []}]}', "expected a text or number"),
        ('{"eventName": [{"numeric": ["=", "5"]}]}', "a number"),
        ('{"eventName": [{"numeric": ["~", 5]}]}', "expected one of = <"),
        ('{"eventName": [{"numeric": ["="]}]}', 'expected \\["=", 5\\]'),
        ('{"$or": [{"eventName": ["INSERT"]}]}', "at least 2 objects"),
        ('{"$or": [{"eventName": ["INSERT"]}, 5]}', "expected objects only"),
        (json.dumps({"eventName": ["x" * 4096]}), "at most 4096 characters"),
        (None, "expected a JSON text"),
        ('{"a":' * 800, "Expecting value"),
    ],
)
def test_a_pattern_that_lambda_refuses_is_refused_with_the_reason(pattern, why):
    with pytest.raises(SettingsError, match=f"(?s)Invalid filter pattern definition: .*{why}"):
        MappingSettings(filters=(pattern,))


def test_ten_patterns_are_taken_and_eleven_refused():
    MappingSettings(filters=('{"eventName": ["INSERT"]}',) * 10)
    with pytest.raises(SettingsError, match="at most 10 patterns"):
        MappingSettings(filters=('{"eventName": ["INSERT"]}',) * 11)


def test_a_text_in_place_of_the_patterns_is_refused():
    with pytest.raises(SettingsError, match="expected a tuple of at most 10 patterns"):
        MappingSettings(filters='{"eventName": ["INSERT"]}')
