"""Mutants of entries and of recomputing: what is stamped, what is looked at, in which order, and what is kept."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.commit import after_commit, committer
from streamfold.commit import after_commit as recomputing
from streamfold.commit.after_commit import recompute_rows, remove_empty
from streamfold.commit.pending import NamedRows
from streamfold.ledger import difference
from streamfold.ledger import step as ledger
from streamfold.writes.guarded import PutState, RecomputedRow
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant

TESTS = "tests/commit/test_after_commit.py::"


@mutant(
    "a row is recomputed whatever its stamp",
    None,
    tests=TESTS + "test_what_is_put_while_a_greater_value_leaves_is_never_lost",
)
def _() -> Iterator[None]:
    with on_writes(RecomputedRow, guard=lambda _: lambda write, row: bool(row)):
        yield


@mutant("rows are not recomputed", None, tests=TESTS + "test_a_removed_extreme_leaves_no_trace")
def _() -> Iterator[None]:
    with patch.object(after_commit, "recompute", lambda *_: {}):
        yield


@mutant(
    "what moves among the entries that count is taken for what does not",
    None,
    tests=TESTS + "test_a_removed_extreme_leaves_no_trace",
)
def _() -> Iterator[None]:
    concerns = recomputing._concerns

    def seldom(row: Any, moved: Any) -> bool:
        return concerns(row, moved) and "_sf_e_best" not in row

    with patch.object(recomputing, "_concerns", seldom):
        yield


@mutant(
    "rows are recomputed before the empty ones are removed",
    None,
    tests=TESTS + "test_a_row_that_is_filled_again_while_it_becomes_empty_shows_nothing_of_before",
)
def _() -> Iterator[None]:
    def only_with_sources(runtime: Any, touched: Any, *more: Any) -> Any:
        rows = runtime.engine.read_rows(touched)
        return recomputing.recompute(runtime, {key: touched[key] for key in rows if rows[key]["_sf_n"]}, *more)

    with (
        patch.object(committer, "remove_empty", recompute_rows),
        patch.object(committer, "recompute_rows", remove_empty),
        patch.object(after_commit, "recompute", only_with_sources),
    ):
        yield


@mutant(
    "what a step took away is not kept for those who come after it",
    None,
    tests=TESTS + "test_what_a_process_that_died_left_is_recomputed_when_the_record_comes_again",
)
def _() -> Iterator[None]:
    with patch.object(ledger, "pending_text", lambda *_: None):
        yield


@mutant(
    "rows of a redelivered record are not recomputed",
    None,
    tests=(
        TESTS + "test_what_a_process_that_died_left_is_recomputed_when_the_record_comes_again",
        TESTS + "test_what_the_store_does_not_answer_is_reported_and_recomputed_when_the_record_comes_again",
    ),
)
def _() -> Iterator[None]:
    with patch.object(NamedRows, "take", lambda *_: None):
        yield


@mutant("entries are never deleted", None, tests=TESTS + "test_a_removed_extreme_leaves_no_trace")
def _() -> Iterator[None]:
    between = difference.entries_between

    def puts_only(*arguments: Any) -> Any:
        return [write for write in between(*arguments) if isinstance(write, PutState)]

    with patch.object(ledger, "entries_between", puts_only):
        yield


@mutant("a stamp is the same in every step", None, tests=TESTS + "test_stamps_differ_in_every_step")
def _() -> Iterator[None]:
    mark = ledger._mark
    with patch.object(ledger, "_mark", lambda *arguments: mark(*arguments)._replace(stamp="one")):
        yield
