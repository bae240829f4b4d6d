"""Values and texts of any length in messages."""

import pytest

from streamfold import errors
from streamfold.errors import VALUE_LENGTH_MAX, StreamfoldError, plain, public, reason, redacted, shortened, shown


@pytest.mark.parametrize("value", ["a", 5, {"a": [1, "b"]}, None, b"\x00", (1,), frozenset({1})])
def test_a_short_value_is_shown_as_python_writes_it(value):
    assert plain(shown(value)) == repr(value)


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, b"x" * 10**6, 10**4000, ["x" * 1000] * 1000, {str(number): "x" * 1000 for number in range(1000)}],
    ids=["text", "bytes", "number", "list", "map"],
)
def test_a_long_value_is_shown_without_its_middle(value):
    assert "..." in plain(shown(value))
    assert len(plain(shown(value))) <= 2 * VALUE_LENGTH_MAX


def test_a_value_that_holds_itself_is_shown():
    value = []
    value.append(value)
    assert "[...]" in shown(value)


def test_a_text_keeps_its_beginning_and_its_end():
    assert shortened("a" * 50 + "b" * 50, 30) == "a" * 20 + "..." + "b" * 7
    assert shortened("abc", 3) == "abc"


def test_a_log_has_all_of_a_text_but_what_it_tells_of_an_item():
    error = StreamfoldError(f"Item {redacted('ORDER#1')} has {shown(5)}, expected text.")
    assert str(error) == "Item ORDER#1 has 5, expected text."
    assert public(reason(error)) == "Item ... has ..., expected text."


def test_what_is_told_cannot_end_before_its_end():
    (opened, *_, closed) = redacted("")
    assert public(f"Item {redacted(f'a{closed}b{opened}c')}.") == "Item ...."
    assert plain(redacted(f"a{closed}b{opened}c")) == "abc"


def test_of_an_error_that_was_raised_elsewhere_all_is_told():
    with pytest.raises(StreamfoldError) as raised:
        raise StreamfoldError("of a handler")
    assert public(reason(raised.value)) == public(reason(ValueError("of Python"))) == "..."


def test_a_name_of_an_earlier_commit_names_that_of_now():
    with pytest.raises(ImportError, match="PlaceError of an earlier commit is named LocationError now"):
        from streamfold.errors import PlaceError  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        errors.Nothing  # noqa: B018
