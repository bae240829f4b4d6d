"""Mutants of cascades, copies and archives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from streamfold.derivations.archive import archives as archive
from streamfold.derivations.archive.kind import Archive
from streamfold.derivations.cascade import children
from streamfold.derivations.cascade.children import CascadeCursor
from streamfold.derivations.cascade.kind import Cascade
from streamfold.derivations.copy import copies
from streamfold.derivations.copy.kind import Copy
from streamfold.writes.guarded import AbsentSource, DeleteSource, GuardedPut, SwapState
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant

CHILDREN, ARCHIVE = "tests/derivations/cascade/test_children.py::", "tests/derivations/archive/test_archives.py::"


@contextmanager
def forgetting_failures(kind: Any) -> Iterator[None]:
    """A kind that finishes what was deferred, and then knows of no failure."""
    finish = kind.finish

    def forgetful(self: Any, deferred: Any, finishing: Any) -> Any:
        outcome = finish(self, deferred, finishing)
        outcome.failed.clear()
        return outcome

    with patch.object(kind, "finish", forgetful):
        yield


@mutant(
    "children go without a look at their parent",
    "cascade",
    tests=(
        CHILDREN + "test_children_of_an_item_that_exists_again_are_kept_and_counted",
        CHILDREN + "test_the_rest_is_kept_when_the_item_comes_back_between_two_pages",
    ),
)
def _() -> Iterator[None]:
    with on_writes(AbsentSource, guard=lambda _: lambda *_: True):
        yield


@mutant(
    "children go whatever they hold", None, tests=CHILDREN + "test_a_child_that_changed_since_it_was_read_is_read_again"
)
def _() -> Iterator[None]:
    with on_writes(DeleteSource, guard=lambda _: lambda write, found: bool(found)):
        yield


@mutant(
    "the cursor of a cascade moves from anywhere", "cascade", tests=CHILDREN + "test_a_page_that_lands_late_is_refused"
)
def _() -> Iterator[None]:
    def from_anywhere(holds: Any) -> Any:
        return lambda write, item: write.expires or holds(write, item)

    with on_writes(SwapState, guard=from_anywhere):
        yield


@mutant(
    "a cascade that ended begins again",
    "cascade",
    tests=(
        CHILDREN + "test_a_record_that_comes_again_removes_nothing_that_was_written_since",
        CHILDREN + "test_the_rest_is_kept_when_the_item_comes_back_between_two_pages",
    ),
)
def _() -> Iterator[None]:
    read = CascadeCursor.of

    def never_done(attributes: Any) -> CascadeCursor:
        return read(attributes)._replace(done=False)

    with patch.object(children.CascadeCursor, "of", never_done):
        yield


@mutant("a cascade ends with its first page", "cascade")
def _() -> Iterator[None]:
    page = children.Children._page

    def last(self: Any, removed: Any, cursor: Any) -> Any:
        return page(self, removed, cursor)[0], CascadeCursor(done=True)

    with patch.object(children, "BYTES_PLANNED_MAX", 0), patch.object(children.Children, "_page", last):
        yield


@mutant("a parent whose cascade failed is acknowledged", "cascade")
def _() -> Iterator[None]:
    with forgetting_failures(Cascade):
        yield


@mutant("an older copy overwrites a newer one", "copy")
def _() -> Iterator[None]:
    with on_writes(GuardedPut, guard=lambda older: lambda write, row: True):
        yield


@mutant("a copy that is not taken is acknowledged", "copy")
def _() -> Iterator[None]:
    with forgetting_failures(Copy):
        yield


@mutant("removals that were not stored are acknowledged", "archive")
def _() -> Iterator[None]:
    with forgetting_failures(Archive):
        yield


@mutant("of several removals of an item in a batch the last is archived", "archive")
def _() -> Iterator[None]:
    plan = Archive.plan

    def last(self: Archive, works: Any, planning: Any) -> Any:
        taken = (list(filter(work.route.takes, work.changes)) for work in works)
        newest = [work._replace(changes=changes[-1:]) for work, changes in zip(works, taken, strict=True)]
        return plan(self, newest, planning)

    with patch.object(Archive, "plan", last):
        yield


@mutant(
    "copies are copied on",
    None,
    tests=(
        "tests/derivations/copy/test_copies.py::test_an_item_that_is_a_copy_itself_is_not_copied",
        "tests/derivations/copy/test_copies.py::test_an_item_that_a_copy_was_written_over_is_kept_as_it_was_copied",
        "tests/derivations/copy/test_copies.py::test_replication_attributes_are_neither_copied_nor_a_reason_to_copy",
    ),
)
def _() -> Iterator[None]:
    with patch.object(copies, "is_replica", lambda change: False):
        yield


@mutant(
    "an archive's content has a name that is drawn",
    None,
    tests=ARCHIVE + "test_the_same_batch_writes_the_same_content_under_the_same_name",
)
def _() -> Iterator[None]:
    with patch.object(archive, "_digest", lambda items: uuid4().hex):
        yield


@mutant(
    "the reader of an archive knows versions by their keys alone",
    None,
    tests=ARCHIVE + "test_an_item_that_was_removed_twice_is_kept_twice",
)
def _() -> Iterator[None]:
    mark = archive._mark
    with patch.object(archive, "_mark", lambda table, key, version: mark(table, key, "")):
        yield
