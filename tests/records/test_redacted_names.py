"""Names of attributes in the errors of images and Kinesis records that cannot be read."""

import copy
import json
import pickle
from base64 import b64encode

import pytest

from streamfold.errors import AttributeMissing, RecordError
from streamfold.records.images import Image
from streamfold.records.kinesis import unwrapped

IMAGE = Image({"price": {"N": "3"}, "_sf_v": {"S": "x"}})


def test_an_attribute_that_is_asked_for_with_a_dot_tells_the_brackets():
    with pytest.raises(AttributeError, match=r'read item\["price"\]\.'):
        IMAGE.price  # noqa: B018
    with pytest.raises(AttributeError, match=r'read item\["prize"\], or item\.get\("prize"\)'):
        IMAGE.prize  # noqa: B018
    assert not hasattr(IMAGE, "prize")


def test_an_attribute_that_is_missing_tells_the_nearest():
    with pytest.raises(AttributeMissing) as raised:
        IMAGE["prize"]
    assert "'prize'. Did you mean 'price'? If not, yield nothing" in str(raised.value)
    with pytest.raises(AttributeMissing) as raised:
        IMAGE["_sf_w"]
    assert "Did you mean" not in str(raised.value)


def test_an_attribute_of_an_absent_image_names_the_events_that_have_none():
    with pytest.raises(AttributeMissing, match=r"an INSERT has no old image.*events=\[\"MODIFY\"\].*change\.old\.get"):
        Image({})["status"]
    assert Image({}).get("status") is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda image: pickle.loads(pickle.dumps(image))])
def test_an_image_can_be_copied(copied):
    assert dict(copied(IMAGE)) == {"price": 3}


def kinesis(image):
    body = {"tableName": "main", "dynamodb": {"Keys": {"PK": {"S": "a"}}, "NewImage": image}}
    return {"kinesis": {"sequenceNumber": "7", "data": b64encode(json.dumps(body).encode()).decode()}}


ONCE, TWICE = b64encode(b"\xff\xfe\x01").decode(), b64encode(b64encode(b"\xff\xfe\x01")).decode()


@pytest.mark.parametrize(
    "value",
    [
        {"B": ONCE},
        {"BS": [TWICE, ONCE]},
        {"M": {"a": {"L": [{"B": ONCE}]}}},
        {"B": "no base64!"},
        {"B": b64encode(b"ab").decode()},
    ],
)
def test_a_binary_value_that_is_not_encoded_twice_is_told_with_its_attribute(value):
    with pytest.raises(RecordError) as raised:
        unwrapped(kinesis({"PK": {"S": "a"}, "photo": value}))
    assert "Kinesis record 7 has a binary value in attribute 'photo' that is not base64 of base64" in str(raised.value)


def test_a_binary_value_that_is_encoded_twice_is_taken():
    found = unwrapped(kinesis({"PK": {"S": "a"}, "photo": {"B": TWICE}}))

    assert found["dynamodb"]["NewImage"]["photo"] == {"B": ONCE}
