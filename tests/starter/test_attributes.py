"""Types that are proposed for the attributes of items."""

import pytest

from streamfold.starter.attributes import types_of

TEXT = {"S": "x"}


def types(*images):
    return [each.text() for each in types_of("Order", "ORDER", images, set())]


def test_types_have_what_is_always_often_and_seldom_there():
    images = [{"always": TEXT} | ({"often": {"N": "1"}} if number % 3 else {}) for number in range(9)]
    images[0]["seldom"] = {"BOOL": True}
    (text,) = types(*images)
    assert "    always: str\n" in text
    assert "    often: NotRequired[int]  # often: in 67% of the items\n" in text
    assert "    seldom: NotRequired[bool]  # seldom: in 11% of the items\n" in text


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([{"N": "1"}, {"N": "2"}], "int"),
        ([{"N": "1"}, {"N": "2.5"}], "int | Decimal"),
        ([{"S": "x"}, {"NULL": True}], "str | None"),
        ([{"B": "eA=="}], "bytes"),
        ([{"SS": ["a"]}], "set[str]"),
        ([{"NS": ["1", "2.5"]}], "set[int | Decimal]"),
        ([{"BS": ["eA=="]}], "set[bytes]"),
        ([{"L": []}], "list[Any]"),
        ([{"L": [{"S": "x"}, {"N": "1"}]}], "list[str | int]  # unsure: values of several types"),
        ([{"M": {}}], "dict[str, Any]"),
        ([{"M": {"a": {"N": "1"}}}, {"M": {"b": {"N": "1"}}}, {"M": {"c": {"N": "1"}}}], "dict[str, int]"),
        ([{"M": {"city": TEXT}}], "OrderName"),
        ([{"NULL": True}], "None  # unsure: null in all items"),
    ],
)
def test_attributes_have_the_type_that_a_handler_gets(values, type_):
    *_, text = types(*({"name": value} for value in values))
    assert f"    name: {type_}\n" in text


def test_a_map_with_fixed_names_is_a_type_of_its_own():
    nested, _ = types({"address": {"M": {"city": TEXT, "at": {"L": [{"N": "1.5"}]}}}})
    assert nested.startswith("class OrderAddress(TypedDict):")
    assert "    at: list[int | Decimal]\n    city: str\n" in nested


def test_names_that_python_does_not_take_have_the_other_syntax():
    (text,) = types({"my-name": TEXT, "class": TEXT})
    names = {}
    exec(f"from typing import TypedDict\n{text}", names)
    assert names["Order"].__annotations__.keys() == {"my-name", "class"}
