"""A run over all items: segment by segment, page by page, beside the live stream.

The cursor of a segment moves after its page is done. So a run that was killed does one page again, which changes
nothing; and two runs of one job at once do no harm. After the sources come the ledger items whose source is gone: an
item that older code saw removed is in no scan of the sources.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol, cast

from streamfold.engines import Engine, Segment
from streamfold.engines.timed import Timed
from streamfold.errors import EngineUnavailable, SettingsError, TableThrottled
from streamfold.jobs.job import Job, Jobs, JobSegment
from streamfold.jobs.rates import Pace
from streamfold.keys.table import STATE, Table
from streamfold.lifecycle.exports import Export
from streamfold.lifecycle.keys import PAGE_ITEMS, ItemKeys
from streamfold.lifecycle.page import ItemFailed, PageReport, Pages
from streamfold.records.change import ItemKey
from streamfold.run import TRIES_MAX, Run

LOOK_SECONDS = 5
"""How often a run looks at its job, for another rate or a pause."""
PAUSE_SECONDS = 5
WAIT_SECONDS_MAX = 24 * 60 * 60
"""The longest wait for a pause to end, or for the stream: then the run stops. The same command goes on."""
FAILED_KEPT = 10_000
"""Failed items that a run remembers; it counts the others."""
Tell = Callable[["FillingProgress"], None]
KeepFailed = Callable[[Sequence[ItemFailed]], None]
"""Is given the failed items of each page, before the run goes on behind them."""
Metered = Callable[[], tuple[float, float]]
"""Read and write units that were consumed since it was asked last."""


@dataclass(slots=True)
class FillingProgress:
    """How far a run is."""

    read: int = 0  # keys that were read
    report: PageReport = field(default_factory=PageReport)
    segments: int = 0
    done: int = 0  # segments
    unkeyed: int = 0  # ledger items whose source cannot be told, because its key is too long to be kept
    waits: str = ""  # what the run waits for; "": it does not wait


class Beside(NamedTuple):
    """What a run tells beside its pages, and what it heeds."""

    tell: Tell = lambda _: None
    keep: KeepFailed = lambda _: None
    lag: Callable[[], str] = lambda: ""  # why the run has to wait for the live stream; "": it has not to


class Reconciling(Protocol):
    """What becomes of a page of keys: ``Pages``, and the pages of an index that is built."""

    @property
    def run(self) -> Run: ...

    @property
    def timed(self) -> Timed: ...

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport: ...


class Filling:
    """Carries out one job, at its rates as far as ``metered`` tells what was consumed.

    sweeps: items are reconciled too that the ledger knows and that are gone.
    """

    sweeps: ClassVar[bool] = True

    def __init__(
        self,
        jobs: Jobs,
        job: Job,
        pages: Reconciling,
        tables: Sequence[Table],
        *,
        export: Export | None = None,
        page_items: int = PAGE_ITEMS,
        metered: Metered = lambda: (0, 0),
        beside: Beside = Beside(),  # noqa: B008 - a value
    ) -> None:
        self.jobs = jobs
        self.job = job
        self.pages = pages
        self.tables = [*tables, STATE] if self.sweeps else [*tables]
        self.export = export
        self.of = len(export.files) if export else job.segments // len(self.tables)
        self.page_items = page_items
        self.metered = metered
        self.pace = Pace(pages.run, job.read_units, job.write_units, clock=pages.run.clock, meanwhile=self._look)
        self.beside = beside
        self.progress = FillingProgress(segments=job.segments)
        self.looked = -float("inf")

    @property
    def engine(self) -> Engine:
        return self.pages.timed

    def run(self) -> FillingProgress:
        """Reads what is left of the job, and ends it. Raises what reading and writing raise, and ``NotStarted``."""
        left = list(self.jobs.left(self.job))
        self.progress.done = self.job.segments - len(left)
        for segment in left:
            self._segment(segment)
            self.progress.done += 1
        self.job = self.jobs.end(self.job.id)
        return self.progress

    def _segment(self, segment: JobSegment) -> None:
        table, part = self._part(segment.number)
        source = self.export if self.export and table is not STATE else self.engine
        while not segment.done:
            self._look()
            page = source.scan(table, part, segment.after, self.page_items)
            keys = self._swept(page.keys) if table is STATE else page.keys
            report = self._reconciled(keys)
            self.beside.keep(report.failed)
            counts = {"read": len(page.keys), "written": report.written, "equal": report.equal}
            segment = self.jobs.advance(self.job, segment, page.after, counts | {"failed": len(report.failed)})
            self._count(len(page.keys), report)
            self.pace.spend(*self.metered())
            self.beside.tell(self.progress)

    def _part(self, number: int) -> tuple[Table, Segment]:
        """What a segment of the job reads: a part of a table or of the state, or a file of the export."""
        place = min(number // self.of, len(self.tables) - 1)
        first, is_last = place * self.of, place == len(self.tables) - 1
        return self.tables[place], Segment(number - first, self.job.segments - first if is_last else self.of)

    def _reconciled(self, keys: Sequence[ItemKey]) -> PageReport:
        """A page, again where the store did not answer: it changes nothing that was done already."""
        last: EngineUnavailable | None = None
        for _ in self.pages.run.tries(TRIES_MAX):
            try:
                return self.pages.reconcile(keys)
            except EngineUnavailable as error:
                last = error
                if isinstance(error, TableThrottled):
                    self.pace.throttled()
        assert last is not None
        raise last

    def _swept(self, keys: Sequence[ItemKey]) -> list[ItemKey]:
        """The items of ledger items of the handlers' groups whose source is gone."""
        pages = cast(Pages, self.pages)
        routes = [route for route in pages.app.routes if route.name in pages.handlers]
        known = ItemKeys(pages.app, self.engine, routes)
        self.progress.unkeyed += sum(known.is_untold(key) for key in keys)
        return list(known.gone(item for key in keys if (item := known.of_ledger(key)) is not None))

    def _count(self, read: int, report: PageReport) -> None:
        self.progress.read += read
        room = FAILED_KEPT - len(self.progress.report.failed)
        self.progress.report.add(replace(report, failed=report.failed[: max(room, 0)]))

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
            self.beside.tell(self.progress)
            self.pages.run.wait(PAUSE_SECONDS)
        self.progress.waits = ""

    def _reason_to_wait(self) -> str:
        """Reads the job anew, with its rates; says why the run may not go on now, or ""."""
        self.looked = self.pages.run.clock()
        found = self.jobs.read(self.job.id)
        if found is None or found.ended:
            raise SettingsError(f"Job {self.job.id} was ended by somebody else; what it did stays.")
        self.job = found
        self.pace.change(found.read_units, found.write_units)
        return f"job {found.id} is paused" if found.paused else self.beside.lag()


def new_job(
    jobs: Jobs,
    what: str,
    handlers: Sequence[str],
    tables: Sequence[Table],
    segments: int,
    export: Export | None = None,
    **given: object,
) -> Job:
    """Stores a job over these tables, or the files of an export, and the state: so many segments of each."""
    names = ",".join(table.name for table in tables)
    return jobs.create(what, tuple(handlers), names, segments_of(tables, segments, export), **given)


def segments_of(tables: Sequence[Table], segments: int, export: Export | None) -> int:
    """The segments of a job: those of its tables, or the files of its export, and those of the state."""
    return len(export.files) + segments if export else segments * (len(tables) + 1)
