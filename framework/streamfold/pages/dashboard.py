"""A dashboard with the figures of a replay: what CloudWatch would draw of the records of a recording.

Each function that reads a stream processes the records by itself, in memory, in the batches that Lambda would make of
their times. The metrics are those that the function would write, at the times of the records; units are counted as
DynamoDB bills them. The graphs are read out of the dashboard's own text, with its metric math. A replay has no
throttling, no queue and no second process: their graphs have no data.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from streamfold.batch.report import Report
from streamfold.deploy.alarms import FUNCTION, LAMBDA, TABLE, TABLES
from streamfold.deploy.dashboards import DAY, MINUTE, text_of
from streamfold.deploy.functions import STATE_RESOURCE, STREAM, DeployedFunction
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import VARIABLE
from streamfold.derivations.derivation import local_locations
from streamfold.engines.capacity import WRITE, CountingEngine, write_units
from streamfold.engines.dynamodb_client import Consumed
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import SettingsError
from streamfold.keys.table import STATE
from streamfold.lambda_entry.telemetry import NAMESPACE, Processed, batch_numbers, by_handler, times_written
from streamfold.records.change import Change
from streamfold.records.envelope import Origins
from streamfold.records.values import item_bytes
from streamfold.replay.costs import LAMBDA_BATCH_RECORDS
from streamfold.replay.files import BadLine
from streamfold.replay.replay import FileEntry, Replay
from streamfold.runtime import Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.testing.alarms import STATISTICS, parsed, value_of

POINTS_MAX = 120
"""Of a line. A recording of more minutes has longer periods."""
PERIODS = (MINUTE, 300, 900, 3600, 6 * 3600, DAY, 7 * DAY, 30 * DAY, 365 * DAY)
PERIOD_OF = re.compile(r"PERIOD\(\w+\)")
RUNNING = re.compile(r"RUNNING_SUM\((.*)\)")
SEARCHED = re.compile(r"SEARCH\('\{([^}]*)\} (.*)', '(\w+)', \d+\)")
CRITERION = re.compile(r'(\w+)="([^"]*)"')
NO_LOAD = "Durations are those of this machine, in memory. Throttling, queues and other processes are not in a replay."

MetricOfPoints = tuple[str, str, tuple[tuple[str, str], ...]]
"""Namespace, name and dimensions, sorted."""
LineValues = list[float | None]
"""A line: a value for each period, None without a data point."""


class DataPoints(dict[MetricOfPoints, list[tuple[float, float]]]):
    """Data points of metrics: their times, epoch seconds, and values."""

    def put(self, at: float, namespace: str, dimensions: Mapping[str, str], numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.setdefault((namespace, name, tuple(sorted(dimensions.items()))), []).append((at, float(value)))


class Periods(NamedTuple):
    """The periods of a graph."""

    begin: float  # epoch seconds
    seconds: int
    number: int

    @classmethod
    def of(cls, points: DataPoints, seconds_min: int) -> "Periods":
        """Those of all points: as many as a graph has room for, of ``seconds_min`` or longer."""
        times = [at for own in points.values() for at, _ in own]
        first, last = min(times), max(times)
        fitting = [each for each in PERIODS if each >= seconds_min and (last - first) / each < POINTS_MAX]
        seconds = fitting[0] if fitting else PERIODS[-1]
        begin = first - first % seconds
        return cls(begin, seconds, ceil((last - begin + 1) / seconds))

    def values(self, points: Iterable[tuple[float, float]], statistic: str) -> LineValues:
        found: list[list[float]] = [[] for _ in range(self.number)]
        for at, value in points:
            found[int((at - self.begin) // self.seconds)].append(value)
        return [float(STATISTICS[statistic](each)) if each else None for each in found]


def measured(template: SamTemplate, settings: Settings, entries: Sequence[FileEntry]) -> DataPoints:
    """The metrics of a replay by the functions of a template. Raises ``SettingsError`` if no record is processed."""
    points = DataPoints()
    for function in template.functions:
        if function.sort == STREAM:
            _Played(template, function, settings, points).play(entries)
    if not points:
        raise SettingsError(
            "No record of the application's own items was read that has the time of its write: name files of such "
            "records, as a stream has them."
        )
    return points


class _Played:
    """The records of a recording, processed by one function."""

    def __init__(
        self, template: SamTemplate, function: DeployedFunction, settings: Settings, points: DataPoints
    ) -> None:
        self.app = app = template.deployment.app
        self.template, self.function, self.points = template, function, points
        self.window = float(template.content["Parameters"]["WindowSeconds"]["Default"])
        self.settings = settings._replace(group=function.group, observe_handlers=True)
        self.memory = MemoryEngine(
            app.tables.values(), lambda row: [each for each in app.chains(row) if self.settings.serves(each)]
        )
        self.numbering = CountingEngine(self.memory, chained=True)
        self.calls = 0  # of these, already measured
        self.at = 0.0
        self.pace = SendingPace()

    def play(self, entries: Sequence[FileEntry]) -> None:
        app, settings = self.app, self.settings
        runtime = Runtime(app, self.numbering, settings, outside=False)
        runtime.opened |= local_locations(app, MemoryEngine(()), settings)
        replay = Replay(
            runtime,
            Origins(app.source_tables, settings, lambda _: None, app.tables),
            batch_records=LAMBDA_BATCH_RECORDS,
            keep_going=True,
            put_sources=self.memory.put_sources,
            window_seconds=self.window,
            observe=self.observe,
        )
        replay.process(entries)
        if self.at:
            self._units()  # of what followed the last batch

    def observe(self, changes: Sequence[Change], report: Report, seconds: float) -> None:
        """Measures a batch. Lambda's clock is that of the records: a batch begins a window after its first record."""
        written = times_written(changes)
        if not written:  # without times, nothing says where on the graph it belongs
            return
        began = max(*written.values(), min(written.values()) + self.window)
        self.at = began + seconds
        new = self.numbering.calls[self.calls :]
        self.calls = len(self.numbering.calls)
        read, write = sum(call.read_units for call in new), sum(call.write_units for call in new)
        consumed = Consumed(read, write, sum(call.requests for call in new))
        batch = Processed(report, changes, 0, consumed, seconds, self.at)
        service = {"service": self.app.name, "function": self.function.name}
        self.points.put(self.at, NAMESPACE, service, batch_numbers(batch, self.pace, self.settings))
        for handler, numbers in by_handler(batch, written).items():
            self.points.put(self.at, NAMESPACE, {**service, "handler": handler}, numbers)
        own = {"Duration": 1000 * seconds, "Invocations": 1, "IteratorAge": 1000 * (began - max(written.values()))}
        self.points.put(self.at, LAMBDA, {FUNCTION: self.function.name}, own)
        self._units()
        if self.function == self.template.functions[0]:  # the writes of items themselves, once
            for change in changes:
                units = write_units(max(item_bytes(change.old.raw), item_bytes(change.new.raw)))
                at = written.get(change.sequence, self.at)
                self._put_units(at, change.item[0], WRITE, units)

    def _units(self) -> None:
        for (table, way), units in self.numbering.table_units.items():
            self._put_units(self.at, table, way, units)
        self.numbering.table_units.clear()

    def _put_units(self, at: float, table: str, way: str, units: float) -> None:
        name = STATE_RESOURCE if table == STATE.name else self.template.tables.resource(table)
        real = VARIABLE.sub(r"\1", text_of(self.template.tables.watched.get(name, name)))
        self.points.put(at, TABLES, {TABLE: real}, {f"Consumed{way}CapacityUnits": units})


def boards(template: SamTemplate, points: DataPoints) -> list[dict[str, Any]]:
    content = template.content
    defaults = {name: str(each.get("Default", name)) for name, each in content["Parameters"].items()}

    def named(found: re.Match[str]) -> str:
        return json.dumps(defaults.get(found[1], found[1]))[1:-1]  # within a text of JSON

    shown = []
    for name, resource in content["Resources"].items():
        if resource["Type"] == "AWS::CloudWatch::Dashboard":
            text = VARIABLE.sub(named, resource["Properties"]["DashboardBody"]["Fn::Sub"]).replace("${!", "${")
            shown.append({"name": name, "widgets": [_widget(each, points) for each in json.loads(text)["widgets"]]})
    return shown


def _widget(widget: Mapping[str, Any], points: DataPoints) -> dict[str, Any]:
    own = widget["properties"]
    if widget["type"] == "alarm":
        return {"title": own["title"], "alarms": [name.removesuffix(".Arn") for name in own["alarms"]]}
    periods = Periods.of(points, own["period"])
    return {
        "title": own["title"],
        "stacked": own.get("stacked", False),
        "good": [line["value"] for line in own.get("annotations", {}).get("horizontal", ())],
        "begin": periods.begin,
        "seconds": periods.seconds,
        "lines": list(lines(own["metrics"], points, periods)),
    }


def lines(series: Iterable[Sequence[Any]], points: DataPoints, periods: Periods) -> Iterator[dict[str, Any]]:
    """The visible lines of a graph that have a data point."""
    read: dict[str, LineValues] = {}
    for *metric, options in series:
        drawn: list[tuple[str, LineValues]]
        if "SEARCH" in options.get("expression", ""):
            drawn = list(_searched(options["expression"], points, periods))
        elif metric:
            namespace, name, *ends = metric
            dimensions = tuple(sorted(zip(ends[::2], ends[1::2], strict=True)))
            drawn = [
                (
                    options.get("label", name),
                    periods.values(points.get((namespace, name, dimensions), ()), options["stat"]),
                )
            ]
        else:
            drawn = [(options["label"], calculated(options["expression"], read, periods))]
        if "id" in options and len(drawn) == 1:
            read[options["id"]] = drawn[0][1]
        for label, own in drawn if options.get("visible", True) else ():
            if any(value is not None for value in own):
                yield {"label": label, "values": own, "right": options.get("yAxis") == "right"}


def calculated(expression: str, read: Mapping[str, LineValues], periods: Periods) -> LineValues:
    """The values of metric math. A line of which no metric has a data point has none. Raises ``ValueError``."""
    running = RUNNING.fullmatch(expression)
    text = PERIOD_OF.sub(str(periods.seconds), running[1] if running else expression)
    tree = parsed(text)
    named = [read[each.id] for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id in read]
    if not any(value is not None for values in named for value in values):
        return [None] * periods.number
    found = [value_of(tree, {name: own[at] for name, own in read.items()}) for at in range(periods.number)]
    if running:
        total = 0.0
        found = [total := total + (value or 0.0) for value in found]
    return found


def _searched(expression: str, points: DataPoints, periods: Periods) -> Iterator[tuple[str, LineValues]]:
    if (found := SEARCHED.fullmatch(expression)) is None:
        raise ValueError(f"Search {expression!r} cannot be evaluated.")
    namespace, *names = found[1].split(",")
    wanted = dict(CRITERION.findall(found[2]))
    name = wanted.pop("MetricName")
    for (of, metric, dimension), own in points.items():
        given = dict(dimension)
        if (of, metric, sorted(given)) == (namespace, name, sorted(names)) and wanted.items() <= given.items():
            yield given["handler"], periods.values(own, found[3])


def previewed(template: SamTemplate, settings: Settings, entries: Sequence[FileEntry]) -> dict[str, Any]:
    """The data of the page: the dashboards of a template, with the figures of the records of a recording."""
    bad = sum(isinstance(each, BadLine) for each in entries)
    first = f"Figures of the first {len(entries) - bad:,} records, at the times when they were written."
    shown = boards(template, measured(template, settings, entries))
    notes = [first, *([f"{bad:,} bad lines are left out."] if bad else []), NO_LOAD]
    return {"dashboard": {"application": template.deployment.app.name, "notes": notes, "boards": shown}}
