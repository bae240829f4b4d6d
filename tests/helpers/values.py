"""Strategies of attribute values: every number that DynamoDB holds, and what lists, sets and maps hold."""

from decimal import Decimal

from hypothesis import strategies as st

from streamfold.records.values import EXACT

LARGEST = 10**38 - 1
texts = st.text(st.characters(codec="utf-8"), max_size=5)
coefficients = st.integers(-LARGEST, LARGEST)
fine = st.builds(lambda digits, places: Decimal(digits).scaleb(-places, EXACT), coefficients, st.integers(0, 130))
large = st.builds(lambda digits, zeros: Decimal(digits).scaleb(zeros, EXACT), coefficients, st.integers(0, 87))
numbers = coefficients | fine
scalars = texts | numbers | st.binary(max_size=5) | st.booleans() | st.none()
sets = st.sets(texts, min_size=1) | st.sets(numbers, min_size=1) | st.sets(st.binary(), min_size=1)
values = st.recursive(
    scalars | sets,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3),
    max_leaves=8,
)
