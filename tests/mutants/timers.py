"""Mutants of timers: the claim of a moment, what the ledger notes of it, and the order of effects and wake."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from unittest.mock import patch

from streamfold.batch import timers
from streamfold.batch.visits import Visit, Visits
from streamfold.ledger.wakes import Times, Waits
from streamfold.routes.moments import TimerChange
from tests.mutants.registry import mutant

WALKS = "tests/batch/test_timer_walks.py::test_walks_over_moments_that_move_back_call_each_once"
UNITS = "tests/batch/test_timers.py::"


@mutant("a timer has no claim of its moment", None, tests=WALKS)
def _() -> Iterator[None]:
    numbers = count()
    identity = property(lambda self: f"{self.version_text}/{next(numbers)}")
    with patch.object(TimerChange, "identity_text", identity):
        yield


@mutant(
    "all moments of an item have one claim",
    None,
    tests=f"{UNITS}test_the_row_is_of_the_greatest_moment",
)
def _() -> Iterator[None]:
    with patch.object(TimerChange, "identity_text", property(lambda _: "moment")):
        yield


@mutant("a timer's wake is deleted before its handler is called", None, tests=WALKS)
def _() -> Iterator[None]:
    call_once = timers.call_once

    def afterwards(visits: Visits, read: Sequence[Visit], called: dict[Any, int]) -> Any:
        steps = [(visit, tuple(visit.steps)) for visit in read]
        due = [timers.timer_of(visits.runtime, visit, step) for visit, own in steps for step in own]
        for each in due:
            if each is not None:
                timers._note(each, called)
        visits.commit([visits.unit(visit, visit.steps) for visit in read if visit.steps])
        for visit, own in steps:
            visit.keep(own)
        return call_once(visits, read, called)

    with patch.object(timers, "call_once", afterwards):
        yield


def after_once(changed: Any) -> Any:
    right = Waits._after_once
    return patch.object(Waits, "_after_once", lambda self, times: changed(self, times, right(self, times)))


@mutant(
    "a moment that is past when the item comes counts as used",
    None,
    tests=f"{UNITS}test_a_moment_that_is_past_when_the_item_comes_is_called_by_the_next_visit",
)
def _() -> Iterator[None]:
    def used(_: Waits, times: Times, found: Waits) -> Waits:
        return found if times.came is None else Waits(times.came, None, once=True)

    with after_once(used):
        yield


@mutant(
    "the ledger does not note that a timer was used",
    None,
    tests=f"{UNITS}test_what_the_ledger_notes_outlives_the_claim",
)
def _() -> Iterator[None]:
    with after_once(lambda _, __, found: found._replace(once=False)):
        yield


@mutant(
    "an earlier moment leaves a timer's wake",
    None,
    tests=f"{UNITS}test_a_moment_that_moves_to_earlier_moves_the_wake",
)
def _() -> Iterator[None]:
    def stays(self: Waits, _: Times, found: Waits) -> Waits:
        return found if found.once or None in (self.wake, found.wake) else found._replace(wake=self.wake)

    with after_once(stays):
        yield


@mutant(
    "a backfill calls handlers for the past",
    None,
    tests=f"{UNITS}test_a_backfill_puts_wakes_of_moments_to_come_and_calls_nobody_for_past_ones",
)
def _() -> Iterator[None]:
    with patch.object(timers.PastIsUsed, "held", lambda self, times, read, route: times):
        yield


QUEUES = "tests/lambda_entry/test_wake_schedule.py::"


@mutant(
    "a batch queues no visit for a moment that is past",
    None,
    tests=(
        f"{QUEUES}test_a_timer_whose_moment_is_past_when_its_item_comes_is_called_without_the_schedule",
        f"{QUEUES}test_a_batch_sends_one_request_however_many_moments_are_past",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Times, "stripe_to_visit", lambda self, item, text: None):
        yield


@mutant(
    "a batch queues a visit for each timer",
    None,
    tests=(
        f"{QUEUES}test_a_batch_queues_no_visit_for_moments_to_come_and_for_handlers_that_ask_now",
        f"{QUEUES}test_a_timer_that_was_used_is_not_visited_again",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Times, "stripe_to_visit", lambda self, item, text: 0):
        yield
