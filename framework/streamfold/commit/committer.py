"""Carries out a plan: sends its transactions, and acts on each response.

| response to a transaction           | at which attempt          | next                                            |
| ----------------------------------- | ------------------------- | ----------------------------------------------- |
| taken                               |                           | the units are committed; next pages are planned |
| a condition failed                  | up to round ``TRIES_MAX`` | ``Replanner.decide``; the rest is read once     |
| a condition failed                  | after that                | the units fail with ``Contended``               |
| nothing but conflicts or throttling | sends below ``SENDS_MAX`` | sent again after a pause; what it adds to       |
|                                     |                           | shared rows goes through deltas                 |
| throttling of some rows             | sends below ``SENDS_MAX`` | the units of these rows are sent behind others  |
| throttling of some rows             | after that                | the handlers of these rows: ``TableThrottled``  |
| throttling of all                   | after that                | all waiting fail with ``TableThrottled``        |
| conflicts                           | after that                | split; one handler alone: ``EngineUnavailable`` |
| a permanent reason                  | several units or handlers | split: units that the reason is about go alone  |
| a permanent reason                  | one handler alone         | the unit fails with ``HandlerError``            |
| a fatal ``EngineError``             | several tables            | split by table                                  |
| a fatal ``EngineError``             | one table                 | the units fail with the error                   |
| another ``EngineError``             |                           | the units fail with the error                   |

A unit of a visit is never planned again from the item in a refusal, which is newer than its source: ledger item and
source are read again, and the unit goes alone.

After ``ROUNDS_TOGETHER_MAX`` rounds every unit goes alone. No write is undone by an opposite write: the guards decide,
whether an earlier attempt took effect or not.

Transactions are in flight together where they share no item, and no changes of one item that one ``on`` handler sees
(``Attempts``). One thread acts on the responses. What the store refuses of a transaction is separated from what it
takes, by row, by unit, by handler, by table (``Separation``).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, partial
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.commit.after_commit import put_rows, recompute_rows, remove_empty
from streamfold.commit.buckets import WaitingDeltas
from streamfold.commit.claims import OlderChanges
from streamfold.commit.emptying import only_empty
from streamfold.commit.ledger_units import ImageSource
from streamfold.commit.outcome import Outcome, Triages
from streamfold.commit.pending import Progress
from streamfold.commit.plan import (
    Plan,
    Transaction,
    Unit,
    WrittenKey,
    by_handler,
    exceeds_transaction,
    most_shared_first,
    pack,
)
from streamfold.commit.replanning import Replanner, writes_any
from streamfold.commit.taking_back import StepBack, TakingBack
from streamfold.commit.transactions import SENDS_MAX, fold_units, is_throttled, join_all, table_of, throttled_by
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, EngineError, EngineUnavailable, HandlerError, is_fatal, redacted
from streamfold.keys.table import is_in_state
from streamfold.ledger.deltas import may_wait
from streamfold.ledger.lives import Lives
from streamfold.runtime import Flight, Runtime, Shared
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    SURELY_FIT,
    THROTTLED,
    AddRow,
    LedgerWrite,
    Reason,
    Refused,
    StateKey,
    exceeded,
    too_large,
)

if TYPE_CHECKING:
    from streamfold.errors import TableThrottled

REFUSED_OFTEN = f"Refused {TRIES_MAX} times in a row; the record is retried."
VISITED_OFTEN = f"Refused {TRIES_MAX} times in a row, because others change the item or its rows; do it again later."
HOT_ROWS_MAX = 8
"""Throttled rows of a batch whose writers are sent apart. Where more are throttled, their table is: the rest of the
batch would wait and fail likewise, one transaction after the other.
"""
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
    conflicts: int = 0  # times that it was refused for a conflict
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


def contended(*, visits: bool) -> Contended:
    return Contended(VISITED_OFTEN if visits else REFUSED_OFTEN)


class Separation:
    """Keeps rows, handlers and tables that the store refuses from holding others up.

    away: the store is still throttled, so that nothing is sent again.
    """

    def __init__(self, attempts: Attempts, progress: Progress, source: ImageSource) -> None:
        self.attempts = attempts
        self.progress = progress
        self.source = source
        self.visits = source.visits
        self.hot: set[WrittenKey] = set()  # rows that were throttled while others of their transaction were not
        self.away: TableThrottled | None = None

    def is_split_off(self, attempt: Attempt, refused: Refused) -> bool:
        """Separates the units of throttled rows, so that a hot key keeps no others waiting; False if it is all of them.

        The others go on at once, and the units of these rows come behind them.
        """
        rows, units = _throttled(attempt, refused), attempt.transaction.units
        hot = [unit for unit in units if writes_any(unit, rows)]
        if not 0 < len(hot) < len(units) or len(self.hot | rows) > HOT_ROWS_MAX:
            return False
        self.hot |= rows
        apart = attempt._replace(conflicts=attempt.conflicts + 1, throttled=True, hot=True)
        first: list[Attempt] = []
        for is_hot, some in groupby(units, lambda unit: writes_any(unit, rows)):
            transactions = self.attempts.transactions([*some], apart=False)
            found = [(apart if is_hot else attempt)._replace(transaction=transaction) for transaction in transactions]
            # The changes of an item keep their order for a handler that sees each of them.
            if is_hot and all(unit.steps for unit in units):
                self.attempts.waiting.extend(found)
            else:
                first += found
        self.attempts.add_first(first)
        return True

    def stop_hot(self, attempt: Attempt, refused: Refused) -> None:
        """Fails the handlers of rows that are still throttled, here and in what waits; all others go on."""
        rows = _throttled(attempt, refused) & self.hot
        remaining: list[Attempt] = []
        for each in (attempt, *self.attempts.taken_back()):
            if each is not attempt and not any(writes_any(unit, rows) for unit in each.transaction.units):
                remaining.append(each)
                continue
            units: list[Unit] = []
            for unit in each.transaction.units:
                units += by_handler(unit, self.source.lives) if writes_any(unit, rows) else [unit]
            self.progress.fail(
                [unit for unit in units if writes_any(unit, rows)], throttled_by(refused, attempt.transaction.writes)
            )
            others = [unit for unit in units if not writes_any(unit, rows)]
            remaining += [Attempt(one, each.rounds + 1) for one in self.attempts.transactions(others, apart=False)]
        self.attempts.add_first(remaining)

    def stop(self, attempt: Attempt, refused: Refused) -> None:
        """Ends the sending where the store is still throttled: each further transaction would wait and fail, too."""
        self.away = throttled_by(refused, attempt.transaction.writes)
        units = [unit for each in (attempt, *self.attempts.taken_back()) for unit in each.transaction.units]
        self.progress.fail(units + self.progress.behind, self.away)
        self.progress.behind.clear()

    def split(self, attempt: Attempt, refused: Refused) -> None:
        """Sends the units of the refused writes alone, then handler by handler; the others go on, in their order."""
        units, writes = attempt.transaction.units, attempt.transaction.writes
        reasons = {write.key: reason for write, reason in zip(writes, refused.reasons, strict=True) if reason}
        units_apart = by_handler(units[0], self.source.lives) if len(units) == 1 else units
        if len(units_apart) == 1:
            passing = self.visits and all(reason.code in CONFLICT for reason in reasons.values())
            self.progress.fail(
                units_apart, contended(visits=self.visits) if passing else _not_taken(*next(iter(reasons.items())))
            )
            return
        attempts: list[Attempt] = []
        # Of a delta that the store does not take each unit may be the cause.
        unknown = not any(writes_any(unit, reasons) for unit in units_apart)
        for guilty, some in groupby(units_apart, lambda unit: unknown or writes_any(unit, reasons)):
            transactions = self.attempts.transactions([*some], apart=guilty)
            conflicts = attempt.conflicts if guilty and not self.visits else 0
            attempts += [Attempt(transaction, attempt.rounds + 1, conflicts) for transaction in transactions]
        self.attempts.add_first(attempts)

    def split_by_table(self, attempt: Attempt) -> bool:
        """Separates units by their tables, of which one may be missing or forbidden; False if there is but one."""
        if len(groups := _by_tables(attempt.transaction.units, self.source.lives)) == 1:
            return False
        transactions = (
            transaction for units in groups for transaction in self.attempts.transactions(units, apart=False)
        )
        self.attempts.add_first([attempt._replace(transaction=transaction) for transaction in transactions])
        return True


class Committer:
    """Carries out one plan.

    source: of the images that the units were planned from; its pending work may hold some already. triage: decides
    about each failure; it returns None for a record that is parked, which holds no other. first_transaction_alone: the
    plan may have been carried out before, as the response to the first transaction shows.
    """

    def __init__(
        self,
        source: ImageSource,
        triage: Triages = lambda failed: failed,
        *,
        first_transaction_alone: bool = False,
    ) -> None:
        self.runtime = runtime = source.runtime
        self.progress = Progress(source.pending_work, triage, source.known_lives)
        self.progress.notes_steps = source.notes_steps
        self.source = source
        self.visits = source.visits
        self.rounds_max = TRIES_MAX - 1 if self.visits else TRIES_MAX
        self.attempts = Attempts(runtime)
        # Of a plan that was carried out before, every transaction in flight would be refused, and paid for.
        self.slots = 1 if first_transaction_alone else runtime.slots.count
        self.read_ahead = False  # the ledger items of the rest of the batch were read
        self.taken_back: list[Unit] = []  # whose steps were taken back because of that, to be sent without deltas

    @cached_property
    def separation(self) -> Separation:
        """Separates what is refused. Few plans need it."""
        return Separation(self.attempts, self.progress, self.source)

    @cached_property
    def replanner(self) -> Replanner:
        """Plans units again. Few plans need it."""
        return Replanner(self.source, self.progress)

    def carry_out(self, plan: Plan) -> Outcome:
        """Sends every transaction, then the keyed puts; then removes empty rows, and recomputes rows.

        Raises the ``EngineError`` that no retry can help, if nothing of the batch was done.
        """
        runtime, older = self.runtime, None
        transactions: Sequence[Transaction] = plan.transactions
        if not all(unit.steps for transaction in transactions for unit in transaction.units):
            older = OlderChanges(runtime, self.progress)
            transactions = older.without_newer(transactions)
        self.attempts.add(most_shared_first(transactions) if runtime.slots.count > 1 else transactions)
        self._send_all()
        if self.progress.pending_work.waits:
            self._wait_for_deltas()
        if older is not None:
            # Newer changes may have been committed meanwhile: only their claims, read now, show it.
            older.take_back()
        if plan.puts:
            put_rows(runtime, plan.puts, self.progress)
        self.progress.raise_fatal()
        if self.progress.pending_work.lowers or self.progress.pending_work.notes:
            remove_empty(runtime, self.progress)
        if self.progress.pending_work.changed_entries:
            recompute_rows(runtime, self.progress)
        return self.progress.outcome

    def _send_all(self) -> None:
        flight = self.runtime.slots.flight()
        try:
            self._send_through(flight)
        except Exception:
            # A call in flight would write after its batch has failed, beside the retry.
            join_all(flight, len(self.attempts.flying))
            raise

    def _wait_for_deltas(self) -> None:
        """Waits for deltas: the caller says that its work is done, and they must be in their rows before.

        What rows refuse is taken back, and its items are sent again without deltas, so that each fails or succeeds by
        itself.
        """
        progress = self.progress
        progress.wait_for_deltas(self.runtime, self._take_back)
        if self.taken_back:
            self.attempts.direct = True
            progress.pending_work.begin_waiting_anew()
            self.attempts.add_units(self.replanner.again(self.taken_back, consistent=True), 0, apart=True)
            self._send_all()
            if progress.pending_work.waits:  # for deltas of others
                progress.wait_for_deltas(self.runtime)

    def _take_back(self, waiting: WaitingDeltas) -> None:
        """Takes back the steps of this plan that put what a row refuses."""
        taking = TakingBack(self.runtime, self.progress.pending_work, self.source.lives)
        for (key, handler), (route, changes) in waiting.refused_waiters().items():
            if (key, handler) not in self.progress.waiting or not taking.take(
                StepBack(key, changes[0].item, route, changes)
            ):
                continue
            waiting.drop_waiter(key, handler)
            if (unit := self.progress.take_back(key, route)) is not None:
                self.taken_back.append(unit)

    def _send_through(self, flight: Flight) -> None:
        attempts = self.attempts
        while attempts or self.progress.behind:
            if not attempts:
                # A row that another item owns may be released by a unit before these.
                behind, self.progress.behind = self.progress.behind, []
                attempts.add(attempts.transactions(behind, apart=True))
            while len(attempts.flying) < self.slots and (free := attempts.next_free()) is not None:
                attempt = self._without_held(free) if self.progress.held else free
                if attempt.transaction.units:
                    self._begin(flight, attempt)
            if attempts.flying:
                self.slots = self.runtime.slots.count
                self._join(*flight.join())

    def _without_held(self, attempt: Attempt) -> Attempt:
        units = self.progress.hold(attempt.transaction.units)
        if len(units) == len(attempt.transaction.units):
            return attempt
        transactions = pack(units, self.runtime.chunk_actions, self.attempts.shared)
        self.attempts.add_first([Attempt(transaction, attempt.rounds) for transaction in transactions[1:]])
        return attempt._replace(transaction=transactions[0] if transactions else Transaction((), ()))

    def _begin(self, flight: Flight, attempt: Attempt) -> None:
        if len(attempt.transaction.units) == 1 and _goes_page_by_page(attempt.transaction):
            try:
                self._replan_singly(attempt)
            except EngineError as error:
                self._fail(attempt, error)
            return
        if not attempt.conflicts:
            self.runtime.pace.sharing.sends()
        if self.runtime.folds_times:
            fold_units(self.runtime, attempt.transaction.units)
        number = self.attempts.begin(attempt, beside=self.runtime.slots.count > 1)
        flight.begin(number, partial(self._sent, attempt), [write.key for write in attempt.transaction.writes])

    def _sent(self, attempt: Attempt) -> Refused | None:
        """Sends an attempt, after a pause if there was a conflict. Runs in a call slot, so it changes nothing but the
        store.
        """
        if attempt.conflicts:
            self.runtime.back_off(attempt.conflicts - 1, throttled=attempt.throttled)
        return self.runtime.engine.transact(attempt.transaction.writes, self.runtime.expires_at)

    def _join(self, number: int, refused: Refused | None, error: BaseException | None) -> None:
        attempt = self.attempts.end(number)
        try:
            if error is not None:
                raise error
            if refused is not None:
                self._refused(attempt, refused)
                return
            self.progress.commit(attempt.transaction)
            if pages := [unit for unit in attempt.transaction.units if unit.partial]:
                self.attempts.add_units(self.replanner.again(pages, consistent=True), attempt.rounds)
        except EngineError as failed:
            self._fail(attempt, failed)

    def _fail(self, attempt: Attempt, error: EngineError) -> None:
        if not (is_fatal(error) and self.separation.split_by_table(attempt)):
            self.progress.fail(attempt.transaction.units, error)

    def _refused(self, attempt: Attempt, refused: Refused) -> None:
        codes = {reason.code for reason in refused.reasons if reason}
        passing = codes <= set(CONFLICT)
        if CONDITION in codes and attempt.rounds >= self.rounds_max:
            self.progress.fail(attempt.transaction.units, contended(visits=self.visits))
        elif CONDITION in codes and self.visits:
            self._revisit(attempt, refused)
        elif CONDITION in codes:
            units = self.replanner.decide(attempt.transaction, refused)
            self.attempts.add_units(units, attempt.rounds + self.replanner.rounds)
            if only_empty(attempt.transaction.writes, refused):
                self._note_rest()
            elif not self.read_ahead:
                self._read_rest()
        elif passing and self.separation.is_split_off(attempt, refused):
            pass
        elif passing and self.separation.away is not None:
            self.progress.fail(attempt.transaction.units, self.separation.away)
        elif passing and attempt.conflicts < self._sends_max(attempt):
            self._send_again(attempt, refused)
        elif passing and is_throttled(refused):
            self.separation.stop_hot(attempt, refused) if attempt.hot else self.separation.stop(attempt, refused)
        else:
            self.separation.split(attempt, refused)

    def _revisit(self, attempt: Attempt, refused: Refused) -> None:
        """Sends units that were read again alone: an item that changes all the time fails no other.

        A refusal that removes units from the transaction does not count as a round of the others, which would fail in
        the end.
        """
        read = {id(unit.found) for unit in attempt.transaction.units}
        units = self.replanner.decide(attempt.transaction, refused)
        if only_empty(attempt.transaction.writes, refused):  # what was read is as it was
            self.attempts.add_units(units, attempt.rounds + self.replanner.rounds)
            self._note_rest()
            return
        rest = [unit for unit in units if id(unit.found) in read]
        rounds = attempt.rounds + self.replanner.rounds
        self.attempts.add_units([unit for unit in units if id(unit.found) not in read], rounds, apart=True)
        self.attempts.add_units(rest, attempt.rounds if len(rest) < len(attempt.transaction.units) else rounds)

    def _sends_max(self, attempt: Attempt) -> int:
        # No redelivery repeats a visit, so alone it is tried longer.
        return TRIES_MAX - 1 if self.visits and len(attempt.transaction.units) == 1 else SENDS_MAX

    def _send_again(self, attempt: Attempt, refused: Refused) -> None:
        """Sends an attempt once more; after a conflict with deltas, or in smaller transactions, which have fewer
        conflicts.
        """
        throttled, transaction = is_throttled(refused), attempt.transaction
        again = attempt._replace(conflicts=attempt.conflicts + 1, throttled=throttled)
        transactions: Sequence[Transaction] = [transaction]
        shared = None if throttled or self.attempts.direct else _sharing_since(self.runtime, attempt, refused)
        if shared is None and not throttled:
            self.runtime.pace.met(len(transaction.writes))
        if shared is not None or (not throttled and len(transaction.writes) > self.runtime.chunk_actions):
            transactions = pack(transaction.units, self.runtime.chunk_actions, shared or self.attempts.shared)
        self.attempts.add_first([again._replace(transaction=transaction) for transaction in transactions])

    def _replan_singly(self, attempt: Attempt) -> None:
        """Sends a step that is too large for one transaction page by page, each planned from the ledger as read."""
        for planned in self.replanner.again(attempt.transaction.units):
            if exceeds_transaction(planned):
                self.progress.fail([planned], _too_many(planned))
            else:
                self.attempts.add_units([planned], attempt.rounds)

    def _read_rest(self) -> None:
        """A refusal usually means a redelivery: the rest of the batch is read at once, not refused one transaction
        after the other.
        """
        self.read_ahead = True
        waiting = self.attempts.taken_back()
        rest = [unit for attempt in waiting for unit in attempt.transaction.units]
        rounds = max((attempt.rounds for attempt in waiting), default=0)
        for unread, plans in ((True, self.replanner.again), (False, self.replanner.unclaimed)):
            some = [unit for unit in rest if _is_unread(unit) is unread]
            try:
                self.attempts.add_units(plans(some), rounds)
            except EngineError as error:  # they wait no more: who catches it knows the refused attempt alone
                self.progress.fail(some, error)

    def _note_rest(self) -> None:
        """A handler left a row empty: its other steps note their rows at once, before they are refused as well."""
        units = (
            (attempt, self.replanner.with_notes(attempt.transaction.units)) for attempt in self.attempts.taken_back()
        )
        transactions = (
            (attempt, transaction)
            for attempt, some in units
            for transaction in self.attempts.transactions(some, apart=False)
        )
        self.attempts.add_first([attempt._replace(transaction=transaction) for attempt, transaction in transactions])


def _sharing_since(runtime: Runtime, attempt: Attempt, refused: Refused) -> Shared | None:
    """Notes the rows of an attempt at which there were conflicts; returns how it is sent with deltas in their place.

    None where none may be put, or the conflict is at no row: one of a redelivery or a visit may be at a ledger item,
    which makes no row shared. At the second conflict all additions go through deltas: there is no third one at a row.
    """
    writes = zip(attempt.transaction.writes, refused.reasons, strict=True)
    added = [write for write, reason in writes if reason is not None and isinstance(write, AddRow)]
    rows = [write.key for write in added if not is_in_state(write.key) and may_wait(write)]
    if not rows or runtime.store.is_local:
        return None
    runtime.pace.sharing.met(rows, runtime.clock(), first=not attempt.conflicts)
    shared = runtime.shared
    if shared is None or not shared.may_put:
        return None
    runtime.pace.met_at_rows()
    return shared._replace(takes_all=attempt.conflicts > 0)


def _too_many(unit: Unit) -> HandlerError:
    return HandlerError(f"{len(unit.effects)} writes of one item do not fit {ACTIONS_MAX} actions and 4 MB.")


def _is_unread(unit: Unit) -> bool:
    return isinstance(unit.guard, LedgerWrite) and unit.guard.revision is None


def _goes_page_by_page(transaction: Transaction) -> bool:
    """Whether one item's step through the ledger is too much for one transaction."""
    count = len(transaction.writes)
    return (
        count > SURELY_FIT
        and bool(transaction.units[0].steps)
        and (count > ACTIONS_MAX or too_large(transaction.writes))
    )


def _throttled(attempt: Attempt, refused: Refused) -> set[WrittenKey]:
    writes = zip(attempt.transaction.writes, refused.reasons, strict=True)
    return {write.key for write, reason in writes if reason is not None and reason.code in THROTTLED}


def _not_taken(key: WrittenKey, reason: Reason) -> EngineError | HandlerError:
    kind = EngineUnavailable if reason.code in CONFLICT else HandlerError
    what = exceeded(reason, table_of(key)) if reason.code in THROTTLED else redacted(reason.message)
    return kind(f"The store refused the write with {reason.code}: {what}")


def _by_tables(units: Sequence[Unit], lives: Lives) -> Sequence[Sequence[Unit]]:
    """Units handler by handler, those that write the same tables together."""
    groups: dict[Any, list[Unit]] = {}
    for unit in chain.from_iterable(by_handler(unit, lives) for unit in units):
        tables = frozenset(effect.key[0] for effect in unit.effects if not isinstance(effect.key, StateKey))
        # The changes of an item keep their order for a handler that sees each of them.
        groups.setdefault(tables if unit.steps else unit.routes[0].name, []).append(unit)
    return [*groups.values()]
