"""``streamfold redrive`` processes failed records again."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain, islice
from typing import IO, Any

import click

from streamfold.batch.fan_outs import run_chains
from streamfold.cli import shell
from streamfold.cli.jobs import follow_fan_outs
from streamfold.cli.output import SHOWN_MAX, Grid, Note, Printed, Report, echo, warn, write
from streamfold.cli.session import DEFAULT_STATE, Session, is_unnamed, open_copy, open_dynamodb, open_embedded
from streamfold.deploy.functions import group_of_function
from streamfold.errors import RecordError, SettingsError, printable
from streamfold.failures.failed_records import Delivered, StreamRange, Waiting, WaitingRecords, left_of, open_location
from streamfold.failures.redrive import Redrive, Redriven, is_local
from streamfold.failures.stream_range import Fetched
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Origins
from streamfold.records.values import to_json
from streamfold.replay.replay import PutSources

CHAINS = "chains"
"""Replaces the location of a record of a redriven row, which is in the state's own stream."""
PEEKED_DOCUMENTS_MAX = 100
"""Documents that are read for the name of the table before any is redriven. Without a bound, a large folder would be
read into memory."""
COLUMNS = ("place", "item", "handler", "outcome", "written", "removed")
NUMBERS = ("written", "removed")
PRINTED_AS = {"what": "outcome", "location": "place"}
"""Keys of a line whose names scripts rely on."""


@shell.command(
    "redrive",
    "Process failed records again.",
    click.argument("sources", nargs=-1, required=True, metavar="SOURCE..."),
    shell.STATE_OPTIONS,
    shell.flag("--apply", "Write the changes. Without this option, only print what would be done."),
    shell.flag("--clear", "Delete each S3 object once all of its records took effect."),
    shell.belongs("--clear", "--apply"),
    shell.flag("--external", "Also call external handlers."),
    shell.search_url("Write documents to this OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH."),
    shell.yes_flag("writing to AWS, or to a search server"),
    shell.json_flag("Print one JSON object a line for each record and handler, and one with the counts at the end."),
)
def redrive(opened: Session) -> Report:
    """Process failed records again: parked records, and batches that Lambda gave up.

    SOURCE is a file, a folder, s3://BUCKET/PREFIX, one S3 object, or the URL of an SQS queue. It holds parked records
    or Lambda's documents about failed batches. In S3 such a document holds the records. In a queue it holds only their
    sequence numbers: the command then reads the records from the stream, which keeps them for 24 hours (Kinesis: for
    its retention period).

    Views, index items and documents are derived again from the source item as it is now, so an old record never
    overwrites newer data. If source items cannot be read, the command stops. Audit rows and "on" handlers replay the
    record. A parked record goes to the handler that it was parked for. A batch goes to all handlers, and to those of
    one group if the function's name says which it was, as the names of a printed template do. With STREAMFOLD_GROUP,
    records of other groups are left to them.

    Without --apply, nothing is written. A queue message is deleted once all of its records took effect, and so is an
    object in S3 with --clear. Files and other objects are kept; redriving them twice changes nothing.

    \b
    Outcomes:
      applied     rows or documents were written or removed, or a fan-out will write them
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
      1  some records are in conflict, were skipped, failed, are gone or bad; not those of another group alone
      2  the command stopped early: an option, the application, the store or a source table is wrong

    \b
    Examples:
      streamfold redrive parked.jsonl --state shop.db
      streamfold redrive s3://shop-failures/parked/ --engine dynamodb --table main=shop --apply --clear
      streamfold redrive https://sqs.eu-west-1.amazonaws.com/123456789012/failures --engine dynamodb --apply --yes
    """
    app, given, settings = opened.app, opened.given, opened.settings
    locations = [
        opened.stack.enter_context(closing(open_location(source, clears=given.clear)))
        for source in dict.fromkeys(given.sources)
    ]
    origins = Origins(app.source_tables, settings, warn, app.tables)
    documents = WaitingDocuments(locations)
    put_sources = _open(opened, origins, documents)
    if given.apply and (given.search_url or not opened.store.is_local):
        opened.confirm_documents()
    if given.search_url:
        from streamfold.cli.documents import documents_to_server

        documents_to_server(opened)
    fetch, dry_run = _Fetch(opened.store.endpoint_url), not given.apply
    group_of = lru_cache(partial(group_of_function, app))
    redriving = Redrive(opened.runtime, origins, fetch, dry_run, put_sources, group_of)
    outcomes = Outcomes(dry_run, opened.json_file)
    try:
        for location, document in documents:
            _redrive(redriving, location, document, outcomes)
        if given.apply:
            _add_chains(opened, outcomes)
    except BaseException:
        if outcomes.outcomes:
            write(outcomes.report(), opened.json_file)
        raise
    return outcomes.report()


def _open(opened: Session, origins: Origins, documents: "WaitingDocuments") -> PutSources | None:
    """Opens the store, a local one as a copy unless changes are applied. Returns the function that puts sources."""
    app, store, applies = opened.app, opened.store, opened.given.apply
    if store.is_local:
        path = store.state or DEFAULT_STATE
        if applies:
            local = opened.close_later(open_embedded(app, path, must_exist=True))
        else:
            local = opened.stack.enter_context(open_copy(app, path))
        opened.runtime = opened.runtime_on(local)
        put_sources: PutSources = local.put_sources
        return put_sources
    if is_unnamed(app, opened.settings):
        documents.find_table(origins)
    opened.runtime = opened.runtime_on(open_dynamodb(app, opened.settings, store, origins))
    if applies:
        opened.confirm_writes()
    return None


def _redrive(redriving: Redrive, location: WaitingRecords, document: Waiting, outcomes: "Outcomes") -> None:
    """Redrives a document, and acknowledges its message or object once no record of it remains.

    A message that was deleted earlier would lose the records that failed again.
    """
    leftovers = outcomes.leftovers
    for redriven in redriving.process(document):
        outcomes.add(redriven)
    outcomes.documents += 1
    if document.receipt is not None and outcomes.leftovers == leftovers and not redriving.dry_run:
        location.acknowledge(document.receipt)


def _add_chains(opened: Session, outcomes: "Outcomes") -> None:
    """Runs the handlers that read the redriven rows, and adds their failures."""
    if opened.local is None:
        report = follow_fan_outs(opened.runtime)
    else:
        opened.local.retry(opened.settings.group)
        report = run_chains(opened.runtime, opened.local)
    for failure in report.failures:
        outcomes.add(Redriven(CHAINS, "failed", failure.item, failure.sequence, failure.handler, why=failure.what))


class _Fetch:
    """Reads the records of a range from their stream, with one client for each stream."""

    def __init__(self, endpoint_url: str | None) -> None:
        self.endpoint_url = endpoint_url
        self._clients: dict[str, Any] = {}

    def __call__(self, missing: StreamRange) -> Fetched:
        from streamfold.cli.dynamodb import explained, make_streams_client
        from streamfold.failures.stream_range import fetch, fetch_kinesis

        is_kinesis = missing.is_kinesis
        service, fetched = ("kinesis", fetch_kinesis) if is_kinesis else ("dynamodbstreams", fetch)
        with explained("Kinesis" if is_kinesis else "DynamoDB"):
            if missing.stream_arn not in self._clients:
                self._clients[missing.stream_arn] = make_streams_client(service, missing.stream_arn, self.endpoint_url)
            return fetched(self._clients[missing.stream_arn], missing)


class WaitingDocuments:
    """The documents of all locations. The first documents can be read for their table before they are redriven."""

    def __init__(self, locations: Sequence[WaitingRecords]) -> None:
        self._documents = ((location, waiting) for location in locations for waiting in location)
        self._first: list[tuple[WaitingRecords, Waiting]] = []

    def __iter__(self) -> Iterator[tuple[WaitingRecords, Waiting]]:
        return chain(self._first, self._documents)

    def find_table(self, origins: Origins) -> None:
        """Reads the real table name from the first good document. Raises ``SettingsError`` if no document has it."""
        for location, waiting in islice(self._documents, PEEKED_DOCUMENTS_MAX):
            self._first.append((location, waiting))
            if _names_table(origins, waiting):
                return
        if self._first:
            raise SettingsError(
                f"The documents do not contain the real name of table {MAIN.name!r}: give it, --table {MAIN.name}=REAL."
            )


def _names_table(origins: Origins, waiting: Waiting) -> bool:
    """Whether a document holds the real name of the main table, which ``origins`` then knows."""
    try:
        pending = left_of(waiting.document or {})
        if isinstance(pending, StreamRange):
            if pending.is_kinesis:  # only its records name their tables
                return False
            origins.table_of(pending.stream_arn)
        else:
            first = (
                pending.records[:1] if isinstance(pending, Delivered) else [] if is_local(pending) else [pending.record]
            )
            for record in first:
                origins.change(record)
    except RecordError:
        return False
    return origins.adopted is not None


@dataclass(slots=True)
class Outcomes:
    """The outcomes of the records so far. With --json, each is printed at once, as one line."""

    dry_run: bool
    json_file: IO[str] | None
    documents: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    conflicts: Counter[str] = field(default_factory=Counter)
    shown: list[Redriven] = field(default_factory=list)
    reasons: list[Redriven] = field(default_factory=list)
    leftovers: int = 0
    open: int = 0
    groups: Counter[str] = field(default_factory=Counter)

    def add(self, redriven: Redriven) -> None:
        self.outcomes[redriven.what] += 1
        self.leftovers += redriven.is_leftover
        self.open += redriven.is_open
        if redriven.group is not None:
            self.groups[redriven.group] += 1
        if redriven.conflicts:
            self.conflicts[str(redriven.handler)] += redriven.conflicts
        if self.json_file is not None:
            given = redriven._asdict().items()
            line = {PRINTED_AS.get(name, name): value for name, value in given if (name, value) != ("group", None)}
            echo(to_json(line), file=self.json_file)
        kept = (self.shown, True), (self.reasons, redriven.is_open)
        for each in (each for each, wanted in kept if wanted and len(each) < SHOWN_MAX):
            each.append(redriven)

    def report(self) -> Report:
        """The first records, the reasons of those that remain, and the counts of all."""
        counts = {"dry_run": self.dry_run, "documents": self.documents, "outcomes": dict(self.outcomes)}
        return Report(self._lines(), {**counts, "conflicts": dict(self.conflicts)}, bool(self.open))

    def _lines(self) -> Iterator[Printed]:
        if self.shown:
            cells = (
                [each.location, each.item or "", each.handler or "", each.what, str(each.written), str(each.removed)]
                for each in self.shown
            )
            yield Grid(COLUMNS, (list(map(printable, row)) for row in cells), NUMBERS)
        for each in self.reasons:
            who = f"handler {each.handler!r}, " if each.handler else ""
            item = f"item {each.item}: " if each.item else ""
            yield Note(printable(f"{each.what.capitalize()}: {each.location}: {who}{item}{each.why}"))
        for group, count in self.groups.items():
            yield f"{count} of group {group} are left to its own redrive: STREAMFOLD_GROUP={group}."
        for name, count in self.conflicts.items():
            yield f"Index {name} met {count} claims of rows that another item claims too."
        if (hidden := self.outcomes.total() - len(self.shown)) > 0:
            yield f"... and {hidden} more; --json prints them all."
        counts = ", ".join(f"{count} {what}" for what, count in self.outcomes.most_common()) or "nothing to redrive"
        documents = f"{self.documents} document{'' if self.documents == 1 else 's'}"
        done = f"Dry run of {documents}: {counts}. Nothing was written; --apply does it."
        yield f"\n{done if self.dry_run else f'{documents} redriven: {counts}.'}"
