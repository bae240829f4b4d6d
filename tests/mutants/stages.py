"""Mutants of what comes after the commit: time, throttling, what is wrong for good, and what is reported of it."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.batch.steps import Steps
from streamfold.commit import after_commit, outcome
from streamfold.commit.committer import Separation
from streamfold.commit.replanning import Replanner
from streamfold.derivations import outside_calls
from streamfold.derivations.attributes import write_back as module
from streamfold.derivations.copy import copies
from streamfold.derivations.external import coroutines
from streamfold.engines.deadline import Deadline
from streamfold.errors import TableThrottled, is_fatal
from tests.mutants.registry import mutant

STAGES, TRIAGE = "tests/commit/test_stages_aws.py::", "tests/commit/test_triage.py::"
CONTRACT = "tests/commit/test_committer.py::TestCommit::"


@mutant(
    "calls are begun after the time is over",
    None,
    tests=STAGES + "test_no_call_is_begun_after_the_time_is_over_and_what_was_not_done_comes_again",
)
def _() -> Iterator[None]:
    with patch.object(Deadline, "begin", lambda self: None):
        yield


@mutant("pauses outlast the time", None, tests=STAGES + "test_a_pause_never_outlasts_the_time")
def _() -> Iterator[None]:
    with patch.object(Deadline, "wait", lambda self, seconds: self.pause(seconds)):
        yield


@mutant(
    "a throttled store is sent the rest of the batch one by one",
    None,
    tests=CONTRACT + "test_store_that_stays_throttled_is_sent_nothing_more_of_the_batch",
)
def _() -> Iterator[None]:
    with patch("streamfold.commit.committer.is_throttled", lambda refused: False):
        yield


@mutant(
    "a throttled row keeps the others of its transaction waiting",
    None,
    tests=CONTRACT + "test_row_throttled_to_the_end_fails_only_the_handler_that_writes_it",
)
def _() -> Iterator[None]:
    with patch.object(Separation, "is_split_off", lambda *_: False):
        yield


@mutant(
    "a throttled table is asked once a row",
    None,
    tests=STAGES + "test_a_throttled_table_is_asked_once_a_round_and_not_once_a_row",
)
def _() -> Iterator[None]:
    with patch("streamfold.commit.transactions.THROTTLED", frozenset()):
        yield


@mutant(
    "a table that is away is sent every copy of the batch",
    None,
    tests="tests/derivations/copy/test_copies.py::test_a_table_that_is_away_is_sent_no_more_copies_of_the_batch",
)
def _() -> Iterator[None]:
    with patch.object(copies, "is_of_table", lambda error: False):
        yield


@mutant(
    "a table that is forbidden keeps other tables from their rows",
    None,
    tests=STAGES + "test_a_table_that_is_forbidden_keeps_no_other_table_from_its_rows",
)
def _() -> Iterator[None]:
    with (
        patch("streamfold.commit.transactions.is_fatal", lambda error: False),
        patch.object(Separation, "split_by_table", lambda self, attempt: False),
    ):
        yield


@mutant(
    "what is forbidden to a stage stops the batch",
    None,
    tests=STAGES + "test_what_is_forbidden_to_one_stage_fails_its_handlers_and_keeps_no_other_from_its_work",
)
def _() -> Iterator[None]:
    run = module.write_back

    def loud(*arguments: Any) -> Any:
        failed = run(*arguments)
        for error in failed.values():
            if is_fatal(error):
                raise error
        return failed

    with patch.object(module, "write_back", loud):
        yield


@mutant(
    "what is wrong in an external call stops the batch",
    None,
    tests=STAGES + "test_an_external_call_that_the_state_table_does_not_allow_is_reported",
)
def _() -> Iterator[None]:
    ended = outside_calls.OutsideCalls._ended

    def loud(calls: Any, queues: Any, subject: Any, error: Any) -> None:
        if error is not None and is_fatal(error):
            raise error
        ended(calls, queues, subject, error)

    with patch.object(outside_calls.OutsideCalls, "_ended", loud):
        yield


HISTORIES = "tests/derivations/external/test_call_histories_aws.py::"
SIDE_BY_SIDE = "tests/derivations/external/test_side_by_side_aws.py::"


@mutant(
    "later calls of an item do not wait for one that failed",
    None,
    tests=HISTORIES + "test_every_change_is_called_in_order_before_it_is_acknowledged",
)
def _() -> Iterator[None]:
    def hold_nothing(queues: Any, subject: Any) -> list[Any]:
        queues.release(subject)
        return []

    with patch.object(outside_calls.ItemQueues, "hold", hold_nothing):
        yield


@mutant(
    "two calls of an item are made at the same time",
    None,
    tests=HISTORIES + "test_every_change_is_called_in_order_before_it_is_acknowledged",
)
def _() -> Iterator[None]:
    made = outside_calls.ItemQueues.__init__

    def one_queue_a_subject(queues: Any, subjects: Any, item: Any) -> None:
        made(queues, subjects, id)

    with patch.object(outside_calls.ItemQueues, "__init__", one_queue_a_subject):
        yield


@mutant(
    "calls of an event loop see the numbers of the others",
    None,
    tests=SIDE_BY_SIDE + "test_a_call_sees_the_variables_of_the_batch_and_none_of_another_call",
)
def _() -> Iterator[None]:
    with patch.object(coroutines, "setcontext", lambda context: None):
        yield


@mutant(
    "what is forbidden to the whole batch is reported record by record",
    None,
    tests=STAGES + "test_what_is_forbidden_to_the_whole_batch_stops_the_invocation",
)
def _() -> Iterator[None]:
    with patch("streamfold.commit.pending.is_fatal", lambda error: False):
        yield


@mutant(
    "what is wrong for good is parked as if it were the record's fault",
    None,
    tests=TRIAGE + "test_what_is_forbidden_is_never_a_reason_to_park",
)
def _() -> Iterator[None]:
    with patch.object(outcome, "is_fatal", lambda error: False):
        yield


@mutant(
    "a replay goes on where something is wrong for good",
    None,
    tests="tests/cli/test_replay.py::test_what_is_wrong_for_good_stops_the_replay_with_the_handler_s_name",
)
def _() -> Iterator[None]:
    with patch("streamfold.replay.replay.is_fatal", lambda error: False):
        yield


@mutant(
    "a row that another item has is not tried again behind the batch",
    None,
    tests=(
        TRIAGE + "test_row_that_changes_hands_in_one_batch_fails_no_record",
        CONTRACT + "test_row_that_changes_hands_in_a_batch_does_so_in_whatever_order_its_records_come",
    ),
)
def _() -> Iterator[None]:
    with patch.object(Replanner, "_taken", lambda self, unit, error: self.progress.fail([unit], error)):
        yield


@mutant(
    "a row that another item still has is a reason to park at once",
    None,
    tests=TRIAGE + "test_row_that_another_item_still_has_says_nothing_of_the_record_that_takes_it",
)
def _() -> Iterator[None]:
    with patch.object(outcome, "RowTaken", TableThrottled):
        yield


@mutant(
    "rows that only recomputing changed are not counted",
    None,
    tests=STAGES + "test_rows_that_only_recomputing_changed_are_counted",
)
def _() -> Iterator[None]:
    with patch(
        "streamfold.commit.after_commit.recompute",
        lambda runtime, moved, shown: after_commit.recompute(runtime, moved),
    ):
        yield


@mutant(
    "parts of retired handlers stay",
    None,
    tests=CONTRACT + "test_part_of_a_retired_handler_goes_with_the_last_other_of_its_item",
)
def _() -> Iterator[None]:
    with patch.object(Steps, "retired", frozenset()):
        yield
