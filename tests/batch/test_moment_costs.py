"""Requests and units of handlers that ask for the time, counted: what moments cost beside what is written anyway."""

from datetime import timedelta

import pytest

from streamfold import Count, Key, Router, Row
from streamfold.batch.wakes import late_wakes, visit_stripe
from streamfold.ledger.wakes import STRIPES
from streamfold.routes.moments import Now
from streamfold.runtime import VISITS
from tests.helpers.woken import SHIFT, START, TICKET, Desk, at, counted, made

FIVE_MINUTES = timedelta(minutes=5)


def silent(router: Router):
    """How many sensors of a room are silent: each report moves the moment."""

    @router.view(TICKET, into=Key("ROOM#{room}", "SILENT"))
    def silent(sensor, now: Now):
        if now.passed(sensor["seen_at"], after=FIVE_MINUTES):
            yield Row(room=sensor["room"], sensors=Count())


def timeless(router: Router):
    """A handler of other items that does not ask for the time."""

    @router.view(SHIFT, into=Key("TEAM#{team}", "SHIFTS"))
    def shifts(shift):
        return Row(team=shift["team"], shifts=Count())


def tickets(router: Router):
    """A handler of tickets that does not ask for it either."""

    @router.view(TICKET, into=Key("TEAM#{team}", "COUNTED"))
    def tickets(ticket):
        return Row(team=ticket["team"], tickets=Count())


def spent(desk, work):
    """The requests, read units and write units of a piece of work."""
    store = desk.store
    before = store.requests, store.read_units, store.write_units
    work()
    after = store.requests, store.read_units, store.write_units
    return tuple(now - then for now, then in zip(after, before, strict=True))


def tick(desk):
    """What the schedule of each minute does, with its queue: stripes with late wakes are visited, and no others."""
    runtime = desk.runtime()
    for each in late_wakes(runtime):
        for number in each.stripes:
            assert not visit_stripe(runtime, (VISITS + each.route.name, number)).failures


@pytest.fixture
def desk():
    """A desk whose state knows the forms of its rows: the first row of a handler writes them."""
    desk = Desk(made(counted))
    desk.ticket(0, -10)
    return desk


@pytest.mark.parametrize(
    ("steps", "write_units"),
    [
        ([("open", 100)], 4),  # ledger item and wake, together
        ([("open", 100), ("open", 200)], 1),  # later: the ledger item alone
        ([("open", 100), ("open", 50)], 6),  # earlier: the ledger item, the old wake and the new one
        ([("open", 100), ("closed", 100)], 4),  # dropped: the ledger item and the wake
        ([("closed", 100)], 1),  # not asked
        ([("open", -10)], 4),  # it has passed: ledger item and row, and no wake
    ],
)
def test_units_of_moments_are_those_that_the_page_says(desk, steps, write_units):
    *before, (status, due_at) = steps
    for each, due in before:
        desk.ticket(1, due, status=each)
    requests, read, written = spent(desk, lambda: desk.ticket(1, due_at, status=status))
    assert (requests, read, written) == (3, 2.5, write_units)  # 2 read units are of the manifest, one a batch


@pytest.mark.parametrize(
    ("due", "write_units"),
    [([100], 6), ([100, 200], 6)],  # ledger item, wake and row; ledger item, old wake and new one
)
def test_a_wake_costs_six_units_beside_its_stripe(desk, due, write_units):
    for each in due:
        desk.ticket(1, each)
    desk.now = START + 100
    _, read, written = spent(desk, lambda: tick(desk))
    assert written == write_units + 2  # whoever visits a stripe says so, and that it is over
    assert read == len(STRIPES) * 0.5 + 2 + 3 + 2  # stripes; manifest; head twice and the list; ledger item and source


def test_a_schedule_with_nothing_to_do_reads_half_a_unit_for_each_stripe(desk):
    desk.ticket(1, 100)
    assert spent(desk, lambda: tick(desk)) == (16, 8, 0)


def test_a_report_each_second_costs_hardly_more_than_its_ledger_item():
    desk, reports = Desk(made(silent)), 900
    desk.process(desk.write("TICKET#7", room="cellar", seen_at=at(0)))

    def report():
        for second in range(1, reports + 1):
            desk.now = START + second
            desk.process(desk.write("TICKET#7", room="cellar", seen_at=at(second)))
            if second % 60 == 0:
                tick(desk)

    _, _, written = spent(desk, report)
    assert 1 < written / reports < 1.04
    desk.now += 420
    tick(desk)
    assert desk.rows("ROOM#") == {"ROOM#cellar": {"sensors": 1}}


@pytest.mark.parametrize("other", [tickets, counted])
def test_a_handler_without_the_time_costs_no_request_more_beside_one_with_it(other):
    desk = Desk(made(timeless, other))
    for number in range(2):
        desk.process(desk.write(f"SHIFT#{number}", team="a"))
    requests, read, written = spent(desk, lambda: desk.process(desk.write("SHIFT#0", team="b")))
    assert (requests, read, written) == (2, 3, 6)  # the read units are of the manifest, one a batch
