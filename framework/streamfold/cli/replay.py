"""``streamfold replay`` replays recorded records on a store. ``streamfold record`` records a stream into a file."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from streamfold.batch.manifest import read_manifest
from streamfold.cli import session, shell
from streamfold.cli.chaos import CHAOS_OPTIONS, chaos_report, faults_report, is_list
from streamfold.cli.costs import COST_OPTIONS, cost_report, counted_section
from streamfold.cli.items import SAMPLE_ROWS, SAMPLE_ROWS_MAX
from streamfold.cli.output import Note, Report, counted, echo, note, progress_bar, progress_lines, warn
from streamfold.cli.report import REPORT_OPTIONS, ReplayReport
from streamfold.cli.session import Session
from streamfold.cli.summary import Written, dry_run_lines, plan_lines, plan_object, summary_json, summary_lines
from streamfold.commit.plan import Plan
from streamfold.derivations.derivation import reads_items
from streamfold.errors import HandlerError, RecordError, SettingsError
from streamfold.keys.table import MAIN
from streamfold.lifecycle.sources import check_whole
from streamfold.parking import open_parking
from streamfold.records.envelope import Origins, RawRecord
from streamfold.records.values import to_json
from streamfold.replay.files import BadLine, RecordedFiles, check_files
from streamfold.replay.files import Line as RecordedLine
from streamfold.replay.replay import BATCH_RECORDS, Replay, ReplayCursor
from streamfold.runtime import MICROSECONDS
from streamfold.settings.readers import is_loopback

if TYPE_CHECKING:
    from streamfold.cli.output import Printed
    from streamfold.replay.replay import PutSources

BATCH_RECORDS_MAX = 10_000
RECHECK_SECONDS = 2.0
"""The wait until written rows show in a stream of AWS. DynamoDB Local shows them at once."""
PROGRESS_EVERY_RECORDS = 200
PEEKED_RECORDS_MAX = 1000
"""Records that are read for the name of the table before any is replayed. Without a bound, large files would be read
into memory."""
NO_STREAM = (
    "The table of the rows that they read has no stream. A stream does not deliver rows that exist before it: switch "
    "it on, and replay onto empty tables."
)
ReadLine = tuple[RecordedLine, RawRecord] | BadLine


def _rehearses(name: str) -> tuple[shell.Rule, ...]:
    """The rules of an option for rehearsals on a loopback endpoint: on AWS it would overwrite items of production."""
    why = f"{name} needs a loopback endpoint, for example --endpoint-url http://127.0.0.1:8000: it is for rehearsals."
    return shell.belongs(name, "--engine dynamodb"), shell.Rule(
        lambda given, values: why if name in given and not is_loopback(values["endpoint_url"]) else None
    )


LOCAL_ONLY = "--state and --fresh belong to --engine embedded; DynamoDB keeps its own."


@shell.command(
    "replay",
    "Replay recorded records on a local store or on DynamoDB.",
    click.argument("files", nargs=-1, metavar="FILES..."),
    shell.APPLICATION,
    shell.value(
        "--state",
        "FILE",
        "Keep the result in this file (embedded engine). Without it, the result stays in memory. Other commands read "
        f"{session.DEFAULT_STATE} by default.",
    ),
    shell.flag(
        "--fresh",
        "Delete the state file before the replay. Without this option, a stopped replay of the same files continues "
        "after its last complete batch.",
    ),
    shell.STORE,
    shell.number(
        "--batch-size",
        "Records per batch; a batch of 8 MB of lines is full too.",
        1,
        BATCH_RECORDS_MAX,
        default=BATCH_RECORDS,
    ),
    shell.flag("--dry-run", "Print what would be written to an empty store, and write nothing."),
    shell.value(
        "--until",
        "TIME",
        "Let time pass behind the last record, up to this moment (2026-03-01T10:00:00Z), or up to now. Without this "
        "option, time ends with the newest record.",
    ),
    shell.flag("--keep-going", "Skip bad lines and report them all, instead of stopping at the first."),
    shell.flag(
        "--external", "Also call external handlers, and write to the buckets of archives and to STREAMFOLD_SEARCH."
    ),
    shell.value(
        "--park",
        "PLACE",
        'Park the records that a handler with on_error="park" cannot process: in a file, in s3://BUCKET/PREFIX or in '
        "the SQS queue of a URL. Default: STREAMFOLD_PARK.",
    ),
    shell.flag(
        "--put-sources",
        "Also write the source items; an older version never replaces a newer one. Only with --engine dynamodb and a "
        "loopback endpoint.",
    ),
    shell.flag("--create-tables", "Create missing tables. Only with --engine dynamodb and a loopback endpoint."),
    shell.flag(
        "--force",
        "Replay on DynamoDB although a handler is partial: older records may then overwrite what a backfill wrote.",
    ),
    shell.search_url("Write documents to this OpenSearch server instead of the local state."),
    shell.yes_flag("writing to AWS, or to a search server"),
    shell.number(
        "--samples",
        f"Print up to N rows of each target at the end. Default: {SAMPLE_ROWS}, and 0 with --json.",
        0,
        SAMPLE_ROWS_MAX,
    ),
    shell.json_flag(
        "Print the summary as one JSON object. With --dry-run, first print the plan of each batch as one line."
    ),
    REPORT_OPTIONS,
    COST_OPTIONS,
    CHAOS_OPTIONS,
    shell.refuses(
        *("--dry-run", "--search-url"),
        why="--search-url writes to a server, and --dry-run writes nothing: give one of them.",
    ),
    shell.refuses("--engine dynamodb", "--state", "--fresh", why=LOCAL_ONLY),
    shell.refuses(
        *("--engine dynamodb", "--until"),
        why="a replay on DynamoDB has the time of this machine: leave --until out.",
    ),
    shell.refuses(*("--dry-run", "--until"), why="--dry-run plans records, and time passes behind them."),
    shell.belongs("--endpoint-url", "--engine dynamodb"),
    _rehearses("--put-sources"),
    _rehearses("--create-tables"),
    shell.belongs("--force", "--engine dynamodb"),
    shell.belongs("--fresh", "--state", why="--fresh removes a state file: name it with --state FILE."),
    shell.refuses(
        *("--dry-run", "--fresh"), why="--fresh removes the state, and --dry-run writes nothing: give one of them."
    ),
    shell.refuses(
        *("--dry-run", "--state"),
        why="--dry-run plans the writes to an empty state, and reads no --state: leave one of them out.",
    ),
)
def replay(opened: Session) -> Report:
    """Replay recorded records on a local store or on DynamoDB.

    FILES hold Lambda events, lists of records, or one record a line (JSON Lines), plain or gzip. The name - is standard
    input.

    \b
    The table at the end counts for each handler:
      records       records that it got; a record that is repeated in a batch counts once
      rows written  rows that were put or changed; a row counts once for each item of a batch that changes it
      removed       rows that were removed
      unchanged     items of each batch whose rows did not change, for example because the state knew the changes;
                    for histories and "on" handlers, records that took effect before
      failed        records that failed

    \b
    Examples:
      streamfold replay events/*.jsonl --state shop.db
      streamfold replay batch.json --dry-run
      streamfold replay events/shop.jsonl --engine dynamodb --endpoint-url http://127.0.0.1:8000 --create-tables
      streamfold replay events/shop.jsonl --chaos --runs 50
      streamfold replay events/shop.jsonl --cost
      streamfold replay events/shop.jsonl --html report.html
    """
    given = opened.given
    if is_list(given.faults):
        return faults_report()
    if not given.files:
        raise click.UsageError("Missing argument 'FILES...'.")
    check_files(given.files)
    if given.chaos:
        return chaos_report(opened)
    if given.cost:
        return cost_report(opened)
    if given.search_url is not None:
        opened.confirm_documents()
        from streamfold.cli.documents import documents_to_server

        documents_to_server(opened)
    return _Replaying(opened).report()


def _until(given: str | None) -> int | None:
    """The moment of ``--until``, epoch microseconds. Raises ``SettingsError`` for another text."""
    if given is None or given == "now":
        return None if given is None else round(time.time() * MICROSECONDS)
    from streamfold.routes.moments import microseconds_of  # few replays wait

    try:
        return microseconds_of(given)
    except HandlerError:
        raise SettingsError(
            f"--until {given} is no moment: expected now, or a date with a time and a zone, 2026-03-01T10:00:00Z."
        ) from None


class _Replaying:
    """One replay: its records, its store, and on DynamoDB its chains."""

    def __init__(self, opened: Session) -> None:
        self.opened = opened
        self.given = given = opened.given
        self.app, self.settings = opened.app, opened.settings
        self.origins = Origins(self.app.source_tables, self.settings, warn, self.app.tables)
        self.chains: Any = None
        self.put_sources: PutSources | None = None
        self.kept = opened.store.state is not None and not (given.dry_run or given.external or given.search_url)
        self.recorded = RecordedFiles(given.files, digested=self.kept)
        self.parking = given.park or self.settings.park or None
        self.page = ReplayReport(opened) if given.html is not None else None

    def report(self) -> Report:
        """Runs the replay."""
        opened, given = self.opened, self.given
        parking = open_parking(self.parking) if self.parking and not given.dry_run else None
        with replay_lines(
            self.recorded, shown=not given.json_output and not given.dry_run, timed=not given.dry_run
        ) as lines:
            self._open(lines)
            runtime = opened.runtime
            runtime.parking = parking
            if given.dry_run:
                runtime.actions = None  # transactions are shown as they would be on DynamoDB
            replaying = Replay(
                runtime,
                self.origins,
                batch_records=given.batch_size,
                keep_going=given.keep_going,
                dry_run=self._print_plan if given.dry_run else None,
                put_sources=self.put_sources,
            )
            until = replaying.until = _until(given.until)
            summary = replaying.process(lines, self._cursor())
            if until is not None and summary.clean and until < round(runtime.item_clock * MICROSECONDS):
                note(f"--until {given.until} is before the newest record: no time passed behind it.")
        if summary.clean and not summary.records and not summary.behind:
            files = given.files
            note(f"No record was read: {'the files are' if len(files) > 1 else f'{files[0]} is'} empty.")
        not_run: list[str] = []
        if self.chains is not None and not given.dry_run:
            not_run = self.chains.without_stream()
            replaying.note(self.chains.run(runtime), {})
        if self.page is not None:
            self.page.write(summary, counted_section(self.opened))
        more = [Note(f"Chains were not run: {', '.join(not_run)}. {NO_STREAM}")] if not_run else []
        tables = {} if opened.store.is_local else session.real_tables(self.app, self.settings, self.origins)
        real_names = {name: real for name, (_, real) in tables.items()}
        written = Written(opened, summary, real_names, self.parking)
        text: Iterator[Printed] = dry_run_lines(summary) if given.dry_run else summary_lines(written)
        reported = not summary.clean or bool(summary.report.parked) or bool(not_run)
        return Report(chain(text, more), partial(summary_json, written), reported)

    def _open(self, lines: "Lines") -> None:
        """Opens the store; for a dry run, an empty one in memory."""
        opened, given, app = self.opened, self.given, self.app
        if not opened.store.is_local:
            if session.is_unnamed(app, self.settings):
                lines.find_table(self.origins, keep_going=given.keep_going)
            if not given.dry_run:
                self._open_dynamodb()
                return
        state = None if given.dry_run else opened.store.state
        if state is None:
            memory = session.open_memory(app, self.settings)
            opened.runtime = opened.runtime_on(opened.close_later(memory))
            reads = any(reads_items(route) for route in app.routes)
            self.put_sources = memory.put_sources if reads else None
            return
        if given.fresh:
            session.remove_state(state)
        if self.page is not None:
            self.page.keep_state()
        kept = opened.close_later(session.open_embedded(app, state))
        opened.runtime, self.put_sources = opened.runtime_on(kept), kept.put_sources

    def _open_dynamodb(self) -> None:
        from streamfold.cli.dynamodb import SourceWriter, TableChains, create_tables, make_clients

        opened, given, app = self.opened, self.given, self.app
        engine = session.open_dynamodb(app, self.settings, opened.store, self.origins)
        opened.runtime = opened.runtime_on(opened.close_later(engine))
        opened.confirm_writes()
        for name in create_tables(app, engine) if given.create_tables else ():
            note(f"Created table {name}.")
        if not given.force:
            check_whole(read_manifest(app.name, engine), app)
        self.put_sources = SourceWriter(engine, app.name) if given.put_sources else None
        if app.chained:
            recheck_seconds = 0 if opened.store.on_loopback else RECHECK_SECONDS
            tables = dict(session.real_tables(app, self.settings, self.origins))
            self.chains = TableChains(app, make_clients(opened.store.endpoint_url), tables, recheck_seconds)

    def _cursor(self) -> ReplayCursor | None:
        """The position from which a stopped replay into a state continues.

        None if the replay also writes elsewhere: an interrupted batch may have written there, and not to the state.
        """

        def print_behind(records: int) -> None:
            behind = counted(records, "record")
            note(
                f"Continues after the first {behind}, which an earlier replay of the same files has applied. --fresh "
                "starts over."
            )

        state = self.opened.engine.durable
        if not self.kept or state is None:
            return None
        return ReplayCursor(self.app, self.settings, state, self.recorded, print_behind)

    def _print_plan(self, plan: Plan) -> None:
        if self.opened.json_file is not None:
            echo(to_json(plan_object(plan, self.settings)), file=self.opened.json_file)
            return
        for line in plan_lines(plan, self.settings):
            echo(line)


class Lines:
    """The lines of the files, with progress. The first lines can be read for their table before the replay."""

    def __init__(self, recorded: RecordedFiles, show: Callable[[int], None]) -> None:
        self.recorded = recorded
        self._iterator: Iterator[ReadLine] | None = None
        self._first: list[ReadLine] = []
        self._show = show

    def find_table(self, origins: Origins, *, keep_going: bool) -> None:
        """Reads the real table name from the first good record. Raises ``SettingsError`` if no record has it."""
        why = "there is no record of it with an eventSourceARN"
        self._iterator = iter(self.recorded)
        for entry in islice(self._iterator, PEEKED_RECORDS_MAX):
            self._first.append(entry)
            bad = entry if isinstance(entry, BadLine) else _bad(origins, *entry)
            if origins.adopted:
                return
            if bad and not keep_going:
                why = f"{bad.line}: {bad.why}"
                break
        raise SettingsError(
            f"The files do not contain the real name of table {MAIN.name!r}: {why}. Give it: --table {MAIN.name}=REAL."
        )

    def __iter__(self) -> Iterator[ReadLine]:
        """All lines, including those that ``find_table`` has read; each call begins at the first line."""
        first, rest = self._first, self._iterator
        self._first, self._iterator = [], None
        for number, entry in enumerate(chain(first, rest or iter(self.recorded))):
            if number % PROGRESS_EVERY_RECORDS == 0:
                self._show(number)
            yield entry


def _bad(origins: Origins, line: RecordedLine, record: RawRecord) -> BadLine | None:
    try:
        origins.change(record)
    except RecordError as error:
        return BadLine(line, str(error))
    return None


@contextmanager
def replay_lines(recorded: RecordedFiles, *, shown: bool, timed: bool = True) -> Iterator[Lines]:
    """The lines, with a progress bar on a terminal and lines of progress elsewhere."""
    with progress_bar("replaying", recorded.size_bytes, shown=shown) as bar:
        if bar:
            yield Lines(recorded, lambda number: bar(recorded.position_bytes, f"{number} records"))
        else:
            yield Lines(recorded, replay_progress_lines(recorded) if timed else lambda _: None)


def replay_progress_lines(
    recorded: RecordedFiles, clock: Callable[[], float] = time.monotonic
) -> Callable[[int], None]:
    """Prints the progress of a replay from time to time: records, their rate, and the share of the files."""

    def line(number: int, spent: str, rate: float) -> str:
        share = f", {recorded.position_bytes / recorded.size_bytes:.0%} of the files" if recorded.size_bytes else ""
        return f"{number:,} records in {spent}{share}, {rate:,.0f} a second now."

    return progress_lines(line, clock)


@shell.command(
    "record",
    "Record the stream of a table into a file.",
    shell.value("--table", "TABLE", "The real name of the table.", required=True),
    shell.value("--endpoint-url", "URL", "The endpoint of DynamoDB, for example of DynamoDB Local. Default: AWS."),
    shell.file("--out", "The JSON Lines file to append to.", required=True),
    shell.flag("--follow", "Wait for new records, until Ctrl-C."),
    shell.json_flag("Print the summary as one JSON object."),
)
def record(opened: Session) -> Report:
    """Append the records of a table's stream (24 hours at most) to a file.

    Parent shards are read first. FILE.cursor beside the file keeps the position: the same command continues there,
    after a kill too, and writes no record twice.

    \b
    Examples:
      streamfold record --table orders-prod --out events/orders.jsonl
      streamfold record --table orders --out events/orders.jsonl --endpoint-url http://127.0.0.1:8000 --follow
    """
    from streamfold.cli.dynamodb import explained, make_clients
    from streamfold.replay.stream import StreamReader, record_stream

    given, out, records = opened.given, opened.given.out, 0
    if not out.parent.is_dir():
        raise SettingsError(
            f"There is no folder {out.parent} for {out.name}: make it, or name another file with --out."
        )
    note(f"Note: {out} will hold the contents of the items, unredacted. Protect it as you protect the table.")
    reader = StreamReader(*make_clients(given.endpoint_url), given.table)
    with explained(), progress_bar("recording", None) as show:

        def on_page(page: Any) -> None:
            nonlocal records
            records += len(page)
            if show:
                show(records, f"{records} records")

        before = signal.signal(signal.SIGINT, lambda *_: reader.stop())
        try:
            recorded = record_stream(reader, out, follow=given.follow, on_page=on_page)
        finally:
            signal.signal(signal.SIGINT, before)
    found: dict[str, Any] = {"file": str(out), "records": recorded.records, **recorded.events}
    kinds = ", ".join(f"{count} {event}" for event, count in sorted(recorded.events.items())) or "nothing new"
    lines: list[Printed] = [f"{recorded.records} records ({kinds}) added to {out}."]
    if shards := recorded.trimmed_shards:
        found["trimmed_shards"] = list(shards)
        lines.append(Note(f"Warning: records of {len(shards)} shards were gone before they could be read."))
    return Report([*lines, f"Replay them with: {session.program()} replay {out}"], found)
