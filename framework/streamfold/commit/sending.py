"""A transaction of its own, sent until the store takes it or says why not; and how long to pause when others are in
the way.
"""

import random
from collections.abc import Collection, Sequence

from streamfold.engines import Engine
from streamfold.errors import EngineUnavailable, HandlerError, told
from streamfold.run import SECONDS_A_DAY, Run
from streamfold.writes.guarded import CONDITION, CONFLICT, THROTTLED, GuardedWrite, Refused

CONFLICT_TRIES_MAX = 4
CONFLICT_SECONDS = 0.05
"""First pause after a conflict, doubled each time. The SDK retries none (Developer Guide, transaction-apis)."""
THROTTLE_FACTOR = 4
"""How much longer the pauses are for a throttled table than for a conflict."""


class TableThrottled(EngineUnavailable):
    """Raised when the store was throttled at every try: what goes to the same table next would be, too."""


def throttled() -> TableThrottled:
    return TableThrottled("The store is throttled; what was not sent is sent when the record comes again.")


def send(engine: Engine, writes: Sequence[GuardedWrite], world: Run) -> Refused | None:
    """Sends writes as one transaction, again after a conflict; returns what a condition refused.

    Raises ``EngineUnavailable`` after too many conflicts, ``TableThrottled`` if the last was a throttled table and no
    conflict, ``HandlerError`` where the store will never take the writes.
    """
    codes: set[str] = set()
    for number in range(CONFLICT_TRIES_MAX):
        if number:
            world.wait(pause_seconds(codes, number - 1))
        refused = engine.transact(writes, expires_at(world))
        if refused is None:
            return None
        reasons = [reason for reason in refused.reasons if reason is not None]
        codes = {reason.code for reason in reasons}
        if CONDITION in codes:
            return refused
        if not codes <= set(CONFLICT):
            first = next(reason for reason in reasons if reason.code not in CONFLICT)
            raise HandlerError(f"The store refused the write with {first.code}: {told(first.message)}")
    if codes & THROTTLED:
        raise throttled()
    raise EngineUnavailable(f"Others are in the way: {CONFLICT_TRIES_MAX} conflicts in a row; the record comes again.")


def pause_seconds(codes: Collection[str], number: int) -> float:
    """How long to wait after so many refusals, by their codes."""
    factor = 1 if set(codes) == {CONFLICT[0]} else THROTTLE_FACTOR
    return factor * CONFLICT_SECONDS * (1 << number) * (0.5 + random.random())  # noqa: S311 - jitter


def expires_at(world: Run) -> int:
    """The time to live of what is written now."""
    return int(world.clock()) + world.settings.retention_days * SECONDS_A_DAY
