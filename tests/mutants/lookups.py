"""Mutants of lookups: backlinks, the order of reads, what a visit writes, and which changes reach whom."""

from collections.abc import Iterator
from threading import local
from typing import Any
from unittest.mock import patch

from streamfold.batch import lookups, referrers
from streamfold.batch.lookups import StepsWithReferents
from streamfold.batch.steps import Steps
from streamfold.batch.visits import Visits
from streamfold.commit import referents
from streamfold.commit.committer import Committer
from streamfold.commit.referents import look_up, put_backlinks
from streamfold.commit.replanning import Replanner
from streamfold.derivations.search import documents, indexing
from streamfold.derivations.search.documents import RootRun
from streamfold.derivations.search.indexing import Indexing
from streamfold.failures import redrive
from streamfold.ledger import step as step_module
from streamfold.records.change import image_of
from streamfold.routes.lookups import references
from streamfold.writes.guarded import DeleteState, Refused
from tests.mutants.registry import mutant

TESTS, FAILURES = "tests/batch/test_lookups.py::", "tests/batch/test_referrers.py::"
OF_THREAD = local()
"""What a worker of a walk read too early: a patch inside of one would be taken back by another."""


def drops_backlink(write: Any) -> bool:
    return isinstance(write, DeleteState) and write.key.pk.startswith("refs#")


@mutant("no backlink is put", "lookups: insert, referent changes")
@mutant("no backlink of a root is put", "lookups: search: insert, referent changes")
def _() -> Iterator[None]:
    with patch.object(referents, "put_backlinks", lambda runtime, puts: None):
        yield


@mutant("referents are read before their backlinks are put", "lookups: insert, referent changes")
@mutant(
    "referents of a root are read before their backlinks are put",
    "lookups: search: insert, reference moves, new one changes",
)
def _() -> Iterator[None]:
    read, waiting = referents._read, []

    def reads_first(runtime: Any, keys: Any) -> Any:
        found = read(runtime, keys)
        put_backlinks(runtime, waiting)
        waiting.clear()
        return found

    def later(runtime: Any, puts: Any) -> None:
        waiting[:] = puts

    with patch.object(referents, "put_backlinks", later), patch.object(referents, "_read", reads_first):
        yield


@mutant("referents are read before the ledger item", "lookups: insert, amended, referent changes")
def _() -> Iterator[None]:
    plans = Steps._read

    def reads_first(self: Steps, unread: Any, stored: Any) -> Any:
        asked = [
            referents.Asked(route, each.item, each.changes[-1].new, fields)
            for each in unread
            for route, fields in each.routed
            if route.lookups
        ]
        names = [(each.item, each.route.name) for each in asked]
        OF_THREAD.early = dict(zip(names, look_up(self.runtime, asked), strict=True))
        return plans(self, unread, stored)

    def read_already(runtime: Any, wanted: Any) -> Any:
        early, OF_THREAD.early = getattr(OF_THREAD, "early", None), None
        if early is None:
            return look_up(runtime, wanted)
        return [early[each.item, each.route.name] for each in wanted]

    with patch.object(Steps, "_read", reads_first), patch.object(lookups, "look_up", read_already):
        yield


@mutant("a refused step keeps the referents that it read", "lookups: insert, amended, referent changes")
def _() -> Iterator[None]:
    with patch.object(StepsWithReferents, "again", lambda self, read: []):
        yield


@mutant("a visit reads the source before the ledger item", "lookups: both sides change")
def _() -> Iterator[None]:
    read = Visits.read

    def reads_first(self: Visits, wanted: Any) -> Any:
        parts = list(wanted)
        OF_THREAD.sources = self.runtime.engine.read_sources(dict.fromkeys(each.item for each in parts))
        return read(self, parts)

    with patch.object(Visits, "read", reads_first), patch.object(Visits, "_sources", lambda *_: OF_THREAD.sources):
        yield


def _visits(kept: Any) -> Any:
    """Visits of referrers of which only some steps are written."""

    class Some(Visits):
        def read(self, wanted: Any) -> Any:
            visits = Visits.read(self, wanted)
            for visit in visits:
                visit.keep([step for step in visit.steps if kept(visit, step)])
            return visits

    return patch.object(referrers, "Visits", Some)


@mutant(
    "a visit of a referrer writes only what differs",
    None,
    tests=TESTS + "test_a_visit_writes_also_where_nothing_differs_so_that_an_older_one_does_not_land_behind_it",
)
def _() -> Iterator[None]:
    with _visits(lambda visit, step: visit.differs(step)):
        yield


@mutant("a visit passes over referrers without a ledger item", "lookups: insert, referent changes")
def _() -> Iterator[None]:
    with _visits(lambda visit, step: visit.found.revision > 0):
        yield


@mutant("a visit that is refused is given up", "lookups: rows that do not fit one transaction")
def _() -> Iterator[None]:
    again = Replanner.again

    def of_batches(self: Replanner, units: Any, **options: Any) -> Any:
        return [] if self.source.visits else again(self, units, **options)

    with patch.object(Replanner, "again", of_batches):
        yield


@mutant("a backlink is taken for there where the old image refers", "lookups: item older than the handler")
def _() -> Iterator[None]:
    asks = StepsWithReferents._asked

    def by_image(self: StepsWithReferents, trying: Any, read: Any) -> Any:
        first, asked = trying.changes[0], asks(self, trying, read)
        if asked is None or not (first.has_old and first.old):
            return asked
        every = (references(each, first.old, trying.fields, {}) for each in trying.route.lookups)
        found = {key for keys in every for key in keys}
        return asked._replace(held=(*asked.held, *found))

    with patch.object(StepsWithReferents, "_asked", by_image):
        yield


def _in_two(first: Any) -> Any:
    """A transaction sent as two: first the writes for which this holds."""

    def sent(self: Committer, attempt: Any) -> Any:
        writes = attempt.transaction.writes
        for some in ([each for each in writes if first(each)], [each for each in writes if not first(each)]):
            refused = self.runtime.engine.transact(some, self.runtime.expires_at) if some else None
            if refused is not None:
                reasons = dict(zip([write.key for write in some], refused.reasons, strict=True))
                return Refused(tuple(reasons.get(write.key) for write in writes))
        return None

    return patch.object(Committer, "_sent", sent)


@mutant("a backlink is deleted before its transaction", "lookups: reference moves and returns, referent changes")
def _() -> Iterator[None]:
    with _in_two(drops_backlink):
        yield


@mutant("a backlink is deleted after its transaction", "lookups: reference moves and returns, referent changes")
def _() -> Iterator[None]:
    with _in_two(lambda write: not drops_backlink(write)):
        yield


@mutant("a missing referent has no backlink", "lookups: item before its referent")
@mutant("a missing referent of a root has no backlink", "lookups: search: item before its referent")
def _() -> Iterator[None]:
    looked_up, read = referents._Looking.looked_up, referents._read

    def only_present(self: Any) -> Any:
        found = looked_up(self)
        present = {key for key, image in self.referents.values() if image}
        return found._replace(references=tuple(key for key in found.references if key in present))

    def read_then_dropped(runtime: Any, keys: Any) -> Any:
        found = read(runtime, keys)
        missing = {key for key, image in found.items() if not image}
        for state_key in [key for key in runtime.store.engine.state if key.pk.startswith("refs#")]:
            if any(state_key.pk.endswith(f"#{table}#S#{pk}|S#{sk}") for table, pk, sk in missing):
                runtime.engine.transact([DeleteState(state_key)], 0)
        return found

    with (
        patch.object(referents._Looking, "looked_up", only_present),
        patch.object(referents, "_read", read_then_dropped),
    ):
        yield


@mutant("no backlink is put of what is looked up through another referent", "lookups: product and its category change")
def _() -> Iterator[None]:
    missing = referents._missing

    def of_first_level(runtime: Any, looking: Any) -> Any:
        names = {each.name for each in looking.asked.route.lookups if each.through is None}
        return missing(runtime, looking) if not looking.referents.keys() & names else []

    with patch.object(referents, "_missing", of_first_level):
        yield


@mutant("the first and the last image of a referent are compared", "lookups: insert, referent changes and back")
def _() -> Iterator[None]:
    counts = referrers.counts

    def of_batch(work: Any) -> bool:
        first, last = work.changes[0], work.changes[-1]
        if not (first.has_old and last.has_new):
            return counts(work)
        lookups = [each for each in work.route.lookups if each.key.takes(work.item)]
        return not all(each.agrees(first.old, last.new) for each in lookups)

    with patch.object(referrers, "counts", of_batch):
        yield


@mutant("only the first referrer is visited", "lookups: a fan-out, a line comes")
def _() -> Iterator[None]:
    with patch.object(referrers, "listed", lambda *given: _listed(*given)[:1]):
        yield


_listed = referrers.listed


@mutant(
    "a page of a large step drops the references that it leaves",
    None,
    tests=TESTS + "test_a_step_of_many_pages_keeps_the_references_of_both_until_its_last",
)
def _() -> Iterator[None]:
    text = step_module.stored_text

    def of_step(rows: Any, references: Any = (), moments: str = "") -> str:
        return text(rows, references[-1:], moments)  # those of the step are behind those that are stored

    with patch.object(step_module, "stored_text", of_step):
        yield


@mutant(
    "a run that reconciles a root takes its backlinks for granted",
    None,
    tests="tests/cli/test_search_backlinks.py::test_each_command_that_reconciles_puts_the_backlink_again",
)
def _() -> Iterator[None]:
    with patch.object(referents, "lacking_backlinks", lambda *_: {}):
        yield


@mutant("referents are read before the counter of their root is raised", "lookups: search: both sides change")
def _() -> Iterator[None]:
    raised = Indexing._raised

    def reads_first(run: Any, roots: Any, *, again: bool) -> Any:
        stored = run.runtime.engine.read_sources([root.item for root in roots])
        asked = [referents.Asked(each.route, each.item, image_of(stored.get(each.item)), each.fields) for each in roots]
        OF_THREAD.early = {each.item: found for each, found in zip(roots, look_up(run.runtime, asked), strict=True)}
        return raised(run, roots, again=again)

    def read_already(runtime: Any, runs: Any, _stored: Any, **_: Any) -> None:
        for each in runs:
            each.found = OF_THREAD.early[each.root.item]
        documents.note_references(runtime, runs)

    with patch.object(Indexing, "_raised", reads_first), patch.object(indexing, "look_up_referents", read_already):
        yield


@mutant(
    "backlinks of a root are deleted whatever its counter is",
    "lookups: search: reference moves and returns, referent changes",
)
def _() -> Iterator[None]:
    noted = documents.note_references

    def stored(each: RootRun, runtime: Any) -> RootRun:
        return RootRun.of(each.root, each.key, runtime.engine.read_state([each.key], consistent=True).get(each.key, {}))

    def anyway(runtime: Any, runs: Any) -> None:
        for each in runs:
            own = each.number
            while {*stored(each, runtime).held} != {*each.references}:
                each.number = stored(each, runtime).number
                noted(runtime, [each])
            each.number = own

    with patch.object(documents, "note_references", anyway):
        yield


@mutant("what an item referred to keeps its backlinks", "lookups", equivalent=True)
def _() -> Iterator[None]:
    with patch.object(step_module, "dropped_backlinks", lambda *given: []):
        yield


@mutant(
    "a segment forgets the items on which the handler raised",
    None,
    tests=FAILURES + "test_a_segment_goes_on_behind_a_bad_item_and_is_done_once_the_item_is",
)
def _() -> Iterator[None]:
    page = referrers.ReferrerSegments.page

    def forgets(self: Any, segment: Any) -> Any:
        return page(self, segment)._replace(failing=())

    with patch.object(referrers.ReferrerSegments, "page", forgets):
        yield


@mutant(
    "a parked item is redriven in the version of the referent's change",
    None,
    tests=FAILURES + "test_a_redriven_item_keeps_its_version_so_that_its_next_record_counts",
)
def _() -> Iterator[None]:
    item = redrive.Repair.item

    def in_version(self: Any, place: Any, **given: Any) -> Any:
        return item(self, place, **{"version": "99/x/1", **given})

    with patch.object(redrive.Repair, "item", in_version):
        yield


@mutant(
    "a repair puts no backlink that was lost",
    None,
    tests="tests/lifecycle/test_lookups.py::"
    "test_a_reference_without_its_backlink_is_a_difference_that_a_repair_corrects",
)
def _() -> Iterator[None]:
    made = Visits.__init__

    def renews_none(self: Visits, **given: Any) -> None:
        made(self, **given | {"renews": False})

    with patch.object(Visits, "__init__", renews_none):
        yield
