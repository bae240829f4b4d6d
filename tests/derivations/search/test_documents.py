"""Documents as JSON, and the names that indexes and documents have."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Document, Key, Part, Parts
from streamfold.derivations.search.documents import document_text, own_fields, parsed
from streamfold.derivations.search.options import index_name, key_id, real_template, setting_name, shortened_id
from streamfold.derivations.search.sink import ID_BYTES_MAX
from streamfold.errors import AttributeMissing, HandlerError, SettingsError
from streamfold.keys.key_part import KeyComponent

LINE = Key("ORDER#{order_id}", "LINE#{sku}")


def text(**fields):
    return document_text(fields).decode()


def test_every_digit_of_a_number_stays():
    digits = "12345678901234567890123456789012345678"
    assert text(a=Decimal(digits), b=Decimal("0.10"), c=int(digits)) == f'{{"a":{digits},"b":0.10,"c":{digits}}}'


def test_sets_bytes_moments_and_empty_text_have_one_form():
    at = datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert text(a={"b", "a"}, b=b"\x00\xff", c=at, d=date(2026, 3, 1), e="") == (
        '{"a":["a","b"],"b":"AP8=","c":"2026-03-01T10:00:00.000000Z","d":"2026-03-01","e":""}'
    )


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Decimal("NaN"), "finite"),
        (float("inf"), "finite"),
        (datetime(2026, 3, 1), "no time zone"),  # noqa: DTZ001 - that is what is refused
        ({1, "a"}, "one type"),
        (object(), "of type object"),
        ({1: 2}, "Name 1 of a field"),
        ({"": 2}, "not empty"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_json_cannot_hold_is_refused(value, what):
    with pytest.raises(HandlerError, match=what):
        document_text({"field": value})


def test_a_value_that_is_nested_too_deep_is_refused():
    deep: list[object] = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(HandlerError, match="nested deeper"):
        document_text({"field": deep})


def test_names_of_the_framework_are_refused():
    with pytest.raises(HandlerError, match="are reserved"):
        document_text({"_sf_gone": True})
    assert own_fields({"a": 1, "_sf_h": "x"}) == {"a": 1}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text("ab", min_size=1), inside, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abc", min_size=1), VALUES))
def test_what_python_writes_as_json_is_written_alike(fields):
    assert json.loads(document_text(fields)) == fields


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_is_read_back_with_its_digits(number):
    assert parsed(document_text({"n": number}))["n"] == number


@given(st.lists(st.tuples(st.text("a|%#", min_size=1), st.text("a|%#", min_size=1)), unique=True, min_size=2))
def test_two_items_never_have_one_id(keys):
    assert len({key_id(("main", *key), names_table=False) for key in keys}) == len(keys)


@given(st.lists(st.text(min_size=1), unique=True, min_size=2))
def test_two_values_never_name_one_index(values):
    index = KeyComponent("songs-{tenant}", "#", 1000)
    values = [value for value in values if "#" not in value and len(value) < 20]
    assert len({index_name(index, {"tenant": value}) for value in values}) == len(values)


def test_names_of_indexes_have_small_letters_only():
    assert index_name(KeyComponent("songs-{tenant}", "#", 1000), {"tenant": "Ac-me é"}) == "songs-%41c-me%20%c3%a9"
    two = KeyComponent("songs-{a}-{b}", "#", 1000)
    assert index_name(two, {"a": "x-y", "b": "z"}) != index_name(two, {"a": "x", "b": "y-z"})


def test_a_long_id_is_cut_and_told_apart_by_a_digest():
    one, other = "é" * 400, "é" * 399 + "e"
    assert len(shortened_id(one).encode()) <= ID_BYTES_MAX
    assert shortened_id(one) != shortened_id(other)
    assert shortened_id("short") == "short"


def test_a_setting_gives_an_index_another_name_with_the_same_fields():
    index = KeyComponent("songs-{tenant}", "#", 1000)
    assert setting_name(index) == "songs"
    assert real_template(index, "dev-songs-{tenant}").text == "dev-songs-{tenant}"
    for wrong in ("dev-songs", "Dev-{tenant}", "{tenant"):
        with pytest.raises(SettingsError, match="STREAMFOLD_INDEX_SONGS"):
            real_template(index, wrong)


def test_parts_are_asked_for_by_their_key():
    parts = Parts({LINE: [{"price": 3}, Part({"price": 4}, {"sku": "b"})]})
    assert [part["price"] for part in parts(LINE)] == [3, 4]
    assert parts(LINE)[1].key == {"sku": "b"}
    with pytest.raises(HandlerError, match="found 2"):
        parts.one(LINE)
    with pytest.raises(HandlerError, match="expected a key of parts="):
        parts(Key("ORDER#{order_id}", "NOTE#{number}"))
    with pytest.raises(AttributeMissing):
        parts(LINE)[0]["name"]
    with pytest.raises(HandlerError, match="expected a Part"):
        Parts({LINE: [3]})


def test_a_document_has_the_fields_that_it_is_given():
    assert Document(title="a", attributes={"first-name": "b"}).fields == {"title": "a", "first-name": "b"}
    assert Document(title="a") == Document(title="a")
    with pytest.raises(TypeError):
        Document({"title": "a"})
