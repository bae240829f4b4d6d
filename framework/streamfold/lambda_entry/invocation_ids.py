"""The ids of the running invocation: each line of the log and of metrics has them, so that one search finds all lines.

An execution environment runs one invocation at a time (Lambda Developer Guide, lambda-runtime-environment), so one
value for the process is enough, and threads of call slots see it too. Names are those of Powertools' Logger.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

REQUEST, TRACE = "function_request_id", "xray_trace_id"
TRACE_VARIABLE = "_X_AMZN_TRACE_ID"
"""Lambda sets it for each invocation: ``Root=1-...;Parent=...;Sampled=1`` (Developer Guide, configuration-envvars)."""
SAMPLED = "1"
"""Of other invocations X-Ray has no trace, and an id would lead nowhere (X-Ray Developer Guide, tracing header)."""


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
"""Those of this process."""
