"""What a handler may yield: values that a test compares with literals."""

import re
from decimal import Decimal

import pytest

from streamfold import Add, Average, Count, Delete, Key, Put, Row, Sum
from streamfold.errors import HandlerError

TOTAL = Key("ORDER#{order_id}", "TOTAL")


def test_rows_of_the_same_values_are_equal():
    assert Row(day="2026-03-01", units=Sum(2)) == Row(units=Sum(2), day="2026-03-01")
    assert Row(TOTAL, attributes={"x": 1}) == Row(Key("ORDER#{order_id}", "TOTAL"), attributes={"x": 1})


OTHERS = [Row(units=Sum(3)), Row(units=2), Row(TOTAL, units=Sum(2)), Row(), Put(units=Sum(2)), None]


@pytest.mark.parametrize("other", OTHERS)
def test_effects_of_other_values_target_or_kind_differ(other):
    assert Row(units=Sum(2)) != other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Sum(1), Sum(Decimal("1.0"))),
        (Row(units=Sum(1), day="x"), Row(day="x", units=Sum(Decimal("1.00")))),
        (Put(TOTAL, tags={"a"}), Put(TOTAL, tags={"a"})),
        (Count(), Count()),
        (Average(2), Average(Decimal("2.0"))),
    ],
)
def test_equal_effects_are_one_member_of_a_set(one, other):
    assert one == other
    assert len({one, other}) == 1


def test_effects_with_other_attributes_are_kept_apart_by_their_hash():
    assert len({hash(Row(**{name: 1})) for name in ("a", "b", "c", "d")}) > 1


def test_an_average_adds_to_a_sum_and_a_count():
    assert Average(5).amounts("score") == (("score_sum", 5), ("score_count", 1))
    assert Average(5) != Sum(5)


def test_an_average_of_what_is_no_number_is_refused_where_it_stands():
    with pytest.raises(HandlerError, match=re.escape("Average('5') is of type str, expected int or Decimal: a")):
        Average("5")


def test_a_count_is_no_sum_of_one():
    assert Count() != Sum(1)
    assert Count().amount == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "Sum(1.5) is of type float, expected int or Decimal: use Decimal('1.5'); in place of a / b, divide("),
        (True, "Sum(True) is of type bool, expected int or Decimal."),
        (
            "5",
            "Sum('5') is of type str, expected int or Decimal: a number that is stored as text becomes one by Sum(",
        ),
        (None, "Sum(None) is of type NoneType, expected int or Decimal: leave Sum out for an item without a value."),
        (Decimal("NaN"), "Number NaN cannot be stored: expected a finite number."),
        (10**38 + 1, f"Number {10**38 + 1} cannot be stored: DynamoDB holds 38 digits"),
    ],
)
def test_a_sum_of_what_is_no_number_is_refused_where_it_stands(value, message):
    with pytest.raises(HandlerError, match="^" + re.escape(message)):
        Sum(value)


@pytest.mark.parametrize("kind", [Row, Put, Add, Delete])
def test_a_first_argument_that_is_no_key_is_refused(kind):
    with pytest.raises(HandlerError) as caught:
        kind("orders", total=1)
    message = "('orders', ...): the first argument is the target Key; attributes are given by name."
    assert kind.__name__ + message == str(caught.value)


@pytest.mark.parametrize("attributes", ["x", ["x"], {1: "x"}])
def test_attributes_that_are_no_mapping_of_names_are_refused(attributes):
    with pytest.raises(HandlerError) as caught:
        Row(attributes=attributes)
    assert f"Row(attributes={attributes!r}): expected a mapping of names to values." == str(caught.value)


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (Row(day="d", total=Sum(Decimal("1.5"))), "Row(day='d', total=Sum(Decimal('1.5')))"),
        (Row(TOTAL, lines=Count()), "Row(Key('ORDER#{order_id}', 'TOTAL'), lines=Count())"),
        (Put(TOTAL, attributes={"a": 1}), "Put(Key('ORDER#{order_id}', 'TOTAL'), attributes={'a': 1})"),
        (Add(TOTAL, n=1), "Add(Key('ORDER#{order_id}', 'TOTAL'), n=1)"),
        (Delete(), "Delete()"),
    ],
)
def test_an_effect_shows_as_it_is_written(effect, text):
    assert text == repr(effect)
