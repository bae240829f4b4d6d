"""Timers of publishers and external handlers: one message id and one note for each moment of an item."""

import time

import pytest

from streamfold import App, Key, Router, Timer
from streamfold.testing import Twin
from streamfold.testing.twin import HandlerFails
from tests.helpers.woken import START, TICKET, Desk, at, made

CART = Key("CART#{cart_id}", "META")


def twin_of(declare):
    router = Router()
    declare(router)
    return Twin(App("shop", routers=[router]))


def publishes(router):
    @router.publish(CART, at=lambda cart: cart.get("at"), to="sqs:shop", type="cart.abandoned")
    def abandoned(timer: Timer, cart_id):
        return {"cart": cart_id, "items": timer.item["items"], "at": timer.at}


def test_a_message_is_sent_once_for_each_moment():
    twin = twin_of(publishes)
    for moment in ("2026-03-01T10:00:00Z", "2026-03-01T10:30:00Z", "2026-03-01T10:00:00Z"):
        twin.put(CART, cart_id="1", items=2, at=moment)
        twin.clock.advance(7200)
    first, second, again = twin.published("shop")
    assert first["id"] == again["id"] != second["id"]
    assert first["time"] == first["sequence"] == first["data"]["at"] == "2026-03-01T10:00:00.000000Z"


def test_with_once_a_message_of_a_moment_is_not_sent_again():
    def declare(router):
        router.publish(CART, at=lambda cart: cart.get("at"), to="sqs:shop", type="cart.abandoned", once=True)

    twin = twin_of(declare)
    for moment in ("2026-03-01T10:00:00Z", "2026-03-01T10:30:00Z", "2026-03-01T10:00:00Z"):
        twin.put(CART, cart_id="1", at=moment)
        twin.clock.advance(7200)
    first, _ = twin.published("shop")
    assert first["data"] == {
        "event": "TIMER",
        "key": {"PK": "CART#1", "SK": "META"},
        "new": {"PK": "CART#1", "SK": "META", "at": "2026-03-01T10:00:00Z"},
    }


CALLS = []


def calls(router):
    @router.on(TICKET, at=lambda ticket: ticket["due_at"], external=True)
    def remind(timer, ticket_id):
        CALLS.append((ticket_id, timer.at.strftime("%H:%M:%S"), timer.item["team"]))
        if timer.item["team"] == "broken":
            raise ZeroDivisionError


def calls_async(router):
    @router.on(TICKET, at=lambda ticket: ticket["due_at"], external=True)
    async def remind(timer, ticket_id):
        CALLS.append((ticket_id, timer.at.strftime("%H:%M:%S"), timer.item["team"]))


@pytest.mark.parametrize("declare", [calls, calls_async])
def test_an_external_handler_is_called_once_for_each_moment_of_an_item(declare):
    CALLS.clear()
    desk = Desk(made(declare), outside=True)
    begin = int(time.time()) - START  # notes of calls expire by the machine's clock
    desk.now += begin
    for due in (20, 40, 20):
        desk.ticket(1, begin + due)
        desk.now += 30
        assert desk.sweep() == []
    assert [("1", at(begin + due)[11:19], "a") for due in (20, 40)] == CALLS
    assert desk.wakes() == {}


def test_an_external_handler_that_raises_is_called_again_at_the_wake_that_was_put_off():
    CALLS.clear()
    desk = Desk(made(calls), outside=True)
    desk.ticket(1, 20, team="broken")
    desk.now += 30
    assert len(desk.sweep()) == 1
    desk.write("TICKET#1", status="open", team="a", due_at=at(20))
    desk.now += 301
    assert (desk.sweep(), [team for *_, team in CALLS]) == ([], ["broken", "a"])


def test_what_is_no_moment_is_reported_where_the_item_is_put():
    def declare(router):
        router.publish(CART, at=lambda cart: cart["at"], to="sqs:shop", type="cart.abandoned")

    with pytest.raises(HandlerFails, match="no text of a datetime field"):
        twin_of(declare).put(CART, cart_id="1", at="soon")
