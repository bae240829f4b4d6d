"""Works on the lanes of fan-outs, which go on after their records were acknowledged."""

from collections import Counter
from decimal import localcontext

from streamfold.batch.process import check_application
from streamfold.batch.report import Report, merge
from streamfold.commit.failure import Failure
from streamfold.commit.triage import Triage
from streamfold.derivations.derivation import Finishing, derivation
from streamfold.engines import Engine
from streamfold.engines.timed import Timed
from streamfold.errors import NotStarted, is_fatal
from streamfold.jobs.fan_outs import FanOuts
from streamfold.jobs.job import Job
from streamfold.records.numbers import EXACT
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run, Rung


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


def ring_open(app: Application, engine: Engine, run: Run, *, still_seconds: float = 0) -> int:
    """Rings for the lanes of open fan-outs that are not done; returns for how many.

    still_seconds: only for fan-outs that were opened so long ago.
    """
    fan_outs, count = FanOuts(app.name, Timed(engine, run), run), 0
    for job in fan_outs.all():
        if job.started + still_seconds > run.clock() or _route(app, job, run) is None:
            continue
        lanes = fan_outs.lanes(job)
        left = [lane.number for lane in lanes if not lane.done] or [0]  # one that is done is only to be closed
        run.ring(job.id, left)
        count += len(left)
    return count


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
            _work(fan_outs, job, number, route, Finishing(app, timed, engine, run, triage))
    except NotStarted:
        run.ring(identity, [number])
    except Exception as error:
        if is_fatal(error):
            raise
        report.failures.append(Failure("", f"fan-out {identity}, lane {number}", route.name, error))
    report.parked, report.first_parked = triage.parked, triage.first
    return report


def _work(fan_outs: FanOuts, job: Job, number: int, route: Route, finishing: Finishing) -> None:
    work = derivation(route).lanes(route, job, finishing)
    fan_outs.work(job, number, work.page)
    lanes = fan_outs.lanes(job)
    if all(lane.done for lane in lanes):
        work.ended(sum((Counter(lane.counts) for lane in lanes), Counter[str]()))
        fan_outs.end(job)


def _route(app: Application, job: Job, run: Run) -> Route | None:
    """The handler that a fan-out is of, if this process is to work for it."""
    route = next((route for route in app.routes if route.name in job.handlers), None)
    if route is None or route.name in run.settings.handlers_off:
        return None
    return route if run.settings.group in (None, route.group) else None
