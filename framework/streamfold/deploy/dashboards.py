"""The dashboard of a deployment: whether rows follow their items, what fails, and what a day costs.

A dashboard is the JSON text that CloudWatch takes (CloudWatch API Reference, Dashboard Body Structure and Syntax).
``${Table}`` in it is the name of the resource ``Table``. Each title says what good looks like. Each figure is read out
of the resources of a template, so a template that a person wrote gets the same dashboard as a printed one.

``WIDGETS`` are the graphs in their order. A graph of another metric is one more function of a ``Board`` in it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from streamfold.deploy.alarms import FUNCTION, LAMBDA, MAPPING, TABLE, TABLES
from streamfold.deploy.functions import QUEUE as OF_QUEUE
from streamfold.deploy.functions import STATE_RESOURCE, STREAM, DeployedFunction
from streamfold.engines.capacity import PRICE_READ, PRICE_REGION, PRICE_WRITE
from streamfold.lambda_entry.queue import AGE_METRIC, WAKE_METRIC
from streamfold.lambda_entry.telemetry import NAMESPACE

SHOWS, SHOWS_SEARCH = "ShowsDashboard", "ShowsSearchDashboard"
"""The conditions of the dashboards."""
SEARCHES = "Searches"
"""The condition of functions that an application can do without."""
DASHBOARD_CONDITIONS = {SHOWS: {"Fn::Equals": [{"Ref": "ShowDashboard"}, "on"]}}
SEARCH_DASHBOARD_CONDITIONS = {SHOWS_SEARCH: {"Fn::And": [{"Condition": SEARCHES}, {"Condition": SHOWS}]}}
ALARM_TYPES = ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm")
COLUMNS, WIDTH, HEIGHT, ALARMS_HEIGHT = 2, 12, 6, 4
"""Of a dashboard's grid of 24 columns (Dashboard Body Structure)."""
MINUTE, DAY = 60, 86_400
DAYS_SHOWN = 14
DEFAULTS = {"Timeout": 3, "MemorySize": 128}
"""Of a function that sets none (Lambda API Reference, CreateFunction)."""
PRICE_GIGABYTE_SECOND, PRICE_INVOCATIONS = "0.0000133334", 0.20
"""Dollars for a gigabyte-second on arm64, and for a million invocations, in PRICE_REGION (Lambda pricing). x86_64 is a
quarter dearer. A text, because metric math has no number such as 1.3e-05."""
MEGABYTES_OF_GIGABYTE = 1024
FRESHNESS_SECONDS = 5
"""What a table with some traffic reaches: a window of a second, a batch, and the second by which the figure may err."""
FAN_OUT_SECONDS = 1800
"""The threshold of the alarm on the age of a fan-out."""
WAKE_SECONDS = 600
"""Two rounds of a schedule of five minutes."""

HANDLER_LABEL = "${!PROP('Dim.handler')}"
"""The name of the handler (CloudWatch User Guide, graph-dynamic-labels). ``!`` keeps it from ``Fn::Sub``."""

Series = list[Any]
"""A line of a graph: namespace, metric, dimensions and options, or an expression with options."""


class Widget(NamedTuple):
    """A graph. ``title`` says what is shown, in which unit, and what good looks like."""

    title: str
    series: Sequence[Series]
    good: float | None = None  # a line across the graph: below is well
    period: int = MINUTE
    stacked: bool = False
    start: str = ""  # of the time that is shown, where it is not that of the dashboard

    def properties(self) -> dict[str, Any]:
        """The graph as CloudWatch takes it."""
        line = {"label": f"good: below {self.good:g}", "value": self.good} if self.good is not None else None
        return {
            "title": self.title,
            "view": "timeSeries",
            "region": "${AWS::Region}",
            "period": self.period,
            **({"stacked": True} if self.stacked else {}),
            "yAxis": {"left": {"min": 0}, "right": {"min": 0}},
            **({"annotations": {"horizontal": [line]}} if line else {}),
            **({"start": self.start} if self.start else {}),
            "metrics": list(self.series),
        }


class Board(NamedTuple):
    """What a dashboard shows: functions, the alarms of each, and tables by resource with their real names."""

    functions: Sequence[DeployedFunction]
    tables: Mapping[str, Any]
    alarms: Mapping[str, Sequence[str]]
    resources: Mapping[str, Any]

    def of(self, sort: str) -> list[DeployedFunction]:
        return [each for each in self.functions if each.sort == sort]

    def own(self, metric: str, sort: str, stat: str = "Sum", **options: Any) -> Iterator[Series]:
        for each in self.of(sort):
            yield measured(each, metric, stat, label=f"{each.name} {metric}", **options)

    def stores(self) -> Iterator[tuple[str, list[str]]]:
        """Each table and each of its indexes: a label, and the dimensions of its metrics."""
        for name, real in self.tables.items():
            dimensions = [TABLE, text_of(real)]
            yield name, dimensions
            for index in self.resources.get(name, {}).get("Properties", {}).get("GlobalSecondaryIndexes", ()):
                yield f"{name} {index['IndexName']}", [*dimensions, "GlobalSecondaryIndexName", index["IndexName"]]

    def mappings(self) -> Iterator[tuple[str, str]]:
        """The mappings of streams: the function, and the id of each."""
        for each in self.of(STREAM):
            for event, given in self.resources[each.name]["Properties"].get("Events", {}).items():
                if given["Type"] in ("DynamoDB", "Kinesis"):
                    yield each.name, f"${{{each.name}{event}}}"

    def setting(self, function: DeployedFunction, name: str) -> str:
        return text_of(self.resources[function.name]["Properties"].get(name, DEFAULTS[name]))


def measured(function: DeployedFunction, metric: str, stat: str = "Sum", **options: Any) -> Series:
    dimensions = ["service", "${Application}", "function", f"${{{function.name}}}"]
    return [NAMESPACE, metric, *dimensions, {"stat": stat, **options}]


def text_of(value: Any) -> str:
    """A value of a template within a text of ``Fn::Sub``."""
    if isinstance(value, Mapping):
        ((name, given),) = value.items()
        if name == "Fn::GetAtt":
            return f"${{{'.'.join(given)}}}"
        return str(given) if name == "Fn::Sub" else f"${{{given}}}"
    return str(value)


def expression(text: str, label: str, **options: Any) -> Series:
    return [{"expression": text, "label": label, **options}]


def freshness(board: Board) -> Widget:
    series = [*board.own("freshness_seconds", STREAM, "Maximum")]
    title = f"Freshness, seconds from write to rows. Good: below {FRESHNESS_SECONDS}, no gap while records come"
    return Widget(title, series, FRESHNESS_SECONDS)


def freshness_by_handler(board: Board) -> Widget:
    series = [
        expression(
            f'SEARCH(\'{{{NAMESPACE},function,handler,service}} MetricName="freshness_seconds" '
            f'service="${{Application}}" function="${{{each.name}}}"\', \'Maximum\', {MINUTE})',
            HANDLER_LABEL,
            id=f"s{number}",
        )
        for number, each in enumerate(board.of(STREAM))
    ]
    title = "Freshness by handler, seconds (with STREAMFOLD_OBSERVE_HANDLERS=on). Good: all alike"
    return Widget(title, series, FRESHNESS_SECONDS)


def behind(board: Board) -> Widget:
    series: list[Series] = []
    for number, each in enumerate(board.of(STREAM)):
        age = [LAMBDA, "IteratorAge", FUNCTION, f"${{{each.name}}}", {"stat": "Maximum"}]  # milliseconds
        series += [_hidden(age, f"a{number}"), expression(f"a{number} / 1000", each.name, id=f"b{number}")]
    return Widget("Age of the records that a function gets, seconds. Good: a few, or back to a few", series)


def records(board: Board) -> Widget:
    series = _a_second(board.own("records", STREAM), "r")
    return Widget("Records a second. Good: follows the writes of the table", series)


def failed(board: Board) -> Widget:
    series = [one for metric in ("failed", "refused", "parked") for one in board.own(metric, STREAM)]
    series += board.own("parked", OF_QUEUE)
    for name, mapping in board.mappings():
        for metric, label in (("OnFailureDestinationDeliveredEventCount", "given up"), ("DroppedEventCount", "lost")):
            series.append([LAMBDA, metric, MAPPING, mapping, {"stat": "Sum", "label": f"{name} {label}"}])
    return Widget("Failed, refused, parked, given up, records. Good: 0, or failed for a moment", series)


def write_units(board: Board) -> Widget | None:
    written = (
        [TABLES, "ConsumedWriteCapacityUnits", *dimensions, {"stat": "Sum", "label": label}]
        for label, dimensions in board.stores()
    )
    series = _a_second(written, "w")
    return (
        Widget("Write units a second of tables and state. Good: in proportion to records", series) if series else None
    )


def throttling(board: Board) -> Widget:
    series: list[Series] = [
        [TABLES, f"{way}ThrottleEvents", TABLE, text_of(real), {"stat": "Sum", "label": f"{name} {way.lower()}s"}]
        for name, real in board.tables.items()
        for way in ("Read", "Write")
    ]
    series += [
        [LAMBDA, "Throttles", FUNCTION, f"${{{each.name}}}", {"stat": "Sum", "label": f"{each.name} starts"}]
        for each in board.functions
    ]
    return Widget("Throttled reads, writes and starts. Good: 0", series)


def fan_outs(board: Board) -> Widget | None:
    if not board.of(OF_QUEUE):
        return None
    right = {"yAxis": "right"}
    series = [*board.own("fan_outs_open", OF_QUEUE, "Maximum"), *board.own("items_failed", OF_QUEUE)]
    series += board.own(AGE_METRIC, OF_QUEUE, "Maximum", **right)
    title = f"Fan-outs: open, items failed; right: age in seconds. Good: age below {FAN_OUT_SECONDS}, failed 0"
    return Widget(title, series)


def wakes(board: Board) -> Widget:
    series = [*board.own(WAKE_METRIC, OF_QUEUE, "Maximum")]
    title = f"Wakes, seconds by which the oldest is late. Good: below {WAKE_SECONDS}, or no line"
    return Widget(title, series, WAKE_SECONDS)


def deltas_pending(board: Board) -> Widget:
    series: list[Series] = []
    adding = [each for each in board.of(STREAM) if any(route.kind.contributes for route in each.routes)]
    for number, each in enumerate(adding):
        put, merged = measured(each, "deltas_put"), measured(each, "deltas_merged")
        text = f"RUNNING_SUM(FILL(p{number}, 0) - FILL(m{number}, 0))"
        series += [_hidden(put, f"p{number}"), _hidden(merged, f"m{number}")]
        series.append(expression(text, each.name, id=f"d{number}"))
    return Widget("Deltas put and not yet merged, since the graph begins. Good: back to 0 in minutes", series)


def duration(board: Board) -> Widget:
    series: list[Series] = []
    for number, each in enumerate(board.functions):
        spent = [LAMBDA, "Duration", FUNCTION, f"${{{each.name}}}", {"stat": "Maximum"}]
        timeout = board.setting(each, "Timeout")
        text = f"100 * t{number} / (1000 * {timeout})"  # the metric counts milliseconds
        series += [_hidden(spent, f"t{number}"), expression(text, f"{each.name} of {timeout} s", id=f"u{number}")]
    return Widget("Duration, percent of the timeout. Good: below 50", series, 50)


def cost(board: Board) -> Widget:
    """What the tables, the state and the functions cost each day, without storage, logs and other services."""
    series: list[Series] = []
    terms: dict[str, list[str]] = {}
    for number, (label, dimensions) in enumerate(board.stores()):
        for way, price, letter in (("Write", PRICE_WRITE, "w"), ("Read", PRICE_READ, "r")):
            units = [TABLES, f"Consumed{way}CapacityUnits", *dimensions, {"stat": "Sum"}]
            series.append(_hidden(units, f"{letter}{number}"))
            owner = "state" if label == STATE_RESOURCE else "tables, with the writes of their writers"
            terms.setdefault(owner, []).append(f"FILL({letter}{number}, 0) * {price} / 1000000")
    for number, each in enumerate(board.functions):
        own = [FUNCTION, f"${{{each.name}}}"]
        series.append(_hidden([LAMBDA, "Duration", *own, {"stat": "Sum"}], f"t{number}"))
        series.append(_hidden([LAMBDA, "Invocations", *own, {"stat": "Sum"}], f"n{number}"))
        gigabytes = f"{board.setting(each, 'MemorySize')} / {MEGABYTES_OF_GIGABYTE}"
        terms.setdefault("functions", []).extend(
            (
                f"FILL(t{number}, 0) / 1000 * {gigabytes} * {PRICE_GIGABYTE_SECOND}",
                f"FILL(n{number}, 0) * {PRICE_INVOCATIONS} / 1000000",
            )
        )
    for number, (label, dollars) in enumerate(terms.items()):
        series.append(expression(" + ".join(dollars), label, id=f"c{number}"))
    title = f"Cost of a day at list price ({PRICE_REGION}, on demand), dollars. Good: in proportion to records"
    return Widget(title, series, period=DAY, stacked=True, start=f"-P{DAYS_SHOWN}D")


def _a_second(series: Iterator[Series], letter: str) -> list[Series]:
    found: list[Series] = []
    for number, each in enumerate(series):
        name = f"{letter}{number}"
        rate = expression(f"{name} / PERIOD({name})", each[-1]["label"], id=f"{letter}s{number}")
        found += [_hidden(each, name), rate]
    return found


def _hidden(series: Series, name: str) -> Series:
    *metric, options = series
    return [*metric, {"id": name, "stat": options["stat"], "visible": False}]


WIDGETS: tuple[Callable[[Board], Widget | None], ...] = (
    freshness,
    behind,
    records,
    failed,
    freshness_by_handler,
    duration,
    write_units,
    throttling,
    fan_outs,
    wakes,
    deltas_pending,
    cost,
)
"""The graphs, in their order. None: the application has nothing to show there."""


def widgets(board: Board) -> list[Widget]:
    return [found for each in WIDGETS if (found := each(board)) is not None and found.series]


def dashboards(
    functions: Sequence[DeployedFunction], resources: Mapping[str, Any], tables: Mapping[str, Any]
) -> dict[str, Any]:
    """The dashboards of a template. Functions that have a condition share one of their own.

    ``resources``: those of the template. ``tables``: the real name of each table and of the state, by resource.
    """
    found: dict[str, Any] = {}
    for name, board in boards(functions, resources, tables).items():
        condition = SHOWS if name == "Dashboard" else SHOWS_SEARCH
        body = {"DashboardBody": {"Fn::Sub": body_text(board)}}
        found[name] = {"Type": "AWS::CloudWatch::Dashboard", "Condition": condition, "Properties": body}
    return found


def boards(
    functions: Sequence[DeployedFunction], resources: Mapping[str, Any], tables: Mapping[str, Any]
) -> dict[str, Board]:
    """What each dashboard of a template shows, by the name of its resource."""
    present = [each for each in functions if each.name in resources]
    found = {}
    for name, shown, condition in (("Dashboard", tables, None), ("SearchDashboard", {}, SEARCHES)):
        own = [each for each in present if resources[each.name].get("Condition") == condition]
        alarms = _alarms([each.name for each in present], resources, condition)
        if own or alarms:
            found[name] = Board(own, shown, alarms, resources)
    return found


def _alarms(names: Sequence[str], resources: Mapping[str, Any], condition: str | None) -> dict[str, list[str]]:
    """Alarms by the function that they watch, those of tables and queues by themselves.

    A stack whose dashboard names an alarm that it has not is refused: only alarms of this condition are named.
    """
    found: dict[str, list[str]] = {}
    for name, resource in resources.items():
        if resource["Type"] in ALARM_TYPES and resource.get("Condition") == condition:
            owner = max((each for each in names if name.startswith(each)), key=len, default="")
            found.setdefault(owner or ("Tables" if name.endswith("Throttles") else "Queues"), []).append(name)
    return found


def body_text(board: Board) -> str:
    """The text of a dashboard, a line for each graph, each of its metrics and each alarm: a person can read it."""
    placed: list[dict[str, Any]] = []
    shown = widgets(board)
    for number, widget in enumerate(shown):
        row, column = divmod(number, COLUMNS)
        cell = {"x": WIDTH * column, "y": HEIGHT * row, "width": WIDTH, "height": HEIGHT}
        placed.append({"type": "metric", **cell, "properties": widget.properties()})
    below = HEIGHT * ceil(len(shown) / COLUMNS)
    for number, (owner, names) in enumerate(board.alarms.items()):
        cell = {"x": 0, "y": below + ALARMS_HEIGHT * number, "width": WIDTH * COLUMNS, "height": ALARMS_HEIGHT}
        listed = {"title": f"Alarms of {owner}. Good: all OK", "alarms": [f"${{{name}.Arn}}" for name in names]}
        placed.append({"type": "alarm", **cell, "properties": listed})
    return '{"widgets": [\n' + ",\n".join(map(_lines, placed)) + "\n]}\n"


def _lines(widget: Mapping[str, Any]) -> str:
    """A widget with its properties line by line. Its list, the last property, has a line for each entry."""
    properties = dict(widget["properties"])
    name, entries = properties.popitem()
    cell = json.dumps({key: value for key, value in widget.items() if key != "properties"})
    own = "".join(f"    {json.dumps(key)}: {json.dumps(value)},\n" for key, value in properties.items())
    listed = ",\n".join(f"      {json.dumps(entry)}" for entry in entries)
    return f'  {cell[:-1]}, "properties": {{\n{own}    "{name}": [\n{listed}]}}}}'
