"""A plan writes hardly more than it must: each ledger item once, and each row once.

A row that units of two chunks share is written twice. So what a plan writes beyond the least is counted here: in the
benchmark's batch, and by properties of all batches.
"""

from collections import Counter as Tally

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Key, Router
from streamfold.batch.process import plan_changes, process_event, read_changes
from streamfold.commit.plan import pack
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.records.envelope import Origins, records_of
from streamfold.routes.checks import checked_routes
from streamfold.runtime import Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.settings.limits import ACTIONS_MAX
from tests.bench.strategies import application, event
from tests.commit.test_plan import ONE, SOURCE, ledger, nothing, shared

pytestmark = pytest.mark.usefixtures("exact")
REQUESTS_MAX = 25
"""What the batch of the benchmark is to take."""


def written(transactions):
    return sum(len(transaction.writes) for transaction in transactions)


def least(transactions):
    """Ledger items and distinct rows: no plan that keeps its guards writes fewer."""
    return len({write.key for transaction in transactions for write in transaction.writes})


def inserted(contributions):
    """The units of new items, each with the names of the rows that it adds to."""
    return [ledger(number, (ONE, {}, shared(**dict.fromkeys(rows, 1)))) for number, rows in enumerate(contributions)]


class TakesAll(MemoryEngine):
    """A store that takes every write of a batch and keeps none, as the service of the benchmark does."""

    def transact(self, writes, expires_at):
        return None

    def clear_pending(self, finished):
        pass


def test_the_batch_of_the_benchmark_is_written_with_few_writes_more_than_the_least():
    app = application()
    run = Runtime(app, MemoryEngine(app.tables.values()), Settings(tables={"app": "app"}))
    origins = Origins(app.source_tables, run.settings)
    changes, _ = read_changes(records_of(event(1_000)), origins)
    plan, _ = plan_changes(run, changes)
    print(
        f"\n{written(plan.transactions):,} writes in {len(plan.transactions)} chunks; {least(plan.transactions):,} are "
        "the least"
    )
    assert written(plan.transactions) <= 1.05 * least(plan.transactions)
    assert len(plan.transactions) <= -(-least(plan.transactions) // ACTIONS_MAX) + 1


def test_every_request_of_the_batch_of_the_benchmark_is_accounted_for():
    app, pace, known = application(), SendingPace(), Knowledge()
    engine = CountingEngine(TakesAll(app.tables.values()))
    for _ in range(2):  # the manifest and the forms of attributes are written with the first
        engine.calls.clear()
        run = Runtime(app, engine, Settings(tables={"app": "app"}), pace=pace, known=known)
        assert process_event(run, event(1_000)).failures == []
    requests = Tally()
    for call in engine.calls:
        requests[call.name] += call.requests
    print(f"\n{requests.total()} requests: {dict(requests)}")
    assert requests == {
        "read_state": 1,  # the manifest
        "transact": -(-sum(call.actions for call in engine.named("transact")) // ACTIONS_MAX),
    }
    assert requests.total() <= REQUESTS_MAX


def test_units_of_two_hot_rows_are_not_scattered_by_the_rows_that_few_share():
    rows = [{f"Hot{n % 2}", f"Group{n % 20}"} for n in range(400)]
    transactions = pack(inserted(rows), ACTIONS_MAX)
    assert (len(transactions), written(transactions) - least(transactions)) == (
        5,
        4 + 3,
    )  # a hot row and a group at each boundary


def test_a_row_that_three_hot_rows_share_is_written_by_two_chunks():
    rows = [{f"Hot{n % 3}", *(["Shared"] if n % 150 < 30 else [])} for n in range(450)]
    transactions = pack(inserted(rows), ACTIONS_MAX)
    assert (
        sum(
            ("main", "GROUP#Shared", "TOTAL") in {write.key for write in transaction.writes}
            for transaction in transactions
        )
        == 2
    )


def test_units_that_write_no_row_fill_up_the_chunks_of_the_others():
    units = [ledger(number, (ONE, shared(a=1), shared(a=1))) for number in range(20)]
    units += [ledger(number, (ONE, {}, shared(**{f"Group{number}": 1, "Hot": 1}))) for number in range(20, 40)]
    assert [len(transaction.writes) for transaction in pack(units, 10)] == [10] * 6 + [5]


def test_additions_that_cancel_each_other_out_leave_their_place_to_others():
    units = [ledger(number, (ONE, {}, shared(a=1))) for number in range(4)]
    units += [ledger(number, (ONE, shared(a=1), {})) for number in range(4, 8)]
    (transaction,) = pack(units, 8)
    assert len(transaction.writes) == len(transaction.units) == 8


def test_units_of_a_spread_row_that_write_nothing_share_a_chunk():
    router = Router()
    router.view(SOURCE, into=Key("GROUP#{group}", "{shard:02d}"), shards=2, name="spread")(nothing)
    (spread,) = checked_routes(router.routes)
    units = [ledger(number, (spread, shared(a=1), shared(a=1))) for number in range(20)]
    assert len(pack(units, ACTIONS_MAX)) == 1


some_rows = st.lists(st.sets(st.sampled_from("abcdefghij"), max_size=5), max_size=60)


@given(some_rows, st.integers(2, 12))
def test_no_plan_writes_less_than_the_least_and_every_chunk_writes_a_row_once(contributions, actions):
    units = inserted(contributions)
    transactions = pack(units, actions)
    assert least(transactions) == len(units) + len(set().union(*contributions))
    assert written(transactions) >= least(transactions)
    assert all(
        len({write.key for write in transaction.writes}) == len(transaction.writes) for transaction in transactions
    )


depth = st.shared(st.integers(1, 4))
paths = depth.flatmap(lambda levels: st.lists(st.text("xyz", min_size=levels, max_size=levels), max_size=60))


@given(paths, st.integers(6, 12))
def test_rows_within_rows_are_written_once_more_at_each_boundary_at_most(items, actions):
    contributions = [{path[:end] for end in range(1, len(path) + 1)} for path in items]  # "x", "xy", "xyz"
    transactions = pack(inserted(contributions), actions)
    levels = max(map(len, items), default=0)
    assert written(transactions) <= least(transactions) + levels * max(len(transactions) - 1, 0)
