"""``streamfold backfill`` and ``streamfold rebuild``: handlers are led to all items, beside the live stream."""

import getpass
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from streamfold.app import App
from streamfold.batch.chains import run_chains
from streamfold.batch.manifest import note_filled, read_manifest
from streamfold.batch.process import check_application
from streamfold.cli.application import application_option
from streamfold.cli.engines import Store, application_and_settings, open_store, state_option, store_options
from streamfold.engines import Engine, OwnStream
from streamfold.errors import SettingsError, plain
from streamfold.jobs.job import Job, Jobs
from streamfold.keys.table import Table
from streamfold.lifecycle.checks import check_gate, source_tables, wanted_routes
from streamfold.lifecycle.estimate import PRICE_READ, PRICE_WRITE, Estimate, TableSize, estimate
from streamfold.lifecycle.filling import PAGE_ITEMS, Filling, Progress, new_job
from streamfold.lifecycle.page import ItemFailed, Pages
from streamfold.run import Run
from streamfold.settings import Settings

REPORTED = 1
SEGMENTS = {"embedded": 1, "dynamodb": 16}
"""Segments of a table, by engine: what a kill repeats is a page, whatever they are."""
FAILED_SHOWN = 20
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class FillingOptions:
    """What the command line said."""

    what: str
    handlers: tuple[str, ...]
    store: Store
    segments: int | None
    page_items: int
    read_units: int
    write_units: int
    price_read: float
    price_write: float
    offline: bool
    failed: str | None
    dry_run: bool
    yes: bool
    json_output: bool


def filling_options(command: F) -> F:
    """The options of a run over all items."""
    for option in (
        click.option("--json", "json_output", is_flag=True, help="Print one JSON object with the counts."),
        click.option("--yes", is_flag=True, help="Do not ask before writing."),
        click.option("--dry-run", is_flag=True, help="Print the estimate, and write nothing."),
        click.option("--failed", metavar="FILE", help="Write the keys of failed items to FILE, one JSON list a line."),
        click.option("--offline", is_flag=True, help="No stream delivers to the handlers now: do not wait for one."),
        click.option("--price-write", type=float, default=PRICE_WRITE, show_default=True, help="Dollars a million."),
        click.option("--price-read", type=float, default=PRICE_READ, show_default=True, help="Dollars a million."),
        click.option("--write-units", type=click.IntRange(0), default=0, help="Write units a second; 0: no limit."),
        click.option("--read-units", type=click.IntRange(0), default=0, help="Read units a second; 0: no limit."),
        click.option(
            "--page",
            "page_items",
            type=click.IntRange(1, 100_000),
            default=PAGE_ITEMS,
            show_default=True,
            help="Items at once; more of them share more writes of their rows.",
        ),
        click.option(
            "--segments", type=click.IntRange(1, 10_000), help="Segments of a table. Default: 1; DynamoDB 16."
        ),
    ):
        command = option(command)
    return store_options(state_option(application_option(command)))


def _options(what: str, handlers: tuple[str, ...], given: dict[str, Any]) -> FillingOptions:
    store = Store(given.pop("engine"), given.pop("state"), given.pop("endpoint_url"))
    return FillingOptions(what=what, handlers=handlers, store=store, **given)


@click.command("backfill", short_help="Lead new handlers to the items that were there before them.")
@click.argument("handlers", nargs=-1, metavar="[HANDLER]...")
@filling_options
def backfill(handlers: tuple[str, ...], application: str, tables: tuple[str, ...], **given: Any) -> None:
    """Lead handlers to all items of their tables, beside the live stream: items that no record brings count too.

    Without HANDLER, all handlers whose rows follow from items: views, indexes, attributes, searches. Each page reads
    the ledger, then the items, and writes what differs on what was read. So the stream goes on meanwhile, a second run
    changes nothing, and a run that was stopped goes on where it was with the same command.

    A handler can be filled 15 minutes after a function first named it (STREAMFOLD_GATE_SECONDS): until then, older
    code may still take records without it.

    \b
    Exit codes:
      0  every item was led to its rows
      1  a handler raised on some items, which are printed
      2  it did not run, or not to its end

    \b
    Examples:
      streamfold backfill --state shop.db
      streamfold backfill daily_sales --engine dynamodb --table main=orders-prod --write-units 1000
    """
    sys.exit(_command(_options("backfill", handlers, given), application, tables))


@click.command("rebuild", short_help="Lead handlers to all items again, after their code changed.")
@click.argument("handlers", nargs=-1, required=True, metavar="HANDLER...")
@filling_options
def rebuild(handlers: tuple[str, ...], application: str, tables: tuple[str, ...], **given: Any) -> None:
    """Lead handlers to all items again, after their code changed: rows become what the new code makes of the items.

    Rows converge in place: each item moves in one transaction, so a sum is never empty. Readers who may not see a
    mixture need a handler with another name and target, filled by backfill. Every part is written, with a fence, so
    that nothing that older code planned before takes effect after it.

    \b
    Exit codes:
      0  every item was led to its rows
      1  a handler raised on some items, which are printed
      2  it did not run, or not to its end

    \b
    Example:
      streamfold rebuild daily_sales --engine dynamodb --table main=orders-prod
    """
    sys.exit(_command(_options("rebuild", handlers, given), application, tables))


def _command(options: FillingOptions, application: str, tables: tuple[str, ...]) -> int:
    app, settings = application_and_settings(application, tables)
    if options.store.engine == "embedded":
        return _run(app, settings, options)
    from streamfold.cli.clients import explained

    with explained():
        return _run(app, settings, options)


def _run(app: App, settings: Settings, options: FillingOptions) -> int:
    routes = wanted_routes(app, options.handlers)
    names, tables = [route.name for route in routes], source_tables(routes)
    is_local = options.store.engine == "embedded"
    with closing(open_store(app, settings, options.store)) as engine:
        run = Run(settings, outside=True, warn=lambda text: click.echo(f"Warning: {plain(text)}", err=True))
        offline = options.offline or is_local
        check_gate(read_manifest(app.name, engine), routes, settings, run.clock(), offline=offline)
        check_application(app, engine, run, write=is_local and not options.dry_run)
        sizes = [_size(engine, table, is_local=is_local) for table in tables]
        dry = Pages(app, engine, run, names, always=options.what == "rebuild", dry_run=True)
        expected = estimate(dry, tables, sizes, Random(0), options.page_items)  # noqa: S311 - a sample
        _tell(expected, names, tables, options, is_local=is_local)
        if options.dry_run:
            return 0
        _confirm(options, is_local=is_local)
        return _carry_out(app, engine, run, names, tables, expected, options)


def _carry_out(
    app: App,
    engine: Engine,
    run: Run,
    names: Sequence[str],
    tables: Sequence[Table],
    expected: Estimate,
    options: FillingOptions,
) -> int:
    jobs = Jobs(app.name, engine, run.clock)
    job = _job(jobs, names, tables, options)
    pages = Pages(app, engine, run, names, always=options.what == "rebuild")
    with _bar(expected, shown=not options.json_output) as tell:
        filling = Filling(jobs, job, pages, tables, page_items=options.page_items, tell=tell)
        progress = filling.run()
    failed = progress.report.failed
    if not failed and filling.job.done:
        note_filled(app, engine, run, names)
    if isinstance(engine, OwnStream):
        run_chains(app, engine, run)
    _print(filling.job, progress, options)
    _keep(failed, options.failed)
    return REPORTED if failed or filling.job.counts.get("failed") else 0


def _job(jobs: Jobs, names: Sequence[str], tables: Sequence[Table], options: FillingOptions) -> Job:
    """The job to go on with: one that was stopped and is the same, or a new one."""
    segments = options.segments or SEGMENTS[options.store.engine]
    for known in jobs.all():
        same = (known.what, known.handlers) == (options.what, tuple(names))
        if same and not known.ended and known.segments == segments * (len(tables) + 1):
            click.echo(f"Job {known.id} goes on where it was.", err=True)
            return known
    rates = {"read_units": options.read_units, "write_units": options.write_units}
    return new_job(jobs, options.what, names, tables, segments, by=getpass.getuser(), **rates)


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
    _say(f"{options.what} of {', '.join(names)} over {', '.join(table.name for table in tables)}")
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
def _bar(expected: Estimate, *, shown: bool) -> Iterator[Callable[[Progress], None]]:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("items", total=expected.items or None)

        def tell(progress: Progress) -> None:
            report = progress.report
            text = f"{progress.read:,} read, {report.written:,} written, {len(report.failed):,} failed"
            bar.update(task, completed=min(progress.read, expected.items), description=text)

        yield tell


def _print(job: Job, progress: Progress, options: FillingOptions) -> None:
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
        click.echo(f"failed: {key}, {each.handler}: {type(each.error).__name__}: {each.error}", err=True)


def _failed(each: ItemFailed) -> dict[str, Any]:
    return {
        "item": list(map(str, each.item)),
        "handler": each.handler,
        "error": f"{type(each.error).__name__}: {each.error}",
    }


def _keep(failed: Sequence[ItemFailed], path: str | None) -> None:
    if path is not None:
        keys = dict.fromkeys(each.item for each in failed)
        lines = (json.dumps(list(key), default=str, ensure_ascii=False) + "\n" for key in keys)
        Path(path).write_text("".join(lines), encoding="utf-8")
