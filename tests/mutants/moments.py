"""Mutants of moments: what puts and deletes wakes, what holds the time of an item, what visits at wakes do."""

from collections.abc import Callable, Iterator
from threading import local
from typing import Any
from unittest.mock import patch

from streamfold.batch import wakes as visiting
from streamfold.batch.lookups import StepsWithReferents
from streamfold.batch.report import Report
from streamfold.batch.visits import Visits
from streamfold.batch.wakes import AtWakes, PresentTime, PutOff, WakeVisits
from streamfold.derivations.search import indexing
from streamfold.engines import MemoryEngine
from streamfold.ledger import step, wakes
from streamfold.ledger.contribution import LedgerItem, moments_of
from streamfold.ledger.state_keys import is_wake
from streamfold.ledger.wakes import Times, Waits, wake_key, wake_writes
from streamfold.replay.replay import Replay
from streamfold.runtime import MICROSECONDS, Runtime
from streamfold.writes.guarded import CounterWrite, DeleteState, LedgerWrite, PutState, Refused
from tests.helpers.changed_writes import on_writes
from tests.helpers.woken import Checking
from tests.mutants.registry import mutant

TESTS, REPAIRS = "tests/batch/test_wakes.py::", "tests/lifecycle/test_time_of_items.py::"
REPLAYS = "tests/replay/test_time_passes.py::"
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


def puts_wake(write: Any) -> bool:
    return isinstance(write, PutState) and is_wake(write.key)


def drops_wake(write: Any) -> bool:
    return isinstance(write, DeleteState) and is_wake(write.key)


def _in_two(first: Callable[[Any], bool]) -> Any:
    """A transaction sent as two: first the writes for which this holds."""
    whole = Checking.transact

    def sent(self: Checking, writes: Any, expires_at: int) -> Any:
        for some in ([each for each in writes if first(each)], [each for each in writes if not first(each)]):
            refused = whole(self, some, expires_at) if some else None
            if refused is not None:
                reasons = dict(zip([each.key for each in some], refused.reasons, strict=True))
                return Refused(tuple(reasons.get(each.key) for each in writes))
        return None

    return patch.object(Checking, "transact", sent)


@mutant("a wake is put before its transaction", None, tests=TESTS + "test_a_moment_that_is_to_come_has_a_wake")
def _() -> Iterator[None]:
    with _in_two(puts_wake):
        yield


@mutant("a wake is put behind its transaction", None, tests=TESTS + "test_a_moment_that_is_to_come_has_a_wake")
def _() -> Iterator[None]:
    with _in_two(lambda write: not puts_wake(write)):
        yield


@mutant(
    "the old wake is deleted behind its transaction",
    None,
    tests=TESTS + "test_a_moment_that_moves_to_earlier_moves_the_wake",
)
def _() -> Iterator[None]:
    with _in_two(lambda write: not drops_wake(write)):
        yield


@mutant(
    "a step that asks for the time is conditioned on its version, not on the revision",
    None,
    tests=TESTS + "test_a_step_that_was_planned_before_a_visit_does_not_land_behind_it",
)
def _() -> Iterator[None]:
    def changed(holds: Any) -> Any:
        def ledger_holds(write: LedgerWrite, item: Any) -> bool:
            if write.revision is None or write.fence or not item:
                return bool(holds(write, item))
            return all(item.get(part.handler + ".v", "") < part.version for part in write.contributions)

        return ledger_holds

    with on_writes(LedgerWrite, guard=changed):
        yield


@mutant("wakes have a time to live", None, tests=TESTS + "test_wakes_have_no_time_to_live")
def _() -> Iterator[None]:
    after = MemoryEngine._after

    def expiring(self: MemoryEngine, write: Any, local: Any, expires_at: int) -> Any:
        found = after(self, write, local, expires_at)
        return {**found, "ttl": expires_at} if puts_wake(write) else found

    with patch.object(MemoryEngine, "_after", expiring):
        yield


@mutant(
    "an item is parked behind the transaction that deletes its wake",
    None,
    tests=TESTS + "test_a_process_that_dies_while_it_parks_leaves_the_wake",
)
def _() -> Iterator[None]:
    with_ledger = WakeVisits._with_ledger

    def afterwards(self: WakeVisits, wakes: Any) -> Any:
        triage, later = self.triage, list[Any]()
        self.triage = later.append  # type: ignore[assignment]
        outcome = with_ledger(self, wakes)
        self.triage = triage
        for failed in later:
            triage(failed)
        return outcome

    with patch.object(WakeVisits, "_with_ledger", afterwards):
        yield


@mutant(
    "a parked item's wake is deleted, and its ledger item still names it",
    None,
    tests=TESTS + "test_a_handler_that_parks_parks_the_item_and_deletes_the_wake",
)
def _() -> Iterator[None]:
    beside = step._beside

    def named(application: str, own: Any, item: Any, text: str, **more: Any) -> Any:
        found = beside(application, own, item, text, **more)
        is_parked = own.keeps_rows and own.times is not None and own.times.next is None
        return found._replace(moments=Waits.of(text).text) if is_parked else found

    with patch.object(step, "_beside", named):
        yield


DOCUMENTS = "tests/batch/test_wake_walks.py::test_walks_over_documents_lead_to_those_of_each_time"


@mutant("a search notes no moments", None, tests=DOCUMENTS)
def _() -> Iterator[None]:
    with patch.object(indexing, "moments_noted", lambda runtime, each: True):
        yield


@mutant("the moments of a search are noted whatever the number of its counter is", None, tests=DOCUMENTS)
def _() -> Iterator[None]:
    with on_writes(CounterWrite, guard=lambda holds: lambda write, item: True):
        yield


@mutant(
    "chains are not run to their end before the next moment",
    None,
    tests=REPLAYS + "test_rows_at_the_end_are_the_same_for_every_size_of_batches",
)
def _() -> Iterator[None]:
    with patch.object(visiting, "run_chains", lambda runtime, stream: Report()):
        yield


@mutant(
    "a replay works off no wakes before the records of a batch",
    None,
    tests=REPLAYS + "test_handlers_are_called_at_their_own_moments_whatever_the_size_of_batches",
)
def _() -> Iterator[None]:
    work_off = Replay._work_off

    def behind(self: Replay, batch: Any = (), until: int | None = None) -> None:
        if not batch:
            work_off(self, batch, until)

    with patch.object(Replay, "_work_off", behind):
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
