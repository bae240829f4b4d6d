"""Mutants of what users meet: numbers, ties, messages and the command line."""

from collections.abc import Iterator
from decimal import Context
from typing import Any
from unittest.mock import patch

from streamfold.cli import items, output, show
from streamfold.commit.outcome import Triage
from streamfold.derivations import yielded
from streamfold.derivations.audit import rows as audit
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.engines.protocol import ItemTimes
from streamfold.ledger import contribution
from streamfold.lifecycle import exports
from streamfold.records import change, sources, values
from streamfold.records import values as rounding
from streamfold.replay import local
from streamfold.routes import declaration
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from tests.mutants.registry import mutant


@mutant(
    "keys are compared with what follows their parts",
    None,
    tests="tests/derivations/index/test_claims.py::test_the_smallest_key_is_that_whose_parts_come_first",
)
def _() -> Iterator[None]:
    with patch.object(contribution, "BETWEEN", "|"):
        yield


@mutant(
    "a parameter with a default is a field too",
    None,
    tests="tests/routes/test_declaration.py::test_a_parameter_with_a_default_that_is_no_field_is_the_functions_own",
)
def _() -> Iterator[None]:
    with patch.object(declaration, "_is_own", lambda *_: False):
        yield


@mutant(
    "a quotient is rounded as a handler's context says",
    None,
    tests="tests/records/test_rounding.py::test_a_quotient_is_rounded_once",
)
def _() -> Iterator[None]:
    with patch.object(rounding, "LONG", Context(prec=6)):
        yield


@mutant(
    "every refused number is one of too many digits",
    None,
    tests="tests/records/test_rounding.py::test_arithmetic_that_is_refused_is_told_with_what_to_do",
)
def _() -> Iterator[None]:
    with patch.object(yielded, "inexact_text", lambda _: "computed a number that 38 digits cannot hold exactly."):
        yield


@mutant(
    "what a source's key lacks is asked for all the same",
    None,
    tests="tests/batch/test_process.py::test_items_without_a_value_in_a_fields_place_have_a_key_of_their_own",
)
def _() -> Iterator[None]:
    with patch.object(Route, "asked", lambda self, fields: {name: fields[name] for name in self.wants}):
        yield


@mutant(
    "the key of a history's item is text",
    None,
    tests="tests/read/test_derived_rows.py::test_the_key_of_an_item_is_read_from_the_row_of_its_history",
)
def _() -> Iterator[None]:
    with patch.object(change, "KEY_READERS", {"S": str, "N": str, "B": str}):
        yield


@mutant(
    "a value that cannot be stored is reported without its name",
    None,
    tests="tests/derivations/view/test_rows.py::test_the_attribute_that_cannot_be_stored_is_named",
)
def _() -> Iterator[None]:
    with patch.object(values, "_naming", lambda _, error: error):
        yield


@mutant(
    "a value that cannot be recorded is reported without its name",
    None,
    tests="tests/derivations/audit/test_rows.py::test_an_attribute_that_no_item_of_dynamodb_has_is_named",
)
def _() -> Iterator[None]:
    def fingerprints(_: str, values: dict[str, Any]) -> dict[str, Any]:
        return {side: audit.fingerprint(value) for side, value in values.items()}

    with patch.object(audit, "_fingerprints", fingerprints):
        yield


@mutant(
    "of parked records the last says why",
    None,
    tests="tests/cli/test_replay.py::test_of_several_parked_records_the_first_says_why",
)
def _() -> Iterator[None]:
    parked = Triage._park

    def park(self: Triage, failed: Any, attempts: int | None) -> Any:
        self.first.pop(failed.route.name, None)
        return parked(self, failed, attempts)

    with patch.object(Triage, "_park", park):
        yield


SHOW = "tests/cli/test_show.py::"


@mutant(
    "a file gets as many rows as a terminal",
    None,
    tests=SHOW + "test_every_row_goes_to_a_file_or_a_pipe_some_at_a_time_under_one_heading",
)
def _() -> Iterator[None]:
    with patch.object(output, "on_terminal", lambda: True):
        yield


@mutant(
    "rows are laid out all at once",
    None,
    tests=SHOW + "test_many_rows_are_not_all_read_before_the_first_is_printed",
)
def _() -> Iterator[None]:
    with patch.object(output, "islice", lambda rows, _: rows):
        yield


@mutant(
    "source items are sought among all rows",
    None,
    tests=SHOW + "test_source_items_are_found_without_looking_at_derived_rows",
)
def _() -> Iterator[None]:
    def source_items(self: EmbeddedEngine, table: Any, partition: Any = None) -> Any:
        return self.items(table, partition)

    with patch.object(EmbeddedEngine, "source_items", source_items):
        yield


@mutant(
    "attributes are shown as they were written",
    None,
    tests=SHOW + "test_attributes_stand_in_the_order_of_their_names_however_they_were_written",
)
def _() -> Iterator[None]:
    with patch.object(show, "to_sorted_json", values.to_json):
        yield


@mutant(
    "the rows of one handler are those of all",
    None,
    tests=SHOW + "test_rows_of_one_handler_are_shown_or_the_items_that_it_reads",
)
def _() -> Iterator[None]:
    with patch.object(show, "keyed_items", lambda keys, table, items: items):
        yield


LOCAL = "tests/replay/test_local.py::"


@mutant(
    "a state in a file keeps no source items",
    None,
    tests=LOCAL + "test_a_state_that_was_made_by_process_can_be_redriven",
)
def _() -> Iterator[None]:
    with patch.object(EmbeddedEngine, "put_sources", lambda *_: None):
        yield


TIMES = "tests/commit/test_folded_times.py::"


@mutant(
    "a derived change has the time of the state",
    None,
    tests=TIMES + "test_row_of_one_item_has_the_time_of_its_own_record",
)
def _() -> Iterator[None]:
    with patch.object(ItemTimes, "of_row", lambda *_: 0.0):
        yield


@mutant(
    "a derived change has the time of its item alone",
    None,
    tests=TIMES + "test_row_that_is_visited_for_its_referent_has_the_time_of_the_referents_record",
)
def _() -> Iterator[None]:
    with patch("streamfold.commit.transactions._looked_up", lambda *_: 0.0):
        yield


@mutant(
    "the clock of a state goes back",
    None,
    tests=TIMES + "test_clock_of_a_state_is_the_greatest_time_of_its_records_and_never_goes_back",
)
def _() -> Iterator[None]:
    with patch.object(MemoryEngine, "advance_clock", lambda self, seconds: setattr(self, "clock_seconds", seconds)):
        yield


@mutant(
    "rows that have expired are shown",
    None,
    tests=SHOW + "test_rows_that_have_expired_by_the_newest_record_are_left_out_of_show",
)
def _() -> Iterator[None]:
    with patch.object(items.Expiry, "remaining", lambda self, table, rows: rows):
        yield


LOADED = "tests/cli/test_loaded_exports.py::"


@mutant(
    "records compare with an export by version",
    None,
    tests=LOADED + "test_record_that_is_older_than_the_export_changes_no_row_but_is_a_change",
)
def _() -> Iterator[None]:
    with patch("streamfold.replay.replay.sorted_changes", lambda _, changes: local.SortedChanges(changes)):
        yield


@mutant(
    "items that a full export lacks stay",
    None,
    tests=LOADED + "test_second_export_of_a_table_replaces_what_is_older_and_removes_what_it_lacks",
)
def _() -> Iterator[None]:
    with patch.object(exports, "_absent", lambda *_: iter(())):
        yield


@mutant(
    "an older export replaces newer items",
    None,
    tests=LOADED + "test_older_export_changes_nothing_and_says_how_many_items_are_newer",
)
def _() -> Iterator[None]:
    with patch.object(sources, "_by_time", lambda *_: sources.ImageOrder.NEWER):
        yield


@mutant(
    "a record of the second of an export is taken for newer",
    None,
    tests=LOADED + "test_record_of_the_second_of_an_export_that_fits_on_neither_side_is_refused",
)
def _() -> Iterator[None]:
    with patch.object(sources, "_by_images", lambda *_: sources.ImageOrder.NEWER):
        yield


@mutant(
    "recorded rows are delivered to a state that makes them",
    None,
    tests=LOCAL + "test_recorded_rows_of_the_application_are_made_anew",
)
def _() -> Iterator[None]:
    with patch.object(Application, "derived", lambda *_: False):
        yield


@mutant(
    "a function keeps its state in files that go",
    None,
    tests=LOCAL + "test_a_lambda_function_refuses_a_state_in_its_own_files",
)
def _() -> Iterator[None]:
    with patch.object(local, "FUNCTION_NAME", "LAMBDA"):
        yield


@mutant(
    "warnings of process are dropped",
    None,
    tests=LOCAL + "test_process_warns_once_in_the_log",
)
def _() -> Iterator[None]:
    with patch.object(local.log, "warning", lambda *_: None):
        yield
