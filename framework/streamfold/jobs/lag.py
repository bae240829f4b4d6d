"""How far a function is behind its stream: a run over all items gives way to the live records.

Lambda measures it as ``IteratorAge``: how old the last record of a batch was when the function was called with it
(Lambda Developer Guide, Types of metrics for Lambda functions).
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from streamfold.errors import EngineError, told
from streamfold.parking import Clients, make_client

NAMESPACE, METRIC = "AWS/Lambda", "IteratorAge"
PERIOD_SECONDS = 60
"""Lambda reports its metrics each minute."""
LOOKED_BACK = timedelta(minutes=5)
"""An age that was measured before says nothing about now."""
READ_SECONDS = 30
"""How often the age is read: it costs a request, and changes each minute."""
MILLISECONDS = 1000

ReadAge = Callable[[], float | None]
"""The age in seconds of what a function works on; None if it was not called in the last minutes."""


class StreamLag:
    """Whether a function is further behind its stream than a run may let it be.

    function: its name, for messages.
    clock: seconds, of any begin.
    """

    def __init__(
        self, function: str, seconds_max: float, read: ReadAge, clock: Callable[[], float] = time.time
    ) -> None:
        self.function = function
        self.seconds_max = seconds_max
        self.read = read
        self.clock = clock
        self._age: float | None = None
        self._at = -float("inf")

    def __call__(self) -> str:
        """Why a run has to wait; "" if it has not to. Raises what reading the age raises."""
        if self.clock() - self._at >= READ_SECONDS:
            self._age, self._at = self.read(), self.clock()
        if self._age is None or self._age <= self.seconds_max:
            return ""
        return f"function {self.function} is {self._age:,.0f} seconds behind its stream, --max-lag {self.seconds_max:g}"


def iterator_age(function: str, clients: Clients = make_client) -> ReadAge:
    """Reads the age of a function from CloudWatch. A call raises ``EngineError`` where it may not be read."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = clients("cloudwatch")

    def read() -> float | None:
        now = datetime.now(UTC)
        try:
            found: dict[str, Any] = client.get_metric_statistics(
                Namespace=NAMESPACE,
                MetricName=METRIC,
                Dimensions=[{"Name": "FunctionName", "Value": function}],
                StartTime=now - LOOKED_BACK,
                EndTime=now,
                Period=PERIOD_SECONDS,
                Statistics=["Maximum"],
            )
        except (BotoCoreError, ClientError) as error:
            raise EngineError(
                f"The iterator age of function {function!r} cannot be read from CloudWatch: {told(error)} --max-lag "
                "needs the permission cloudwatch:GetMetricStatistics."
            ) from None
        newest = max(found["Datapoints"], key=lambda point: point["Timestamp"], default=None)
        return None if newest is None else newest["Maximum"] / MILLISECONDS

    return read
