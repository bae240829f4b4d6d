"""Aggregates without an inverse: what may be yielded, how values sort, and what a row makes of them."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Collect, Count, Distinct, First, Key, Latest, Max, Min, Row, Sum, Top
from streamfold.derivations.view.rows import RowBuilder, row_contribution
from streamfold.errors import HandlerError
from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX
from streamfold.ledger.contribution import (
    ENTRIES_MAX,
    partition,
    source_components,
    source_text,
    stored_rows,
    stored_text,
)
from streamfold.ledger.schema import Schema
from streamfold.routes.aggregates import ORDER_BYTES_MAX, order_text
from streamfold.routes.shipped_aggregates import COLLECT_MAX, TOP_MAX
from tests.helpers.aggregates import ADDED, ORDERED, UNMERGED
from tests.helpers.small_handlers import ORDER_ITEM, OWNED, TOTAL, TOTAL_ROW, contributed, handler, refused, route

pytestmark = pytest.mark.usefixtures("exact")

NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12)
TEXTS = st.text(max_size=30).filter(lambda text: text.isprintable() or text.isascii())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Max(5), Max(Decimal("5.0"))),
        (Latest({"a": 1}, by="x"), Latest({"a": Decimal(1)}, by="x")),
        (Top(3, 1, by=1), Top(3, 1, by=1)),
        (Collect("a"), Collect("a", most=100, into=set)),
        (Row(best=Max(1), wins=2), Row(wins=2, best=Max(1))),
    ],
)
def test_equal_values_are_equal_and_one_member_of_a_set(one, other):
    assert one == other
    assert len({one, other}) == 1


ALL = [make(5) for make in ADDED.values()] + [make(5, 5) for make in (ORDERED | UNMERGED).values()]


def test_kinds_differ():
    assert len(set(ALL)) == len(ALL)
    assert all(one != other for number, one in enumerate(ALL) for other in ALL[:number])
    assert Row(wins=1) != Row(wins=2)


def test_they_are_shown_as_they_are_written():
    assert repr(Row(best=Max(5), wins="x")) == "Row(best=Max(5), wins='x')"
    assert repr(Row(wins=1)) == "Row(wins=1)"
    assert repr(Top(2, "a", by=3)) == "Top(2, 'a', by=3)"
    assert repr(Top(2, 1, by=3, smallest=True)) == "Top(2, 1, by=3, smallest=True)"
    assert repr(Latest(1, by=3, ties="largest key")) == "Latest(1, by=3, ties='largest key')"
    assert repr(First(1, by=3, ties="largest key")) == "First(1, by=3, ties='largest key')"
    assert repr(Collect("a", into=list)) == "Collect('a', most=100, into=list)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Max(1.5), "Max(1.5) is ordered by 1.5 of type float, which does not compare"),
        (lambda: Max(1.5), "for a float, Decimal('1.5')."),
        (lambda: Min(None), "Min(None) is ordered by None of type NoneType, which does not compare"),
        (lambda: Latest(1, by=None), "a date or a time; leave it out for an item without a value."),
        (lambda: Max(True), "Max(True) is ordered by True of type bool, which does not compare"),
        (lambda: Latest(1, by=[1]), "Latest(1, by=[1]) is ordered by [1] of type list, which does not compare"),
        (lambda: Latest(1.5, by=1), "Value 1.5 is a float, which is not exact"),
        (lambda: Max(datetime(2026, 3, 1)), "it has no time zone"),  # noqa: DTZ001
        (lambda: Max("x" * (ORDER_BYTES_MAX + 1)), "by a value of 401 bytes, 400 at most: order by the beginning of"),
        (lambda: Max("a b" * 100), "by a value of 500 bytes, 400 at most (each of its letters up to '$' counts three)"),
        (lambda: Max(b"x" * 201), "by a value of 402 bytes, 400 at most (each of its bytes counts two): order by"),
        (lambda: Latest("x" * 32_768, by=1), "has a value of 32776 bytes, 32768 at most"),
        (lambda: Top(1, "x" * 2048, by=1), "has a value of 2056 bytes, 2048 at most"),
        (lambda: Top(0, 1, by=1), f"Top(0, 1, by=1) keeps 0 values: expected a whole number from 1 to {TOP_MAX}."),
        (lambda: Top(TOP_MAX + 1, 1, by=1), f"keeps {TOP_MAX + 1} values: expected a whole number"),
        (lambda: Top(True, 1, by=1), "keeps True values: expected a whole number"),
        (
            lambda: Top(1, 1, by=1, smallest=1),
            "Top(1, 1, by=1, smallest=1): expected smallest=True or False",
        ),
        (lambda: Top(1, 1, by=1, ties="x"), "and ties='smallest key' or 'largest key'."),
        (lambda: Latest(1, by=1, ties=None), "Latest(1, by=1, ties=None): expected"),
        (lambda: First(1, by=1, ties="key"), "First(1, by=1, ties='key'): expected"),
        (
            lambda: Collect(1, most=COLLECT_MAX + 1),
            f"expected a whole number from 1 to {COLLECT_MAX}. All records of the handler fail",
        ),
        (lambda: Collect(1, into=tuple), "Collect(1, most=100, into=tuple): expected into=set or into=list."),
    ],
)
def test_what_cannot_be_ordered_or_kept_is_refused_where_it_stands(make, message):
    with pytest.raises(HandlerError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("value", ["x" * ORDER_BYTES_MAX, "€" * 133, " " * 133, b"x" * 200])
def test_a_value_that_orders_may_have_the_limit_of_bytes(value):
    assert len(order_text(value, str).encode()) - len("S") in (ORDER_BYTES_MAX - 1, ORDER_BYTES_MAX)


@given(NUMBERS, NUMBERS)
def test_texts_of_numbers_sort_as_the_numbers_do(one, other):
    assert (place(one) < place(other)) == (one < other)


@given(TEXTS, TEXTS)
def test_places_of_texts_sort_as_the_texts_do(one, other):
    assert (place(one) < place(other)) == (one < other)


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_times_sort_as_they_follow_each_other(one, other):
    assert (place(one) < place(other)) == (one < other)


def place(value):
    return order_text(value, str) + "#source"


def test_days_and_bytes_sort():
    assert place(date(2026, 2, 28)) < place(date(2026, 3, 1))
    assert place(b"") < place(b"\x00") < place(b"\x00\xff") < place(b"\x01")


KEYS = st.text("\x00\x01 !0c|~", min_size=1, max_size=4)


@given(st.lists(st.tuples(KEYS, KEYS), max_size=6))
def test_sources_sort_by_the_parts_of_their_keys(keys):
    assert sorted(keys, key=lambda key: source_text(("main", *key))) == sorted(keys)


def test_sources_with_one_key_in_two_forms_are_told_apart():
    items = [
        ("main", "a b", "c"),
        ("main", "a", "b c"),
        ("main", "a!b", "c"),
        ("main", "a", None),
        ("mai", "n a", None),
    ]
    assert len({source_text(item) for item in items}) == len(items)


@pytest.mark.parametrize("letter", ["x", "€", "#"])
def test_keys_of_entries_fit_whatever_the_keys_of_rows_and_sources(letter):
    long = ("main", letter * 680, letter * 340)
    assert len(partition("a" * 64, "h" * 64, letter * 200, long).encode()) <= PARTITION_BYTES_MAX
    assert len((order_text("x" * ORDER_BYTES_MAX, str) + "#" + source_text(long)).encode()) <= SORT_BYTES_MAX


def test_partitions_of_entries_are_never_the_same_for_two_attributes_or_rows():
    rows = [("main", "A#B", "C"), ("main", "A", "B#C"), ("main", "A|B", "C"), ("main", "A", "B|C"), ("mai", "nA", "C")]
    names = ["x", "x#main", "x%23main", ""]
    assert len({partition("app", "view", name, row) for name in names for row in rows}) == len(names) * len(rows)


def test_an_ordered_value_is_an_entry_below_its_row():
    (part,) = contributed(Row(best=Max(5), n=Count())).values()
    assert part.amounts == {"n": 1}
    assert part.plain is None
    assert part.ordered["best"].ordering == "max:1"
    assert list(part.ordered["best"].entries) == ["N25005"]


def test_the_stored_text_tells_where_the_entries_are_and_not_what_they_hold():
    rows = contributed(Row(last=Latest("secret", by="2026"), best=Max(5), n=Count()))
    text = stored_text(rows)
    assert "secret" not in text
    assert stored_rows(text) == rows
    assert stored_text(stored_rows(text)) == text


def test_another_value_of_one_order_is_another_contribution():
    one, other = (stored_text(contributed(Row(last=Latest(value, by=1)))) for value in ("a", "b"))
    assert one != other


def test_several_values_from_one_source_are_entries_of_their_own():
    rows = contributed(Row(best=Max(5)), Row(best=Max(7)), Row(best=Max(5)))
    assert len(rows[TOTAL_ROW].ordered["best"].entries) == 2


def test_more_values_from_one_source_than_move_in_one_transaction_are_refused():
    rows = [Row(best=Max(number)) for number in range(ENTRIES_MAX + 1)]
    message = refused(*rows)
    assert f"gave {ENTRIES_MAX + 1} ordered values for row ('ORDER#1', 'TOTAL'), {ENTRIES_MAX} at most" in message
    assert contributed(*rows[1:])


def test_two_values_in_one_place_are_refused():
    message = "gave row ('ORDER#1', 'TOTAL') twice with different values of 'last'"
    assert message in refused(Row(last=Latest("a", by=1)), Row(last=Latest("b", by=1)))
    assert message.replace("last", "top") in refused(Row(top=Top(1, 1, by=1)), Row(top=Top(2, 1, by=1)))


KINDS = [
    (Max(5), Sum(5), "as Sum (Sum(5)), and before as Max: "),
    (Sum(5), Min(5), "as Min (Min(5)), and before as Sum: "),
    (Max(5), Min(5), "'x' of Key('ORDER#{order_id}', 'TOTAL') as Min (Min(5)), and before as Max: "),
    (Collect(5), Collect(5, into=list), "as Collect(into=list) (Collect(5, most=100, into=list)), and before as Col"),
]


@pytest.mark.parametrize(("one", "other", "message"), KINDS)
def test_mixed_kinds_are_refused(one, other, message):
    found = refused(Row(x=one), Row(x=other))
    assert message in found
    assert found.endswith("one attribute of a target has one form. Give one of them another name.")


@pytest.mark.parametrize("order", [max, min])
def test_values_of_several_types_have_one_order_bytes_then_numbers_then_texts(order):
    values = [b"z", 10**9, Decimal("-0.5"), 7, "", "a", date(2026, 3, 1)]
    texts = [order_text(value, str) for value in values]
    assert sorted(texts) == [texts[place] for place in (0, 2, 3, 1, 4, 6, 5)]
    assert order(texts) == texts[5 if order is max else 0]


def test_an_attribute_of_another_handler_cannot_be_ordered_too():
    declared = route("view", handler(), ORDER_ITEM, into=TOTAL)
    forms = Schema({TOTAL: {"another": {"x": "Max"}}})
    with pytest.raises(HandlerError, match="but handler 'another' gave it as Max: one attribute of a target has"):
        row_contribution(RowBuilder(declared, forms, {}), declared.targets[0], {"x": Max(1)}, None)


def test_a_row_of_one_source_shows_its_own_values():
    values = {
        "best": Max(5),
        "last": Latest({"a": 1}, by=1),
        "top": Top(2, 1, by=1),
        "all": Collect("x"),
        "listed": Collect("x", into=list),
        "many": Distinct("x"),
    }
    (part,) = contributed(Row(status="new", **values), Row(best=Max(7), many=Distinct("y")), into=OWNED).values()
    shown = {"best": 7, "last": {"a": 1}, "top": [1], "all": {"x"}, "listed": ["x"], "many": 2, "status": "new"}
    assert part.plain == shown
    assert not part.ordered


def test_plain_attributes_of_several_sources_need_a_value_by_which_they_win():
    message = refused(Row(name="a"))
    assert message.endswith("say whose values win, Row(..., wins=item[...]), or take a target of its own.")
    (part,) = contributed(Row(name="a", n=Count(), wins="2026")).values()
    assert (part.amounts, part.plain, list(part.ordered[""].entries)) == ({"n": 1}, None, ["S2026"])


@pytest.mark.parametrize("wins", [1.5, [], True])
def test_what_does_not_compare_cannot_win(wins):
    assert f"Row(wins={wins!r}) is ordered by {wins!r} of type" in refused(Row(name="a", wins=wins))


def test_an_index_item_has_one_source():
    for row in (Row(best=Max(1)), Row(name="a", wins=1)):
        assert "an index item has one source; use a view." in refused(row, kind="index", into=OWNED)


def test_a_bucket_is_a_date_field_that_is_formatted():
    months = Key("MONTH#{month}", "SALES")
    found = contributed(Row(month=f"{date(2026, 3, 1):%Y-%m}", best=Max(1)), into=months)
    assert list(found) == [("main", "MONTH#2026-03", "SALES")]


@pytest.mark.parametrize("missing", [None, ""])
def test_a_bucket_of_a_missing_date_is_refused(missing):
    assert "day=" in refused(Row(day=missing, best=Max(1)), into=Key("DAY#{day:date}", "SALES"))


@given(st.lists(st.text(max_size=20), min_size=1, max_size=2))
def test_the_text_of_a_source_tells_its_key_unless_it_was_cut(values):
    item = ("main", *values) if len(values) > 1 else ("main", *values, None)
    assert source_components(source_text(item)) == ["main", *values]
    assert source_components(source_text(("main", "x" * 2000, None))) is None
