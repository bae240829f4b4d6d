"""What a handler's rows contribute, and the effects of one change."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from streamfold import Add, Average, Collect, Count, Delete, Key, Max, Put, Router, Row, Sum
from streamfold.derivations.on.effects import effects
from streamfold.errors import HandlerError, plain
from streamfold.ledger.contribution import RowContribution
from streamfold.writes.guarded import AddRow, GuardedPut
from tests.helpers.contributions import contribution
from tests.helpers.records import VERSION_PREFIX, change, image, item
from tests.helpers.small_handlers import (
    ALL,
    BY_STATUS,
    FIELDS,
    LINE,
    ORDER,
    ORDER_ITEM,
    OWNED,
    SALES,
    TOTAL,
    TOTAL_ROW,
    contributed,
    handler,
    refused,
    route,
)

pytestmark = pytest.mark.usefixtures("exact")


def test_an_aggregate_is_contributed_as_an_amount_to_its_row():
    assert {TOTAL_ROW: RowContribution({"total": 5, "lines": 1}, None, "")} == contributed(
        Row(total=Sum(5), lines=Count())
    )


def test_an_average_is_contributed_as_a_sum_and_a_count():
    assert contributed(Row(score=Average(5), n=Count()))[TOTAL_ROW].amounts == {
        "score_sum": 5,
        "score_count": 1,
        "n": 1,
    }


@pytest.mark.parametrize("beside", [{"score_sum": Sum(2)}, {"score_count": 7}])
def test_an_average_beside_a_value_of_one_of_its_names_is_refused(beside):
    for values in ({"score": Average(5), **beside}, {**beside, "score": Average(5)}):
        message = refused(Row(**values), into=OWNED)
        assert "gave score=Average(5), which keeps 'score_" in message
        assert message.endswith("Give one of them another name.")


def test_the_attribute_that_cannot_be_stored_is_named():
    assert refused(Row(name="x", tags=set()), into=OWNED).startswith("Attribute 'tags': Set set() cannot be stored")
    assert refused(Row(place={"lat": 1.5}), into=OWNED).startswith("Attribute 'place': Value 1.5 is a float")


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
        message = "Handler 'handler' gave more than 99 effects for one item, the most that one transaction can hold"
        assert message in refused(*rows, into=SALES)


ONE, OTHER = Row(day="1", n=Count()), Row(day="2", n=Count())


@pytest.mark.parametrize(
    ("given", "days"), [(ONE, "1"), ([ONE, OTHER], "12"), ((ONE,), "1"), (iter([OTHER]), "2"), ([], ""), (None, "")]
)
def test_a_handler_may_return_a_row_several_or_none(given, days):
    found = contribution(route("view", lambda item: given, ORDER_ITEM, into=SALES), image(LINE), FIELDS)
    assert [key[1] for key in found] == [f"SALES#{day}" for day in days]


async def coroutine():
    return ONE


@pytest.mark.parametrize(
    ("given", "what", "corrected"),
    [
        ({"total": 1}, "{'total': 1} of type dict", "return Row(total=1)"),
        ({1: 2}, "{1: 2} of type dict", "return Row(...)"),
        (5, "5 of type int", "return Row(...)"),
        ("text", "'text' of type str", "return Row(...)"),
        ({ONE}, f"{{{ONE!r}}} of type set", "return Row(...)"),
        (Row, f"{Row!r} of type type", "return Row(...)"),
    ],
)
def test_anything_else_that_is_returned_is_refused_with_the_corrected_line(given, what, corrected):
    with pytest.raises(HandlerError) as caught:
        contribution(route("view", lambda item: given, ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)
    expected = "expected Row, a list of them, or None. Write"
    assert str(caught.value) == f"Handler 'handler' returned {what}: {expected}\n    {corrected}"


def test_a_coroutine_that_is_returned_is_refused_and_closed():
    with pytest.raises(HandlerError, match=r"of type coroutine: expected Row(.|\n)*    def handler\(item\):"):
        contribution(route("view", lambda item: coroutine(), ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)


def test_a_handler_that_never_ends_is_stopped():
    def endless(item):
        while True:
            yield Row(n=Count())

    with pytest.raises(HandlerError, match="gave more than 99 effects"):
        contribution(route("view", endless, ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)


@pytest.mark.parametrize(
    ("yielded", "options", "message"),
    [
        (5, {}, "Handler 'handler' gave 5: a handler of kind view gives Row."),
        (Put(), {}, "Handler 'handler' gave Put(): a handler of kind view gives Row."),
        (Row(ALL, n=Count()), {}, f"gave Row({ALL!r}, n=Count()), which writes outside of into={TOTAL!r}."),
        (Row(n=Count()), {"into": [TOTAL, ALL]}, f"with several targets the first argument says which of {TOTAL!r}"),
        (Row(n=Count()), {"into": SALES}, f"Row(n=Count()) leaves 'day' of {SALES!r} without a value: give day=..."),
        (Row(day="a#b"), {"into": SALES}, "Row(day='a#b'): Value 'a#b' cannot be used for {day} in template"),
        (Row(day=None), {"into": SALES}, "Row(day=None): Value None cannot be used for {day} in template"),
        (Row(PK="x"), {}, "Row(PK='x') cannot set 'PK': key attributes and names that begin with _sf_ are the"),
        (Row(_sf_n=0), {}, "Row(_sf_n=0) cannot set '_sf_n': key attributes and names that begin with _sf_ are the"),
        (Row(attributes={"SK": 1}), {}, "cannot set 'SK': key attributes and names that begin with _sf_ are the"),
        (Row(n=Count(), attributes={"n": Count()}), {}, "gives n twice."),
        (Row(status="new"), {}, f"gave the plain attribute 'status' for {TOTAL!r}, but a row of it may have"),
        (
            Row(n=Count()),
            {"kind": "index", "into": OWNED},
            "Index 'handler' gave 'n' as an aggregate: an index item",
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


@pytest.mark.parametrize("second", [Row(x=2), Row(x="1"), Row(x=None)])
def test_one_row_yielded_twice_with_different_values_is_refused(second):
    message = "gave row ('X#1#a', 'Y') twice with different values of 'x'"
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


NO_NAMES = {
    "": "Name '' of an attribute cannot be used: expected text that is not empty",
    "\ud800": "of an attribute cannot be used: it holds half of a surrogate pair",
    "x" * 65_536: "of an attribute has 65536 bytes, and DynamoDB takes 65535 at most: use a shorter name",
    "é" * 32_768: "of an attribute has 65536 bytes, and DynamoDB takes 65535 at most: use a shorter name",
}


@pytest.mark.parametrize("name", NO_NAMES, ids=["empty", "half", "long", "long in bytes"])
@pytest.mark.parametrize("value", [1, Sum(1), Max(1), Average(1), Collect(1, most=2)])
def test_a_name_that_dynamodb_does_not_store_is_refused_for_its_record(name, value):
    assert NO_NAMES[name] in refused(Row(n=Count(), attributes={name: value}), into=SALES if value != 1 else OWNED)
    assert NO_NAMES[name] in refused(Row(n=Count(), **{name: value}), into=SALES if value != 1 else OWNED)


def test_a_name_of_64_kb_less_a_byte_is_taken():
    (part,) = contributed(Row(n=Count(), attributes={"x" * 65_535: Sum(1)})).values()
    assert part.amounts["x" * 65_535] == 1


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


@pytest.mark.parametrize(("given", "called"), [(Count, "Count()"), (Sum, "Sum(...)")])
def test_an_aggregate_that_was_not_called_is_told(given, called):
    assert f"gave n={given.__name__}, which is a class: expected a value of it, {called}." in plain(
        refused(Row(n=given))
    )


def test_an_error_of_the_handler_comes_as_it_is():
    def total(item):
        yield Row(total=Sum(item["cost"]))

    with pytest.raises(KeyError, match="cost"):
        contribution(route("view", total, ORDER_ITEM, into=TOTAL), image(LINE), FIELDS)


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


def test_a_handler_of_changes_may_return_its_effects():
    given = Put(LOG, what="paid", x=1)
    for returned, count in ((given, 1), ([given, Add(COUNTS, day="d", n=1)], 2), (None, 0)):
        options = {"into": (LOG, COUNTS)}
        assert len(effects(route("on", lambda _, it=returned: it, ORDER, **options), PAID, {"order_id": "1"})) == count
    with pytest.raises(HandlerError, match=r"of type int: expected Put, Add, Delete, a list of them, or None. Write\n"):
        effects(route("on", lambda _: 5, ORDER, into=LOG), PAID, {"order_id": "1"})


def test_a_row_that_several_sources_could_put_bears_its_owner():
    (put,) = written_for(Put(what="paid"), into=LOG, sources=(ORDER, Key("DRAFT#{order_id}", "X")))
    assert put.owner == "main|ORDER#1|METADATA"


@pytest.mark.parametrize(
    ("yielded", "message"),
    [
        ([Row(LOG)], "a handler of kind on gives Put, Add, Delete."),
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
        ([Put(LOG, what="x"), Delete(LOG, what="x")], "gave two writes of one row, ('LOG#1', 'x'): expected one"),
        ([Put(LOG, what="x"), Add(LOG, what="x", n=1)], "gave two writes of one row, ('LOG#1', 'x'): expected one"),
        ([Put(ORDER)], f"which writes outside of into={LOG!r}, {COUNTS!r}. Add the target to into=."),
        ([Add(COUNTS, day="d", n=1)] * 100, "gave more than 99 effects for one item"),
    ],
)
def test_an_effect_that_cannot_be_written_as_declared_is_refused(yielded, message):
    with pytest.raises(HandlerError, match=re.escape(message)):
        written_for(*yielded)


def test_an_add_may_go_to_any_row_of_an_owned_target():
    added = AddRow(("main", "LOG#ALL", "n"), {"n": 1}, 1, unversioned=True)
    assert [added] == written_for(Add(LOG, order_id="ALL", what="n", n=1))
