"""The stored text of a contribution, and the writes between two contributions."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Count, Key, Row, Sum, Table
from streamfold.keys.table import STATE, is_in_state
from streamfold.ledger.contribution import (
    REFERENCE,
    Entry,
    RowContribution,
    SourceEntries,
    holds_row,
    needs_no_finishing,
    stored_rows,
    stored_text,
)
from streamfold.ledger.difference import difference
from streamfold.writes.guarded import AddRow, DeleteRow, PutRow
from tests.helpers.contributions import contribution
from tests.helpers.records import image
from tests.helpers.small_handlers import (
    ALL,
    FIELDS,
    LINE,
    ORDER_ITEM,
    OWNED,
    SALES,
    TOTAL,
    TOTAL_ROW,
    contributed,
    handler,
    route,
)

pytestmark = pytest.mark.usefixtures("exact")


# The stored form.

wholes = st.integers(-(10**38) + 1, 10**38 - 1)
key_values = st.text(max_size=3) | wholes | st.decimals(-100, 100, places=2) | st.binary(max_size=3)
row_keys = st.tuples(st.sampled_from(["main", "other"]), key_values, st.none() | key_values)
numbers = wholes | st.decimals(-(10**20), 10**20, places=3)
amounts = st.dictionaries(st.text(max_size=2), numbers, max_size=2)
stored_parts = st.builds(RowContribution, amounts, st.none(), st.text("ab+/", max_size=3))
contributions = st.dictionaries(row_keys.filter(lambda key: key[1] != ""), stored_parts, max_size=2)


@given(contributions)
def test_a_contribution_is_read_back_from_its_stored_text(rows):
    assert rows == stored_rows(stored_text(rows))


@given(contributions)
def test_a_contribution_has_one_stored_text_whatever_the_order(rows):
    turned = {key: part._replace(amounts=dict(reversed(part.amounts.items()))) for key, part in reversed(rows.items())}
    assert stored_text(rows) == stored_text(turned)


@given(contributions, contributions)
def test_different_contributions_have_different_stored_texts(one, other):
    assert (one == other) == (stored_text(one) == stored_text(other))


@given(contributions, row_keys)
def test_a_stored_text_tells_which_rows_it_holds_without_being_read(rows, another):
    assert all(holds_row(stored_text(rows), row) for row in rows)
    assert holds_row(stored_text(rows), another) == (another in rows)


def test_a_row_whose_key_quotes_the_text_of_another_is_not_taken_for_it():
    quoting = {("main", '["main","B","B",{', '"]'): RowContribution({}, None, "")}
    assert not holds_row(stored_text(quoting), ("main", "B", "B"))


def test_no_contribution_is_stored_as_no_text():
    assert stored_text({}) == ""
    assert stored_rows("") == {}


def test_a_contribution_s_text_does_not_depend_on_how_a_number_is_spelled():
    spellings = (100, Decimal("1E+2"), Decimal("100.0"))
    texts = {stored_text({TOTAL_ROW: RowContribution({"n": number}, None, "")}) for number in spellings}
    assert {'[["main","ORDER#1","TOTAL",{"n":"100"}]]'} == texts


# The difference.


def written(before, after, into=TOTAL):
    """The writes from what one list of rows contributes to what another does."""
    old, new = contributed(*before, into=into), contributed(*after, into=into)
    return difference("shop", route("view", handler(), ORDER_ITEM, into=into), ("main", "ORDER#1", "ITEM#a"), old, new)


@pytest.mark.parametrize(
    ("before", "after", "writes"),
    [
        ([], [Row(n=Sum(5), lines=Count())], [AddRow(TOTAL_ROW, {"lines": 1, "n": 5}, 1)]),
        (
            [Row(n=Sum(5), lines=Count())],
            [Row(n=Sum(7), lines=Count())],
            [AddRow(TOTAL_ROW, {"n": 2}, 0, contributors_min=1)],
        ),
        ([Row(n=Sum(5), lines=Count())], [], [AddRow(TOTAL_ROW, {"lines": -1, "n": -5}, -1, contributors_min=1)]),
        ([Row(n=Sum(5))], [Row(n=Sum(Decimal("5.0")))], []),
        ([Row(n=Sum(5))], [Row(m=Sum(2))], [AddRow(TOTAL_ROW, {"m": 2, "n": -5}, 0, contributors_min=1)]),
        ([], [Row(n=Sum(0))], [AddRow(TOTAL_ROW, {"n": 0}, 1)]),
        ([], [Row()], [AddRow(TOTAL_ROW, {}, 1)]),
        ([], [], []),
    ],
)
def test_rows_that_are_added_to_take_the_difference_of_amounts_and_contributors(before, after, writes):
    assert writes == written(before, after)


def test_a_source_that_moves_between_rows_leaves_one_and_enters_the_other():
    before, after = [Row(day="1", n=Sum(5))], [Row(day="2", n=Sum(5))]
    left, entered = ("main", "SALES#1", "SKU#a"), ("main", "SALES#2", "SKU#a")
    assert [AddRow(entered, {"n": 5}, 1), AddRow(left, {"n": -5}, -1, contributors_min=1)] == written(
        before, after, into=SALES
    )


OWNED_ROW = ("main", "X#1#a", "Y")
NAME = route("view", handler(), ORDER_ITEM, into=TOTAL).name


def put(**attributes):
    return PutRow(OWNED_ROW, {**attributes, "_sf_n": 1, "_sf_o": f"shop/{NAME}"}, f"shop/{NAME}")


@pytest.mark.parametrize(
    ("before", "after", "writes"),
    [
        ([], [Row(x=1)], [put(x=1)]),
        ([Row(x=1)], [Row(x=2)], [put(x=2)]),
        ([Row(x=1)], [Row(x=Decimal("1.0"))], []),
        ([Row(x=1)], [], [DeleteRow(OWNED_ROW, f"shop/{NAME}")]),
        ([], [Row(n=Sum(2), x=1), Row(n=Sum(3))], [put(x=1, n=5)]),
        ([], [Row(n=Sum(3)), Row(n=Sum(2), x=1)], [put(x=1, n=5)]),
        ([], [Row(n=Sum(2))], [AddRow(OWNED_ROW, {"n": 2}, 1)]),
        (
            [Row(n=Sum(2))],
            [Row(n=Sum(2), x=1)],
            [AddRow(OWNED_ROW, {}, 0, contributors_min=1, values={"x": 1}, removed=("_sf_e_x", "_sf_p_x"))],
        ),
        ([Row(n=Sum(2), x=1)], [Row(n=Sum(3))], [AddRow(OWNED_ROW, {"n": 1}, 0, contributors_min=1, removed=("x",))]),
        ([Row(n=Sum(2))], [], [AddRow(OWNED_ROW, {"n": -2}, -1, contributors_min=1)]),
    ],
)
def test_rows_with_plain_attributes_are_put_and_deleted_whole(before, after, writes):
    assert writes == written(before, after, into=OWNED)


@pytest.mark.parametrize("more", [[], [ALL]], ids=["one target", "two targets"])
@pytest.mark.parametrize("table", ["main", "drafts"])
def test_a_row_that_several_sources_could_make_bears_its_owner_whatever_its_table(table, more):
    sources = (ORDER_ITEM, Key("DRAFT#{order_id}", "ITEM#{sku}", Table("drafts")))
    index = route("view", handler(Row(OWNED, x=1)), *sources, into=[OWNED, *more])
    rows, source = contribution(index, image(LINE), FIELDS), (table, "ORDER#1", "ITEM#a")
    owner = f"shop/{index.name}|{table}|ORDER#1|ITEM#a"
    assert [PutRow(OWNED_ROW, {"x": 1, "_sf_n": 1, "_sf_o": owner}, owner)] == difference(
        "shop", index, source, {}, rows
    )
    assert [DeleteRow(OWNED_ROW, owner)] == difference("shop", index, source, rows, {})


def test_what_is_stored_is_enough_to_take_a_contribution_back():
    view = route("view", handler(Row(ALL, n=Sum(5)), Row(OWNED, x=1)), ORDER_ITEM, into=[OWNED, ALL])
    rows = contribution(view, image(LINE), FIELDS)
    stored = stored_rows(stored_text(rows))
    assert difference("shop", view, ("main",), rows, {}) == difference("shop", view, ("main",), stored, {})
    assert difference("shop", view, ("main",), stored, rows) == []


@given(numbers, numbers)
def test_the_difference_of_two_amounts_is_exact_whatever_digits_it_takes(before, after):
    view = route("view", handler(), ORDER_ITEM, into=TOTAL)
    parts = [{TOTAL_ROW: RowContribution({"n": number}, None, "")} for number in (before, after)]
    writes = difference("shop", view, ("main",), *parts)
    with localcontext(prec=100):
        assert after == before + sum(write.amounts["n"] for write in writes)


# What is unfinished.

PLAIN = '[["main","GROUP#1","TOTAL",{"n":"1"}]]'
TO_FINISH = [REFERENCE + "0" * 64, '[["main","GROUP#1","TOTAL",{},"digest"]]', f'[["{STATE.name}","GROUP#1","x",{{}}]]']


@pytest.mark.parametrize("text", TO_FINISH)
@pytest.mark.parametrize("place", range(3))
def test_one_text_of_several_that_may_be_unfinished_is_found_wherever_it_stands(text, place):
    texts = ["", PLAIN]
    assert needs_no_finishing(*texts)
    assert not needs_no_finishing(*texts[:place], text, *texts[place:])


@given(
    st.dictionaries(
        row_keys.filter(lambda key: key[1] != "") | st.just((STATE.name, "GROUP#1", "x")),
        stored_parts
        | st.builds(
            RowContribution, amounts, st.none(), st.just(""), st.just({"n": SourceEntries("max", {"1": Entry("")})})
        ),
        max_size=2,
    )
)
def test_no_row_of_a_text_that_needs_no_finishing_is_recomputed_or_copied(rows):
    finished = [part for row, part in rows.items() if part.ordered or is_in_state(row)]
    assert not (finished and needs_no_finishing(stored_text(rows)))
    is_certain = all(isinstance(each, str) for row in rows for each in row)  # a number's text looks like amounts
    if is_certain and not finished and not any(part.digest for part in rows.values()):
        assert needs_no_finishing(stored_text(rows))


@given(st.lists(contributions, max_size=3))
def test_texts_together_need_no_finishing_where_each_alone_needs_none(several):
    texts = [stored_text(each) for each in several]
    assert needs_no_finishing(*texts) == all(map(needs_no_finishing, texts))
