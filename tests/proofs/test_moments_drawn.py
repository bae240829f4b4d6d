"""Proofs of handlers that ask for the time: items get moments near a history, and items are visited at wakes."""

from datetime import UTC, datetime
from decimal import Decimal
from unittest.mock import patch

import pytest

from streamfold import Add, App, Key, Router, Row
from streamfold.derivations.derivation import local_locations
from streamfold.engines import MemoryEngine
from streamfold.ledger import wakes
from streamfold.proofs import driver, moments
from streamfold.proofs.histories import shapes_of
from streamfold.proofs.invariants import InvariantBroken
from streamfold.proofs.moments import near_moments, visit_late
from streamfold.routes.moments import Now
from streamfold.settings import Settings
from streamfold.testing import Diverged, NotDeterministic, check
from streamfold.testing.stream import START
from tests.helpers.woken import (
    EACH,
    SHIFT,
    TICKET,
    Desk,
    at,
    chain,
    counted,
    documents,
    expiring,
    made,
    on_shift,
    overdue,
)

PROVED = [*EACH, documents, expiring]

ITEMS = {
    TICKET: [
        {"status": "open", "team": "a", "due_at": "2026-03-01T10:00:00Z", "shift_id": "1"},
        {"status": "open", "team": "b", "due_at": "2026-03-02T10:00:00Z", "until": "2026-03-04T10:00:00Z"},
    ],
    SHIFT: [{"begins_at": "2026-03-02T08:00:00Z"}],
}


def proved(*handlers, **options):
    app = made(*handlers)
    sources = [each.key for route in app.routes for each in route.kind.subscriptions(route)]
    items = {key: ITEMS[key] for key in ITEMS if key in sources or (key is SHIFT and on_shift in handlers)}
    return check(app, items, processes=0, **options)


@pytest.mark.parametrize("handler", PROVED)
def test_histories_in_which_time_passes_lead_to_the_declared_rows_at_their_end(handler):
    proof = proved(handler, histories=6)
    assert proof.histories == 6
    assert {"wakes-left-out", "hours-pass", "clock-ahead"} <= proof.offered


@pytest.mark.ci
@pytest.mark.parametrize("handler", PROVED)
def test_more_histories_in_which_time_passes_lead_to_the_declared_rows(handler):
    proved(handler, histories=100, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("handler", PROVED)
def test_many_histories_in_which_time_passes_lead_to_the_declared_rows(handler):
    proved(handler, histories=2000, seed=2)


def test_a_schedule_that_never_looks_is_noticed():
    with patch.object(driver, "visit_late", lambda *_, **__: (False, ())), pytest.raises(Diverged, match="differ"):
        proved(counted, histories=20)


def test_no_choice_about_time_is_drawn_for_handlers_that_do_not_ask_for_it():
    router = Router()

    @router.index(TICKET, into=Key("TEAM#{team}", "TICKET#{ticket_id}"))
    def by_team(ticket):
        return Row(team=ticket["team"])

    proof = check(App("desk", routers=[router]), {TICKET: ITEMS[TICKET]}, histories=3, processes=0)
    assert proof.offered.isdisjoint({*moments.TIME, moments.WAKES_MEANWHILE})


def test_moments_of_examples_move_to_the_time_of_a_history_in_their_own_form():
    example = {"a": "2020-01-01T00:00:00.000+00:00", "b": Decimal(1_700_000_000), "c": "x", "d": 7}
    (shape,) = near_moments(made(counted), shapes_of({TICKET: [example]}))
    found = {(item["a"], item["b"], item["c"], item["d"]) for item in shape.items[1:]}
    moved = {each for each in found if each[0] != "2020-01-01T00:00:00.000+00:00"}
    assert ("2026-03-02T02:00:00.000+00:00", Decimal(1_700_000_000), "x", 7) in moved
    assert ("2020-01-01T00:00:00.000+00:00", Decimal(int(START) + 17 * 3600), "x", 7) in found
    assert {each[2] for each in found} == {"x"}


def test_a_handler_that_asks_for_the_time_and_reads_a_clock_too_is_no_function_of_its_input():
    router = Router()

    @router.index(TICKET, into=Key("LATE#{team}", "TICKET#{ticket_id}"))
    def late(ticket, now: Now):
        if now.passed("2020-01-01T00:00:00Z"):
            yield Row(team=ticket["team"], year=datetime.now(UTC).year)

    with pytest.raises(NotDeterministic, match=r"it reads a clock.*ask whether a moment has come by now: Now"):
        check(App("desk", routers=[router]), {TICKET: ITEMS[TICKET]}, histories=1, processes=0)


def test_handlers_that_wait_for_referents_and_for_rows_are_proved():
    assert not proved(on_shift, histories=2).unproved
    assert not proved(chain, histories=3).unproved


def test_a_second_visit_by_the_same_wakes_does_no_harm():
    proved(overdue, histories=12, faults=["wakes-twice", "wakes-left-out", "hours-pass", "wakes-meanwhile"])


def test_what_handlers_do_at_moments_of_items_is_left_out():
    def reminded(router):
        counts = Key("TEAM#{team}", "REMINDED")

        @router.on(TICKET, at=lambda ticket: ticket["due_at"], into=counts)
        def remind(timer):
            return Add(counts, team=timer.item["team"], tickets=1)

    (unproved,) = proved(counted, reminded, histories=6).unproved
    assert "remind" in str(unproved)


def test_looking_without_late_wakes_finds_none():
    desk = Desk(made(counted))
    desk.ticket(1, 60)
    assert visit_late(desk.runtime()) == (False, [])
    desk.now += 60
    assert visit_late(desk.runtime(), twice=True) == (True, [])
    assert not desk.wakes()


def test_a_wake_that_nobody_names_breaks_an_invariant():
    desk = Desk(made(counted))
    desk.ticket(1, 60)
    kept = patch.object(wakes, "wake_writes", lambda *given: [])
    with kept, pytest.raises(InvariantBroken, match="is named by no ledger item or counter"):
        desk.process(desk.write("TICKET#1", status="closed", team="a", due_at=at(60)))


def test_a_wake_that_a_counter_names_and_is_not_there_breaks_an_invariant():
    desk = Desk(made(documents), opened=local_locations(made(documents), MemoryEngine(()), Settings()))
    with patch.object(wakes, "wake_writes", lambda *given: []), pytest.raises(InvariantBroken, match="is not there"):
        desk.ticket(1, 60)
