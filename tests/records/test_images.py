"""An image is read-only, and says what to do instead."""

import copy
import operator
import pickle
from contextlib import suppress

import pytest

from streamfold.records.images import CHANGES, Image
from streamfold.records.values import decode, encode

REMEDY = r"read-only: change a copy of it, dict\(item\)\."


def test_a_handler_that_sets_an_attribute_is_told_to_change_a_copy():
    item = Image({"n": {"N": "1"}})
    with pytest.raises(TypeError, match=REMEDY):
        item["n"] = 2
    assert dict(item) == {"n": 1}


def test_a_handler_that_deletes_an_attribute_is_told_to_change_a_copy():
    item = Image({"n": {"N": "1"}})
    with pytest.raises(TypeError, match=REMEDY):
        del item["n"]
    assert "n" in item


NESTED = {
    "size": {"M": {"length": {"N": "3"}, "notes": {"L": [{"S": "a"}]}}},
    "lines": {"L": [{"M": {"price": {"N": "2"}}}, {"N": "1"}]},
    "tags": {"SS": ["a", "b"]},
}
CHANGING = {
    "a member of a map is set": lambda item: item["size"].__setitem__("length", 1),
    "a member of a map is deleted": lambda item: item["size"].pop("length"),
    "a map is updated": lambda item: item["size"].update(length=1),
    "a list in a map grows": lambda item: item["size"]["notes"].append("b"),
    "a list is sorted": lambda item: item["lines"].sort(key=str),
    "a list is extended in place": lambda item: operator.iadd(item["lines"], [1]),
    "a map in a list is changed": lambda item: item["lines"][0].setdefault("tax", 1),
    "a member joins a set": lambda item: item["tags"].add("c"),
    "a set is joined in place": lambda item: operator.ior(item["tags"], {"c"}),
    "a map that get gives is changed": lambda item: item.get("size").clear(),
}


@pytest.mark.parametrize("change", CHANGING.values(), ids=CHANGING)
def test_a_change_of_a_nested_value_is_refused_with_the_remedy(change):
    item = Image(NESTED)
    with pytest.raises(TypeError, match=r"read-only: make a new one of it, .* copy\.deepcopy\("):
        change(item)
    assert item["size"]["length"] == 3


@pytest.mark.parametrize("kind", [dict, list, set])
def test_no_method_that_changes_a_container_is_forgotten(kind):
    read_only_kind = next(each for each in CHANGES if issubclass(each, kind))
    samples = {dict: {"a": 1}, list: [2, 1], set: {1, 2}}
    arguments = [(), ("a",), ("a", 1), (0,), (0, 1), ([3],), ({3},), (2,)]
    for name in dir(kind):
        for given in arguments:
            plain, fixed = copy.copy(samples[kind]), read_only_kind(samples[kind])
            with suppress(Exception):
                getattr(plain, name)(*given)
            if plain != samples[kind] and name not in ("__init__", "__setattr__"):
                with pytest.raises(TypeError, match="read-only"):
                    getattr(fixed, name)(*given)


def test_copies_of_nested_values_are_plain_and_can_be_changed():
    item = Image(NESTED)
    deep = copy.deepcopy(dict(item))
    deep["size"]["notes"].append("b")
    deep["tags"].add("c")
    joined = item["tags"] | {"c"}
    joined.add("d")
    made = [{**item["size"], "length": 4}, item["size"] | {"length": 4}, [*item["lines"], 5], sorted(item["tags"])]
    assert [type(each) for each in made] == [dict, dict, list, list]
    assert type(pickle.loads(pickle.dumps(item["size"]))["notes"]) is list
    assert (item["size"]["notes"], item["tags"]) == (["a"], {"a", "b"})


def test_nested_values_are_those_of_python_to_handlers():
    item = Image(NESTED)
    assert isinstance(item["size"], dict)
    assert isinstance(item["lines"], list)
    assert isinstance(item["tags"], set)
    assert encode(dict(item)) == encode({name: decode(value) for name, value in NESTED.items()})
    assert repr(item["tags"] - {"b"}) == "{'a'}"
