"""Runs over all items as commands: checked, estimated, asked for, carried out and told."""

import getpass
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import click

from streamfold.batch.manifest import note_filled
from streamfold.batch.process import check_application
from streamfold.cli.filling_options import FillingOptions
from streamfold.cli.filling_told import filling_bar, print_filled, tell_estimate
from streamfold.cli.opened import OpenedState, chosen_routes, confirmed, export_of, followed_chains, opened_state
from streamfold.cli.repaired import check_failed_file, failed_keys
from streamfold.engines import Engine, OwnStream
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError
from streamfold.jobs.job import Job, Jobs
from streamfold.jobs.lag import StreamLag, iterator_age
from streamfold.keys.table import Table
from streamfold.ledger.item import BEFORE_ALL
from streamfold.lifecycle.checks import check_gate, source_tables
from streamfold.lifecycle.estimate import Estimate, TableSize, estimate
from streamfold.lifecycle.exports import Export
from streamfold.lifecycle.filling import Beside, Filling, FillingProgress, KeepFailed, Metered, new_job, segments_of
from streamfold.lifecycle.page import Pages

REPORTED = 1
SEGMENTS = {"embedded": 1, "dynamodb": 16}
"""Segments of a table, by engine: what a kill repeats is a page, whatever they are."""


class FillingPlan(NamedTuple):
    """A run that may begin: on what, for which handlers, over which tables or export."""

    opened: OpenedState
    names: Sequence[str]
    tables: Sequence[Table]
    export: Export | None


def carried_out(application: str, tables: tuple[str, ...], options: FillingOptions) -> int:
    """Carries out a backfill or rebuild; returns the exit code."""
    check_failed_file(options.failed)
    with opened_state(application, tables, options.store) as opened:
        planned = _planned(opened, options)
        expected = _estimated(planned, options)
        if not options.json_output:
            tell_estimate(expected, planned.names, planned.tables, options, is_local=opened.local is not None)
        if options.dry_run:
            return 0
        confirmed(opened, yes=options.yes)
        return _carry_out(planned, expected, options)


def _planned(opened: OpenedState, options: FillingOptions) -> FillingPlan:
    """What is to be filled. Raises ``SettingsError`` where nothing is, or it may not begin yet."""
    _check_lag(opened, options)
    run, offline = opened.run, options.offline or opened.local is not None
    routes = chosen_routes(opened, options.handlers, offline=offline)
    if not routes:
        raise SettingsError(f"There is no handler for {options.what}: all are left out, or follow from changes.")
    check_gate(opened.manifest, routes, run.settings, run.clock(), offline=offline)
    if opened.local is not None and not options.dry_run:
        check_application(opened.app, opened.engine, run)  # no function names its handlers
    tables = source_tables(routes)
    return FillingPlan(opened, [route.name for route in routes], tables, _export(opened, tables, options))


def _export(opened: OpenedState, tables: Sequence[Table], options: FillingOptions) -> Export | None:
    """The export that keys are taken from; its items are put into a local state where that is asked for."""
    if options.load and not (opened.local is not None and options.export):
        raise SettingsError("--load puts the items of an export into a local state: expected --export MANIFEST too.")
    if options.export is None:
        return None
    export = export_of(opened, tables, options.export)
    if options.load and isinstance(opened.engine, EmbeddedEngine):
        opened.engine.put_sources((line.key, line.image, BEFORE_ALL) for line in export.lines() if line.image)
    return export


def _estimated(planned: FillingPlan, options: FillingOptions) -> Estimate:
    opened, names, tables, _ = planned
    sizes = [size_of(opened, table) for table in tables]
    dry = Pages(opened.app, opened.engine, opened.run, names, always=options.what == "rebuild", dry_run=True)
    return estimate(dry, tables, sizes, Random(0), options.page_items)  # noqa: S311 - a sample


def size_of(opened: OpenedState, table: Table) -> TableSize:
    """The size of a table: of a local state counted, of DynamoDB as it says, some hours old."""
    if opened.local is not None:
        sizes = [len(json.dumps(item, default=str)) for item in opened.engine.items(table)]
        return TableSize(len(sizes), sum(sizes))
    from streamfold.cli.clients import explained
    from streamfold.cli.dynamodb import described

    with explained():
        return TableSize(*described(opened.engine, table))


def _carry_out(planned: FillingPlan, expected: Estimate, options: FillingOptions) -> int:
    opened = planned.opened
    jobs = Jobs(opened.app.name, opened.engine, opened.run.clock)
    job, goes_on = _job(jobs, planned, options)
    with failed_keys(opened.app, options.failed, goes_on=goes_on) as keep:
        job, progress = _filled(planned, jobs, job, keep, expected, options)
    failed = job.counts.get("failed", 0)
    if not failed and job.done:
        note_filled(opened.app, opened.engine, opened.run, planned.names)
    chains = followed_chains(opened)
    print_filled(opened.app, job, progress, len(chains), options)
    return REPORTED if failed or chains else 0


def _filled(
    planned: FillingPlan, jobs: Jobs, job: Job, keep: KeepFailed, expected: Estimate, options: FillingOptions
) -> tuple[Job, FillingProgress]:
    opened, names, tables, export = planned
    lag = _lag(opened, options)
    with filling_bar(expected, shown=not options.json_output) as tell:
        filling = Filling(
            jobs,
            job,
            Pages(opened.app, opened.engine, opened.run, names, always=options.what == "rebuild"),
            tables,
            export=export,
            page_items=options.page_items,
            metered=metered(opened.engine),
            beside=Beside(tell, keep, lag),
        )
        progress = filling.run()
        return filling.job, progress


def _check_lag(opened: OpenedState, options: FillingOptions) -> None:
    if (options.max_lag is None) != (options.function is None):
        raise SettingsError("--max-lag SECONDS and --function NAME belong together: give both, or none.")
    if options.function is not None and opened.local is not None:
        raise SettingsError("--max-lag looks at a function's lag, and no function works on a local state.")


def _lag(opened: OpenedState, options: FillingOptions) -> Callable[[], str]:
    """Why the run has to wait for the live stream, if that was asked for."""
    if options.max_lag is None or options.function is None:
        return lambda: ""
    return StreamLag(options.function, options.max_lag, iterator_age(options.function), opened.run.clock)


def metered(engine: Engine) -> Metered:
    """The units that DynamoDB says were consumed; none of a local state."""
    if isinstance(engine, OwnStream):
        return lambda: (0, 0)
    from streamfold.engines.metering import Meter

    meter = Meter(engine.client)  # type: ignore[attr-defined]  # the only other engine

    def taken() -> tuple[float, float]:
        found = meter.take()
        return found.read, found.write

    return taken


def _job(jobs: Jobs, planned: FillingPlan, options: FillingOptions) -> tuple[Job, bool]:
    """The job to go on with: one that was stopped and is the same (True), or a new one."""
    names, tables, export = planned.names, planned.tables, planned.export
    segments = options.segments or SEGMENTS[options.store.engine]
    number = segments_of(tables, segments, export)
    for known in jobs.all():
        same = (known.what, known.handlers) == (options.what, tuple(names))
        if same and not known.ended and known.segments == number:
            click.echo(f"Job {known.id} goes on where it was.", err=True)
            return known, True
    job = new_job(
        jobs,
        options.what,
        names,
        tables,
        segments,
        export,
        by=getpass.getuser(),
        read_units=options.read_units,
        write_units=options.write_units,
    )
    return job, False
