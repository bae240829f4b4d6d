"""Numbers that are rounded on purpose, and what is said of those that are not exact."""

import re
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Count, Row, Sum, divide, rounded
from streamfold.errors import HandlerError
from streamfold.records.values import EXACT
from tests.helpers.contributions import contribution
from tests.helpers.records import image
from tests.helpers.small_handlers import FIELDS, LINE, ORDER_ITEM, TOTAL, route

NUMBERS = st.one_of(st.integers(-(10**19), 10**19), st.decimals(-(10**9), 10**9, places=6))


def test_a_quotient_has_the_places_that_were_asked_for():
    assert (str(divide(2, 3, places=2)), str(divide(6, 3, places=2)), str(divide(7, 2, places=0))) == (
        "0.67",
        "2.00",
        "4",
    )


def test_whole_numbers_and_others_are_rounded_alike():
    assert f"{rounded(3, places=2)} {rounded(Decimal('2.345'), places=2)}" == "3.00 2.34"
    assert str(rounded(Decimal("2.345"), places=2, rounding=ROUND_HALF_UP)) == "2.35"


def test_no_zero_has_a_sign():
    assert str(rounded(Decimal("-0.001"), places=2)) == "0.00"


@given(NUMBERS, NUMBERS.filter(bool), st.integers(0, 6))
def test_a_quotient_is_rounded_once(above, below, places):
    with localcontext(EXACT):  # as a handler is called
        assert Fraction(divide(above, below, places=places)) == round(Fraction(above) / Fraction(below), places)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: divide(1, 0, places=2), "divide(1, 0, places=2) divides by zero: yield nothing for such an item"),
        (lambda: divide(0.5, 2, places=2), "takes 0.5 of type float: expected int or Decimal."),
        (lambda: rounded("1", places=2), "takes '1' of type str: expected int or Decimal."),
        (lambda: rounded(True, places=2), "takes True of type bool: expected int or Decimal."),
        (lambda: rounded(1, places=-1), "has places=-1: expected a whole number from 0 to 37."),
        (lambda: rounded(10**20, places=20), "has more than 38 digits: expected fewer places."),
        (lambda: rounded(Decimal("NaN"), places=2), "expected a finite number"),
    ],
)
def test_what_cannot_be_rounded_is_refused(call, message):
    with pytest.raises(HandlerError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (
            lambda: Decimal(1) / 3,
            "cannot hold exactly (Inexact). Results are never rounded on the way. To round on purpose",
        ),
        (lambda: Decimal(1) / 0, "divided by zero: yield nothing for such an item, or choose a value for it."),
        (lambda: Decimal(0) / 0, "divided by zero: yield nothing for such an item, or choose a value for it."),
        (lambda: Decimal("n/a"), "made a Decimal of text that is no number: yield nothing for such an item."),
        (
            lambda: f"{Decimal(1):d}",
            "Numbers are int or Decimal: int(n) for d, rounded(n, places=2), of streamfold, for f.",
        ),
    ],
)
@pytest.mark.usefixtures("exact")
def test_arithmetic_that_is_refused_is_told_with_what_to_do(compute, message):
    def fails(item):
        yield Row(n=Count(), attributes={"computed": Sum(compute())})

    with pytest.raises(HandlerError, match=re.escape(message)):
        contribution(route("view", fails, ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)
