"""Mutants of collections: the order of reads, what a visit writes, and which changes of parts reach their roots."""

from collections.abc import Iterator
from threading import local
from typing import Any
from unittest.mock import patch

from streamfold.batch import process, referrers
from streamfold.batch.visits import Visits
from streamfold.commit import collections as reading
from streamfold.commit.collections import RootItem, ranges_of, read_ranges
from streamfold.routes.roots import changed_parts
from tests.mutants.registry import mutant

TESTS = "tests/batch/test_collection_guards.py::"
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


@mutant("after a refusal the collection is not read again", "collections: all parts")
def _() -> Iterator[None]:
    def kept(engine: Any, wanted: Any, stored: Any = None) -> Any:
        known = OF_THREAD.__dict__.setdefault("kept", {})
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
