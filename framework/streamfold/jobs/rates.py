"""The pace of a run: units at a rate, slower while a table is throttled or the live stream falls behind."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any

from streamfold.engines.deadline import Deadline
from streamfold.errors import EngineError, redacted, refusal
from streamfold.parking import Clients, make_client

UNLIMITED = float("inf")
BURST_SECONDS = 1.0
"""Unspent units are kept for this time."""
WAIT_SECONDS_MAX = 1.0
"""The longest wait before the rates are read again."""
HALVED = 0.5
GROWTH_A_SECOND = 1.1
"""Growth of a rate that was halved: it doubles in about seven seconds."""
HALVING_SECONDS = 1.0
"""A rate is halved once in this time, however many threads are throttled."""
GROWING_SECONDS_MAX = 60
"""After an idle hour a rate has grown as after this time: enough for a factor of 300."""
RATE_MIN = 1.0
"""A rate is halved no further."""
SECONDS_SHORT_MIN = 0.001
"""A shorter wait is not waited: it joins the next one."""
WINDOW_SECONDS = 10.0
"""Spent units are remembered for about this time, for a rate without a limit."""

NAMESPACE, METRIC = "AWS/Lambda", "IteratorAge"
PERIOD_SECONDS = 60
"""Lambda reports its metrics each minute."""
LOOKED_BACK = timedelta(minutes=5)
"""An older measurement does not describe the present age."""
READ_SECONDS = 30
"""How often the age is read: it costs a request, and changes each minute."""
MILLISECONDS = 1000

ReadAge = Callable[[], float | None]
"""The age in seconds of the records that a function works on; None if it was not called in the last minutes."""


class TokenBucket:
    """Units of one kind that may be spent. ``rate`` is the wanted rate, ``held`` the present one."""

    def __init__(self, rate: float, now: float) -> None:
        self.held = UNLIMITED
        self._tokens = 0.0
        self._now = self._since = now
        self._spent = 0.0  # since then
        self._halved = -UNLIMITED
        self.wanted(rate)

    def wanted(self, rate: float) -> None:
        """Sets the rate; 0 is no limit."""
        self.rate = self.held = rate or UNLIMITED
        self._tokens = min(self._tokens, 0.0)

    def spend(self, units: float) -> None:
        self._spent += units
        if self.held != UNLIMITED:
            self._tokens -= units

    def seconds_short(self, now: float) -> float:
        """The wait until the debt of units is paid."""
        self._refill(now)
        seconds = -self._tokens / self.held
        return seconds if seconds >= SECONDS_SHORT_MIN else 0.0

    def halve(self, now: float) -> None:
        """Halves the rate. Without a limit, the rate becomes half of the units spent in a second."""
        self._refill(now)
        # Each thread that meets the same throttling calls this: without the bound, the rate would fall to its minimum.
        if now - self._halved < HALVING_SECONDS:
            return
        self._halved = now
        found = self._spent / max(now - self._since, BURST_SECONDS) if self.held == UNLIMITED else self.held
        self.held = max(found * HALVED, min(RATE_MIN, self.rate))
        self._tokens = min(self._tokens, 0.0)

    def _refill(self, now: float) -> None:
        passed, self._now = max(0.0, now - self._now), max(now, self._now)
        if self._now - self._since > WINDOW_SECONDS:
            self._spent, self._since = self._spent / 2, (self._since + self._now) / 2
        if self.held == UNLIMITED:
            self._tokens = 0.0
            return
        self._tokens = min(self._tokens + passed * self.held, self.held * BURST_SECONDS)
        self.held = min(self.held * GROWTH_A_SECOND ** min(passed, GROWING_SECONDS_MAX), self.rate)


class Pace:
    """Holds reads and writes to their rates, over all threads that share it.

    clock: seconds, from any begin.
    meanwhile: is called before each wait, and may change the rates: waits end after ``WAIT_SECONDS_MAX``.
    """

    def __init__(
        self,
        deadline: Deadline,
        read_units: float = 0,
        write_units: float = 0,
        clock: Callable[[], float] = time.monotonic,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.deadline = deadline
        self.clock = clock
        self.meanwhile = meanwhile
        self._lock = Lock()
        self._read, self._write = TokenBucket(read_units, clock()), TokenBucket(write_units, clock())

    @property
    def rates(self) -> tuple[float, float]:
        """The present rates of reads and writes; infinite without a limit."""
        return self._read.held, self._write.held

    def spend(self, read: float = 0, write: float = 0) -> None:
        """Takes consumed units, and waits until the rates allow the next ones.

        Raises ``NotStarted`` if there is no time for the wait.
        """
        with self._lock:
            self._short()
            self._read.spend(read)
            self._write.spend(write)
        while seconds := self._seconds_short():
            self.meanwhile()
            self.deadline.wait(min(seconds, WAIT_SECONDS_MAX))

    def change(self, read_units: float | None = None, write_units: float | None = None) -> None:
        """Sets rates; 0 is no limit, None keeps the present one."""
        with self._lock:
            self._short()
            for bucket, units in ((self._read, read_units), (self._write, write_units)):
                if units is not None and (units or UNLIMITED) != bucket.rate:
                    bucket.wanted(units)

    def throttled(self) -> None:
        """Halves the rates, because a table was throttled. They grow again with time."""
        with self._lock:
            now = self.clock()
            self._read.halve(now)
            self._write.halve(now)

    def _seconds_short(self) -> float:
        with self._lock:
            return self._short()

    def _short(self) -> float:
        now = self.clock()
        return max(self._read.seconds_short(now), self._write.seconds_short(now))


class StreamLag:
    """Whether a function is further behind its stream than a run allows.

    function: its name, for messages.
    clock: seconds, from any begin.
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
        """Why a run has to wait; "" if it has not to. Raises the errors of ``read``."""
        if self.clock() - self._at >= READ_SECONDS:
            self._age, self._at = self.read(), self.clock()
        if self._age is None or self._age <= self.seconds_max:
            return ""
        return f"function {self.function} is {self._age:,.0f} seconds behind its stream, --max-lag {self.seconds_max:g}"


def iterator_age(function: str, clients: Clients = make_client) -> ReadAge:
    """Reads the age of a function from CloudWatch. A call raises ``EngineError`` if the age cannot be read."""
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
            why = refusal(error) if isinstance(error, ClientError) else redacted(error)
            raise EngineError(
                f"The iterator age of function {function!r} cannot be read from CloudWatch: {why} "
                "--max-lag needs the permission cloudwatch:GetMetricStatistics."
            ) from None
        newest = max(found["Datapoints"], key=lambda point: point["Timestamp"], default=None)
        return None if newest is None else newest["Maximum"] / MILLISECONDS

    return read
