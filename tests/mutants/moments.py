"""Mutants of moments: what puts and deletes wakes, what holds the time of an item, what visits at wakes do."""

from collections.abc import Callable, Iterator
from threading import local
from typing import Any
from unittest.mock import patch

from streamfold.batch import wakes as visiting
from streamfold.batch.lookups import StepsWithReferents
from streamfold.batch.visits import Visits
from streamfold.batch.wakes import AtWakes, PresentTime, PutOff
from streamfold.ledger import step, wakes
from streamfold.ledger.contribution import LedgerItem, moments_of
from streamfold.ledger.wakes import Times, Waits, wake_key, wake_writes
from streamfold.runtime import MICROSECONDS, Runtime
from streamfold.writes.guarded import DeleteState, PutState
from tests.mutants.registry import mutant

TESTS, REPAIRS = "tests/batch/test_wakes.py::", "tests/lifecycle/test_time_of_items.py::"
OF_THREAD = local()
"""What a visit read too early."""


def without(kind: type) -> Callable[..., list[PutState | DeleteState]]:
    return lambda *given: [write for write in wake_writes(*given) if not isinstance(write, kind)]


@mutant("no wake is put", None, tests=TESTS + "test_a_moment_that_is_to_come_has_a_wake")
def _() -> Iterator[None]:
    with patch.object(wakes, "wake_writes", without(PutState)):
        yield


@mutant("the old wake is not deleted", None, tests=TESTS + "test_a_moment_that_moves_to_earlier_moves_the_wake")
def _() -> Iterator[None]:
    with patch.object(wakes, "wake_writes", without(DeleteState)):
        yield


@mutant(
    "a wake stays though an earlier moment is asked for",
    None,
    tests=TESTS + "test_a_moment_that_moves_to_earlier_moves_the_wake",
)
def _() -> Iterator[None]:
    def kept(self: Waits, times: Times) -> Waits:
        stays = self.wake is not None and times.next is not None and self.wake > times.at
        return Waits(times.came, self.wake if stays else times.next)

    with patch.object(Waits, "after", kept):
        yield


@mutant(
    "a wake that is early is put anew",
    None,
    tests=TESTS + "test_a_moment_that_moves_to_later_leaves_the_early_wake",
)
def _() -> Iterator[None]:
    with patch.object(Waits, "after", lambda self, times: Waits(times.came, times.next)):
        yield


@mutant(
    "a wake that no ledger item names is deleted",
    None,
    tests=TESTS + "test_a_wake_that_no_ledger_item_names_stays_where_it_is",
)
def _() -> Iterator[None]:
    visits = AtWakes.visits

    def deletes(self: AtWakes, read: Any) -> bool:
        for route, _ in read.wanted.handlers:
            if not self._names(read, route):
                name, moment = self.runtime.application.name, self.wakes[read.item, route.name].moment
                self.runtime.engine.transact([DeleteState(wake_key(name, route.name, read.item, moment))], 0)
        return visits(self, read)

    with patch.object(AtWakes, "visits", deletes):
        yield


@mutant(
    "the time of an item goes back",
    None,
    tests=(
        TESTS + "test_an_items_time_does_not_go_back",
        TESTS + "test_the_time_of_a_row_that_has_gone_does_not_go_back_either",
    ),
)
def _() -> Iterator[None]:
    with patch.object(LedgerItem, "since", lambda self, handler: None):
        yield


@mutant(
    "a refused step does not ask again",
    None,
    tests=TESTS + "test_a_refused_step_asks_again_at_the_time_that_was_stored_meanwhile",
)
def _() -> Iterator[None]:
    with patch.object(StepsWithReferents, "again", lambda self, read: []):
        yield


@mutant(
    "a visit reads the item before its ledger item",
    None,
    tests=TESTS + "test_a_visit_reads_the_item_behind_its_ledger_item",
)
def _() -> Iterator[None]:
    read, sources = Visits.read, Visits._sources

    def early(self: Visits, wanted: Any) -> Any:
        wanted = [*wanted]
        OF_THREAD.__dict__.setdefault("found", []).append(sources(self, [each.item for each in wanted]))
        return read(self, wanted)

    def found(self: Visits, items: Any) -> Any:
        kept = OF_THREAD.__dict__.get("found")
        return kept.pop() if kept else sources(self, items)

    with patch.object(Visits, "read", early), patch.object(Visits, "_sources", found):
        yield


@mutant(
    "a visit may be before its wake",
    None,
    tests=TESTS + "test_a_visit_by_a_clock_that_is_behind_the_wake_is_at_its_moment",
)
def _() -> Iterator[None]:
    with patch.object(AtWakes, "since", lambda self, read, route, since: since):
        yield


@mutant(
    "a visit deletes its wake before rows are finished",
    None,
    tests=(
        TESTS + "test_a_visit_that_dies_before_rows_are_recomputed_leaves_its_wake",
        TESTS + "test_a_visit_that_dies_before_attributes_are_copied_leaves_its_wake",
    ),
)
def _() -> Iterator[None]:
    with patch.object(AtWakes, "held", lambda self, times, *_: times):
        yield


@mutant(
    "a wake goes though its item was not parked",
    None,
    tests=(
        TESTS + "test_an_item_that_cannot_be_parked_keeps_its_wake",
        TESTS + "test_a_handler_that_raises_at_a_wake_puts_it_off_and_doubles_the_time",
    ),
)
def _() -> Iterator[None]:
    with patch.object(visiting, "PutOff", lambda wake, is_parked: PutOff(wake, True)):
        yield


@mutant("an item that only waits expires", None, tests=TESTS + "test_an_item_that_only_waits_does_not_expire")
def _() -> Iterator[None]:
    has_stored = step.has_stored

    def rows_alone(text: str) -> bool:
        return has_stored(text) and text != f"[{moments_of(text)}]"

    with patch.object(step, "has_stored", rows_alone):
        yield


@mutant(
    "a repair leaves the time of an item",
    None,
    tests=REPAIRS + "test_a_repair_alone_takes_back_the_time_of_a_clock_that_was_ahead",
)
def _() -> Iterator[None]:
    with patch.object(PresentTime, "since", lambda self, read, route, since: since):
        yield


@mutant(
    "a repair puts no wake that was lost",
    None,
    tests=REPAIRS + "test_a_wake_that_is_lost_is_a_difference_and_a_repair_puts_it_again",
)
def _() -> Iterator[None]:
    with patch.object(PresentTime, "held", lambda self, times, *_: times):
        yield


@mutant(
    "a clock counts however far it is ahead of the store's",
    None,
    tests=TESTS + "test_a_clock_that_is_a_year_ahead_is_that_of_the_store_and_five_seconds",
)
def _() -> Iterator[None]:
    with patch.object(Runtime, "moment", property(lambda self: round(self.clock() * MICROSECONDS))):
        yield


@mutant(
    "a moment that has just come is a difference",
    None,
    tests=(
        REPAIRS + "test_a_moment_that_has_just_come_is_no_difference",
        REPAIRS + "test_a_row_whose_moment_has_just_come_is_moving",
    ),
)
def _() -> Iterator[None]:
    with (
        patch.object(wakes, "is_awaited", lambda text, now: False),
        patch.object(visiting, "awaited_rows", lambda runtime, routes: set()),
    ):
        yield


@mutant(
    "a proof never looks for wakes",
    None,
    tests="tests/proofs/test_moments_drawn.py::test_handlers_that_wait_for_referents_and_for_rows_are_proved",
)
def _() -> Iterator[None]:
    from streamfold.proofs import driver

    with patch.object(driver, "visit_late", lambda runtime, **how: (False, ())):
        yield
