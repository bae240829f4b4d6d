"""Values and texts of any length in messages."""

import pytest

from streamfold.errors import VALUE_LENGTH_MAX, shortened, shown


@pytest.mark.parametrize("value", ["a", 5, {"a": [1, "b"]}, None, b"\x00", (1,), frozenset({1})])
def test_a_short_value_is_shown_as_python_writes_it(value):
    assert shown(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, b"x" * 10**6, 10**4000, ["x" * 1000] * 1000, {str(number): "x" * 1000 for number in range(1000)}],
    ids=["text", "bytes", "number", "list", "map"],
)
def test_a_long_value_is_shown_without_its_middle(value):
    assert "..." in shown(value)
    assert len(shown(value)) <= 2 * VALUE_LENGTH_MAX


def test_a_value_that_holds_itself_is_shown():
    value = []
    value.append(value)
    assert "[...]" in shown(value)


def test_a_text_keeps_its_beginning_and_its_end():
    assert shortened("a" * 50 + "b" * 50, 30) == "a" * 20 + "..." + "b" * 7
    assert shortened("abc", 3) == "abc"
