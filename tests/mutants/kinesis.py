"""Mutants of Kinesis as a source: what orders its changes, what tells them apart, and beside what they may stand."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold.batch.manifest import table_entry
from streamfold.records.change import SEQUENCE_DIGITS_MAX
from streamfold.records.kinesis import KinesisChange
from tests.mutants.registry import mutant

ANY_ORDER = (
    "tests/batch/test_process.py::test_notices_of_one_millisecond_lead_to_the_newest_change_in_whatever_order_they_come"
)
ONE_MICROSECOND = "tests/batch/test_process.py::test_changes_of_one_microsecond_each_count_and_a_copy_does_not"


def version_of(number: Any) -> Any:
    """Versions that are made of something else than the time."""
    made = KinesisChange.__init__

    def changed(self: KinesisChange, record: Any, data: Any, origin: Any) -> None:
        made(self, record, data, origin)
        self.version_text = origin.version_prefix + str(number(self)).zfill(SEQUENCE_DIGITS_MAX)

    return patch.object(KinesisChange, "__init__", changed)


@mutant("the number of a Kinesis record is its version", None, tests=ANY_ORDER)
def _() -> Iterator[None]:
    with version_of(lambda change: change.sequence[-SEQUENCE_DIGITS_MAX:]):
        yield


@mutant("milliseconds are the version", None, tests=ANY_ORDER)
def _() -> Iterator[None]:
    with version_of(lambda change: change.version.sequence // 1000):
        yield


@mutant("claims distinguish notices, not changes", None, tests=ANY_ORDER)
def _() -> Iterator[None]:
    with patch.object(KinesisChange, "identity_text", property(lambda self: f"{self.version_text}/{self.sequence}")):
        yield


@mutant("the time alone distinguishes changes", None, tests=ONE_MICROSECOND)
def _() -> Iterator[None]:
    with patch.object(KinesisChange, "identity_text", property(lambda self: self.version_text)):
        yield


@mutant(
    "a table's source kind is not compared",
    None,
    tests=(
        "tests/batch/test_manifest.py::test_another_source_of_a_table_is_refused_with_the_remedy",
        "tests/cli/test_replay.py::test_state_that_kinesis_made_refuses_the_tables_own_stream",
    ),
)
def _() -> Iterator[None]:
    def as_if_new(name: str, before: Any, *seen: Any) -> Any:
        return table_entry(name, None, *seen)

    with patch("streamfold.batch.manifest.table_entry", as_if_new):
        yield
