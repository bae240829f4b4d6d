"""Instructions of the core for the batch of ``strategies``: all but the store, which takes every write at once.

What remains is what an invocation computes: records, routes, handlers, the ledger's steps, the plan and the commit.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from streamfold.engines.protocol import Inserted
from tests.bench.callgrind import MISSING, is_there, of_one_round
from tests.bench.strategies import ENVIRONMENT, RECORDS, Context, application, event

FIRST = 726_520
"""Instructions a record of the first version that was measured, 6265ed5, in the same program."""
GOAL = 0.5
PROGRAM = """
import sys
from tests.bench.core import deliver
deliver(int(sys.argv[1]))
"""


class TakingEngine:
    """A store that takes every write, and has nothing but the manifest."""

    is_local, own_stream = True, None
    by_prefix = separate = None

    def __init__(self) -> None:
        self.kept: dict[Any, dict[str, Any]] = {}

    def transact(self, writes: Sequence[Any], expires_at: int) -> None: ...

    def clear_pending(self, finished: Mapping[Any, Any]) -> None: ...

    def remove_empty(self, rows: Collection[Any]) -> list[Any]:
        return list(rows)

    def insert_rows(self, rows: Collection[Any]) -> Inserted:
        del rows
        return Inserted([], [])

    def read_state(self, keys: Collection[Any], *, consistent: bool = False) -> dict[Any, dict[str, Any]]:
        del consistent
        return {key: self.kept[key] for key in keys if key in self.kept}

    def swap_state(self, key: Any, attributes: Mapping[str, Any], revision: int) -> bool:
        self.kept[key] = {**attributes, "revision": revision + 1}
        return True


def deliver(rounds: int) -> None:
    """Delivers the batch so often, as Lambda does."""
    import gc

    from streamfold.lambda_entry.function import Function
    from streamfold.settings import Settings

    with patch.dict(os.environ, ENVIRONMENT):
        function = Function(application(), Settings.from_environment(os.environ), object())
    function.engine = TakingEngine()  # type: ignore[assignment]
    function(event(2), Context())  # what is made once: the manifest
    batch = event(RECORDS)
    gc.disable()
    for _ in range(rounds):
        assert not function(batch, Context())["batchItemFailures"]


def run(*, large: bool) -> Iterator[str]:
    """The instructions a record, and how many they are of the first version's."""
    del large
    if not is_there():
        yield MISSING
        return
    each = of_one_round(PROGRAM) / RECORDS
    yield (
        f"{each:,.0f} instructions a record, {each / FIRST:.2f} of the {FIRST:,} of the first version (goal: at most "
        f"{GOAL})"
    )
