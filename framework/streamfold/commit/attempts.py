"""The transactions of a plan that wait to be sent, and those in flight.

Transactions are in flight together where they share no item, and no changes of one item that one ``on`` handler sees.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import NamedTuple

from streamfold.commit.plan import Transaction, Unit, pack
from streamfold.runtime import Runtime, Shared

ROUNDS_TOGETHER_MAX = 4
"""Rounds after which every unit goes alone, so that a unit that is always refused fails no other."""
LOOKED_AT_MAX = 100
"""Waiting transactions that are searched for one that shares nothing with those in flight: the bound keeps the search
from growing with the square of the batch.
"""
NOWHERE: frozenset[object] = frozenset()


class Attempt(NamedTuple):
    """A transaction that waits to be sent, or is in flight."""

    transaction: Transaction
    rounds: int = 0  # times that it was planned again
    conflicts: int = 0  # times that it was sent and met a conflict
    throttled: bool = False  # the last of these was a throttled table
    hot: bool = False  # of rows that were throttled while others were not


class SharedItems(NamedTuple):
    """The items of a transaction: no other in flight may share one."""

    items: frozenset[object]  # that it writes
    orders: frozenset[object]  # items with a handler that sees the changes of each in their order

    @classmethod
    def of(cls, transaction: Transaction) -> "SharedItems":
        orders = frozenset((unit.item, unit.routes[0].name) for unit in transaction.units if not unit.steps)
        return cls(frozenset(write.key for write in transaction.writes), orders)

    def are_free(self, flying: AbstractSet[object], earlier: AbstractSet[object]) -> bool:
        """Whether no transaction in flight has one of these items, and no waiting one an earlier change of them."""
        return flying.isdisjoint(self.items) and flying.isdisjoint(self.orders) and earlier.isdisjoint(self.orders)


def most_shared_first(transactions: Sequence[Transaction]) -> Sequence[Transaction]:
    """Transactions in the order in which most are in flight together: those that block most others come first.

    Transactions whose changes are delivered in order come after the others, and keep their order.
    """
    times = Counter([write.key for transaction in transactions for write in transaction.writes])

    def in_the_way(transaction: Transaction) -> tuple[bool, int]:
        if not all(unit.steps for unit in transaction.units):
            return True, 0
        return False, -sum([times[write.key] - 1 for write in transaction.writes])

    return sorted(transactions, key=in_the_way)


class Attempts:
    """Waiting attempts, in the order of their changes, and attempts in flight."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.direct = False  # no more deltas are put: rows refuse some
        self.waiting: deque[Attempt] = deque()
        self.flying: dict[int, Attempt] = {}  # in flight, by a number
        self._taken: dict[int, SharedItems] = {}  # the items of these
        self._known: dict[int, tuple[Transaction, SharedItems]] = {}  # the items of transactions, by identity
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self.waiting or self.flying)

    def add(self, transactions: Iterable[Transaction]) -> None:
        """Adds transactions behind all that wait."""
        self.waiting.extend(map(Attempt, transactions))

    def add_first(self, attempts: Sequence[Attempt]) -> None:
        """Adds attempts before all that wait, in their order."""
        self.waiting.extendleft(reversed(attempts))

    @property
    def shared(self) -> Shared | None:
        """Which additions go through deltas."""
        shared = self.runtime.shared
        return shared._replace(direct=True) if shared is not None and self.direct else shared

    def transactions(self, units: Sequence[Unit], *, apart: bool) -> list[Transaction]:
        groups = [[unit] for unit in units] if apart else [units]
        return [transaction for some in groups for transaction in pack(some, self.runtime.chunk_actions, self.shared)]

    def add_units(self, units: Sequence[Unit], rounds: int, *, apart: bool = False) -> None:
        """Adds units before all that wait. ``rounds``: how often they were planned again."""
        apart = apart or rounds > ROUNDS_TOGETHER_MAX
        self.add_first([Attempt(transaction, rounds) for transaction in self.transactions(units, apart=apart)])

    def next_free(self) -> Attempt | None:
        """Takes the first attempt that shares nothing with those in flight, and has the first of its items' changes."""
        if not self.flying:
            return self.waiting.popleft() if self.waiting else None
        flying = NOWHERE.union(*(items for shared in self._taken.values() for items in shared))
        earlier: set[object] = set()
        for index, attempt in enumerate(islice(self.waiting, LOOKED_AT_MAX)):
            shared = self._shared_items(attempt.transaction)
            if shared.are_free(flying, earlier):
                del self.waiting[index]
                return attempt
            earlier |= shared.orders
        return None

    def begin(self, attempt: Attempt, *, beside: bool) -> int:
        """Returns the number of an attempt that goes into flight. ``beside``: others may go at the same time."""
        self._number += 1
        self.flying[self._number] = attempt
        if beside:
            self._taken[self._number] = self._shared_items(attempt.transaction)
        return self._number

    def end(self, number: int) -> Attempt:
        """The attempt of this number, which is in flight no more."""
        self._taken.pop(number, None)
        return self.flying.pop(number)

    def taken_back(self) -> list[Attempt]:
        """All that wait; none does then."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting

    def _shared_items(self, transaction: Transaction) -> SharedItems:
        known = self._known.get(id(transaction))
        if known is None or known[0] is not transaction:
            known = self._known[id(transaction)] = (transaction, SharedItems.of(transaction))
        return known[1]
