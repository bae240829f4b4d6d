"""Referrers: the items that refer to an item that has changed are visited (``batch.visits``).

1. Changes in nothing that the handler reads are passed over, one by one. The first and the last image of a batch show
   too little: the step of a referrer may have read an image between them.
2. The backlinks of the referent are listed, strongly. Those of its referrers that read it before the change were put
   before that read, so they are among them.
3. Up to ``inline=`` of them are visited before the record is acknowledged; more of them by a fan-out.

An item on which the handler raises is parked by itself, if the handler parks: it has no record, so the document names
its key. Otherwise the record of its referent is retried; a fan-out keeps the items beside its cursor and goes on.

The images of the record are not used: a visit reads both sides itself, after the ledger item. It writes also where
nothing differs, and where there is no ledger item yet: a write of older reads that is still on its way would land
behind it otherwise. A backlink that names an item which does not refer any more goes with the visit.

Kinds without a ledger reconcile the items when they finish: a search raises their counters, which takes the place of
the write.

Roots of changed parts are visited likewise, each once after the steps of its batch:

1. A change in nothing that the handler reads is passed over, each change by itself: the step of the root may have read
   the part between two of them. That a part comes or goes always counts.
2. A step of the root that was written in this batch read its parts after their changes, so it is the visit. One that
   the ledger had already, or that failed, wrote nothing.
3. The others are visited: ledger item, root, parts. Only for a root that is not there nothing is written, unless its
   handler is called without it: the record of its coming reads the parts.

A root on which the handler raises is parked under one name, whichever part changed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from streamfold.batch.report import finish
from streamfold.batch.visits import Visit, VisitedItem, Visits, record_of_item, synthetic_change
from streamfold.commit.outcome import Failed, Outcome, explained, lacks_the_record
from streamfold.commit.pending import PendingWork
from streamfold.commit.plan import Deferred
from streamfold.derivations.derivation import Finishing, Work, derivation
from streamfold.engines.protocol import Entries
from streamfold.errors import HandlerError, ItemFault, RecordError, joined_key, reason
from streamfold.jobs.fan_outs import ROWS, SEGMENTS, FanOuts, Paged, segment_bounds
from streamfold.jobs.job import Job, JobSegment
from streamfold.ledger.contribution import BEFORE_ALL, referrer, stored_key_text
from streamfold.ledger.state_keys import backlinks_partition, fan_out_id
from streamfold.ledger.step import Step
from streamfold.records.change import Change, ItemKey, times_of
from streamfold.routes.roots import count_for_root, root_of
from streamfold.routes.route import SOURCE, Fields, Route
from streamfold.runtime import Runtime
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import StateKey

if TYPE_CHECKING:
    from streamfold.batch.order import RoutedFields

PAGE = 1000
"""Backlinks that are listed, and items that are visited, at a time."""
WHAT = "refer"
"""The task of a fan-out that visits referrers."""
FAILING_MAX = 100
"""Items on which the handler raises that a segment keeps beside its cursor. More of them are no bad items, but a bad
handler: it stops the segment, and the age of its fan-out rises.
"""


def counts(work: Work) -> bool:
    """Whether a referent changed in what the handler reads of it. Without both images it may have."""
    lookups = [each for each in work.route.lookups if each.key.takes(work.item)]
    return any(
        not (change.has_old and change.has_new) or not all(each.agrees(change.old, change.new) for each in lookups)
        for change in work.changes
    )


def part_counts(work: Work) -> bool:
    """Whether a part changed in what its handler reads."""
    return count_for_root(work.route, work.item, work.changes)


NO_CHANGES: Mapping[Any, Sequence[Change]] = MappingProxyType({})


class Referrer(NamedTuple):
    """An item that a backlink names."""

    item: ItemKey
    route: Route


class VisitFailed(NamedTuple):
    """Replaces the record of an item on which the handler raises while a change of its referent visits it.

    Its identity is that of the referent's change, so that attempts are counted for each change.
    """

    item: ItemKey
    identity_text: str
    record: Mapping[str, object]  # what is parked
    at_seconds: float | None  # of the referent's change, epoch seconds
    sequence: str | None = None

    @property
    def name(self) -> str:
        return joined_key(self.item[1:])

    @property
    def at(self) -> datetime:
        """The time of the referent's change. Raises ``RecordError`` if it has none."""
        if self.at_seconds is None:
            raise RecordError("The change of the referent has no time.")
        return datetime.fromtimestamp(self.at_seconds, UTC)

    @classmethod
    def of(cls, failed: Failed, runtime: Runtime, version: str, at_seconds: float | None) -> Failed:
        """The failure of a visit, with a record that can be parked."""
        item = failed.change.item
        record = record_of_item(item, runtime.application.tables[item[0]])
        return Failed(
            cast("Change", cls(item, version, record, at_seconds)),
            failed.route,
            explained(failed.route, failed.error),
        )


@dataclass(slots=True)
class Referrers:
    """The items that are visited together, and the referents whose backlinks named them."""

    runtime: Runtime
    named: dict[Referrer, list[ItemKey]] = field(default_factory=dict)
    skips_absent: bool = False  # nothing is written for an item that is not there and contributes nothing

    def add(self, route: Route, referent: ItemKey, texts: Iterable[str]) -> list[Referrer]:
        """Adds the items of backlinks of a referent."""
        found = [Referrer(referrer(text), route) for text in texts]
        for each in found:
            self.named.setdefault(each, []).append(referent)
        return found

    def visit(self) -> Outcome:
        """Visits those with a ledger, a page at a time; failures are those of the items that are visited.

        Raises ``EngineError`` if nothing can be read or written.
        """
        outcome, runtime = Outcome(), replace(self.runtime, actions=ACTIONS_MAX)
        handlers: dict[tuple[ItemKey, str], list[RoutedFields]] = {}
        for each, fields in self._declared(contributes=True):
            handlers.setdefault((each.item, each.route.group), []).append((each.route, fields))
        wanted = [VisitedItem(item, group, own) for (item, group), own in handlers.items()]
        for start in range(0, len(wanted), PAGE):
            outcome += self._page(runtime, wanted[start : start + PAGE])
        return outcome

    def deferred(self, changes: Mapping[Referrer, Sequence[Change]] = NO_CHANGES) -> list[Deferred]:
        """The work of kinds without a ledger, for ``finish``; ``changes`` are those that fail with an item."""
        found = []
        for each, fields in self._declared(contributes=False):
            causes = changes.get(each) or (synthetic_change(each.item),)
            work = Work(each.route, each.item, SOURCE, fields, causes, self.named[each])
            found.append(derivation(each.route).deferred_of(work))
        return found

    def _declared(self, *, contributes: bool) -> Iterator[tuple[Referrer, Fields]]:
        """The items for which their handlers are still declared."""
        for each in self.named:
            for listener, fields in self.runtime.application.listeners(each.item):
                if (
                    listener.route is each.route
                    and listener.role == SOURCE
                    and each.route.kind.contributes == contributes
                ):
                    yield each, fields

    def _page(self, runtime: Runtime, wanted: Sequence[VisitedItem]) -> Outcome:
        runtime.begin()
        idle = {(item, route.name): referents for (item, route), referents in self.named.items()}
        visits = Visits(runtime=runtime, idle=idle, gets=False)
        units, outcome = [], Outcome()
        for visit in visits.read(wanted):
            outcome.failed += visit.failed
            if steps := [step for step in visit.steps if not (self.skips_absent and _is_absent(visit, step))]:
                units.append(visits.unit(visit, steps))
                visits.desk.note(visit)
        outcome += visits.commit(units)
        outcome += finish((), (), Finishing(runtime, lambda failed: failed, visits.pending_work))
        outcome.done.clear()  # these are of items that were visited, not of the batch
        outcome.fresh.clear()
        return outcome


def _is_absent(visit: Visit, step: Step) -> bool:
    return visit.source is None and not (step.route.optional or visit.differs(step))


def listed(runtime: Runtime, route: Route, referent: ItemKey, most: int) -> list[str]:
    """The backlinks of a referent, at most so many."""
    partition = backlinks_partition(runtime.application.name, route.name, referent)
    return [text for _, text in runtime.engine.read_entries(Entries(partition, most))]


def visit_referrers(works: Sequence[Work], finishing: Finishing) -> tuple[Outcome, list[Deferred]]:
    """Visits the items that refer to those that changed in a batch, or begins fan-outs that do.

    Visits that fail, and whose items are not parked, do so with the records of the referents, which are retried.
    Returns, besides, the work that remains for ``finish``.
    """
    outcome, runtime = Outcome(), finishing.runtime
    referrers, asked = Referrers(runtime), dict[Referrer, list[Work]]()
    room_by_handler: dict[str, int] = {}  # items that the batch still visits itself, by handler
    for work in works:
        with ItemFault() as fault:
            runtime.begin()
            room = room_by_handler.setdefault(work.route.name, work.route.inline)
            texts = listed(runtime, work.route, work.item, room + 1)
            if len(texts) > room:
                job = job_of(work.route, work.item, _version(work.changes), runtime.clock())
                FanOuts(runtime).start(job, job.version, again=_again(work.changes))
                outcome.tally(work.route.name).handed_on += 1
                continue
            room_by_handler[work.route.name] -= len(texts)
            for each in referrers.add(work.route, work.item, texts):
                asked.setdefault(each, []).append(work)
        if fault.error is not None:
            outcome.failed += finishing.failures(work.changes, work.route, explained(work.route, fault.error))
    outcome += visit_for(referrers, asked, finishing)
    changes_of = {each: [change for work in own for change in work.changes] for each, own in asked.items()}
    return outcome, referrers.deferred(changes_of)


def visit_all_referrers(work: Work, version: str, finishing: Finishing) -> Outcome:
    """Visits the items that refer to one, whatever has changed in it, or begins a fan-out that does.

    version: of the change that takes the place of a record, if ``work`` has none.
    """
    changes = work.changes or (synthetic_change(work.item, version),)
    outcome, deferred = visit_referrers([work._replace(changes=changes)], finishing)
    if deferred:  # documents, which are asked for
        outcome += finished(work.route, deferred, finishing._replace(runtime=replace(finishing.runtime, outside=True)))
    return outcome


def visit_for(
    referrers: Referrers, asked: Mapping[Referrer, Sequence[Work]], finishing: Finishing, *, one_name: bool = False
) -> Outcome:
    """Visits items for the changes of others. ``one_name``: an item is parked once, whichever change visits it."""
    outcome, runtime = Outcome(), finishing.runtime
    with ItemFault() as fault:
        visited = referrers.visit()
        wrong, visited.failed = visited.failed, []
        outcome += visited
        for failed in wrong:
            causes = asked.get(Referrer(failed.change.item, failed.route), [])
            changes = [change for work in causes for change in work.changes]
            version = BEFORE_ALL if one_name else _version(changes)
            reported = finishing.triage(VisitFailed.of(failed, runtime, version, max(times_of(changes), default=None)))
            if reported is not None:  # the records of the others are not to blame: they are retried, and never parked
                outcome.failed += [Failed(change, failed.route, reported.error) for change in changes]
    if fault.error is not None:
        outcome.failed += [
            failure
            for work in {id(work): work for some in asked.values() for work in some}.values()
            for failure in finishing.failures(work.changes, work.route, fault.error)
        ]
    return outcome


def finished(route: Route, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
    """Does the work of one handler that remained. Raises ``SettingsError`` if it is left to another run."""
    outcome = finish(deferred, (), finishing)
    derivation(route).check_done(route, outcome)
    return outcome


def _version(changes: Sequence[Change]) -> str:
    return max((change.version_text for change in changes), default=BEFORE_ALL)


def _again(changes: Sequence[Change]) -> bool:
    # A repair has no record, so its fan-out visits all items once more, though one has for this version.
    return _version(changes) == BEFORE_ALL


def job_of(route: Route, referent: ItemKey, version: str, now: float) -> Job:
    """The fan-out that visits all items that refer to one."""
    name = stored_key_text(referent)
    on_items = route.kind.contributes and not route.into  # attributes of an item, to which many may contribute
    return Job(
        id=fan_out_id(route.name, WHAT, name),
        what=WHAT,
        handlers=(route.name,),
        table=referent[0],
        # Items that have rows or documents of their own are visited in many segments at once. Where rows are shared,
        # transactions of all segments would meet in them.
        segments=SEGMENTS if all(target.owned for target in route.targets) and not on_items else 1,
        started=int(now),
        by="",
        options={"referent": f"[[{name},{{}}]]"},
        version=version,
    )


class ReferrerSegments:
    """Works on the segments of one fan-out."""

    def __init__(self, route: Route, job: Job, finishing: Finishing) -> None:
        self.route = route
        self.job = job
        self.finishing = finishing
        self.runtime = finishing.runtime
        self.referent = referrer(str(job.options["referent"]))

    @cached_property
    def partition(self) -> str:
        return backlinks_partition(self.runtime.application.name, self.route.name, self.referent)

    def page(self, segment: JobSegment) -> Paged:
        """Visits the next items, or again those on which the handler raised.

        Raises the error of the store, and that of the handler if it raises on too many items.
        """
        if segment.passed:  # a backlink that is gone names an item that does not refer
            keys = {StateKey(self.partition, position): position for position in segment.failing}
            stored = self.runtime.engine.read_state(keys, consistent=True)
            entries = [(keys[key], str(each["s"])) for key, each in stored.items()]
        else:
            first, end = segment_bounds(segment.number, self.job.segments)
            wanted = Entries(self.partition, PAGE, segment.after or first, before=end)
            entries = self.runtime.engine.read_entries(wanted)
        referrers, positions = Referrers(self.runtime), dict[ItemKey, str]()
        for position, text in entries:
            for each in referrers.add(self.route, self.referent, [text]):
                positions[each.item] = position
        outcome = referrers.visit()
        finishing = Finishing(self.runtime, lambda failed: failed, PendingWork())
        outcome += finished(self.route, referrers.deferred(), finishing)
        failed = self._not_parked(outcome.failed)
        kept = () if segment.passed else [each for each in segment.failing if each not in positions.values()]
        failing = dict.fromkeys([*kept, *(positions[each.change.item] for each in failed)])
        if len(failing) > FAILING_MAX:
            error = failed[-1].error
            raise HandlerError(
                f"The handler raises on more than {FAILING_MAX} items that a change of their referent visits: "
                f"{type(error).__name__}: {reason(error)}"
            ) from error
        rows = sum(tally.written + tally.removed for tally in outcome.tallies.values())
        is_last = segment.passed or len(entries) < PAGE
        return Paged(None if is_last else entries[-1][0], {ROWS: rows}, [*failing], failed)

    def _not_parked(self, failed: Iterable[Failed]) -> list[Failed]:
        """The failures of a page whose items are not parked. Raises errors that are no item's."""
        reported = []
        for each in failed:
            if lacks_the_record(each.error):
                raise each.error
            found = VisitFailed.of(each, self.runtime, self.job.version, self.job.started)
            if (one := self.finishing.triage(found)) is not None:
                reported.append(one)
        return reported

    def ended(self, counts: Mapping[str, int]) -> None:
        """Nothing follows."""


def visit_roots(works: Sequence[Work], finishing: Finishing, stepped: Collection[tuple[ItemKey, str]] = ()) -> Outcome:
    """Visits the roots of parts, each once for each handler, but those whose contribution was written (``stepped``)."""
    referrers, asked = Referrers(finishing.runtime, skips_absent=True), dict[Referrer, list[Work]]()
    for work in works:
        root = Referrer(root_of(work.route, work.fields)[0], work.route)
        if (root.item, root.route.name) not in stepped:
            referrers.named.setdefault(root, [])
            asked.setdefault(root, []).append(work)
    return visit_for(referrers, asked, finishing, one_name=True) if asked else Outcome()
