"""An image that notes what is read of it never says that another one reads alike where it does not."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold.errors import AttributeMissing
from streamfold.records.images import Image, WatchedImage

RAW = {"a": {"S": "x"}, "b": {"N": "1"}, "_sf_n": {"N": "2"}}
NAMES = "abc"

READINGS = {
    "get": lambda image, name: image.get(name),
    "in": lambda image, name: name in image,
    "names": lambda image, _: sorted(image),
    "length": lambda image, _: len(image),
    "items": lambda image, _: dict(image),
    "equal": lambda image, _: image == {"a": "x"},
    "text": lambda image, _: repr(image).partition("(")[2],
    "raw": lambda image, _: image.raw,
    "copy": lambda image, _: copy.copy(image),
    "deep copy": lambda image, _: copy.deepcopy(image),
    "pickle": lambda image, _: pickle.loads(pickle.dumps(image)),
}
WHOLE = [how for how in READINGS if how not in ("get", "in")]
values = st.sampled_from([{"S": "x"}, {"S": "y"}, {"N": "1"}, {"N": "1.0"}])
images = st.dictionaries(st.sampled_from(NAMES), values, min_size=1)


@given(images, images, st.lists(st.tuples(st.sampled_from(sorted(READINGS)), st.sampled_from(NAMES)), max_size=4))
def test_images_that_are_said_to_read_alike_give_the_same_to_whoever_reads_them_so(one, other, readings):
    def read(image):
        return [READINGS[how](image, name) for how, name in readings]

    watched = WatchedImage(Image(one))
    assert read(watched) == read(Image(one))
    if watched.reads_alike(Image(other)):
        assert read(Image(one)) == read(Image(other))


@pytest.mark.parametrize("how", WHOLE)
def test_what_is_asked_of_an_image_as_a_whole_is_never_said_to_read_alike(how):
    watched = WatchedImage(Image(RAW))
    READINGS[how](watched, "")
    assert not watched.reads_alike(Image(RAW))


def test_what_was_not_read_may_differ():
    watched = WatchedImage(Image(RAW))
    assert watched["a"] == "x"
    assert watched.reads_alike(Image({**RAW, "b": {"N": "7"}}))
    assert not watched.reads_alike(Image({**RAW, "a": {"S": "y"}}))


def test_an_attribute_that_was_missed_counts_as_read():
    watched = WatchedImage(Image(RAW))
    with pytest.raises(AttributeMissing):
        watched["c"]
    assert not watched.reads_alike(Image({**RAW, "c": {"S": "x"}}))
