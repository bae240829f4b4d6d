"""Evaluates the alarms of a template as CloudWatch does, on metrics of a test: which alarms a fault raises, and when.

Numbers come from the lines that a function printed (embedded metric format), from a mapping twin's counts, or one by
one. Data points of a period are aggregated by the alarm's statistic; of the last ``EvaluationPeriods`` periods,
``DatapointsToAlarm`` have to breach (User Guide, AlarmThatSendsEmail, "Evaluating an alarm").
"""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

ALARM = "AWS::CloudWatch::Alarm"
STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "Sum": sum,
    "Maximum": max,
    "Minimum": min,
    "SampleCount": len,
}
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "GreaterThanThreshold": lambda value, threshold: value > threshold,
    "GreaterThanOrEqualToThreshold": lambda value, threshold: value >= threshold,
    "LessThanThreshold": lambda value, threshold: value < threshold,
    "LessThanOrEqualToThreshold": lambda value, threshold: value <= threshold,
}
MISSING = ("breaching", "notBreaching", "ignore", "missing")
EVERY_SECONDS = 60
"""CloudWatch evaluates an alarm of periods of a minute or more each minute."""

Metric = tuple[str, str, tuple[tuple[str, str], ...]]
"""Namespace, name and dimensions, sorted."""


class Rise(NamedTuple):
    """An alarm that goes to ALARM."""

    name: str  # of its resource
    at: float  # epoch seconds
    ended: float | None  # when it went back to OK; None: not yet


@dataclass(slots=True)
class Alarms:
    """The alarms of a template, given as plain values: ``{"Fn::GetAtt": ["X", "Arn"]}`` for ``!GetAtt X.Arn``.

    names: what dimensions refer to, by the name of the resource; a resource without a name here has its own. Of metric
    math, comparisons, ``AND``, ``OR``, ``+ - * /``, ``IF`` and ``FILL`` with a number are known. Raises ``ValueError``
    for an alarm that this evaluator cannot read.
    """

    template: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    points: dict[Metric, list[tuple[float, float]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, alarm in self._alarms():
            known = alarm.get("ComparisonOperator") in COMPARISONS
            if not known or alarm.get("TreatMissingData", "missing") not in MISSING:
                raise ValueError(f"Alarm {name} cannot be evaluated: expected one of {[*COMPARISONS]}.")
            read_by(name, alarm)

    def put(self, at: float, namespace: str, name: str, dimensions: Mapping[str, str], value: float) -> None:
        """Adds a data point."""
        self.points.setdefault((namespace, name, tuple(sorted(dimensions.items()))), []).append((at, value))

    def put_lines(self, at: float, text: str) -> None:
        """Adds the metrics among the lines that a function printed."""
        for line in text.splitlines():
            if not line.startswith("{") or "_aws" not in (found := json.loads(line)):
                continue
            for directive in found["_aws"]["CloudWatchMetrics"]:
                for names, metric in product(directive["Dimensions"], directive["Metrics"]):
                    dimensions = {name: found[name] for name in names}
                    self.put(at, directive["Namespace"], metric["Name"], dimensions, found[metric["Name"]])

    def put_counts(self, at: float, counts: Mapping[str, float], function: str, mapping: str) -> None:
        """Adds counts of a mapping twin since the last call, of a function and of its mapping."""
        for name, count in counts.items():
            for dimension, of in (("FunctionName", function), ("EventSourceMappingUUID", mapping)):
                self.put(at, "AWS/Lambda", name, {dimension: of}, count)

    def rises(self, until: float) -> list[Rise]:
        """The alarms that rise from the first data point to this time, in order."""
        begun = min((at for points in self.points.values() for at, _ in points), default=until)
        found = [rise for name, alarm in self._alarms() for rise in self._rises(name, alarm, begun, until)]
        return sorted(found, key=lambda rise: rise.at)

    def _alarms(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, resource in self.template["Resources"].items():
            if resource["Type"] == ALARM:
                yield name, resource["Properties"]

    def _rises(self, name: str, alarm: Mapping[str, Any], begun: float, until: float) -> Iterator[Rise]:
        expression, reads = read_by(name, alarm)
        period, risen = next(iter(reads.values())).period, None
        points = {each: _by_period(self.points.get(self._metric(read), ()), read) for each, read in reads.items()}
        if ONE in reads and not points[ONE] and alarm.get("TreatMissingData") != "breaching":
            return  # nothing was measured, ever
        at = begun - begun % EVERY_SECONDS + EVERY_SECONDS
        of_period: dict[float, float | None] = {}
        while at <= until:
            ends = [at - at % period - back * period for back in range(alarm["EvaluationPeriods"])]
            for end in ends:
                if end not in of_period:
                    of_period[end] = value_of(expression, {each: points[each].get(end - period) for each in reads})
            values = [of_period[end] for end in ends]
            in_alarm = self._is_in_alarm(alarm, values, in_alarm=risen is not None)
            if in_alarm and risen is None:
                risen = at
            elif risen is not None and not in_alarm:
                yield Rise(name, risen, at)
                risen = None
            at += EVERY_SECONDS
        if risen is not None:
            yield Rise(name, risen, None)

    def _metric(self, read: "ReadMetric") -> Metric:
        dimensions = {each["Name"]: self._named(each["Value"]) for each in read.dimensions}
        return read.namespace, read.name, tuple(sorted(dimensions.items()))

    def _named(self, value: Any) -> str:
        if not isinstance(value, Mapping):
            return str(value)
        ((function, given),) = value.items()
        resource = given if function == "Ref" else given[0]
        return self.names.get(resource, resource)

    @staticmethod
    def _is_in_alarm(alarm: Mapping[str, Any], values: list[float | None], *, in_alarm: bool) -> bool:
        missing: str = alarm.get("TreatMissingData", "missing")
        breaches = COMPARISONS[alarm["ComparisonOperator"]]
        if all(value is None for value in values) and missing in ("ignore", "missing"):
            return in_alarm and missing == "ignore"
        breaching = [
            missing == "breaching" if value is None else breaches(value, alarm["Threshold"]) for value in values
        ]
        needed: int = alarm.get("DatapointsToAlarm", alarm["EvaluationPeriods"])
        return sum(breaching) >= needed


class ReadMetric(NamedTuple):
    """A metric that an alarm reads."""

    namespace: str
    name: str
    dimensions: Sequence[Mapping[str, Any]]
    statistic: str
    period: int


ONE = "m"
"""The name of the only metric of an alarm without an expression."""


def read_by(name: str, alarm: Mapping[str, Any]) -> tuple[ast.expr, Mapping[str, ReadMetric]]:
    """The expression of an alarm, and the metrics that it reads. Raises ``ValueError`` for another form."""
    if "MetricName" in alarm:
        stat = {"Metric": alarm, "Period": alarm["Period"], "Stat": alarm.get("Statistic")}
        metrics: list[Mapping[str, Any]] = [{"Id": ONE, "MetricStat": stat}]
        text = ONE
    else:
        metrics = [each for each in alarm.get("Metrics", ()) if "MetricStat" in each]
        (text, *more) = [each["Expression"] for each in alarm.get("Metrics", ()) if "Expression" in each] or [""]
        if more or not text or not metrics:
            raise ValueError(f"Alarm {name} cannot be evaluated: expected one metric, or metrics and one Expression.")
    found = {}
    for each in metrics:
        stat, metric = each["MetricStat"], each["MetricStat"]["Metric"]
        if stat["Stat"] not in STATISTICS:
            raise ValueError(f"Alarm {name} cannot be evaluated: {stat['Stat']}: expected one of {[*STATISTICS]}.")
        dimensions = metric.get("Dimensions", ())
        found[each["Id"]] = ReadMetric(
            metric["Namespace"], metric["MetricName"], dimensions, stat["Stat"], stat["Period"]
        )
    return parsed(text), found


def parsed(expression: str) -> ast.expr:
    """An expression of metric math. Raises ``ValueError`` for one that cannot be read."""
    text = expression.replace(" AND ", " and ").replace(" OR ", " or ").replace("&&", " and ").replace("||", " or ")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"Expression {expression!r} cannot be evaluated.") from None


def value_of(expression: ast.expr, values: Mapping[str, float | None]) -> float | None:
    """The value of an expression in one period; None: missing, as that of a metric without a data point.

    Raises ``ValueError`` for what it does not know.
    """

    def of(node: ast.expr) -> float | None:
        return value_of(node, values)

    match expression:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Call(
            func=ast.Name(id="FILL"), args=[ast.Name(id=name), ast.Constant(value=int() | float() as number)]
        ):
            found = values.get(name)
            return float(number) if found is None else found
        case ast.Call(func=ast.Name(id="IF"), args=[condition, one, *other]):
            decided = of(condition)
            chosen = [one] if decided else other
            return None if decided is None or not chosen else of(chosen[0])
        case ast.BoolOp(op=operator, values=nodes):
            return _joined(all if isinstance(operator, ast.And) else any, *map(of, nodes))
        case ast.BinOp(op=ast.Div(), right=divisor) if of(divisor) == 0:
            return None
        case ast.BinOp(left=first, op=operator, right=second) if type(operator) in OPERATORS:
            return _joined(lambda both: OPERATORS[type(operator)](*both), of(first), of(second))
        case ast.Compare(left=first, ops=[operator], comparators=[second]) if type(operator) in OPERATORS:
            return _joined(lambda both: OPERATORS[type(operator)](*both), of(first), of(second))
    raise ValueError(f"Expression {ast.unparse(expression)!r} cannot be evaluated.")


def _joined(function: Callable[[Sequence[float]], float], *values: float | None) -> float | None:
    """The result of an operation: missing where one of its values is."""
    present = [value for value in values if value is not None]
    return float(function(present)) if len(present) == len(values) else None


OPERATORS: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: float.__add__,
    ast.Sub: float.__sub__,
    ast.Mult: float.__mul__,
    ast.Div: float.__truediv__,
    ast.Eq: float.__eq__,
    ast.NotEq: float.__ne__,
    ast.Lt: float.__lt__,
    ast.LtE: float.__le__,
    ast.Gt: float.__gt__,
    ast.GtE: float.__ge__,
}


def _by_period(points: Iterable[tuple[float, float]], read: ReadMetric) -> Mapping[float, float]:
    """The value of each period that has data points, by its begin."""
    found: dict[float, list[float]] = {}
    for at, value in points:
        found.setdefault(at - at % read.period, []).append(float(value))
    return {begin: float(STATISTICS[read.statistic](values)) for begin, values in found.items()}
