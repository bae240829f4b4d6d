"""Mutants of unique rows and of attributes that are derived onto items."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from streamfold import Change
from streamfold.batch import process
from streamfold.batch import stored_schema as kinds
from streamfold.batch.steps import Steps
from streamfold.derivations.attributes import write_back
from streamfold.derivations.attributes import write_back as attributes_contributed
from streamfold.derivations.attributes import write_back as module
from streamfold.derivations.attributes.write_back import PutBack, WriteBack
from streamfold.derivations.view import rows as part
from streamfold.engines import keys
from streamfold.keys.table import DERIVED
from streamfold.ledger import contribution
from streamfold.records.values import encode
from streamfold.writes.guarded import UpdateSource
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant

WRITE_BACK = "tests/derivations/attributes/test_write_back.py::"
BEARING = "tests/derivations/attributes/test_owners.py::"


@mutant(
    "a unique row has one owner, the last to claim it",
    None,
    tests="tests/derivations/index/test_claims.py::test_a_row_that_an_item_lost_to_an_earlier_one_stays_when_that_leaves",
)
def _() -> Iterator[None]:
    with patch.object(contribution, "source_text", lambda _: "owner"):
        yield


@mutant(
    "items are not looked at when they change themselves",
    "attributes",
    tests=WRITE_BACK + "TestParent::test_order_that_is_put_without_its_total_or_with_an_old_one_gets_the_right_one",
)
def _() -> Iterator[None]:
    with patch.object(WriteBack, "changed", lambda *_: None):
        yield


@mutant(
    "attributes are written over what was not read",
    "attributes",
    tests="tests/engines/test_engines.py::TestEngine::test_attributes_are_not_written_over_what_was_not_read",
)
def _() -> Iterator[None]:
    with on_writes(UpdateSource, guard=lambda _: lambda write, found: bool(found)):
        yield


@mutant("attributes of a redelivered record are not copied", "attributes")
def _() -> Iterator[None]:
    named = Steps.pending_rows

    def without_stored(steps: Any, read: Any) -> Any:
        for routes, rows in named(steps, read):
            rows.state_rows.clear()
            yield routes, rows

    with patch.object(Steps, "pending_rows", without_stored):
        yield


@mutant("attributes that nothing leads to any more stay on the item", "attributes")
def _() -> Iterator[None]:
    update = write_back._update

    def without_removals(*arguments: Any) -> Any:
        found = update(*arguments)
        return found._replace(removed=()) if found and found.values else None

    with patch.object(write_back, "_update", without_removals):
        yield


@mutant(
    "attributes follow from themselves",
    None,
    tests=WRITE_BACK + "test_attributes_do_not_follow_from_themselves",
)
def _() -> Iterator[None]:
    with patch.object(attributes_contributed, "without_derived", lambda raw: raw):
        yield


@mutant(
    "what others noted of an attribute meanwhile is overlooked",
    None,
    tests="tests/batch/test_stored_schema.py::test_it_is_refused_in_a_process_that_began_before_the_first_was_noted",
)
def _() -> Iterator[None]:
    with patch.object(kinds, "_clash", lambda *_: None):
        yield


@mutant(
    "what was refused says what attributes are made of",
    None,
    tests=("tests/batch/test_stored_schema.py::test_what_was_refused_does_not_say_what_is_taken",),
)
def _() -> Iterator[None]:
    note = part.note

    def at_once(making: Any, *arguments: Any) -> None:
        note(making, *arguments)
        making.schema.learn(making.route.name, making.seen)

    with patch.object(part, "note", at_once):
        yield


@mutant(
    "what attributes are made of is not noted",
    None,
    tests="tests/batch/test_stored_schema.py::test_what_is_known_is_noted_once_and_read_with_the_manifest",
)
def _() -> Iterator[None]:
    with patch.object(process, "keep_schema", lambda *_: None):
        yield


@mutant(
    "on handlers take derived attributes for changes of their own",
    None,
    tests=WRITE_BACK + "test_what_happens_to_an_item_is_what_its_writer_does",
)
def _() -> Iterator[None]:
    with patch.object(Change, "as_written", lambda change: change):
        yield


@mutant(
    "a derived name that is put back without its mark is the writer's",
    None,
    tests=WRITE_BACK + "test_what_a_writer_puts_back_without_saying_that_it_was_derived_is_known_to_be",
)
def _() -> Iterator[None]:
    with patch.object(module, "put_back", lambda _: []):
        yield


@mutant(
    "an attribute that no handler derived is overwritten",
    None,
    tests=WRITE_BACK + "test_an_attribute_that_a_writer_put_into_a_new_item_is_refused_and_stays",
)
def _() -> Iterator[None]:
    pending = write_back.pending_update

    def unseen(own: Any, item: Any, stored: Any, shown: Any, unmarked: Any = (), **more: Any) -> Any:
        names = {name for values in shown.values() for name in values} & (stored or {}).keys()
        ours = [PutBack(name, f"{own.application}/{min(own.declared)}", encode(stored[name])) for name in names]
        return pending(own, item, stored, shown, [*unmarked, *ours], **more)

    with patch.object(write_back, "pending_update", unseen):
        yield


@mutant(
    "an attribute that was put back unmarked goes whatever it has become",
    None,
    tests=(
        BEARING + "test_what_a_writer_sets_as_its_own_stays_when_an_earlier_record_comes_again",
        BEARING + "test_what_a_writer_sets_as_its_own_stays_when_an_earlier_record_is_in_the_same_batch",
    ),
)
def _() -> Iterator[None]:
    with patch.object(write_back, "_is_still", lambda own, unmarked, stored, marks: unmarked.name not in marks):
        yield


@mutant(
    "attributes of all applications and all code are taken for one's own",
    None,
    tests=(
        BEARING + "test_two_applications_derive_onto_one_item_and_come_to_an_end",
        BEARING + "test_two_functions_of_which_one_has_older_code_come_to_an_end",
        BEARING + "test_older_code_leaves_what_newer_code_derived",
    ),
)
def _() -> Iterator[None]:
    with patch.object(write_back.Own, "knows", lambda *_, **__: True):
        yield


@mutant(
    "an attribute of another application is written over",
    None,
    tests=BEARING + "test_of_two_applications_that_derive_one_name_the_first_keeps_it_and_the_other_is_told",
)
def _() -> Iterator[None]:
    held = write_back._held
    with patch.object(write_back, "_held", lambda own, item, marks, shown: held(own, item, {}, shown)):
        yield


@mutant(
    "marks are written over what was not read",
    None,
    tests=BEARING + "test_two_applications_that_write_at_once_lose_no_mark",
)
def _() -> Iterator[None]:
    update = write_back._update

    def unguarded(*arguments: Any) -> Any:
        found = update(*arguments)
        return found and found._replace(absent=tuple(name for name in found.absent if name != DERIVED))

    with patch.object(write_back, "_update", unguarded):
        yield


@mutant(
    "a copy that older code made takes retired attributes away again",
    None,
    tests=BEARING + "test_a_retired_handler_s_attributes_go_although_older_code_still_derives_them",
)
def _() -> Iterator[None]:
    with patch.object(module, "_is_copy", lambda _: False):
        yield


@mutant(
    "a stored row has the whole key of its item",
    None,
    tests="tests/engines/test_engines.py::TestEngine::test_rows_of_derived_attributes_have_a_key_however_long_their_item_s_is",
)
def _() -> Iterator[None]:
    with patch.object(keys, "stored_key", lambda row: row):
        yield


@mutant(
    "local stores take keys of any length",
    None,
    tests="tests/engines/test_engines.py::TestEngine::test_key_over_the_limits_is_refused_for_good",
)
def _() -> Iterator[None]:
    with patch.object(keys, "_too_long", lambda *_: None):
        yield
