"""A change made by hand for a plain test, and what is said of arguments that fit nothing."""

from datetime import UTC, datetime

import pytest

from streamfold import Add, App, Key, Router, Table
from streamfold.testing import Clock, Twin, TwinError, WriteRefused, change, check

ORDER = Key("ORDER#{order_id}", "METADATA")
COUNTED = Key("PAID#{day}", "ORDERS")
router = Router()


@router.on(ORDER, into=COUNTED)
def paid(change):
    if "status" in change.changed and change.new.get("status") == "paid":
        yield Add(COUNTED, day=change.at.date().isoformat(), total=1)


def test_a_handler_of_changes_is_called_like_a_plain_function():
    told = change(ORDER, order_id="1", old={"status": "open"}, new={"status": "paid"})
    assert list(paid(told)) == [Add(COUNTED, day="2026-03-01", total=1)]
    assert list(paid(change(ORDER, order_id="1", new={"status": "open"}))) == []


@pytest.mark.parametrize(
    ("images", "event"),
    [({"new": {"n": 1}}, "INSERT"), ({"old": {"n": 1}, "new": {}}, "MODIFY"), ({"old": {}}, "REMOVE")],
)
def test_its_images_say_what_happened(images, event):
    made = change(ORDER, order_id="1", **images)
    assert (made.event, made.name, made.expired) == (event, "ORDER#1 / METADATA", False)
    for side in ("old", "new"):
        expected = {"PK": "ORDER#1", "SK": "METADATA", **images[side]} if side in images else {}
        assert dict(getattr(made, side)) == expected


def test_it_may_be_of_a_table_with_other_keys_and_of_another_time():
    reading = Key("{device:number}", "{at:number}", Table("iot", partition="device", sort="at"))
    made = change(reading, device=7, at=100, old={"celsius": 3}, expired=True, clock=Clock(0))
    assert (made.keys, made.expired) == ({"device": 7, "at": 100}, True)
    assert made.at == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "neither old= nor new="),
        ({"new": {}, "expired": True}, "leave new= out"),
        ({"old": {"n": 1}, "new": {"n": 1}}, "a stream has no record of such a change"),
    ],
)
def test_what_is_no_change_is_refused(arguments, said):
    with pytest.raises(TwinError, match=said):
        change(ORDER, order_id="1", **arguments)


def test_an_item_that_dynamodb_would_not_take_is_refused():
    with pytest.raises(WriteRefused):
        change(ORDER, order_id="1", new={"m": set()})


@pytest.mark.parametrize("given", [router, None, "handlers:app"])
def test_what_is_no_application_is_refused(given):
    with pytest.raises(TwinError, match=r"is no application: expected App\("):
        Twin(given)
    with pytest.raises(TwinError, match=r"is no application: expected App\("):
        check(given, {ORDER: {}})


@pytest.mark.parametrize("items", [{"ORDER": {}}, [{ORDER: {}}]])
def test_items_that_name_no_keys_are_refused(items):
    with pytest.raises(TwinError, match="expected example items of each source key, "):
        check(App("shop", routers=[router]), items)


@pytest.mark.parametrize("seconds", ["1d", -1, None, True])
def test_a_clock_takes_seconds_alone(seconds):
    with pytest.raises(TwinError, match="expected seconds, 0 or more"):
        Clock().advance(seconds)
