"""Rows of nothing but sums are made at once: as the closer look makes them, or refuses them."""

from decimal import Decimal
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Count, Key, Max, Row, Sum
from streamfold.derivations.derivation import derived
from streamfold.derivations.view import rows as view_rows
from streamfold.errors import HandlerError
from streamfold.ledger.contribution import stored_text
from streamfold.ledger.schema import SUM, Schema
from tests.helpers.records import image
from tests.helpers.small_handlers import FIELDS, LINE, ORDER_ITEM, handler, route

pytestmark = pytest.mark.usefixtures("exact")

DAY = Key("DAY#{day}", "TYPE#{type}")
OWNED = Key("X#{order_id}#{sku}", "TYPE#{type}")
TARGETS = [DAY, OWNED, Key("ALL", "ORDERS"), Key("ORDER#{order_id}", "TOTAL")]
KEY_VALUES = st.sampled_from(["a", "b", "", "x#y", "é", "a" * 2000, None, 5, Decimal("1.5")])
NUMBERS = st.sampled_from([0, 1, -5, Decimal("2.50"), 10**37])
SUMS = st.one_of(st.just(Count()), NUMBERS.map(Sum))
VALUES = st.one_of(SUMS, SUMS, SUMS, NUMBERS.map(Max), st.sampled_from(["text", None]))
NAMES = st.sampled_from(["n", "total", "n", "total", "other", "PK", "_sf_x"])
GIVEN = st.builds(
    lambda keys, values: {**keys, **values},
    st.fixed_dictionaries({}, optional={"day": KEY_VALUES, "type": KEY_VALUES, "order_id": KEY_VALUES}),
    st.dictionaries(NAMES, VALUES, max_size=3),
)
ROWS = st.lists(st.builds(lambda given: Row(**given), GIVEN), max_size=3)
KNOWN = {"n": SUM, "total": SUM}


def made(rows, target, known):
    """What the rows contribute, and what is known of their forms then; or why they are refused."""
    declared = route("view", handler(*rows), ORDER_ITEM, into=target)
    schema = Schema({target: {"handler": dict(known)}})
    try:
        return stored_text(derived(declared, image(LINE), FIELDS, schema).checked()), schema.by_target
    except HandlerError as error:
        return str(error)


@given(ROWS, st.sampled_from(TARGETS), st.sampled_from([KNOWN, {"n": SUM}, {}]))
def test_rows_are_made_at_once_as_the_closer_look_makes_them(rows, target, known):
    at_once = made(rows, target, known)
    with patch.object(view_rows, "_sums_only", lambda *_: None):
        assert at_once == made(rows, target, known)


def test_rows_of_known_sums_need_no_closer_look():
    rows = [Row(day="1", type="a", n=Count()), Row(day="2", type="a", n=Count(), total=Sum(5))]
    with patch.object(view_rows, "folded", None):
        text, _ = made(rows, DAY, KNOWN)
    assert '"DAY#2","TYPE#a",{"n":"1","total":"5"}' in text
