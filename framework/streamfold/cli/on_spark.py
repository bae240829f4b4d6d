"""Spark as an engine of runs: an export is repartitioned by row, so that no two workers write one row.

PySpark is imported here alone, when a run asks for it. What it pickles are names and plain values: each worker imports
the application and opens the store itself.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any
from zlib import crc32

from streamfold.app import App
from streamfold.cli.application import load_application
from streamfold.cli.engines import make_settings
from streamfold.engines import ScanPage, ScanPlace, Segment
from streamfold.errors import SettingsError
from streamfold.keys.table import Table
from streamfold.ledger.forms import Forms
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.rows import (
    ItemError,
    RowDifference,
    RowSum,
    VerifiedRows,
    compared,
    contributed,
    joined,
    verified_routes,
)
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.settings import Settings
from streamfold.settings.readers import PREFIX
from streamfold.writes.guarded import RowKey

LOCAL = "local[*,4]"
"""This machine's cores; a task is tried four times, as on a cluster (Spark, Configuration, spark.task.maxFailures)."""
QUIET = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Of a local run: nothing listens to other machines."""
PARTITIONS_A_CORE = 4


@dataclass(frozen=True, slots=True)
class AppPlace:
    """What a worker needs to find the application: names, and the settings of the environment."""

    application: str
    tables: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def here(cls, application: str, tables: tuple[str, ...]) -> "AppPlace":
        return cls(application, tables, {name: text for name, text in os.environ.items() if name.startswith(PREFIX)})

    def opened(self) -> tuple[App, Settings]:
        """The application and the settings, in whichever process this is."""
        os.environ.update(self.environment)
        return _loaded(self.application), make_settings(self.tables)


@cache
def _loaded(application: str) -> App:
    return load_application(application)


def spark_context(master: str | None) -> Any:
    """The cluster's context; one on this machine's cores where nobody said which. Raises ``SettingsError``."""
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
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers would be whatever python3 is on the path
        for name, value in QUIET.items():
            conf.setIfMissing(name, value)
    context = SparkContext.getOrCreate(conf)
    context.setLogLevel("ERROR")
    return context


def row_hash(key: object) -> int:
    """The same in every process, unlike Python's own."""
    return crc32(repr(key).encode())


@dataclass(frozen=True, slots=True)
class Files:
    """The data files of exports, as tasks: the name of the table, the manifest, the number of the file."""

    place: AppPlace
    handlers: tuple[str, ...]

    def routes(self, app: App) -> list[Route]:
        return [route for route in app.routes if route.name in self.handlers]

    def export(self, app: App, settings: Settings, table: str, manifest: str) -> Export:
        return open_export(manifest, app.tables[table], settings.real_name(table))


class FileSums(Files):
    """What the items of a file contribute to rows: a task of ``verify``."""

    __slots__ = ()

    def __call__(self, task: tuple[str, str, int]) -> Iterator[tuple[RowKey, RowSum]]:
        table, manifest, number = task
        app, settings = self.place.opened()
        routes, forms = self.routes(app), Forms()
        for line in self.export(app, settings, table, manifest).lines_of(number):
            yield from contributed(app, routes, forms, line)


class RowsCompared(Files):
    """Compares the rows of a partition."""

    __slots__ = ()

    def __call__(self, rows: Iterable[tuple[RowKey, RowSum]]) -> Iterator[RowDifference | ItemError | int]:
        app, settings = self.place.opened()
        return compared(app, settings, self.routes(app), rows)


def verified_on_spark(
    place: AppPlace, app: App, routes: Sequence[Route], exports: Mapping[str, str], master: str | None
) -> tuple[VerifiedRows, list[ItemError]]:
    """Compares the rows of exports, by the names of their tables, with what their sources add up to."""
    _, settings = place.opened()
    handlers = tuple(route.name for route in verified_routes(app, routes))
    task = FileSums(place, handlers)
    opened = {name: task.export(app, settings, name, manifest) for name, manifest in exports.items()}
    tasks = [(name, exports[name], number) for name, export in opened.items() for number in range(export.parts)]
    context = spark_context(master)
    partitions = context.defaultParallelism * PARTITIONS_A_CORE
    files = context.parallelize(tasks, len(tasks)).flatMap(task)
    rows = files.reduceByKey(joined, partitions, partitionFunc=row_hash)
    found, failed = VerifiedRows(), list[ItemError]()
    for each in rows.mapPartitions(RowsCompared(place, handlers)).collect():
        if isinstance(each, int):
            found.rows += each
        elif isinstance(each, RowDifference):
            found.different.append(each)
        else:
            failed.append(each)
    found.different.sort(key=lambda each: str(each.row))
    return found, failed


class SortedKeys:
    """The keys of one partition, in an order that does not change: the place is how many were read."""

    def __init__(self, parts: int, keys: Iterator[ItemKey]) -> None:
        self.parts = parts
        self._keys = keys
        self._read = 0

    def name_of(self, number: int) -> str:
        return f"partition {number}"

    def scan(self, table: Table, part: Segment, after: ScanPlace | None, limit: int) -> ScanPage:
        """The next keys. The place only moves forward, as a run reads it."""
        del table, part
        skipped = int(after or 0) - self._read
        assert skipped >= 0, "a partition is read once, from its begin to its end"
        for _ in islice(self._keys, skipped):
            pass
        keys = list(islice(self._keys, limit))
        self._read += skipped + len(keys)
        return ScanPage(keys, str(self._read) if len(keys) == limit else None)
