"""Declarations with ``at=``: what is refused when they are imported, with the way to write them."""

import pytest

from streamfold import App, Change, Item, Key, Now, Put, Router, Timer
from streamfold.errors import DeclarationError
from streamfold.routes.moments import moment_microseconds
from streamfold.testing import Twin

CART, REMINDER = Key("CART#{cart_id}", "META"), Key("CART#{cart_id}", "REMINDER")


def moment(cart):
    return cart["at"]


def declared(**options):
    router = Router()

    @router.on(CART, into=REMINDER, **options)
    def remind(timer: Timer):
        return Put(at=timer.at)

    return router


def yields(cart):
    yield cart["at"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "at"}, "at='at': expected a function of the item"),
        ({"at": lambda: None}, "0 parameters: expected one, the item"),
        ({"at": lambda cart, cart_id: cart_id}, "2 parameters: expected one, the item"),
        ({"at": yields}, "at=yields, which yields or is async"),
        ({"at": moment, "events": ["INSERT"]}, "Leave events out, and have at= give None"),
        ({"at": moment, "changed": ["at"]}, "Leave changed out"),
        ({"at": moment, "expired": True}, "Leave expired out"),
        ({"at": moment, "at_once": 2}, "leave at_once out"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(options, message):
    with pytest.raises(DeclarationError, match=message):
        declared(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "cart.{event}"}, "at a moment nothing is inserted"),
        ({"data": ["old"]}, "at a moment nothing changes"),
        ({"events": ["REMOVE"]}, "Leave events out"),
    ],
)
def test_a_publisher_of_moments_has_nothing_of_changes(options, message):
    with pytest.raises(DeclarationError, match=message):
        Router().publish(CART, at=moment, to="sqs:shop", **{"type": "cart.abandoned", **options})


def test_a_handler_of_moments_takes_no_time():
    with pytest.raises(DeclarationError, match=r"router\.on takes none"):

        @Router().on(CART, at=moment, into=REMINDER)
        def remind(timer, now: Now):
            return Put(at=timer.at)


@pytest.mark.parametrize("options", [{"into": REMINDER}, {"external": True}])
@pytest.mark.parametrize("annotation", [Change, "Change"])
def test_a_handler_of_moments_takes_no_change(options, annotation):
    def remind(change):
        return Put(at=change.at)

    remind.__annotations__["change"] = annotation
    with pytest.raises(DeclarationError, match=r"takes change: Change.* Write timer: Timer; timer\.item is the item"):
        App("shop", routers=[declares(remind, options)])


def declares(remind, options):
    router = Router()
    router.on(CART, at=moment, **options)(remind)
    return router


def test_rows_that_were_derived_have_no_timers():
    router = declared(at=moment)

    @router.on(REMINDER, at=moment, into=Key("X#{cart_id}", "Y"))
    def again(timer):
        return Put(at=timer.at)

    with pytest.raises(DeclarationError, match=r"A handler of kind (on|timer) may not read derived rows"):
        App("shop", routers=[router])


def test_two_routes_are_declared_and_no_change_reaches_the_handler():
    app = App("shop", routers=[declared(at=moment)])
    handler, moments = app.routes
    assert (handler.name, moments.name) == ("remind", "remind.timer")
    assert handler.kind.subscriptions(handler) == ()
    assert [each.key for each in moments.kind.subscriptions(moments)] == [CART]


def test_a_timer_has_the_item_and_the_moment():
    router = Router()

    def typed(cart: Item):
        return int(cart["seconds"])

    @router.on(CART, at=typed, into=REMINDER)
    def remind(timer, cart_id):
        return Put(cart=cart_id, items=timer.item["items"], at=timer.at)

    twin = Twin(App("shop", routers=[router]))
    twin.put(CART, cart_id="1", items=3, seconds=moment_microseconds("2026-03-01T10:00:00Z") // 1_000_000)
    twin.clock.advance(7200)
    assert twin.row(REMINDER, cart_id="1") == {
        "PK": "CART#1",
        "SK": "REMINDER",
        "cart": "1",
        "items": 3,
        "at": "2026-03-01T10:00:00.000000Z",
    }
