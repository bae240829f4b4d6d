"""Mutants of the guards that keep handlers, repairs and retirements from items of the application's writers."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.commit import mover, plan
from streamfold.derivations.feed import verified
from streamfold.keys.table import CONTRIBUTORS, MARKS_OF_ROWS
from streamfold.lifecycle import row_repair
from streamfold.writes.guarded import AddRow, CorrectRow, GuardedPut
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant

HISTORIES = "tests/commit/test_items_of_writers.py::"
CHANGED = HISTORIES + "test_no_item_without_a_mark_is_changed"
CONTRACT = "tests/engines/test_engines.py::TestEngine::test_no_write_of_a_row_changes_an_item_without_its_mark"


def as_counted(holds: Any) -> Any:
    return lambda write, item: holds(write, {CONTRIBUTORS: {"N": "0"}, **item} if item else item)


@mutant("an addition takes an item of the application for a row", None, tests=(CHANGED, CONTRACT))
def _() -> Iterator[None]:
    with on_writes(AddRow, guard=as_counted):
        yield


@mutant("a guarded put takes an item of the application for an absent row", None, tests=(CHANGED, CONTRACT))
def _() -> Iterator[None]:
    def absent(holds: Any) -> Any:
        return lambda write, item: holds(write, {} if MARKS_OF_ROWS.isdisjoint(item) else item)

    with on_writes(GuardedPut, guard=absent):
        yield


@mutant("a correction marks an item of the application", None, tests=CONTRACT)
def _() -> Iterator[None]:
    with on_writes(CorrectRow, guard=as_counted):
        yield


@mutant(
    "a repair takes an item of the application for a row that lost its mark",
    None,
    tests="tests/lifecycle/test_row_repair.py::test_an_item_of_the_application_is_left_as_it_is",
)
def _() -> Iterator[None]:
    with patch.object(row_repair, "is_writers", lambda item: False):
        yield


@mutant(
    "a repair of a feed removes an item of the application as a row that lost its post",
    None,
    tests="tests/derivations/feed/test_removed_rows.py::"
    "test_a_comparison_and_a_repair_leave_an_item_of_the_application",
)
def _() -> Iterator[None]:
    with patch.object(verified, "is_writers", lambda item: False):
        yield


@mutant(
    "what comes to an item of the application is dropped unsaid",
    None,
    tests=HISTORIES + "test_what_comes_to_a_row_that_a_writer_replaced_is_refused",
)
def _() -> Iterator[None]:
    with patch.object(plan, "is_lost", lambda effect, key, found: effect.key == key and plan.amends(effect)):
        yield


@mutant(
    "a delta waits for an item of the application as for a row that is contended",
    None,
    tests="tests/commit/test_buckets.py::test_an_item_of_the_application_refuses_what_comes_and_is_as_it_was",
)
def _() -> Iterator[None]:
    with patch.object(mover, "is_writers", lambda item: False):
        yield
