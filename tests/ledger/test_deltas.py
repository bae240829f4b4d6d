"""Names and texts of deltas, and the two halves of what they add to a row."""

from decimal import Decimal, Inexact

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold.errors import EngineError
from streamfold.ledger.deltas import (
    ADDITION_LETTERS_MAX,
    BUCKETS,
    NAME_LETTERS,
    Additions,
    Delta,
    RowRefusal,
    bucket_in,
    bucket_of,
    delta_key,
    head_key,
    may_wait,
    names_in,
    names_text,
    new_name,
)
from streamfold.ledger.state_keys import row_name
from streamfold.writes.guarded import AddRow, ChangedEntries, PutRow

pytestmark = pytest.mark.usefixtures("exact")
ROW, OTHER = ("main", "CUSTOMER#a", "TOTAL"), ("main", "CUSTOMER#b", "TOTAL")


def entering(row=ROW, amount=5, contributors=1):
    """What items add that are new to a row."""
    return AddRow(row, {"total": amount}, contributors)


def leaving(row=ROW, amount=-5, contributors=-1):
    """What takes contributions away, which the row must count."""
    return AddRow(row, {"total": amount}, contributors, contributors_min=-contributors, requires_contributor=True)


# Names.

tokens = st.builds(lambda stripe, rest: f"{stripe:x}{rest:016x}", st.integers(0, 15), st.integers(0, 2**64 - 1))
delta_names = st.builds(new_name, st.integers(0, BUCKETS - 1), tokens)
row_names = st.builds(lambda number: row_name(("main", f"ROW#{number}", "TOTAL")), st.integers(0, 9))


@given(st.dictionaries(delta_names, st.frozensets(row_names), max_size=5))
def test_names_of_deltas_come_back_from_their_text(names):
    assert names_in(names_text(names)) == names


@given(st.dictionaries(delta_names, st.frozensets(row_names), max_size=5))
def test_equal_names_have_equal_texts(names):
    assert names_text(dict(reversed(names.items()))) == names_text(names)


@given(st.integers(0, BUCKETS - 1), tokens)
def test_a_name_says_where_its_delta_is(bucket, token):
    name = new_name(bucket, token)
    key = delta_key("shop", name)
    assert len(name) == NAME_LETTERS
    assert bucket_in(name) == bucket
    assert key == (f"delta#shop#{bucket:x}#{name[1]}", name)


def test_the_bucket_of_a_row_follows_from_its_key_and_all_buckets_have_rows():
    rows = [("main", f"ROW#{number}", None) for number in range(1_000)]
    assert {bucket_of(row) for row in rows} == set(range(BUCKETS))
    assert bucket_of(ROW) == bucket_of(tuple(ROW))


def test_a_bucket_has_a_head_of_its_own():
    assert len({head_key("shop", bucket) for bucket in range(BUCKETS)}) == BUCKETS


# Texts.

keys = st.one_of(
    st.text('AB#€"\\', max_size=4), st.integers(-5, 5), st.decimals(-5, 5, places=2), st.binary(max_size=3)
)
row_keys = st.tuples(st.sampled_from(["main", "other"]), keys, st.none() | keys)
amounts = st.dictionaries(
    st.text(max_size=4), st.integers(-(10**37), 10**37) | st.decimals(-9, 9, places=3), max_size=3
)
additions = st.builds(
    lambda key, amounts, contributors, unversioned, minimum: AddRow(
        key, amounts, contributors, unversioned, contributors_min=minimum
    ),
    row_keys,
    amounts,
    st.integers(-3, 3),
    st.booleans(),
    st.none() | st.integers(0, 3),
)
deltas = st.builds(
    Delta,
    st.lists(additions, max_size=4).map(tuple),
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
    st.lists(row_names, max_size=2).map(tuple),
    st.none() | st.builds(RowRefusal, st.text(max_size=9), st.integers(0, 2**31)),
)


@given(deltas)
def test_a_delta_comes_back_from_its_text(delta):
    assert Delta.of(delta.text()) == delta


@given(deltas)
def test_a_delta_that_was_read_has_the_text_that_was_read(delta):
    assert Delta.of(delta.text()).text() == delta.text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"add":[]}',
        '{"add":[1],"by":[]}',
        '{"add":[["main","x","y",{"n":"1"},1]],"by":[]}',
        '{"add":[["main","Sx","Sy",{"n":"one"},1,null]],"by":[]}',
        '{"add":[],"by":[],"refused":["why"]}',
    ],
)
def test_a_damaged_delta_is_an_error_of_the_store(text):
    with pytest.raises(EngineError, match="A delta"):
        Delta.of(text)


# What may wait.


def test_sums_and_counts_may_wait():
    assert may_wait(entering())
    assert may_wait(leaving())


@pytest.mark.parametrize(
    "more",
    [
        {"amounts": {}},
        {"stamp": "s"},
        {"changed_entries": (ChangedEntries("p", "best", "max", frozenset({"1"})),)},
        {"values": {"name": "x"}},
        {"removed": ("name",)},
        {"life": ""},
        {"life": "1"},
        {"life": "1", "born": True},
        {"contributors_below": 1},
        {"amounts": {"n" * ADDITION_LETTERS_MAX: 1}},
    ],
)
def test_other_additions_stay_in_the_transaction_of_their_ledger_item(more):
    assert not may_wait(entering()._replace(**more))


def test_no_other_write_waits():
    assert not may_wait(PutRow(ROW, {"total": 5}, "shop/total"))


# Halves.


def test_what_new_items_add_is_kept_apart_from_what_the_row_must_count():
    both = Additions([entering(), entering(amount=2), leaving(amount=-4), entering(OTHER)])
    assert both.entering(ROW) == entering(amount=7, contributors=2)
    assert both.counted(ROW) == leaving(amount=-4)._replace(requires_contributor=False)
    assert both.counted(OTHER) is None
    assert list(both.rows) == [ROW, OTHER]
    assert len(both) == 2


def test_both_halves_are_one_write_that_adds_their_sum():
    both = Additions([entering(), leaving(amount=-4), leaving(amount=-3)]).both(ROW)
    assert (both.amounts, both.contributors, both.contributors_min) == ({"total": -2}, -1, 2)


def test_an_addition_that_takes_contributors_away_leaves_one():
    assert Additions([leaving()]).both(ROW).requires_contributor
    assert not Additions([leaving(), entering()]).both(ROW).requires_contributor
    assert not Additions([entering()]).both(ROW).requires_contributor


def test_an_addition_of_a_copy_is_none_of_the_original():
    original = Additions([entering()])
    original.copy().add(entering(OTHER))
    original.copy().add(entering())
    assert original.both(ROW) == entering()
    assert list(original.rows) == [ROW]


def test_a_sum_of_more_than_38_digits_is_refused():
    with pytest.raises(Inexact):
        Additions([entering(amount=Decimal(10**37))]).add(entering(amount=Decimal("0.01")))


def test_a_delta_has_both_halves_of_each_of_its_rows_and_its_text_does_not_depend_on_their_order():
    some = [entering(), leaving(), entering(OTHER)]
    delta = Additions(some).delta(["b", "a"], ["row"])
    assert delta.text() == Additions(reversed(some)).delta(["a", "b"], ["row"]).text()
    assert delta.rows == {row_name(ROW), row_name(OTHER)}
    assert len(delta.additions) == 3
    assert delta.handlers == ("a", "b")


@given(st.lists(st.sampled_from([entering(), entering(OTHER, 3), leaving(), leaving(OTHER)]), min_size=1))
def test_the_additions_of_a_delta_are_those_that_it_was_made_of(some):
    made, read = Additions(some), Additions(Delta.of(Additions(some).delta((), ()).text()).additions)
    assert {row: read.both(row) for row in read.rows} == {row: made.both(row) for row in made.rows}
