"""Replays recorded records on a store: the loop behind ``streamfold replay``, without its options and its output."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamfold.batch.chains import run_chains
from streamfold.batch.fan_outs import ring_open, run_fan_outs
from streamfold.batch.process import finish_postponed, plan_changes, process_changes
from streamfold.batch.report import Report, merge
from streamfold.commit.failure import Failure
from streamfold.commit.plan import Plan
from streamfold.engines import Engine, OwnStream
from streamfold.errors import EngineError, EngineUnreachable, RecordError, is_fatal
from streamfold.records.change import Change, ItemKey
from streamfold.records.envelope import Origins, RawRecord
from streamfold.records.values import RawImage
from streamfold.replay.cursor import ReplayCursor
from streamfold.replay.garbage import garbage_between_batches
from streamfold.replay.lines import BadLine, Line
from streamfold.replay.planned import PlannedWrites
from streamfold.routes.application import Application
from streamfold.run import Run

BATCH_RECORDS = 10_000
"""Records in a batch, if not said otherwise: large batches touch each item and row once."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the lines of a batch, which take some ten times as much memory as values: a record may be of 800 KB."""
FAILURES_KEPT_MAX = 100
"""Failures and bad lines that are kept in full; all are counted."""

SourceImage = tuple[ItemKey, RawImage | None, str]
PutSources = Callable[[Iterable[SourceImage]], None]


class FailedRecord(NamedTuple):
    """A failure and the line of its record."""

    line: Line | None  # None: a record of the engine's own stream
    failure: Failure


@dataclass(slots=True)
class Summary:
    """What a replay did."""

    report: Report = field(default_factory=Report)  # of all batches, without their failures
    records: int = 0
    behind: int = 0  # records that an earlier replay of the same files has applied, and this one has passed over
    derived: int = 0  # records of declared targets, which are not delivered
    failures: list[FailedRecord] = field(default_factory=list)  # the first FAILURES_KEPT_MAX
    failure_count: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)  # the first FAILURES_KEPT_MAX
    bad_line_count: int = 0
    stopped: bool = False  # at the first bad line
    planned: PlannedWrites = field(default_factory=PlannedWrites)  # by a dry run

    @property
    def clean(self) -> bool:
        return not self.failure_count and not self.bad_line_count


class Replay:
    """One replay: reads lines in order, gathers batches and processes them.

    put_sources: stores the newest image of each source item. None: nothing is stored, and cascades find no children.
    keep_going: bad lines are skipped and reported.
    dry_run: batches are only planned, and each plan is passed to it.
    """

    def __init__(
        self,
        app: Application,
        engine: Engine,
        run: Run,
        origins: Origins,
        *,
        batch_records: int = BATCH_RECORDS,
        keep_going: bool = False,
        dry_run: Callable[[Plan], None] | None = None,
        put_sources: PutSources | None = None,
    ) -> None:
        self.app = app
        self.engine = engine
        self.run = run
        self.origins = origins
        self.batch_records = batch_records
        self.keep_going = keep_going
        self.dry_run = dry_run
        self.put_sources = put_sources
        self.cursor: ReplayCursor | None = None
        self.summary = Summary()
        self._derived: dict[ItemKey, bool] = {}

    def process(self, lines: Iterable[tuple[Line, RawRecord] | BadLine], cursor: ReplayCursor | None = None) -> Summary:
        """Replays all lines. Without ``keep_going`` it stops at the first bad line; the lines before it are applied.

        cursor: each batch is one transaction of a state, which keeps how far the replay came.
        """
        self.cursor = cursor
        self.run.source_items = self.put_sources is not None
        self.run.postponed = [] if self.run.source_items else None
        if isinstance(self.engine, OwnStream) and not self.dry_run:
            self.engine.retry(self.run.settings.group)
        if not self.dry_run and ring_open(self.app, self.engine, self.run):
            self._chain()  # what an earlier replay left
        with garbage_between_batches() as garbage:
            for batch in self._batches(self._changes(self.cursor.entries(lines) if self.cursor else lines)):
                records = len(batch)
                self._process(batch)
                batch.clear()
                garbage.done(records)
        self.summary.behind = self.cursor.behind if self.cursor else 0
        with self._transaction():
            self._finish()
            if self.cursor and not self.summary.stopped:
                self.cursor.end()
        return self.summary

    def _batches(self, changes: Iterable[tuple[Line, Change]]) -> Iterator[list[tuple[Line, Change]]]:
        """Batches of so many records, or of ``BATCH_BYTES_MAX`` bytes of lines."""
        batch: list[tuple[Line, Change]] = []
        size = 0
        for entry in changes:
            batch.append(entry)
            size += entry[0].record_bytes
            if len(batch) >= self.batch_records or size >= BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _changes(self, lines: Iterable[tuple[Line, RawRecord] | BadLine]) -> Iterator[tuple[Line, Change]]:
        for entry in lines:
            read = entry if isinstance(entry, BadLine) else self._read(*entry)
            if isinstance(read, BadLine):
                self._note_bad(read)
                if self.cursor and not isinstance(entry, BadLine):
                    self.cursor.keep(*entry)
                if not self.keep_going:
                    self.summary.stopped = True
                    return
                continue
            self.summary.records += 1
            item = read[1].item
            if self._derived[item] if item in self._derived else self._is_derived(item):
                self.summary.derived += 1
            else:
                yield read

    def _read(self, line: Line, record: RawRecord) -> tuple[Line, Change] | BadLine:
        try:
            return line, self.origins.change(record)
        except RecordError as error:
            return BadLine(line, str(error))

    def _is_derived(self, item: ItemKey) -> bool:
        """Whether a key belongs to a declared target. Answers are remembered for about a batch."""
        if len(self._derived) >= self.batch_records:
            self._derived.clear()
        known = self._derived[item] = self.app.derived(item)
        return known

    def _transaction(self) -> AbstractContextManager[None]:
        """Of the state that the replay is kept in: a batch is there as a whole, and so is how far the replay came."""
        return self.cursor.engine.batch() if self.cursor else nullcontext()

    def _process(self, batch: list[tuple[Line, Change]]) -> None:
        with self._transaction():
            self._process_batch(batch)

    def _process_batch(self, batch: list[tuple[Line, Change]]) -> None:
        changes = [change for _, change in batch]
        postponed = len(self.run.postponed or ())
        if self.dry_run:
            plan, report = plan_changes(self.app, changes, self.engine, self.run)
            self.summary.planned.add(plan)
            self.dry_run(plan)
        else:
            if self.put_sources:
                self.put_sources(newest_sources(changes))
            report = process_changes(self.app, changes, self.engine, self.run, self.origins.sources)
            _stop_if_unreachable(report)
            if self.cursor:
                self.cursor.note(batch, report, self._postponed(postponed))
        self.note(report, {(change.sequence, change.name): line for line, change in batch} if report.failures else {})
        postponed = len(self.run.postponed or ())
        self._chain()
        if self.cursor and self._postponed(postponed):
            self.cursor.stay()

    def _postponed(self, first: int) -> list[Change]:
        """The changes with work that was postponed, from the ``first`` one on."""
        return [change for each in (self.run.postponed or [])[first:] for change in each.changes]

    def _finish(self) -> None:
        """Carries out postponed work, and the work that follows from it, until nothing is left to do.

        It runs after the last record, because the recording already holds what its cascades did.
        """
        for _ in range(len(self.app.routes)):
            if not self.run.postponed:
                break
            self.note(finish_postponed(self.app, self.engine, self.run), {})
            self._chain()

    def _chain(self) -> None:
        """Works on the fan-outs that were opened, and runs the chains of an engine with a stream of its own."""
        if self.dry_run:
            return
        if isinstance(self.engine, OwnStream):
            self.note(run_chains(self.app, self.engine, self.run), {})
        else:
            self.note(run_fan_outs(self.app, self.engine, self.run), {})

    def note(self, report: Report, lines: dict[tuple[str | None, str], Line]) -> None:
        """Adds a batch's report to the summary; ``lines`` are the lines of its records.

        Raises ``EngineError``, with the handler's name, for an error that every further record would meet too.
        """
        for failure in report.failures:
            if is_fatal(failure.error):
                raise EngineError(f"The replay stops: {failure}") from failure.error
            self.summary.failure_count += 1
            if len(self.summary.failures) < FAILURES_KEPT_MAX:
                self.summary.failures.append(FailedRecord(lines.get((failure.sequence, failure.item)), failure))
        report.failures = []
        merge(self.summary.report, report)

    def _note_bad(self, bad: BadLine) -> None:
        self.summary.bad_line_count += 1
        if len(self.summary.bad_lines) < FAILURES_KEPT_MAX:
            self.summary.bad_lines.append(bad)


def _stop_if_unreachable(report: Report) -> None:
    """Raises ``EngineUnreachable`` if a record failed with it: every further batch would wait as long."""
    for failure in report.failures:
        if isinstance(failure.error, EngineUnreachable):
            raise failure.error


def newest_sources(changes: Iterable[Change]) -> Iterator[SourceImage]:
    """The newest image of each item, or None for a removed item. Records without a new image are skipped."""
    newest: dict[ItemKey, Change] = {}
    for change in changes:
        known = newest.get(change.item)
        if change.has_new and (known is None or known.version_text < change.version_text):
            newest[change.item] = change
    for item, change in newest.items():
        yield item, change.new.raw or None, change.version_text


def as_counts(summary: Summary, app: Application) -> list[dict[str, Any]]:
    """Per handler: records, rows written, removed, items unchanged, records failed."""
    rows = []
    for route in app.routes:
        tallies = summary.report.tallies.get(route.name)
        rows.append(
            {
                "handler": route.name,
                "records": summary.report.records[route.name],
                "written": tallies.written if tallies else 0,
                "removed": tallies.removed if tallies else 0,
                "unchanged": tallies.unchanged if tallies else 0,
                "failed": summary.report.failed[route.name],
            }
        )
    return rows
