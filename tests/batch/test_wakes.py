"""Wakes: put and deleted with the step that names them; what visits at them do, also where a handler raises."""

from types import SimpleNamespace

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.batch.wakes import BEFORE_ALL_WAKES, WakeVisits, asking, listed
from streamfold.errors import EngineUnavailable
from streamfold.ledger.wakes import partitions
from streamfold.routes.moments import Now
from streamfold.runtime import CLOCK_AHEAD_SECONDS, MICROSECONDS
from streamfold.writes.guarded import PutState
from tests.helpers.woken import EACH, START, TICKET, Desk, active, at, counted, made, overdue, tiers


@pytest.fixture
def desk():
    return Desk(made(counted))


def test_a_moment_that_is_to_come_has_a_wake(desk):
    desk.ticket(1, 60)
    assert (desk.wakes(), desk.rows("TEAM")) == ({"counted": [at(60)]}, {})


def test_at_the_moment_the_row_appears_and_the_wake_goes(desk):
    desk.ticket(1, 60)
    desk.now += 60
    assert desk.sweep() == []
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#a": {"tickets": 1}})


def test_before_the_moment_nothing_happens(desk):
    desk.ticket(1, 60)
    desk.now += 59
    desk.sweep()
    assert (desk.wakes(), desk.rows("TEAM")) == ({"counted": [at(60)]}, {})


def test_a_moment_in_the_past_has_no_wake(desk):
    desk.ticket(1, -60)
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#a": {"tickets": 1}})


def test_a_moment_that_moves_to_later_leaves_the_early_wake(desk):
    desk.ticket(1, 60)
    desk.ticket(1, 90)
    assert desk.wakes() == {"counted": [at(60)]}
    desk.now += 60
    desk.sweep()
    assert (desk.wakes(), desk.rows("TEAM")) == ({"counted": [at(90)]}, {})


def test_a_moment_that_moves_to_earlier_moves_the_wake(desk):
    desk.ticket(1, 60)
    desk.ticket(1, 30)
    assert desk.wakes() == {"counted": [at(30)]}


@pytest.mark.parametrize("gone", [{"status": "closed"}, None])
def test_an_item_that_asks_for_no_moment_any_more_has_no_wake(desk, gone):
    desk.ticket(1, 60)
    desk.ticket(1, 60, **gone) if gone else desk.process(desk.write("TICKET#1"))
    assert desk.wakes() == {}


def test_an_items_time_does_not_go_back(desk):
    desk.now = START + 61
    desk.ticket(1, 60)
    desk.now = START + 50  # another process, whose clock is behind
    desk.ticket(1, 60, note=1)
    assert desk.rows("TEAM") == {"TEAM#a": {"tickets": 1}}


def test_the_time_of_a_row_that_has_gone_does_not_go_back_either():
    desk = Desk(made(active))
    desk.now = START + 100
    desk.ticket(1, 10, until=at(90))
    desk.now = START + 80
    desk.ticket(1, 10, until=at(90), note=1)
    assert desk.rows("ACTIVE") == {}


def test_an_item_that_only_waits_does_not_expire(desk):
    desk.ticket(1, 60)
    (ledger,) = [item for key, item in desk.engine.state.items() if key.pk.startswith("ledger#")]
    assert (ledger["live"], "ttl" in ledger) == (1, False)


def test_an_item_whose_last_moment_came_without_a_row_expires():
    desk = Desk(made(active))
    desk.now = START + 100
    desk.ticket(1, 10, until=at(90))
    (ledger,) = [item for key, item in desk.engine.state.items() if key.pk.startswith("ledger#")]
    assert (ledger.get("live", 0), "ttl" in ledger) == (0, True)


def test_wakes_have_no_time_to_live(desk):
    desk.ticket(1, 60)
    (wake,) = [item for key, item in desk.engine.state.items() if key.pk.startswith("wake#")]
    assert wake.keys() == {"s"}


@pytest.mark.parametrize("handler", EACH)
def test_each_kind_has_its_rows_after_many_moments(handler):
    desk = Desk(made(handler))
    for number in range(4):
        desk.ticket(number, 20 * number, until=at(20 * number + 30))
    for _ in range(8):
        desk.now += 10
        assert desk.sweep() == []
    due = {handler: moments for handler, moments in desk.wakes().items() if min(moments) <= at(desk.now - START)}
    assert due == {}


class Dies(BaseException):
    """The process ends here."""


def dying(desk, call):
    """The same store, which ends the process at a call."""

    class Store(type(desk.store)):
        def __getattribute__(self, name):
            if name == call:
                raise Dies
            return super().__getattribute__(name)

    return Store(desk.engine, desk.store.invariants)


def test_a_visit_that_dies_before_rows_are_recomputed_leaves_its_wake():
    desk = Desk(made(overdue))
    desk.ticket(1, 60)
    desk.now += 60
    with pytest.raises(Dies):
        desk.sweep(store=dying(desk, "read_rows"))
    assert desk.wakes() == {"overdue": [at(60)]}
    desk.sweep()
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#a": {"tickets": 1, "oldest": at(60)}})


def test_a_visit_that_dies_before_attributes_are_copied_leaves_its_wake():
    desk = Desk(made(tiers))
    desk.ticket(1, 60)
    desk.now += 60
    with pytest.raises(Dies):
        desk.sweep(store=dying(desk, "read_rows"))
    assert desk.wakes() == {"tiers": [at(60)]}
    desk.sweep()
    assert desk.wakes() == {"tiers": [at(85)]}


class Parking:
    """Keeps what is parked."""

    def __init__(self):
        self.parked = []

    def park(self, document):
        self.parked.append(document)


def raising(**options):
    """A handler that raises at its moment."""
    router = Router()
    broken = [True]

    @router.view(TICKET, into=Key("TEAM#{team}", "RAISED"), **options)
    def raises(ticket, now: Now):
        if now.passed(ticket["due_at"]):
            if broken:
                raise ZeroDivisionError
            yield Row(team=ticket["team"], late=Count())

    return App("desk", routers=[router]), broken


def test_a_handler_that_raises_at_a_wake_puts_it_off_and_doubles_the_time():
    app, broken = raising()
    desk = Desk(app)
    desk.ticket(1, 60)
    desk.now += 60
    assert len(desk.sweep()) == 1
    assert desk.wakes() == {"raises": [at(360)]}
    desk.now = START + 360
    assert len(desk.sweep()) == 1
    assert desk.wakes() == {"raises": [at(960)]}
    broken.clear()
    desk.now = START + 960
    assert desk.sweep() == []
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#a": {"late": 1}})


def test_a_handler_that_parks_parks_the_item_and_deletes_the_wake():
    app, _ = raising(on_error="park")
    parking = Parking()
    desk = Desk(app, parking=parking)
    desk.ticket(1, 60)
    desk.now += 60
    assert desk.sweep() == []
    assert desk.wakes() == {}
    assert [each.record["visited"]["Keys"]["PK"] for each in parking.parked] == [{"S": "TICKET#1"}]


def test_a_process_that_dies_while_it_parks_leaves_the_wake():
    class Dying(Parking):
        def park(self, document):
            raise Dies

    app, _ = raising(on_error="park")
    desk = Desk(app, parking=Dying())
    desk.ticket(1, 60)
    desk.now += 60
    with pytest.raises(Dies):
        desk.sweep()
    assert desk.wakes() == {"raises": [at(60)]}


def test_an_item_that_cannot_be_parked_keeps_its_wake():
    app, _ = raising(on_error="park")
    desk = Desk(app)
    desk.ticket(1, 60)
    desk.now += 60
    assert len(desk.sweep()) == 1
    assert desk.wakes() == {"raises": [at(360)]}


def test_a_store_that_is_away_leaves_the_wake(desk):
    desk.ticket(1, 60)
    desk.now += 60

    class Away(type(desk.store)):
        def transact(self, writes, expires_at):
            raise EngineUnavailable("away")

    assert len(desk.sweep(store=Away(desk.engine, desk.store.invariants))) == 1
    assert desk.wakes() == {"counted": [at(60)]}
    desk.sweep()
    assert desk.rows("TEAM") == {"TEAM#a": {"tickets": 1}}


def between_calls(desk, call, action):
    """The same store, which carries something out once before a call of this name."""
    actions = [action]

    class Store(type(desk.store)):
        def __getattribute__(self, name):
            if name == call and actions:
                actions.pop()()
            return super().__getattribute__(name)

    return Store(desk.engine, desk.store.invariants)


def wakes_of(desk):
    """The late wakes of the only handler."""
    runtime = desk.runtime()
    (route,) = asking(runtime)
    stripes = partitions(desk.app.name, route.name)
    return [each for stripe in stripes for each in listed(runtime, route, stripe, BEFORE_ALL_WAKES, runtime.moment)]


def test_a_visit_by_a_clock_that_is_behind_the_wake_is_at_its_moment(desk):
    desk.ticket(1, 60)
    desk.now += 60
    found = wakes_of(desk)
    desk.now -= 20
    WakeVisits(desk.runtime()).visit(found)
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#a": {"tickets": 1}})


def test_a_wake_that_no_ledger_item_names_stays_where_it_is(desk):
    desk.ticket(1, 60)
    (wake,) = [key for key in desk.engine.state if key.pk.startswith("wake#")]
    text = dict(desk.engine.state[wake])
    desk.process(desk.write("TICKET#1", status="closed", team="a", due_at=at(60)))
    # As if a step under way had put it again, behind the reading of the ledger item.
    desk.engine.transact([PutState(wake, text["s"])], 0)
    desk.now += 60
    desk.sweep()
    assert desk.wakes() == {"counted": [at(60)]}


def test_a_visit_reads_the_item_behind_its_ledger_item(desk):
    desk.ticket(1, 60)
    desk.now += 60

    def moves_by_a_clock_that_is_behind():
        desk.now -= 20
        desk.process(desk.write("TICKET#1", status="open", team="b", due_at=at(60)))
        desk.now += 20

    found = wakes_of(desk)
    store = between_calls(desk, "read_state", moves_by_a_clock_that_is_behind)
    WakeVisits(desk.runtime(store=store)).visit(found)
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#b": {"tickets": 1}})


def test_a_refused_step_asks_again_at_the_time_that_was_stored_meanwhile(desk):
    first = desk.write("TICKET#1", status="open", team="a", due_at=at(60))
    second = desk.write("TICKET#1", status="open", team="a", due_at=at(60), note=1)

    def by_a_clock_that_is_right():
        desk.now = START + 60
        desk.process(first)
        desk.now = START + 50

    desk.now = START + 50
    assert desk.process(second, store=between_calls(desk, "transact", by_a_clock_that_is_right)) == []
    assert desk.rows("TEAM") == {"TEAM#a": {"tickets": 1}}


def test_a_step_that_was_planned_before_a_visit_does_not_land_behind_it(desk):
    desk.ticket(1, 60)
    second = desk.write("TICKET#1", status="open", team="a", due_at=at(60), note=1)

    def visited_by_a_clock_that_is_right():
        desk.now = START + 60
        desk.sweep()
        desk.now = START + 50

    desk.now = START + 50
    assert desk.process(second, store=between_calls(desk, "transact", visited_by_a_clock_that_is_right)) == []
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#a": {"tickets": 1}})


def test_a_clock_that_is_a_year_ahead_is_that_of_the_store_and_five_seconds(desk):
    desk.store.separate = SimpleNamespace(latest_seconds=lambda: START)
    desk.now = START + 366 * 24 * 60 * 60
    assert desk.runtime().moment == (START + CLOCK_AHEAD_SECONDS) * MICROSECONDS
