"""Mutants of the batch: what of it is taken, what is reported, what is looked at again, which application it is for."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.batch import already_applied, order
from streamfold.batch.already_applied import applied_texts
from streamfold.batch.steps import Steps
from streamfold.deploy import template_file
from streamfold.records.images import WatchedImage
from tests.mutants.registry import mutant

CONTRACT = "tests/commit/test_committer.py::TestCommit::"
REPEATED = "tests/batch/test_already_applied.py::"
ALWAYS = "~"  # newer than every version
READ = "tests/derivations/test_attributes_read.py::"


@mutant("the first record of an item in a batch wins")
def _() -> Iterator[None]:
    in_order = order._order

    def first(work: Any) -> None:
        in_order(work)
        work.changes = work.changes[:1]

    with patch.object(order, "_order", first):
        yield


@mutant("failed records are not reported")
def _() -> Iterator[None]:
    with patch("streamfold.batch.report.add_failures", lambda report, failed: None):
        yield


@mutant(
    "a batch that fails as a whole is not halved",
    None,
    tests="tests/deploy/test_check.py::test_the_template_of_this_repository_is_right_in_less_than_two_seconds",
)
def _() -> Iterator[None]:
    read = template_file._read_yaml

    def without_bisect(*arguments: Any) -> Any:
        return _without(read(*arguments), "BisectBatchOnFunctionError")

    with patch.object(template_file, "_read_yaml", without_bisect):
        yield


def _without(data: Any, name: str) -> Any:
    if not isinstance(data, dict):
        return [_without(each, name) for each in data] if isinstance(data, list) else data
    return {key: False if key == name else _without(value, name) for key, value in data.items()}


@mutant(
    "rows that a crash left empty are not looked at again",
    None,
    tests=(
        CONTRACT + "test_rows_left_empty_by_a_crash_are_removed_when_the_batch_comes_again",
        CONTRACT + "test_rows_left_empty_by_a_crash_are_removed_for_a_handler_that_is_done_beside_one_that_is_not",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Steps, "pending_rows", lambda *_: ()):
        yield


@mutant(
    "the manifest is not compared",
    None,
    tests=(
        "tests/batch/test_process.py::test_renamed_handler_over_an_old_state_is_refused_before_anything_is_written",
        "tests/batch/test_manifest.py::test_a_handler_that_changed_its_meaning_is_refused_with_both",
    ),
)
def _() -> Iterator[None]:
    with patch("streamfold.batch.manifest.check_handlers", lambda *handlers, older: None):
        yield


@mutant(
    "an item of a redelivered batch counts as applied though its last step has pending work",
    None,
    tests=REPEATED + "test_rows_that_a_dead_process_left_empty_are_removed",
)
def _() -> Iterator[None]:
    def whatever_was_left(found: Any, *more: Any) -> Any:
        return applied_texts({name: value for name, value in found.items() if not name.endswith(".u")}, *more)

    with patch.object(already_applied, "applied_texts", whatever_was_left):
        yield


@mutant(
    "an item of a redelivered batch counts as applied though a newer change of it is new",
    None,
    tests=REPEATED + "test_a_batch_with_newer_changes_than_came_before_is_sent",
)
def _() -> Iterator[None]:
    def whatever_came(found: Any, names: Any, version: Any) -> Any:
        newer = {name: ALWAYS if name.endswith(".v") else value for name, value in found.items()}
        return applied_texts(newer, names, version)

    with patch.object(already_applied, "applied_texts", whatever_came):
        yield


@mutant(
    "rows of a redelivered batch are not recomputed",
    None,
    tests=REPEATED + "test_rows_that_a_dead_process_did_not_recompute_are_recomputed_though_nothing_is_derived",
)
def _() -> Iterator[None]:
    with patch.object(already_applied, "needs_no_finishing", lambda *texts: True):
        yield


@mutant(
    "a handler is taken to have read nothing of an item",
    None,
    tests=(
        READ + "test_a_handler_is_called_once_for_a_change_of_what_it_does_not_read",
        "tests/records/test_watched_image.py::test_what_was_not_read_may_differ",
    ),
)
def _() -> Iterator[None]:
    with patch.object(WatchedImage, "reads_alike", lambda self, other: True):
        yield
