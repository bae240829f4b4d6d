"""What histories are drawn from: items of keys that belong together meet in them."""

from datetime import timedelta, timezone
from decimal import Decimal

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.proofs.histories import changes_of, recorded_shapes, shape, shapes_of
from streamfold.records.values import number_text
from streamfold.testing.twin import Write
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
NUMBERED = Key("NUMBERED#{order_id:d}", "METADATA")


def fields_of(shapes, key):
    return next(list(shape.fields) for shape in shapes if shape.key == key)


def test_what_one_example_says_of_a_field_holds_for_all_keys_that_have_it():
    shapes = shapes_of({ORDER: [{"order_id": "A"}, {"order_id": "B"}], ORDER_ITEM: [{"price": 1}]})
    assert fields_of(shapes, ORDER) == [{"order_id": "A"}, {"order_id": "B"}]
    assert [fields["order_id"] for fields in fields_of(shapes, ORDER_ITEM)] == ["A", "A", "B", "B"]


def test_fields_of_another_type_and_examples_of_its_own_come_first():
    shapes = shapes_of({ORDER: [{"order_id": "A"}], ORDER_ITEM: [{"order_id": "C"}], NUMBERED: [{}]})
    assert fields_of(shapes, ORDER) == [{"order_id": "A"}, {"order_id": "1"}]
    assert [fields["order_id"] for fields in fields_of(shapes, ORDER_ITEM)] == ["C", "C", "1", "1"]
    assert fields_of(shapes, NUMBERED) == [{"order_id": 1}, {"order_id": 2}]


@pytest.mark.parametrize(
    "spec",
    ["", ":rest", ":d", ":04d", ":date", ":datetime", ":datetime.any", ":epoch.seconds", ":ulid", ":number.seconds"],
)
def test_fields_of_each_kind_have_values_that_make_keys(spec):
    key = Key("EVENTS", f"{{at{spec}}}")
    drawn = fields_of(shapes_of({key: [{"total": 1}]}), key)
    assert [key.match(key.key(**fields)) is not None for fields in drawn] == [True, True]


def test_images_of_a_recording_are_without_what_was_derived_onto_the_items():
    router = Router()

    @router.attributes(ORDER_ITEM, of=ORDER)
    def lines(item):
        yield Row(lines=Count())

    recorded = item("ORDER#1", status="open", lines=2, _sf_a={"shop/lines": {"lines"}})
    (shape,) = recorded_shapes(App("shop", routers=[router]), [change(None, recorded)])
    assert (shape.key, shape.items) == (ORDER, [{"status": "open"}])


def test_parts_of_a_recording_are_several_of_the_same_few_roots():
    router = Router()

    @router.attributes(ORDER, parts=[ORDER_ITEM])
    def lines(order, parts):
        return Row(lines=len(parts(ORDER_ITEM)))

    orders = [change(None, item(f"ORDER#{number}")) for number in "12"]
    lines_of = [change(None, item(f"ORDER#{number}", f"ITEM#{sku}", price=1)) for sku in "abc" for number in "87612"]
    found = fields_of(recorded_shapes(App("shop", routers=[router]), [*orders, *lines_of]), ORDER_ITEM)
    assert [(fields["order_id"], fields["sku"]) for fields in found] == [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")]


@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_a_history_goes_on_for_days_that_no_other_time_zone_has(source):
    router = Router()
    router.audit(ORDER)
    history = [Write(ORDER, {"order_id": "1"}, {"weight": number}) for number in range(12)]
    (changes,) = changes_of(App("shop", routers=[router]), history, source=source)
    days = [
        [change.at.astimezone(timezone(timedelta(hours=hours))).date() for change in changes] for hours in (-12, 0, 14)
    ]
    assert all(len(set(each)) > 1 for each in days)
    assert days[0] != days[1] != days[2]


@pytest.mark.parametrize("number", [10**38 - 1, 9 * 10**125, Decimal("-9E125"), Decimal("1E-130")])
def test_numbers_near_the_end_of_what_dynamodb_holds_are_varied_within_it(number):
    found = shape(ORDER, [{"order_id": "1", "price": number}])
    for varied in found.items:
        number_text(varied["price"])
    assert {"price": number} in found.items
