"""Runs over all items as commands: checked, estimated, asked for, carried out and told."""

import getpass
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from streamfold.batch.process import check_application
from streamfold.cli.engines import (
    DEFAULT_STATE,
    REPORTED,
    application_and_settings,
    confirm_writes,
    make_runtime,
    open_memory,
)
from streamfold.cli.fan_outs import tell_failed, with_fan_outs
from streamfold.cli.filling_options import ELSEWHERE, SPARK, FillingOptions
from streamfold.cli.filling_output import EXPORT as COUNTED_BY_EXPORT
from streamfold.cli.filling_output import TABLES, filling_bar, print_estimate, print_filled, print_unkept, tell_gone_on
from streamfold.cli.filling_runners import carry, check_runner, processes_of, spark_run, tell_begun
from streamfold.cli.opened import OpenedState, chosen_routes, export_of, followed_chains, only_table, opened_state
from streamfold.cli.output import echo
from streamfold.cli.repaired import check_failed_file, failed_keys
from streamfold.cli.state_files import has_state, remove_state
from streamfold.cli.stream_lag import check_lag, lag_of
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError
from streamfold.jobs.job import Job, Jobs
from streamfold.keys.table import Table
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.lifecycle.backfill import (
    EXPORT,
    REBUILD,
    RUNNER,
    SAMPLE_ITEMS,
    Estimate,
    KeySource,
    RunHooks,
    TableSize,
    end_job,
    estimate,
    job_options,
    new_job,
    segments_of,
)
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.other_rows import LOADED_ITEMS
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import lead_rows
from streamfold.lifecycle.sources import check_gate, source_tables, wanted_routes

if TYPE_CHECKING:
    from streamfold.commit.outcome import Failure

SEGMENTS = {"embedded": 1, "dynamodb": 16}
"""Segments of a table, by engine: what a kill repeats is a page, whatever they are."""


class FillingPlan(NamedTuple):
    """A run that may begin: on what, for which handlers, over which tables or export."""

    opened: OpenedState
    names: Sequence[str]
    tables: Sequence[Table]
    export: Export | None


def run_filling(options: FillingOptions) -> int:
    """Carries out a backfill or rebuild; returns the exit code."""
    check_failed_file(options.failed)
    _check_load(options)
    if options.dry_run and options.export and options.store.engine == "embedded":
        state = options.store.state or DEFAULT_STATE
        if options.load or not has_state(state):
            return _estimate_export(options, options.export, state)
    with (
        _new_state(options),
        opened_state(options.application, options.tables, options.store, must_exist=not options.load) as opened,
    ):
        planned = _planned(opened, options)
        expected = _estimated(planned, options)
        if not options.json_output:
            print_estimate(
                expected, planned.names, planned.tables, options, counted_by=None if opened.local else TABLES
            )
        if options.dry_run:
            return 0
        confirm_writes(opened.engine, opened.store, yes=options.yes)
        return _carry_out(planned, expected, options)


def _check_load(options: FillingOptions) -> None:
    if options.load and not (options.store.engine == "embedded" and options.export):
        raise SettingsError("--load puts the items of an export into a local state: expected --export MANIFEST too.")


@contextmanager
def _new_state(options: FillingOptions) -> Iterator[None]:
    """Removes a state that ``--load`` made and could not fill: later commands would take it for one without items."""
    state = options.store.state or DEFAULT_STATE
    is_new = options.load and not has_state(state)
    try:
        yield
    except SettingsError:
        if is_new and has_state(state):
            remove_state(state)
        raise


def _estimate_export(options: FillingOptions, place: str, state: str) -> int:
    """Prints what a run over the items of an export would do and cost; nothing is deployed, and no state is there."""
    if not options.load:
        echo(
            f"There is no state in {state}: this estimates from the export alone. --load makes a state of its items.",
            err=True,
        )
    app, settings = application_and_settings(options.application, options.tables)
    routes = wanted_routes(app, dict.fromkeys(options.handlers))
    if not routes:
        raise SettingsError(f"There is no handler for {options.what}: all follow from changes.")
    names, tables = [route.name for route in routes], source_tables(routes)
    export = open_export(place, only_table(tables), settings.real_name(tables[0].name))
    engine = open_memory(app, settings)
    engine.put_sources((line.key, line.image, BEFORE_ALL) for line in export.sample(SAMPLE_ITEMS) if line.image)
    dry = Pages(
        make_runtime(app, engine, options.store, settings), names, always=options.what == "rebuild", dry_run=True
    )
    items = [json.dumps(item, default=str) for item in engine.items(tables[0])]
    average = sum(map(len, items)) // max(len(items), 1)
    size = TableSize(export.items or len(items), export.billed_bytes or average * (export.items or len(items)))
    expected = estimate(dry, tables, [size], Random(0), options.page_items)  # noqa: S311 - a sample
    if not options.json_output:
        print_estimate(expected, names, tables, options, counted_by=COUNTED_BY_EXPORT)
    return 0


def _planned(opened: OpenedState, options: FillingOptions) -> FillingPlan:
    """What is to be filled. Raises ``SettingsError`` where nothing is, or it may not begin yet."""
    check_lag(options.max_lag, options.function, is_local=opened.local is not None)
    check_runner(options, is_local=opened.local is not None)
    # A dry run writes nothing: whoever estimates before deploying has no function that could have named a handler.
    runtime, offline = opened.runtime, options.offline or options.dry_run or opened.local is not None
    routes = chosen_routes(opened, options.handlers, offline=offline)
    if options.dry_run and opened.local is None:
        for route in routes:
            if route.name not in opened.manifest.handlers:
                echo(f"Handler {route.name!r} was not named by any function yet: deploy it before the run.", err=True)
    if not routes:
        raise SettingsError(f"There is no handler for {options.what}: all are left out, or follow from changes.")
    check_gate(opened.manifest, routes, runtime.settings, runtime.clock(), offline=offline)
    if opened.local is not None and not options.dry_run:
        check_application(runtime)  # no function names its handlers
    tables = source_tables(routes)
    return FillingPlan(opened, [route.name for route in routes], tables, _export(opened, tables, options))


def _export(opened: OpenedState, tables: Sequence[Table], options: FillingOptions) -> Export | None:
    """The export that keys are taken from; its items are put into a local state where that is asked for."""
    if options.export is None:
        return None
    export = export_of(opened, tables, options.export)
    if options.load and isinstance(opened.engine, EmbeddedEngine):
        lines = export.lines()
        with opened.engine.batch():  # all of them or none: a part of a table would be taken for the whole
            while page := list(islice(lines, LOADED_ITEMS)):
                opened.engine.put_sources((line.key, line.image, BEFORE_ALL) for line in page if line.image)
    return export


def _estimated(planned: FillingPlan, options: FillingOptions) -> Estimate:
    opened, names, tables, _ = planned
    sizes = [size_of(opened, table) for table in tables]
    dry = Pages(opened.runtime, names, always=options.what == "rebuild", dry_run=True)
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
    opened, names, tables, export = planned
    spark = spark_run(names, tables, export, options)
    jobs = Jobs(opened.app.name, opened.engine, opened.runtime.clock)
    job, goes_on = _job(jobs, planned, spark.keys() if spark else export, options)
    if options.runner == ELSEWHERE:
        tell_begun(job, export, options.processes)
        return 0
    left: list[Failure] = []
    with (
        failed_keys(opened.app, options.failed, goes_on=goes_on) as keep,
        filling_bar(expected, shown=not options.json_output) as tell,
    ):
        following = with_fan_outs(opened.runtime, tell, left)
        lag = lag_of(options.max_lag, options.function, opened.runtime.clock)
        hooks = RunHooks(following, keep, lag)
        progress = carry(opened, job, hooks, spark, processes_of(options, expected), options)
    rows = lead_rows(opened.runtime, names) if job.what == REBUILD else None
    job = end_job(opened.runtime, job.id)
    tell_failed(left)
    chains = len(followed_chains(opened)) + len(left)
    print_filled(opened.app, job, progress, chains, options, rows=rows)
    if not goes_on:
        print_unkept(job, progress, options)
    return REPORTED if job.counts.get("failed") or chains or (rows and rows.mended.left) else 0


def _job(jobs: Jobs, planned: FillingPlan, keys: KeySource | None, options: FillingOptions) -> tuple[Job, bool]:
    """The job to go on with: one that was stopped and is the same (True), or a new one.

    keys: where its keys come from, if not from its tables. Spark's parts are new each time.
    """
    names, tables = planned.names, planned.tables
    segments = options.segments or SEGMENTS[options.store.engine]
    number = segments_of(tables, segments, keys)
    own = job_options(options.page_items, options.export)
    if options.runner == SPARK:
        own = job_options(options.page_items, None, SPARK)
    for known in jobs.all() if options.runner != SPARK else ():
        asked = (known.what, known.handlers, known.segments, known.options.get(EXPORT))
        if asked == (options.what, tuple(names), number, options.export) and not (
            known.ended or RUNNER in known.options
        ):
            tell_gone_on(known)
            return jobs.gone_on(known, options.read_units, options.write_units), True
    job = new_job(
        jobs,
        options.what,
        names,
        tables,
        segments,
        keys,
        by=getpass.getuser(),
        read_units=options.read_units,
        write_units=options.write_units,
        options=own,
    )
    return job, False
