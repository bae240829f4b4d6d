"""Work that a batch leaves: segments of fan-outs, and on a local store the chains of its own stream."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from decimal import localcontext
from typing import NamedTuple

from streamfold.batch.process import check_application, process_changes
from streamfold.batch.report import Report, merge
from streamfold.commit.outcome import Failure, Tallies, Triage
from streamfold.commit.pending import Unfinished
from streamfold.derivations.derivation import Finishing, derivation
from streamfold.engines import OWN_VERSION, ChainEngine, Engine
from streamfold.engines.timed import Timed
from streamfold.errors import NotStarted, is_fatal
from streamfold.jobs.fan_outs import REMOVED, ROWS, FanOuts, Paged, is_over
from streamfold.jobs.job import Job, JobSegment
from streamfold.records.change import Change
from streamfold.records.envelope import Origins
from streamfold.records.values import EXACT
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run, Rung

BATCH_RECORDS_MAX = 1000
"""Records of the engine's own stream in one batch."""


def run_fan_outs(app: Application, engine: Engine, run: Run) -> Report:
    """Works on all lanes that were rung for in this process, until none is left.

    A lane that fails stays open, and is among the failures.
    """
    report = Report()
    while run.rung and run.enough_time():
        rung, run.rung = run.rung, []
        for each in dict.fromkeys(rung):
            merge(report, work_on(app, engine, run, each))
    return report


class OpenFanOut(NamedTuple):
    """A fan-out that is open."""

    job: Job
    lanes: list[JobSegment]
    route: Route | None  # its handler; None where this process is not to work for it

    @property
    def left(self) -> list[JobSegment]:
        """The lanes that are to be worked on; the first, if the fan-out is only to be closed."""
        return [lane for lane in self.lanes if not is_over(lane)] or self.lanes[:1]

    def age_seconds(self, now: float) -> float:
        """For how long it is open."""
        return max(now - self.job.started, 0.0)


class Open(NamedTuple):
    """What is open, as far as this process is to work on it."""

    fan_outs: int
    oldest_seconds: float  # for how long the oldest is open; 0: none is
    rung: int  # the lanes that were rung for


def open_fan_outs(app: Application, engine: Engine, run: Run) -> Iterator[OpenFanOut]:
    """The fan-outs that are open, those of other processes and of retired handlers too."""
    fan_outs = FanOuts(app.name, Timed(engine, run), run)
    for job in fan_outs.all():
        yield OpenFanOut(job, fan_outs.lanes(job), _route(app, job, run))


def ring_open(app: Application, engine: Engine, run: Run) -> int:
    """Rings for the lanes of open fan-outs that are not done; returns for how many."""
    return watch_open(app, engine, run).rung


def watch_open(app: Application, engine: Engine, run: Run, *, still_seconds: float = 0) -> Open:
    """Rings for the lanes of open fan-outs that are not done, as far as there is time; returns what is open.

    still_seconds: only for lanes that have not moved for so long: whoever works on the others goes on.
    """
    found, now = Open(0, 0.0, 0), run.clock()
    if not any(derivation(route).fans_out for route in app.routes):
        return found
    with suppress(NotStarted):
        for each in open_fan_outs(app, engine, run):
            if each.route is None:
                continue
            still = [lane.number for lane in each.left if lane.at + still_seconds <= now]
            if still:
                run.ring(each.job.id, still)
            oldest = max(found.oldest_seconds, each.age_seconds(now))
            found = Open(found.fan_outs + 1, oldest, found.rung + len(still))
    return found


def work_on(app: Application, engine: Engine, run: Run, rung: Rung) -> Report:
    """Works on one lane until it is done, or rings for it again when time is over.

    Raises what is wrong for all records: a table that is missing, or code that does not fit the state.
    """
    report, (identity, number) = Report(), rung
    check_application(app, engine, run, write=False)
    timed = Timed(engine, run)
    fan_outs = FanOuts(app.name, timed, run)
    job = fan_outs.read(identity)
    route = None if job is None else _route(app, job, run)
    if job is None or route is None or number >= job.segments:
        return report  # it is done, or others are to work on it
    triage = Triage(app.name, timed, run)
    try:
        with localcontext(EXACT):
            _work(fan_outs, job, number, route, Finishing(app, timed, engine, run, triage, Unfinished()), report)
    except NotStarted:
        run.ring(identity, [number])
    except Exception as error:
        if is_fatal(error):
            raise
        report.failures.append(Failure("", f"fan-out {identity}, lane {number}", route.name, error))
    report.parked, report.first_parked = triage.parked, triage.first
    return report


def _work(fan_outs: FanOuts, job: Job, number: int, route: Route, finishing: Finishing, report: Report) -> None:
    work = derivation(route).lanes(route, job, finishing)
    tally = report.tallies.setdefault(route.name, Tallies())

    def page(lane: JobSegment) -> Paged:
        done = work.page(lane)
        tally.written += done.counts.get(ROWS, 0)
        tally.removed += done.counts.get(REMOVED, 0)
        return done

    fan_outs.work(job, number, page)
    lanes = fan_outs.lanes(job)
    if all(map(is_over, lanes)):
        work.ended(sum((Counter(lane.counts) for lane in lanes), Counter[str]()))
        fan_outs.end(job)


def _route(app: Application, job: Job, run: Run) -> Route | None:
    """The handler that a fan-out is of, if this process is to work for it."""
    route = next((route for route in app.routes if route.name in job.handlers), None)
    if route is None or not run.settings.runs(route.name, route.group):
        return None
    if derivation(route).touches(route) and not run.source_items:
        return None  # it would change items of the application, which this store does not hold
    return route


def run_chains(app: Application, engine: ChainEngine, run: Run) -> Report:
    """Processes the engine's own stream until it is empty. It ends, because declared chains have no cycle.

    A run of one group reads the records of that group only; those of other groups wait until these run.
    A kill in between is safe: the position in the stream is stored after each batch, and a record that comes twice
    changes nothing. Failed records are kept and come again after ``engine.retry``.
    """
    report = Report()
    # Records of the engine bear logical table names, whatever real names the settings give.
    origins = Origins(app.tables, run.settings._replace(tables={name: name for name in app.tables}), run.warn)
    merge(report, run_fan_outs(app, engine, run))
    group = run.settings.group
    while pending := engine.pending(BATCH_RECORDS_MAX, group):
        changes = [with_own_version(origins.change(record.record)) for record in pending]
        batch = process_changes(app, changes, engine, run)
        failed = {failure.sequence for failure in batch.failures}
        merge(report, batch)
        done = [record.sequence for record in pending if str(record.sequence) not in failed]
        engine.advance(pending[-1].sequence, done, group)
        merge(report, run_fan_outs(app, engine, run))
    if group is not None:
        _tell_of_others(app, engine, run)
    return report


def _tell_of_others(app: Application, engine: ChainEngine, run: Run) -> None:
    """Warns once of each group for which records wait: the state grows until that group runs."""
    for other in sorted({route.group for route in app.routes} - {run.settings.group}):
        if engine.pending(1, other):
            run.warn_once(
                ("waiting", other),
                f"Changes of derived rows wait in this state for handlers of group {other!r}, and STREAMFOLD_GROUP is "
                f"{run.settings.group!r}: run group {other!r} too, or leave STREAMFOLD_GROUP out.",
            )


def with_own_version(change: Change) -> Change:
    """Gives a change of the own stream the version of its source item, if the record holds one.

    A source item that a cascade removed has versions of its own; this stream's numbers do not compare with them.
    """
    change.version_text = change.record.get(OWN_VERSION, change.version_text)
    return change
