"""Mutants of call slots: which transactions may be in flight together."""

from collections.abc import Iterator
from unittest.mock import patch

from streamfold.batch import process
from streamfold.commit.committer import Committer, SharedItems
from streamfold.commit.plan import Transaction
from streamfold.runtime import SendingPace
from tests.mutants.registry import mutant

CALLS = "tests/commit/test_attempts.py::"


@mutant(
    "two transactions in flight share a row",
    tests=CALLS + "test_a_batch_in_many_threads_never_meets_itself_and_comes_out_as_in_one",
)
def _() -> Iterator[None]:
    def whatever(self: SharedItems, flying: object, earlier: object) -> bool:
        return True

    with patch.object(SharedItems, "are_free", whatever):
        yield


@mutant(
    "an item's changes are in two call slots",
    "claim",
    tests=CALLS + "test_the_changes_of_an_item_go_one_after_another_and_wait_for_one_that_failed",
)
def _() -> Iterator[None]:
    made = SharedItems.of

    def without_order(chunk: Transaction) -> SharedItems:
        return made(chunk)._replace(orders=frozenset())

    with patch.object(SharedItems, "of", without_order):
        yield


@mutant(
    "a batch that may have been applied is sent in all call slots at once",
    None,
    tests=CALLS + "test_the_first_transaction_of_a_batch_that_may_have_come_before_goes_alone",
)
def _() -> Iterator[None]:
    with patch.object(process, "Committer", lambda *given, **_: Committer(*given)):
        yield


@mutant(
    "a conflict makes no transaction smaller",
    None,
    tests=CALLS + "test_transactions_are_halved_where_they_meet_another_process_and_grow_again",
)
def _() -> Iterator[None]:
    with patch.object(SendingPace, "met", lambda self, actions: None):
        yield
