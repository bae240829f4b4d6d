"""Values are compared by what they hold, shown with it, and copied with changes."""

import pytest

from streamfold.records.values import Nothing, Value, value


@value
class PostAndEdge(Value):
    one: int
    other: object = Nothing()


@value
class Twin(Value):
    one: int
    other: object = Nothing()


def test_values_that_hold_the_same_are_equal():
    assert PostAndEdge(1, 2) == PostAndEdge(1, 2)
    assert PostAndEdge(1, 2) != PostAndEdge(1, 3)


def test_values_of_different_classes_are_not_equal():
    assert PostAndEdge(1, 2) != Twin(1, 2)


def test_values_that_hold_the_same_are_one_in_a_set():
    assert len({PostAndEdge(1), PostAndEdge(1), PostAndEdge(2)}) == 2


def test_a_value_that_holds_a_list_has_no_hash():
    with pytest.raises(TypeError, match="unhashable"):
        hash(PostAndEdge(1, []))


def test_a_value_shows_what_it_holds():
    assert repr(PostAndEdge(1, "b")) == "PostAndEdge(one=1, other='b')"


def test_a_copy_has_the_changes_and_the_rest():
    pair = PostAndEdge(1, 2)
    assert pair._replace(other=3) == PostAndEdge(1, 3)
    assert pair == PostAndEdge(1, 2)


def test_nothing_is_an_empty_mapping():
    assert Nothing() == {}
    assert not Nothing()
