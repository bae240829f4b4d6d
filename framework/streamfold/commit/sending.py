"""Sends one transaction of its own until the store takes or refuses it, and says what a refusal means."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from streamfold.commit.lanes import Several, in_lanes, slices
from streamfold.engines import Engine
from streamfold.errors import Contended, EngineError, HandlerError, TableThrottled, is_fatal, told
from streamfold.limits import KEYS_MAX
from streamfold.run import Lanes, Run
from streamfold.writes.guarded import CONDITION, CONFLICT, THROTTLED, GuardedWrite, Reason, Refused, RowKey, StateKey

SENDS_MAX = 4
"""Times that one transaction is sent beside others. The SDK retries no conflict (Developer Guide, transaction-apis)."""

T = TypeVar("T")


def send(engine: Engine, writes: Sequence[GuardedWrite], run: Run) -> Refused | None:
    """Sends writes as one transaction, and again after a conflict; returns the refusal if a condition failed.

    Raises ``Contended`` after ``SENDS_MAX`` conflicts, ``TableThrottled`` if the table was throttled at the last, and
    ``HandlerError`` if the store will never take the writes.
    """
    throttled = False
    for number in range(SENDS_MAX):
        if number:
            run.back_off(number - 1, throttled=throttled)
        refused = engine.transact(writes, run.expires_at)
        if refused is None:
            return None
        if any(reason is not None and reason.code == CONDITION for reason in refused.reasons):
            return refused
        check_passing(refused)
        throttled = is_throttled(refused)
    if throttled:
        raise TableThrottled
    raise Contended(f"Others are in the way: {SENDS_MAX} conflicts in a row; the record comes again.")


def check_passing(refused: Refused) -> None:
    """Raises ``HandlerError`` if the store will never take one of the writes."""
    for reason in refused.reasons:
        if reason is not None and reason.code not in CONFLICT:
            raise HandlerError(f"The store refused the write with {reason.code}: {told(reason.message)}")


def is_throttled(refused: Refused) -> bool:
    """Whether a table was throttled."""
    return any(reason is not None and reason.code in THROTTLED for reason in refused.reasons)


def may_pass(reason: Reason) -> bool:
    """Whether another try may help. Raises ``TableThrottled`` for a throttled table."""
    if reason.code in THROTTLED:
        raise TableThrottled
    return reason.code == CONDITION or reason.code in CONFLICT


def by_table(
    rows: Sequence[RowKey], call: Callable[[Sequence[RowKey]], T], lanes: Lanes, size: int
) -> Iterator[tuple[Sequence[RowKey], T | EngineError]]:
    """What a call answers for rows, ``size`` of them in a lane. What is wrong for good for one table is asked by table.

    Raises the errors of handlers.
    """
    calls = ((Several(some), partial(call, some)) for some in slices(lanes, rows, size))
    for place, answer in in_lanes(lanes, calls):
        some = cast("tuple[RowKey, ...]", place)
        if isinstance(answer, HandlerError):
            raise answer
        tables = dict.fromkeys(row[0] for row in some)
        if not isinstance(answer, EngineError) or not is_fatal(answer) or len(tables) == 1:
            yield some, answer
            continue
        for table in tables:
            yield from by_table([row for row in some if row[0] == table], call, lanes, size)


def read_rows(
    engine: Engine, lanes: Lanes, keys: Iterable[RowKey], failed: dict[RowKey, Exception]
) -> dict[RowKey, dict[str, Any]]:
    """The rows of keys. ``failed`` takes the keys whose table cannot be read."""
    rows: dict[RowKey, dict[str, Any]] = {}
    for some, found in by_table([*keys], engine.read_rows, lanes, KEYS_MAX):
        if isinstance(found, EngineError):
            failed.update(dict.fromkeys(some, found))
        else:
            rows.update(found)
    return rows


def read_state(
    engine: Engine, lanes: Lanes, keys: Iterable[StateKey], *, consistent: bool = False
) -> dict[StateKey, dict[str, Any]]:
    """State items, read side by side. Raises the first error of a read, when all have ended."""
    found: dict[StateKey, dict[str, Any]] = {}
    for some in read_state_in_parts(engine, lanes, keys, consistent=consistent):
        found.update(some)
    return found


def read_state_in_parts(
    engine: Engine, lanes: Lanes, keys: Iterable[StateKey], *, consistent: bool = False
) -> Iterator[dict[StateKey, dict[str, Any]]]:
    """State items as they come, read side by side. Raises the first error of a read, when all have ended."""
    failed: EngineError | HandlerError | None = None
    read = partial(engine.read_state, consistent=consistent)
    some = enumerate(slices(lanes, [*dict.fromkeys(keys)], KEYS_MAX))
    calls = ((number, partial(read, part)) for number, part in some)  # reads may touch what others read
    for _, answer in in_lanes(lanes, calls, stops=lambda _: True, count=lanes.reads):
        if isinstance(answer, EngineError | HandlerError):
            failed = failed or answer
        else:
            yield answer
    if failed is not None:
        raise failed
