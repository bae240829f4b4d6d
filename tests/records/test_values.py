"""Attribute values to Python and back, exactly; `test_values_aws.py` compares with boto3."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal, DecimalException, Inexact, localcontext
from enum import Enum, StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import rounded
from streamfold.errors import HandlerError, RecordError
from streamfold.records.images import Image, hidden
from streamfold.records.values import (
    EXACT,
    ITEM_BYTES_MAX,
    StoredMap,
    decode,
    decode_number,
    digest,
    encode,
    item_bytes,
    number_text,
    same,
    to_json,
)
from tests.helpers.values import LARGEST, large, numbers, texts, values


@given(numbers | large)
def test_a_number_of_38_digits_keeps_its_value_as_text_and_back(number):
    assert number == decode_number(number_text(number))


@given(numbers | large, st.integers(0, 10))
def test_a_number_has_one_spelling(number, zeros):
    sign, digits, exponent = Decimal(number).as_tuple()
    spelled_longer = Decimal((sign, digits + (0,) * zeros, exponent - zeros))
    assert number_text(number) == number_text(spelled_longer)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (Decimal("-0.00"), "0"),
        (Decimal("1.50"), "1.5"),
        (Decimal("1E+2"), "100"),
        (Decimal("1E-7"), "0.0000001"),
        (-LARGEST, "-" + "9" * 38),
        (10**38, "1" + "0" * 38),
        (Decimal("1E-130"), "0." + "0" * 129 + "1"),
        (Decimal("9.99E+125"), "999" + "0" * 123),
        (Enum("Size", {"small": 3}, type=int).small, "3"),
    ],
)
def test_a_number_is_written_out(number, text):
    assert text == number_text(number)


@pytest.mark.parametrize(
    "number",
    [LARGEST * 10 + 1, 10**5000, Decimal("1E-131"), Decimal("1E+126"), Decimal("1." + "1" * 38)],
    ids=["39 digits", "5000 zeros", "small", "large", "fine"],
)
def test_a_number_that_dynamodb_cannot_hold_is_refused_and_never_rounded(number):
    with pytest.raises(HandlerError, match=r"^Number \S+ cannot be stored: DynamoDB holds 38 digits, from 1E-130 to 9"):
        number_text(number)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "sNaN"])
def test_a_number_that_is_none_is_refused(text):
    with pytest.raises(HandlerError, match=f"Number {text} cannot be stored: expected a finite number."):
        number_text(Decimal(text))


def test_the_remedy_for_a_number_that_is_too_fine_works_as_it_is_printed():
    value = Decimal("0." + "3" * 40)
    with pytest.raises(HandlerError) as caught:
        number_text(value)
    remedy = str(caught.value).partition(" or ")[2].partition(", of streamfold.")[0]
    assert Decimal("0.33") == eval(remedy, {"n": value, "rounded": rounded})


@given(values)
def test_a_value_survives_the_form_in_which_lambda_carries_it(value):
    assert value == decode(json.loads(to_json(encode(value))))
    assert type(value) is type(decode(encode(value))) or isinstance(value, Decimal)


@given(values)
def test_what_is_encoded_is_the_same_to_dynamodb_as_what_lambda_carries(value):
    assert same(encode(value), json.loads(to_json(encode(value))))


@given(values, values)
def test_two_values_are_the_same_to_dynamodb_when_they_are_to_python(one, other):
    assert same(encode(one), encode(other)) == (encode(one) == encode(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"N": "1"}, {"N": "1.0"}),
        ({"NS": ["1", "2"]}, {"NS": ["2.0", "1"]}),
        ({"SS": ["a", "b"]}, {"SS": ["b", "a"]}),
        ({"B": b"\0"}, {"B": b64encode(b"\0").decode()}),
        ({"BS": [b"\0", b"\1"]}, {"BS": [b64encode(b"\1").decode(), b64encode(b"\0").decode()]}),
        ({"L": [{"N": "1"}]}, {"L": [{"N": "1E0"}]}),
        ({"M": {"a": {"N": "100"}}}, {"M": {"a": {"N": "1E2"}}}),
        (None, None),
    ],
)
def test_another_spelling_is_the_same_value(one, other):
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"N": "1"}, {"S": "1"}),
        ({"N": "1"}, None),
        ({"S": "a"}, {"S": "b"}),
        ({"L": [{"N": "1"}]}, {"L": [{"N": "1"}, {"N": "1"}]}),
        ({"L": [{"N": "1"}, {"N": "2"}]}, {"L": [{"N": "2"}, {"N": "1"}]}),
        ({"M": {"a": {"N": "1"}}}, {"M": {"b": {"N": "1"}}}),
        ({"M": {"a": {"N": "1"}}}, {"M": {"a": {"N": "2"}}}),
        ({"BOOL": True}, {"BOOL": False}),
        ({"M": {}}, {"M": []}),
        ({"L": []}, {"L": None}),
    ],
)
def test_another_type_or_content_is_another_value(one, other):
    assert not same(one, other)
    assert not same(other, one)


def test_a_stored_map_is_encoded_as_it_stands_and_read_as_any_other():
    stored = {"a": {"M": {"b": {"N": "1"}}}}
    found = StoredMap(stored)
    assert found == {"a": {"b": 1}}
    assert repr(found) == "{'a': {'b': 1}}"
    assert len(found) == 1
    assert encode({"x": found}) == {"M": {"x": {"M": stored}}}


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (datetime(2026, 3, 1, 12, tzinfo=UTC), {"S": "2026-03-01T12:00:00.000000Z"}),
        (date(2026, 3, 1), {"S": "2026-03-01"}),
        ((1, "a"), {"L": [{"N": "1"}, {"S": "a"}]}),
        (bytearray(b"a"), {"B": b"a"}),
        (frozenset({"b", "a"}), {"SS": ["a", "b"]}),
        (Image({"a": {"S": "x"}}), {"M": {"a": {"S": "x"}}}),
        (StrEnum("Colour", {"RED": "red"}).RED, {"S": "red"}),
    ],
)
def test_more_types_have_one_stated_form(value, encoded):
    assert encoded == encode(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "Value 1.5 is a float, which is not exact: use Decimal('1.5') or a whole number; in place"),
        ({"a": [0.1]}, "Value 0.1 is a float, which is not exact: use Decimal('0.1') or a whole number; in place"),
        (set(), "Set set() cannot be stored: expected members that are all text, all numbers or all bytes, at least"),
        ({1, "a"}, "cannot be stored: expected members that are all text, all numbers or all bytes, at least one."),
        ({None}, "Set {None} cannot be stored: expected members that are all text, all numbers or all bytes, at"),
        ({1: "a"}, "Name 1 of an attribute cannot be used: expected text that is not empty."),
        ({"": "a"}, "Name '' of an attribute cannot be used: expected text that is not empty."),
        ({"a\ud800": "a"}, "Name 'a\\ud800' of an attribute cannot be used: it holds half of a surrogate pair."),
        ([{"é": {"\udfff": 1}}], "Name '\\udfff' of an attribute cannot be used: it holds half of a surrogate pair."),
        (datetime.fromisoformat("2026-03-01"), "cannot be stored: it has no time zone; give one, for example"),
        (object, "of type type cannot be stored: expected text, a number, bytes, bool, None, a list, a dict with"),
        (Decimal("NaN"), "Number NaN cannot be stored: expected a finite number."),
    ],
)
def test_a_value_that_dynamodb_does_not_have_is_refused(value, message):
    with pytest.raises(HandlerError) as caught:
        encode(value)
    assert message in str(caught.value)


MALFORMED = [{}, {"Q": "1"}, "text", 5, {"L": ["a"]}, {"M": 5}, {"L": 5}]
MALFORMED += [{"S": "a", "N": "1"}, {"N": "1", "S": "a"}, {"L": [{"S": "a", "NULL": True}]}]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_attribute_value_is_refused_with_what_was_expected(value):
    with pytest.raises(RecordError) as caught:
        decode(value)
    assert "is no attribute value: expected one of S N B BOOL NULL L M SS NS BS with its content" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"N": "abc"}, "no attribute value: its content is no number as text"),
        ({"N": ""}, "its content is no number as text"),
        ({"N": None}, "its content is no number as text"),
        ({"NS": ["1", "x"]}, "its content is no list of numbers as text"),
        ({"B": "a b"}, "its content is no base64"),
        ({"BS": ["QQ"]}, "its content is no list of base64"),
        ({"SS": 5}, "its content is no list of texts"),
    ],
)
def test_an_attribute_value_whose_content_is_not_of_its_type_says_so(value, message):
    with pytest.raises(RecordError) as caught:
        decode(value)
    assert str(caught.value).endswith(f"{message}.")
    with pytest.raises(RecordError) as caught:
        Image({"a": value})["a"]
    assert str(caught.value).endswith(f"{message}.")


def test_a_malformed_attribute_is_not_taken_for_one_that_is_missing():
    with pytest.raises(RecordError):
        Image({"a": {"Q": "1"}}).get("a", "default")


@pytest.mark.parametrize("value", [{"S": "a", "N": "1"}, {"N": "1", "BOOL": True}, {"BOOL": True, "NULL": True}, {}])
def test_an_attribute_of_an_image_with_two_types_or_none_is_refused(value):
    with pytest.raises(RecordError, match=r"Attribute 'a' is .*, which is no attribute value|is no attribute value"):
        Image({"a": value})["a"]


def nested(levels, kind):
    """A value of so many levels, the text inside being one."""
    value = "a"
    for _ in range(levels - 1):
        value = [value] if kind is list else {"b": value}
    return value


def nested_raw(levels, tag):
    value = {"S": "a"}
    for _ in range(levels - 1):
        value = {"L": [value]} if tag == "L" else {"M": {"b": value}}
    return value


@pytest.mark.parametrize(("kind", "tag"), [(list, "L"), (dict, "M")])
def test_32_levels_of_lists_and_maps_are_taken_and_more_are_refused(kind, tag):
    assert encode({"v": nested(32, kind)}) == {"M": {"v": nested_raw(32, tag)}}
    assert Image({"v": nested_raw(32, tag)})["v"] == nested(32, kind)
    with pytest.raises(HandlerError, match="nested deeper than the 32 levels that DynamoDB holds: store less of it"):
        encode({"v": nested(33, kind)})
    with pytest.raises(RecordError, match="nested deeper than the 32 levels that DynamoDB holds"):
        Image({"v": nested_raw(33, tag)})["v"]


def test_values_nested_without_end_are_refused():
    value = []
    value.append(value)
    with pytest.raises(HandlerError, match="nested deeper than the 32 levels"):
        encode(value)


RESERVED = {"_sf_v": {"S": "version"}, "_sf_n": {"N": "1"}, "aws:rep:deleting": {"BOOL": False}}
RAW = {"a": {"N": "1"}, "tags": {"L": []}, **RESERVED}


def test_an_image_is_a_mapping_without_the_framework_s_and_replication_s_attributes():
    image = Image(RAW)
    assert dict(image) == {"a": 1, "tags": []}
    assert len(image) == 2
    assert "_sf_v" not in image
    assert image.get("_sf_n") is None
    assert repr(image) == "Image({'a': 1, 'tags': []})"


def test_an_absent_image_is_empty_and_falsy():
    assert not Image({})
    assert dict(Image({})) == {}
    assert Image(RAW)


def test_an_image_cannot_be_changed():
    image = Image(RAW)
    with pytest.raises(TypeError):
        image["a"] = 2
    with pytest.raises(TypeError):
        image["tags"].append("x")
    assert image["tags"] == []


def test_whether_an_image_has_an_attribute_is_told_without_decoding_it():
    assert "broken" in Image({"broken": {"Q": "1"}})


def test_a_missing_attribute_is_a_key_error_that_names_it():
    with pytest.raises(KeyError) as caught:
        Image(RAW)["price"]
    assert str(caught.value) == (
        "The item has no attribute 'price': yield nothing for such an item, if 'price' in item: ..., or give "
        "a default, item.get('price', ...)."
    )
    assert Image(RAW).get("price", 5) == 5


def test_attributes_with_a_reserved_beginning_are_hidden():
    names = ["_sf_x", "aws:rep:updatetime", "_s", "sf_", "aws"]
    assert list(filter(hidden, names)) == ["_sf_x", "aws:rep:updatetime"]


@given(st.dictionaries(texts.filter(bool), values, max_size=4))
def test_a_digest_is_the_same_whatever_the_order(attributes):
    turned = dict(reversed(attributes.items()))
    assert digest(encode(attributes)["M"]) == digest(encode(turned)["M"])


contents = st.dictionaries(st.text("ab", min_size=1), values, max_size=3)


@given(contents, contents)
def test_different_contents_have_different_digests(one, other):
    one, other = encode(one)["M"], encode(other)["M"]
    assert (one == other) == (digest(one) == digest(other))


def test_what_is_no_attribute_value_has_no_json():
    with pytest.raises(TypeError, match="is not an attribute value"):
        to_json({"x": {"S": object()}})


def test_an_item_over_400_kb_is_refused_with_its_size():
    too_large = {"text": {"S": "x" * ITEM_BYTES_MAX}}
    with pytest.raises(HandlerError, match="The row has 409604 bytes; DynamoDB takes items of 409600 at most"):
        digest(too_large)


def test_an_item_of_400_kb_is_not_refused_for_what_its_json_adds():
    assert digest({"bytes": {"B": b"\0" * (ITEM_BYTES_MAX - 5)}})


SCALARS = [("é", 2), (12345, 4), (b"abc", 3), (True, 1), (None, 1)]


@pytest.mark.parametrize(("value", "size"), [*SCALARS, (["a"], 5), ({"n": "a"}, 6), ({"a", "bc"}, 8), ({b"a"}, 5)])
def test_the_size_of_an_item_is_counted_as_the_developer_guide_says(value, size):
    assert len("name") + size == item_bytes(encode({"name": value})["M"])


def test_arithmetic_that_would_need_more_digits_raises_and_never_rounds():
    with localcontext(EXACT):
        for compute in (lambda: LARGEST + Decimal("0.1"), lambda: Decimal(1) / 3, lambda: Decimal(1) / 0):
            with pytest.raises(DecimalException):
                compute()
        assert -Decimal(LARGEST) == -LARGEST


def test_unary_minus_loses_digits_under_python_s_own_context():
    with localcontext() as own:
        own.traps[Inexact] = False
        assert -Decimal(LARGEST) != -LARGEST
