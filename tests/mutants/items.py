"""Mutants of unique rows and of attributes that are derived onto items."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from streamfold import derive, entries, kinds, process, upkeep
from streamfold.batch import Batch
from streamfold.change import Change
from streamfold.engines import sources
from streamfold.upkeep import Upkeep
from tests.mutants.registry import mutant

UPKEEP = "tests/test_upkeep.py::"


@mutant(
    "a unique row has one owner, the last to claim it",
    None,
    tests="tests/test_unique.py::test_a_row_that_an_item_lost_to_an_earlier_one_stays_when_that_leaves",
)
def _() -> Iterator[None]:
    with patch.object(entries, "source_text", lambda _: "owner"):
        yield


@mutant(
    "items are not looked at when they change themselves",
    "attributes",
    tests=UPKEEP + "TestParent::test_order_that_is_put_without_its_total_or_with_an_old_one_gets_the_right_one",
)
def _() -> Iterator[None]:
    with patch.object(Upkeep, "changed", lambda *_: None):
        yield


@mutant(
    "attributes are written over what was not read",
    "attributes",
    tests="tests/test_engines.py::TestEngine::test_attributes_are_not_written_over_what_was_not_read",
)
def _() -> Iterator[None]:
    with patch.object(sources, "_as_read", lambda *_: True):
        yield


@mutant(
    "attributes of a record that comes again are not copied",
    "attributes",
    tests=UPKEEP + "test_whatever_fails_and_whoever_writes_the_items_show_what_is_right_in_the_end",
)
def _() -> Iterator[None]:
    named = Batch.named

    def without_truths(batch: Any, unit: Any, found: Any) -> Any:
        rows = named(batch, unit, found)
        rows.truths.clear()
        return rows

    with patch.object(Batch, "named", without_truths):
        yield


@mutant("attributes that nothing leads to any more stay on the item", "attributes")
def _() -> Iterator[None]:
    update = upkeep.update_of

    def without_removals(*arguments: Any) -> Any:
        found = update(*arguments)
        return replace(found, removed=()) if found and found.values else None

    with patch.object(upkeep, "update_of", without_removals):
        yield


@mutant(
    "attributes follow from themselves",
    None,
    tests=UPKEEP + "test_attributes_do_not_follow_from_themselves",
)
def _() -> Iterator[None]:
    with patch.object(derive, "without_derived", lambda raw: raw):
        yield


@mutant(
    "what others noted of an attribute meanwhile is overlooked",
    None,
    tests="tests/test_kinds.py::test_it_is_refused_in_a_process_that_began_before_the_first_was_noted",
)
def _() -> Iterator[None]:
    with patch.object(kinds, "_clash", lambda *_: None):
        yield


@mutant(
    "what was refused says what attributes are made of",
    None,
    tests=("tests/test_kinds.py::test_what_was_refused_does_not_say_what_is_taken",),
)
def _() -> Iterator[None]:
    with patch.object(derive, "forget", lambda _: None):
        yield


@mutant(
    "what attributes are made of is not noted",
    None,
    tests="tests/test_kinds.py::test_what_is_known_is_noted_once_and_read_with_the_manifest",
)
def _() -> Iterator[None]:
    with patch.object(process, "keep_kinds", lambda *_: None):
        yield


@mutant(
    "on handlers take derived attributes for changes of their own",
    None,
    tests=UPKEEP + "test_what_happens_to_an_item_is_what_its_writer_does",
)
def _() -> Iterator[None]:
    with patch.object(Change, "as_written", lambda change: change):
        yield


@mutant(
    "a derived name that is put back without its mark is the writer's",
    None,
    tests=UPKEEP + "test_what_a_writer_puts_back_without_saying_that_it_was_derived_is_known_to_be",
)
def _() -> Iterator[None]:
    with patch.object(upkeep, "unmarked_names", lambda _: set()):
        yield
