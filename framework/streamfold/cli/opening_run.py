"""``streamfold backfill AUDIT --opening``: items that were there before their audit get a first row."""

import getpass

from streamfold.app import App
from streamfold.cli.engines import REPORTED, confirm_writes
from streamfold.cli.filling_options import HERE, FillingOptions
from streamfold.cli.filling_output import filling_bar, print_filled
from streamfold.cli.filling_run import SEGMENTS, size_of
from streamfold.cli.metered import metered
from streamfold.cli.opened import OpenedState, followed_chains, opened_state
from streamfold.cli.output import echo
from streamfold.cli.repaired import check_failed_file, failed_keys
from streamfold.derivations.audit.kind import audit_routes
from streamfold.errors import SettingsError
from streamfold.jobs.job import Job, Jobs
from streamfold.lifecycle.backfill import Estimate, Filling, OpeningPages, RunHooks
from streamfold.lifecycle.sources import check_gate, check_named, source_tables
from streamfold.routes.application import unknown_handler
from streamfold.routes.route import Route

WHAT = "backfill --opening"


def run_openings(options: FillingOptions) -> int:
    """Carries out the run; returns the exit code."""
    if options.export or options.load or options.max_lag or options.function:
        raise SettingsError("--opening reads the tables: leave --export, --load and --max-lag out.")
    if options.runner != HERE or options.processes or options.spark_master:
        raise SettingsError("--opening is done by this process: leave --runner, --processes and --spark-master out.")
    check_failed_file(options.failed)
    with opened_state(options.application, options.tables, options.store) as opened:
        routes = _audits(opened.app, options.handlers)
        offline = options.offline or opened.local is not None
        check_named(opened.manifest, routes, offline=offline)
        check_gate(opened.manifest, routes, opened.runtime.settings, opened.runtime.clock(), offline=offline)
        items = sum(size_of(opened, table).items for table in source_tables(routes))
        echo(f"{WHAT} of {', '.join(route.name for route in routes)} over {items:,} items", err=True)
        if options.dry_run:
            return 0
        confirm_writes(opened.engine, opened.store, yes=options.yes)
        return _carry_out(opened, routes, items, options)


def _audits(app: App, names: tuple[str, ...]) -> list[Route]:
    """The named audits. Raises ``SettingsError`` for another handler, or none."""
    audits = {route.name: route for route in audit_routes(app)}
    if not names:
        raise SettingsError(f"--opening is of audits that are named: {', '.join(audits) or 'there is none here'}.")
    for name in names:
        if name not in audits:
            raise unknown_handler("--opening", name, sorted(audits))
    return [audits[name] for name in dict.fromkeys(names)]


def _carry_out(opened: OpenedState, routes: list[Route], items: int, options: FillingOptions) -> int:
    jobs = Jobs(opened.app.name, opened.engine, opened.runtime.clock)
    job, goes_on = _job(jobs, routes, options)
    expected = Estimate(items, 0, 1.0, 1.0, 0, 0, exact=False)
    with (
        failed_keys(opened.app, options.failed, goes_on=goes_on) as keep,
        filling_bar(expected, shown=not options.json_output) as tell,
    ):
        filling = Filling(
            jobs,
            job,
            OpeningPages(opened.runtime, routes),
            source_tables(routes),
            page_items=options.page_items,
            metered=metered(opened.engine),
            hooks=RunHooks(tell, keep),
        )
        progress = filling.run()
    chains = followed_chains(opened)
    print_filled(opened.app, filling.job, progress, len(chains), options, swept=False)
    return REPORTED if filling.job.counts.get("failed") or chains else 0


def _job(jobs: Jobs, routes: list[Route], options: FillingOptions) -> tuple[Job, bool]:
    """The job to go on with: one that was stopped (True), or a new one."""
    names, tables = tuple(route.name for route in routes), source_tables(routes)
    segments = (options.segments or SEGMENTS[options.store.engine]) * len(tables)
    rates = {"read_units": options.read_units, "write_units": options.write_units}
    for known in jobs.all():
        if (known.what, known.handlers, known.segments) == (WHAT, names, segments) and not known.ended:
            echo(f"Job {known.id} goes on where it was.", err=True)
            return jobs.gone_on(known, **rates), True
    table = ",".join(each.name for each in tables)
    return jobs.create(WHAT, names, table, segments, by=getpass.getuser(), **rates), False
