"""Python's search for cycles, between the batches of a replay and not within them.

A batch keeps many small values for a moment, and hardly any cycles. Searched for as usual, they take a sixth of a
replay's time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_RECORDS, ALL_RECORDS = 1_000, 500_000
"""Records after which what they left is searched through, and after which all values are."""
YOUNGEST, ALL = 0, 2


class Garbage:
    """Searches for cycles once enough records are done."""

    def __init__(self) -> None:
        self._new = self._all = 0  # records since what is new, and since everything, was searched through

    def done(self, records: int) -> None:
        """Tells that a batch of so many records is done, and nothing is held of it."""
        self._new += records
        self._all += records
        if self._all >= ALL_RECORDS:
            gc.collect(ALL)
            self._new = self._all = 0
        elif self._new >= NEW_RECORDS:
            gc.collect(YOUNGEST)
            self._new = 0


@contextmanager
def garbage_between_batches() -> Iterator[Garbage]:
    """Stops Python's usual search for cycles while a replay runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield Garbage()
    finally:
        if was_enabled:
            gc.enable()
