"""The lines of a function's log: JSON for what is logged, the embedded metric format for what is counted.

They have the names and the form that Powertools' Logger and Metrics give them, so that a search, a filter or an alarm
finds both alike. Powertools itself is imported only with ``STREAMFOLD_POWERTOOLS=on``: it takes a fifteenth of a cold
start.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from streamfold.errors import SettingsError, shown

NAMESPACE = "streamfold"
SECONDS_SUFFIX = "_seconds"
"""Ends the name of a metric that is no count."""
LEVEL_VARIABLE = "POWERTOOLS_LOG_LEVEL"
"""The variable that gives the level, with Powertools and without."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What every record of ``logging`` has; the rest was given as ``extra``."""

Emit = Callable[[Mapping[str, int]], None]

log = logging.getLogger("streamfold")


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


def write_log(service: str) -> None:
    """Has the log written as lines of JSON, with the name of the service.

    Raises ``SettingsError`` for a level that is none.
    """
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    if level not in LEVELS:
        raise SettingsError(f"{LEVEL_VARIABLE}={shown(level)}: expected one of {', '.join(LEVELS)}.")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(service))
    log.handlers, log.propagate = [handler], False
    log.setLevel(level)


def metric_lines(service: str) -> Emit:
    """Gives a function that measures counts: CloudWatch makes metrics of the lines that it prints."""

    def emit(counts: Mapping[str, int]) -> None:
        sys.stdout.write(_metric_line(service, counts) + "\n")

    return emit


def _metric_line(service: str, counts: Mapping[str, int]) -> str:
    """The line of some twenty counts; it may have 100 (CloudWatch User Guide, Embedded Metric Format Specification)."""
    metrics = [{"Name": name, "Unit": unit_of(name)} for name in counts]
    directive = {"Namespace": NAMESPACE, "Dimensions": [["service"]], "Metrics": metrics}
    told = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    return json.dumps({"_aws": told, "service": service, **counts})


def unit_of(name: str) -> str:
    """The unit of a metric, in CloudWatch's words."""
    return "Seconds" if name.endswith(SECONDS_SUFFIX) else "Count"
