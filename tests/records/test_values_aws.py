"""Attribute values to Python and back, as boto3 does it."""

import json
from decimal import Decimal

from boto3.dynamodb.types import Binary, TypeDeserializer, TypeSerializer
from hypothesis import given

from streamfold.records.values import decode, encode, number_text, to_json
from tests.helpers.values import large, numbers, values


def plain(value):
    """What boto3 decodes, without its own type for bytes."""
    if isinstance(value, Binary):
        return value.value
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, list | set) else value


@given(numbers | large)
def test_a_number_is_spelled_as_boto3_values_it(number):
    assert Decimal(TypeSerializer().serialize(number)["N"]) == Decimal(number_text(number))


@given(values)
def test_a_value_is_encoded_as_boto3_does(value):
    deserialize = TypeDeserializer().deserialize
    assert plain(deserialize(TypeSerializer().serialize(value))) == plain(deserialize(encode(value)))


@given(values)
def test_an_attribute_value_is_decoded_as_boto3_does(value):
    raw = TypeSerializer().serialize(value)
    assert plain(TypeDeserializer().deserialize(raw)) == decode(json.loads(to_json(raw)))
