"""Values are equal as a store tells them: a truth value is no number."""

from decimal import Decimal

import pytest

from streamfold.records.values import alike, is_zero


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, Decimal("1.0")),
        (True, True),
        ([1, {"a": None}], [Decimal(1), {"a": None}]),
        ({"a", "b"}, {"b", "a"}),
        (None, None),
    ],
)
def test_equal_values_are_alike(one, other):
    assert alike(one, other)
    assert alike(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        ([1], [True]),
        ({"a": [0]}, {"a": [False]}),
        ([1], [1, 1]),
        ({"a": 1}, {"b": 1}),
        ("1", 1),
        ({}, []),
    ],
)
def test_other_values_are_not(one, other):
    assert not alike(one, other)
    assert not alike(other, one)


def test_only_a_number_is_zero():
    assert [is_zero(value) for value in (0, Decimal("-0.00"), False, "", None, [])] == [True, True, *[False] * 4]
