"""``streamfold backfill`` and ``streamfold rebuild`` derive rows from all items, beside the live stream."""

import getpass
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from streamfold.batch.process import check_application
from streamfold.cli import repair, session, shell
from streamfold.cli.jobs import followed_chains, handlers_text, keys_text, note_failed, with_fan_outs
from streamfold.cli.output import Note, Printed, Report, counted, note, progress_bar
from streamfold.cli.session import Session
from streamfold.cli.work import LAG_RULE, joined, lag_of
from streamfold.derivations import names_with
from streamfold.derivations.derivation import audits
from streamfold.engines.capacity import PRICE_READ, PRICE_WRITE, dollars
from streamfold.errors import SettingsError
from streamfold.jobs.job import Job, Jobs, run_here
from streamfold.keys.table import Table
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.lifecycle.backfill import (
    EXPORT,
    JOB,
    REBUILD,
    RUNNER,
    SAMPLE_ITEMS,
    SHARING,
    BackfillProgress,
    BackfillRun,
    Estimate,
    InitialHistoryPages,
    KeySource,
    RunHooks,
    ShowProgress,
    TableSize,
    end_job,
    estimate,
    job_options,
    job_segments,
    location_in_s3,
    new_job,
    segments_of,
)
from streamfold.lifecycle.exports import Export, LoadedExport, load, moment_text
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import RowsReconciled, reconcile_rows
from streamfold.lifecycle.sources import PAGE_ITEMS, check_deployment_delay, check_named, source_tables, wanted_routes
from streamfold.routes.application import unknown_handler
from streamfold.routes.route import Route

if TYPE_CHECKING:
    from streamfold.cli.spark import SparkRun
    from streamfold.commit.outcome import Failure

HERE, SPARK, ELSEWHERE = RUNNERS = ("processes", "spark", "elsewhere")
"""Where a run is done: in processes of this machine, on a Spark cluster, or by any caller of ``work``."""
BACKFILL, INITIAL_HISTORY = "backfill", "backfill --opening"
PROCESSES_MAX = 4
"""Processes of a run by default. One folds some thousands of items a second."""
ITEMS_A_PROCESS = 50_000
"""Items that are worth the start of one more process."""
SHARING_ELSEWHERE = 16
"""Functions or machines that share the rates of a run elsewhere, by default."""
TABLES, THE_EXPORT = "the tables", "the export"
COUNTS = ("read", "written", "equal", "uncompared", "failed")
"""The counts of a job, by word."""


OPTIONS = (
    shell.STATE_OPTIONS,
    shell.SEGMENTS,
    shell.number(
        "--page",
        "Items at once; more of them share more writes of their rows.",
        1,
        100_000,
        variable="page_items",
        default=PAGE_ITEMS,
    ),
    shell.READ_UNITS,
    shell.number("--write-units", "Write units a second. Default: no limit.", 0, default=0, show_default=False),
    shell.PRICES,
    shell.SPARK_MASTER,
    shell.choice(
        "--runner",
        RUNNERS,
        "Where the run is done: in processes of this machine, or on Spark, which groups the items of an export by row. "
        "elsewhere only creates the job, for streamfold work or a state machine.",
        default=HERE,
    ),
    shell.number(
        "--processes",
        "Processes of this machine; they share the rates. Default: one for every 50,000 items, 4 at most; a local "
        "state has one.",
        1,
        64,
    ),
    shell.flag("--offline", "No stream delivers to the handlers now: do not wait for older code to end."),
    shell.LAG,
    shell.file("--failed", "Write the keys of failed items to this file, for repair --keys."),
    shell.value("--export", "MANIFEST", "Take keys from an export: its manifest-files.json, a file or s3://."),
    shell.flag("--load", "With --export, first put its items into the local state; create the state if needed."),
    shell.flag("--dry-run", "Print the estimate, and write nothing."),
    shell.yes_flag(),
    shell.json_flag("Print one JSON object with the counts."),
)
LOAD_WHY = "--load puts the items of an export into a local state: also give --export MANIFEST."
SPARK_WHY = (
    "--runner spark takes the items of an export, and works on DynamoDB: expected --export MANIFEST and --engine "
    "dynamodb."
)
RULES = (
    shell.belongs("--load", "--export", why=LOAD_WHY),
    shell.belongs("--load", "--engine embedded", why=LOAD_WHY),
    LAG_RULE,
    shell.belongs("--runner spark", "--export", why=SPARK_WHY),
    shell.belongs("--runner spark", "--engine dynamodb", why=SPARK_WHY),
    shell.refuses(
        *("--runner elsewhere", "--failed", "--max-lag"),
        why="--runner elsewhere only creates the job: give --failed and --max-lag to each streamfold work. A state "
        "machine has neither; streamfold jobs --pause stops it while the stream lags.",
    ),
    shell.Rule(
        lambda given, values: (
            f"--processes {values['processes']}: a local state is one file, which one process writes. Leave it out."
            if {"--runner processes", "--engine embedded"} <= given and values["processes"] not in (None, 1)
            else None
        )
    ),
    shell.belongs("--spark-master", "--runner spark"),
    shell.refuses("--runner spark", "--processes", why="--runner spark has its own processes: leave {other} out."),
)


@shell.command(
    "backfill",
    "Derive rows from the items that are older than their handler.",
    shell.HANDLERS,
    shell.flag("--opening", "For the named audits: write a first row for each item without a history."),
    OPTIONS,
    shell.refuses(
        *("--opening", "--export", "--load", "--max-lag", "--function"),
        why="--opening reads the tables: leave --export, --load and --max-lag out.",
    ),
    shell.refuses(
        *("--opening", "--runner spark", "--runner elsewhere", "--processes", "--spark-master"),
        why="--opening runs in this process: leave --runner, --processes and --spark-master out.",
    ),
    RULES,
    checks=True,
    outside=True,
    kinds=names_with("reconciles"),
)
def backfill(opened: Session) -> Report:
    """Derive rows from all items of the handlers' tables, beside the live stream. The stream itself has no record of
    the items that are older than their handler.

    Without HANDLER, all handlers are filled whose rows follow from items, which are those of kind KINDS. Handlers that
    are switched off or of another group are left out. Each page reads the ledger, then the items, and writes the
    difference unless one of them has changed since. The stream may go on meanwhile. A second run changes nothing. To
    continue a run that was stopped, give the same command again.

    A backfill may begin 15 minutes after a function first named the handler (STREAMFOLD_GATE_SECONDS). Until then,
    older code may still take records without the handler.

    \b
    Exit codes:
      0  rows were derived from every item
      1  a handler raised on some items, which are printed
      2  the command did not run, or not to its end

    \b
    Examples:
      streamfold backfill --state shop.db
      streamfold backfill order_history --opening --state shop.db
      streamfold backfill daily_sales --engine dynamodb --table main=orders-prod --write-units 1000
    """
    repair.check_failed_file(opened.given.failed)
    return _opened_histories(opened) if opened.given.opening else _report(opened, BACKFILL)


@shell.command(
    "rebuild",
    "Derive rows again from all items, after the code of their handler changed.",
    click.argument("handlers", nargs=-1, required=True, metavar="HANDLER..."),
    OPTIONS,
    RULES,
    checks=True,
    outside=True,
)
def rebuild(opened: Session) -> Report:
    """Derive rows again from all items, after the code of their handlers changed.

    Rows change in place: each item changes in one transaction, so a sum is never empty. If readers may not see a
    mixture of old and new rows, declare a handler with another name and target, and fill it by backfill. Each item is
    written even if nothing differs. A write that older code planned before is then refused.

    At the end all rows are compared with the sum of their items, as verify --rows does, and corrected. A row that
    somebody removed is complete again.

    \b
    Exit codes:
      0  rows were derived from every item
      1  a handler raised on some items, or some rows could not be corrected; both are printed
      2  the command did not run, or not to its end

    \b
    Example:
      streamfold rebuild daily_sales --engine dynamodb --table main=orders-prod
    """
    repair.check_failed_file(opened.given.failed)
    return _report(opened, REBUILD)


def filled_again(opened: Session) -> Report:
    """Fills all handlers of a state in which no function works yet, for a command without the options of a backfill."""
    opened.given.put(
        **dict.fromkeys(("export", "failed", "function", "max_lag", "processes", "spark_master")),
        handlers=(),
        load=False,
        offline=True,
        page_items=PAGE_ITEMS,
        price_read=PRICE_READ,
        price_write=PRICE_WRITE,
        runner=HERE,
        write_units=0,
    )
    opened.__dict__.pop("manifest", None)  # it was read before the handlers were named
    return _report(opened, BACKFILL)


class RunPlan(NamedTuple):
    """A run that may begin: ``BACKFILL`` or ``REBUILD``, its handlers, and its tables or export."""

    what: str
    names: Sequence[str]
    tables: Sequence[Table]
    export: Export | None


def _report(opened: Session, what: str) -> Report:
    """Runs a backfill or rebuild after its estimate."""
    given, state = opened.given, opened.store.state or session.DEFAULT_STATE
    if given.dry_run and given.export and opened.store.is_local and (given.load or not session.has_state(state)):
        return _export_estimate(opened, what, state)
    with _new_state(opened, state):
        plan = _planned(opened, what)
        sizes = [_size_of(opened, table) for table in plan.tables]
        dry = Pages(opened.runtime, plan.names, always=what == REBUILD, dry_run=True)
        expected = estimate(dry, plan.tables, sizes, Random(0), given.page_items)  # noqa: S311 - a sample
        _note_estimate(opened, plan, expected, None if opened.local else TABLES)
        if given.dry_run:
            return Report()
        opened.confirm_writes()
        opened.confirm_documents()
        return _carried_out(opened, plan, expected)


@contextmanager
def _new_state(opened: Session, state: str) -> Iterator[None]:
    """Removes a state that ``--load`` created and could not fill: later commands would take it for an empty table."""
    opened.must_exist = not opened.given.load
    is_new = opened.given.load and not session.has_state(state)
    try:
        yield
    except SettingsError:
        if is_new and session.has_state(state):
            opened.stack.close()
            session.remove_state(state)
        raise


def _export_estimate(opened: Session, what: str, state: str) -> Report:
    """The estimate of a run over the items of an export, before anything is deployed and without a state."""
    given, app, settings = opened.given, opened.app, opened.settings
    if not given.load:
        note(
            f"There is no state in {state}: this estimates from the export alone. --load creates a state of its items."
        )
    routes = wanted_routes(app, dict.fromkeys(given.handlers))
    if not routes:
        raise SettingsError(f"There is no handler for {what}: all follow from changes.")
    names, tables = [route.name for route in routes], source_tables(routes)
    export = session.export_of(settings, tables, given.export)
    engine = session.open_memory(app, settings)
    engine.put_sources((line.key, line.image, BEFORE_ALL) for line in export.sample(SAMPLE_ITEMS) if line.image)
    if looking := [route for route in routes if route.reads_others]:
        engine.source_tables.update(key.table.name for route in looking for key in route.reads)
        note(
            f"Items that {handlers_text([route.name for route in looking])} looks up or gathers are looked for in a "
            "sample of the export only: most of their rows are missing from this estimate. Without --export it reads "
            "them all."
        )
    dry = Pages(opened.runtime_on(engine), names, always=what == REBUILD, dry_run=True)
    items = [json.dumps(item, default=str) for item in engine.items(tables[0])]
    average = sum(map(len, items)) // max(len(items), 1)
    size = TableSize(export.items or len(items), export.billed_bytes or average * (export.items or len(items)))
    expected = estimate(dry, tables, [size], Random(0), given.page_items)  # noqa: S311 - a sample
    _note_estimate(opened, RunPlan(what, names, tables, export), expected, THE_EXPORT)
    return Report()


def _planned(opened: Session, what: str) -> RunPlan:
    """The run that is asked for. Raises ``SettingsError`` if no handler remains, or the run may not begin yet."""
    # A dry run writes nothing, and is often made before the first deployment: no function has named a handler then.
    given, runtime, local = opened.given, opened.runtime, opened.local
    offline = given.offline or given.dry_run or local is not None
    routes = session.chosen_routes(opened, given.handlers, offline=offline)
    for route in routes if given.dry_run and local is None else ():
        if route.name not in opened.manifest.handlers:
            note(f"Handler {route.name!r} was not named by any function yet: deploy it before the run.")
    if not routes:
        raise SettingsError(f"There is no handler for {what}: all are left out, or follow from changes.")
    check_deployment_delay(opened.manifest, routes, runtime.settings, runtime.clock(), offline=offline)
    if local is not None and not given.dry_run:
        check_application(runtime)  # no function names its handlers
    tables, export = source_tables(routes), None
    if given.export is not None:
        export = session.export_of(opened.settings, tables, given.export)
    if export is not None and given.load and (state := opened.engine.durable) is not None:
        _note_loaded(load(opened.app, state, export))
        given.put(export=None)  # the whole state is visited: items that the export does not have may be gone
        export = None
    return RunPlan(what, [route.name for route in routes], tables, export)


def _note_loaded(loaded: LoadedExport) -> None:
    """Prints what an export changed in the state."""
    older = f"; {counted(loaded.older, 'item')} of the state are newer and stay" if loaded.older else ""
    removed = f", {counted(loaded.removed, 'item')} removed" if loaded.removed else ""
    note(f"loaded {counted(loaded.newer, 'item')}{removed}{older}")
    if loaded.gap is not None:
        before, begin = loaded.gap
        since = f"after {moment_text(before)}" if before else "before the first incremental one"
        note(
            f"Warning: no export of this state shows what changed {since}, up to {moment_text(begin)}: items that "
            "changed then may be missing or old. Load a full export, or the incremental ones in between."
        )


def _size_of(opened: Session, table: Table) -> TableSize:
    """The size of a table: counted in a local state, on DynamoDB as it reports it, some hours old."""
    if opened.local is not None:
        sizes = [len(json.dumps(item, default=str)) for item in opened.engine.items(table)]
        return TableSize(len(sizes), sum(sizes))
    from streamfold.cli.dynamodb import described

    return TableSize(*described(opened.engine, table))


def _note_estimate(opened: Session, plan: RunPlan, expected: Estimate, counted_by: str | None) -> None:
    """Prints the expected work of a run, and on DynamoDB its cost.

    counted_by: the source of the number of items; None for a local state, which costs nothing.
    """
    given = opened.given
    if given.json_output:
        return
    how = "counted" if counted_by is None else f"as {counted_by} {'says' if counted_by == THE_EXPORT else 'say'}"
    how += ", some hours old" if counted_by == TABLES else ""
    note(f"{plan.what} of {handlers_text(plan.names)} over {', '.join(table.name for table in plan.tables)}")
    note(
        f"  items        {expected.items:,} ({how}); of {expected.sampled:,} looked at, handlers read "
        f"{expected.fitting:.0%}"
    )
    note(f"  to write     {expected.writing:.0%} of what they read")
    if counted_by is None:
        return
    cost = dollars(expected.write_units, expected.read_units, given.price_write, given.price_read)
    note(f"  write units  {expected.write_units:,}")
    note(f"  read units   {expected.read_units:,}")
    note(f"  cost         ${cost:,.2f} on demand, at ${given.price_write} and ${given.price_read} a million")
    seconds = expected.seconds(given.read_units, given.write_units)
    if seconds is not None:
        note(f"  time         {seconds // 3600} h {seconds % 3600 // 60} min at the given rates")


@contextmanager
def _bar(items: int, *, shown: bool) -> Iterator[ShowProgress]:
    """Gives a function that shows the progress of a run: a bar on a terminal, else the reason why the run waits."""
    with progress_bar("items", items or None, shown=shown) as show:
        waited = ""

        def advance(progress: BackfillProgress) -> None:
            nonlocal waited
            report = progress.report
            text = f"{progress.read:,} read, {report.written:,} written, {len(report.failed):,} failed"
            if show:
                show(min(progress.read, items), progress.waits or text)
            elif progress.waits and not waited:
                note(f"Waiting: {progress.waits}.")
            waited = progress.waits

        yield advance


def _carried_out(opened: Session, plan: RunPlan, expected: Estimate) -> Report:
    app, runtime, given = opened.app, opened.runtime, opened.given
    spark = _spark_run(opened, plan)
    job, goes_on = _job(opened, plan, spark.keys() if spark else plan.export)
    if given.runner == ELSEWHERE:
        return _begun(job, plan.export, given.processes)
    failures: list[Failure] = []
    with (
        repair.failed_keys(app, given.failed, goes_on=goes_on) as keep,
        _bar(expected.items, shown=not given.json_output) as advance,
    ):
        lag = lag_of(given.max_lag, given.function, runtime.clock)
        hooks = RunHooks(with_fan_outs(runtime, advance, failures), keep, lag)
        progress = _carry(opened, job, hooks, spark, expected)
    rows = reconcile_rows(runtime, plan.names) if plan.what == REBUILD else None
    job = end_job(runtime, job.id)
    note_failed(failures)
    chains = len(followed_chains(opened)) + len(failures)
    report = _run_report(opened, job, progress, chains, rows=rows)
    lacking = job.counts.get("failed", 0) - progress.failed
    if given.failed is not None and lacking > 0 and not goes_on:
        note(
            f"The keys of {lacking:,} failed items are not in {given.failed}: a process ended before it printed them. "
            "streamfold verify finds them."
        )
    return report


def _spark_run(opened: Session, plan: RunPlan) -> "SparkRun | None":
    """The run on Spark; None if another runner does it."""
    given, export = opened.given, plan.export
    if given.runner != SPARK or export is None:
        return None
    from streamfold.cli.spark import AppLocation, SparkRun

    location, lag = AppLocation.here(given.application, given.tables), (given.max_lag, given.function)
    table, names = plan.tables[0].name, plan.names
    return SparkRun(location, opened.store, export.location, export.segments, table, names, given.spark_master, lag)


def _job(opened: Session, plan: RunPlan, keys: KeySource | None) -> tuple[Job, bool]:
    """The job to go on with: a stopped job of the same run (True), or a new one.

    keys: the source of its keys, if not its tables. Spark's partitions are new each time.
    """
    given, jobs = opened.given, Jobs.of(opened.runtime)
    segments, spark = given.segments or (1 if opened.store.is_local else 16), given.runner == SPARK
    asked = plan.what, tuple(plan.names), segments_of(plan.tables, segments, keys), given.export
    for known in jobs.all() if not spark else ():
        found = (known.what, known.handlers, known.segments, known.options.get(EXPORT))
        if found == asked and not known.ended and RUNNER not in known.options:
            note(
                f"Job {known.id} goes on where it was. Its earlier rows were derived by the code of that time. If the "
                f"code has changed, start over: streamfold jobs --end {known.id}, and the same command again."
            )
            return jobs.gone_on(known, given.read_units, given.write_units), True
    options = job_options(given.page_items, None, SPARK) if spark else job_options(given.page_items, given.export)
    return new_job(
        jobs,
        plan.what,
        plan.names,
        plan.tables,
        segments,
        keys,
        by=getpass.getuser(),
        read_units=given.read_units,
        write_units=given.write_units,
        options=options,
    ), False


def _begun(job: Job, export: Export | None, processes: int | None) -> Report:
    """The input of a state machine: the job, how many share its rates, and the segments but for files."""
    segments = list(range(export.segments if export else 0, job.segments))
    found = {JOB: job.id, SHARING: processes or SHARING_ELSEWHERE, "parts": segments}
    text = json.dumps(found if export is None else {**found, **location_in_s3(export.location)})
    return Report([text], text)


def _carry(
    opened: Session, job: Job, hooks: RunHooks, spark: "SparkRun | None", expected: Estimate
) -> BackfillProgress:
    """Runs all remaining segments of a job. Raises any error of reading or writing."""
    given: dict[str, Any] = {"export": spark.keys()} if spark else {}
    spent = session.metered(opened.engine)
    run = job_segments(opened.runtime, job, metered=spent, hooks=hooks, **given)
    most = min(PROCESSES_MAX, os.cpu_count() or 1, 1 + expected.items // ITEMS_A_PROCESS)
    processes = 1 if opened.store.is_local else max(1, opened.given.processes or most)
    if spark:
        spark.carry(opened.app, job, run)
    elif processes == 1:
        run_here(run)
    else:
        joined(opened.app, run, opened.given, processes)
    return run.progress


def _run_report(
    opened: Session,
    job: Job,
    progress: BackfillProgress,
    chains: int,
    *,
    orphans_scanned: bool = True,
    rows: RowsReconciled | None = None,
) -> Report:
    """The counts of a run, and the first of its failed items.

    ``orphans_scanned``: the run read the state too. ``rows``: the rows corrected at its end; None: not compared.
    """
    app, given = opened.app, opened.given
    counts = {word: job.counts.get(word, 0) for word in COUNTS}

    def lines() -> Iterator[Printed]:
        uncompared, exported = counts["uncompared"], given.export is not None
        keys = keys_text(counts["read"], exported=exported, orphans_scanned=orphans_scanned)
        again = f"{counted(uncompared, 'contribution')} not comparable, derived again, " if uncompared else ""
        written = counted(counts["written"] - uncompared, "contribution")
        yield (
            f"{job.what.partition(' ')[0]}: {keys}, {written} written, {again}{counts['equal']:,} right before, "
            f"{counts['failed']:,} failed (job {job.id})."
        )
        if progress.unkeyed:
            yield Note(f"{progress.unkeyed:,} ledger items with very long keys were skipped.")
        yield from repair.failed_lines(progress.report.failed, counts["failed"], "--failed FILE keeps their keys")
        if rows is not None:
            yield from repair.reconciled_lines(rows)

    def found() -> dict[str, Any]:
        failures = [repair.failed_object(app, each) for each in progress.report.failed]
        report = {"job": job.id, **counts, "failures": failures, "chains_failed": chains}
        return {**report, **repair.reconciled_object(app, rows)}

    return Report(lines(), found, bool(counts["failed"] or chains or (rows and rows.corrected.remaining)))


def _opened_histories(opened: Session) -> Report:
    """``--opening``: items that are older than their audit get a first row."""
    app, runtime, given = opened.app, opened.runtime, opened.given
    routes = _audits(opened)
    offline = given.offline or opened.local is not None
    check_named(opened.manifest, routes, offline=offline)
    check_deployment_delay(opened.manifest, routes, runtime.settings, runtime.clock(), offline=offline)
    tables = source_tables(routes)
    items = sum(_size_of(opened, table).items for table in tables)
    note(f"{INITIAL_HISTORY} of {', '.join(route.name for route in routes)} over {items:,} items")
    if given.dry_run:
        return Report()
    opened.confirm_writes()
    jobs = Jobs.of(runtime)
    job, goes_on = _initial_history_job(opened, jobs, routes)
    pages, spent = InitialHistoryPages(runtime, routes), session.metered(runtime.store)
    with (
        repair.failed_keys(app, given.failed, goes_on=goes_on) as keep,
        _bar(items, shown=not given.json_output) as advance,
    ):
        hooks, size = RunHooks(advance, keep), given.page_items
        run = BackfillRun(jobs, job, pages, tables, page_items=size, metered=spent, hooks=hooks)
        progress = run.run()
    return _run_report(opened, run.job, progress, len(followed_chains(opened)), orphans_scanned=False)


def _audits(opened: Session) -> list[Route]:
    """The named audits. Raises ``SettingsError`` for another handler, or without any."""
    known = {route.name: route for route in audits(opened.app)}
    if not opened.given.handlers:
        raise SettingsError(f"--opening needs the names of audits: {', '.join(known) or 'there is none here'}.")
    for name in opened.given.handlers:
        if name not in known:
            raise unknown_handler("--opening", name, sorted(known))
    return [known[name] for name in dict.fromkeys(opened.given.handlers)]


def _initial_history_job(opened: Session, jobs: Jobs, routes: list[Route]) -> tuple[Job, bool]:
    """The job to go on with: a stopped one (True), or a new one."""
    given, names, tables = opened.given, tuple(route.name for route in routes), source_tables(routes)
    segments = (given.segments or (1 if opened.store.is_local else 16)) * len(tables)
    rates = {"read_units": given.read_units, "write_units": given.write_units}
    for known in jobs.all():
        if (known.what, known.handlers, known.segments) == (INITIAL_HISTORY, names, segments) and not known.ended:
            note(f"Job {known.id} goes on where it was.")
            return jobs.gone_on(known, **rates), True
    table = ",".join(each.name for each in tables)
    return jobs.create(INITIAL_HISTORY, names, table, segments, by=getpass.getuser(), **rates), False
