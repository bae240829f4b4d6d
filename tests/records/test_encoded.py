"""JSON by orjson is that of the standard library, which is used where there is no orjson, as in `make quick`."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold.records import values
from streamfold.records.values import to_json

TEXTS = st.text(st.characters(codec="utf-8")) | st.sampled_from(["\x7f", '\x00\x1f\n\t\b\f\r"\\/', "é", "\U0001f600"])
NUMBERS = st.from_regex(r"-?[1-9][0-9]{0,37}", fullmatch=True)
LEAVES = (
    st.builds(lambda text: {"S": text}, TEXTS)
    | st.builds(lambda text: {"N": text}, NUMBERS)
    | st.builds(lambda content: {"B": content}, st.binary())
    | st.builds(lambda members: {"BS": members}, st.lists(st.binary(), min_size=1))
    | st.sampled_from([{"BOOL": True}, {"NULL": True}])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda members: {"L": members}, st.lists(inner))
        | st.builds(lambda members: {"M": members}, st.dictionaries(TEXTS, inner))
    ),
    max_leaves=8,
)
ITEMS = st.dictionaries(TEXTS, VALUES | TEXTS | st.integers())
HALF_A_PAIR = "\ud800"


@pytest.fixture(params=["orjson", "json"])
def library(request, monkeypatch):
    """Both libraries, one after the other."""
    if request.param == "json":
        monkeypatch.setattr(values, "ORJSON", None)
    return request.param


@given(ITEMS)
def test_an_item_has_the_same_text(item):
    assert values.item_text(item) == to_json(item)


@given(ITEMS)
def test_a_body_says_the_same(item):
    assert json.loads(values.request_json(item)) == json.loads(values.REQUEST_JSON.encode(item))


@given(st.dictionaries(TEXTS, VALUES))
@settings(max_examples=20)
def test_an_answer_says_the_same(item):
    text = to_json(item).encode()
    assert values.parsed_response(text) == json.loads(text)


@pytest.mark.parametrize("item", [{"n": 10**30}, {1: "a"}, {"text": HALF_A_PAIR}, {"ab"[:1]: {"S": "x"}}])
def test_what_orjson_does_not_take_has_the_same_text(library, item):
    assert values.item_text(item) == to_json(item)
    assert json.loads(values.request_json(item)) == json.loads(values.REQUEST_JSON.encode(item))


def test_an_item_of_many_levels_has_the_same_text(library):
    item = {"S": "x"}
    for _ in range(300):
        item = {"M": {"a": item}}
    assert values.item_text(item) == to_json(item)


def test_an_answer_with_half_a_pair_is_parsed(library):
    assert values.parsed_response(rb'{"S": "\ud800"}') == {"S": HALF_A_PAIR}


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"a" 1}'])
def test_what_is_no_json_is_an_error(library, text):
    with pytest.raises(json.JSONDecodeError if text != b"\xff" else UnicodeDecodeError):
        values.parsed_response(text)


@pytest.mark.parametrize("call", [values.item_text, values.request_json])
def test_what_no_json_is_made_of_is_an_error(library, call):
    with pytest.raises(TypeError, match=r"not an attribute value|no part of a request"):
        call({"a": object()})
