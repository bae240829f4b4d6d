"""``--runner spark``: the keys of an export, brought together by the row that they share, and led part by part."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.app import App
from streamfold.cli.engines import Store, open_store
from streamfold.cli.fan_outs import tell_failed, with_fan_outs
from streamfold.cli.metered import metered
from streamfold.cli.on_spark import PARTITIONS_A_CORE, AppPlace, Files, SortedKeys, row_hash, spark_context
from streamfold.cli.stream_lag import lag_of
from streamfold.cli.work_lines import add_page, page_line
from streamfold.errors import EngineError, SettingsError, shortened
from streamfold.jobs.job import Job, Jobs
from streamfold.ledger.forms import Forms
from streamfold.lifecycle.backfill import Filling, FillingProgress, RunHooks, job_parts
from streamfold.lifecycle.rows import FAILED, contributed
from streamfold.records.change import ItemKey
from streamfold.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamfold.commit.outcome import Failure

AskedLag = tuple[float | None, str | None]
"""``--max-lag`` and ``--function``."""
Shuffled = tuple[tuple[str, str], ItemKey]
"""An item behind the row that it is brought to, and its own name: both as texts that can be compared."""


class Anchored(Files):
    """The items of a file, each with the row that most items of the file share with it.

    A row that is hot is hot in every file: files hold items by the hash of their keys. So it is the same row in all.
    """

    __slots__ = ()

    def __call__(self, task: tuple[str, str, int]) -> Iterator[Shuffled]:
        app, settings = self.place.opened()
        table, manifest, number = task
        routes, forms = self.routes(app), Forms()
        rows: dict[ItemKey, list[str]] = {}
        for line in self.export(app, settings, table, manifest).lines_of(number):
            if any(each.route in routes for each, _ in app.listeners(line.key)):
                found = contributed(app, routes, forms, line)
                rows[line.key] = [repr(row) for row, _ in found if row[0] != FAILED and row != line.key]
        shared = Counter(row for own in rows.values() for row in own)
        for item, own in rows.items():
            yield (max(own, key=lambda row: (shared[row], row), default=repr(item)), repr(item)), item


@dataclass(frozen=True, slots=True)
class Worker:
    """Does parts of a job in a process of the cluster."""

    place: AppPlace
    store: Store
    job: str
    parts: int
    sharing: int
    lag: AskedLag

    def partition(self, number: int, rows: Iterator[Shuffled]) -> Iterator[str]:
        """A partition of keys, which is the part of this number; gives the lines of its pages."""
        yield from self._done(number, SortedKeys(self.parts, (item for _, item in rows)))

    def segment(self, number: int) -> Iterator[str]:
        """A segment of the state."""
        yield from self._done(number, SortedKeys(self.parts, iter(())))

    def _done(self, number: int, keys: SortedKeys) -> list[str]:
        app, settings = self.place.opened()
        lines: list[str] = []
        left: list[Failure] = []
        with closing(open_store(app, settings, self.store)) as engine:
            runtime = Runtime(app, engine, settings, outside=True)
            parts = self._parts(runtime, keys)

            def tell(progress: FillingProgress) -> None:
                if not progress.waits:  # who waits has no page to tell
                    lines.append(page_line(app, progress))
                    parts.progress = FillingProgress()

            parts.hooks = RunHooks(with_fan_outs(runtime, tell, left), lag=lag_of(*self.lag, runtime.clock))
            parts.run_part(number)
        tell_failed(left)
        return lines

    def _parts(self, runtime: Runtime, keys: SortedKeys) -> Filling:
        job = Jobs.of(runtime).read(self.job)
        if job is None:
            raise SettingsError(f"Job {self.job} is not in this store.")
        return job_parts(runtime, job, export=keys, metered=metered(runtime.store), sharing=self.sharing)


class SparkRun(NamedTuple):
    """A run that Spark is to carry."""

    place: AppPlace
    store: Store
    export: str  # the manifest
    files: int
    table: str
    handlers: Sequence[str]
    master: str | None
    lag: AskedLag

    def keys(self) -> SortedKeys:
        """Stands for the keys: how many parts they are brought together in."""
        cores: int = spark_context(self.master).defaultParallelism
        return SortedKeys(cores * PARTITIONS_A_CORE, iter(()))

    def carry(self, app: App, job: Job, parts: Filling) -> None:
        """Has every part of a new job done, and joins what the workers tell in the progress of its parts."""
        context = spark_context(self.master)
        cores, number = context.defaultParallelism, parts.of
        worker = Worker(self.place, self.store, job.id, number, cores, self.lag)
        tasks = [(self.table, self.export, file) for file in range(self.files)]
        keys = context.parallelize(tasks, len(tasks)).flatMap(Anchored(self.place, tuple(self.handlers)))
        # Sorted by all of the key, in partitions by the row alone.
        together = keys.repartitionAndSortWithinPartitions(number, _by_row)
        self._told(app, parts, together.mapPartitionsWithIndex(worker.partition))
        segments = list(range(number, job.segments))
        self._told(app, parts, context.parallelize(segments, len(segments)).flatMap(worker.segment))

    def _told(self, app: App, parts: Filling, lines: Any) -> None:
        try:
            for line in lines.collect():
                told: Mapping[str, Any] = json.loads(line)
                add_page(app, parts, told)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
                raise
            raise EngineError(
                f"Spark gave the run up: {shortened(str(error))}. What was done is kept; a second run writes the rest."
            ) from error


def _by_row(key: tuple[str, str]) -> int:
    return row_hash(key[0])
