"""Logs, metrics and traces of a function, as ``STREAMFOLD_OBSERVE`` sets them.

By default this module writes the lines: JSON for the log, the embedded metric format for counts. They have the names
and the form of Powertools' Logger and Metrics, so that a search, a filter or an alarm finds both alike. Powertools
takes a fifteenth of a cold start, so it is imported only if the setting names it.

The log holds counts, names of handlers and templates, sequence numbers, error types, locations in the code, and
messages without their item content. It never holds keys or other contents of items, at any level. Each line has the ids
of its invocation (``InvocationIds``), so that one search finds all lines.

Metrics have the dimensions ``service``, the application's name, and ``function``; alarms read these. Those of a handler
have its name as a third dimension, and are off by default, because CloudWatch bills each name of each handler.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from streamfold.batch.report import Report
from streamfold.commit.outcome import Failure, by_cause
from streamfold.derivations import COUNTED_WORDS
from streamfold.engines.dynamodb_client import Consumed
from streamfold.errors import EngineUnavailable, RecordError, SettingsError, shown
from streamfold.records.change import Change
from streamfold.routes.application import Application
from streamfold.runtime import SendingPace, Sharing
from streamfold.settings import Settings

NAMESPACE = "streamfold"
PARTS_READ = "parts_read"
"""The metric of batches that read parts of collections. The others have none: CloudWatch bills each name."""
SECONDS_SUFFIX = "_seconds"
"""Ends the name of a metric that is no count."""
FUNCTION_VARIABLE = "AWS_LAMBDA_FUNCTION_NAME"
"""The variable in which Lambda gives the function's name (Developer Guide, configuration-envvars)."""
NO_FUNCTION = "local"
"""The dimension ``function`` outside of Lambda."""
LEVEL_VARIABLE = "POWERTOOLS_LOG_LEVEL"
"""The variable that gives the level, with Powertools and without."""
REQUEST, TRACE = "function_request_id", "xray_trace_id"
"""The names of Powertools' Logger."""
TRACE_VARIABLE = "_X_AMZN_TRACE_ID"
"""Lambda sets it for each invocation: ``Root=1-...;Parent=...;Sampled=1`` (Developer Guide, configuration-envvars)."""
SAMPLED = "1"
"""Of other invocations X-Ray has no trace, and an id would lead nowhere (X-Ray Developer Guide, tracing header)."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Attributes that every record of ``logging`` has; the others were given as ``extra``."""
FAILURES_LOGGED_MAX = 20
WARNINGS = {word: message.log for word, message in COUNTED_WORDS.items() if message.log}
"""The warning that a count of a kind is logged with, by the count's name."""
NEAR_MISS = "records match a handler's key but for a field, and no handler of the key reads them"

Numbers = Mapping[str, float]
Emit = Callable[[Numbers], None]

log = logging.getLogger("streamfold")


def ids_of(context: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """The ids of an invocation, by their names in a line. Outside of Lambda there is none."""
    found = {}
    request_id = getattr(context, "aws_request_id", None)
    if isinstance(request_id, str):
        found[REQUEST] = request_id
    header = dict(each.partition("=")[::2] for each in environment.get(TRACE_VARIABLE, "").split(";"))
    if header.get("Sampled") == SAMPLED and header.get("Root"):
        found[TRACE] = header["Root"]
    return found


class InvocationIds(logging.Filter):
    """Adds the ids of the present invocation to each record of a log. Drops no record."""

    def __init__(self) -> None:
        super().__init__()
        self.present: Mapping[str, str] = {}

    def begin(self, context: Any) -> None:
        self.present = ids_of(context, os.environ)

    def filter(self, record: logging.LogRecord) -> bool:
        vars(record).update(self.present)
        return True


invocation_ids = InvocationIds()
"""Those of this process, which threads of call slots see too. An execution environment runs one invocation at a time
(Lambda Developer Guide, lambda-runtime-environment)."""


class Processed(NamedTuple):
    """A batch that was processed, as its metrics read it."""

    report: Report
    changes: Sequence[Change]
    malformed: int  # records that could not be read
    consumed: Consumed
    seconds: float  # that the batch took
    now: float  # epoch seconds


def observer(app: Application, settings: Settings, pace: SendingPace) -> Callable[[Processed], None]:
    """Sets up the logs and metrics of the setting; returns a function that logs and measures a batch."""
    service = app.name
    start_log(service, settings)
    measure = measuring(service, settings)
    if settings.observe == "traced":
        _start_tracer(service)

    def observe(batch: Processed) -> None:
        report, numbers = batch.report, batch_numbers(batch, pace, settings)
        own = {name: number for name, number in numbers.items() if name not in MEASURED_ONLY}
        log_counts("batch processed", own, settings, trouble=is_troubled(report))
        log_failures(report, "record failed and is redelivered")
        for (key, name), count in report.near_misses.items():
            log.warning(NEAR_MISS, extra={"key": key, "field": name, "near_misses": count})
        for word, text in WARNINGS.items():
            for handler, count in report.counts.get(word, {}).items():
                log.warning(text, extra={"handler": handler, word: count})
        measure(numbers)
        if settings.observe_handlers:
            for handler, of_handler in by_handler(batch, times_written(batch.changes)).items():
                measuring(service, settings, handler)(of_handler)

    return observe


MEASURED_ONLY = frozenset(
    ("rows_written", "batch_seconds", "requests", "read_units", "write_units", "freshness_seconds")
)
"""Metrics of a batch that its log line has not."""


def batch_numbers(batch: Processed, pace: SendingPace, settings: Settings) -> Numbers:
    """The metrics of a batch. What ``pace`` counted since the last batch is taken."""
    report, (actions, conflicts) = batch.report, pace.take_counts()
    return {
        "records": len(batch.changes) + batch.malformed,
        "failed": len({failure.sequence for failure in report.failures}),
        "refused": len({failure.sequence for failure in report.failures if is_refused(failure)}),
        "known": report.known,
        "parked": sum(report.parked.values()),
        **{word: report.counts[word].total() if word in report.counts else 0 for word in WARNINGS},
        "unrouted": sum(report.unrouted.values()),
        "near_misses": report.near_missed,
        "transaction_conflicts": conflicts,
        "transaction_actions": min(actions, settings.chunk_actions),
        **of_shared_rows(pace.sharing),
        **({PARTS_READ: read} if (read := pace.take_parts_read()) else {}),
        "rows_written": sum(tally.written for tally in report.tallies.values()),
        "batch_seconds": round(batch.seconds, 3),
        "requests": batch.consumed.requests,
        "read_units": batch.consumed.read,
        "write_units": batch.consumed.write,
        **freshness(times_written(batch.changes), batch.changes, report.failures, batch.now),
    }


def of_shared_rows(sharing: Sharing) -> Numbers:
    """Deltas since the last batch, and rows known to be shared. Nothing if this process met nobody: each name is billed
    as a metric of its own.
    """
    put, merged, waited_seconds = sharing.take_counts()
    found = {
        "deltas_put": put,
        "deltas_merged": merged,
        "bucket_wait_seconds": round(waited_seconds, 3),
        "rows_shared": len(sharing),
    }
    return found if any(found.values()) else {}


def is_refused(failure: Failure) -> bool:
    """Whether a record or its handler is the cause of a failure: no store that is away, and no earlier record."""
    return not failure.held and not isinstance(failure.error, EngineUnavailable)


def times_written(changes: Iterable[Change]) -> Mapping[str, float]:
    """When each change was written, by its sequence number, epoch seconds; without those that have no readable time."""
    found = {}
    for change in changes:
        if change.has_at:
            with suppress(RecordError):
                found[change.sequence] = change.at_seconds
    return found


def freshness(
    written: Mapping[str, float], changes: Iterable[Change], failures: Iterable[Failure], now: float
) -> Numbers:
    """The longest time from the write of an item to its rows, over the applied records; nothing if none was applied.

    DynamoDB gives the time of a write in whole seconds, so the figure may be a second too large.
    """
    failed = {failure.sequence for failure in failures}
    sequences = [change.sequence for change in changes]
    applied = [written[each] for each in sequences if each not in failed and each in written]
    return {"freshness_seconds": round(now - min(applied), 3)} if applied else {}


def by_handler(batch: Processed, written: Mapping[str, float]) -> Mapping[str, Numbers]:
    """The metrics of each handler that got records of a batch, or whose records were parked while it was off."""
    report, found = batch.report, {}
    for handler in report.delivered | report.parked:
        own = [failure for failure in report.failures if failure.handler == handler]
        refused, parked = len({each.sequence for each in own if is_refused(each)}), report.parked[handler]
        found[handler] = {
            "applied": max(report.records[handler] - report.failed[handler] - parked, 0),
            "refused": refused,
            "parked": parked,
            **freshness(written, report.delivered.get(handler, ()), own, batch.now),
        }
    return found


def is_troubled(report: Report) -> bool:
    """Whether the log has other lines of a batch than its counts."""
    return bool(report.failures or report.parked or report.near_misses or report.counts.keys() & WARNINGS.keys())


def log_counts(text: str, counts: Numbers, settings: Settings, *, trouble: bool = False) -> None:
    """Logs the counts of an invocation. The line of its metrics has them too: a second line, which costs as much as the
    first, is written only beside lines of trouble, at the level DEBUG, and if no metrics are written.
    """
    level = logging.INFO if trouble or settings.observe == "off" else logging.DEBUG
    log.log(level, text, extra=dict(counts))


def log_failures(report: Report, text: str) -> None:
    """Logs the first failure of each cause with their number, and how many records were parked."""
    for failure, count in by_cause(report.failures, lambda each: each.cause)[:FAILURES_LOGGED_MAX]:
        log.error(
            text,
            extra={
                "failures": count,
                "sequence": failure.sequence,
                "handler": failure.handler,
                "error_type": type(failure.error).__name__,
                "reason": failure.reason,
                "at": failure.at,
                "held": failure.held,
            },
        )
    for handler, parked in report.parked.items():
        sequence = report.first_parked[handler].sequence if handler in report.first_parked else None
        log.error("records were parked", extra={"handler": handler, "parked": parked, "sequence": sequence})


def start_log(service: str, settings: Settings) -> None:
    """Sets up the log as JSON, with the name of the service; leaves it as Lambda set it up if that is off.

    Raises ``SettingsError`` for an unknown level, and without Powertools where the setting names it.
    """
    log.addFilter(invocation_ids)  # a second time changes nothing
    if settings.observe == "lines":
        level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
        if level not in LEVELS:
            raise SettingsError(f"{LEVEL_VARIABLE}={shown(level)}: expected one of {', '.join(LEVELS)}.")
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonFormatter(service))
        log.handlers, log.propagate = [handler], False
        log.setLevel(level)
    elif settings.observe != "off":
        try:
            from aws_lambda_powertools import Logger
            from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
        except ModuleNotFoundError:
            raise SettingsError(
                f"STREAMFOLD_OBSERVE is {settings.observe}, but Powertools is not installed: build the function with "
                "STREAMFOLD_OBSERVE in template.yaml, which takes it along (make build), add the layer of Powertools, "
                "or set STREAMFOLD_OBSERVE=lines."
            ) from None

        copy_config_to_registered_loggers(Logger(service=service), include={log.name})


def measuring(service: str, settings: Settings, handler: str | None = None) -> Emit:
    """Returns a function that writes metrics in the embedded metric format, or does nothing if that is off."""
    dimensions = {"service": service, "function": os.environ.get(FUNCTION_VARIABLE, NO_FUNCTION)}
    if handler is not None:
        dimensions["handler"] = handler
    if settings.observe == "lines":
        return lambda numbers: _written(metrics_line(dimensions, numbers))
    return (lambda _: None) if settings.observe == "off" else _powertools_metrics(dimensions)


def metrics_line(dimensions: Mapping[str, str], numbers: Numbers) -> str:
    """The line that CloudWatch makes metrics of, at most 100 (User Guide, Embedded Metric Format). We have some 30."""
    metrics = [{"Name": name, "Unit": unit_of(name)} for name in numbers]
    directive = {"Namespace": NAMESPACE, "Dimensions": [[*sorted(dimensions)]], "Metrics": metrics}
    header = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    line = {"_aws": header, **dimensions, **numbers, **invocation_ids.present}
    return json.dumps(line, separators=(",", ":")) + "\n"


def _written(line: str) -> None:
    sys.stdout.write(line)


def _powertools_metrics(dimensions: Mapping[str, str]) -> Emit:
    from aws_lambda_powertools import Metrics

    metrics = Metrics(namespace=NAMESPACE, service=dimensions["service"])

    def emit(numbers: Numbers) -> None:
        for name, value in dimensions.items():
            if name != "service":  # Powertools adds it
                metrics.add_dimension(name=name, value=value)
        for name, number in numbers.items():
            metrics.add_metric(name=name, unit=unit_of(name), value=number)
        for name, value in invocation_ids.present.items():
            metrics.add_metadata(key=name, value=value)
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
