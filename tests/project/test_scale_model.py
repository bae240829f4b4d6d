"""The model behind docs/scale.md: what it says of cases that can be told without it."""

import re
from pathlib import Path

from tests.bench.scale import SECONDS as SIMULATED_SECONDS
from tests.bench.scale import WORKLOADS, Batches, Setting, keeps_up
from tests.bench.scale_model import (
    LANES,
    START_SECONDS,
    TRANSACTION_SECONDS,
    UNITS_A_SECOND,
    Arrivals,
    Seen,
    Tables,
    Transaction,
    World,
)

SECONDS = 20.0
PAGE = Path(__file__).parents[2] / "docs/scale.md"
LINE = re.compile(r"\| ([\d,]+) x (\d+) \| (\d) s \| ([\d,]+) of [\d,]+ \|.* (\S+) \|")
"""Of the table: shards, factor, window, records a second, and the cost of a million."""


def world(lanes, chunks, records_a_second=100.0, size=1, **options):
    def batch(there, lane):
        return min(there, size), chunks(lane)

    return World(lanes, Arrivals(records_a_second, size), batch, **options)


def test_lanes_that_share_no_item_keep_up_and_meet_no_conflict():
    seen = world(8, lambda lane: [Transaction((f"row {lane}",), 2)], records_a_second=10).run(SECONDS)
    assert seen.conflicts == seen.throttled == 0
    assert seen.records >= 8 * 10 * (SECONDS - 1)


def test_lanes_that_share_a_row_meet_conflicts_and_never_hold_it_together():
    seen = world(8, lambda lane: [Transaction(("row",), 2)]).run(SECONDS)
    assert seen.conflicts > 0
    assert seen.batches <= SECONDS / TRANSACTION_SECONDS


def test_chunks_of_a_batch_are_in_flight_together_unless_they_share_a_row():
    apart = world(1, lambda lane: [Transaction((f"row {number}",), 2) for number in range(LANES)]).run(SECONDS)
    together = world(1, lambda lane: [Transaction(("row", f"own {number}"), 4) for number in range(LANES)]).run(SECONDS)
    assert together.conflicts == apart.conflicts == 0
    assert apart.batches > (LANES - 3) * together.batches * (START_SECONDS / TRANSACTION_SECONDS + 0.5)


def test_a_partition_takes_no_more_than_its_units():
    tables = Tables(partitions=1)
    taken = sum(not tables.refuses(Transaction((f"item {number}",), 2), now=number / 1000) for number in range(1000))
    assert taken <= UNITS_A_SECOND  # its first second's, and what came back meanwhile
    assert len(tables.partitions) == 1


def test_a_partition_of_one_hot_item_is_never_split_and_one_of_many_is():
    hot, many = Tables(partitions=1), Tables(partitions=1)
    for number in range(20_000):
        hot.refuses(Transaction(("item",), 2), now=number / 1000)
        many.refuses(Transaction((f"item {number % 50}",), 2), now=number / 1000)
    assert len(hot.partitions) == 1
    assert len(many.partitions) > 1


def test_an_item_collection_lies_in_one_partition():
    tables = Tables(partitions=1)
    for number in range(20_000):
        tables.refuses(Transaction((f"bucket/{number}", f"item {number}"), 4), now=number / 1000)
    partitions = {id(tables.partition(f"bucket/{number}")) for number in range(100)}
    assert (len(partitions), len(tables.partitions) > 1) == (1, True)


def test_a_batch_is_drawn_anew_and_each_of_its_orders_is_in_one_transaction():
    zipf = next(workload for workload in WORKLOADS if workload.name.startswith("Zipf"))
    batches = Batches(zipf, batch_records=50)
    (size, one), (_, other) = batches(80, 0), batches(80, 0)
    assert size == sum(transaction.records for transaction in one) == 50
    rows = [{key for each in some for key in each.keys if key.startswith("CUSTOMER#")} for some in (one, other)]
    assert rows[0] != rows[1]
    assert rows[0] & rows[1]


def test_additions_are_shown_with_their_transaction_and_records_acknowledged_with_their_batch():
    chunks = [Transaction(("row", f"own {number}"), 4, records=1) for number in range(LANES)]
    seen = world(1, lambda lane: chunks, size=LANES, records_a_second=10).run(SECONDS)
    assert seen.shown_since(0) >= seen.records_since(0) == seen.records
    assert seen.shown_after(0.1) < seen.shown_after(1.0)
    assert 0 < seen.records_since(SECONDS / 2) < seen.records
    assert seen.read_units == seen.batches


def test_the_same_seed_gives_the_same_run():
    one, other = (world(8, lambda lane: [Transaction(("row",), 2)]).run(SECONDS) for _ in range(2))
    assert one == other


def test_the_page_has_the_cost_of_each_setting_that_keeps_up_and_of_no_other():
    found = [line.groups() for line in map(LINE.search, PAGE.read_text("utf-8").splitlines()) if line]
    assert len(found) > 30
    for *numbers, cost in found:
        shards, factor, window_seconds, rate = (int(text.replace(",", "")) for text in numbers)
        setting = Setting(shards, factor, window_seconds=window_seconds)
        seen = Seen(records=rate * int(SIMULATED_SECONDS))
        assert (cost != "-") == keeps_up(setting, seen, SIMULATED_SECONDS), numbers
