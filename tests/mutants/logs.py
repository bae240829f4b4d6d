"""Mutants of what is logged: contents of items that get into a log."""

import os
from collections.abc import Iterator
from unittest.mock import patch

from tests.mutants.registry import mutant

LOGS = "tests/lambda_entry/test_logs.py::test_"


@mutant(
    "a log has what a message shows of an item",
    None,
    tests=(
        LOGS + "the_reason_is_logged_without_what_it_tells_of_the_item",
        LOGS + "nothing_of_an_item_is_logged_that_cannot_be_parked",
    ),
)
def _() -> Iterator[None]:
    with patch("streamfold.commit.outcome.public", lambda text: text):
        yield


@mutant(
    "a warning is logged with the key of the item",
    None,
    tests=LOGS + "a_warning_of_a_key_that_nearly_fits_names_template_and_field_once",
)
def _() -> Iterator[None]:
    with patch("streamfold.lambda_entry.function.public", lambda text: text):
        yield


@mutant(
    "what a handler says in an error of the framework's classes is logged",
    None,
    tests=LOGS + "nothing_of_an_item_is_logged_whatever_its_handler_yields_or_raises",
)
def _() -> Iterator[None]:
    with patch("streamfold.errors._is_own", lambda error: True):
        yield


@mutant("libraries log what they send", None, tests=LOGS + "nothing_of_what_libraries_send_is_logged_at_any_level")
def _() -> Iterator[None]:
    with patch("streamfold.lambda_entry.function.keep_quiet", lambda: None):
        yield


@mutant(
    "what ends an invocation is raised as it is",
    None,
    tests=LOGS + "what_ends_an_invocation_says_nothing_of_an_item_and_keeps_its_type_and_its_trace",
)
def _() -> Iterator[None]:
    with patch("streamfold.lambda_entry.function.in_public", lambda error: error):
        yield


@mutant(
    "lines have the ids of the first invocation of a process",
    None,
    tests=(
        "tests/project/test_log_queries.py::test_all_lines_of_a_request_are_found_with_those_of_lambda",
        "tests/project/test_log_queries.py::test_every_line_has_the_ids_of_its_invocation",
    ),
)
def _() -> Iterator[None]:
    from streamfold.lambda_entry.telemetry import InvocationIds, ids_of

    def begin(ids: InvocationIds, context: object) -> None:
        ids.present = ids.present or ids_of(context, os.environ)

    with patch.object(InvocationIds, "begin", begin):
        yield
