"""An engine's own stream: records of derived rows, so that chains run without AWS, and of source items that streamfold
itself removed or updated. Dictionaries keep it in lists, a state file in a table.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from streamfold.engines.protocol import OWN_VERSION, OwnRecord, StoredItem
from streamfold.records.values import item_text, same

if TYPE_CHECKING:  # dictionaries need no SQLite
    from streamfold.engines.state_file import StateFile

STREAM_LABEL = "embedded"

BEHIND = "SELECT sequence, record FROM stream WHERE grp = ? AND sequence > ? ORDER BY sequence LIMIT ?"
DROP = "DELETE FROM stream WHERE grp = ? AND sequence = ?"
PUT_CURSOR = "INSERT INTO cursor VALUES (?, ?) ON CONFLICT DO UPDATE SET sequence = excluded.sequence"


def change_of(
    table: str, key: StoredItem, before: StoredItem | None, after: StoredItem | None, seconds: float = 0
) -> dict[str, Any] | None:
    """The change for the own stream of a write; None if the write changed nothing, as in a real stream.

    seconds: its time, epoch seconds; 0 if it is not known.
    """
    if before == after or (before and after and same({"M": before}, {"M": after})):
        return None
    event = "REMOVE" if after is None else "MODIFY" if before else "INSERT"
    images = {name: image for name, image in (("OldImage", before), ("NewImage", after)) if image is not None}
    return {"table": table, "eventName": event, "Keys": key, **images, **({"at": seconds} if seconds else {})}


def own_lambda_record(sequence: int, change: dict[str, Any]) -> OwnRecord:
    """A change as the record that Lambda would deliver."""
    body = {name: content for name, content in change.items() if name in ("Keys", "OldImage", "NewImage")}
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
        found: dict[int, dict[str, Any]] = {}
        for queue in self._of(group):
            found.update(queue.pending(limit))
        return [own_lambda_record(sequence, found[sequence]) for sequence in sorted(found)[:limit]]

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        for queue in self._of(group):
            queue.advance(sequence, done)

    def retry(self, group: str | None = None) -> None:
        for queue in self._of(group):
            queue.retry()

    def _of(self, group: str | None) -> "Collection[_Queue]":
        if group is None:
            return self._queues.values()
        return [self._queues[group]] if group in self._queues else []


class _Queue:
    """The records that one group reads, and the position up to which it read them."""

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


class DerivedStream:
    """The own stream of an embedded engine: a queue for each group. The caller opens the transaction for each write.

    ``write_out`` writes the added records, without those that were already processed. A record for several groups is
    written once for each group that has not processed it.
    """

    def __init__(self, file: "StateFile") -> None:
        self._file = file
        self._added: dict[str, dict[int, dict[str, Any]]] = {}  # by group and sequence number, in order
        self._positions: dict[str, int] = {}  # up to where groups read; a missing group: as in the file
        self._last: int | None = None  # the last sequence number given; None: as in the file

    def add(self, change: dict[str, Any], groups: Collection[str]) -> None:
        if not groups:
            return
        self._last = (self._stored_last() if self._last is None else self._last) + 1
        for group in groups:
            self._added.setdefault(group, {})[self._last] = change

    def pending(self, limit: int, group: str | None = None) -> list[OwnRecord]:
        found: dict[int, dict[str, Any]] = {}
        for each in self._groups(group):
            found.update(self._first(each, limit))
        return [own_lambda_record(sequence, found[sequence]) for sequence in sorted(found)[:limit]]

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        # Only records that were processed here are dropped: another process may have returned records meanwhile.
        last = self._stored_last()
        stored = [each for each in done if each <= last]
        for name in self._groups(group):
            added = self._added.get(name, {})
            for each in done:
                added.pop(each, None)
            self._file.put_all(DROP, [(name, each) for each in stored])
            self._positions[name] = sequence

    def retry(self, group: str | None = None) -> None:
        for name in self._groups(group):
            (first,) = self._file.one("SELECT min(sequence) FROM stream WHERE grp = ?", (name,))
            remaining = [each for each in (first, next(iter(self._added.get(name, ())), None)) if each is not None]
            if remaining:
                self._positions[name] = min(remaining) - 1

    def write_out(self) -> None:
        """Writes the added records that are not processed, and the positions."""
        self._file.put_all(PUT_CURSOR, list(self._positions.items()))
        for group, added in self._added.items():
            self._file.execute("INSERT OR IGNORE INTO cursor VALUES (?, 0)", (group,))
            texts = [(group, sequence, item_text(change)) for sequence, change in added.items()]
            self._file.put_all("INSERT INTO stream VALUES (?, ?, ?)", texts)
        if self._last is not None:
            self._file.execute("UPDATE numbered SET last = ?", (self._last,))
        self.drop()

    def drop(self) -> None:
        """Drops unwritten changes: the file is right."""
        self._added, self._positions, self._last = {}, {}, None

    def _groups(self, group: str | None) -> Collection[str]:
        """The group, or all that have a queue."""
        if group is not None:
            return [group]
        return dict.fromkeys([*(name for (name,) in self._file.rows("SELECT grp FROM cursor")), *self._added])

    def _first(self, group: str, limit: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The first remaining records of a group, by number. Added records come behind the stored ones."""
        position = self._positions[group] if group in self._positions else self._stored_cursor(group)
        stored = [(each, self._file.item(text)) for each, text in self._file.rows(BEHIND, (group, position, limit))]
        yield from stored
        added = (entry for entry in self._added.get(group, {}).items() if entry[0] > position)
        yield from islice(added, limit - len(stored))

    def _stored_cursor(self, group: str) -> int:
        found = self._file.one("SELECT sequence FROM cursor WHERE grp = ?", (group,))
        return int(found[0]) if found else 0

    def _stored_last(self) -> int:
        # Written numbers only rise, so that none is given twice, not even the number of a record that was never
        # written.
        return int(self._file.one("SELECT last FROM numbered", ())[0])
