"""The alarms of a deployment, as data: for each sort of function, for its tables and for its queue.

A template holds them, ``testing.alarms`` evaluates those of a template, and docs/alarms.md has an entry for each. An
alarm reads metrics of one function: two functions of an application never hide each other.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamfold.lambda_entry.queue import AGE_METRIC
from streamfold.lambda_entry.telemetry import NAMESPACE
from streamfold.routes.route import ROWS_LOST

LAMBDA, TABLES, QUEUES = "AWS/Lambda", "AWS/DynamoDB", "AWS/SQS"
"""Namespaces of AWS."""
OWN, FUNCTION, MAPPING, TABLE, QUEUE = "own", "FunctionName", "EventSourceMappingUUID", "TableName", "QueueName"
"""What an alarm's metric is of: the name of its dimension, but for ``OWN``, which has the dimensions of our metrics."""
NOTHING_WRITTEN = "notBreaching"
"""Without a data point all is well: no invocation, no record."""
AS_BEFORE = "ignore"
"""Without a data point the alarm stays as it is: the function runs once a day."""
MINUTE, HOUR = 60, 3600


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

    def resource(self, watched: str, dimensions: Mapping[str, Any], actions: Any) -> dict[str, Any]:
        """The alarm as CloudFormation takes it."""
        return {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "AlarmDescription": self.text.format(watched),
                "Namespace": self.namespace,
                "MetricName": self.metric,
                "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
                "Statistic": self.statistic,
                "Period": self.period,
                "EvaluationPeriods": self.periods,
                "DatapointsToAlarm": self.breaching,
                "Threshold": self.threshold,
                "ComparisonOperator": "GreaterThanThreshold",
                "TreatMissingData": self.missing,
                "AlarmActions": actions,
            },
        }


ERRORS = Alarm(
    "Errors",
    "Invocations of the function {} stop, and nothing of their batches is acknowledged",
    "Errors",
    LAMBDA,
    FUNCTION,
    periods=5,
    breaching=3,  # a single one is tried again
)
THROTTLES = Alarm(
    "Throttles",
    "Lambda throttles the function {}: the account's or the function's concurrency is used up",
    "Throttles",
    LAMBDA,
    FUNCTION,
    periods=5,
    breaching=3,
)
PARKED = Alarm("Parked", "The function {} parked records: they wait for streamfold redrive", "parked")
OF_STREAM = (
    Alarm(
        "Age",
        "The function {} is behind its stream by more than 15 minutes",
        "IteratorAge",
        LAMBDA,
        FUNCTION,
        statistic="Maximum",
        periods=5,
        breaching=5,
        threshold=900_000,  # the metric counts milliseconds
    ),
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
    ),
    Alarm(
        "Dropped",
        "Records of the function {} were given up and not kept: repair their items by streamfold repair",
        "DroppedEventCount",
        LAMBDA,
        MAPPING,
    ),
    Alarm(
        "Undelivered",
        "The failure bucket refused records of the function {}, which are lost: repair their items",
        "DestinationDeliveryFailures",
        LAMBDA,
        FUNCTION,
    ),
    Alarm("NearMisses", "Records nearly match the key of a handler of {}, which does not read them", "near_misses"),
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
    Alarm(
        "Age",
        "A fan-out of {} is open for more than 30 minutes",
        AGE_METRIC,
        statistic="Maximum",
        period=5 * MINUTE,  # the schedule measures so often
        periods=2,
        breaching=2,
        threshold=1800,
    ),
    ERRORS._replace(
        text="Invocations of the function {} stop, and fan-outs do not go on", period=5 * MINUTE, periods=3, breaching=2
    ),
    THROTTLES,
    PARKED,
)
"""Alarms of the function that works on fan-outs."""
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
    ERRORS._replace(
        text="The function {} stops, and nothing is compared", period=HOUR, periods=1, breaching=1, missing=AS_BEFORE
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
