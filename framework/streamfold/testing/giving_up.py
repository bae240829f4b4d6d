"""Records that a mapping gives up: they go to its failure destination, or are lost."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from streamfold.testing.clock import Clock
from streamfold.testing.destinations import Condition, Destination, FailedBatch
from streamfold.testing.invocations import Discarded
from streamfold.testing.lanes import LaneBatch, StreamLane

DROPPED = "DroppedEventCount"
DELIVERED = "OnFailureDestinationDeliveredEventCount"
NOT_DELIVERED = "DestinationDeliveryFailures"


class Names(NamedTuple):
    """What a failure document names."""

    stream_arn: str
    function_arn: str
    mapping_id: str


class GivingUp:
    """Hands records to a destination, and keeps a list of them. ``metrics`` is the mapping's."""

    def __init__(
        self,
        names: Names,
        destination: Destination | None,
        clock: Clock,
        new_id: Callable[[], str],
        metrics: Counter[str],
    ) -> None:
        self.discarded: list[Discarded] = []
        self._names = names
        self._destination = destination
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics

    def take(
        self, lane: StreamLane, batch: LaneBatch, count: int, condition: Condition, *, unhandled: bool = False
    ) -> None:
        """Hands over a batch's first records. A destination that fails loses them, for good (seen on AWS)."""
        given_up = LaneBatch(batch.records[:count], batch.request_id, batch.attempts)
        delivered = False
        if self._destination is not None:
            try:
                self._destination.deliver(self._failed_batch(lane, given_up, condition, unhandled=unhandled))
                delivered = True
            except Exception:  # noqa: BLE001 - whatever a destination raises is its refusal
                self._metrics[NOT_DELIVERED] += 1
        self._metrics[DELIVERED if delivered else DROPPED] += count
        records = tuple(polled.record for polled in given_up.records)
        self.discarded.append(Discarded(lane.shard_id, records, condition, delivered))

    def _failed_batch(
        self, lane: StreamLane, batch: LaneBatch, condition: Condition, *, unhandled: bool
    ) -> FailedBatch:
        first, last = batch.records[0], batch.records[-1]
        return FailedBatch(
            condition=condition,
            request_id=batch.request_id,
            invocations=batch.attempts,
            responded=condition == "RetryAttemptsExhausted",
            function_error="Unhandled" if unhandled else None,
            at=self._clock.now,
            shard_id=lane.shard_id,
            sequences=(batch.sequences[0], batch.sequences[-1]),
            created=(first.created, last.created),
            records=len(batch.records),
            object_id=self._new_id(),
            event=batch.event,
            **self._names._asdict(),
        )
