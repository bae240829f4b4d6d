"""Logs, metrics and traces of a function, as ``STREAMFOLD_OBSERVE`` sets them.

By default this module writes the lines: JSON for the log, the embedded metric format for counts. They have the names
and the form of Powertools' Logger and Metrics, so that a search, a filter or an alarm finds both alike. Powertools
takes a fifteenth of a cold start, so it is imported only if the setting names it.

The log holds counts, names of handlers and templates, sequence numbers, error types, locations in the code, and
messages without their item content. It never holds keys or other contents of items, at any level.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from streamfold.batch.report import Report
from streamfold.derivations import COUNTED_WORDS
from streamfold.errors import SettingsError, shown
from streamfold.runtime import SendingPace
from streamfold.settings import Settings

NAMESPACE = "streamfold"
SECONDS_SUFFIX = "_seconds"
"""Ends the name of a metric that is no count."""
LEVEL_VARIABLE = "POWERTOOLS_LOG_LEVEL"
"""The variable that gives the level, with Powertools and without."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Attributes that every record of ``logging`` has; the others were given as ``extra``."""
FAILURES_LOGGED_MAX = 20
WARNINGS = {word: message.log for word, message in COUNTED_WORDS.items() if message.log}
"""The warning that a count of a kind is logged with, by the count's name."""
NEAR_MISS = "records match a handler's key but for a field, and no handler of the key reads them"

Emit = Callable[[Mapping[str, int]], None]

log = logging.getLogger("streamfold")


def observer(service: str, settings: Settings) -> Callable[[Report, int, SendingPace], None]:
    """Sets up the logs and metrics of the setting; returns a function that logs and measures the report of a batch."""
    start_log(service, settings)
    measure = measuring(service, settings)
    if settings.observe == "traced":
        _start_tracer(service)

    def observe(report: Report, records: int, pace: SendingPace) -> None:
        actions, conflicts = pace.take_counts()
        counts = {
            "records": records,
            "failed": len({failure.sequence for failure in report.failures}),
            "known": report.known,
            "parked": sum(report.parked.values()),
            **{word: report.counts[word].total() if word in report.counts else 0 for word in WARNINGS},
            "unrouted": sum(report.unrouted.values()),
            "near_misses": report.near_missed,
            "transaction_conflicts": conflicts,
            "transaction_actions": min(actions, settings.chunk_actions),
        }
        log.info("batch processed", extra=counts)
        log_failures(report, "record failed and is redelivered")
        for (key, name), count in report.near_misses.items():
            log.warning(NEAR_MISS, extra={"key": key, "field": name, "near_misses": count})
        for word, text in WARNINGS.items():
            for handler, count in report.counts.get(word, {}).items():
                log.warning(text, extra={"handler": handler, word: count})
        measure({**counts, "rows_written": sum(tally.written for tally in report.tallies.values())})

    return observe


def log_failures(report: Report, text: str) -> None:
    """Logs the first failures and how many records were parked."""
    for failure in report.failures[:FAILURES_LOGGED_MAX]:
        log.error(
            text,
            extra={
                "sequence": failure.sequence,
                "handler": failure.handler,
                "error_type": type(failure.error).__name__,
                "reason": failure.reason,
                "at": failure.at,
                "held": failure.held,
            },
        )
    for handler, parked in report.parked.items():
        log.error("records were parked", extra={"handler": handler, "parked": parked})


def start_log(service: str, settings: Settings) -> None:
    """Sets up the log as JSON, with the name of the service; leaves it as Lambda set it up if that is off.

    Raises ``SettingsError`` for an unknown level.
    """
    if settings.observe == "lines":
        level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
        if level not in LEVELS:
            raise SettingsError(f"{LEVEL_VARIABLE}={shown(level)}: expected one of {', '.join(LEVELS)}.")
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonFormatter(service))
        log.handlers, log.propagate = [handler], False
        log.setLevel(level)
    elif settings.observe != "off":
        from aws_lambda_powertools import Logger
        from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers

        copy_config_to_registered_loggers(Logger(service=service), include={log.name})


def measuring(service: str, settings: Settings) -> Emit:
    """Returns a function that measures counts in the embedded metric format, or does nothing if that is off."""
    if settings.observe == "lines":
        return lambda counts: _write_metrics(service, counts)
    return (lambda _: None) if settings.observe == "off" else _powertools_metrics(service)


def _write_metrics(service: str, counts: Mapping[str, int]) -> None:
    """CloudWatch makes metrics of this line. It may have 100 (User Guide, Embedded Metric Format); we have some 20."""
    metrics = [{"Name": name, "Unit": unit_of(name)} for name in counts]
    directive = {"Namespace": NAMESPACE, "Dimensions": [["service"]], "Metrics": metrics}
    header = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    sys.stdout.write(json.dumps({"_aws": header, "service": service, **counts}) + "\n")


def _powertools_metrics(service: str) -> Emit:
    from aws_lambda_powertools import Metrics

    metrics = Metrics(namespace=NAMESPACE, service=service)

    def emit(counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            metrics.add_metric(name=name, unit=unit_of(name), value=count)
        metrics.flush_metrics()

    return emit


def unit_of(name: str) -> str:
    """The unit of a metric, in CloudWatch's words."""
    return "Seconds" if name.endswith(SECONDS_SUFFIX) else "Count"


def _start_tracer(service: str) -> None:
    from aws_lambda_powertools import Tracer

    try:
        Tracer(service=service)  # patches boto3, so that every request shows in the trace
    except ModuleNotFoundError:
        raise SettingsError(
            "STREAMFOLD_OBSERVE is traced, but the AWS X-Ray SDK is not installed: add aws-lambda-powertools[tracer] "
            "to the function's requirements, or set STREAMFOLD_OBSERVE=powertools."
        ) from None


class JsonFormatter(logging.Formatter):
    """Writes a record of a service's log as one line of JSON."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "level": record.levelname,
            "location": f"{record.funcName}:{record.lineno}",
            "message": record.getMessage(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "service": self.service,
            "name": record.name,
            **{name: value for name, value in vars(record).items() if name not in OWN},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
