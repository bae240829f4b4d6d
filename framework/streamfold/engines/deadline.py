"""How long work may go on, the one way to wait, and an engine that begins no call when the time is nearly over.

After the deadline nothing is begun. Pauses between tries end before it.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfold.engines.protocol import (
    Counter,
    Engine,
    Entries,
    Finished,
    Inserted,
    KeptState,
    OwnStream,
    Page,
    ScanCursor,
    ScanPage,
    Seekable,
    Segment,
    SeparateTables,
    StoredItem,
)
from streamfold.errors import NotStarted
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import Table
from streamfold.records.change import ItemKey
from streamfold.writes.guarded import GuardedWrite, PutPostRow, PutRow, PutState, Refused, RowKey, StateKey

TRIES_MAX = 8
"""Tries if others change the same items, or a table is busy; afterwards the records are retried."""
PAUSE_SECONDS_MAX = 0.05
"""The longest first pause, doubled each time: 6.35 seconds in all."""
THROTTLE_FACTOR = 4
"""How much longer the pauses are for a throttled table than for a conflict."""
PAUSE_SECONDS_LONGEST = 10
"""The longest pause of all, however many there were before."""
TIME_OVER = "The invocation's time is nearly over; the record is retried."


def no_end() -> float:
    """The remaining time without a deadline."""
    return float("inf")


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Deadline:
    """How long work may go on. By default there is no end."""

    seconds_left: Callable[[], float] = no_end  # until the invocation ends
    stop_seconds: float = 0  # the time that the last call may take; with less time, no call is begun
    pause: Callable[[float], None] = time.sleep

    def enough_time(self) -> bool:
        """Whether something new may be begun."""
        return self.seconds_left() > self.stop_seconds

    def begin(self) -> None:
        """Raises ``NotStarted`` if nothing new may be begun."""
        if not self.enough_time():
            raise NotStarted(TIME_OVER)

    def wait(self, seconds: float) -> None:
        """Pauses. Raises ``NotStarted`` at once if nothing new could be begun after the pause."""
        if self.seconds_left() - seconds <= self.stop_seconds:
            raise NotStarted(TIME_OVER)
        self.pause(seconds)

    def back_off(self, number: int, *, throttled: bool = False) -> None:
        """Pauses after ``number`` earlier pauses. Raises ``NotStarted`` as ``wait`` does.

        The pause is random between 0 and its longest (full jitter), so that processes which were refused together do
        not come back together.
        """
        longest = PAUSE_SECONDS_MAX * (1 << number) * (THROTTLE_FACTOR if throttled else 1)
        self.wait(random.random() * min(longest, PAUSE_SECONDS_LONGEST))  # noqa: S311 - jitter

    def tries(self, tries_max: int = TRIES_MAX) -> Iterator[int]:
        """Counts tries from 0, with a pause before each but the first. Raises ``NotStarted`` as ``wait`` does."""
        for number in range(tries_max):
            if number:
                self.back_off(number - 1)
            yield number


def time_left(context: Any) -> Callable[[], float]:
    """The remaining seconds of an invocation; without a Lambda context there is no end."""
    return no_end if context is None else lambda: context.get_remaining_time_in_millis() / 1000


class Timed:
    """An engine whose calls raise ``NotStarted`` if there is no time for them.

    ``NotStarted`` is an ``EngineUnavailable``, which every stage after the commit handles anyway. So no stage can fail
    to check the deadline, and none loses the results of the stages before it.
    """

    def __init__(self, engine: Engine, seconds_left: Callable[[], float], stop_seconds: float) -> None:
        self.engine = engine
        self.seconds_left = seconds_left
        self.stop_seconds = stop_seconds

    @property
    def is_local(self) -> bool:
        return self.engine.is_local

    @property
    def own_stream(self) -> OwnStream | None:
        return self.engine.own_stream

    @property
    def by_prefix(self) -> Seekable | None:
        return self.engine.by_prefix

    @property
    def durable(self) -> KeptState | None:
        return self.engine.durable

    @property
    def separate(self) -> SeparateTables | None:
        return self.engine.separate

    def begin(self) -> None:
        """Raises ``NotStarted`` if nothing new may be begun."""
        if self.seconds_left() <= self.stop_seconds:
            raise NotStarted(TIME_OVER)

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        self.begin()
        return self.engine.transact(writes, expires_at)

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        self.begin()
        return self.engine.insert_rows(rows)

    def insert_state(self, items: Sequence[PutState]) -> list[StateKey]:
        self.begin()
        return self.engine.insert_state(items)

    def put_post_rows(self, posts: Sequence[PutPostRow]) -> list[RowKey]:
        self.begin()
        return self.engine.put_post_rows(posts)

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        self.begin()
        return self.engine.remove_empty(rows)

    def clear_pending(self, finished: Finished) -> None:
        self.begin()
        self.engine.clear_pending(finished)

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        self.begin()
        return self.engine.count_up(counters, start, expires_at)

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        self.begin()
        return self.engine.read_state(keys, consistent=consistent)

    def read_together(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        self.begin()
        return self.engine.read_together(keys)

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        self.begin()
        return self.engine.read_rows(keys) if consistent else self.engine.read_rows(keys, consistent=False)

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        self.begin()
        return self.engine.read_entries(wanted)

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        self.begin()
        return self.engine.swap_state(key, attributes, revision)

    def read_source(self, item: ItemKey) -> StoredItem | None:
        self.begin()
        return self.engine.read_source(item)

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        self.begin()
        return self.engine.read_sources(items)

    def page(self, table: Table, partition: KeyValue, begins: str, after: KeyValue | None, limit: int) -> Page:
        self.begin()
        return self.engine.page(table, partition, begins, after, limit)

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        self.begin()
        return self.engine.items(table, partition)

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        self.begin()
        return self.engine.scan(table, segment, after, limit)

    def state_items(self) -> Iterator[StoredItem]:
        self.begin()
        return self.engine.state_items()

    def close(self) -> None:
        self.engine.close()
