"""Handlers that are called once at a moment of an item: when, with what, and what the ledger notes of it."""

from unittest.mock import patch

import pytest

from streamfold import Add
from streamfold.batch import timers
from streamfold.batch.wakes import asking
from streamfold.lifecycle.page import Pages
from streamfold.parking import FileParking
from streamfold.settings import Settings
from tests.helpers.timer_walks import CALLED
from tests.helpers.timer_walks import timers as declared
from tests.helpers.woken import TICKET, Desk, at, made


@pytest.fixture
def desk():
    return Desk(made(declared))


def called(desk):
    """How often each moment was called, by its time of day."""
    return {
        key[2][3:]: row["times"] for key, row in desk.engine.read_rows([*desk.engine.rows]).items() if key[1][0] == "C"
    }


def last(desk):
    return desk.rows("LAST").get("LAST#1", {}).get("moment")


def test_a_moment_that_is_to_come_has_a_wake_and_calls_nobody(desk):
    desk.ticket(1, 60)
    desk.now += 59
    desk.sweep()
    assert (desk.wakes(), called(desk)) == ({"called.timer": [at(60)], "last.timer": [at(60)]}, {})


def test_at_the_moment_the_handler_is_called_once(desk):
    desk.ticket(1, 60)
    desk.now += 61
    desk.sweep()
    desk.sweep()
    assert (desk.wakes(), called(desk), last(desk)) == ({}, {"09:01:00": 1}, "09:01:00")


def test_a_late_visit_calls_it_late_with_the_moment_itself(desk):
    desk.ticket(1, 60)
    desk.now += 86_400
    desk.sweep()
    assert called(desk) == {"09:01:00": 1}


def test_a_moment_that_is_past_when_the_item_comes_is_called_by_the_next_visit(desk):
    desk.ticket(1, -60)
    assert called(desk) == {}
    desk.sweep()
    assert called(desk) == {"08:59:00": 1}


def test_an_item_that_changes_behind_its_moment_is_not_called_for_it_again(desk):
    desk.ticket(1, 60)
    desk.now += 60
    desk.sweep()
    desk.ticket(1, 60, note=1)
    assert desk.wakes() == {}
    desk.sweep()
    assert called(desk) == {"09:01:00": 1}


def test_what_the_ledger_notes_outlives_the_claim(desk):
    desk.ticket(1, 60)
    desk.now += 60
    desk.sweep()
    for key in [key for key in desk.engine.state if key.pk.startswith("claim#")]:
        del desk.engine.state[key]
    desk.ticket(1, 60, note=1)
    desk.sweep()
    (ledger,) = (each for key, each in desk.engine.state.items() if key.pk.startswith("ledger#"))
    assert (called(desk), ledger["live"]) == ({"09:01:00": 1}, 2)


def test_a_moment_that_moves_there_and_back_is_called_once(desk):
    desk.ticket(1, 20)
    desk.now += 20
    desk.sweep()
    desk.ticket(1, 40)
    desk.ticket(1, 20)
    desk.sweep()
    assert (called(desk), desk.wakes()) == ({"09:00:20": 1}, {})


def test_an_early_wake_finds_the_later_moment(desk):
    desk.ticket(1, 20)
    desk.ticket(1, 40)
    desk.now += 20
    desk.sweep()
    assert (called(desk), desk.wakes()["last.timer"]) == ({}, [at(40)])


def test_a_moment_that_moves_to_earlier_moves_the_wake(desk):
    desk.ticket(1, 60)
    desk.ticket(1, 30)
    assert desk.wakes()["last.timer"] == [at(30)]


@pytest.mark.parametrize("gone", [{"status": "closed"}, None])
def test_an_item_without_its_moment_calls_nobody(desk, gone):
    desk.ticket(1, 20)
    desk.ticket(1, 20, **gone) if gone else desk.process(desk.write("TICKET#1"))
    desk.now += 60
    desk.sweep()
    assert (called(desk), desk.wakes()) == ({}, {})


def test_the_row_is_of_the_greatest_moment(desk):
    desk.ticket(1, 20)
    desk.now += 20
    desk.sweep()
    desk.ticket(1, 10)
    desk.sweep()
    assert (called(desk), last(desk)) == ({"09:00:20": 1, "09:00:10": 1}, "09:00:20")


def test_a_process_that_dies_behind_the_effects_calls_nobody_twice(desk):
    desk.ticket(1, 20)
    desk.now += 20
    with patch.object(timers, "_note", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        desk.sweep()
    assert called(desk) == {"09:00:20": 1}
    desk.now += 200
    desk.sweep()
    assert (called(desk), desk.wakes()) == ({"09:00:20": 1}, {})


def test_the_item_is_as_it_is_at_the_call_though_its_record_is_in_flight(desk):
    desk.ticket(1, 20)
    desk.write("TICKET#1", status="open", team="b", due_at=at(20))
    desk.now += 20
    desk.sweep()
    assert desk.rows("LAST")["LAST#1"]["team"] == "b"


def raising(router, **options):
    @router.on(TICKET, at=lambda ticket: ticket["due_at"], into=CALLED, **options)
    def called(timer):
        if timer.item["team"] == "broken":
            raise ZeroDivisionError
        return Add(moment=timer.at.strftime("%H:%M:%S"), times=1)


def test_a_handler_that_raises_is_called_later_and_keeps_no_other_waiting():
    desk = Desk(made(raising))
    desk.ticket(1, 20, team="broken")
    desk.ticket(2, 30)
    desk.now += 60
    (failure,) = desk.sweep()
    assert isinstance(failure.error.__cause__ or failure.error, ZeroDivisionError)
    assert (called(desk), desk.wakes()) == ({"09:00:30": 1}, {"called.timer": [at(360)]})
    assert [each.handler for each in page(desk, dry_run=True).differing] == []
    desk.write("TICKET#1", status="open", team="a", due_at=at(20))
    desk.now += 300
    assert desk.sweep() == []
    assert (called(desk)["09:00:20"], desk.wakes()) == (1, {})


def page(desk, **options):
    """The report of a page of the only item."""
    pages = Pages(desk.runtime(), {route.name for route in desk.app.routes}, **options)
    return pages.reconcile([("main", pk, sk) for pk, sk in desk.items])


def test_a_backfill_puts_wakes_of_moments_to_come_and_calls_nobody_for_past_ones(desk):
    desk.write("TICKET#1", status="open", team="a", due_at=at(-20))
    desk.write("TICKET#2", status="open", team="a", due_at=at(20))
    assert page(desk).failed == []
    desk.now += 60
    desk.sweep()
    assert (called(desk), desk.wakes()) == ({"09:00:20": 1}, {})


def test_a_backfill_leaves_a_past_moment_that_waits_for_its_visit(desk):
    desk.ticket(1, -20)
    page(desk, always=True)
    desk.sweep()
    assert called(desk) == {"08:59:40": 1}


def test_a_comparison_finds_nothing_before_and_behind_a_call(desk):
    desk.ticket(1, 20)
    desk.now += 60
    assert page(desk, dry_run=True).differing == []
    desk.sweep()
    assert page(desk, dry_run=True).differing == []


def test_a_handler_that_is_switched_off_is_not_called_and_its_wake_stays(desk):
    desk.ticket(1, 20)
    runtime = desk.runtime()
    runtime.settings = Settings(handlers_off=("called",))
    assert [route.name for route in asking(runtime)] == ["last.timer"]


def misnamed(router):
    @router.on(TICKET, at=lambda ticket: "soon", into=CALLED)
    def called(timer):
        return Add(moment="x", times=1)


def test_what_is_no_moment_fails_the_record():
    (failure,) = Desk(made(misnamed)).ticket(1, 20)
    assert "is no text of a datetime field" in str(failure)


def test_a_record_of_an_item_that_was_put_off_leaves_its_wake():
    desk = Desk(made(raising))
    desk.ticket(1, 20, team="broken")
    desk.now += 60
    desk.sweep()
    desk.ticket(1, 20, team="broken", note=1)
    assert desk.wakes() == {"called.timer": [at(360)]}


def test_an_item_on_which_the_handler_raises_is_parked_and_its_redrive_puts_the_wake(tmp_path):
    desk = Desk(made(raising, on_error="park"), parking=FileParking(str(tmp_path / "parked")))
    desk.ticket(1, 20, team="broken")
    desk.now += 60
    assert (desk.sweep(), desk.wakes()) == ([], {})
    assert len((tmp_path / "parked").read_text().splitlines()) == 1
    desk.write("TICKET#1", status="open", team="a", due_at=at(20))
    page(desk, always=True)
    desk.sweep()
    assert called(desk) == {"09:00:20": 1}
