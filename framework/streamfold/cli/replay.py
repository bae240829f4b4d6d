"""``streamfold replay``: recorded records on a local or real store."""

import gc
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from streamfold.app import App
from streamfold.batch.manifest import read_manifest
from streamfold.cli.advice import Written, advice
from streamfold.cli.application import application_option
from streamfold.cli.chaos import chaos_options
from streamfold.cli.documents import local_samples
from streamfold.cli.engines import (
    DEFAULT_STATE,
    EMBEDDED_ACTIONS,
    Store,
    application_and_settings,
    lanes_of,
    open_embedded,
    open_memory,
    real_tables,
    remove_state,
    state_table,
    store_options,
)
from streamfold.cli.replay_lines import Lines, replay_lines
from streamfold.cli.rows import SAMPLE_ROWS, SAMPLE_ROWS_MAX
from streamfold.cli.search_servers import confirm_documents, documents_to_server, search_url_option, with_search
from streamfold.cli.summary import (
    print_dry_run,
    print_json,
    print_plan,
    print_plan_json,
    print_summary,
)
from streamfold.commit.plan import Plan
from streamfold.derivations.derivation import derivation
from streamfold.engines import Engine
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError, plain
from streamfold.keys.table import MAIN
from streamfold.lifecycle.checks import check_whole
from streamfold.parking import open_parking
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles, check_files
from streamfold.replay.going_on import GoingOn
from streamfold.replay.others import warn_of_others
from streamfold.replay.replay import BATCH_RECORDS, PutSources, Replay, Summary
from streamfold.run import Run
from streamfold.settings import Settings

BATCH_RECORDS_MAX = 10_000
REPORTED = 1
SETTLE_SECONDS = 2.0
"""How long written rows are given to show in AWS's stream; DynamoDB Local's shows them at once."""
NO_STREAM = (
    "The table of the rows that they read has no stream. Rows that are there by now will not come through it: "
    "switch it on, and replay onto empty tables."
)
WENT_ON = (
    "Went on behind the first {entries:,} records, which an earlier replay of the same files has applied. "
    "--fresh begins anew."
)
GARBAGE_THRESHOLD = 200_000
"""Allocations between two collections; Python's default of 700 collects a hundred times within one batch."""


class ReplayOptions(NamedTuple):
    """What the command line said."""

    application: str
    store: Store
    tables: tuple[str, ...]
    fresh: bool
    batch_records: int
    dry_run: bool
    keep_going: bool
    external: bool
    park: str | None
    put_sources: bool
    create_tables: bool
    yes: bool
    json_output: bool
    sample_rows: int
    search_url: str | None
    force: bool


class OpenedReplay(NamedTuple):
    """The store of a replay: its engine, where source images go, and on DynamoDB what runs the chains."""

    engine: Engine
    put_sources: PutSources | None
    chains: Any = None
    real_names: Mapping[str, str] = MappingProxyType({})


@click.command("replay", short_help="Replay recorded records on a local store or on DynamoDB.")
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@application_option
@click.option(
    "--state",
    metavar="FILE",
    help=f"Keep the result in this file (embedded engine). Without it, the result stays in memory. Other commands read "
    f"{DEFAULT_STATE} unless told otherwise.",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Delete the state file before the replay. Without it, a replay of the same files that was stopped goes on "
    "behind its last whole batch.",
)
@store_options
@click.option(
    "--batch-size",
    type=click.IntRange(1, BATCH_RECORDS_MAX),
    default=BATCH_RECORDS,
    show_default=True,
    metavar="N",
    help="Records per batch.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@click.option(
    "--keep-going", is_flag=True, help="Skip bad lines and report them all, instead of stopping at the first."
)
@click.option(
    "--external",
    is_flag=True,
    help="Also call external handlers, and write to the buckets of archives and to STREAMFOLD_SEARCH.",
)
@click.option(
    "--park",
    metavar="PLACE",
    help="Where to park records that a handler cannot process: a file, s3://BUCKET/PREFIX or the URL of an SQS queue. "
    "Default: STREAMFOLD_PARK.",
)
@click.option(
    "--put-sources",
    is_flag=True,
    help="Also write the source items; an older version never replaces a newer one. Only with --engine dynamodb and a "
    "loopback endpoint.",
)
@click.option(
    "--create-tables", is_flag=True, help="Create missing tables. Only with --engine dynamodb and a loopback endpoint."
)
@click.option(
    "--force",
    is_flag=True,
    help="Replay on DynamoDB although a handler is partial: what a backfill leads to its items may be set back.",
)
@search_url_option("Write documents to this OpenSearch server instead of the local state.")
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS, or to a search server.")
@click.option(
    "--samples",
    type=click.IntRange(0, SAMPLE_ROWS_MAX),
    metavar="N",
    help=f"Print up to N rows of each target at the end. Default: {SAMPLE_ROWS}, and 0 with --json.",
)
@click.option(
    "--json",
    "json_output",
    is_flag=True,
    help="Print the summary as one JSON object. With --dry-run, first print the plan of each batch as one line.",
)
@chaos_options
def command(
    files: tuple[str, ...],
    application: str,
    state: str | None,
    fresh: bool,
    engine: str,
    endpoint_url: str | None,
    tables: tuple[str, ...],
    batch_size: int,
    dry_run: bool,
    keep_going: bool,
    external: bool,
    park: str | None,
    put_sources: bool,
    create_tables: bool,
    force: bool,
    search_url: str | None,
    yes: bool,
    samples: int | None,
    json_output: bool,
) -> None:
    """Replay recorded records on a local store or on DynamoDB.

    FILES hold Lambda events, lists of records, or one record a line (JSON Lines), plain or gzip. The name - stands for
    standard input.

    \b
    Examples:
      streamfold replay events/*.jsonl --state shop.db
      streamfold replay batch.json --dry-run
      streamfold replay events/shop.jsonl --engine dynamodb --endpoint-url http://127.0.0.1:8000 --create-tables
      streamfold replay events/shop.jsonl --chaos --runs 50
    """
    store = Store(engine, state, endpoint_url)
    options = ReplayOptions(
        application,
        store,
        tables,
        fresh,
        batch_size,
        dry_run,
        keep_going,
        external,
        park,
        put_sources,
        create_tables,
        yes,
        json_output,
        samples if samples is not None else 0 if json_output else SAMPLE_ROWS,
        search_url,
        force,
    )
    _check_options(options)
    check_files(files)
    app, settings = application_and_settings(application, tables)
    settings = with_search(settings, search_url)
    gc.set_threshold(GARBAGE_THRESHOLD)  # a batch keeps many small values for a moment, and hardly any cycles
    run = _run if engine == "embedded" else _run_on_dynamodb
    sys.exit(run(app, settings, files, options))


def _check_options(options: ReplayOptions) -> None:
    store = options.store
    if options.search_url and options.dry_run:
        raise SettingsError("--search-url writes to a server, and --dry-run writes nothing: give one of them.")
    if store.engine == "embedded":
        for given, name in (
            (store.endpoint_url, "--endpoint-url"),
            (options.put_sources, "--put-sources"),
            (options.create_tables, "--create-tables"),
            (options.force, "--force"),
        ):
            if given:
                raise SettingsError(f"{name} belongs to --engine dynamodb.")
        if options.fresh and not store.state:
            raise SettingsError("--fresh removes a state file: name it with --state FILE.")
        if options.fresh and options.dry_run:
            raise SettingsError("--fresh removes the state, and --dry-run writes nothing: give one of them.")
        return
    if store.state or options.fresh:
        raise SettingsError("--state and --fresh belong to --engine embedded; DynamoDB keeps its own.")
    for given, name in ((options.put_sources, "--put-sources"), (options.create_tables, "--create-tables")):
        if given and not store.on_loopback:
            raise SettingsError(
                f"{name} needs a loopback endpoint, for example --endpoint-url http://127.0.0.1:8000: it is for "
                "rehearsals."
            )


def _run(app: App, settings: Settings, files: tuple[str, ...], options: ReplayOptions) -> int:
    actions = EMBEDDED_ACTIONS if options.store.engine == "embedded" and not options.dry_run else None
    run = Run(settings, outside=options.external or None, warn=_warn, actions=actions)
    run.lanes = lanes_of(options.store, settings)
    if options.search_url is None:
        return _replay(app, run, files, options)
    confirm_documents(app, settings, yes=options.yes)
    with documents_to_server(app, run):
        return _replay(app, run, files, options)


def _replay(app: App, run: Run, files: tuple[str, ...], options: ReplayOptions) -> int:
    settings = run.settings
    place = options.park or settings.park
    run.parking = open_parking(place) if place and not options.dry_run else None
    origins = Origins(app.source_tables, settings, run.warn, app.tables)
    kept = options.store.state is not None and not (options.dry_run or options.external or options.search_url)
    recorded = RecordedFiles(files, digested=kept)
    with replay_lines(
        recorded, shown=not options.json_output and not options.dry_run, timed=not options.dry_run
    ) as lines:
        opened = _open(app, run, origins, lines, options)
        replay = Replay(
            app,
            opened.engine,
            run,
            origins,
            batch_records=options.batch_records,
            keep_going=options.keep_going,
            dry_run=_printed_plan(settings, options) if options.dry_run else None,
            put_sources=opened.put_sources,
        )
        summary = replay.process(lines, _going_on(app, settings, opened.engine, recorded) if kept else None)
    if replay.going_on and replay.going_on.behind:
        click.echo(WENT_ON.format(entries=replay.going_on.behind), err=True)
    not_run = _run_chains(replay, opened)
    _print(summary, app, opened, run, options)
    if not_run:
        click.echo(f"Chains were not run: {', '.join(not_run)}. {NO_STREAM}", err=True)
    opened.engine.close()
    return 0 if summary.clean and not summary.report.parked and not not_run else REPORTED


def _going_on(app: App, settings: Settings, engine: Engine, recorded: RecordedFiles) -> GoingOn | None:
    """Where a replay into a state goes on.

    Not where it also writes elsewhere: what an interrupted batch wrote there would be ahead of the state.
    """
    return GoingOn(app, settings, engine, recorded) if isinstance(engine, EmbeddedEngine) else None


def _warn(text: str) -> None:
    click.echo(f"Warning: {plain(text)}", err=True)


def _run_on_dynamodb(app: App, settings: Settings, files: tuple[str, ...], options: ReplayOptions) -> int:
    from streamfold.cli.clients import explained

    with explained():
        return _run(app, settings, files, options)


def _open(app: App, run: Run, origins: Origins, lines: Lines, options: ReplayOptions) -> OpenedReplay:
    if options.store.engine == "embedded":
        state = None if options.dry_run else options.store.state
        if state and options.fresh:
            remove_state(state)
        if not state:
            engine = open_memory(app)
            reads = any(derivation(route).reads_items for route in app.routes)
            return OpenedReplay(engine, engine.put_sources if reads else None)
        kept = open_embedded(app, state)
        warn_of_others(app, kept, run)
        return OpenedReplay(kept, kept.put_sources)
    return _open_dynamodb(app, run.settings, origins, lines, options)


def _open_dynamodb(
    app: App, settings: Settings, origins: Origins, lines: Lines, options: ReplayOptions
) -> OpenedReplay:
    from streamfold.cli.clients import make_clients
    from streamfold.cli.dynamodb import SourceWriter, TableChains, confirm_writes, create_tables
    from streamfold.engines.dynamodb import DynamoEngine
    from streamfold.engines.dynamodb_client import make_client

    if MAIN.name in app.tables and not settings.real_name(MAIN.name):
        lines.find_table(origins, keep_going=options.keep_going)
    tables, state = real_tables(app, settings, origins), state_table(app, settings)
    clients, regional = make_clients(options.store.endpoint_url), partial(make_client, options.store.endpoint_url)
    if not options.store.endpoint_url and not options.dry_run:
        confirm_writes(clients[0], tables.values(), state, yes=options.yes)
    if options.create_tables and not options.dry_run:
        for name in create_tables(clients[0], app, tables, state, regional):
            click.echo(f"Created table {name}.", err=True)
    engine = DynamoEngine(clients[0], tables, state, regional=regional)
    if not options.dry_run and not options.force:
        check_whole(read_manifest(app.name, engine), app)
    writer = SourceWriter(engine, app.name) if options.put_sources else None
    settle_seconds = 0 if options.store.on_loopback else SETTLE_SECONDS
    chains = TableChains(app, clients, tables, settle_seconds) if app.chained else None
    return OpenedReplay(engine, writer, chains, {name: real for name, (_, real) in tables.items()})


def _run_chains(replay: Replay, opened: OpenedReplay) -> list[str]:
    """Follows the tables' streams; returns the handlers that could not run."""
    if opened.chains is None or replay.dry_run:
        return []
    missing: list[str] = opened.chains.without_stream()
    replay.note(opened.chains.run(opened.engine, replay.run), {})
    return missing


def _printed_plan(settings: Settings, options: ReplayOptions) -> Callable[[Plan], None]:
    return partial(print_plan_json if options.json_output else print_plan, settings=settings)


def _print(summary: Summary, app: App, opened: OpenedReplay, run: Run, options: ReplayOptions) -> None:
    local = options.store.engine == "embedded" and options.search_url is None and not options.dry_run
    most = options.sample_rows if local else 0
    documents = list(local_samples(app, opened.engine, run.settings, most)) if most else []
    if options.json_output:
        print_json(summary, app, None if options.dry_run else opened.engine, options.sample_rows, documents)
    elif options.dry_run:
        print_dry_run(summary)
    else:
        written = Written(options.application, options.store, opened.real_names, options.search_url)
        print_summary(summary, app, opened.engine, advice(app, written), options.sample_rows, documents)
