"""The alarms of a deployment, as data: for each sort of function, for its tables and its queue.

A template holds them, ``testing.alarms`` evaluates those of a template, and docs/alarms.md has an entry for each. An
alarm reads metrics of one function: two functions of an application never hide each other. Its severity decides the
topic that it goes to.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from streamfold.lambda_entry.queue import AGE_METRIC, WAKE_METRIC
from streamfold.lambda_entry.telemetry import NAMESPACE, unit_of
from streamfold.lifecycle.verify import PARTIAL_HANDLERS
from streamfold.routes.route import ROWS_LOST

LAMBDA, TABLES, QUEUES = "AWS/Lambda", "AWS/DynamoDB", "AWS/SQS"
"""Namespaces of AWS."""
OWN, FUNCTION, MAPPING, TABLE, QUEUE = "own", "FunctionName", "EventSourceMappingUUID", "TableName", "QueueName"
"""What an alarm's metric is of: the name of its dimension, but for ``OWN``, which has the dimensions of our metrics."""
NOTHING_WRITTEN = "notBreaching"
"""Without a data point all is well: no invocation, no record."""
AS_BEFORE = "ignore"
"""Without a data point the alarm stays as it is: the function runs once a day."""
ABOVE = "GreaterThanThreshold"
MINUTE, HOUR, DAY = 60, 3600, 86_400
NO_POLLS = "IF(writes > 0 AND FILL(polls, 0) == 0, 1, 0)"
"""Somebody writes to the table, and the mapping does not even ask for records. A mapping that polls counts its polls,
empty ones as 0 (Lambda Developer Guide, monitoring-metrics-types). One that is off, or that its role's rights no longer
let read, counts nothing. Writes alone are not enough: those that change nothing, or that a condition refuses, have no
record."""


class Severity(StrEnum):
    """How soon a person has to act."""

    PAGE = "page"
    """At once: data stops, or is lost within the day. After 24 hours a stream has dropped what nobody read."""
    TICKET = "ticket"
    """On the next working day: nothing is lost meanwhile, or an alarm of severity ``PAGE`` rises before it is."""


class Alarm(NamedTuple):
    """An alarm on one metric: ``periods`` of ``period`` seconds, ``breaching`` of which are above ``threshold``."""

    name: str  # of its resource, behind the name of what it watches
    text: str  # {} is that name
    metric: str
    namespace: str = NAMESPACE
    of: str = OWN
    statistic: str = "Sum"
    period: int = MINUTE
    periods: int = 1
    breaching: int = 1
    threshold: float = 0
    missing: str = NOTHING_WRITTEN
    latest_seconds: int = 0  # a person may let it rise so late; 0: some times as late as here
    math: str = ""  # an expression of ``polls``, the metric, and ``writes`` to the table
    severity: Severity = Severity.TICKET

    @property
    def unit(self) -> str:
        """The unit of the metric. An alarm on another one never has data (User Guide, cloudwatch_concepts)."""
        if self.namespace == NAMESPACE:
            return unit_of(self.metric)
        return "Milliseconds" if self.metric == "IteratorAge" else "Count"

    def resource(self, watched: str, dimensions: Mapping[str, Any], actions: Mapping[Severity, Any]) -> dict[str, Any]:
        """The alarm as CloudFormation takes it. ``dimensions``: with ``math`` also that of the table. ``actions``: the
        topics of each severity, for the alarm's rise and for its end.
        """
        return {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "AlarmDescription": self.text.format(watched),
                **(self._math(dimensions) if self.math else self._metric(dimensions)),
                "EvaluationPeriods": self.periods,
                "DatapointsToAlarm": self.breaching,
                "Threshold": self.threshold,
                "ComparisonOperator": ABOVE,
                "TreatMissingData": self.missing,
                "AlarmActions": actions[self.severity],
                "OKActions": actions[self.severity],
            },
        }

    def _metric(self, dimensions: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "Namespace": self.namespace,
            "MetricName": self.metric,
            "Dimensions": _dimensions(dimensions),
            "Statistic": self.statistic,
            "Period": self.period,
        }

    def _math(self, dimensions: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in dimensions.items() if name != TABLE}
        written = {TABLE: dimensions[TABLE]}
        return {
            "Metrics": [
                {"Id": "result", "Expression": self.math, "Label": self.name},
                self._read("polls", self.namespace, self.metric, own, self.statistic),
                self._read("writes", TABLES, "ConsumedWriteCapacityUnits", written, "Sum"),
            ]
        }

    def _read(
        self, name: str, namespace: str, metric: str, dimensions: Mapping[str, Any], statistic: str
    ) -> dict[str, Any]:
        read = {"Namespace": namespace, "MetricName": metric, "Dimensions": _dimensions(dimensions)}
        return {
            "Id": name,
            "MetricStat": {"Metric": read, "Period": self.period, "Stat": statistic},
            "ReturnData": False,
        }


def without_writes(alarm: Alarm) -> Alarm:
    """The alarm on a mapping of a table in another account, where CloudWatch counts the table's writes: it rises where
    the mapping counts no poll, and has no other threshold.
    """
    return alarm._replace(math="", threshold=POLLS_MOST, missing="breaching") if alarm.math else alarm


POLLS_MOST = 10**9
"""More than the polls of an hour: four a second and shard (Lambda Developer Guide, with-ddb)."""


def _dimensions(dimensions: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"Name": name, "Value": value} for name, value in dimensions.items()]


ERRORS = Alarm(
    "Errors",
    "Invocations of the function {} stop, and nothing of their batches is acknowledged",
    "Errors",
    LAMBDA,
    FUNCTION,
    periods=5,
    breaching=3,  # a single one is tried again
    severity=Severity.PAGE,
)
THROTTLES = Alarm(
    "Throttles",
    "Lambda throttles the function {} for 15 minutes: the account's or the function's concurrency is used up",
    "Throttles",
    LAMBDA,
    FUNCTION,
    period=5 * MINUTE,
    periods=3,
    breaching=3,
    severity=Severity.PAGE,  # a function that never begins measures no age
)
PARKED = Alarm("Parked", "The function {} parked records: they wait for streamfold redrive", "parked")
STREAM_AGE = Alarm(
    "Age",
    "The function {} is behind its stream by more than 15 minutes",
    "IteratorAge",
    LAMBDA,
    FUNCTION,
    statistic="Maximum",
    periods=5,
    breaching=5,
    threshold=900_000,  # the metric counts milliseconds
    severity=Severity.PAGE,
)
QUEUE_AGE = Alarm(
    "Age",
    "A fan-out of {} is open for more than 30 minutes",
    AGE_METRIC,
    statistic="Maximum",
    period=5 * MINUTE,  # the schedule measures so often
    periods=2,
    breaching=2,
    threshold=1800,
    severity=Severity.PAGE,  # no other alarm rises where the queue's mapping is off
)
OF_STREAM = (
    STREAM_AGE,
    ERRORS,
    THROTTLES,
    Alarm(
        "Refused", "A record or a handler of the function {} fails at each try: records are given up soon", "refused"
    ),
    PARKED,
    Alarm(
        "GivenUp",
        "Records of the function {} spent their retries, and wait in the failure bucket for streamfold redrive",
        "OnFailureDestinationDeliveredEventCount",
        LAMBDA,
        MAPPING,
        severity=Severity.PAGE,
    ),
    Alarm(
        "Dropped",
        "Records of the function {} were given up and not kept: repair their items by streamfold repair",
        "DroppedEventCount",
        LAMBDA,
        MAPPING,
        severity=Severity.PAGE,
    ),
    Alarm(
        "Undelivered",
        "The failure bucket refused records of the function {}, which are lost: repair their items",
        "DestinationDeliveryFailures",
        LAMBDA,
        FUNCTION,
        severity=Severity.PAGE,
    ),
    Alarm(
        "StandsStill",
        "The table is written to, and the stream's mapping of the function {} does not read it",
        "PolledEventCount",
        LAMBDA,
        MAPPING,
        statistic="SampleCount",
        period=HOUR,  # of the 24 that a stream keeps
        math=NO_POLLS,
        severity=Severity.PAGE,
    ),
    Alarm(
        "NearMisses",
        "Records nearly match the key of a handler of {}, which does not read them, time and again",
        "near_misses",
        period=5 * MINUTE,
        periods=12,
        breaching=3,  # a single one is a slip, which the log names
        latest_seconds=DAY,
    ),
)
"""Alarms of each function that reads a stream."""
ROWS_GONE = Alarm(
    "RowsLost",
    "Somebody removed rows that items had added to by {}, and rows lack what was added before",
    ROWS_LOST,
    period=5 * MINUTE,
)
"""The alarm of a function with handlers that add to rows."""
OF_QUEUE_FUNCTION = (
    QUEUE_AGE,
    ERRORS._replace(
        text="Invocations of the function {} stop, and fan-outs do not go on", period=5 * MINUTE, periods=3, breaching=2
    ),
    THROTTLES,
    PARKED,
)
"""Alarms of the function that works on fan-outs."""
WAKE_AGE = Alarm(
    "WakesLate",
    "Items of {} are derived again more than 10 minutes after their moment, or nobody looks for them",
    WAKE_METRIC,
    statistic="Maximum",
    periods=5,
    breaching=5,
    threshold=600,
    missing="breaching",  # what fails first is the schedule
    severity=Severity.PAGE,
)
"""The alarm of such a function with handlers that ask for the time."""
OF_QUEUE = (
    Alarm(
        "FailuresThere",
        "Messages of the queue {} failed at every try, and are in the dead-letter queue",
        "ApproximateNumberOfMessagesVisible",
        QUEUES,
        QUEUE,
        statistic="Maximum",
        period=5 * MINUTE,
    ),
)
"""The alarm of the dead-letter queue behind a queue."""
OF_VERIFIER = (
    Alarm(
        "Differences",
        "The state holds of some items what their handlers do not make of them, as the function {} found",
        "different",
        period=HOUR,
        missing=AS_BEFORE,
    ),
    Alarm(
        "Partial",
        "Handlers may have missed items, as the function {} found: their backfill was never finished",
        PARTIAL_HANDLERS,
        period=HOUR,
        missing=AS_BEFORE,
    ),
    ERRORS._replace(
        text="The function {} stops, and nothing is compared",
        period=HOUR,
        periods=1,
        breaching=1,
        missing=AS_BEFORE,
        severity=Severity.TICKET,  # the application goes on
    ),
)
"""Alarms of the function that compares a sample each day."""
OF_TABLE = tuple(
    Alarm(
        f"{way}Throttles",
        f"DynamoDB throttles {way.lower()}s of the table {{}}: functions wait, and fall behind",
        f"{way}ThrottleEvents",
        TABLES,
        TABLE,
        periods=5,
        breaching=3,
    )
    for way in ("Read", "Write")
)
"""Alarms of the application's table, and of the state's."""
