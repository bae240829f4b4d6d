"""A search whose handler asks for the time: its documents follow moments, and its counter's item names the wake."""

import pytest

from streamfold import App, Document, Now, Router
from streamfold.testing import Twin
from tests.helpers.woken import TICKET, Desk, at

STATE = {"status": "open", "team": "a"}


def app_of(broken=(), **options):
    router = Router()

    @router.search(TICKET, to="tickets", fields={"state": "keyword"}, **options)
    def tickets(ticket, now: Now):
        if now.passed(ticket["due_at"]):
            if broken:
                raise ZeroDivisionError
            return Document(state="late")
        return Document(state="early")

    return App("desk", routers=[router])


@pytest.fixture
def twin():
    return Twin(app_of())


def wakes(twin):
    return sorted(key.sk.partition("#")[0] for key in twin.engine.state if key.pk.startswith("wake#"))


def test_a_document_changes_at_its_moment(twin):
    twin.put(TICKET, ticket_id="1", due_at=at(60))
    assert (list(twin.documents("tickets").values()), wakes(twin)) == ([{"state": "early"}], [at(60)])
    twin.clock.advance(60)
    assert (list(twin.documents("tickets").values()), wakes(twin)) == ([{"state": "late"}], [])


def test_a_moment_that_moves_to_earlier_moves_the_wake(twin):
    twin.put(TICKET, ticket_id="1", due_at=at(60))
    twin.put(TICKET, ticket_id="1", due_at=at(30))
    assert wakes(twin) == [at(30)]


def test_an_item_that_goes_has_no_wake(twin):
    twin.put(TICKET, ticket_id="1", due_at=at(60))
    twin.delete(TICKET, ticket_id="1")
    assert (twin.documents("tickets"), wakes(twin)) == ({}, [])


def test_a_counter_does_not_expire_while_its_item_waits(twin):
    twin.put(TICKET, ticket_id="1", due_at=at(60))
    (counter,) = [item for key, item in twin.engine.state.items() if key.pk.startswith("document#")]
    assert "ttl" not in counter
    twin.clock.advance(60)
    (counter,) = [item for key, item in twin.engine.state.items() if key.pk.startswith("document#")]
    assert "ttl" in counter


def test_a_handler_that_raises_puts_the_wake_off():
    broken = [True]
    desk = Desk(app_of(broken))
    desk.more["store"] = desk.engine  # its index is local too
    desk.ticket(1, 60)
    desk.now += 60
    assert len(desk.sweep()) == 1
    assert desk.wakes() == {"tickets": [at(360)]}
    broken.clear()
    desk.now += 300
    assert desk.sweep() == []
    assert desk.wakes() == {}
