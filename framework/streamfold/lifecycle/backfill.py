"""A run over all items: estimated, divided into segments, done page by page beside the live stream.

A run elsewhere is one of AWS Step Functions: a Distributed Map over an export's manifest. ``backfill.asl.json`` is the
state machine. Its input is the output of ``streamfold backfill --runner elsewhere``. It calls the function for each
segment until that is done, and then ends the job. ``work`` is the function.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from math import ceil
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from streamfold.batch.manifest import note_backfill, note_filled
from streamfold.batch.process import check_application
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import ItemFailed
from streamfold.engines.capacity import READ_BYTES
from streamfold.engines.deadline import TRIES_MAX, Deadline
from streamfold.engines.protocol import Engine, Inserted, ScanCursor, ScanPage, Segment, StoredItem
from streamfold.errors import (
    EngineError,
    EngineUnavailable,
    ItemFault,
    NotStarted,
    SettingsError,
    TableThrottled,
    redacted,
)
from streamfold.jobs.job import ENDLESS, Job, Jobs, JobSegment, run_here
from streamfold.jobs.rates import Pace
from streamfold.keys.table import STATE, Table
from streamfold.lifecycle.exports import S3, Export, open_export
from streamfold.lifecycle.page import OrphanScan, PageReport, Pages
from streamfold.lifecycle.sources import PAGE_ITEMS, wanted_routes
from streamfold.records.change import ItemKey
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import PutRow, RowKey

ShowProgress = Callable[["BackfillProgress"], None]
KeepFailed = Callable[[Sequence[ItemFailed]], None]
"""Is called with the failed items of each page, before the cursor moves behind them."""
Metered = Callable[[], tuple[float, float]]
"""Read and write units that were consumed since the last call."""

SAMPLE_ITEMS = 2_000
"""Items of a sample, or a whole page if it has more: items of a page that share a row cost one write."""
SLICES = 1_000
"""Segments of a table, of which a sample reads some: each is a random slice, by the hash of the keys."""
PAGES_MAX = 400
"""Pages that a sample reads at most if most slices are empty."""
LEDGER_BYTES = 300
"""About the size of a ledger item, whose key the run reads in its scan of the state."""

LOOK_SECONDS = 5
"""How often a run reads its job, for a new rate or a pause."""
PAUSE_SECONDS = 5
WAIT_SECONDS_MAX = 24 * 60 * 60
"""The longest wait for the end of a pause or for the stream: then the run stops, and the same command goes on."""
FAILED_KEPT = 10_000
"""Failed items that a run remembers; the others are only counted."""

BACKFILL, REBUILD = "backfill", "rebuild"
PAGE, EXPORT, RUNNER = "page", "export", "runner"
"""Options of a job: the items of a page, the location of its export, and the only runner that can carry it."""
FAILED = "failed"


@dataclass(slots=True)
class BackfillProgress:
    """The progress of a run."""

    read: int = 0  # keys that were read
    report: PageReport = field(default_factory=PageReport)
    failed: int = 0  # items, also those that the report does not remember
    segments: int = 0
    done: int = 0  # segments
    unkeyed: int = 0  # ledger items without a known source, because its key is too long to be stored
    waits: str = ""  # the reason for which the run waits; "": it does not wait


class RunHooks(NamedTuple):
    """Called by a run after each page. The defaults do nothing."""

    show: ShowProgress = lambda _: None
    keep: KeepFailed = lambda _: None
    lag: Callable[[], str] = lambda: ""  # why the run has to wait for the live stream; "": it does not wait


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected work of a run."""

    items: int  # in the tables
    sampled: int
    fitting: float  # the share of items that a handler reads
    writing: float  # the share of contributions that are written
    write_units: int
    read_units: int
    exact: bool  # all items were sampled

    def seconds(self, read_units: int, write_units: int) -> int | None:
        """The time at these rates; None without a rate."""
        found = [
            ceil(units / rate)
            for units, rate in ((self.read_units, read_units), (self.write_units, write_units))
            if rate
        ]
        return max(found, default=None)


@dataclass(slots=True)
class TableSize:
    """The items of a table and their bytes; both may be some hours old."""

    items: int
    bytes: int


def estimate(
    pages: Pages, tables: Sequence[Table], sizes: Sequence[TableSize], random: Random, page_items: int
) -> Estimate:
    """Compares a sample of the tables' items as a run would, in dry pages, and counts the expected writes.

    ``pages`` is a dry run. Ledger items and sources are read with strong consistency: one read unit for a ledger item,
    and one for each 4 KB of a source; the scan of keys reads the whole table. Then the state is scanned, and the source
    of each ledger item is read again, to find the items that are gone.
    """
    items, size = sum(each.items for each in sizes), sum(each.bytes for each in sizes)
    sampled, exact, report = 0, True, PageReport()
    for table, each in zip(tables, sizes, strict=True):
        wanted = max(SAMPLE_ITEMS, page_items) * each.items // max(items, 1) + 1
        for keys in _sample(pages.runtime.engine, table, random, wanted, each.items):
            sampled += len(keys)
            for start in range(0, len(keys), page_items):
                report.add(pages.reconcile(keys[start : start + page_items]))
        exact = exact and each.items <= wanted
    share = items / sampled if sampled else 0
    average = size / items if items else 0
    fitting = report.items / sampled if sampled else 0
    source = ceil(average / READ_BYTES) or 1
    reads = size / READ_BYTES + items * fitting * (1 + source + LEDGER_BYTES / READ_BYTES + source)
    compared = report.written + report.equal
    return Estimate(
        items,
        sampled,
        fitting,
        report.written / compared if compared else 0,
        round(report.write_units * share),
        round(reads),
        exact,
    )


def _sample(engine: Engine, table: Table, random: Random, wanted: int, items: int) -> Iterable[list[ItemKey]]:
    """Keys of random slices of a table; all keys of a small one."""
    slices = 1 if items <= wanted else SLICES
    found: list[ItemKey] = []
    for number in random.sample(range(slices), min(slices, PAGES_MAX)):
        after = None
        while len(found) < wanted:
            page = engine.scan(table, Segment(number, slices), after, wanted - len(found))
            found += page.keys
            after = page.after
            if after is None:
                break
        if len(found) >= wanted:
            break
    yield found


@dataclass(slots=True)
class InitialHistoryPages:
    """Writes the first rows of pages of items, for some audits."""

    scan_orphans: ClassVar[None] = None  # items that are gone get no first row
    runtime: Runtime
    routes: Collection[Route]

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport:
        """Writes the rows that these items lack. Raises the errors of the store."""
        report, rows = PageReport(), dict[RowKey, tuple[ItemKey, Route, PutRow]]()
        sources = self.runtime.engine.read_sources(dict.fromkeys(items))
        for item, image in sources.items():
            own = [(route, fields) for route, fields in self.runtime.application.sources(item) if route in self.routes]
            report.items += bool(own)
            for route, fields in own:
                row = self._row(item, image, route, fields, report)
                if row is not None:
                    rows[row.key] = item, route, row
        inserted = self.runtime.engine.insert_rows([row for _, _, row in rows.values()]) if rows else Inserted([], [])
        unwritten, refused = set(inserted.missing), inserted.refused
        report.written = report.rows = len(rows) - len(unwritten)
        report.failed += [
            ItemFailed(item, route.name, _unwritten(refused.get(key)))
            for key, (item, route, _) in rows.items()
            if key in unwritten
        ]
        return report

    def _row(self, item: ItemKey, image: StoredItem, route: Route, fields: Fields, report: PageReport) -> PutRow | None:
        """The row that an item lacks; None if it has a history, or if no row can be made of it."""
        with ItemFault(EngineError, SettingsError) as fault:
            row = derivation(route).initial_row(route, item, image, fields, self.runtime)
            report.equal += row is None
            return row
        assert fault.error is not None
        report.failed.append(ItemFailed(item, route.name, fault.error))
        return None


def _unwritten(why: str | None) -> EngineError:
    because = "." if why is None else f": {redacted(why)}"
    return EngineError(f"The first row of its history could not be written{because}")


class Reconciling(Protocol):
    """Processes a page of keys: ``Pages``, or the pages of an index that is built."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def scan_orphans(self) -> Callable[[Sequence[ItemKey]], OrphanScan] | None:
        """Finds the items that are gone behind keys of the state, to reconcile them; None: they are left out."""
        ...

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport: ...


class KeySource(Protocol):
    """The keys of a run, if they are not scanned from its tables: the files of an export."""

    @property
    def segments(self) -> int: ...

    def name_of(self, number: int) -> str: ...

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage: ...


class BackfillRun:
    """Runs one job, at its rates as far as ``metered`` reports the consumed units. Its segments are ``RunSegments``."""

    def __init__(
        self,
        jobs: Jobs,
        job: Job,
        pages: Reconciling,
        tables: Sequence[Table],
        *,
        export: KeySource | None = None,
        page_items: int = PAGE_ITEMS,
        metered: Metered = lambda: (0, 0),
        hooks: RunHooks = RunHooks(),  # noqa: B008 - a value
    ) -> None:
        self.jobs = jobs
        self.job = job
        self.pages = pages
        self.tables = [*tables] if pages.scan_orphans is None else [*tables, STATE]
        self.export = export
        self.of = export.segments if export else job.segments // len(self.tables)
        self.page_items = page_items
        self.metered = metered
        self.sharing = 1
        self.pace = Pace(pages.runtime, *self._rates(job), clock=pages.runtime.clock, meanwhile=self._look)
        self.hooks = hooks
        self.progress = BackfillProgress(segments=job.segments)
        self.looked = -float("inf")

    @property
    def engine(self) -> Engine:
        return self.pages.runtime.engine

    def run(self) -> BackfillProgress:
        """Does the pending segments, and ends the job. Raises the errors of reads and writes, and ``NotStarted``."""
        self.progress.done = self.job.segments - len(self.pending())
        run_here(self, self._done)
        self.job = self.jobs.end(self.job.id)
        return self.progress

    def _done(self, _: int) -> None:
        self.progress.done += 1

    def share(self, processes: int) -> None:
        """Keeps to a share of the rates, because so many processes run this job."""
        self.sharing = processes
        self.pace.change(*self._rates(self.job))

    def pending(self) -> list[int]:
        return [segment.number for segment in self.jobs.pending(self.job)]

    def run_segment(self, number: int, until: Deadline = ENDLESS) -> JobSegment:
        segment = self.jobs.segment(self.job, number)
        table, scanned = self._scanned(number)
        source = self.export if self.export and table is not STATE else self.engine
        while not segment.done and until.enough_time():
            self._look()
            if self.job.done:  # by other processes; a handler of this page may be retired since
                return self.jobs.segment(self.job, number)
            page = source.scan(table, scanned, segment.after, self.page_items)
            report = self._reconciled(self._orphans(page.keys) if table is STATE else page.keys)
            self.hooks.keep(report.failed)
            counts = {"read": len(page.keys), "written": report.written, "equal": report.equal}
            counts |= {"uncompared": report.uncompared, "failed": len(report.failed)}
            segment = self.jobs.advance(self.job, segment, page.after, counts)
            self.count(len(page.keys), report)
            self.pace.spend(*self.metered())
            self.hooks.show(self.progress)
        return segment

    def file_of(self, number: int) -> str | None:
        """The file of the export that a segment reads; None: it reads a table."""
        return self.export.name_of(number) if self.export and number < self.of else None

    def _scanned(self, number: int) -> tuple[Table, Segment]:
        """The keys that a segment of the job reads: of a table, of the state, or of a file of the export."""
        index = min(number // self.of, len(self.tables) - 1)
        first, is_last = index * self.of, index == len(self.tables) - 1
        return self.tables[index], Segment(number - first, self.job.segments - first if is_last else self.of)

    def _reconciled(self, keys: Sequence[ItemKey]) -> PageReport:
        """Reconciles a page, again while the store does not answer: a repeated page changes nothing.

        Only the items without an answer are repeated. Raises ``NotStarted`` if the time is over: a page that was cut
        short is not done, so the cursor must not move behind it.
        """
        report, again, pending = PageReport(), keys, list[ItemFailed]()
        last = EngineUnavailable("The store did not answer.")
        for _ in self.pages.runtime.tries(TRIES_MAX):
            try:
                found = self.pages.reconcile(again)
            except EngineUnavailable as error:
                last = self._unavailable(error)
                continue
            pending = [each for each in found.failed if isinstance(each.error, EngineUnavailable)]
            found.failed = [each for each in found.failed if each not in pending]
            report.add(found if again is keys else PageReport(rows=found.rows, failed=found.failed))
            if not pending:
                return report
            for each in pending:
                last = self._unavailable(cast("EngineUnavailable", each.error))
            again = list(dict.fromkeys(each.item for each in pending))
        # If no try had an answer, nothing of the page is known: the run stops, and the cursor is before the page.
        if again is keys:
            raise last
        report.failed += pending
        return report

    def _unavailable(self, error: EngineUnavailable) -> EngineUnavailable:
        if isinstance(error, NotStarted):
            raise error
        if isinstance(error, TableThrottled):
            self.pace.throttled()
        return error

    def _orphans(self, keys: Sequence[ItemKey]) -> Sequence[ItemKey]:
        """The items of these keys of the state whose source is gone."""
        assert self.pages.scan_orphans is not None  # else the state is not among the tables
        gone, unkeyed = self.pages.scan_orphans(keys)
        self.progress.unkeyed += unkeyed
        return gone

    def count(self, read: int, report: PageReport) -> None:
        """Adds a page to the progress, which remembers the first failed items only: a run may fail on every item."""
        self.progress.read += read
        self.progress.failed += len(report.failed)
        room = FAILED_KEPT - len(self.progress.report.failed)
        self.progress.report.add(replace(report, failed=report.failed[: max(room, 0)]))

    def _rates(self, job: Job) -> tuple[float, float]:
        # The processes of a job share its rates; 0 is no limit.
        return job.read_units / self.sharing, job.write_units / self.sharing

    def _look(self) -> None:
        """Waits until the run may go on; looks every few seconds only.

        Raises ``SettingsError`` if somebody has ended the job, and ``EngineUnavailable`` if it waits for too long.
        """
        clock = self.pages.runtime.clock
        if clock() - self.looked < LOOK_SECONDS:
            return
        began = clock()
        while waits := self._reason_to_wait():
            if clock() - began >= WAIT_SECONDS_MAX:
                raise EngineUnavailable(
                    f"The run waited for {WAIT_SECONDS_MAX // 3600} hours, and the reason remains: {waits}."
                )
            self.progress.waits = waits
            self.hooks.show(self.progress)
            self.pages.runtime.wait(PAUSE_SECONDS)
        self.progress.waits = ""

    def _reason_to_wait(self) -> str:
        """Reads the job and its rates again; returns why the run may not go on now, or ""."""
        self.looked = self.pages.runtime.clock()
        found = self.jobs.read(self.job.id)
        if found is None or (found.ended and not found.done):
            raise SettingsError(f"Job {self.job.id} was ended by somebody else; its results remain.")
        self.job = found
        self.pace.change(*self._rates(found))
        if found.done:
            return ""
        return f"job {found.id} is paused" if found.paused else self.hooks.lag()


def new_job(
    jobs: Jobs,
    what: str,
    handlers: Sequence[str],
    tables: Sequence[Table],
    segments: int,
    export: KeySource | None = None,
    **given: object,
) -> Job:
    """Stores a job over these tables, or the files of an export, and the state, with its number of segments.

    The manifest names the job, so that its end can find out whether older code ran meanwhile.
    """
    names = ",".join(table.name for table in tables)
    job = jobs.create(what, tuple(handlers), names, segments_of(tables, segments, export), **given)
    note_backfill(jobs.application, jobs.engine, jobs.deadline.tries(), job.handlers, job.id)
    return job


def segments_of(tables: Sequence[Table], segments: int, export: KeySource | None) -> int:
    """The segments of a job: of its tables or one for each file of its export, and of the state."""
    return export.segments + segments if export else segments * (len(tables) + 1)


def job_options(page_items: int, export: str | None, runner: str | None = None) -> dict[str, Any]:
    """The options of a job, for the processes that run it. ``runner``: only it knows the items of a segment."""
    return {PAGE: page_items, **({EXPORT: export} if export else {}), **({RUNNER: runner} if runner else {})}


def job_to_carry(jobs: Jobs, identity: str) -> Job:
    """A job to run. Raises ``SettingsError`` if it is unknown, of another kind, or has ended."""
    job = jobs.known(identity)
    if job.what not in (BACKFILL, REBUILD):
        raise SettingsError(f"Job {identity} is a {job.what}: expected one of backfill or rebuild.")
    if runner := job.options.get(RUNNER):
        raise SettingsError(f"Job {identity} is divided by {runner}: only {runner} can carry it.")
    if job.ended:
        raise SettingsError(f"Job {identity} has ended: begin another one.")
    return job


def job_export(runtime: Runtime, job: Job) -> Export | None:
    """The export with the keys of a job; None: its tables are scanned."""
    location = job.options.get(EXPORT)
    if location is None:
        return None
    table = runtime.application.tables[job.table]
    return open_export(location, table, runtime.settings.real_name(table.name))


def job_segments(runtime: Runtime, job: Job, *, sharing: int = 1, **more: Any) -> BackfillRun:
    """The segments of a job, at the share of its rates of one of ``sharing`` processes. ``more``: of ``BackfillRun``.

    Raises ``SettingsError`` if this code lacks one of the job's handlers, if one of them is switched off, or if the
    job's export cannot be read.
    """
    app = runtime.application
    for route in wanted_routes(app, job.handlers):
        if route.name in runtime.settings.handlers_off:
            raise SettingsError(
                f"Handler {route.name!r} of job {job.id} is switched off here (STREAMFOLD_HANDLERS_OFF): switch it on, "
                f"or end the job, streamfold jobs --end {job.id}."
            )
    tables = [app.tables[name] for name in job.table.split(",")]
    pages = Pages(runtime, job.handlers, always=job.what == REBUILD)
    given = {"export": job_export(runtime, job), PAGE + "_items": job.options.get(PAGE, PAGE_ITEMS), **more}
    run = BackfillRun(Jobs.of(runtime), job, pages, tables, **given)
    run.share(sharing)
    return run


def end_job(runtime: Runtime, identity: str) -> Job:
    """Ends a job. If all of its segments are done and no item failed, its handlers are not partial any more.

    A handler remains partial if older code may have processed records without it since the job began.
    """
    ended = Jobs.of(runtime).end(identity)
    if ended.done and not ended.counts.get(FAILED):
        note_filled(runtime, ended.handlers, identity)
    return ended


ASL = "backfill.asl.json"
JOB, PART, FILE, END, SHARING, DONE = "job", "part", "file", "end", "sharing", "done"
BUCKET, KEY = "bucket", "key"
DATA_FILE = "dataFileS3Key"
"""Of a line of a manifest (Developer Guide, S3DataExport.Output)."""
ROWS_NOT_COMPARED = (
    "The rebuild has reconciled all items with their sources. A function has no time to compare all rows with them: "
    "streamfold verify {} --rows --repair does so, from a machine."
)
WorkAnswer = dict[str, Any]


def definition() -> str:
    """The state machine in Amazon States Language; ``${WorkerFunctionArn}`` is replaced by the function's ARN."""
    return files("streamfold.lifecycle").joinpath(ASL).read_text("utf-8")


def location_in_s3(location: str) -> dict[str, str]:
    """The bucket and key of a manifest. Raises ``SettingsError`` for a folder, which no function can read."""
    bucket, _, key = location.removeprefix(S3).partition("/")
    if not location.startswith(S3) or not key:
        raise SettingsError(f"--export {location!r}: a run elsewhere reads it from S3, expected s3://BUCKET/...")
    return {BUCKET: bucket, KEY: key}


def work(runtime: Runtime, event: Any) -> WorkAnswer:
    """Works on a segment while there is time, or ends the job: {"job": ID, "part": N} or {"job": ID, "end": true}.

    Returns ``done``, whether the segment is. Raises ``SettingsError`` for another event, a job that cannot be
    carried, and a manifest of another export; ``NotStarted`` if there was no time for a page.
    """
    identity, number, sharing = _asked(event)
    check_application(runtime, write=False)
    if number is None:
        return _ended(runtime, identity)
    jobs = Jobs.of(runtime)
    run = job_segments(runtime, job_to_carry(jobs, identity), sharing=sharing)
    _check_file(run, number, event.get(FILE))
    before = jobs.segment(run.job, number)
    try:
        cursor = run.run_segment(number, runtime)
    except NotStarted:
        cursor = jobs.segment(run.job, number)
    # A state machine calls again as long as the segment is not done: without this it would call for ever.
    if not cursor.done and cursor.revision == before.revision:
        raise NotStarted(f"Part {number} of job {identity} got no page done: give the function more time or memory.")
    return {JOB: identity, PART: number, DONE: cursor.done}


def _asked(event: Any) -> tuple[str, int | None, int]:
    """The job, the segment and the number of sharing processes of an event; no segment if the job is to end."""
    sharing = 0
    try:
        identity, number = event[JOB], None if event.get(END) else int(event[PART])
        sharing = int(event.get(SHARING, 1))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        identity = number = None
    if not isinstance(identity, str) or (number is not None and number < 0) or sharing < 1:
        raise SettingsError(
            'The event is no part of a run: expected {"job": ID, "part": N}, with "sharing" of 1 or more, or "end": '
            "true."
        )
    return identity, number, sharing


def _ended(runtime: Runtime, identity: str) -> WorkAnswer:
    """Ends a job, again if this was called before and the answer was lost."""
    jobs = Jobs.of(runtime)
    job = jobs.read(identity)
    pending = job_segments(runtime, job_to_carry(jobs, identity)).pending() if job is None or not job.ended else []
    if pending:
        raise SettingsError(f"{len(pending)} parts of job {identity} are not done: part {pending[0]} is the first.")
    if job is not None and job.what == REBUILD:
        runtime.warn(ROWS_NOT_COMPARED.format(" ".join(job.handlers)))
    return {JOB: identity, DONE: True, "counts": dict(end_job(runtime, identity).counts)}


def _check_file(run: BackfillRun, number: int, file: Any) -> None:
    """Raises ``SettingsError`` if a line of the manifest does not name the job's file of this segment."""
    if number >= run.job.segments:
        raise SettingsError(f"Job {run.job.id} has parts 0 to {run.job.segments - 1}: expected one of them.")
    if file is None:
        return
    named = str(file.get(DATA_FILE)) if isinstance(file, dict) else str(file)
    name = run.file_of(number)
    if name is None or named.rpartition("/")[2] != name.rpartition("/")[2]:
        raise SettingsError(
            f"Part {number} of job {run.job.id} is {name}, and the manifest has {named}: expected the same file."
        )
