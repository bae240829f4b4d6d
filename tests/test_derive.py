"""What an item contributes, and the writes between two contributions."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Add, Count, Delete, Key, Put, Router, Row, Sum, Table
from streamfold.checks import checked_routes
from streamfold.derive import Part, audit_rows, contribution, difference, effects, stored_rows, stored_text
from streamfold.errors import HandlerError, ImageError
from streamfold.values import EXACT
from streamfold.writes import AddRow, DeleteRow, GuardedPut, PutRow
from tests.records import VERSION_PREFIX, change, image, item

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
SALES = Key("SALES#{day}", "SKU#{sku}")
BY_STATUS = Key("STATUS#{status}", "ORDER#{order_id}")
ALL = Key("ALL", "ORDERS")
LINE = item("ORDER#1", "ITEM#a", price=5, day="2026-03-01")
FIELDS = {"order_id": "1", "sku": "a"}
TOTAL_ROW = ("main", "ORDER#1", "TOTAL")


@pytest.fixture(autouse=True)
def exact():
    """Arithmetic as ``process`` sets it for handlers and planner."""
    with localcontext(EXACT):
        yield


def route(kind, function, *sources, beside=(), **options):
    """The checked route of a handler; other routers' handlers may stand beside it."""
    router = Router()
    getattr(router, kind)(*sources, name="handler", **options)(function)
    return checked_routes([*router.routes, *beside])[0]


def handler(*yielded):
    def generator(subject):
        yield from yielded

    return generator


def contributed(*yielded, kind="view", source=ORDER_ITEM, into=TOTAL, fields=FIELDS):
    return contribution(route(kind, handler(*yielded), source, into=into), image(LINE), fields)


def refused(*yielded, **options):
    with pytest.raises(HandlerError) as caught:
        contributed(*yielded, **options)
    return str(caught.value)


def test_an_aggregate_is_contributed_as_an_amount_to_its_row():
    assert {TOTAL_ROW: Part({"total": 5, "lines": 1}, None, "")} == contributed(Row(total=Sum(5), lines=Count()))


def test_a_handler_gets_the_item_and_the_fields_of_its_key_that_it_asks_for():
    def total(item, sku, *, order_id):
        yield Row(**{f"{order_id}-{sku}": Sum(item["price"])})

    found = contribution(route("view", total, ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)
    assert found[TOTAL_ROW].amounts == {"1-a": 5}


def test_an_absent_image_contributes_nothing_and_the_handler_is_not_called():
    assert contribution(route("view", handler(Row(n=Count())), ORDER_ITEM, into=TOTAL), image(None), FIELDS) == {}


def test_fields_of_the_target_come_from_the_row_and_else_from_the_source_s_key():
    found = contributed(Row(day="2026-03-01", units=Sum(2)), into=SALES)
    assert list(found) == [("main", "SALES#2026-03-01", "SKU#a")]


def test_rows_of_one_key_from_one_call_merge():
    found = contributed(Row(n=Sum(2)), Row(n=Sum(Decimal("0.5")), m=Count()))
    assert {"n": Decimal("2.5"), "m": 1} == found[TOTAL_ROW].amounts


def test_attributes_take_names_that_collide_with_fields():
    found = contributed(Row(day="d", attributes={"day": Sum(3)}, units=Count()), into=SALES)
    assert found["main", "SALES#d", "SKU#a"].amounts == {"units": 1, "day": 3}


def test_plain_attributes_on_an_owned_target_have_a_digest():
    (part,) = contributed(Row(status="new", total=5), into=Key("X#{order_id}#{sku}", "Y")).values()
    (other,) = contributed(Row(status="new", total=Decimal("5.0")), into=Key("X#{order_id}#{sku}", "Y")).values()
    assert part.plain == {"status": "new", "total": 5}
    assert part.digest == other.digest != ""


def test_moments_and_days_may_be_attributes():
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    (part,) = contributed(Row(at=at, day=date(2026, 3, 1)), into=Key("X#{order_id}#{sku}", "Y")).values()
    assert {"at": at, "day": date(2026, 3, 1)} == part.plain


@pytest.mark.parametrize(("count", "fits"), [(99, True), (100, False)])
@pytest.mark.parametrize("many", [lambda n: Row(day=str(n), x=Count()), lambda n: Row(day="d", x=Count())])
def test_99_effects_fit_and_100_are_refused(count, fits, many):
    rows = [many(number) for number in range(count)]
    if fits:
        assert contributed(*rows, into=SALES)
    else:
        message = "Handler 'handler' yielded more than 99 effects for one item, the most that one transaction can hold"
        assert message in refused(*rows, into=SALES)


def test_a_handler_that_never_ends_is_stopped():
    def endless(item):
        while True:
            yield Row(n=Count())

    with pytest.raises(HandlerError, match="yielded more than 99 effects"):
        contribution(route("view", endless, ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)


OWNED = Key("X#{order_id}#{sku}", "Y")


@pytest.mark.parametrize(
    ("yielded", "options", "message"),
    [
        (5, {}, "Handler 'handler' yielded 5: a handler of kind view yields Row."),
        (Put(), {}, "Handler 'handler' yielded Put(): a handler of kind view yields Row."),
        (Row(ALL, n=Count()), {}, f"yielded Row({ALL!r}, n=Count()), which writes outside of into={TOTAL!r}."),
        (Row(n=Count()), {"into": [TOTAL, ALL]}, f"with several targets the first argument says which of {TOTAL!r}"),
        (Row(n=Count()), {"into": SALES}, f"Row(n=Count()) leaves 'day' of {SALES!r} without a value: give day=..."),
        (Row(day="a#b"), {"into": SALES}, "Row(day='a#b'): Value 'a#b' cannot be used for {day} in template"),
        (Row(day=None), {"into": SALES}, "Row(day=None): Value None cannot be used for {day} in template"),
        (Row(PK="x"), {}, "Row(PK='x') cannot set 'PK': key attributes and names that begin with _sf_ are the"),
        (Row(_sf_n=0), {}, "Row(_sf_n=0) cannot set '_sf_n': key attributes and names that begin with _sf_ are the"),
        (Row(attributes={"SK": 1}), {}, "cannot set 'SK': key attributes and names that begin with _sf_ are the"),
        (Row(n=Count(), attributes={"n": Count()}), {}, "gives n twice."),
        (Row(status="new"), {}, f"yielded the plain attribute 'status' for {TOTAL!r}, but a row of it may have"),
        (
            Row(n=Count()),
            {"kind": "index", "into": OWNED},
            "Index 'handler' yielded 'n' as an aggregate: an index item",
        ),
        (Row(price=1.5), {"into": OWNED}, "Value 1.5 is a float, which is not exact: use Decimal('1.5')"),
        (Row(text="x" * 500_000), {"into": OWNED}, "bytes; DynamoDB takes items of 409600 at most. Store less of it."),
        (
            Row(sku="b", x=1),
            {"into": OWNED},
            "gives sku='b', but the source's key says 'a': two items could then write",
        ),
    ],
)
def test_what_may_not_be_written_as_declared_is_refused_with_the_row(yielded, options, message):
    assert message in refused(yielded, **options)


def test_plain_attributes_on_a_target_that_views_share_are_refused():
    draft, other = Key("DRAFT#{order_id}", "X"), Router()
    other.view(ORDER, into=BY_STATUS, name="other")(handler())
    shared = route("view", handler(Row(status="new", x=1)), draft, into=BY_STATUS, beside=other.routes)
    with pytest.raises(HandlerError, match="but several handlers write it, and only aggregates can be shared"):
        contribution(shared, image(item("DRAFT#1", "X")), {"order_id": "1"})


@pytest.mark.parametrize("second", [Row(x=2), Row(x="1"), Row(x=Sum(1))])
def test_one_row_yielded_twice_with_different_values_is_refused(second):
    message = "yielded row ('X#1#a', 'Y') twice with different values of 'x'"
    assert message in refused(Row(x=1), second, into=OWNED)


def test_one_row_yielded_twice_with_one_value_is_one():
    (part,) = contributed(Row(x=1), Row(x=Decimal("1.0"), y=2), into=OWNED).values()
    assert part.plain == {"x": 1, "y": 2}


def test_a_row_of_an_owned_target_may_repeat_the_source_s_fields():
    source, into = Key("D#{day:date}", "X"), Key("E#{day:date}", "Y")
    found = contributed(Row(day="2026-03-01", x=1), source=source, into=into, fields={"day": date(2026, 3, 1)})
    assert list(found) == [("main", "E#2026-03-01", "Y")]


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_half_of_a_surrogate_pair_is_refused(text):
    assert "it holds half of a surrogate pair" in refused(Row(x=text), into=OWNED)
    assert "it holds half of a surrogate pair" in refused(Row(day=text), into=SALES)


def test_a_row_of_a_shared_target_may_stand_for_all_sources():
    assert list(contributed(Row(day="d", sku="ALL", n=Count()), into=SALES)) == [("main", "SALES#d", "SKU#ALL")]


HALF = 10**38 - 1


@pytest.mark.parametrize(
    "compute",
    [lambda price: price / 3, lambda price: price * Decimal("9." + "9" * 37), lambda price: price + Decimal("1E-40")],
)
def test_a_result_that_needs_more_than_38_digits_is_refused_and_never_rounded(compute):
    def total(item):
        yield Row(total=Sum(compute(Decimal(item["price"]))))

    with pytest.raises(HandlerError, match="Handler 'handler' computed a number that 38 digits cannot hold exactly"):
        contribution(route("view", total, ORDER_ITEM, into=TOTAL), image({**LINE, "price": 7}), FIELDS)


def test_unary_minus_keeps_all_38_digits():
    def refund(item):
        yield Row(total=Sum(-item["price"]))

    price = Decimal("1." + "1" * 37)
    found = contribution(route("view", refund, ORDER_ITEM, into=TOTAL), image({**LINE, "price": price}), FIELDS)
    assert str(found[TOTAL_ROW].amounts["total"]) == "-1." + "1" * 37


@pytest.mark.parametrize("other", [HALF, Decimal("0.1")])
def test_amounts_of_one_row_that_add_up_to_more_than_38_digits_are_refused(other):
    assert "38 digits" in refused(Row(total=Sum(HALF)), Row(total=Sum(other)))


def test_an_error_of_the_handler_comes_as_it_is():
    def total(item):
        yield Row(total=Sum(item["cost"]))

    with pytest.raises(KeyError, match="cost"):
        contribution(route("view", total, ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)


# The stored form.

wholes = st.integers(-(10**38) + 1, 10**38 - 1)
key_values = st.text(max_size=3) | wholes | st.decimals(-100, 100, places=2) | st.binary(max_size=3)
row_keys = st.tuples(st.sampled_from(["main", "other"]), key_values, st.none() | key_values)
numbers = wholes | st.decimals(-(10**20), 10**20, places=3)
amounts = st.dictionaries(st.text(max_size=3), numbers, max_size=3)
stored_parts = st.builds(Part, amounts, st.none(), st.text("ab+/", max_size=3))
contributions = st.dictionaries(row_keys.filter(lambda key: key[1] != ""), stored_parts, max_size=4)


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


def test_no_contribution_is_stored_as_no_text():
    assert stored_text({}) == ""
    assert stored_rows("") == {}


def test_a_contribution_s_text_does_not_depend_on_how_a_number_is_spelled():
    spellings = (100, Decimal("1E+2"), Decimal("100.0"))
    texts = {stored_text({TOTAL_ROW: Part({"n": number}, None, "")}) for number in spellings}
    assert {'[["main","ORDER#1","TOTAL",{"n":"100"}]]'} == texts


# The difference.


def written(before, after, into=TOTAL):
    """The writes from what one list of rows contributes to what another does."""
    old, new = contributed(*before, into=into), contributed(*after, into=into)
    return difference(route("view", handler(), ORDER_ITEM, into=into), ("main", "ORDER#1", "ITEM#a"), old, new)


@pytest.mark.parametrize(
    ("before", "after", "writes"),
    [
        ([], [Row(n=Sum(5), lines=Count())], [AddRow(TOTAL_ROW, {"lines": 1, "n": 5}, 1)]),
        ([Row(n=Sum(5), lines=Count())], [Row(n=Sum(7), lines=Count())], [AddRow(TOTAL_ROW, {"n": 2}, 0)]),
        ([Row(n=Sum(5), lines=Count())], [], [AddRow(TOTAL_ROW, {"lines": -1, "n": -5}, -1)]),
        ([Row(n=Sum(5))], [Row(n=Sum(Decimal("5.0")))], []),
        ([Row(n=Sum(5))], [Row(m=Sum(2))], [AddRow(TOTAL_ROW, {"m": 2, "n": -5}, 0)]),
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
    assert [AddRow(entered, {"n": 5}, 1), AddRow(left, {"n": -5}, -1)] == written(before, after, into=SALES)


OWNED_ROW = ("main", "X#1#a", "Y")


@pytest.mark.parametrize(
    ("before", "after", "writes"),
    [
        ([], [Row(x=1)], [PutRow(OWNED_ROW, {"x": 1, "_sf_n": 1})]),
        ([Row(x=1)], [Row(x=2)], [PutRow(OWNED_ROW, {"x": 2, "_sf_n": 1})]),
        ([Row(x=1)], [Row(x=Decimal("1.0"))], []),
        ([Row(x=1)], [], [DeleteRow(OWNED_ROW)]),
        ([], [Row(n=Sum(2), x=1), Row(n=Sum(3))], [PutRow(OWNED_ROW, {"x": 1, "n": 5, "_sf_n": 1})]),
        ([], [Row(n=Sum(3)), Row(n=Sum(2), x=1)], [PutRow(OWNED_ROW, {"x": 1, "n": 5, "_sf_n": 1})]),
        ([], [Row(n=Sum(2))], [AddRow(OWNED_ROW, {"n": 2}, 1)]),
        ([Row(n=Sum(2))], [Row(n=Sum(2), x=1)], [PutRow(OWNED_ROW, {"x": 1, "n": 2, "_sf_n": 1})]),
        ([Row(n=Sum(2), x=1)], [Row(n=Sum(3))], [PutRow(OWNED_ROW, {"n": 3, "_sf_n": 1})]),
        ([Row(n=Sum(2))], [], [AddRow(OWNED_ROW, {"n": -2}, -1)]),
    ],
)
def test_rows_with_plain_attributes_are_put_and_deleted_whole(before, after, writes):
    assert writes == written(before, after, into=OWNED)


@pytest.mark.parametrize("table", ["main", "drafts"])
def test_a_row_that_several_sources_could_make_bears_its_owner_whatever_its_table(table):
    sources = (ORDER_ITEM, Key("DRAFT#{order_id}", "ITEM#{sku}", Table("drafts")))
    index = route("index", handler(Row(x=1)), *sources, into=OWNED)
    rows, source = contribution(index, image(LINE), FIELDS), (table, "ORDER#1", "ITEM#a")
    owner = f"{table}|ORDER#1|ITEM#a"
    assert [PutRow(OWNED_ROW, {"x": 1, "_sf_n": 1, "_sf_o": owner}, owner)] == difference(index, source, {}, rows)
    assert [DeleteRow(OWNED_ROW, owner)] == difference(index, source, rows, {})


def test_what_is_stored_is_enough_to_take_a_contribution_back():
    view = route("view", handler(Row(ALL, n=Sum(5)), Row(OWNED, x=1)), ORDER_ITEM, into=[OWNED, ALL])
    rows = contribution(view, image(LINE), FIELDS)
    stored = stored_rows(stored_text(rows))
    assert difference(view, ("main",), rows, {}) == difference(view, ("main",), stored, {})
    assert difference(view, ("main",), stored, rows) == []


@given(numbers, numbers)
def test_the_difference_of_two_amounts_is_exact_whatever_digits_it_takes(before, after):
    view = route("view", handler(), ORDER_ITEM, into=TOTAL)
    parts = [{TOTAL_ROW: Part({"n": number}, None, "")} for number in (before, after)]
    writes = difference(view, ("main",), *parts)
    with localcontext(prec=100):
        assert after == before + sum(write.amounts["n"] for write in writes)


# Effects of one change.

PAID = change(item("ORDER#1", status="new"), item("ORDER#1", status="paid"), 7)
LOG, COUNTS = Key("LOG#{order_id}", "{what}"), Key("COUNTS#{day}", "X")
LOG_ROW = ("main", "LOG#1", "paid")
VERSION = f"{VERSION_PREFIX}{7:040d}"


def written_for(*yielded, into=(LOG, COUNTS), sources=(ORDER,), of=PAID):
    return effects(route("on", handler(*yielded), *sources, into=into), of, {"order_id": "1"})


@pytest.mark.parametrize(
    ("yielded", "writes"),
    [
        ([Put(LOG, what="paid", x=1)], [GuardedPut(LOG_ROW, {"x": 1}, VERSION)]),
        ([Delete(LOG, what="paid")], [GuardedPut(LOG_ROW, None, VERSION)]),
        ([Add(COUNTS, day="d", n=2)], [AddRow(("main", "COUNTS#d", "X"), {"n": 2}, 1, unversioned=True)]),
        (
            [Add(COUNTS, day="d", n=2), Add(COUNTS, day="d", n=-1, m=1)],
            [AddRow(("main", "COUNTS#d", "X"), {"n": 1, "m": 1}, 2, unversioned=True)],
        ),
        ([], []),
    ],
)
def test_the_effects_of_a_change_are_guarded_by_its_version_or_added(yielded, writes):
    assert writes == written_for(*yielded)


def test_a_row_that_several_sources_could_put_bears_its_owner():
    (put,) = written_for(Put(what="paid"), into=LOG, sources=(ORDER, Key("DRAFT#{order_id}", "X")))
    assert put.owner == "main|ORDER#1|METADATA"


@pytest.mark.parametrize(
    ("yielded", "message"),
    [
        ([Row(LOG)], "a handler of kind on yields Put, Add, Delete."),
        ([Put(COUNTS, day="d")], f"but does not own {COUNTS!r}: its template does not hold every field of the"),
        ([Delete(COUNTS, day="d")], f"but does not own {COUNTS!r}: its template does not hold every field of the"),
        ([Put(LOG, what="x", order_id="2")], "gives order_id='2', but the source's key says '1': two items could"),
        ([Delete(LOG, what="x", total=1)], "has attributes: a Delete takes the fields of the target's key only."),
        ([Add(COUNTS, day="d")], "it adds nothing; give attributes and amounts, Add(TARGET, total=1)."),
        ([Add(COUNTS, day="d", n=1.5)], "n=1.5 is no number (int or Decimal) to add."),
        ([Add(COUNTS, day="d", n=True)], "n=True is no number (int or Decimal) to add."),
        ([Add(COUNTS, day="d", n=Sum(1))], "n=Sum(1) is no number (int or Decimal) to add."),
        ([Add(COUNTS, day="d", n=10**38 + 1)], "cannot be stored: DynamoDB holds 38 digits"),
        ([Put(LOG, what="x", n=1.5)], "Value 1.5 is a float, which is not exact"),
        ([Put(LOG, what="x", text="x" * 500_000)], "bytes; DynamoDB takes items of 409600 at most"),
        ([Put(LOG, what="x"), Delete(LOG, what="x")], "yielded two writes of one row, ('LOG#1', 'x'): expected one"),
        ([Put(LOG, what="x"), Add(LOG, what="x", n=1)], "yielded two writes of one row, ('LOG#1', 'x'): expected one"),
        ([Put(ORDER)], f"which writes outside of into={LOG!r}, {COUNTS!r}. Add the target to into=."),
        ([Add(COUNTS, day="d", n=1)] * 100, "yielded more than 99 effects for one item"),
    ],
)
def test_an_effect_that_cannot_be_written_as_declared_is_refused(yielded, message):
    with pytest.raises(HandlerError, match=re.escape(message)):
        written_for(*yielded)


def test_an_add_may_go_to_any_row_of_an_owned_target():
    added = AddRow(("main", "LOG#ALL", "n"), {"n": 1}, 1, unversioned=True)
    assert [added] == written_for(Add(LOG, order_id="ALL", what="n", n=1))


# History.


def history(of, **options):
    router = Router()
    router.audit(ORDER, **options)
    (row,) = audit_rows(checked_routes(router.routes)[0], of, {"order_id": "1"})
    return row


def test_an_audit_row_says_what_changed_from_what_to_what_and_when():
    row = history(PAID)
    assert row.key == ("main", "AUDIT#ORDER#1|METADATA", VERSION)
    assert row.attributes["changes"] == {"status": {"old": "new", "new": "paid"}}
    assert ("MODIFY", datetime(2026, 3, 1, 9, tzinfo=UTC)) == (row.attributes["event"], row.attributes["at"])


def test_an_audit_row_is_a_function_of_the_change_alone():
    assert history(PAID) == history(PAID)


def test_an_audit_row_of_an_item_that_came_or_went_has_one_side():
    assert history(change(None, item("ORDER#1", status="new"))).attributes["changes"] == {"status": {"new": "new"}}
    assert history(change(item("ORDER#1", status="new"), None)).attributes["changes"] == {"status": {"old": "new"}}


def test_a_redacted_attribute_s_change_is_noted_without_its_values():
    assert history(PAID, redact=["status"]).attributes["changes"] == {"status": {"redacted": True}}


def test_an_expiry_is_noted():
    expiry = change(item("ORDER#1"), None)
    expiry.expired = True
    assert history(expiry).attributes["expired"] is True
    assert "expired" not in history(PAID).attributes


def test_an_audit_may_go_to_a_template_of_its_own():
    row = history(PAID, into=Key("HISTORY#{order_id}", "{version}"))
    assert row.key == ("main", "HISTORY#1", VERSION)


def test_an_audit_goes_to_the_table_of_its_item():
    sources = [Key("A#{x}", "B", Table("one")), Key("A#{x}", "B", Table("two"))]
    router = Router()
    router.audit(*sources)
    (bound,) = checked_routes(router.routes)
    found = [audit_rows(bound, change(None, item("A#1", "B"), table=key.table), {"x": "1"})[0].key for key in sources]
    assert [key[0] for key in found] == ["one", "two"]


def test_an_audit_of_a_change_without_its_images_is_refused():
    with pytest.raises(ImageError, match="the stream's view type is NEW_IMAGE"):
        history(change(item("ORDER#1"), item("ORDER#1", n=1), view="NEW_IMAGE"))
