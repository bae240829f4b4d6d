"""``verify --full`` and ``--rows`` of a live state with planted faults, in a process of its own beside a writer."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import ItemKeys, pages
from streamfold.lifecycle.verify import Verifier
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.elsewhere import WorkProcess
from tests.helpers.planted_faults import APP, HANDLERS, KINDS, Shop

ITEMS, ITEMS_LARGE = 20_000, 1_000_000
EACH = 25
ITEMS_A_GROUP = 40
"""Four rows for each group: a tenth as many rows as items."""
CALLS_A_WRITE = 20
"""Calls of the verifying process between two writes of others."""
TOLERATED = "tolerated"
"""The call of a process that waits for the tolerance: what was on its way comes meanwhile."""
OF_ITEMS = ("ledger deleted", "record lost", "partial", "old code")
OF_ROWS = tuple(kind for kind in KINDS if kind not in OF_ITEMS)


class VerifiedFaults(NamedTuple):
    """What a comparison found of what was planted."""

    items: int
    rows: int
    planted: int
    lacking: int  # planted, and not found
    false: int  # found, and not planted
    writes: int  # of others meanwhile
    mib: float  # the most memory of the process
    seconds: float  # of items, and of rows

    def __str__(self) -> str:
        return (
            f"{self.items:,} items, {self.rows:,} rows: {self.planted - self.lacking} of {self.planted} faults found, "
            f"{self.false} false, beside {self.writes:,} writes; {self.mib:.0f} MiB at most, {self.seconds:.0f} s "
            "(goal: all, 0, 300 MiB)"
        )


def different(engine: Any, clock_seconds: float) -> tuple[set[Any], set[Any], int]:
    """What the process does: the items that differ, the rows that do, and how many rows there are."""
    run = Runtime(APP, engine, Settings(), pause=lambda _: engine.tolerated(), clock=lambda: clock_seconds)
    verifier = Verifier(Pages(run, HANDLERS, dry_run=True), 60)
    for page in pages(ItemKeys(APP, engine, APP.routes, 64).all()):
        verifier.look(page)
    verifier.recheck()
    assert verifier.found.failed == []
    rows = RowsVerifier(run, APP.routes, live=True)
    found = rows.verify()
    return {each.item for each in verifier.found.different}, {each.row for each in found.different}, found.rows


def verified(items: int, each: int, seed: int = 3) -> VerifiedFaults:
    """Plants so many faults of each kind, and has them found."""
    shop = Shop(items, each, seed, a_row=ITEMS_A_GROUP)
    process, began = WorkProcess(different, time.time()), time.monotonic()
    for number, (name, given, named) in enumerate(process.calls(), 1):
        if number % CALLS_A_WRITE == 0 or name == TOLERATED:
            shop.write()
        process.answer(None if name == TOLERATED else getattr(shop.engine, name)(*given, **named))
    seconds = time.monotonic() - began
    found_items, found_rows, rows = process.result
    of_items, of_rows = shop.planted(*OF_ITEMS), shop.planted(*OF_ROWS)
    known = {shop.number(fault) for fault in (*of_items, *of_rows)}  # a fault of an item shows in its rows, too
    lacking = len(of_items - found_items) + len(of_rows - found_rows)
    false = len(found_items - of_items) + sum(shop.number(row) not in known for row in found_rows)
    return VerifiedFaults(items, rows, 8 * each, lacking, false, shop.writes, process.peak_mib, seconds)


def run(*, large: bool) -> Iterator[str]:
    yield str(verified(ITEMS_LARGE if large else ITEMS, EACH))
