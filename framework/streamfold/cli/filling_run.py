"""Runs over all items as commands: checked, estimated, asked for, carried out and told."""

import getpass
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from streamfold.app import App
from streamfold.batch.chains import run_chains
from streamfold.batch.manifest import read_manifest
from streamfold.batch.process import check_application
from streamfold.cli.engines import Store, open_store
from streamfold.cli.fan_outs import follow_fan_outs
from streamfold.cli.jobs import handlers_text
from streamfold.cli.on_spark import AppPlace
from streamfold.cli.spark_filling import SparkRun
from streamfold.cli.work_lines import error_text
from streamfold.cli.workers import joined
from streamfold.commit.failure import Failure
from streamfold.engines import Engine, OwnStream
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError, plain
from streamfold.jobs.job import Job, Jobs
from streamfold.jobs.parts import run_here
from streamfold.keys.table import Table
from streamfold.ledger.item import BEFORE_ALL
from streamfold.lifecycle.checks import check_gate, source_tables, wanted_routes
from streamfold.lifecycle.estimate import Estimate, TableSize, estimate
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.filling import FillingProgress, KeySource, Metered, Tell, new_job, segments_of
from streamfold.lifecycle.job_parts import EXPORT, RUNNER, end_job, job_options, job_parts
from streamfold.lifecycle.page import ItemFailed, Pages
from streamfold.lifecycle.state_machine import JOB, SHARING, place_in_s3
from streamfold.run import Run
from streamfold.settings import Settings

REPORTED = 1
SEGMENTS = {"embedded": 1, "dynamodb": 16}
"""Segments of a table, by engine: what a kill repeats is a page, whatever they are."""
FAILED_SHOWN = 20
PROCESSES_MAX = 4
"""Processes of a run, if not given: one folds some thousands of items a second."""
ITEMS_A_PROCESS = 50_000
"""Items for which one more process is worth its start."""
SHARING_ELSEWHERE = 16
"""Functions or machines that share the rates of a run elsewhere, if not given."""
HERE, SPARK, ELSEWHERE = "processes", "spark", "elsewhere"
RUNNERS = (HERE, SPARK, ELSEWHERE)
"""Who carries a run: processes of this machine, a Spark cluster, or whoever is called with its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillingOptions:
    """What the command line said."""

    what: str
    handlers: tuple[str, ...]
    store: Store
    tables: tuple[str, ...]
    segments: int | None
    page_items: int
    read_units: int
    write_units: int
    price_read: float
    price_write: float
    offline: bool
    export: str | None
    load: bool
    failed: str | None
    dry_run: bool
    yes: bool
    json_output: bool
    runner: str
    processes: int | None
    spark_master: str | None
    application: str


def carried_out(app: App, settings: Settings, options: FillingOptions) -> int:
    routes = wanted_routes(app, options.handlers)
    names, tables = [route.name for route in routes], source_tables(routes)
    is_local = options.store.engine == "embedded"
    with closing(open_store(app, settings, options.store)) as engine:
        run = Run(settings, outside=True, warn=lambda text: click.echo(f"Warning: {plain(text)}", err=True))
        offline = options.offline or is_local
        check_gate(read_manifest(app.name, engine), routes, settings, run.clock(), offline=offline)
        check_application(app, engine, run, write=is_local and not options.dry_run)
        export = _export(engine, settings, tables, options, is_local=is_local)
        sizes = [_size(engine, table, is_local=is_local) for table in tables]
        dry = Pages(app, engine, run, names, always=options.what == "rebuild", dry_run=True)
        expected = estimate(dry, tables, sizes, Random(0), options.page_items)  # noqa: S311 - a sample
        _tell(expected, names, tables, options, is_local=is_local)
        if options.dry_run:
            return 0
        _confirm(options, is_local=is_local)
        return _carry_out(FillingPlan(app, engine, run, names, tables, export), expected, options)


def _export(
    engine: Engine, settings: Settings, tables: Sequence[Table], options: FillingOptions, *, is_local: bool
) -> Export | None:
    """The export that keys are taken from; its items are put into a local state where that is asked for."""
    if options.load and not (is_local and options.export):
        raise SettingsError("--load puts the items of an export into a local state: expected --export MANIFEST too.")
    if options.export is None:
        return None
    if len(tables) != 1:
        raise SettingsError(
            f"--export is of one table, and the handlers read {', '.join(table.name for table in tables)}: name the "
            "handlers of one of them."
        )
    export = open_export(options.export, tables[0], settings.real_name(tables[0].name))
    if options.load and isinstance(engine, EmbeddedEngine):
        engine.put_sources((line.key, line.image, BEFORE_ALL) for line in export.lines() if line.image)
    return export


class FillingPlan(NamedTuple):
    """A run that was asked for and may begin."""

    app: App
    engine: Engine
    run: Run
    names: Sequence[str]
    tables: Sequence[Table]
    export: Export | None


def _carry_out(planned: FillingPlan, expected: Estimate, options: FillingOptions) -> int:
    app, engine, run, names, tables, export = planned
    spark = _spark(names, tables, export, options)
    job = _job(Jobs(app.name, engine, run.clock), names, tables, spark.keys() if spark else export, options)
    if options.runner == ELSEWHERE:
        _begun(job, export, options.processes or SHARING_ELSEWHERE)
        return 0
    number = processes_of(options, expected)
    left: list[Failure] = []
    with _bar(expected, shown=not options.json_output) as tell:
        given: dict[str, Any] = {"export": spark.keys()} if spark else {}
        following = _with_fan_outs(planned, tell, left)
        parts = job_parts(app, engine, run, job, metered=metered(engine), tell=following, **given)
        if spark:
            spark.carry(app, job, parts)
        elif number == 1:
            run_here(parts)
        else:
            joined(app, parts, options.store, options.application, options.tables, number)
    progress, failed = parts.progress, parts.progress.report.failed
    job = end_job(app, engine, run, job.id, failed)
    if isinstance(engine, OwnStream):
        run_chains(app, engine, run)
    _print(job, progress, options)
    _keep(failed, options.failed)
    for failure in left:
        click.echo(f"Failed: {failure}", err=True)
    return REPORTED if failed or left or job.counts.get("failed") else 0


def _spark(
    names: Sequence[str], tables: Sequence[Table], export: Export | None, options: FillingOptions
) -> SparkRun | None:
    """The run as Spark carries it; None where somebody else does."""
    if options.runner != SPARK:
        return None
    if export is None or options.store.engine == "embedded":
        raise SettingsError(
            "--runner spark brings items of an export together by their rows, and leads them on DynamoDB: expected "
            "--export MANIFEST and --engine dynamodb."
        )
    place = AppPlace.here(options.application, options.tables)
    return SparkRun(place, options.store, export.place, export.parts, tables[0].name, names, options.spark_master)


def processes_of(options: FillingOptions, expected: Estimate) -> int:
    """How many processes carry a run. Raises ``SettingsError`` for several on one state file."""
    if options.store.engine == "embedded":
        if options.processes not in (None, 1):
            raise SettingsError(
                f"--processes {options.processes}: a local state is one file, which one process writes. Leave it out."
            )
        return 1
    wanted = options.processes or min(PROCESSES_MAX, os.cpu_count() or 1, 1 + expected.items // ITEMS_A_PROCESS)
    return max(1, wanted)


def _begun(job: Job, export: Export | None, sharing: int) -> None:
    """Prints what a state machine takes as input: the job, how many share its rates, and the parts but for files."""
    sources = export.parts if export else 0
    told = {JOB: job.id, SHARING: sharing, "parts": list(range(sources, job.segments))}
    click.echo(json.dumps(told if export is None else {**told, **place_in_s3(export.place)}))


def _with_fan_outs(planned: FillingPlan, tell: Tell, left: list[Failure]) -> Tell:
    """After each page, has the fan-outs worked on that it opened; those that fail stay open."""

    def told(progress: FillingProgress) -> None:
        tell(progress)
        left.extend(follow_fan_outs(planned.app, planned.engine, planned.run).failures[: FAILED_SHOWN - len(left)])

    return told


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


def _job(
    jobs: Jobs, names: Sequence[str], tables: Sequence[Table], export: KeySource | None, options: FillingOptions
) -> Job:
    """The job to go on with: one that was stopped and is the same, or a new one. Spark's parts are new each time."""
    segments = options.segments or SEGMENTS[options.store.engine]
    number = segments_of(tables, segments, export)
    own = job_options(options.page_items, options.export)
    if options.runner == SPARK:
        own = job_options(options.page_items, None, SPARK)
    for known in jobs.all() if options.runner != SPARK else ():
        asked = (known.what, known.handlers, known.segments, known.options.get(EXPORT))
        if asked == (options.what, tuple(names), number, options.export) and not (
            known.ended or RUNNER in known.options
        ):
            click.echo(f"Job {known.id} goes on where it was.", err=True)
            return known
    return new_job(
        jobs,
        options.what,
        names,
        tables,
        segments,
        export,
        by=getpass.getuser(),
        read_units=options.read_units,
        write_units=options.write_units,
        options=own,
    )


def _size(engine: Engine, table: Table, *, is_local: bool) -> TableSize:
    """The size of a table: of a local state counted, of DynamoDB as it says, some hours old."""
    if is_local:
        sizes = [len(json.dumps(item, default=str)) for item in engine.items(table)]
        return TableSize(len(sizes), sum(sizes))
    from streamfold.cli.dynamodb import described

    items, size = described(engine, table)
    return TableSize(items, size)


def _tell(
    expected: Estimate, names: Sequence[str], tables: Sequence[Table], options: FillingOptions, *, is_local: bool
) -> None:
    if options.json_output:
        return
    _say(f"{options.what} of {handlers_text(names)} over {', '.join(table.name for table in tables)}")
    counted = "counted" if is_local else "as the tables say, some hours old"
    _say(
        f"  items        {expected.items:,} ({counted}); a handler reads {expected.fitting:.0%} of {expected.sampled:,}"
    )
    _say(f"  to write     {expected.writing:.0%} of what was looked at")
    if not is_local:
        dollars = expected.dollars(options.price_write, options.price_read)
        _say(f"  write units  {expected.write_units:,}")
        _say(f"  read units   {expected.read_units:,}")
        _say(f"  cost         ${dollars:,.2f} on demand, at ${options.price_write} and ${options.price_read} a million")
        seconds = expected.seconds(options.read_units, options.write_units)
        if seconds is not None:
            _say(f"  time         {seconds // 3600} h {seconds % 3600 // 60} min at the given rates")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _confirm(options: FillingOptions, *, is_local: bool) -> None:
    if is_local or options.yes or options.store.on_loopback:
        return
    if not sys.stdin.isatty():
        raise SettingsError("Nobody can be asked for confirmation here: give --yes to write.")
    click.confirm("Go on?", abort=True, err=True)


@contextmanager
def _bar(expected: Estimate, *, shown: bool) -> Iterator[Callable[[FillingProgress], None]]:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("items", total=expected.items or None)

        def tell(progress: FillingProgress) -> None:
            report = progress.report
            text = f"{progress.read:,} read, {report.written:,} written, {len(report.failed):,} failed"
            bar.update(task, completed=min(progress.read, expected.items), description=text)

        yield tell


def _print(job: Job, progress: FillingProgress, options: FillingOptions) -> None:
    counts = {name: job.counts.get(name, 0) for name in ("read", "written", "equal", "failed")}
    if options.json_output:
        failed = [_failed(each) for each in progress.report.failed]
        click.echo(json.dumps({"job": job.id, **counts, "failures": failed}, ensure_ascii=False))
        return
    click.echo(
        f"{options.what}: {counts['read']:,} keys read, {counts['written']:,} parts written, "
        f"{counts['equal']:,} were right, {counts['failed']:,} failed (job {job.id})."
    )
    if progress.unkeyed:
        click.echo(f"{progress.unkeyed:,} ledger items with very long keys were passed over.", err=True)
    for each in progress.report.failed[:FAILED_SHOWN]:
        key = " / ".join(str(value) for value in each.item[1:] if value is not None)
        click.echo(f"failed: {key}, {each.handler}: {error_text(each.error)}", err=True)


def _failed(each: ItemFailed) -> dict[str, Any]:
    return {
        "item": list(map(str, each.item)),
        "handler": each.handler,
        "error": error_text(each.error),
    }


def _keep(failed: Sequence[ItemFailed], path: str | None) -> None:
    if path is not None:
        keys = dict.fromkeys(each.item for each in failed)
        lines = (json.dumps(list(key), default=str, ensure_ascii=False) + "\n" for key in keys)
        Path(path).write_text("".join(lines), encoding="utf-8")
