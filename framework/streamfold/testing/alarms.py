"""Evaluates the alarms of a template as CloudWatch does, on metrics of a test: which alarms a fault raises, and when.

Numbers come from the lines that a function printed (embedded metric format), from a mapping twin's counts, or one by
one. Data points of a period are aggregated by the alarm's statistic; of the last ``EvaluationPeriods`` periods,
``DatapointsToAlarm`` have to breach (User Guide, AlarmThatSendsEmail, "Evaluating an alarm").
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Alarms:
    """The alarms of a template, given as plain values: ``{"Fn::GetAtt": ["X", "Arn"]}`` for ``!GetAtt X.Arn``.

    names: what dimensions refer to, by the name of the resource; a resource without a name here has its own. Raises
    ``ValueError`` for an alarm that this evaluator cannot read, such as one on metric math.
    """

    template: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    points: dict[Metric, list[tuple[float, float]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, alarm in self._alarms():
            known = alarm.get("Statistic") in STATISTICS and alarm.get("ComparisonOperator") in COMPARISONS
            if "MetricName" not in alarm or not known or alarm.get("TreatMissingData", "missing") not in MISSING:
                raise ValueError(f"Alarm {name} cannot be evaluated: expected one metric, with one of {[*STATISTICS]}.")

    def put(self, at: float, namespace: str, name: str, dimensions: Mapping[str, str], value: float) -> None:
        """Adds a data point."""
        self.points.setdefault((namespace, name, tuple(sorted(dimensions.items()))), []).append((at, value))

    def put_lines(self, at: float, text: str) -> None:
        """Adds the metrics among the lines that a function printed."""
        for line in text.splitlines():
            if not line.startswith("{") or "_aws" not in (found := json.loads(line)):
                continue
            for directive in found["_aws"]["CloudWatchMetrics"]:
                for names in directive["Dimensions"]:
                    dimensions = {name: found[name] for name in names}
                    for metric in directive["Metrics"]:
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
        dimensions = {each["Name"]: self._named(each["Value"]) for each in alarm.get("Dimensions", ())}
        metric = alarm["Namespace"], alarm["MetricName"], tuple(sorted(dimensions.items()))
        points, period, in_alarm = self.points.get(metric, []), alarm["Period"], False
        at = begun - begun % EVERY_SECONDS + EVERY_SECONDS
        while at <= until:
            ends = [at - at % period - back * period for back in range(alarm["EvaluationPeriods"])]
            values = [self._value(alarm, points, end - period, end) for end in ends]
            before, in_alarm = in_alarm, self._is_in_alarm(alarm, values, in_alarm=in_alarm)
            if in_alarm and not before:
                yield Rise(name, at)
            at += EVERY_SECONDS

    def _named(self, value: Any) -> str:
        if not isinstance(value, Mapping):
            return str(value)
        ((function, given),) = value.items()
        resource = given if function == "Ref" else given[0]
        return self.names.get(resource, resource)

    @staticmethod
    def _value(
        alarm: Mapping[str, Any], points: Iterable[tuple[float, float]], begin: float, end: float
    ) -> float | None:
        values = [value for at, value in points if begin <= at < end]
        return STATISTICS[alarm["Statistic"]](values) if values else None

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
