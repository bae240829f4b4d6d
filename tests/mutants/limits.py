"""Mutants of what is refused before it does harm: records, names of tables, settings, states, ends of a program."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.derivations import yielded
from streamfold.derivations.external import calls
from streamfold.engines import state_file
from tests.mutants.registry import mutant


@mutant(
    "an image with another key than its record is taken",
    None,
    tests=(
        "tests/records/test_change.py::test_an_image_with_another_key_than_its_record_is_malformed",
        "tests/records/test_kinesis.py::test_an_image_with_another_key_than_its_record_is_malformed",
    ),
)
def _() -> Iterator[None]:
    with (
        patch("streamfold.records.change.check_images", lambda *given: None),
        patch("streamfold.records.kinesis.check_images", lambda *given: None),
    ):
        yield


@mutant(
    "two tables may have one variable",
    None,
    tests="tests/keys/test_real_names_aws.py::test_two_tables_that_one_variable_would_name_are_refused",
)
def _() -> Iterator[None]:
    with patch("streamfold.routes.application.check_variables", lambda names: None):
        yield


@mutant(
    "two tables may be one, and the state too",
    None,
    tests=(
        "tests/keys/test_real_names_aws.py::test_a_target_that_is_really_the_table_of_a_source_is_refused_before_anything_is_read",
        "tests/keys/test_real_names_aws.py::test_a_state_table_that_is_the_application_s_own_is_refused",
    ),
)
def _() -> Iterator[None]:
    with patch("streamfold.engines.dynamodb_client.check_real_names", lambda *given: None):
        yield


@mutant(
    "what a handler raises to end the program ends the batch",
    None,
    tests=(
        "tests/batch/test_process.py::test_a_handler_that_would_end_the_program_fails_its_record_only",
        "tests/derivations/external/test_calls_aws.py::test_a_call_that_would_end_the_program_fails_its_record_and_is_made_again",
    ),
)
def _() -> Iterator[None]:
    def as_it_is(route: Any, error: BaseException) -> BaseException:
        return error

    with patch.object(yielded, "stopped", as_it_is), patch.object(calls, "stopped", as_it_is):
        yield


@mutant(
    "a damaged state is read as it is",
    None,
    tests="tests/engines/test_embedded.py::test_file_with_a_damaged_page_is_an_error_that_says_so",
)
def _() -> Iterator[None]:
    with patch.object(state_file, "UNREADABLE", ()):
        yield
