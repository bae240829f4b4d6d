"""What waits in the buckets of deltas, of a row and of all, and the way back to code that does not know deltas.

Nothing here moves a delta but the way back: ``commit.buckets`` does that.

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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

from streamfold.batch.manifest import change_deltas, read_manifest
from streamfold.commit.buckets import (
    AT_ONCE_MAX,
    FOUND_MAX,
    REST_SECONDS,
    Texts,
    empty_buckets,
    pending_in,
    read_deltas,
    read_heads,
    read_shared,
)
from streamfold.engines.protocol import Engine, Entries
from streamfold.errors import EngineError, EngineUnavailable, plain
from streamfold.keys.table import is_in_state
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.deltas import (
    BUCKETS,
    STRIPES,
    Delta,
    bucket_in,
    bucket_of,
    delta_key,
    names_in,
    stripe_partition,
)
from streamfold.records.values import WIDE, Number
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


PENDING, REFUSED, UNREAD, GONE = "pending", "refused", "unread", "gone"
"""A delta of an item that waits; whose row takes it no more; that is damaged; whose additions are in the rows."""


class PendingAdditions(NamedTuple):
    """What waits to be added to one row."""

    deltas: int
    contributors: int  # that the row will count more, or fewer
    amounts: Mapping[str, Number]
    refused: tuple[str, ...] = ()  # why the row takes some of it no more


class PendingRows(NamedTuple):
    """Rows of which something is pending."""

    rows: AbstractSet[RowKey]
    unread: Mapping[str, str]  # what to do about deltas that cannot be read, whose rows are not known


class DeltaOfItem(NamedTuple):
    """A delta that a ledger item names as one of its last step."""

    handler: str
    name: str
    status: str  # of what the item adds by it
    why: str | None = None  # the row takes it no more, or what to do about one that cannot be read


def deltas_in(application: str, engine: Engine, bucket: int) -> Iterator[Texts]:
    """All deltas of a bucket, some at a time, however many: one that is there from the first read to the last is among
    them.

    An emptier reads a part of each stripe, and the rest later. A correction must miss none.
    """
    for stripe in range(STRIPES):
        wanted = Entries(stripe_partition(application, bucket, stripe), FOUND_MAX)
        while found := engine.read_entries(wanted):
            yield dict(found)
            if len(found) < FOUND_MAX:
                break
            wanted = wanted._replace(after=found[-1][0])


def pending_rows(application: str, engine: Engine, buckets: Iterable[int]) -> PendingRows:
    """The rows of some buckets of which something is pending."""
    rows, unread = set[RowKey](), dict[str, str]()
    for bucket in buckets:
        for texts in deltas_in(application, engine, bucket):
            deltas, damaged = read_deltas(application, texts)
            rows.update(addition.key for delta in deltas.values() for addition in delta.additions)
            unread |= damaged
    return PendingRows(rows, unread)


def pending_of(application: str, engine: Engine, row: RowKey) -> PendingAdditions | None:
    """What is pending of a row; None if nothing is."""
    deltas, contributors, amounts, refused = 0, 0, dict[str, Number](), dict[str, None]()
    for delta in (
        each
        for texts in deltas_in(application, engine, bucket_of(row))
        for each in read_deltas(application, texts)[0].values()
    ):
        own = [each for each in delta.additions if each.key == row]
        deltas += bool(own)
        for each in own:
            contributors += each.contributors
            for name, amount in each.amounts.items():
                amounts[name] = WIDE.add(amounts.get(name, 0), amount)
        if own and delta.refused is not None:
            refused[plain(delta.refused.reason)] = None
    return PendingAdditions(deltas, contributors, amounts, tuple(refused)) if deltas else None


def deltas_of(application: str, engine: Engine, found: LedgerItem) -> list[DeltaOfItem]:
    """The deltas that a ledger item names, by handler."""
    named = [
        (handler, name, rows)
        for handler, each in found.contributions.items()
        for name, rows in names_in(each.deltas or "").items()
    ]
    keys = {delta_key(application, name): name for _, name, _ in named}
    stored = engine.read_state(keys, consistent=True) if keys else {}
    deltas, unread = read_deltas(application, {keys[key]: str(item.get("s", "")) for key, item in stored.items()})

    def status(name: str, rows: frozenset[str]) -> tuple[str, str | None]:
        if name in unread:
            return UNREAD, unread[name]
        if (delta := deltas.get(name)) is None:
            return GONE, None
        if delta.refused is None:
            return PENDING, None
        # What other rows of the delta take no more is not of this item.
        return (REFUSED, plain(delta.refused.reason)) if rows & delta.rows else (GONE, None)

    return [DeltaOfItem(handler, name, *status(name, rows)) for handler, name, rows in named]


class PendingLook:
    """Whether something of a row waits in a delta, as one look into the buckets shows: each bucket is read once."""

    def __init__(self, application: str, engine: Engine) -> None:
        self.application = application
        self.engine = engine
        self.found: dict[int, PendingRows] | None = None  # by bucket; None: no process puts deltas

    def may_be(self) -> bool:
        # Read each time: a long command may have begun before the first process noted that it puts deltas.
        return read_manifest(self.application, self.engine).deltas is not None

    def look_anew(self, *, buckets: bool) -> None:
        """Forgets what was read. ``buckets``: these are read again; otherwise no row has anything that waits."""
        self.found = {} if buckets else None

    def before_scan(self, rows: Iterable[RowKey]) -> set[RowKey]:
        """The rows of which something is pending before the second scan.

        What the first scan saw of an item may be taken back together with its delta. Then this look sees the delta, or
        the second scan sees that the ledger item is another one.
        """
        self.look_anew(buckets=True)
        found = set[RowKey]()
        for row in rows:
            with suppress(EngineError):  # a damaged delta: the look after the scan says so
                if self.has(row):
                    found.add(row)
        return found

    def has(self, row: RowKey) -> bool:
        """Whether something of a row waited when its bucket was read. Raises ``EngineError`` if nobody knows."""
        if self.found is None or is_in_state(row):
            return False
        bucket = bucket_of(row)
        if bucket not in self.found:
            self.found[bucket] = pending_rows(self.application, self.engine, [bucket])
        for why in self.found[bucket].unread.values():  # it may be of this row
            raise EngineError(why)
        return row in self.found[bucket].rows
