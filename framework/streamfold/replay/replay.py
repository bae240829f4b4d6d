"""Replays recorded records on a store: the loop behind ``streamfold replay``, without its options and its output."""

import gc
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from streamfold.batch.fan_outs import enqueue_open, run_chains, run_fan_outs
from streamfold.batch.process import plan_changes, process_changes
from streamfold.batch.report import Report, finish_postponed, merge
from streamfold.commit.outcome import Cause, Failure
from streamfold.commit.plan import Plan
from streamfold.engines.protocol import KeptState
from streamfold.errors import EngineError, EngineUnreachable, RecordError, is_fatal
from streamfold.records.change import Change, ItemKey
from streamfold.records.envelope import Origins, RawRecord
from streamfold.records.sources import SourceImage, newest_sources
from streamfold.records.values import to_json
from streamfold.replay.files import STANDARD_INPUT, BadLine, Line, RecordedFiles
from streamfold.replay.local import process_beside, sorted_changes, work_off
from streamfold.replay.mismatches import ItemsAtRows, NamedAttributes, RecordedItemsAtRows, UnseenAttribute
from streamfold.routes.application import Application
from streamfold.routes.route import REFERENT
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import AddRow

NEW_RECORDS, ALL_RECORDS = 1_000, 500_000
"""Records after which new values are searched for cycles, and after which all values are."""
YOUNGEST, ALL = 0, 2

KEPT_RECORDS_MAX = 10_000
"""Records that are kept to be retried. With more, the cursor is kept where it is, and all records behind it are read
again."""
FORMAT = 2
"""Of the kept cursor. A cursor of another format is not found, so that the replay begins anew."""

FileEntry = tuple[Line, RawRecord] | BadLine

BATCH_RECORDS = 10_000
"""Default number of records in a batch: large batches touch each item and row once."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the lines of a batch. As values they take some ten times as much memory: a record may have 800 KB."""
FAILURES_KEPT_MAX = 100
CAUSES_KEPT_MAX = 1000
"""Failures and bad lines that are kept in full; all are counted."""

PutSources = Callable[[Iterable[SourceImage]], None]
Observe = Callable[[Sequence[Change], Report, float], None]


class Garbage:
    """Searches for cycles once enough records are done."""

    def __init__(self) -> None:
        self._new = self._all = 0  # records since the last search of new values, and of all values

    def done(self, records: int) -> None:
        """Counts a batch whose records are not held any more, and searches for cycles if they are enough."""
        self._new += records
        self._all += records
        if self._all >= ALL_RECORDS:
            gc.collect(ALL)
            self._new = self._all = 0
        elif self._new >= NEW_RECORDS:
            gc.collect(YOUNGEST)
            self._new = 0


@contextmanager
def garbage_between_batches() -> Iterator[Garbage]:
    """Stops Python's own search for cycles during a replay: it would search the values of a batch many times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield Garbage()
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True)
class PlannedWrites:
    """The writes of plans, and the steps that would follow, whose number of writes depends on the store."""

    transactions: int = 0
    writes: int = 0
    writes_behind: int = 0  # of these, after the transactions
    made_of_entries: int = 0  # rows that are computed once their entries are written
    removed_if_empty: int = 0  # rows that lose a contributor, and are removed if it was the last one
    other_steps: int = 0  # steps of kinds after the writes

    def add(self, plan: Plan) -> None:
        """Counts the plan of one more batch."""
        within = [write for transaction in plan.transactions for write in transaction.writes]
        rows = sum(hasattr(each, "row") for each in plan.deferred)
        behind = len(plan.puts) + rows
        self.transactions += len(plan.transactions)
        self.writes += len(within) + behind
        self.writes_behind += behind
        added = [write for write in within if isinstance(write, AddRow)]
        self.made_of_entries += len({write.key for write in added if write.changed_entries})
        self.removed_if_empty += len({write.key for write in added if write.may_empty})
        self.other_steps += len(plan.deferred) - rows


INSERTED_MAX = 100_000
"""Items whose begin is remembered, until it is known that some were there before the records."""


class ReplayCursorText(NamedTuple):
    """The progress of a replay."""

    entries: int  # records and bad lines that were read
    digest: str  # of the lines that were read
    handlers: list[str]  # that processed the records


class KeptRecord(NamedTuple):
    """A record that is kept to be retried, with its file and line."""

    file: str
    number: int
    is_bad: bool
    record: RawRecord

    @property
    def text(self) -> str:
        return to_json(self._asdict())


class ReplayCursor:
    """The progress of a replay through its files, kept in the state. Nothing is kept for standard input.

    ``went_on`` is called with the number of records behind a resumed replay, before the first is read.
    """

    def __init__(
        self,
        app: Application,
        settings: Settings,
        engine: KeptState,
        files: RecordedFiles,
        went_on: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.engine = engine
        self._went_on = went_on
        self._files = files
        self._progress = engine.progress
        self._name = json.dumps([FORMAT, app.name, settings.group, *files.paths])
        self._handlers = sorted({route.name for route in app.routes}.difference(settings.handlers_off))
        self._is_kept = STANDARD_INPUT not in files.paths
        self._records = 0  # kept to be retried
        self._taken = 0  # of these, since the last batch
        self._entries = 0
        self._bad: list[KeptRecord] = []  # since the last batch
        self.behind = 0  # records that an earlier run has processed

    def entries(self, lines: Iterable[FileEntry]) -> Iterator[FileEntry]:
        """The pending entries: kept records, bad lines before the cursor, then the lines behind the cursor."""
        cursor = self._cursor()
        read = iter(lines)
        before = [entry for entry in islice(read, cursor.entries if cursor else 0) if isinstance(entry, BadLine)]
        # Other content under the same name has another digest: the files are then replayed from the begin.
        if cursor is not None and self._files.digest() == cursor.digest:
            self._entries = cursor.entries
            kept = [KeptRecord(**json.loads(text)) for text in self._progress.records(self._name)]
            self.behind = cursor.entries - len(before) - sum(each.is_bad for each in kept)
            self._went_on(self.behind)
            yield from self._again(kept)
            yield from before
        else:
            read = iter(lines) if cursor else read
            with self.engine.batch():
                self._progress.end(self._name)
        for entry in read:
            self._entries += 1
            yield entry

    def keep(self, line: Line, record: RawRecord) -> None:
        """Keeps a bad record with the next batch: a resumed replay must not skip it."""
        if self._is_kept:
            self._bad.append(KeptRecord(line.file, line.number, True, record))
        if len(self._bad) > KEPT_RECORDS_MAX:
            self.stay()
            self._bad.clear()

    def note(self, batch: Sequence[tuple[Line, Change]], report: Report, waiting: Sequence[Change]) -> None:
        """Stores the progress in the transaction of a batch; ``waiting`` have work at the replay's end."""
        if not self._is_kept:
            return
        failed = {(failure.sequence, failure.item) for failure in report.failures}
        waits = {id(change) for change in waiting}
        kept = [*self._bad]
        for line, change in batch if failed or waits else ():
            if id(change) in waits or (change.sequence, change.name) in failed:
                kept.append(KeptRecord(line.file, line.number, False, change.record))
        self._bad.clear()
        self._records += len(kept)
        # A resumed replay reads kept records into memory: too many of them cost more than reading the files again.
        if self._records - self._taken > KEPT_RECORDS_MAX:
            self._is_kept = False
            return
        self._progress.drop_first(self._name, self._taken)
        self._records, self._taken = self._records - self._taken, 0
        self._progress.add_records(self._name, (each.text for each in kept))
        cursor = ReplayCursorText(self._entries, self._files.digest(), self._handlers)
        self._progress.put_cursor(self._name, to_json(cursor._asdict()))

    def stay(self) -> None:
        """Keeps the stored cursor from now on: a resumed replay could not repeat the work from behind it."""
        self._is_kept = False

    def end(self) -> None:
        """Removes the cursor, because the files were replayed to their end: their next replay begins anew."""
        self._progress.end(self._name)

    def _cursor(self) -> ReplayCursorText | None:
        text = self._progress.cursor(self._name) if self._is_kept else None
        cursor = ReplayCursorText(**json.loads(text)) if text else None
        return cursor if cursor and cursor.handlers == self._handlers else None

    def _again(self, kept: Sequence[KeptRecord]) -> Iterator[FileEntry]:
        self._records = len(kept)
        for each in kept:
            self._taken += 1
            yield Line(each.file, each.number), each.record


class FailedRecord(NamedTuple):
    """A failure and the line of its record."""

    line: Line | None  # None: a record of the engine's own stream
    failure: Failure


@dataclass(slots=True)
class Summary:
    """The result of a replay."""

    report: Report = field(default_factory=Report)  # of all batches, without their failures
    records: int = 0
    behind: int = 0  # records that an earlier replay of the same files has applied, and this one has skipped
    derived: int = 0  # records of declared targets, which are not delivered
    failures: list[FailedRecord] = field(default_factory=list)  # the first FAILURES_KEPT_MAX
    failure_count: int = 0
    causes: dict[Cause, tuple[FailedRecord, int]] = field(default_factory=dict)  # the first failure, and how many
    bad_lines: list[BadLine] = field(default_factory=list)  # the first FAILURES_KEPT_MAX
    bad_line_count: int = 0
    stopped: bool = False  # at the first bad line
    absent: Sequence[ItemKey] = ()  # looked-up items that no record showed
    older: int = 0  # records that a loaded export has already
    unseen: Sequence[UnseenAttribute] = ()  # attributes that declarations name, and that no item had
    at_rows: Sequence[ItemsAtRows] = ()  # of the derived ones, records of items that no handler put
    planned: PlannedWrites = field(default_factory=PlannedWrites)  # by a dry run

    @property
    def clean(self) -> bool:
        return not self.failure_count and not self.bad_line_count


class Replay:
    """One replay: reads lines in order, gathers batches and processes them.

    put_sources: stores the newest image of each source item. None: nothing is stored, and cascades find no children.
    keep_going: bad lines are skipped and reported.
    dry_run: batches are only planned, and it is called with each plan.
    window_seconds: a batch ends before a record that was written so much later than its first, as on Lambda.
    observe: called with the changes, the report and the seconds of each batch.
    """

    def __init__(
        self,
        runtime: Runtime,
        origins: Origins,
        *,
        batch_records: int = BATCH_RECORDS,
        keep_going: bool = False,
        dry_run: Callable[[Plan], None] | None = None,
        put_sources: PutSources | None = None,
        window_seconds: float = math.inf,
        observe: Observe | None = None,
    ) -> None:
        self.runtime = runtime
        self.until: int | None = None  # time passes behind the last record, up to this moment in epoch microseconds
        self.app = runtime.application
        self.origins = origins
        self.batch_records = batch_records
        self.keep_going = keep_going
        self.dry_run = dry_run
        self.put_sources = put_sources
        self.window_seconds = window_seconds
        self.observe = observe
        self.cursor: ReplayCursor | None = None
        self.summary = Summary()
        self._attributes = NamedAttributes(self.app.routes)
        self._derived: dict[ItemKey, bool] = {}
        self._at_rows = RecordedItemsAtRows(self.app)
        self._removed: set[ItemKey] = set()  # looked-up items that a record showed the end of
        self._inserted: set[ItemKey] | None = (
            None  # items that the records show from their begin, if parts are gathered
        )

    def process(self, lines: Iterable[tuple[Line, RawRecord] | BadLine], cursor: ReplayCursor | None = None) -> Summary:
        """Replays all lines. Without ``keep_going`` it stops at the first bad line; the lines before it are applied.

        cursor: each batch is one transaction of a state, which also keeps the progress.
        """
        self.cursor = cursor
        self.runtime.source_items = self.put_sources is not None
        self.runtime.postponed = [] if self.runtime.source_items else None
        stream = self.runtime.store.own_stream
        self.runtime.own_stream = None if self.dry_run else stream
        if self.runtime.store.is_local and not self.dry_run:  # elsewhere the table has them, whatever the files show
            self.runtime.absent = {}
            self._inserted = set() if self.app.gathers else None
        if stream is not None and not self.dry_run:
            stream.retry(self.runtime.settings.group)
        if not self.dry_run and enqueue_open(self.runtime):
            self._chain()  # fan-outs that an earlier replay left open
        with garbage_between_batches() as garbage:
            for batch in self._batches(self._changes(self.cursor.entries(lines) if self.cursor else lines)):
                records = len(batch)
                self._process(batch)
                batch.clear()
                garbage.done(records)
        self.summary.behind = self.cursor.behind if self.cursor else 0
        with self._transaction():
            self._work_off()
            if self.until is not None and not self.summary.stopped:
                self._work_off(until=self.until)
            self._finish()
            if self.cursor and not self.summary.stopped:
                self.cursor.end()
        self.summary.absent = [
            item for item in self.runtime.absent or () if item not in self._removed and not self.app.derived(item)
        ]
        self.summary.unseen = self._attributes.unseen()
        self.summary.at_rows = self._at_rows.found()
        return self.summary

    def _batches(self, changes: Iterable[tuple[Line, Change]]) -> Iterator[list[tuple[Line, Change]]]:
        """Batches of ``batch_records`` records, or of ``BATCH_BYTES_MAX`` bytes of lines.

        In a local state, a record of an item at whose moment a handler is called once is a batch of its own: the next
        record of the item could move the moment before anybody sees it.
        """
        batch: list[tuple[Line, Change]] = []
        by_moments = self.app.calls_once and self.runtime.store.is_local
        size = 0
        for entry in changes:
            single = by_moments and self._has_timer(entry[1].item)
            if batch and (single or (self.window_seconds < math.inf and self._is_late(batch[0][1], entry[1]))):
                yield batch
                batch, size = [], 0
            batch.append(entry)
            size += entry[0].record_bytes
            if single or len(batch) >= self.batch_records or size >= BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _has_timer(self, item: ItemKey) -> bool:
        return any(route.kind.calls_once(route) for route, _ in self.app.sources(item))

    def _is_late(self, first: Change, change: Change) -> bool:
        timed = first.has_at and change.has_at
        return timed and change.at_seconds - first.at_seconds > self.window_seconds

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
                self._at_rows.see(read[1])
            else:
                self._attributes.seen(read[1])
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
        # The batch and the cursor behind it are stored together: a killed replay neither repeats nor skips records.
        return self.cursor.engine.batch() if self.cursor else nullcontext()

    def _process(self, batch: list[tuple[Line, Change]]) -> None:
        with self._transaction():
            self._work_off(batch)  # also what the batch before it asked for and had come by then
            self._process_batch(batch)

    def _work_off(self, batch: Sequence[tuple[Line, Change]] = (), until: int | None = None) -> None:
        """Works off the wakes up to the first record of a batch, up to a moment, or up to the clock of the state."""
        if not self.dry_run:
            self.note(work_off(self.runtime, [change for _, change in batch], until), {})

    def _process_batch(self, batch: list[tuple[Line, Change]]) -> None:
        began = time.perf_counter()
        changes = [change for _, change in batch]
        self._look_for_older(changes)
        postponed = len(self.runtime.postponed or ())
        found = sorted_changes(self.runtime.own_stream if self.put_sources else None, changes)
        if self.put_sources:
            self.put_sources(newest_sources(change for change in changes if change.item not in found.loaded))
        if self.dry_run:
            plan, report = plan_changes(self.runtime, changes)
            self.summary.planned.add(plan)
            self.dry_run(plan)
        else:
            if found.loaded:
                report = process_beside(self.runtime, found, self.origins.sources)
            else:
                report = process_changes(self.runtime, changes, self.origins.sources)
            self.summary.older += len(found.older)
            removed = {change.item for change in changes if change.event == "REMOVE"}
            self._removed |= {
                item for item in removed if any(each.role == REFERENT for each, _ in self.app.listeners(item))
            }
            _stop_if_unreachable(report)
            if self.cursor:
                self.cursor.note(batch, report, self._postponed(postponed))
        if self.observe is not None:
            self.observe(changes, report, time.perf_counter() - began)
        self.note(report, {(change.sequence, change.name): line for line, change in batch} if report.failures else {})
        postponed = len(self.runtime.postponed or ())
        self._chain()
        # Postponed work of the chain is not among the kept records: a resumed replay has to read all records again.
        if self.cursor and self._postponed(postponed):
            self.cursor.stay()

    def _look_for_older(self, changes: Iterable[Change]) -> None:
        """Warns once if a root or part was there before the records: unlike a referent, a part has no name then."""
        known = self._inserted
        if known is None or len(known) >= INSERTED_MAX:
            return
        for change in changes:
            if change.item in known or change.event == "INSERT":
                known.add(change.item)
                continue
            names = sorted({each.route.name for each, _ in self.app.listeners(change.item) if each.route.parts})
            if names:
                self.runtime.warn_once(
                    ("collections",),
                    f"Handlers {', '.join(names)} gather parts, and items were there before the records: parts that no "
                    "record shows are missing from their rows. backfill --export --load begins with all items.",
                )
                self._inserted = None
                return

    def _postponed(self, first: int) -> list[Change]:
        return [change for each in (self.runtime.postponed or [])[first:] for change in each.changes]

    def _finish(self) -> None:
        """Does the postponed work, and the work that follows from it, until none is pending.

        It runs after the last record, because the recording already holds the changes of its cascades.
        """
        # Each round may postpone work of the next handlers in a chain: a chain is no longer than the list of handlers.
        for _ in range(len(self.app.routes)):
            if not self.runtime.postponed:
                break
            self.note(finish_postponed(self.runtime), {})
            self._chain()

    def _chain(self) -> None:
        """Works on the open fan-outs, and runs the chains of an engine with its own stream."""
        if self.dry_run:
            return
        stream = self.runtime.store.own_stream
        self.note(run_chains(self.runtime, stream) if stream is not None else run_fan_outs(self.runtime), {})

    def note(self, report: Report, lines: dict[tuple[str | None, str], Line]) -> None:
        """Adds a batch's report to the summary; ``lines`` are the lines of its records.

        Raises ``EngineError``, with the handler's name, for an error that every later record would meet too.
        """
        for failure in report.failures:
            if is_fatal(failure.error):
                raise EngineError(f"The replay stops: {failure}") from failure.error
            self.summary.failure_count += 1
            failed = FailedRecord(lines.get((failure.sequence, failure.item)), failure)
            if len(self.summary.failures) < FAILURES_KEPT_MAX:
                self.summary.failures.append(failed)
            cause = failure.cause
            if cause in self.summary.causes or len(self.summary.causes) < CAUSES_KEPT_MAX:
                first, count = self.summary.causes.get(cause, (failed, 0))
                self.summary.causes[cause] = first, count + 1
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
