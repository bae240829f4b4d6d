"""Mutants of what goes through the store's calls: pages, pauses, time, notes and names."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.commit import after_commit, outcome
from streamfold.derivations.external import notes
from streamfold.engines import DynamoEngine, dynamodb, dynamodb_client
from streamfold.engines.deadline import Deadline
from streamfold.engines.local_store import GuardedItems
from streamfold.errors import EngineError
from streamfold.parking import Parked
from tests.mutants.registry import mutant

TROUBLE = "tests/engines/test_dynamodb_trouble.py::"


@mutant(
    "entries behind the first page are not read",
    None,
    tests=TROUBLE + "test_entries_are_read_on_where_a_page_ended_until_there_are_as_many_as_are_asked_for",
)
def _() -> Iterator[None]:
    call = DynamoEngine._call

    def first_page(self: Any, operation: Any, **arguments: Any) -> Any:
        answer = call(self, operation, **arguments)
        return {name: value for name, value in answer.items() if name != "LastEvaluatedKey"}

    with patch.object(DynamoEngine, "_call", first_page):
        yield


@mutant("a row that is there fails its insertion", None, tests=TROUBLE + "test_row_that_is_there_is_no_failure")
def _() -> Iterator[None]:
    def is_there(self: DynamoEngine, response: dynamodb.StatementResponse) -> bool:
        return self._code(response, dynamodb.DUPLICATE, *dynamodb.UNSTORABLE) is None

    with patch.object(DynamoEngine, "_is_there", is_there):
        yield


@mutant(
    "pauses do not look at the time that is left",
    None,
    tests=TROUBLE + "test_no_pause_is_longer_than_the_time_that_is_left",
)
def _() -> Iterator[None]:
    with patch.object(Deadline, "wait", lambda self, seconds: self.pause(seconds)):
        yield


@mutant(
    "calls are begun when the time is over",
    None,
    tests=TROUBLE + "test_no_call_is_begun_when_the_time_is_over",
)
def _() -> Iterator[None]:
    def ask(self: Any, operation: Any, **arguments: Any) -> Any:
        return operation(**arguments)

    with patch.object(DynamoEngine, "_ask", ask):
        yield


@mutant(
    "a connection that cannot be made stops the run",
    None,
    tests="tests/lambda_entry/test_function.py::test_a_connection_that_cannot_be_made_fails_the_record_and_not_the_invocation",
)
def _() -> Iterator[None]:
    with patch.object(dynamodb_client, "EngineUnreachable", EngineError):
        yield


@mutant(
    "the note of a call that failed never expires",
    None,
    tests="tests/derivations/external/test_calls_aws.py::test_note_of_a_call_that_failed_expires_like_any_other",
)
def _() -> Iterator[None]:
    swap = notes.CallNote.swap

    def for_good(self: Any, attributes: dict[str, Any]) -> bool:
        return swap(self, attributes | ({"ttl": 0} if attributes["status"] == notes.EXPIRED else {}))

    with patch.object(notes.CallNote, "swap", for_good):
        yield


@mutant(
    "two parked changes of one microsecond have one name",
    None,
    tests="tests/records/test_kinesis.py::test_two_changes_of_one_microsecond_are_parked_under_two_names",
)
def _() -> Iterator[None]:
    def by_version(*values: Any) -> Parked:
        parked = Parked(*values)
        return parked._replace(version="/".join(parked.version.split("/")[:3]))

    with patch.object(outcome, "Parked", by_version):
        yield


@mutant(
    "different values are counted without a bound",
    None,
    tests="tests/commit/test_after_commit.py::"
    "test_more_different_values_than_are_counted_are_refused_and_the_row_keeps_its_last_count",
)
def _() -> Iterator[None]:
    read = after_commit._read_once_each

    def unbounded(*arguments: Any) -> Any:
        with patch.object(after_commit, "ALL_MAX", float("inf")):
            return read(*arguments)

    with patch.object(after_commit, "_read_once_each", unbounded):
        yield


KEYS = "tests/engines/test_index_keys.py::"


@mutant(
    "keys of indexes are not looked at", None, tests=KEYS + "TestIndexKeys::test_what_is_no_key_of_an_index_is_refused"
)
def _() -> Iterator[None]:
    with patch.object(GuardedItems, "_no_index_key", lambda *_: None):
        yield


@mutant(
    "a key of an index that stays as it is holds every change of its row",
    None,
    tests=KEYS + "test_an_attribute_that_stays_as_it_is_is_not_looked_at",
)
def _() -> Iterator[None]:
    looked_at = GuardedItems._no_index_key

    def anew(engine: Any, write: Any, after: Any, before: Any) -> Any:
        del before
        return looked_at(engine, write, after, {})

    with patch.object(GuardedItems, "_no_index_key", anew):
        yield
