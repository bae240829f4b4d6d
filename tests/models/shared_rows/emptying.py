"""The protocol of shared rows, first half: who moves deltas into rows, waits for them, mends rows, and ends it all.

Each actor is a generator of calls of the store. Between two calls anything may happen. The numbers of guards are those
of docs/decisions/0080-deltas.md. ``steps`` has the second half: who puts deltas.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from enum import Enum
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol

from tests.models.shared_rows.store import (
    ANOTHER,
    BUCKETS,
    MANIFEST,
    MARK,
    READABLE_AFTER,
    STRIPES,
    Change,
    Condition,
    Contribution,
    Delta,
    Half,
    Key,
    Manifest,
    Part,
    Parts,
    Pending,
    Refused,
    Row,
    Store,
    Transaction,
    add_parts,
    added,
    becomes,
    bucket_of,
    entered,
    equals,
    is_absent,
    is_free,
    is_too_few,
)

INVOCATION_MAX = 600
"""Time that an invocation takes at most: 15 minutes of Lambda."""
TRIES_MAX = 60


class Mutant(Enum):
    """Guards made wrong: the number of the guard, and what happens without it."""

    PUT_BEFORE = "1: deltas are put before the ledger item: counted twice after a crash"
    PUT_AFTER = "1: deltas are put after the ledger item: lost after a crash"
    NAME_AGAIN = "2: a name is used twice: a new delta replaces one that is pending"
    ROWS_FIRST = "3: rows are added to before the deltas are deleted: twice after a crash"
    DELTAS_FIRST = "3: deltas are deleted before rows are added to: lost after a crash"
    ANY_DELTA = "3: deltas are deleted unseen: two that empty at once add both"
    ANY_CONTENT = "3: a delta has to be there, whatever it holds: what was moved of it is added again"
    NAMES_FORGOTTEN = "4: the ledger item does not name the deltas: a redelivery cannot wait for them"
    CLAIM_FORGETS = "4: the claim does not name the deltas: a redelivery cannot wait for them"
    STEP_OVERTAKES = "5: a step is planned while the last one is pending: a withdrawal overtakes its contribution"
    GUESS_OVERTAKES = "5: a step that was planned without a read passes over a name: as before"
    ABSENT_BY_OLD_READ = "5: absence is read eventually consistent: what is pending is missed"
    ABSENT_BY_SINGLE_READ = "5: absence of another's delta by a single read: its transaction is readable in part"
    VERSION_ALONE = "5: a step requires an older version alone: it is planned from another contribution"
    EARLY = "6: a batch is acknowledged before its deltas are in the rows"
    REDELIVERY_EARLY = "6: a batch that came before waits for nothing"
    CLAIM_EARLY = "6: a change that is claimed waits for nothing"
    CURSOR_EARLY = "6: the cursor of a page moves before its deltas are in the rows"
    EMPTY_ROW = "7: a row may count nobody after a merge: the emptier dies, and nobody removes it"
    EMPTY_UNMARKED = "7: an empty row is deleted by what was read: what others added meanwhile goes with it"
    MENDS_PENDING = "8: a mender adds what is pending: it is added a second time"
    MENDS_UNMARKED = "8: a mender takes an equal row for one that nobody wrote"
    MENDS_AT_ONCE = "8: no pause between two scans: a transaction is readable in part"
    MENDS_ONE_SCAN = "8: one scan of the ledger is no moment: who came and who left are both in it"
    MENDS_ONE_LOOK = "8: a mender looks into the bucket once: what was taken back before that is added"
    MENDS_ONE_STRIPE = "8: a mender looks into one stripe of the bucket"
    DROPPED_WHOLE = "9: a row that somebody removed loses what new items add in the same delta"
    DROPPED_UNSEEN = "9: a half is dropped though the row was mended meanwhile"
    ASIDE_RENAMED = "10: what a row refuses gets a new name: its records are acknowledged"
    ASIDE_PASSED = "10: what a row refuses is taken for settled: steps overtake it"
    ASIDE_UNNAMED = "10: a step names its own deltas alone: later steps overtake what a row refused before"
    BACK_UNREAD = "13: a share leaves a delta that is not as it was read: it was moved meanwhile"
    BACK_APART = "13: a share leaves its delta in another transaction than its ledger item's"
    BACK_WHOLE = "13: what other items add to the row leaves the delta, too"
    BACK_OF_OTHERS = "13: a process takes the step of another one back, which sees its delta gone, and acknowledges"
    BACK_UNSEEN_BY_OTHERS = "13: who waits for the delta of another process takes a step for done that it took back"
    BACK_OLDER = "13: an older step replaces what a row refuses: who put that takes it for done"
    BACK_BESIDE = "13: the ledger item goes back, and rows that have what its step moved do not"
    PUT_AT_ONCE = "11: deltas are put as soon as the mark is: older code is still under way"
    OLDER_PASSES = "11: older code passes over the mark"
    BACK_AT_ONCE = "12: the mark is taken away before all that saw it open have ended"
    BACK_UNSEEN = "12: the mark is taken away with deltas pending"


class Call(NamedTuple):
    """A call of the store, or a pause."""

    run: Callable[[], Any]
    meets: tuple[Key, ...] = ()  # a transaction: it is sent again while another is under way at one of these
    not_before: int = 0


class World(Protocol):
    """What actors know of the world that they are in."""

    store: Store
    random: Random
    mutant: Mutant | None
    share_of_deltas: float
    sources: dict[Key, Contribution]
    settled: dict[Key, Pending]
    takes_back: bool

    def new_number(self) -> int: ...


Calls = Generator[Call, Any, Any]


class Actor:
    """Whoever calls the store."""

    def __init__(self, world: World) -> None:
        self.world, self.store, self.random = world, world.store, world.random

    def broken(self, *mutants: Mutant) -> bool:
        return self.world.mutant in mutants

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def read(self, key: Key) -> Calls:
        return (yield Call(lambda: self.store.read(key)))

    def read_together(self, keys: Collection[Key]) -> Calls:
        return (yield Call(lambda: self.store.read_together(keys), tuple(keys)))

    def query(self, bucket: int, *, consistent: bool, stripes: int = STRIPES) -> Calls:
        """The deltas of a bucket."""
        found: dict[Key, Delta] = {}
        for stripe in range(stripes):
            found |= yield Call(partial(self.store.query, bucket, stripe, consistent=consistent))
        return found

    def transact(self, transaction: Transaction) -> Calls:
        keys = tuple(key for key, _, _ in transaction.writes)
        return (yield Call(lambda: self.store.transact(transaction), keys))

    def write(self, key: Key, condition: Condition, change: Change, mended: str = "") -> Calls:
        """A write of one item; returns whether it was taken."""
        transaction = Transaction(mended=mended)
        transaction.write(key, condition, change)
        try:
            yield from self.transact(transaction)
        except Refused:
            return False
        return True


class Emptier(Actor):
    """Moves deltas of a bucket into their rows. Anybody may do it at any time, several at once."""

    def empty(self, bucket: int, known: Mapping[Key, Delta]) -> Calls:
        """``known``: deltas that the caller knows to have been there, whether a query finds them or not."""
        found = dict(known) | (yield from self.query(bucket, consistent=self.chance(0.5)))
        chosen = [name for name in found if not found[name].refused or self.chance(0.3)]
        self.random.shuffle(chosen)
        if self.chance(0.5):
            chosen = chosen[: self.random.randrange(len(chosen) + 1)]
        if chosen:
            yield from self.move({name: found[name] for name in chosen})

    def move(self, deltas: Mapping[Key, Delta]) -> Calls:
        """Moves deltas together, or one by one where a row refuses them."""
        aside: set[str] = set()  # rows that refuse for good
        lost: set[str] = set()  # rows that somebody removed
        for _ in range(TRIES_MAX):
            parts: Parts = {}
            for delta in deltas.values():
                add_parts(parts, delta.parts)
            marks = yield from self.marked(parts)
            try:
                yield from self.send(self.merge(deltas, parts, aside, lost, marks))
                return
            except Refused as refused:
                rows = {key[1]: found for key, found in refused.found.items() if key[0] == "row"}
                if len(rows) < len(refused.found):
                    return  # others have moved some of these: what is pending of them is found again
            wrong = {row: self.why(parts[row], found) for row, found in rows.items() if row not in lost}
            lost -= rows.keys()  # it counts enough again: somebody mended it
            if len(deltas) > 1 and {ANOTHER, "removed"} & {*wrong.values()}:
                for name, delta in deltas.items():
                    yield from self.move({name: delta})
                return
            aside |= {row for row, why in wrong.items() if why == ANOTHER}
            lost |= {row for row, why in wrong.items() if why == "removed"}
            if all(delta.refused and aside >= delta.parts.keys() for delta in deltas.values()):
                return  # as before

    def why(self, part: Part, row: Row | None) -> str:
        """Why a row refused an addition."""
        row = row or Row()
        if row.owner == ANOTHER:
            return ANOTHER
        return "removed" if row.contributors < part.contributors_min else "would be empty"

    def marked(self, parts: Parts) -> Calls:
        """Marks rows that would count nobody after a merge. Returns the marks: such rows are deleted by it instead.

        The mark is in the owner attribute, so the record of the deletion is known as one of the framework's own.
        """
        marks: dict[str, str] = {}
        for row, part in sorted(parts.items()):
            if part.both.contributors >= 0 or self.broken(Mutant.EMPTY_ROW):
                continue
            found = yield from self.read(("row", row))
            counts = (found or Row()).contributors
            # Of a row that somebody removed, new items may stay: it counts fewer than are to be taken back.
            if (found or Row()).owner == ANOTHER or not counts == part.contributors_min == -part.both.contributors:
                continue
            mark = f"{MARK}{self.world.new_number()}"
            if (yield from self.write(("row", row), equals(found), becomes(found._replace(owner=mark)))):
                marks[row] = mark
        return marks

    def merge(
        self,
        deltas: Mapping[Key, Delta],
        parts: Parts,
        aside: Collection[str],
        lost: Collection[str],
        marks: Mapping[str, str],
    ) -> Transaction:
        """One transaction: the deltas go, and each of their rows gets what they add (guard 3)."""
        merge = Transaction()
        remains = {row: parts[row] for row in sorted(aside)}
        for name, delta in sorted(deltas.items()):
            # What a row refuses keeps its name: ledger items know it by that (guard 10).
            renamed = self.broken(Mutant.ASIDE_RENAMED) and remains
            kept = Delta(remains, ANOTHER) if remains and not renamed else None
            merge.write(name, self.as_read(delta), becomes(kept))
            if renamed:
                merge.write((*name[:3], self.world.new_number()), is_absent, becomes(Delta(remains, ANOTHER)))
        for row, part in sorted(parts.items()):
            if row in lost:
                self.add_entering(merge, row, part)
            elif row not in aside:
                self.add(merge, row, part, marks.get(row))
        return merge

    def as_read(self, delta: Delta) -> Condition:
        """A delta is there, and holds what was read: others may have moved it, or some of it."""
        if self.broken(Mutant.ANY_DELTA):
            return lambda _: True
        if self.broken(Mutant.ANY_CONTENT):
            return lambda found: found is not None
        return equals(delta)

    def add(self, merge: Transaction, row: str, part: Part, mark: str | None) -> None:
        merge.applied += part.effects
        if mark is not None:
            # No addition came since the row was marked, so it counts just those that leave it now (guard 7).
            unmarked = self.broken(Mutant.EMPTY_UNMARKED)
            merge.write(("row", row), lambda found: unmarked or (found or Row()).owner == mark, becomes(None))
            return
        takes = part.both.contributors < 0 and not self.broken(Mutant.EMPTY_ROW)
        required = max(part.contributors_min, 1 - part.both.contributors) if takes else part.contributors_min
        merge.write(("row", row), is_free(required), added(part.both))

    def add_entering(self, merge: Transaction, row: str, part: Part) -> None:
        """Adds the first half alone. It requires that the row counts too few still: a mender may have mended it, and
        then it counts what the second half takes back (guard 9).
        """
        unseen, whole = self.broken(Mutant.DROPPED_UNSEEN), self.broken(Mutant.DROPPED_WHOLE)
        entering = Half() if whole else part.entering
        merge.dropped += [effect for effect in part.effects if whole or not effect.enters]
        merge.applied += [effect for effect in part.effects if effect.enters and not whole]
        merge.write(("row", row), is_too_few(part, unseen=unseen), entered(entering))

    def send(self, merge: Transaction) -> Calls:
        apart = self.broken(Mutant.ROWS_FIRST, Mutant.DELTAS_FIRST)
        if not apart:
            yield from self.transact(merge)
            return
        rows = Transaction([write for write in merge.writes if write.key[0] == "row"])
        deltas = Transaction([write for write in merge.writes if write.key[0] != "row"])
        rows.applied, rows.dropped = merge.applied, merge.dropped
        both = (rows, deltas) if self.broken(Mutant.ROWS_FIRST) else (deltas, rows)
        for transaction in both:
            yield from self.transact(transaction)


class Settling(Actor):
    """Waits until deltas are in their rows, and empties their buckets if nobody else does (guard 6)."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.emptier = Emptier(world)
        self.own: dict[Key, Delta] = {}  # that this process put, in transactions that were answered
        self.named: dict[Key, frozenset[str]] = {}  # deltas that items of this process name
        self.refused: dict[Key, Delta] = {}  # of the deltas that were looked for last: refused, and still there

    def wait_for(self, pending: Pending) -> None:
        for name, rows in pending.items():
            self.named[name] = self.named.get(name, frozenset()) | rows

    def settled(self) -> Calls:
        """Whether all of them are in their rows (guard 6)."""
        return (yield from self.are_settled(self.named))

    def are_settled(self, wanted: Pending) -> Calls:
        """Whether deltas are in their rows (guard 5). What other rows refuse does not matter.

        False: some row refuses, or the deadline came first.
        """
        for _ in range(TRIES_MAX):
            found = yield from self.still_pending(wanted)
            if not found:
                return True
            if all(delta.refused for delta in found.values()) and self.chance(0.3):
                return False
            yield from self.empty_some(found)
        return False

    def empty_some(self, found: Mapping[Key, Delta]) -> Calls:
        if self.chance(0.6):  # otherwise it waits for others
            name = self.random.choice(sorted(found))
            known = {each: delta for each, delta in found.items() if each[1] == name[1]}
            yield from self.emptier.empty(name[1], {**known, **self.known(name[1])})

    def known(self, bucket: int) -> dict[Key, Delta]:
        """Own deltas as they were put. Some may be gone, or hold less: then the merge is refused."""
        return {name: delta for name, delta in self.own.items() if name[1] == bucket and self.chance(0.3)}

    def still_pending(self, wanted: Pending) -> Calls:
        found: dict[Key, Delta | None] = {}
        others = [name for name in wanted if name not in self.own]
        for name in sorted(wanted.keys() & self.own.keys()):
            found[name] = yield from self.look(name)
        if self.broken(Mutant.ABSENT_BY_SINGLE_READ, Mutant.ABSENT_BY_OLD_READ):
            for name in others:
                found[name] = yield from self.look(name)
        elif others:
            # A name that another call wrote is perhaps readable before its delta is. A transaction of reads waits.
            found |= yield from self.read_together(others)
        pending = {name: delta for name, delta in found.items() if delta is not None}
        self.refused = {name: delta for name, delta in pending.items() if delta.refused}
        return {name: delta for name, delta in pending.items() if self.matters(delta, wanted[name])}

    def look(self, name: Key) -> Calls:
        if self.broken(Mutant.ABSENT_BY_OLD_READ):
            return (yield Call(lambda: self.store.read_behind(name)))
        return (yield from self.read(name))

    def matters(self, delta: Delta, rows: Collection[str]) -> bool:
        """Whether a delta holds something for these rows. A refused one holds the parts of refusing rows alone."""
        if delta.refused and self.broken(Mutant.ASIDE_PASSED):
            return False
        return not delta.refused or not delta.parts.keys().isdisjoint(rows)


class Mender(Actor):
    """Compares rows with what the ledger holds, and adds what they lack (guard 8)."""

    def __init__(self, world: World, row: str) -> None:
        super().__init__(world)
        self.row, self.key = row, ("row", row)

    def run(self) -> Calls:
        for _ in range(4):
            if (yield from self.mended()):
                return True
        return False

    def mended(self) -> Calls:
        stored = yield from self.read(self.key)
        if stored is None and not (yield from self.scanned()):
            return True
        if (stored or Row()).owner == ANOTHER:
            return False
        # Every writer of the row takes the mark away: a row that looks the same may have changed.
        mark = f"{MARK}{self.world.new_number()}"
        marked = (stored or Row())._replace(owner=mark)
        if not (yield from self.write(self.key, equals(stored), becomes(marked))):
            return False
        first = yield from self.scanned()
        if not self.broken(Mutant.MENDS_ONE_LOOK, Mutant.MENDS_ONE_SCAN):
            # What the first scan saw may be taken back, with its delta: then the second scan sees that, or this look
            # sees the delta.
            yield from self.pause()
            if (yield from self.sees_pending()):
                return False
        if not self.broken(Mutant.MENDS_ONE_SCAN):
            # All that was committed before the mark is readable in the second scan, and the deltas of all that the
            # first scan saw are readable in the bucket.
            yield from self.pause()
            if first != (yield from self.scanned()):
                return False
        if (yield from self.sees_pending()):
            return False
        amounts = [ledger.contribution[self.row] for ledger in first.values() if self.row in ledger.contribution]
        mended = Row(sum(amounts), len(amounts)) if amounts else None
        unmarked = self.broken(Mutant.MENDS_UNMARKED)

        def same(found: Row | None) -> bool:
            found = found or Row()
            return found.owner == mark or (unmarked and found[:2] == marked[:2] and found.owner != ANOTHER)

        return (yield from self.write(self.key, same, becomes(mended), mended=self.row))

    def pause(self) -> Calls:
        until = self.store.now + (0 if self.broken(Mutant.MENDS_AT_ONCE) else READABLE_AFTER + 1)
        yield Call(lambda: None, not_before=until)

    def sees_pending(self) -> Calls:
        stripes = 1 if self.broken(Mutant.MENDS_ONE_STRIPE) else STRIPES
        pending = yield from self.query(bucket_of(self.row), consistent=True, stripes=stripes)
        return any(self.row in delta.parts for delta in pending.values()) and not self.broken(Mutant.MENDS_PENDING)

    def scanned(self) -> Calls:
        """Reads the ledger item by item."""
        found = {}
        for source in sorted(self.world.sources):
            ledger = yield from self.read(source)
            if ledger is not None:
                found[source] = ledger._replace(note=None)
        return found


class WayBack(Actor):
    """``streamfold buckets --empty``: from now on nobody puts deltas, and older code may run again (guard 12)."""

    def run(self) -> Calls:
        found = yield from self.read(MANIFEST)
        if not found.deltas:
            return True
        closed = found._replace(closed=True)
        if not (yield from self.write(MANIFEST, equals(found), becomes(closed))):
            return False
        until = self.store.now + (0 if self.broken(Mutant.BACK_AT_ONCE) else INVOCATION_MAX)
        yield Call(lambda: None, not_before=until)  # batches that read an open mark end until then
        for _ in range(TRIES_MAX):
            pending: dict[Key, Delta] = {}
            for bucket in range(BUCKETS):
                pending |= yield from self.query(bucket, consistent=True)
            if not pending or self.broken(Mutant.BACK_UNSEEN):
                return (yield from self.write(MANIFEST, equals(closed), becomes(Manifest(deltas=False, closed=True))))
            for bucket in sorted({name[1] for name in pending}):
                yield from Emptier(self.world).empty(bucket, {})
        return False  # some row refuses: the mark stays
