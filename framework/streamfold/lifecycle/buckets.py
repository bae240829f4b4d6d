"""What waits in the buckets of deltas, and the way back to code that does not know deltas.

The mark in the manifest says whether deltas may be put (``batch.manifest``, docs/decisions/0080-deltas.md):

| mark   | event                                               | next   | the failure that this prevents              |
| ------ | --------------------------------------------------- | ------ | ------------------------------------------- |
| none   | a process met another one at a row                  | open   | older code withdraws what is still pending  |
| open   | a person begins the way back                        | closed | buckets fill while they are emptied         |
| closed | a person ends it early                              | open   | rows that many add to fall behind for good  |
| closed | every batch that read the open mark has ended, and  | none   | older code withdraws what is still pending  |
|        | nothing is pending                                  |        |                                             |

The mark has the time when it was closed. So two marks differ if somebody opened one in between, and a
command that was stopped waits only for the rest of the time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from streamfold.batch.manifest import change_deltas, read_manifest
from streamfold.commit.buckets import (
    AT_ONCE_MAX,
    REST_SECONDS,
    Texts,
    empty_buckets,
    pending_in,
    read_deltas,
    read_heads,
    read_shared,
)
from streamfold.errors import EngineUnavailable, plain
from streamfold.ledger.deltas import BUCKETS, Delta, bucket_in
from streamfold.runtime import SHARED_SECONDS, DeltasMark, Runtime
from streamfold.writes.guarded import RowKey

ROUNDS_MAX = 100
"""Rounds over all buckets. Nobody puts deltas by then, so a few rounds empty them unless others hold their leases."""
PENDING_MAX = 1_000_000
"""Deltas of one stripe that are listed: all of them."""
SHOWN_EVERY_SECONDS = 60.0


class RefusingRow(NamedTuple):
    """A row that takes no addition of some deltas."""

    row: RowKey
    reason: str
    handlers: tuple[str, ...]  # whose additions wait


class Lease(NamedTuple):
    """Who empties a bucket."""

    holder: str
    until: float  # epoch seconds


class Buckets(NamedTuple):
    """The buckets of an application, and the mark of deltas."""

    mark: DeltasMark | None
    pending: Mapping[int, int]  # deltas, by bucket
    refusing: Sequence[RefusingRow]
    unread: Sequence[str]  # what to do about deltas that somebody damaged
    leases: Mapping[int, Lease]
    rows_shared: int


def read_buckets(runtime: Runtime) -> Buckets:
    """Reads what is pending, with consistent reads. Writes nothing."""
    mark, heads, now = deltas_mark(runtime), read_heads(runtime), runtime.clock()
    texts = _all_pending(runtime)
    deltas, unread = read_deltas(runtime.application.name, texts)
    return Buckets(
        mark,
        _by_bucket(texts),
        _refusing(deltas.values()),
        [*unread.values()],
        {bucket: Lease(head.holder, head.until) for bucket, head in heads.items() if head.holder and head.until > now},
        sum(len(shared.since(now - SHARED_SECONDS)) for shared in read_shared(runtime).values()),
    )


def deltas_mark(runtime: Runtime) -> DeltasMark | None:
    return read_manifest(runtime.application.name, runtime.engine).deltas


def open_again(runtime: Runtime) -> DeltasMark | None:
    """Lets deltas be put again; returns the mark. Code that does not know deltas was kept out all the time."""
    return change_deltas(runtime, lambda mark: mark and mark._replace(closed=None))


class WayBack:
    """Makes a state ready for code that does not know deltas."""

    def __init__(self, runtime: Runtime, show: Callable[[float], None]) -> None:
        """``show`` gets the seconds for which batches that began before may still put deltas, from time to time."""
        self.runtime = runtime
        self.show = show

    def close(self) -> DeltasMark | None:
        """Has nobody put deltas from now on; returns the mark. One that is closed keeps its time."""

        def closed(mark: DeltasMark | None) -> DeltasMark | None:
            return mark._replace(closed=self.runtime.clock()) if mark and mark.closed is None else mark

        return change_deltas(self.runtime, closed)

    def wait(self, mark: DeltasMark) -> bool:
        """Waits until every batch has ended that may put deltas. False if somebody changed the mark meanwhile."""
        while (seconds := mark.quiet_at - self.runtime.clock()) > 0:
            self.show(seconds)
            self.runtime.wait(min(seconds, SHOWN_EVERY_SECONDS))
            if deltas_mark(self.runtime) != mark:
                return False
        return True

    def empty(self) -> int:
        """Moves all deltas into their rows; returns how many are still pending after the last round.

        Raises the errors of a store that is unavailable in the last rounds.
        """
        failed: EngineUnavailable | None
        tried: set[int] = set()  # buckets in which also what a row refused was tried
        for _ in range(ROUNDS_MAX):
            pending, failed = _all_pending(self.runtime), None
            deltas, _ = read_deltas(self.runtime.application.name, pending)
            movable = {bucket_in(name) for name, delta in deltas.items() if not delta.refused}
            buckets = sorted(movable | {bucket_in(name) for name in pending} - tried)
            if not buckets:
                return len(pending)
            for start in range(0, len(buckets), AT_ONCE_MAX):
                some = buckets[start : start + AT_ONCE_MAX]
                try:
                    tried.update(empty_buckets(self.runtime, some, pending, always=True))
                except EngineUnavailable as error:
                    failed = error
            self.runtime.wait(REST_SECONDS)
        if failed is not None:
            raise failed
        return len(_all_pending(self.runtime))

    def take_away(self, mark: DeltasMark) -> bool:
        """Takes the mark away, so that older code may run; False if somebody changed it meanwhile."""
        return change_deltas(self.runtime, lambda found: None if found == mark else found) is None


def _all_pending(runtime: Runtime) -> Texts:
    found: Texts = {}
    for bucket in range(BUCKETS):
        found |= pending_in(runtime, bucket, most=PENDING_MAX)
    return found


def _by_bucket(texts: Texts) -> dict[int, int]:
    counts: dict[int, int] = {}
    for name in texts:
        counts[bucket_in(name)] = counts.get(bucket_in(name), 0) + 1
    return dict(sorted(counts.items()))


def _refusing(deltas: Iterable[Delta]) -> list[RefusingRow]:
    """The rows that refuse, each once with each reason."""
    found: dict[tuple[RowKey, str], dict[str, None]] = {}
    for delta in deltas:
        if delta.refused:
            for addition in delta.additions:
                handlers = found.setdefault((addition.key, plain(delta.refused.reason)), {})
                handlers |= dict.fromkeys(delta.handlers)
    return [RefusingRow(row, reason, tuple(sorted(handlers))) for (row, reason), handlers in found.items()]
