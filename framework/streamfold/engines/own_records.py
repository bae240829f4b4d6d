"""The records of an engine's own stream: of derived rows, so that chains run without AWS, and of source items that
streamfold itself removed or updated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from streamfold.engines import OWN_VERSION, OwnRecord, StoredItem
from streamfold.records.values import same

STREAM_LABEL = "embedded"


def change_of(
    table: str, key: StoredItem, before: StoredItem | None, after: StoredItem | None
) -> dict[str, Any] | None:
    """The change for the own stream of a write; None if the write changed nothing, as in a real stream."""
    if before == after or (before and after and same({"M": before}, {"M": after})):
        return None
    event = "REMOVE" if after is None else "MODIFY" if before else "INSERT"
    images = {name: image for name, image in (("OldImage", before), ("NewImage", after)) if image is not None}
    return {"table": table, "eventName": event, "Keys": key, **images}


def lambda_form(sequence: int, change: dict[str, Any]) -> OwnRecord:
    """A change as the record that Lambda would deliver."""
    body = {name: part for name, part in change.items() if name in ("Keys", "OldImage", "NewImage")}
    record = {
        "eventID": f"{STREAM_LABEL}-{sequence}",
        "eventName": change["eventName"],
        "eventSource": "aws:dynamodb",
        "eventSourceARN": f"arn:aws:dynamodb:local:000000000000:table/{change['table']}/stream/{STREAM_LABEL}",
        "dynamodb": {
            **body,
            "SequenceNumber": str(sequence),
            "StreamViewType": "NEW_AND_OLD_IMAGES",
            "ApproximateCreationDateTime": change.get("at", 0),
        },
    }
    if OWN_VERSION in change:
        record[OWN_VERSION] = change[OWN_VERSION]
    return OwnRecord(sequence, record)


def is_own(record: Mapping[str, Any]) -> bool:
    """Whether a record is one of an own stream, which names tables by their logical names."""
    return str(record.get("eventSourceARN")).endswith(f"/stream/{STREAM_LABEL}")


class OwnRecords:
    """An own stream in lists: a queue for each group, which only handlers of that group read."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._last = 0

    def add(self, change: dict[str, Any], groups: Collection[str]) -> None:
        self._last += 1
        for group in groups:
            self._queues.setdefault(group, _Queue()).add(self._last, change)

    def pending(self, limit: int, group: str | None = None) -> list[OwnRecord]:
        """The first records that were not processed yet."""
        found: dict[int, dict[str, Any]] = {}
        for queue in self._of(group):
            found.update(queue.pending(limit))
        return [lambda_form(sequence, found[sequence]) for sequence in sorted(found)[:limit]]

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        """Stores the place up to which records were read, and drops those that are done; ``retry`` brings the rest."""
        for queue in self._of(group):
            queue.advance(sequence, done)

    def retry(self, group: str | None = None) -> None:
        """Makes the records that failed pending again."""
        for queue in self._of(group):
            queue.retry()

    def _of(self, group: str | None) -> "Collection[_Queue]":
        if group is None:
            return self._queues.values()
        return [self._queues[group]] if group in self._queues else []


class _Queue:
    """The records that one group reads, and the place up to which it read them."""

    def __init__(self) -> None:
        self._sequences: list[int] = []
        self._changes: dict[int, dict[str, Any]] = {}
        self._position = 0

    def add(self, sequence: int, change: dict[str, Any]) -> None:
        self._sequences.append(sequence)
        self._changes[sequence] = change

    def pending(self, limit: int) -> Iterator[tuple[int, dict[str, Any]]]:
        begin = bisect_right(self._sequences, self._position)
        return ((each, self._changes[each]) for each in self._sequences[begin : begin + limit])

    def advance(self, sequence: int, done: Collection[int]) -> None:
        for each in done:
            self._changes.pop(each, None)
        if done:
            begin, end = bisect_left(self._sequences, min(done)), bisect_right(self._sequences, max(done))
            self._sequences[begin:end] = [each for each in self._sequences[begin:end] if each in self._changes]
        self._position = sequence

    def retry(self) -> None:
        if self._sequences:
            self._position = min(self._position, self._sequences[0] - 1)
