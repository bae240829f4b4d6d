"""Work that a batch leaves: segments of fan-outs, and on a local store the chains of its own stream."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from decimal import localcontext
from typing import TYPE_CHECKING, NamedTuple

from streamfold.batch.process import check_application, process_changes
from streamfold.batch.report import Report, add_failures, merge
from streamfold.commit.outcome import Failure, Tallies, Triage
from streamfold.commit.pending import PendingWork
from streamfold.derivations.derivation import Finishing, derivation, fans_out
from streamfold.engines.protocol import OWN_VERSION, OwnStream
from streamfold.errors import ItemFault, NotStarted
from streamfold.jobs.fan_outs import REMOVED, ROWS, FanOuts, Paged, is_over
from streamfold.jobs.job import Job, JobSegment
from streamfold.records.change import Change
from streamfold.records.envelope import Origins
from streamfold.records.values import EXACT
from streamfold.routes.route import Route
from streamfold.runtime import QueuedSegment, Runtime

if TYPE_CHECKING:
    from streamfold.derivations.derivation import SegmentWork

BATCH_RECORDS_MAX = 1000
"""Records of the engine's own stream in one batch."""


def run_fan_outs(runtime: Runtime) -> Report:
    """Works on all segments that were enqueued in this process, until none remains. A segment that fails is still open,
    and is among the failures, as are the items that a segment keeps beside its cursor: these have no sequence number.
    """
    report = Report()
    # Work on a segment may enqueue further ones. Without the check of the time the process would be killed within a
    # page.
    while runtime.queued and runtime.enough_time():
        queued, runtime.queued = runtime.queued, []
        for each in dict.fromkeys(queued):
            merge(report, work_on(runtime, each))
    return report


class OpenFanOut(NamedTuple):
    """A fan-out that is open."""

    job: Job
    segments: list[JobSegment]
    route: Route | None  # its handler; None where this process is not to work for it

    @property
    def pending(self) -> list[JobSegment]:
        """The segments to work on; the first, if the fan-out has only to be closed."""
        return [segment for segment in self.segments if not is_over(segment)] or self.segments[:1]

    def age_seconds(self, now: float) -> float:
        """For how long it is open."""
        return max(now - self.job.started, 0.0)


class Open(NamedTuple):
    """The open fan-outs that this process is to work on."""

    fan_outs: int
    oldest_seconds: float  # for how long the oldest is open; 0: none is
    queued: int  # the enqueued segments


def open_fan_outs(runtime: Runtime) -> Iterator[OpenFanOut]:
    """The open fan-outs, also of other processes and of retired handlers."""
    fan_outs = FanOuts(runtime)
    for job in fan_outs.all():
        yield OpenFanOut(job, fan_outs.segments(job), _route(runtime, job))


def enqueue_open(runtime: Runtime) -> int:
    """Enqueues the unfinished segments of open fan-outs; returns their number."""
    return watch_open(runtime).queued


def watch_open(runtime: Runtime, *, still_seconds: float = 0) -> Open:
    """Enqueues the unfinished segments of open fan-outs, as far as there is time; returns the open fan-outs.

    still_seconds: only segments without progress for this time, because another process works on the others.
    """
    found, now = Open(0, 0.0, 0), runtime.clock()
    if not any(fans_out(route) for route in runtime.application.routes):
        return found
    with suppress(NotStarted):
        for each in open_fan_outs(runtime):
            if each.route is None:
                continue
            still = [segment.number for segment in each.pending if segment.at + still_seconds <= now]
            if still:
                runtime.enqueue(each.job.id, still)
            oldest = max(found.oldest_seconds, each.age_seconds(now))
            found = Open(found.fan_outs + 1, oldest, found.queued + len(still))
    return found


def work_on(runtime: Runtime, queued: QueuedSegment) -> Report:
    """Works on one segment until it is done, or enqueues it again when time is over.

    Raises errors that all records would meet: a missing table, or code that does not fit the state.
    """
    report, (identity, number) = Report(), queued
    check_application(runtime, write=False)
    fan_outs = FanOuts(runtime)
    job = fan_outs.read(identity)
    route = None if job is None else _route(runtime, job)
    if job is None or route is None or number >= job.segments:
        return report  # it is done, or others are to work on it
    triage = Triage(runtime)
    with ItemFault() as fault, localcontext(EXACT):
        _work(fan_outs, job, number, route, Finishing(runtime, triage, PendingWork()), report)
    # Time is over: the progress is stored, and the next message continues the segment.
    if isinstance(fault.error, NotStarted):
        runtime.enqueue(identity, [number])
    elif fault.error is not None:
        report.failures.append(Failure("", f"fan-out {identity}, segment {number}", route.name, fault.error))
    report.parked, report.first_parked = triage.parked, triage.first
    return report


def _work(fan_outs: FanOuts, job: Job, number: int, route: Route, finishing: Finishing, report: Report) -> None:
    work = _segment_work(route, job, finishing)
    tally = report.tallies.setdefault(route.name, Tallies())

    def page(segment: JobSegment) -> Paged:
        done = work.page(segment)
        tally.written += done.counts.get(ROWS, 0)
        tally.removed += done.counts.get(REMOVED, 0)
        add_failures(report, done.failed)
        return done

    fan_outs.work(job, number, page)
    segments = fan_outs.segments(job)
    if all(map(is_over, segments)):
        work.ended(sum((Counter(segment.counts) for segment in segments), Counter[str]()))
        fan_outs.end(job)


def _segment_work(route: Route, job: Job, finishing: Finishing) -> "SegmentWork":
    if not route.referents:
        return derivation(route).segment_work(route, job, finishing)
    from streamfold.batch.referrers import ReferrerSegments  # few functions have one

    return ReferrerSegments(route, job, finishing)


def _route(runtime: Runtime, job: Job) -> Route | None:
    """The handler that a fan-out is of, if this process is to work for it."""
    route = next((route for route in runtime.application.routes if route.name in job.handlers), None)
    if route is None or not runtime.settings.runs(route.name, route.group):
        return None
    if derivation(route).touches(route) and not runtime.source_items:
        return None  # it would change items of the application, which this store does not hold
    sends = runtime.source_items and (runtime.store.is_local or runtime.outside)
    if route.referents and not route.kind.contributes and not sends:
        return None  # its documents are to leave this run, or are of items that this store does not hold
    return route


def run_chains(runtime: Runtime, stream: OwnStream) -> Report:
    """Processes the own stream of the store until it is empty. It ends, because declared chains have no cycle.

    A record whose time is not known gets the clock of the state: by the time of this machine, a feed would take the
    posts of an older recording for expired.

    A run of one group reads the records of that group only; those of other groups wait until these run. A kill in
    between is safe: the position in the stream is stored after each batch, and a second delivery of a record changes
    nothing. Failed records are kept, and delivered again after ``engine.retry``.
    """
    report, app, settings = run_fan_outs(runtime), runtime.application, runtime.settings
    group, origins = settings.group, None
    timed = runtime.own_stream
    while pending := stream.pending(BATCH_RECORDS_MAX, group):
        if origins is None:  # records of the engine have logical table names, so the settings' real names do not apply
            origins = Origins(app.tables, settings._replace(tables={name: name for name in app.tables}), runtime.warn)
        for each in pending:
            body = each.record["dynamodb"]
            if timed is not None and not body["ApproximateCreationDateTime"]:
                body["ApproximateCreationDateTime"] = timed.clock_seconds
        changes = [with_own_version(origins.change(record.record)) for record in pending]
        batch = process_changes(runtime, changes)
        failed = {failure.sequence for failure in batch.failures}
        merge(report, batch)
        done = [record.sequence for record in pending if str(record.sequence) not in failed]
        stream.advance(pending[-1].sequence, done, group)
        merge(report, run_fan_outs(runtime))
    if timed is not None:
        timed.item_times.clear()
    if group is not None:
        _warn_of_others(runtime, stream)
    return report


def _warn_of_others(runtime: Runtime, stream: OwnStream) -> None:
    """Warns once of each group for which records wait: the state grows until that group runs."""
    for other in sorted({route.group for route in runtime.application.routes} - {runtime.settings.group}):
        if stream.pending(1, other):
            runtime.warn_once(
                ("waiting", other),
                f"Changes of derived rows wait in this state for handlers of group {other!r}, and STREAMFOLD_GROUP is "
                f"{runtime.settings.group!r}: run group {other!r} too, or leave STREAMFOLD_GROUP out.",
            )


def with_own_version(change: Change) -> Change:
    """Gives a change of the own stream the version of its source item, if the record holds one.

    A source item that a cascade removed has versions of its own; this stream's numbers do not compare with them.
    """
    change.version_text = change.record.get(OWN_VERSION, change.version_text)
    return change
