"""A run over all items: part by part, page by page, beside the live stream.

A part is a segment of a table, or a file of an export. Its cursor is in the state, and moves after a page is done. So a
run that was killed does one page again, which changes nothing; and two runs of one job at once do no harm. Whoever can
call ``run_part`` can carry a run: this process, others, or other machines. After the sources come the ledger items
whose source is gone: an item that older code saw removed is in no scan of the sources.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, cast

from streamfold.batch.manifest import note_filling
from streamfold.engines import Engine, ScanPage, ScanPlace, Segment
from streamfold.engines.timed import Timed
from streamfold.errors import EngineUnavailable, NotStarted, SettingsError, TableThrottled
from streamfold.jobs.job import Job, Jobs, JobSegment
from streamfold.jobs.parts import ENDLESS, run_here
from streamfold.jobs.rates import Pace
from streamfold.keys.table import STATE, Table
from streamfold.lifecycle.keys import PAGE_ITEMS
from streamfold.lifecycle.page import Swept
from streamfold.lifecycle.page_report import ItemFailed, PageReport
from streamfold.lifecycle.run_hooks import FillingProgress, Metered, RunHooks
from streamfold.records.change import ItemKey
from streamfold.run import TRIES_MAX, Deadline, Run

LOOK_SECONDS = 5
"""How often a run looks at its job, for another rate or a pause."""
PAUSE_SECONDS = 5
WAIT_SECONDS_MAX = 24 * 60 * 60
"""The longest wait for a pause to end, or for the stream: then the run stops. The same command goes on."""
FAILED_KEPT = 10_000
"""Failed items that a run remembers; it counts the others."""


class Reconciling(Protocol):
    """What becomes of a page of keys: ``Pages``, and the pages of an index that is built."""

    @property
    def run(self) -> Run: ...

    @property
    def timed(self) -> Timed: ...

    @property
    def sweep(self) -> Callable[[Sequence[ItemKey]], Swept] | None:
        """Tells the items that are gone behind keys of the state, which are reconciled too; None: they are not."""
        ...

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport: ...


class KeySource(Protocol):
    """Where the keys of a run come from, if not from a scan of its tables: the files of an export."""

    @property
    def parts(self) -> int: ...

    def name_of(self, number: int) -> str: ...

    def scan(self, table: Table, part: Segment, after: ScanPlace | None, limit: int) -> ScanPage: ...


class Filling:
    """Carries out one job, at its rates as far as ``metered`` tells what was used. Its segments are ``RunParts``."""

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
        self.tables = [*tables] if pages.sweep is None else [*tables, STATE]
        self.export = export
        self.of = export.parts if export else job.segments // len(self.tables)
        self.page_items = page_items
        self.metered = metered
        self.sharing = 1
        self.pace = Pace(pages.run, *self._rates(job), clock=pages.run.clock, meanwhile=self._look)
        self.hooks = hooks
        self.progress = FillingProgress(segments=job.segments)
        self.looked = -float("inf")

    @property
    def engine(self) -> Engine:
        return self.pages.timed

    def run(self) -> FillingProgress:
        """Does what is left of the job, and ends it. Raises what reading and writing raise, and ``NotStarted``."""
        self.progress.done = self.job.segments - len(self.left())
        run_here(self, self._done)
        self.job = self.jobs.end(self.job.id)
        return self.progress

    def _done(self, _: int) -> None:
        self.progress.done += 1

    def share(self, processes: int) -> None:
        """So many processes carry out this job: this one keeps to its share of the rates."""
        self.sharing = processes
        self.pace.change(*self._rates(self.job))

    def left(self) -> list[int]:
        return [segment.number for segment in self.jobs.left(self.job)]

    def run_part(self, number: int, until: Deadline = ENDLESS) -> JobSegment:
        segment = self.jobs.segment(self.job, number)
        table, part = self._part(number)
        source = self.export if self.export and table is not STATE else self.engine
        while not segment.done and until.enough_time():
            self._look()
            if self.job.done:  # by others; a page that is written now may be of a handler that is retired since
                return self.jobs.segment(self.job, number)
            page = source.scan(table, part, segment.after, self.page_items)
            report = self._reconciled(self._swept(page.keys) if table is STATE else page.keys)
            self.hooks.keep(report.failed)
            counts = {"read": len(page.keys), "written": report.written, "equal": report.equal}
            counts |= {"uncompared": report.uncompared, "failed": len(report.failed)}
            segment = self.jobs.advance(self.job, segment, page.after, counts)
            self.count(len(page.keys), report)
            self.pace.spend(*self.metered())
            self.hooks.tell(self.progress)
        return segment

    def file_of(self, number: int) -> str | None:
        """The file of the export that a part is; None: it is a segment of a table."""
        return self.export.name_of(number) if self.export and number < self.of else None

    def _part(self, number: int) -> tuple[Table, Segment]:
        """What a segment of the job reads: a part of a table or of the state, or a file of the export."""
        place = min(number // self.of, len(self.tables) - 1)
        first, is_last = place * self.of, place == len(self.tables) - 1
        return self.tables[place], Segment(number - first, self.job.segments - first if is_last else self.of)

    def _reconciled(self, keys: Sequence[ItemKey]) -> PageReport:
        """A page, again where the store did not answer: it changes nothing that was done already.

        Items that alone got no answer are done again alone. Raises ``NotStarted`` where the time is over: a page that
        was cut short is no page that was done.
        """
        report, again, left = PageReport(), keys, list[ItemFailed]()
        last = EngineUnavailable("The store did not answer.")
        for _ in self.pages.run.tries(TRIES_MAX):
            try:
                found = self.pages.reconcile(again)
            except EngineUnavailable as error:
                last = self._unavailable(error)
                continue
            left = [each for each in found.failed if isinstance(each.error, EngineUnavailable)]
            found.failed = [each for each in found.failed if each not in left]
            report.add(found if again is keys else PageReport(rows=found.rows, failed=found.failed))
            if not left:
                return report
            for each in left:
                last = self._unavailable(cast(EngineUnavailable, each.error))
            again = list(dict.fromkeys(each.item for each in left))
        if again is keys:
            raise last
        report.failed += left
        return report

    def _unavailable(self, error: EngineUnavailable) -> EngineUnavailable:
        if isinstance(error, NotStarted):
            raise error
        if isinstance(error, TableThrottled):
            self.pace.throttled()
        return error

    def _swept(self, keys: Sequence[ItemKey]) -> Sequence[ItemKey]:
        """The items whose source is gone, of those that the state keeps something for."""
        assert self.pages.sweep is not None  # or else the state would be none of the tables
        gone, unkeyed = self.pages.sweep(keys)
        self.progress.unkeyed += unkeyed
        return gone

    def count(self, read: int, report: PageReport) -> None:
        """Adds a page to the progress, which remembers the first of the items that failed."""
        self.progress.read += read
        self.progress.failed += len(report.failed)
        room = FAILED_KEPT - len(self.progress.report.failed)
        self.progress.report.add(replace(report, failed=report.failed[: max(room, 0)]))

    def _rates(self, job: Job) -> tuple[float, float]:
        """This process's share of the rates; 0: no limit."""
        return job.read_units / self.sharing, job.write_units / self.sharing

    def _look(self) -> None:
        """Looks every few seconds whether the run may go on, and waits until it may.

        Raises ``SettingsError`` where somebody ended the job, and ``EngineUnavailable`` when it waits for too long.
        """
        clock = self.pages.run.clock
        if clock() - self.looked < LOOK_SECONDS:
            return
        began = clock()
        while waits := self._reason_to_wait():
            if clock() - began >= WAIT_SECONDS_MAX:
                raise EngineUnavailable(
                    f"The run waited for {WAIT_SECONDS_MAX // 3600} hours, and would still: {waits}."
                )
            self.progress.waits = waits
            self.hooks.tell(self.progress)
            self.pages.run.wait(PAUSE_SECONDS)
        self.progress.waits = ""

    def _reason_to_wait(self) -> str:
        """Reads the job anew, with its rates; says why the run may not go on now, or ""."""
        self.looked = self.pages.run.clock()
        found = self.jobs.read(self.job.id)
        if found is None or (found.ended and not found.done):
            raise SettingsError(f"Job {self.job.id} was ended by somebody else; what it did stays.")
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
    """Stores a job over these tables, or the parts of an export, and the state: so many segments of each.

    The manifest names it, so that the end of the job can tell whether older code ran meanwhile.
    """
    names = ",".join(table.name for table in tables)
    job = jobs.create(what, tuple(handlers), names, segments_of(tables, segments, export), **given)
    note_filling(jobs.application, jobs.engine, jobs.deadline.tries(), job.handlers, job.id)
    return job


def segments_of(tables: Sequence[Table], segments: int, export: KeySource | None) -> int:
    """The segments of a job: those of its tables, or the files of its export, and those of the state."""
    return export.parts + segments if export else segments * (len(tables) + 1)
