"""What CloudWatch bills for an application as ``streamfold template`` deploys it: metrics, alarms, log lines."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.batch.report import Report
from streamfold.deploy.functions import QUEUE, STREAM, DeployedFunction, Deployment
from streamfold.deploy.sam import SamTemplate
from streamfold.engines.dynamodb_client import Consumed
from streamfold.lambda_entry.queue import OPEN_METRICS, WORKED_METRICS
from streamfold.lambda_entry.telemetry import Processed, batch_numbers, metrics_line
from streamfold.lifecycle.verify import SAMPLE_METRICS
from streamfold.runtime import SendingPace
from streamfold.settings import Settings

PRICE_METRIC, PRICE_ALARM, PRICE_LOG_GIGABYTE = 0.30, 0.10, 0.50
"""Dollars a month for a metric (of the first 10,000) and for each metric of an alarm; for each gigabyte of log lines
(CloudWatch pricing, us-east-1; standard resolution, standard log class)."""
GIGABYTE = 10**9
ALARM = "AWS::CloudWatch::Alarm"
OF_HANDLER = 4
"""Metrics of each handler with ``STREAMFOLD_OBSERVE_HANDLERS`` (docs/alarms.md)."""
FRESHNESS = "freshness_seconds"
"""The metric that a batch without an applied record has not."""


class Observation(NamedTuple):
    """What watches an application, and what each batch writes."""

    metrics: int  # custom metrics of all functions
    alarms: int  # metrics that alarms read: CloudWatch bills each
    line_bytes: int  # the line of a batch without a failure

    @property
    def dollars_a_month(self) -> float:
        return self.metrics * PRICE_METRIC + self.alarms * PRICE_ALARM

    def log_bytes(self, records: float, batch_records: int) -> float:
        """The bytes of lines for records that come in batches of this size."""
        return self.line_bytes * records / batch_records


def log_dollars(log_bytes: float) -> float:
    return log_bytes / GIGABYTE * PRICE_LOG_GIGABYTE


def observation(app: App, settings: Settings) -> Observation:
    """Counts for all functions of an application. Raises ``SettingsError`` for one that no template can hold."""
    deployment = Deployment(app, app.name)
    resources = SamTemplate(deployment).content["Resources"].values()
    alarms = sum(_metrics_read(each["Properties"]) for each in resources if each["Type"] == ALARM)
    numbers = {**_batch(settings), FRESHNESS: 0.5}
    line = metrics_line({"service": app.name, "function": f"{app.name}-Projector"}, numbers)
    metrics = sum(_metrics(each, len(numbers), settings) for each in deployment.functions)
    if settings.observe == "off":
        return Observation(0, alarms, 0)
    return Observation(metrics, alarms, len(line))


def _batch(settings: Settings) -> Mapping[str, float]:
    return batch_numbers(Processed(Report(), (), 0, Consumed(), 0.1, 0.0), SendingPace(), settings)


def _metrics(function: DeployedFunction, of_batch: int, settings: Settings) -> int:
    """The metrics of a function, each name once. Those of deltas come only where functions meet at rows."""
    if function.sort == STREAM:
        return of_batch + (OF_HANDLER * len(function.routes) if settings.observe_handlers else 0)
    return len(OPEN_METRICS) + len(WORKED_METRICS) if function.sort == QUEUE else len(SAMPLE_METRICS)


def _metrics_read(alarm: Mapping[str, Any]) -> int:
    return sum("MetricStat" in each for each in alarm.get("Metrics", ())) or 1
