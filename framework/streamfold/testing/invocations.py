"""One call of a function by a mapping: what the function is given and may raise, and what is told of the call."""

from dataclasses import dataclass
from typing import Any, Literal

from streamfold.testing.clock import Clock
from streamfold.testing.destinations import Condition
from streamfold.testing.stream import TwinRecord

Ended = Literal["success", "partial", "failure", "error", "timeout", "throttled"]
"""How an invocation ended: all records through; some through; none through, by its response; the function raised; it
ran out of time; it was never called."""
Next = Literal["done", "rest", "halves", "again", "discarded"]
"""What becomes of its batch: nothing; the records from the checkpoint on are a new batch; its halves are; it comes
again as it is; it is given up."""


class Died(BaseException):
    """Raised inside a function under test to end its process at once: no handler catches it. Lambda sees an error."""


class Throttled(Exception):  # noqa: N818 - says what became of the invocation
    """Raised instead of running the function: Lambda could not invoke it. It tries again and spends no retry."""


class Context:
    """The context of one invocation. A retry of an unchanged batch has the same ``aws_request_id``."""

    __slots__ = ("_clock", "_ends", "aws_request_id", "function_name", "invoked_function_arn")
    function_version = "$LATEST"
    memory_limit_in_mb = 512

    def __init__(self, request_id: str, function_arn: str, clock: Clock, ends: float) -> None:
        self.aws_request_id = request_id
        self.invoked_function_arn = function_arn
        self.function_name = function_arn.rpartition(":")[2]
        self._clock, self._ends = clock, ends

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._ends - self._clock.now) * 1000))


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of the function: which records it got, how it ended, what becomes of the batch.

    ``attempt`` counts the calls with this batch from 1. ``error`` is what the function raised.
    """

    shard_id: str
    lane: int
    request_id: str
    attempt: int
    records: tuple[TwinRecord, ...]
    outcome: Ended
    then: Next
    response: Any = None
    error: BaseException | None = None

    @property
    def sequences(self) -> list[str]:
        return [record["dynamodb"]["SequenceNumber"] for record in self.records]


@dataclass(frozen=True, slots=True)
class Discarded:
    """Records that Lambda gave up, and whether the failure destination has them."""

    shard_id: str
    records: tuple[TwinRecord, ...]
    condition: Condition
    delivered: bool
