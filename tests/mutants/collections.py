"""Mutants of collections: the order of reads, what a visit writes, and which changes of parts reach their roots."""

from collections.abc import Iterator
from threading import local
from typing import Any
from unittest.mock import patch

from streamfold.batch import lookups, process, referrers, steps
from streamfold.batch.visits import Visits
from streamfold.commit import collections as reading
from streamfold.commit import ledger_units, referents
from streamfold.commit.collections import RootItem, parts_of, ranges_of, read_ranges
from streamfold.engines import DynamoEngine
from streamfold.ledger import step as step_module
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.routes.application import Listener
from streamfold.routes.lookups import references
from streamfold.routes.roots import changed_parts
from streamfold.writes.guarded import LedgerWrite
from tests.helpers.changed_writes import on_writes
from tests.mutants.registry import mutant

TESTS = "tests/batch/test_collection_guards.py::"
ENGINE, EQUAL = "tests/engines/test_dynamodb_trouble.py::", "tests/batch/test_equal_visits.py::"
LISTS = "tests/batch/test_lists_of_references.py::"
OF_THREAD = local()
"""What a worker of a walk read too early: a patch inside of one would be taken back by another."""


def of_thread(name: str) -> list[Any]:
    """What this thread has read too early, the last one last: one invocation may run inside of another."""
    found: list[Any] = OF_THREAD.__dict__.setdefault(name, [])
    return found


@mutant(
    "root and parts are read before the ledger item",
    None,
    tests=TESTS + "test_root_and_parts_are_read_behind_the_ledger_item",
)
def _() -> Iterator[None]:
    reads, reads_sources = Visits.read, Visits._sources

    def early(self: Visits, wanted: Any) -> Any:
        wanted = [*wanted]
        of_thread("sources").append(reads_sources(self, [each.item for each in wanted]))
        roots = [RootItem(route, each.item, fields) for each in wanted for route, fields in each.handlers]
        gathering = ranges_of([each for each in roots if each.route.parts])
        of_thread("parts").append(read_ranges(self.runtime.engine, gathering))
        return reads(self, wanted)

    def sources(self: Visits, items: Any) -> Any:
        return of_thread("sources").pop() if of_thread("sources") else reads_sources(self, items)

    def ranges(engine: Any, wanted: Any, stored: Any = None) -> Any:
        return of_thread("parts").pop() if of_thread("parts") else read_ranges(engine, wanted, stored)

    with (
        patch.object(Visits, "read", early),
        patch.object(Visits, "_sources", sources),
        patch.object(reading, "read_ranges", ranges),
    ):
        yield


def _passes(is_idle: Any) -> Any:
    """Roots for which nothing is written, by another rule."""
    return patch.object(referrers, "_is_absent", is_idle)


@mutant(
    "a visit of a part does not write where nothing differs",
    None,
    tests=TESTS + "test_a_visit_writes_though_nothing_differs",
)
def _() -> Iterator[None]:
    with _passes(lambda visit, step: not visit.differs(step) and visit.found.revision > 0):
        yield


@mutant(
    "a visit of a part does not write where there is no ledger item",
    None,
    tests=TESTS + "test_a_visit_writes_though_there_is_no_ledger_item",
)
def _() -> Iterator[None]:
    with _passes(lambda visit, step: not visit.differs(step) and not visit.found.revision):
        yield


@mutant(
    "with optional, a visit of an absent root that contributes nothing does not write",
    None,
    tests=TESTS + "test_with_optional_a_visit_of_an_absent_root_writes",
)
def _() -> Iterator[None]:
    with _passes(lambda visit, step: visit.source is None and not visit.differs(step)):
        yield


@mutant("a part is taken from its record", None, tests=TESTS + "test_a_part_is_read_and_not_taken_from_its_record")
def _() -> Iterator[None]:
    visits = referrers.visit_roots

    def noted(works: Any, finishing: Any, stepped: Any = ()) -> Any:
        OF_THREAD.images = {work.item: work.changes[-1].new.raw for work in works}
        try:
            return visits(works, finishing, stepped)
        finally:
            OF_THREAD.images = {}

    def patched(engine: Any, wanted: Any, stored: Any = None) -> Any:
        found = read_ranges(engine, wanted, stored)
        images = getattr(OF_THREAD, "images", {})
        for each, read in found.items():
            own = {str(item["SK"]): item for item in read.items}
            for (_, partition, sort), raw in images.items():
                if partition == each.partition and each.begins and sort.startswith(each.begins):
                    own.pop(str({"S": sort}), None)
                    own |= {str({"S": sort}): raw} if raw else {}
            found[each] = read._replace(items=[own[name] for name in sorted(own)])
        return found

    with patch.object(referrers, "visit_roots", noted), patch.object(reading, "read_ranges", patched):
        yield


@mutant(
    "after a refusal the collection is not read again",
    None,
    tests=TESTS + "test_a_part_that_comes_between_the_reads_and_the_write_of_a_step_is_in_its_row",
)
def _() -> Iterator[None]:
    OF_THREAD.kept = {}

    def kept(engine: Any, wanted: Any, stored: Any = None) -> Any:
        known = OF_THREAD.__dict__.setdefault("kept", {})  # of a worker that is another thread: its own
        for each in wanted:
            if each not in known:
                known |= read_ranges(engine, [each], stored)
        return {each: known[each] for each in wanted}

    with patch.object(reading, "read_ranges", kept):
        yield


@mutant(
    "a step that wrote nothing stands for the visit of its root",
    None,
    tests=TESTS + "test_a_redelivered_root_does_not_stand_for_the_visit_of_its_part",
)
def _() -> Iterator[None]:
    visits = process.Batch.visit_others

    def stands(self: Any, outcome: Any, finishing: Any) -> Any:
        outcome.stepped |= {
            (item, route.name)
            for item, work in self.work.items()
            for routed in work.ledger.values()
            for route, _ in routed
        }
        return visits(self, outcome, finishing)

    with patch.object(process.Batch, "visit_others", stands):
        yield


@mutant(
    "the first and the last image of a part are compared",
    None,
    tests=TESTS + "test_each_record_of_a_part_counts_though_the_first_and_the_last_image_agree",
)
def _() -> Iterator[None]:
    def counts(work: Any) -> bool:
        first, last = work.changes[0].old, work.changes[-1].new
        return not all(each.agrees(first, last) for each in changed_parts(work.route, work.item))

    with patch.object(referrers, "part_counts", counts):
        yield


@mutant("a change of a part visits nobody", "collections: all parts")
def _() -> Iterator[None]:
    with patch.object(referrers, "part_counts", lambda work: False):
        yield


@mutant(
    "a part that comes without an attribute of reads does not count",
    None,
    tests=TESTS + "test_a_part_that_comes_or_goes_counts_whatever_it_has",
)
def _() -> Iterator[None]:
    from streamfold.routes import parts

    with patch.object(parts, "alike_in", lambda one, other: (one or {}) == (other or {})):
        yield


def _weakly(name: str, request: str) -> Any:
    """Reads of source items by one of the engine's methods, which may give what is older."""
    call = getattr(DynamoEngine, name)

    def weak(self: DynamoEngine, operation: Any, **arguments: Any) -> Any:
        asked = {**arguments, "ConsistentRead": False} if "ConsistentRead" in arguments else arguments
        if request == "batch" and "RequestItems" in arguments:
            asked = {
                "RequestItems": {key: {**one, "ConsistentRead": False} for key, one in asked["RequestItems"].items()}
            }
        return call(self, operation, **asked)

    return patch.object(DynamoEngine, name, weak)


@mutant("parts are read weakly", None, tests=ENGINE + "test_pages_of_a_partition_are_read_strongly")
def _() -> Iterator[None]:
    with _weakly("_call", "query"):
        yield


@mutant("the root of a visit is read weakly", None, tests=ENGINE + "test_a_source_item_is_read_strongly")
def _() -> Iterator[None]:
    with _weakly("_read", "get"):
        yield


@mutant("the roots of visits are read weakly", None, tests=ENGINE + "test_source_items_are_read_strongly_together")
def _() -> Iterator[None]:
    with _weakly("_read", "batch"):
        yield


@mutant(
    "a visit is conditioned on the contribution, not on the revision",
    None,
    tests=TESTS + "test_a_write_of_older_parts_is_refused_though_the_contribution_is_again_what_it_read",
)
def _() -> Iterator[None]:
    def changed(holds: Any) -> Any:
        def ledger_holds(write: LedgerWrite, item: Any) -> bool:
            if not write.fence or not item:
                return bool(holds(write, item))
            return all(item.get(f"{each.handler}.s", "") == each.expected for each in write.contributions)

        return ledger_holds

    with on_writes(LedgerWrite, guard=changed):
        yield


@mutant(
    "a root's record is applied again and again",
    None,
    tests=TESTS + "test_an_older_record_of_a_root_does_not_bring_its_image_back",
)
def _() -> Iterator[None]:
    def never(*_: Any) -> bool:
        return False

    with (
        patch.object(lookups, "_is_newer", never),
        patch.object(step_module, "is_done", never),
        patch.object(ledger_units, "is_done", never),
    ):
        yield


def _visits_write(version: str) -> Any:
    """Visits whose ledger items get this version."""
    reconciled = ledger_units.reconciled

    def other(*given: Any) -> Any:
        made = reconciled(*given)
        own = tuple(each._replace(version=version) for each in made.guard.contributions)
        return made._replace(guard=made.guard._replace(contributions=own))

    return patch.object(ledger_units, "reconciled", other)


@mutant("a visit takes the version back", None, tests=TESTS + "test_a_visit_keeps_the_version_of_the_record_before")
def _() -> Iterator[None]:
    with _visits_write(BEFORE_ALL):
        yield


@mutant(
    "a visit counts as all records until now",
    None,
    tests=TESTS + "test_a_record_that_comes_after_a_visit_is_not_taken_for_done",
)
def _() -> Iterator[None]:
    with _visits_write("~"):
        yield


@mutant(
    "a root with more parts than it may have is made of those that were read",
    None,
    tests="tests/batch/test_collection_costs.py::test_more_parts_than_a_root_may_have_park_it_with_their_number",
)
def _() -> Iterator[None]:
    def of_some(root: Any, read: Any) -> Any:
        return parts_of(root, {each: one._replace(number=0, size=0, above=False) for each, one in read.items()})

    with patch.object(reading, "parts_of", of_some):
        yield


@mutant(
    "with optional, a page makes the row of a root of each part",
    None,
    tests="tests/lifecycle/test_collections_beside.py::test_a_backfill_with_optional_leads_each_part_to_its_root",
)
def _() -> Iterator[None]:
    with patch.object(Listener, "visited", lambda self, item, fields: (item, fields)):
        yield


@mutant(
    "the record of a write-back reads everything once more",
    None,
    tests=EQUAL + "test_the_record_of_a_write_back_reads_no_referent_and_writes_nothing",
)
def _() -> Iterator[None]:
    with patch.object(steps, "_without_unseen", lambda routed, work: routed):
        yield


@mutant(
    "a large contribution that is equal is put again",
    None,
    tests=EQUAL + "test_an_equal_visit_writes_the_ledger_item_alone_however_large_the_contribution",
)
def _() -> Iterator[None]:
    kept = step_module._kept

    def again(key: Any, route: Any, text: str, elsewhere: str) -> Any:
        return kept(key, route, text, "" if text == elsewhere else elsewhere)

    with patch.object(step_module, "_kept", again):
        yield


@mutant(
    "an item may refer to any number of others",
    None,
    tests=(
        LISTS + "test_more_references_are_parked_with_their_number_and_the_item_s_rows_stay",
        LISTS + "test_all_lookups_of_a_handler_are_counted_together",
    ),
)
def _() -> Iterator[None]:
    with patch.object(referents, "check_count", lambda *_: None):
        yield


@mutant(
    "a reference that is in a list twice is given once",
    None,
    tests=LISTS + "test_a_reference_that_is_there_twice_is_given_twice_and_has_one_backlink",
)
def _() -> Iterator[None]:
    with patch.object(referents, "references", lambda *given: tuple(dict.fromkeys(references(*given)))):
        yield


@mutant(
    "the referents of a list come in any order",
    None,
    tests=LISTS + "test_names_come_in_the_order_of_the_list_and_follow_a_rename_and_a_removal",
)
def _() -> Iterator[None]:
    with patch.object(referents, "references", lambda *given: tuple(sorted(references(*given)))):
        yield
