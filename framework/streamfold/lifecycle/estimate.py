"""What a run over all items will cost: counted on a sample of pages, before anything is written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from streamfold.engines import Engine, Segment
from streamfold.keys.table import Table
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.page_report import PageReport
from streamfold.records.change import ItemKey

SAMPLE_ITEMS = 2_000
"""Items of a sample; a whole page, if that is more: how many items of it share a row decides what is written."""
SLICES = 1_000
"""Segments of which some are read for a sample: each is a random slice of a table, by the hash of its keys."""
PAGES_MAX = 400
"""Pages that a sample reads at most, where most slices are empty."""
READ_BYTES = 4_096
"""What one read unit reads strongly (Developer Guide, read-write-operations)."""
LEDGER_BYTES = 300
"""About the size of a ledger item, of which the run reads the key when it goes over the state."""
PRICE_WRITE, PRICE_READ = 0.625, 0.125
"""Dollars for a million units on demand, us-east-1 (DynamoDB pricing, November 2024 on)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run is expected to do."""

    items: int  # in the tables
    sampled: int
    fitting: float  # the share of items that a handler reads
    writing: float  # the share of items of which a part is written
    write_units: int
    read_units: int
    exact: bool  # all items were looked at

    def dollars(self, price_write: float = PRICE_WRITE, price_read: float = PRICE_READ) -> float:
        """What it costs on demand, for prices of a million units."""
        return self.write_units / 1e6 * price_write + self.read_units / 1e6 * price_read

    def seconds(self, read_units: int, write_units: int) -> int | None:
        """How long it takes at these rates; None where there is none."""
        found = [
            ceil(units / rate)
            for units, rate in ((self.read_units, read_units), (self.write_units, write_units))
            if rate
        ]
        return max(found, default=None)


@dataclass(slots=True)
class TableSize:
    """How many items a table has, and their bytes; both may be some hours old."""

    items: int
    bytes: int


def estimate(
    pages: Pages, tables: Sequence[Table], sizes: Sequence[TableSize], random: Random, page_items: int
) -> Estimate:
    """Looks at a sample of the tables' items as a run would, in dry pages, and counts what a run would write.

    ``pages`` is a dry run. Ledger items and sources are read strongly: one read unit for a ledger item and as many for
    a source as it has 4 KB; the scan of keys reads the whole table. Then the state is scanned, and each ledger item's
    source is read again, to see whether it is gone.
    """
    items, size = sum(each.items for each in sizes), sum(each.bytes for each in sizes)
    sampled, exact, report = 0, True, PageReport()
    for table, each in zip(tables, sizes, strict=True):
        wanted = max(SAMPLE_ITEMS, page_items) * each.items // max(items, 1) + 1
        for keys in _sample(pages.timed, table, random, wanted, each.items):
            sampled += len(keys)
            for start in range(0, len(keys), page_items):
                report.add(pages.reconcile(keys[start : start + page_items]))
        exact = exact and each.items <= wanted
    share = items / sampled if sampled else 0
    average = size / items if items else 0
    fitting = report.items / sampled if sampled else 0
    source = ceil(average / READ_BYTES) or 1
    reads = size / READ_BYTES + items * fitting * (1 + source + LEDGER_BYTES / READ_BYTES + source)
    parts = report.written + report.equal
    return Estimate(
        items,
        sampled,
        fitting,
        report.written / parts if parts else 0,
        round(report.write_units * share),
        round(reads),
        exact,
    )


def _sample(engine: Engine, table: Table, random: Random, wanted: int, items: int) -> Iterable[list[ItemKey]]:
    """Keys of random slices of a table; all keys of a small one."""
    slices = 1 if items <= wanted else SLICES
    found: list[ItemKey] = []
    for number in random.sample(range(slices), min(slices, PAGES_MAX)):
        after = None
        while len(found) < wanted:
            page = engine.scan(table, Segment(number, slices), after, wanted - len(found))
            found += page.keys
            after = page.after
            if after is None:
                break
        if len(found) >= wanted:
            break
    yield found
