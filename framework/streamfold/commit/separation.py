"""Separates what the store refuses of a transaction from what it takes: by row, by unit, by handler, by table.

The changes of an item keep their order for a handler that sees each of them.
"""

from collections.abc import Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from streamfold.commit.attempts import Attempt, Attempts
from streamfold.commit.ledger_units import ImageSource
from streamfold.commit.pending import Progress
from streamfold.commit.plan import Unit, WrittenKey, by_handler
from streamfold.commit.replanning import writes_any
from streamfold.commit.transactions import table_of, throttled_by
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, EngineError, EngineUnavailable, HandlerError, redacted
from streamfold.ledger.lives import Lives
from streamfold.writes.guarded import CONFLICT, THROTTLED, Reason, Refused, StateKey, exceeded

if TYPE_CHECKING:
    from streamfold.errors import TableThrottled

REFUSED_OFTEN = f"Refused {TRIES_MAX} times in a row; the record is retried."
VISITED_OFTEN = f"Refused {TRIES_MAX} times in a row, because others change the item or its rows; do it again later."
HOT_ROWS_MAX = 8
"""Throttled rows of a batch whose writers are sent apart. Where more are throttled, their table is: the rest of the
batch would wait and fail likewise, one transaction after the other.
"""


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
        self.visits = not source.plans_from_refusal
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
