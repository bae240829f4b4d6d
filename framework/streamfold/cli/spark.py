"""Runs on Spark: an export is repartitioned by row, so that no two workers write one row.

Items that are derived with others are joined with these first, in shuffles that a task streams (``lifecycle.joins``).

Only this module imports PySpark, and only for a run on Spark. It pickles names and plain values only: each worker
imports the application and opens the store itself.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from streamfold.app import App
from streamfold.cli.jobs import note_failed, with_fan_outs
from streamfold.cli.session import Store, load_application, make_settings, metered, open_store
from streamfold.cli.work import add_page, lag_of, page_line
from streamfold.derivations.expected import RowDifference, VerifiedRows
from streamfold.engines.protocol import ScanCursor, ScanPage, Segment
from streamfold.errors import EngineError, SettingsError, shortened
from streamfold.jobs.job import Job, Jobs
from streamfold.keys.table import Table
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.backfill import BackfillProgress, BackfillRun, RunHooks, job_segments
from streamfold.lifecycle.exports import Export, ExportLine, open_export
from streamfold.lifecycle.joins import JoinedItem, Joins, Positioned, answered, derive, name_of, together
from streamfold.lifecycle.row_sums import FAILED, ItemError, RowSum, compared, contributed
from streamfold.lifecycle.row_sums import joined as joined_sums
from streamfold.lifecycle.rows import verified_routes
from streamfold.lifecycle.sources import pages
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.settings.readers import PREFIX
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.commit.outcome import Failure

LOCAL = "local[*,4]"
"""This machine's cores; a task is tried four times, as on a cluster (Spark, Configuration, spark.task.maxFailures)."""
QUIET = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Settings of a local run: Spark opens no port to other machines."""
PARTITIONS_A_CORE = 4
SORT_MEMORY = "spark.python.worker.memory", "256m"
"""A task that sorts writes to disk above this size; Spark's own 512m would let a hot key take more than 400 MB."""
ANCHORED_ITEMS = 50_000
"""Items among which the rows that most of them share are counted."""
GivenToTasks = tuple["AppLocation", tuple[str, ...], float]
"""What a task is given: where the application is, the names of handlers, the moment of the exports."""
FileTask = tuple[str, str, int]
"""A data file: the name of the table, the manifest of the export, the number of the file."""
AskedLag = tuple[float | None, str | None]
"""``--max-lag`` and ``--function``."""
Shuffled = tuple[tuple[str, str], ItemKey]
"""The row by which an item is grouped and the name of the item, both as texts that can be compared; then the item."""


@dataclass(frozen=True, slots=True)
class AppLocation:
    """The names and the environment by which a worker finds the application."""

    application: str
    tables: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def here(cls, application: str, tables: tuple[str, ...]) -> "AppLocation":
        return cls(application, tables, {name: text for name, text in os.environ.items() if name.startswith(PREFIX)})

    def opened(self) -> tuple[App, Settings]:
        """Imports the application and reads the settings, in the process of the caller."""
        os.environ.update(self.environment)
        return _loaded(self.application), make_settings(self.tables)


_loaded = cache(load_application)


def spark_context(master: str | None) -> Any:
    """The context of the cluster, or of this machine's cores if none is named. Raises ``SettingsError``."""
    try:
        from pyspark import SparkConf, SparkContext
    except ModuleNotFoundError:
        raise SettingsError(
            "--runner spark needs PySpark and a Java 17: pip install '.[spark]' in the folder of streamfold."
        ) from None
    conf = SparkConf().setAppName("streamfold")
    if master or not conf.contains("spark.master"):
        conf.setMaster(master or LOCAL)
    if (conf.get("spark.master") or "").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers would run any python3 of the path
        for name, value in QUIET.items():
            conf.setIfMissing(name, value)
    conf.setIfMissing(*SORT_MEMORY)
    context = SparkContext.getOrCreate(conf)
    context.setLogLevel("ERROR")
    return context


def row_hash(text: str) -> int:
    """A hash that is the same in every process, unlike Python's own: workers must agree on the partition of a row."""
    return crc32(text.encode(errors="surrogatepass"))


def row_partition(row: RowKey) -> int:
    """A hash that equal keys of rows share."""
    return row_hash(name_of(row))


@dataclass(frozen=True, slots=True)
class Files:
    """The data files of exports, as tasks, for some handlers."""

    location: AppLocation
    handlers: tuple[str, ...]
    moment: float  # of the exports, epoch seconds; 0: that of this machine

    def routes(self, app: App) -> list[Route]:
        return [route for route in app.routes if route.name in self.handlers]

    def export(self, app: App, settings: Settings, table: str, manifest: str) -> Export:
        return open_export(manifest, app.tables[table], settings.real_name(table))

    def lines(self, app: App, settings: Settings, task: FileTask) -> Iterator[ExportLine]:
        table, manifest, number = task
        return self.export(app, settings, table, manifest).lines_of(number)


class FileSums(Files):
    """The contributions of the items of a file that are derived alone, and its rows: a task of ``verify``."""

    __slots__ = ()

    def __call__(self, task: FileTask) -> Iterator[tuple[RowKey, RowSum]]:
        app, settings = self.location.opened()
        routes, schema = self.routes(app), Schema()
        for line in self.lines(app, settings, task):
            yield from contributed(app, routes, schema, line)


class JoinedSums(Files):
    """The contributions of items that are derived with others."""

    __slots__ = ()

    def __call__(self, items: Iterable[JoinedItem]) -> Iterator[tuple[RowKey, RowSum]]:
        app, settings = self.location.opened()
        for _, sums in derive(app, settings, self.routes(app), items, self.moment):
            yield from sums


class RowsCompared(Files):
    """Compares the rows of a partition."""

    __slots__ = ()

    def __call__(self, rows: Iterable[tuple[RowKey, RowSum]]) -> Iterator[RowDifference | ItemError | int]:
        app, settings = self.location.opened()
        return compared(app, settings, self.routes(app), rows, self.moment)


@dataclass(frozen=True, slots=True)
class FromLines(Files):
    """The items of a file, to where a join needs them."""

    of: Callable[[Joins, ExportLine], Iterator[Positioned]]

    def __call__(self, task: FileTask) -> Iterator[Positioned]:
        app, settings = self.location.opened()
        joins = Joins(app, self.routes(app))
        return (each for line in self.lines(app, settings, task) for each in self.of(joins, line))


@dataclass(frozen=True, slots=True)
class FromJoined(Files):
    """Joined items, to where the next join needs what comes of them."""

    of: Callable[[Joins, Iterable[Positioned]], Iterator[Positioned]]

    def __call__(self, items: Iterable[Positioned]) -> Iterator[Positioned]:
        app, _ = self.location.opened()
        return self.of(Joins(app, self.routes(app)), items)


class Shuffles(NamedTuple):
    """The shuffles that join the items of files."""

    context: Any
    tasks: Sequence[FileTask]
    partitions: int

    @property
    def files(self) -> Any:
        """The files, a task each."""
        return self.context.parallelize(self.tasks, len(self.tasks))

    def sorted(self, items: Any) -> Any:
        """What tasks stream: no group is in two partitions, and what comes first is first."""
        return items.repartitionAndSortWithinPartitions(self.partitions, _group_hash)

    def joined(
        self, joins: Joins, given: GivenToTasks, own: Callable[[Joins, ExportLine], Iterator[Positioned]]
    ) -> Any:
        """The items that ``own`` gives, with all that their handlers read."""

        def lines(of: Callable[[Joins, ExportLine], Iterator[Positioned]]) -> Any:
            return self.files.flatMap(FromLines(*given, of))

        brought = lines(own)
        if joins.has_references:
            referents = self.sorted(lines(Joins.asked)).mapPartitions(answered)
            if joins.has_references_through:
                known = self.sorted(lines(Joins.own).union(referents))
                asked = known.mapPartitions(FromJoined(*given, Joins.asked_through))
                brought = brought.union(self.sorted(asked.union(lines(Joins.offered_through))).mapPartitions(answered))
            brought = brought.union(referents)
        if joins.has_ranges:
            parts = self.sorted(lines(Joins.ranges)).mapPartitions(FromJoined(*given, Joins.gathered))
            brought = brought.union(parts)
        return self.sorted(brought).mapPartitions(together)


def _group_hash(position: tuple[str, str, int, str]) -> int:
    return row_hash(position[0])


def verified_on_spark(
    location: AppLocation, app: App, routes: Sequence[Route], exports: Mapping[str, str], time: str, master: str | None
) -> tuple[VerifiedRows, list[ItemError]]:
    """Compares the rows of exports, by the names of their tables, with the sums of their sources.

    time: of the exports, as their summaries have it.
    """
    _, settings = location.opened()
    verified = verified_routes(app, routes)
    moment = datetime.fromisoformat(time).timestamp() if time else 0.0
    given = location, tuple(route.name for route in verified), moment
    task, joins = FileSums(*given), Joins(app, verified)
    opened = {name: task.export(app, settings, name, manifest) for name, manifest in exports.items()}
    tasks = [(name, exports[name], number) for name, export in opened.items() for number in range(export.segments)]
    context = spark_context(master)
    shuffles = Shuffles(context, tasks, context.defaultParallelism * PARTITIONS_A_CORE)
    sums = shuffles.files.flatMap(task)
    if joins.routes:
        sums = sums.union(shuffles.joined(joins, given, Joins.own).mapPartitions(JoinedSums(*given)))
    rows = sums.reduceByKey(joined_sums, shuffles.partitions, partitionFunc=row_partition)
    found, failed = VerifiedRows(), list[ItemError]()
    for each in rows.mapPartitions(RowsCompared(*given)).collect():
        if isinstance(each, int):
            found.rows += each
        elif isinstance(each, RowDifference):
            found.different.append(each)
        else:
            failed.append(each)
    found.different.sort(key=lambda each: str(each.row))
    return found, failed


class SortedKeys:
    """The keys of one partition, in a stable order. The cursor is the number of keys that were read."""

    def __init__(self, parts: int, keys: Iterator[ItemKey]) -> None:
        self.segments = parts
        self._keys = keys
        self._read = 0

    def name_of(self, number: int) -> str:
        return f"partition {number}"

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        """The next keys. The cursor only moves forward, because a run reads a partition once."""
        skipped = int(after or 0) - self._read
        assert skipped >= 0, "a partition is read once, from its begin to its end"
        for _ in islice(self._keys, skipped):
            pass
        keys = list(islice(self._keys, limit))
        self._read += skipped + len(keys)
        return ScanPage(keys, str(self._read) if len(keys) == limit else None)


def anchored(items: Iterable[tuple[ItemKey, Iterable[RowKey]]]) -> Iterator[Shuffled]:
    """Items with the row that most of the items around them share with them. ``items``: with the rows of each.

    Files hold items by the hash of their keys, so a row that is hot in one file is hot in all. All its items are then
    grouped by this row, and one worker writes it.
    """
    for some in pages(items, ANCHORED_ITEMS):
        rows = [(item, [name_of(row) for row in own if row[0] != FAILED and row != item]) for item, own in some]
        shared = Counter(row for _, own in rows for row in own)
        for item, own in rows:
            yield (max(own, key=lambda row: (shared[row], row), default=name_of(item)), name_of(item)), item


class Anchored(Files):
    """The items of a file, anchored."""

    __slots__ = ()

    def __call__(self, task: FileTask) -> Iterator[Shuffled]:
        return anchored(self._rows(task))

    def _rows(self, task: FileTask) -> Iterator[tuple[ItemKey, list[RowKey]]]:
        app, settings = self.location.opened()
        routes, schema = self.routes(app), Schema()
        for line in self.lines(app, settings, task):
            if any(each.route in routes for each, _ in app.listeners(line.key)):
                yield line.key, [row for row, _ in contributed(app, routes, schema, line)]


class JoinedAnchors(Files):
    """Items that were joined with others, anchored."""

    __slots__ = ()

    def __call__(self, items: Iterable[JoinedItem]) -> Iterator[Shuffled]:
        app, settings = self.location.opened()
        made = derive(app, settings, self.routes(app), items, self.moment)
        return anchored((item, [row for row, _ in sums]) for item, sums in made)


@dataclass(frozen=True, slots=True)
class Worker:
    """Does segments of a job in a process of the cluster."""

    location: AppLocation
    store: Store
    job: str
    segments: int
    sharing: int
    lag: AskedLag

    def partition(self, number: int, rows: Iterator[Shuffled]) -> Iterator[str]:
        """Does the segment of this number, a partition of keys; gives the lines of its pages."""
        yield from self._done(number, SortedKeys(self.segments, (item for _, item in rows)))

    def segment(self, number: int) -> Iterator[str]:
        """Does a segment of the state; gives the lines of its pages."""
        yield from self._done(number, SortedKeys(self.segments, iter(())))

    def _done(self, number: int, keys: SortedKeys) -> list[str]:
        app, settings = self.location.opened()
        lines: list[str] = []
        failures: list[Failure] = []
        with closing(open_store(app, settings, self.store)) as engine:
            runtime = Runtime(app, engine, settings, outside=True)
            job = Jobs.of(runtime).read(self.job)
            if job is None:
                raise SettingsError(f"Job {self.job} is not in this store.")
            run = job_segments(runtime, job, export=keys, metered=metered(engine), sharing=self.sharing)

            def show(progress: BackfillProgress) -> None:
                if not progress.waits:  # a process that waits has no page to print
                    lines.append(page_line(app, progress))
                    run.progress = BackfillProgress()

            run.hooks = RunHooks(with_fan_outs(runtime, show, failures), lag=lag_of(*self.lag, runtime.clock))
            run.run_segment(number)
        note_failed(failures)
        return lines


class SparkRun(NamedTuple):
    """A run on Spark."""

    location: AppLocation
    store: Store
    export: str  # the manifest
    files: int
    table: str
    handlers: Sequence[str]
    master: str | None
    lag: AskedLag

    def keys(self) -> SortedKeys:
        """Declares the number of partitions, without any keys."""
        cores: int = spark_context(self.master).defaultParallelism
        return SortedKeys(cores * PARTITIONS_A_CORE, iter(()))

    def anchors(self, context: Any, app: App, partitions: int) -> Any:
        """The items of the export, anchored. Those that are not in it are not joined: no anchor needs to be right."""
        given = self.location, tuple(self.handlers), 0.0
        shuffles = Shuffles(context, [(self.table, self.export, file) for file in range(self.files)], partitions)
        joins = Joins(app, [route for route in app.routes if route.name in self.handlers])
        if not joins.routes:
            return shuffles.files.flatMap(Anchored(*given))
        return shuffles.joined(joins, given, Joins.visited).mapPartitions(JoinedAnchors(*given))

    def carry(self, app: App, job: Job, run: BackfillRun) -> None:
        """Does every segment of a new job, and adds the lines of the workers to the progress of the run."""
        context = spark_context(self.master)
        cores, number = context.defaultParallelism, run.of
        worker = Worker(self.location, self.store, job.id, number, cores, self.lag)
        keys = self.anchors(context, app, number)
        # Partitioned by the row only, and sorted by the whole key: a task that is repeated reads the same order.
        together = keys.repartitionAndSortWithinPartitions(number, lambda key: row_hash(key[0]))
        segments = list(range(number, job.segments))
        try:
            for line in together.mapPartitionsWithIndex(worker.partition).collect():
                add_page(app, run, json.loads(line))
            for line in context.parallelize(segments, len(segments)).flatMap(worker.segment).collect():
                add_page(app, run, json.loads(line))
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
                raise
            raise EngineError(
                f"Spark gave the run up: {shortened(str(error))}. What was done is kept; a second run writes the rest."
            ) from error
