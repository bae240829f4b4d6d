"""The parts of a run as any process opens them: from its job, which holds all that the run was asked for."""

from typing import Any

from streamfold.batch.manifest import note_filled
from streamfold.engines import Engine
from streamfold.errors import SettingsError
from streamfold.jobs.job import Job, Jobs
from streamfold.lifecycle.checks import wanted_routes
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.filling import Filling
from streamfold.lifecycle.keys import PAGE_ITEMS
from streamfold.lifecycle.page import Pages
from streamfold.routes.application import Application
from streamfold.run import Run

BACKFILL, REBUILD = "backfill", "rebuild"
PAGE, EXPORT, RUNNER = "page", "export", "runner"
"""Options of a job: the items of a page, the place of the export that its keys come from, who alone can carry it."""
FAILED = "failed"


def job_options(page_items: int, export: str | None, runner: str | None = None) -> dict[str, Any]:
    """What a job keeps for whoever opens its parts. ``runner``: only that can tell which items a part has."""
    return {PAGE: page_items, **({EXPORT: export} if export else {}), **({RUNNER: runner} if runner else {})}


def job_to_carry(jobs: Jobs, identity: str) -> Job:
    """A job to be carried. Raises ``SettingsError`` for one that is unknown, of another kind, or has ended."""
    job = jobs.known(identity)
    if job.what not in (BACKFILL, REBUILD):
        raise SettingsError(f"Job {identity} is a {job.what}: expected one of backfill or rebuild.")
    if runner := job.options.get(RUNNER):
        raise SettingsError(f"Job {identity} is cut into parts by {runner}, which alone can carry it.")
    if job.ended:
        raise SettingsError(f"Job {identity} has ended: begin another one.")
    return job


def job_export(app: Application, run: Run, job: Job) -> Export | None:
    """The export that the keys of a job come from; None: its tables are scanned."""
    place = job.options.get(EXPORT)
    if place is None:
        return None
    table = app.tables[job.table]
    return open_export(place, table, run.settings.real_name(table.name))


def job_parts(app: Application, engine: Engine, run: Run, job: Job, *, sharing: int = 1, **more: Any) -> Filling:
    """The parts of a job, of whose rates ``sharing`` processes have a share. ``more``: what ``Filling`` takes.

    Raises ``SettingsError`` where the code here does not have the job's handlers, where one of them is switched off, or
    where its export cannot be read.
    """
    for route in wanted_routes(app, job.handlers):
        if route.name in run.settings.handlers_off:
            raise SettingsError(
                f"Handler {route.name!r} of job {job.id} is switched off here (STREAMFOLD_HANDLERS_OFF): switch it on, "
                f"or end the job, streamfold jobs --end {job.id}."
            )
    tables = [app.tables[name] for name in job.table.split(",")]
    pages = Pages(app, engine, run, job.handlers, always=job.what == REBUILD)
    given = {"export": job_export(app, run, job), PAGE + "_items": job.options.get(PAGE, PAGE_ITEMS), **more}
    parts = Filling(Jobs(app.name, engine, run.clock, run), job, pages, tables, **given)
    parts.share(sharing)
    return parts


def end_job(app: Application, engine: Engine, run: Run, identity: str) -> Job:
    """Ends a job. If all of its parts are done and no item failed, its handlers are not partial any more.

    Those stay partial that older code may have left out since the job began.
    """
    ended = Jobs(app.name, engine, run.clock, run).end(identity)
    if ended.done and not ended.counts.get(FAILED):
        note_filled(app, engine, run, ended.handlers, identity)
    return ended
