"""An image is read-only, and says what to do instead."""

import pytest

from streamfold.records.images import Image

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
