"""Mutants of what a state knows of its application."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.batch import manifest, ownership
from streamfold.batch import manifest as manifest_rules
from streamfold.batch import stored_schema as kinds
from streamfold.derivations.view import rows as part
from streamfold.lambda_entry import accounts
from streamfold.ledger import contribution, schema
from streamfold.lifecycle import adoption
from tests.mutants.registry import mutant

MANIFEST, KINDS, ENTRY = (
    "tests/batch/test_manifest.py::",
    "tests/batch/test_stored_schema.py::",
    "tests/lambda_entry/test_function.py::",
)


@mutant(
    "the manifest is compared once a process",
    None,
    tests=MANIFEST + "test_warm_code_ends_with_its_first_batch_after_a_handler_that_it_does_not_know",
)
def _() -> Iterator[None]:
    check = manifest.check_manifest

    def once(runtime: Any, *more: Any, **how: Any) -> Any:
        return runtime.known if runtime.known.revision is not None else check(runtime, *more, **how)

    with patch("streamfold.batch.process.check_manifest", once):
        yield


@mutant(
    "what older code lacks is not marked as partial",
    None,
    tests=MANIFEST + "test_older_code_runs_where_that_is_set_and_what_it_lacks_is_partial_from_then_on",
)
def _() -> Iterator[None]:
    with patch.object(manifest, "is_lacking", lambda *_: []):
        yield


@mutant(
    "older code may lack handlers without permission",
    None,
    tests=MANIFEST + "test_a_renamed_handler_is_refused_with_the_remedy",
)
def _() -> Iterator[None]:
    check = manifest_rules.check_handlers
    with patch.object(manifest, "check_handlers", lambda *given, older: check(*given, older=True)):
        yield


@mutant(
    "the rows of a retired handler are taken over",
    None,
    tests=(
        MANIFEST + "test_rows_that_a_retired_handler_put_whole_are_left_to_it",
        MANIFEST + "test_a_retired_handler_of_an_attribute_that_another_yields_too_is_refused_at_the_start",
    ),
)
def _() -> Iterator[None]:
    with patch.object(manifest, "check_retired", lambda *_: None):
        yield


@mutant(
    "the attributes of a retired handler are forgotten",
    None,
    tests=(
        MANIFEST + "test_a_renamed_sum_whose_old_name_is_retired_is_refused_before_it_doubles_a_row",
        KINDS + "test_a_retired_handlers_attribute_is_not_made_by_another",
    ),
)
def _() -> Iterator[None]:
    learn = kinds.learn

    def without(knows: Any, read: Any, app: Any, retired: Any) -> None:
        learn(knows, read, app, ())
        for handlers in knows.schema.by_target.values():
            for name in retired:
                handlers.pop(name, None)

    with patch.object(manifest, "learn", without):
        yield


@mutant(
    "another table is taken for the one that the state is of",
    None,
    tests=(
        MANIFEST + "test_another_table_is_refused_until_the_epoch_is_raised",
        MANIFEST + "test_the_message_names_both_tables_and_the_ways_to_go_on",
        ENTRY + "test_two_environments_do_not_adopt_two_tables_over_one_state",
    ),
)
def _() -> Iterator[None]:
    entry = manifest_rules.table_entry

    def as_before(name: Any, before: Any, seen: Any, settings: Any) -> Any:
        known = seen if before is None else seen._replace(name=before["name"], id=before["id"])
        return entry(name, before, known, settings)

    with patch.object(manifest, "table_entry", as_before):
        yield


@mutant(
    "a table is known by its name alone",
    None,
    tests=ENTRY + "test_a_table_that_was_made_anew_under_its_name_is_refused_where_it_may_be_described",
)
def _() -> Iterator[None]:
    with patch.object(accounts, "table_id", lambda *_: None):
        yield


@mutant(
    "the names of all handlers together have one bound",
    None,
    tests=KINDS + "test_a_handler_that_makes_up_names_takes_the_memory_of_no_other",
)
def _() -> Iterator[None]:
    merged = kinds._merged

    def bounded(stored: Any, found: Any) -> Any:
        return (stored, []) if sum(map(len, stored.values())) >= kinds.NAMES_MAX else merged(stored, found)

    with patch.object(kinds, "_merged", bounded):
        yield


@mutant(
    "what a row is ordered by is of one type for good",
    None,
    tests=KINDS + "test_a_value_of_an_odd_type_says_nothing_of_those_of_other_items",
)
def _() -> Iterator[None]:
    def typed(value: Any) -> str:
        return schema.type_of(value) + getattr(value, "order", "")[:1]

    with patch.object(part, "type_of", typed):
        yield


@mutant(
    "a set becomes a list",
    None,
    tests=KINDS + "test_a_set_does_not_become_a_list_nor_a_list_a_set",
)
def _() -> Iterator[None]:
    with patch.object(schema, "COLLECTED", {}):
        yield


@mutant(
    "a damaged contribution ends in a trace",
    None,
    tests="tests/cli/test_replay.py::test_a_state_whose_texts_are_damaged_ends_in_a_message",
)
def _() -> Iterator[None]:
    with patch.object(contribution, "damaged", ValueError):
        yield


LOST, OWN = "tests/batch/test_lost_states.py::", "tests/batch/test_ownership.py::"


@mutant(
    "the marker of a table is not compared with the state",
    None,
    tests=(
        LOST + "test_a_batch_is_refused_or_each_row_is_the_fold",
        OWN + "test_an_empty_state_is_refused_with_both_names_and_the_ways_on",
    ),
)
def _() -> Iterator[None]:
    with patch.object(ownership, "_check_state", lambda *_: None):
        yield


@mutant(
    "two applications that add to the same rows are not refused",
    None,
    tests=OWN + "test_a_renamed_application_is_refused_with_both_names",
)
def _() -> Iterator[None]:
    with patch.object(ownership, "_check_other", lambda *_: None):
        yield


@mutant(
    "ids of tables and states are not compared",
    None,
    tests=OWN + "test_a_copy_of_the_table_with_a_state_that_has_no_manifest_is_refused",
)
def _() -> Iterator[None]:
    with patch.object(ownership, "_differ", lambda one, other: one.name != other.name):
        yield


@mutant(
    "an adoption marks tables without writing what items contribute",
    None,
    tests="tests/lifecycle/test_adoption.py::test_a_state_that_took_rows_over_follows_every_change",
)
def _() -> Iterator[None]:
    with patch.object(adoption.Adoption, "_fill", lambda *_: None):
        yield
