"""``streamfold redrive``: records that failed, processed late."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import click

from streamfold.app import App
from streamfold.batch.fan_outs import run_chains
from streamfold.batch.report import Report
from streamfold.cli.engines import (
    DEFAULT_STATE,
    REPORTED,
    Store,
    application_and_settings,
    confirm_writes,
    is_unnamed,
    make_runtime,
    open_dynamodb,
    state_options,
    warn,
)
from streamfold.cli.fan_outs import follow_fan_outs
from streamfold.cli.redrive_waiting import WaitingDocuments
from streamfold.cli.redriven import RedriveTold
from streamfold.cli.search_servers import confirm_documents, documents_to_server, search_url_option, with_search
from streamfold.cli.state_files import open_copy, open_embedded
from streamfold.engines import ChainEngine, Engine
from streamfold.failures.failed_records import StreamRange, Waiting, WaitingPlace, open_place
from streamfold.failures.redrive import Redrive, Redriven
from streamfold.failures.stream_range import Fetched
from streamfold.records.envelope import Origins
from streamfold.replay.replay import PutSources
from streamfold.runtime import Runtime
from streamfold.settings import Settings

CHAINS = "chains"
"""Stands for the place of a record that a redriven row left in the state's own stream."""


class RedriveOptions(NamedTuple):
    """What the command line said."""

    store: Store
    apply: bool
    external: bool
    yes: bool
    json_output: bool
    search_url: str | None


class OpenedRedrive(NamedTuple):
    """The store of a redrive: its engine, and where source images go where it plays the application's tables."""

    engine: Engine
    put_sources: PutSources | None = None
    chains: ChainEngine | None = None


@click.command("redrive", short_help="Process failed records again.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@state_options
@click.option("--apply", is_flag=True, help="Write the changes. Without this option, only print what would be done.")
@click.option("--external", is_flag=True, help="Also call external handlers.")
@search_url_option("Write documents to this OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH.")
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS, or to a search server.")
@click.option(
    "--json",
    "json_output",
    is_flag=True,
    help="Print one JSON object a line for each record and handler, and one with the counts at the end.",
)
def command(
    sources: tuple[str, ...],
    application: str,
    store: Store,
    tables: tuple[str, ...],
    apply: bool,
    external: bool,
    search_url: str | None,
    yes: bool,
    json_output: bool,
) -> None:
    """Process failed records again: parked records, and batches that Lambda gave up.

    SOURCE is a file, a folder, s3://BUCKET/PREFIX, one S3 object, or the URL of an SQS queue. It holds parked records
    or Lambda's documents about failed batches. In S3 such a document holds the records. In a queue it holds only their
    sequence numbers: the command then reads the records from the stream, which keeps them for 24 hours (Kinesis: for
    its retention period).

    Views, index items and documents are derived again from the source item as it is now, so an old record never
    overwrites newer data. If source items cannot be read, the command stops. Audit rows and "on" handlers replay the
    record. A parked record goes to the handler that it was parked for, any other record to all handlers.

    Without --apply, nothing is written. A queue message is deleted once all of it took effect. Files and objects stay;
    redriving them twice changes nothing.

    \b
    Outcomes:
      applied     rows or documents were written or removed, or a fan-out goes on with them
      unchanged   the rows already agree with the source item
      stale       the state holds this version of the item or a newer one
      known       the record took effect before
      unwanted    no handler reads the item or takes this change
      conflict    another item claims the same unique row, and the index parks conflicts
      skipped     the handler is switched off, external or of another group
      failed      the handler or the store failed again
      gone        the stream no longer holds the record
      bad         the document cannot be read

    \b
    Exit codes:
      0  every record took effect or has nothing to do
      1  some records are in conflict, were skipped, failed, are gone or bad
      2  the command stopped early: an option, the application, the store or a source table is wrong

    \b
    Examples:
      streamfold redrive parked.jsonl --state shop.db
      streamfold redrive s3://shop-failures/parked/ --engine dynamodb --table main=shop --apply
      streamfold redrive https://sqs.eu-west-1.amazonaws.com/123456789012/failures --engine dynamodb --apply --yes
    """
    options = RedriveOptions(store, apply, external, yes, json_output, search_url)
    app, settings = application_and_settings(application, tables)
    settings = with_search(settings, search_url)
    with ExitStack() as stack:
        places = [open_place(source) for source in dict.fromkeys(sources)]
        for place in places:
            stack.callback(place.close)
        sys.exit(_run(app, settings, places, options, stack))


def _run(
    app: App, settings: Settings, places: Sequence[WaitingPlace], options: RedriveOptions, stack: ExitStack
) -> int:
    origins = Origins(app.source_tables, settings, warn, app.tables)
    waiting = WaitingDocuments(places)
    opened = _open(app, settings, origins, waiting, options, stack)
    runtime = make_runtime(app, opened.engine, options.store, settings, outside=options.external or None)
    _open_documents(runtime, app, options, stack)
    dry_run = not options.apply
    redrive = Redrive(runtime, origins, _Fetch(options.store.endpoint_url), dry_run, opened.put_sources)
    told = RedriveTold(dry_run, options.json_output)
    try:
        for place, document in waiting:
            _redrive(redrive, place, document, told)
        if options.apply and opened.chains is not None:
            opened.chains.retry(settings.group)
            _note_chains(run_chains(runtime, opened.chains), told)
        elif options.apply:
            _note_chains(follow_fan_outs(runtime), told)
    except BaseException:
        if told.outcomes:
            told.print_all()
        raise
    told.print_all()
    return REPORTED if told.left_over else 0


def _open_documents(runtime: Runtime, app: App, options: RedriveOptions, stack: ExitStack) -> None:
    """Asks about the server that documents are written to. The one of the settings is opened when it is needed."""
    if options.apply and (options.search_url or options.store.engine == "dynamodb"):
        confirm_documents(app, runtime.settings, yes=options.yes)
    if options.search_url:
        runtime.opened |= stack.enter_context(documents_to_server(app, runtime.settings))


def _redrive(redrive: Redrive, place: WaitingPlace, document: Waiting, told: RedriveTold) -> None:
    """Redrives a document; a queue forgets its message once nothing of it is left over."""
    left_over = told.left_over
    for redriven in redrive.process(document):
        told.add(redriven)
    told.documents += 1
    if document.receipt is not None and told.left_over == left_over and not redrive.dry_run:
        place.settle(document.receipt)


def _note_chains(report: Report, told: RedriveTold) -> None:
    for failure in report.failures:
        told.add(Redriven(CHAINS, "failed", failure.item, failure.sequence, failure.handler, why=failure.what))


def _open(
    app: App, settings: Settings, origins: Origins, waiting: WaitingDocuments, options: RedriveOptions, stack: ExitStack
) -> OpenedRedrive:
    store = options.store
    if store.engine == "embedded":
        path = store.state or DEFAULT_STATE
        if not options.apply:
            copy = stack.enter_context(open_copy(app, path))
            return OpenedRedrive(copy, copy.put_sources)
        engine = open_embedded(app, path, must_exist=True)
        stack.callback(engine.close)
        return OpenedRedrive(engine, engine.put_sources, engine)
    if is_unnamed(app, settings):
        waiting.find_table(origins)
    dynamo = open_dynamodb(app, settings, store, origins)
    if options.apply:
        confirm_writes(dynamo, store, yes=options.yes)
    return OpenedRedrive(dynamo)


class _Fetch:
    """Reads the records of a range from their stream, with one client for each stream."""

    def __init__(self, endpoint_url: str | None) -> None:
        self.endpoint_url = endpoint_url
        self._clients: dict[str, Any] = {}

    def __call__(self, part: StreamRange) -> Fetched:
        from streamfold.cli.clients import explained, make_streams_client
        from streamfold.failures import stream_range
        from streamfold.failures import stream_range as kinesis_range

        service, fetch = (
            ("kinesis", kinesis_range.fetch_kinesis) if part.is_kinesis else ("dynamodbstreams", stream_range.fetch)
        )
        with explained("Kinesis" if part.is_kinesis else "DynamoDB"):
            if part.stream_arn not in self._clients:
                self._clients[part.stream_arn] = make_streams_client(service, part.stream_arn, self.endpoint_url)
            return fetch(self._clients[part.stream_arn], part)
