"""The model behind docs/scale.md: what it says of cases that can be told without it."""

import re
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from streamfold.commit.plan import pack
from streamfold.runtime import Knowledge, Shared
from streamfold.runtime import Sharing as SharingOfProcess
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import SwapText
from tests.bench import scale_lanes
from tests.bench.scale import AMENDED, ONE, OWN, ZIPF, Goal, PlannedBatches, Setting, goals, simulated
from tests.bench.scale_lanes import (
    BUCKETS,
    HEADS_SECONDS,
    LANES,
    SHARED_ROWS_MAX,
    SHARED_SECONDS,
    START_SECONDS,
    STRIPES,
    Arrivals,
    Bucket,
    Function,
    LedgerItem,
    Sharing,
    Step,
    empty,
    together,
)
from tests.bench.scale_model import (
    CONDITION,
    READ_UNITS_A_SECOND,
    THROTTLED,
    TRANSACTION_SECONDS,
    UNITS_A_SECOND,
    Addition,
    Delta,
    Tables,
    Transaction,
    World,
    place_of,
)

SECONDS = 20.0
PAGE = Path(__file__).parents[2] / "docs/scale.md"


class Batch:
    """Chunks that a test gives, each as the rows that its records are added to."""

    def __init__(self, chunks, size=1, steps=(), stripes=None):
        self.chunks, self.size, self.of_items, self.stripes = chunks, size, steps, stripes or count()

    def packed(self, shared, again=None):
        return [self._transaction(shared, rows) for rows in (self.chunks if again is None else again.units)]

    def steps(self, transaction):
        return self.of_items

    def _transaction(self, shared, rows):
        times = {row: Addition(count, count) for row, count in Counter(rows).items()}
        waiting = {row: times.pop(row) for row in [*times] if shared.takes(row)}
        deltas = (Delta(0, next(self.stripes) % STRIPES, waiting, 200, shared.met(waiting)),) if waiting else ()
        return Transaction(times, len(rows), 0, deltas, (rows,))


def function(lanes, chunks, records_a_second=100.0, size=1, **options):
    return Function(
        lanes,
        Arrivals(records_a_second, size),
        lambda there, lane: Batch(chunks(lane), min(there, size)),
        **options,
    )


def wants(*keys):
    return [(place_of(key), 2.0) for key in keys]


def lanes_on_one_row(lanes=8, most=40, **options):
    """Up to so many records of a batch are in a transaction."""
    stripes = count()

    def batch(there, lane):
        size = min(there, 8 * most)
        return Batch([["row/"] * min(most, size - first) for first in range(0, size, most)], size, stripes=stripes)

    return Function(lanes, Arrivals(100.0, 8 * most), batch, **options)


def test_lanes_that_share_no_item_keep_up_and_meet_no_conflict():
    seen = function(8, lambda lane: [[f"row {lane}/"]], records_a_second=10).run(SECONDS)
    assert seen.conflicts == seen.throttled == seen.deltas == 0
    assert seen.records >= 8 * 10 * (SECONDS - 1)


def test_lanes_that_share_a_row_meet_conflicts_and_without_deltas_never_hold_it_together():
    seen = lanes_on_one_row(puts_deltas=False).run(SECONDS)
    assert seen.conflicts > 0
    assert seen.batches <= SECONDS / TRANSACTION_SECONDS


def test_lanes_that_share_a_row_keep_up_with_deltas():
    before, seen = (lanes_on_one_row(30, partitions=30, puts_deltas=puts).run(SECONDS) for puts in (False, True))
    assert seen.records > 0.9 * 30 * 100 * SECONDS > before.records
    assert 0 < seen.merges < seen.deltas


@pytest.mark.ci
def test_all_batches_share_the_read_units_of_the_manifest(monkeypatch):
    """With three units a batch, some 1,000 batches begin in a second, and no stream falls behind."""
    monkeypatch.setattr(scale_lanes, "READ_UNITS_A_BATCH", 3)
    seen = simulated(OWN, Setting(100), 3.0).some[0]
    assert seen.throttled > 0
    assert seen.batches * 3 <= 4.0 * READ_UNITS_A_SECOND  # a second's units are there at the begin
    assert seen.records > 0.85 * 100 * 100 * 3.0


def test_what_is_acknowledged_is_in_the_rows_and_in_them_once():
    lanes = lanes_on_one_row()
    seen = lanes.run(SECONDS)
    in_rows, pending = (
        lanes.world.contributors["row/"],
        sum(delta.rows["row/"].records for bucket in lanes.buckets for delta in bucket.lying),
    )
    assert in_rows == seen.shown_since(0.0)
    assert seen.records <= in_rows <= in_rows + pending <= 8 * 100 * SECONDS


def test_a_lane_alone_puts_no_delta_and_waits_for_nothing():
    seen = lanes_on_one_row(lanes=1).run(SECONDS)
    assert seen.deltas == seen.conflicts == 0
    assert seen.read_units == seen.batches
    assert seen.age(0.99) < 0.2


def test_a_row_that_nobody_met_at_for_a_minute_is_added_to_directly():
    sharing = Sharing()
    sharing.meets("row", 1.0, first=True)
    sharing.began(1, SHARED_SECONDS)
    assert sharing.takes("row")
    sharing.began(1, SHARED_SECONDS + 2.0)
    assert not sharing.takes("row")


def test_a_batch_after_one_that_met_others_in_many_chunks_goes_by_deltas_whole():
    sharing = Sharing()
    for met, whole in ((1, False), (2, True), (0, False)):
        for _ in range(5):
            sharing.sends()
        for _ in range(met):
            sharing.meets("row", 0.0, first=True)
        sharing.meets("row", 0.0, first=False)
        sharing.began(1, 0.0)
        assert sharing.takes("another") is whole


@pytest.mark.parametrize(("records", "seconds", "waits"), [(1000, 1.0, 0.2), (40, 1.0, 0.5), (1, 1.0, 0.8)])
def test_a_lane_waits_first_for_as_long_as_twenty_records_take_to_come(records, seconds, waits):
    sharing = Sharing()
    sharing.began(1, 0.0)
    sharing.began(records, seconds)
    assert sharing.wait_seconds == waits


def test_a_process_that_met_others_reads_the_heads_and_one_that_did_not_never_does():
    sharing = Sharing()
    assert not sharing.wants_heads(100.0)
    sharing.learn({"row": 100.0})
    assert sharing.wants_heads(100.0)
    sharing.heads_at = 100.0
    assert not sharing.wants_heads(100.0 + HEADS_SECONDS / 2)
    assert sharing.wants_heads(100.0 + HEADS_SECONDS)


def test_a_head_names_rows_that_were_met_and_those_of_which_two_deltas_were_pending():
    def delta(*rows, met=()):
        return Delta(0, 0, dict.fromkeys(rows, Addition()), 200, frozenset(met))

    bucket = Bucket(0)
    bucket.note([delta("a", "b"), delta("a", "c", met=["c"])], 1.0)
    assert bucket.shared == {"a": 1.0, "c": 1.0}
    bucket.note([delta(*map(str, range(SHARED_ROWS_MAX)), met=map(str, range(SHARED_ROWS_MAX)))], 50.0)
    assert "a" not in bucket.shared
    bucket.note([delta("d", met="d")], 200.0)
    assert bucket.shared == {"d": 200.0}


def test_a_merge_takes_no_more_than_a_transaction():
    deltas = [Delta(0, stripe, {f"{stripe}.{row}": Addition() for row in range(30)}, 200) for stripe in range(10)]
    assert [len(some) for some in together(deltas)] == [3, 3, 3, 1]
    assert len(together([Delta(0, 0, {"row": Addition()}, 200) for _ in range(99)])) == 1


def full_bucket(monkeypatch):
    """A function whose first bucket takes 30 transactions, which is three times its lease."""
    monkeypatch.setattr(scale_lanes, "LEASE_SECONDS", 0.2)
    lanes = function(0, lambda lane: [])
    bucket = lanes.buckets[0]
    for number in range(30):
        rows = {f"{number}.{row}/": Addition() for row in range(60)}
        bucket.lying[Delta(0, number % STRIPES, rows, 200)] = None
    return lanes, bucket


def test_a_lease_is_renewed_while_its_bucket_is_emptied_and_nobody_else_empties_it(monkeypatch):
    lanes, bucket = full_bucket(monkeypatch)
    first, second = [], []
    lanes.world.spawn(empty(lanes, bucket, [], first))
    lanes.world.later(0.4, lanes.world.spawn, empty(lanes, bucket, [], second))
    seen = lanes.run(2.0)
    assert (first, second, seen.merges) == ([0], [], 30)
    assert not bucket.lying
    assert bucket.is_free(2.0)


def test_a_process_whose_lease_was_taken_over_stops(monkeypatch):
    lanes, bucket = full_bucket(monkeypatch)
    lanes.world.spawn(empty(lanes, bucket, [], []))
    lanes.run(0.3)
    bucket.revision += 1
    assert 0 < lanes.run(2.0).merges < 30


def amended(gone):
    """A lane whose items had a step by a delta that is gone, and a process that knows it, or not."""
    item = LedgerItem(delta=Delta(0, 0, {}, 200))
    lanes = Function(1, Arrivals(10, 1), lambda there, lane: Batch([["row/"]], 1, [Step(item, "row/", amends=True)]))
    if gone:
        lanes.processes[0].settle(item)
    return lanes.run(0.3)


def test_a_step_after_a_delta_that_its_process_saw_gone_reads_nothing_more_and_any_other_one_asks():
    known, unknown = amended(gone=True), amended(gone=False)
    assert known.read_units == known.batches
    assert "refused" not in known.paid
    assert unknown.paid["refused"] == 4
    assert unknown.read_units > unknown.batches


def test_chunks_of_a_batch_are_in_flight_together_unless_they_share_a_row():
    apart = function(1, lambda lane: [[f"row {number}/"] for number in range(LANES)]).run(SECONDS)
    together = function(1, lambda lane: [["row/"] for _ in range(LANES)]).run(SECONDS)
    assert together.conflicts == apart.conflicts == 0
    assert apart.batches > (LANES - 3) * together.batches * (START_SECONDS / TRANSACTION_SECONDS + 0.5)


def test_a_partition_takes_no_more_than_its_units():
    tables = Tables(partitions=1)
    taken = sum(not tables.refuses(wants(f"item {number}"), number / 1000) for number in range(1000))
    read = sum(not tables.refuses(wants(f"item {number}"), 1.0, reads=True) for number in range(2000))
    assert taken <= UNITS_A_SECOND  # its first second's, and what came back meanwhile
    assert read == READ_UNITS_A_SECOND / 2
    assert len(tables.partitions) == 1


def test_a_partition_of_one_hot_item_is_never_split_and_one_of_many_is():
    hot, many = Tables(partitions=1), Tables(partitions=1)
    for number in range(20_000):
        hot.refuses(wants("item"), number / 1000)
        many.refuses(wants(f"item {number % 50}"), number / 1000)
    assert len(hot.partitions) == 1
    assert len(many.partitions) > 1


def test_an_item_collection_lies_in_one_partition():
    tables = Tables(partitions=1)
    for number in range(20_000):
        tables.refuses(wants(f"bucket/{number}", f"item {number}"), number / 1000)
    partitions = {id(tables.partition(f"bucket/{number}")) for number in range(100)}
    assert (len(partitions), len(tables.partitions) > 1) == (1, True)


def test_a_transaction_is_refused_for_items_that_are_held_conditions_and_throttling_and_only_the_last_is_free():
    world, answers = World(1), []
    kept = (wants("row/"), ["row/"], {"row": 2})
    world.spawn(world.transact(*kept), answers.append)
    world.spawn(world.transact(*kept), answers.append)
    world.spawn(world.transact([(0, 2.0)], ["other/"], {"row": 2}, lambda: False), answers.append)
    world.spawn(world.transact([(0, UNITS_A_SECOND)], ["more/"], {"row": 2}), answers.append)
    seen = world.run(1.0)
    assert answers == [["row/"], CONDITION, THROTTLED, None]
    assert seen.paid == {"row": 2, "refused": 4}


@pytest.mark.parametrize("workload", [ZIPF, AMENDED])
def test_a_batch_is_drawn_anew_and_each_of_its_orders_is_in_one_transaction(workload):
    batches = PlannedBatches(workload, batch_records=50)
    some = [batches(80, 0) for _ in range(2)]
    chunks = [batch.packed(Direct()) for batch in some]
    for batch, packed in zip(some, chunks, strict=True):
        assert batch.size == sum(transaction.records() for transaction in packed) == 50
    rows = [{row for each in packed for row in each.rows} for packed in chunks]
    assert rows[0] != rows[1]
    assert rows[0] & rows[1]


class Direct:
    """Puts deltas of some rows."""

    def __init__(self, *rows):
        self.rows = rows

    def takes(self, row):
        return row in self.rows

    def met(self, rows):
        return frozenset(rows)


def test_additions_of_shared_rows_go_into_a_delta_for_each_bucket_and_the_others_stay():
    batch = PlannedBatches(ZIPF, batch_records=100)(100, 0)
    direct = batch.packed(Direct())
    rows = Counter({row: each.records for chunk in direct for row, each in chunk.rows.items()})
    hot = [row for row, _ in rows.most_common(5)]
    chunks = batch.packed(Direct(*hot))
    assert (
        sum(chunk.records() + sum(each.records for d in chunk.deltas for each in d.rows.values()) for chunk in chunks)
        == 100
    )
    assert {row for chunk in chunks for delta in chunk.deltas for row in delta.rows} == {*hot}
    assert {row for chunk in chunks for row in chunk.rows} == rows.keys() - hot
    for chunk in chunks:
        numbers = [delta.bucket for delta in chunk.deltas]
        assert len({*numbers}) == len(numbers) <= BUCKETS
        assert sum(chunk.paid().values()) == sum(units for _, units in chunk.wants(World().random))


class Whole:
    """Puts deltas of all rows."""

    def takes(self, row):
        return True

    def met(self, rows):
        return frozenset()


@pytest.mark.parametrize("size", [10, 40, 100])
@pytest.mark.parametrize("workload", [ZIPF, ONE])
def test_deltas_are_as_many_as_those_of_the_planner_and_not_smaller(workload, size):
    batch = PlannedBatches(workload, size)(size, 0)
    chunks = batch.packed(Whole())
    planned = pack(batch.units, ACTIONS_MAX, Shared(SharingOfProcess(), Knowledge(), may_put=True, takes_all=True))
    puts = [write for each in planned for write in each.writes if isinstance(write, SwapText)]
    deltas = [delta for chunk in chunks for delta in chunk.deltas]
    assert (len(chunks), len(deltas)) == (len(planned), len(puts))
    text = sum(len(put.text) + len(put.key.pk) + len(put.key.sk) for put in puts)
    assert text <= sum(delta.size_bytes for delta in deltas) <= 2 * text


def test_a_lane_amends_and_removes_its_own_orders_each_once_in_a_batch():
    batches = PlannedBatches(AMENDED, batch_records=200)
    first, second = (batches(200, 0) for _ in range(2))
    items = [step.item for step in second.of_items.values()]
    earlier = {step.item for step in first.of_items.values()}
    assert len({*items}) == len(items) == 200
    assert {step.item in earlier for step in second.of_items.values() if step.amends} == {True}
    assert any(step.removes for step in second.of_items.values())
    assert not any(step.item in batches.orders[0] for step in second.of_items.values() if step.removes)


def test_additions_are_shown_with_their_transaction_and_records_acknowledged_with_their_batch():
    seen = function(1, lambda lane: [["row/"] for _ in range(LANES)], size=LANES, records_a_second=10).run(SECONDS, 1.0)
    assert seen.shown_since(0) >= seen.records_since(0) == seen.records
    assert seen.shown_after(0.1) < seen.shown_after(1.0)
    assert 0 < seen.records_since(SECONDS / 2) < seen.records
    assert seen.bill().since(seen.before[1.0]).records == seen.records_since(1.0)
    assert sum(seen.paid.values()) == seen.units


def test_the_same_seed_gives_the_same_run():
    one, other = (lanes_on_one_row().run(SECONDS) for _ in range(2))
    assert one == other


def test_a_goal_names_what_it_misses():
    setting = Setting(1)
    assert not Goal(ONE, setting, 0.9, 1.0, 3.0).missed_by(simulated(ONE, setting, 4.0))
    missed = Goal(ONE, setting, 1.5, 0.001, 0.1).missed_by(simulated(ONE, setting, 4.0))
    assert len(missed) == 3


def test_rows_of_their_own_are_as_they_were_without_deltas():
    one, other = (simulated(OWN, Setting(2, puts_deltas=puts), 3.0).some for puts in (False, True))
    assert one == other


def test_the_page_has_a_line_for_each_goal():
    page = PAGE.read_text("utf-8")
    lines = re.findall(r"^\| .* \| ([\d,]+) x (\d+) \| .*\$\d.* \|$", page, re.MULTILINE)
    wanted = Counter((f"{goal.setting.shards:,}", str(goal.setting.factor)) for goal in goals())
    assert not wanted - Counter(lines)
