"""Handlers that are called at moments of items: the function behind the queue has their permissions, and no other."""

import pytest

from streamfold import App, Key, Put, Router, Table
from streamfold.deploy.permissions import Role, permissions

CART, REMINDER = Key("CART#{cart_id}", "META", Table("carts")), Key("CART#{cart_id}", "REMINDER", Table("reminders"))


@pytest.fixture
def app():
    router = Router()

    @router.on(CART, at=lambda cart: cart["at"], into=REMINDER)
    def remind(timer):
        return Put(at=timer.at)

    router.publish(CART, at=lambda cart: cart["at"], to="sqs:shop", type="cart.abandoned")
    return App("shop", routers=[router])


def of(app, kind, place):
    return {
        action.rpartition(":")[2]
        for action, where in permissions(app, Role(kind, None))
        if place in (where.name, where.kind)
    }


def test_the_function_of_the_stream_puts_wakes_and_calls_no_handler(app):
    assert "PutItem" not in of(app, "stream", "reminders")  # it only hears of rows that somebody removed
    assert of(app, "stream", "sqs:shop") == set()
    assert {"PutItem", "DeleteItem"} <= of(app, "stream", "state")


def test_the_function_behind_the_queue_calls_handlers_and_reads_their_items(app):
    assert "PutItem" in of(app, "queue", "reminders")
    assert "SendMessage" in of(app, "queue", "sqs:shop")
    assert "BatchGetItem" in of(app, "queue", "carts")
