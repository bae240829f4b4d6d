"""Lambda's event source mapping in process: a stream's records reach a function as Lambda delivers them.

Every rule is from the Developer Guide (with-ddb, services-dynamodb-errors, services-ddb-batchfailurereporting) or was
seen on AWS, and is named in the code. No document defines the order of pollers and the wait before a retry; the twin
chooses both. Tumbling windows are left out.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

from streamfold.errors import SettingsError
from streamfold.testing.destinations import Destination, Discarded, GivingUp, Names
from streamfold.testing.mapping_settings import FOREVER, Filters, MappingSettings
from streamfold.testing.polling import PolledBatch, PolledShard, Polling
from streamfold.testing.stream import ACCOUNT, REGION, RETENTION_SECONDS, Clock, KinesisTwin, StreamTwin, TwinRecord

FAILURES = "batchItemFailures"
IDENTIFIER = "itemIdentifier"


def first_failed(response: Any, sequences: Sequence[str]) -> int | None:
    """The position in the batch from which its records are redelivered; None if all of it succeeded.

    For ``["10", "20", "30"]``, ``{"batchItemFailures": [{"itemIdentifier": "30"}, {"itemIdentifier": "20"}]}`` is 1:
    the lowest failed number is the checkpoint, and the records behind it are redelivered, listed or not. No response,
    an empty response and an empty or missing list are success, so a response with a misspelt key is success too. An
    identifier that is empty, null, under another name, or not of the batch fails the whole batch. So does any other
    invalid response.
    """
    if not response:
        return None
    if not isinstance(response, Mapping):
        return 0
    failures = response.get(FAILURES)
    if not failures:
        return None
    positions = {sequence: position for position, sequence in enumerate(sequences)}
    entries = failures if isinstance(failures, list) else [failures]
    return min(_position_of(entry, positions) for entry in entries)


def _position_of(entry: object, positions: Mapping[str, int]) -> int:
    identifier = entry.get(IDENTIFIER) if isinstance(entry, Mapping) else None
    return positions.get(identifier, 0) if isinstance(identifier, str) else 0


Ended = Literal["success", "partial", "failure", "error", "timeout", "throttled"]
"""The end of an invocation: all records through; some through; none through, by its response; the function raised; it
ran out of time; it was never called."""
Next = Literal["done", "rest", "halves", "again", "discarded"]
"""The next step of its batch: none; the records from the checkpoint on become a new batch; its halves become two; it is
redelivered unchanged; it is given up."""


class Died(BaseException):
    """Raised inside a function under test to end its process at once: no handler catches it. Lambda sees an error."""


class Throttled(Exception):  # noqa: N818 - named by the outcome of the invocation
    """Raised instead of running the function: Lambda could not invoke it. It tries again and spends no retry."""


class Context:
    """The context of one invocation. A retry of an unchanged batch has the same ``aws_request_id``."""

    __slots__ = ("_clock", "_ends", "aws_request_id", "function_name", "invoked_function_arn")
    function_version = "$LATEST"
    memory_limit_in_mb = 512

    def __init__(self, request_id: str, function_arn: str, clock: Clock, ends: float) -> None:
        self.aws_request_id: str = request_id
        self.invoked_function_arn: str = function_arn
        self.function_name: str = function_arn.rpartition(":")[2]
        self._clock, self._ends = clock, ends

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._ends - self._clock.now) * 1000))


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of the function: its records, its end, and the next step of the batch.

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


BACKOFF_SECONDS = 0.2
"""Wait before the first retry of a batch; it doubles with each. On AWS first retries came after 0.2 to 0.4 seconds."""
BACKOFF_SECONDS_MAX = 60.0
TIMEOUT_SECONDS_MAX = 900
"""The longest that an invocation takes (Developer Guide, gettingstarted-limits)."""
INVOCATIONS_MAX = 10_000

INVOKED = "InvokedEventCount"
FAILED_INVOKE = "FailedInvokeEventCount"


class MappingTwin:
    """Polls a stream and invokes a function, ``function(event, context)``, batch by batch, as Lambda does.

    ``stream`` is one of DynamoDB, ``TableTwin.stream``, or one of Kinesis.

    The function may return a partial batch response or raise; one that moves the clock beyond ``timeout_seconds`` has
    timed out, with any return value. ``clock`` is the stream's by default, ``destination`` gets discarded batches.
    Pollers that could run at the same time take turns, or are drawn by ``random``.

    ``metrics`` counts records by the names of Lambda's own metrics (Developer Guide, monitoring-metrics-types),
    ``discarded`` lists the records that were given up, ``expired`` counts the records that were lost because the stream
    no longer keeps them. Raises ``SettingsError`` for a timeout that Lambda refuses.
    """

    def __init__(
        self,
        stream: StreamTwin | KinesisTwin,
        function: Callable[[Any, Context], Any],
        settings: MappingSettings | None = None,
        *,
        clock: Clock | None = None,
        destination: Destination | None = None,
        name: str = "function",
        timeout_seconds: float = 60,
        random: Random | None = None,
    ) -> None:
        if not 0 < timeout_seconds <= TIMEOUT_SECONDS_MAX:
            raise SettingsError(
                f"timeout_seconds={timeout_seconds!r} does not fit: expected more than 0, at most "
                f"{TIMEOUT_SECONDS_MAX}."
            )
        self.stream = stream
        self.function = function
        self.settings: MappingSettings = settings or MappingSettings()
        self.clock: Clock = clock or stream.clock
        self.function_arn: str = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
        self.enabled: bool = True
        self.metrics: Counter[str] = Counter()
        self.expired: int = 0
        self._timeout_seconds = timeout_seconds
        self._random = random
        self._polling = Polling(stream, self.settings.parallelization_factor, Filters(self.settings.filters))
        self._ids = self._turn = 0
        names = Names(stream.arn, self.function_arn, str(uuid5(NAMESPACE_URL, f"{self.function_arn} {stream.arn}")))
        self._giving_up = GivingUp(names, destination, self.clock, self._new_id, self.metrics)
        if self.settings.starting_position == "LATEST":
            self._polling.skip()

    def step(self) -> Invocation | None:
        """Makes and returns the next invocation; None if no batch remains, or the mapping is disabled.

        If every batch has to wait, for its window or its next try, the clock advances to the first that is ready.
        """
        while self.enabled and (poller := self._next_poller()) is not None:
            batch = poller.batch(self.settings.batch_size, self.clock.now, self._new_id)
            if not self._drop_old(poller, batch):  # dropped records are not redelivered: the loop ends
                return self._invoke(poller, batch)
        return None

    def run(self, invocations_max: int = INVOCATIONS_MAX) -> list[Invocation]:
        """Steps until no batch remains (``caught_up``), or ``invocations_max`` times: a batch may fail for ever."""
        made: list[Invocation] = []
        while len(made) < invocations_max and (invocation := self.step()) is not None:
            made.append(invocation)
        return made

    @property
    def discarded(self) -> list[Discarded]:
        """The records that were given up, in order."""
        return self._giving_up.discarded

    @property
    def caught_up(self) -> bool:
        """Whether every record that the stream holds is through, filtered out, or given up."""
        return self._polling.caught_up

    def rewind(self, shard_id: str | None = None, sequence: int | str | None = None) -> None:
        """Loses the checkpoint of a shard, or of all: records are redelivered in new batches, from ``sequence`` on.

        Without ``sequence``, from the oldest that the stream holds. A rewind never skips records. Raises
        ``TwinError`` for a shard that the mapping does not read.
        """
        self._polling.rewind(shard_id, -1 if sequence is None else int(sequence) - 1)

    def disable(self) -> None:
        """Stops the mapping. It keeps its checkpoints (Developer Guide, with-ddb)."""
        self.enabled = False

    def enable(self) -> None:
        """Starts the mapping at the checkpoint of each shard: records behind it are redelivered, in new batches.

        A shard has one checkpoint. With several pollers, records that others finished behind it are redelivered too.
        """
        if not self.enabled:
            self.enabled = True
            self._polling.go_back()

    # --- which batch is next ------------------------------------------------------------------------------------------

    def _next_poller(self) -> PolledShard | None:
        self.expired += self._polling.poll(self.clock.now, self.metrics)
        pollers = self._polling.pollers
        waiting = [(ready_at, poller) for poller in pollers if (ready_at := poller.ready_at(self.settings)) is not None]
        if not waiting:
            return None
        first = min(ready_at for ready_at, _ in waiting)
        self.clock.advance(max(0.0, first - self.clock.now))
        ready = [poller for ready_at, poller in waiting if ready_at <= max(first, self.clock.now)]
        return self._random.choice(ready) if self._random else min(ready, key=lambda poller: poller.turn)

    def _new_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-4000-8000-{self._ids:012x}"

    # --- one invocation -----------------------------------------------------------------------------------------------

    def _invoke(self, poller: PolledShard, batch: PolledBatch) -> Invocation:
        self._turn += 1
        poller.turn = self._turn
        started = self.clock.now
        context = Context(batch.request_id, self.function_arn, self.clock, started + self._timeout_seconds)
        response, error = self._call(batch, context)
        records = tuple(polled.record for polled in batch.records)
        invoked = partial(Invocation, poller.shard_id, poller.number, batch.request_id)
        if isinstance(error, Throttled):
            self.metrics[FAILED_INVOKE] += len(records)
            self._wait(batch)
            return invoked(batch.attempts, records, "throttled", "again", None, error)
        batch.attempts += 1
        self.metrics[INVOKED] += len(records)
        timed_out = self.clock.now - started > self._timeout_seconds
        failed = 0 if error is not None or timed_out else self._first_failed(response, batch)
        outcome: Ended = "timeout" if timed_out else "error" if error is not None else OUTCOMES.get(failed, "partial")
        if failed is not None:
            self.metrics[FAILED_INVOKE] += len(records)
        then = self._advance(poller, batch, failed, unhandled=outcome in ("timeout", "error"))
        return invoked(batch.attempts, records, outcome, then, response, error)

    def _call(self, batch: PolledBatch, context: Context) -> tuple[Any, BaseException | None]:
        try:
            response = self.function(json.loads(batch.event), context)
            json.dumps(response, default=float)  # Lambda's runtime refuses other values; it takes Decimals
        except (Exception, SystemExit, Died) as error:  # noqa: BLE001 - any error of a function is its response
            return None, error
        return response, None

    def _first_failed(self, response: Any, batch: PolledBatch) -> int | None:
        # A mapping without this setting ignores the response (Developer Guide, services-ddb-batchfailurereporting).
        return first_failed(response, batch.sequences) if self.settings.report_item_failures else None

    def _advance(self, poller: PolledShard, batch: PolledBatch, failed: int | None, *, unhandled: bool) -> Next:
        """Replaces a batch by the next ones. The records from the checkpoint on, and each half, are a batch of their
        own, with a new request and all of its retries (seen on AWS). Splitting spends no retry (Developer Guide,
        services-dynamodb-errors). The first half is finished before the second begins.
        """
        if not poller.batches or poller.batches[-1] is not batch:
            return "again"  # the function has rewound the mapping: its records are redelivered with any response
        if failed is None:
            poller.batches.pop()
            return "done"
        if failed:
            poller.batches[-1] = PolledBatch(batch.records[failed:], self._new_id())
            return "rest"
        if self.settings.bisect and len(batch.records) > 1:
            middle = len(batch.records) // 2
            halves = (batch.records[middle:], batch.records[:middle])
            poller.batches[-1:] = [PolledBatch(half, self._new_id()) for half in halves]
            return "halves"
        if FOREVER < self.settings.retries_max < batch.attempts:
            poller.batches.pop()
            self._giving_up.take(poller, batch, len(batch.records), "RetryAttemptsExhausted", unhandled=unhandled)
            return "discarded"
        self._wait(batch)
        return "again"

    def _wait(self, batch: PolledBatch) -> None:
        batch.wait_seconds = min(max(BACKOFF_SECONDS, 2 * batch.wait_seconds), BACKOFF_SECONDS_MAX)
        batch.ready_at = self.clock.now + batch.wait_seconds

    # --- records that are given up ------------------------------------------------------------------------------------

    def _drop_old(self, poller: PolledShard, batch: PolledBatch) -> int:
        """Gives up the records at a batch's beginning that are older than the age limit, or than the stream keeps. The
        other records become a new batch. Returns how many were given up.
        """
        limit = self.settings.age_seconds_max
        if limit != FOREVER and limit < RETENTION_SECONDS and (count := self._older(batch, limit)):
            self._giving_up.take(poller, batch, count, "RecordAgeExceeded")
        elif count := self._older(batch, RETENTION_SECONDS):
            self.expired += count
        if count:
            rest = batch.records[count:]
            poller.batches[-1:] = [PolledBatch(rest, self._new_id())] if rest else []
        return count

    def _older(self, batch: PolledBatch, seconds: int) -> int:
        horizon = self.clock.now - seconds
        records = batch.records
        return next((position for position, polled in enumerate(records) if polled.created > horizon), len(records))


OUTCOMES: Mapping[int | None, Ended] = {None: "success", 0: "failure"}
