"""A replay as a command: opened, carried out and told."""

import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.batch.manifest import read_manifest
from streamfold.cli.advice import Written, advice
from streamfold.cli.documents import local_samples
from streamfold.cli.engines import (
    REPORTED,
    application_and_settings,
    confirm_writes,
    is_unnamed,
    make_runtime,
    open_dynamodb,
    open_memory,
    real_tables,
    warn,
)
from streamfold.cli.grids import counted
from streamfold.cli.output import echo
from streamfold.cli.prints import prints_of_handlers
from streamfold.cli.replay_lines import Lines, replay_lines
from streamfold.cli.replay_options import ReplayOptions
from streamfold.cli.search_servers import confirm_documents, documents_to_server, with_search
from streamfold.cli.state_files import open_embedded, remove_state
from streamfold.cli.summary import print_dry_run, print_json, print_plan, print_plan_json, print_summary
from streamfold.commit.plan import Plan
from streamfold.derivations.derivation import derivation
from streamfold.engines import Engine
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.lifecycle.sources import check_whole
from streamfold.parking import open_parking
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles
from streamfold.replay.local import warn_of_others
from streamfold.replay.replay import PutSources, Replay, ReplayCursor, Summary
from streamfold.settings import Settings

SETTLE_SECONDS = 2.0
"""How long written rows are given to show in AWS's stream; DynamoDB Local's shows them at once."""
NO_STREAM = (
    "The table of the rows that they read has no stream. Rows that are there by now will not come through it: "
    "switch it on, and replay onto empty tables."
)
GOES_ON = (
    "Goes on behind the first {records}, which an earlier replay of the same files has applied. --fresh begins anew."
)


class OpenedReplay(NamedTuple):
    """The store of a replay: its engine, where source images go, and on DynamoDB what runs the chains."""

    engine: Engine
    put_sources: PutSources | None
    chains: Any = None
    real_names: Mapping[str, str] = MappingProxyType({})


def run_replay(files: tuple[str, ...], options: ReplayOptions) -> int:
    """Carries out a replay; returns the exit code."""
    app, settings = application_and_settings(options.application, options.tables)
    settings = with_search(settings, options.search_url)
    if options.store.engine == "embedded":
        return _run(app, settings, files, options)
    from streamfold.cli.clients import explained

    with explained():
        return _run(app, settings, files, options)


def _run(app: App, settings: Settings, files: tuple[str, ...], options: ReplayOptions) -> int:
    if options.search_url is None:
        return _replay(app, settings, files, options, {})
    confirm_documents(app, settings, yes=options.yes)
    with documents_to_server(app, settings) as documents:
        return _replay(app, settings, files, options, documents)


def _replay(
    app: App, settings: Settings, files: tuple[str, ...], options: ReplayOptions, documents: Mapping[str, Any]
) -> int:
    place = _parking(options, settings)
    parking = open_parking(place) if place and not options.dry_run else None
    origins = Origins(app.source_tables, settings, warn, app.tables)
    kept = options.store.state is not None and not (options.dry_run or options.external or options.search_url)
    recorded = RecordedFiles(files, digested=kept)
    with replay_lines(
        recorded, shown=not options.json_output and not options.dry_run, timed=not options.dry_run
    ) as lines:
        opened = _open(app, settings, origins, lines, options)
        runtime = make_runtime(app, opened.engine, options.store, settings, outside=options.external or None)
        runtime.parking = parking
        runtime.opened |= documents
        if options.dry_run:
            runtime.actions = None  # transactions are shown as they would be on DynamoDB
        if isinstance(opened.engine, EmbeddedEngine):
            warn_of_others(runtime, opened.engine)
        replay = Replay(
            runtime,
            origins,
            batch_records=options.batch_size,
            keep_going=options.keep_going,
            dry_run=_printed_plan(settings, options) if options.dry_run else None,
            put_sources=opened.put_sources,
        )
        with prints_of_handlers(aside=options.json_output):
            summary = replay.process(lines, _cursor(app, settings, opened.engine, recorded) if kept else None)
    if summary.clean and not summary.records and not summary.behind:
        echo(f"No record was read: {'the files are' if len(files) > 1 else f'{files[0]} is'} empty.", err=True)
    with prints_of_handlers(aside=options.json_output):
        not_run = _run_chains(replay, opened)
    _print(summary, app, opened, settings, options)
    if not_run:
        echo(f"Chains were not run: {', '.join(not_run)}. {NO_STREAM}", err=True)
    opened.engine.close()
    return 0 if summary.clean and not summary.report.parked and not not_run else REPORTED


def _parking(options: ReplayOptions, settings: Settings) -> str | None:
    return options.park or settings.park or None


def _cursor(app: App, settings: Settings, engine: Engine, recorded: RecordedFiles) -> ReplayCursor | None:
    """Where a replay into a state goes on.

    Not where it also writes elsewhere: what an interrupted batch wrote there would be ahead of the state.
    """
    if not isinstance(engine, EmbeddedEngine):
        return None
    return ReplayCursor(app, settings, engine, recorded, _tell_behind)


def _tell_behind(records: int) -> None:
    echo(GOES_ON.format(records=counted(records, "record")), err=True)


def _open(app: App, settings: Settings, origins: Origins, lines: Lines, options: ReplayOptions) -> OpenedReplay:
    if options.store.engine == "embedded":
        state = None if options.dry_run else options.store.state
        if state and options.fresh:
            remove_state(state)
        if not state:
            engine = open_memory(app, settings)
            reads = any(derivation(route).reads_items for route in app.routes)
            return OpenedReplay(engine, engine.put_sources if reads else None)
        kept = open_embedded(app, state)
        return OpenedReplay(kept, kept.put_sources)
    return _open_dynamodb(app, settings, origins, lines, options)


def _open_dynamodb(
    app: App, settings: Settings, origins: Origins, lines: Lines, options: ReplayOptions
) -> OpenedReplay:
    from streamfold.cli.clients import make_clients
    from streamfold.cli.dynamodb import SourceWriter, TableChains, create_tables

    if is_unnamed(app, settings):
        lines.find_table(origins, keep_going=options.keep_going)
    engine = open_dynamodb(app, settings, options.store, origins)
    if not options.dry_run:
        confirm_writes(engine, options.store, yes=options.yes)
        for name in create_tables(app, engine) if options.create_tables else ():
            echo(f"Created table {name}.", err=True)
    if not options.dry_run and not options.force:
        check_whole(read_manifest(app.name, engine), app)
    writer = SourceWriter(engine, app.name) if options.put_sources else None
    settle_seconds = 0 if options.store.on_loopback else SETTLE_SECONDS
    tables, chains = real_tables(app, settings, origins), None
    if app.chained:
        chains = TableChains(app, make_clients(options.store.endpoint_url), tables, settle_seconds)
    return OpenedReplay(engine, writer, chains, {name: real for name, (_, real) in tables.items()})


def _run_chains(replay: Replay, opened: OpenedReplay) -> list[str]:
    """Follows the tables' streams; returns the handlers that could not run."""
    if opened.chains is None or replay.dry_run:
        return []
    missing: list[str] = opened.chains.without_stream()
    replay.note(opened.chains.run(replay.runtime), {})
    return missing


def _printed_plan(settings: Settings, options: ReplayOptions) -> Callable[[Plan], None]:
    if not options.json_output:
        return partial(print_plan, settings=settings)
    output = sys.stdout

    def printed(plan: Plan) -> None:
        with redirect_stdout(output):
            print_plan_json(plan, settings=settings)

    return printed


def _print(summary: Summary, app: App, opened: OpenedReplay, settings: Settings, options: ReplayOptions) -> None:
    local = options.store.engine == "embedded" and options.search_url is None and not options.dry_run
    most = options.sample_rows if local else 0
    documents = list(local_samples(app, opened.engine, settings, most)) if most else []
    if options.json_output:
        print_json(summary, app, None if options.dry_run else opened.engine, options.sample_rows, documents)
    elif options.dry_run:
        print_dry_run(summary)
    else:
        written = Written(
            options.application,
            options.store,
            opened.real_names,
            options.search_url,
            opened.engine,
            settings,
            _parking(options, settings),
            options.fresh,
        )
        print_summary(summary, app, opened.engine, advice(app, written, summary), options.sample_rows, documents)
