"""Deltas are moved into their rows, once each, whoever else moves them, dies, removes rows or takes them."""

from collections import Counter
from contextlib import suppress

import pytest

from streamfold import App, Average, Count, Key, Router, Row, Sum
from streamfold.commit.buckets import (
    FOUND_MAX,
    JITTER,
    LEASE_SECONDS,
    LOOKED_SECONDS,
    REST_SECONDS,
    SHARED_FRESH_SECONDS,
    SHARED_ROWS_MAX,
    TRIED_AGAIN_SECONDS,
    Head,
    Mover,
    SharedRows,
    Turn,
    WaitingDeltas,
    empty_buckets,
    empty_unvisited,
    learn_shared,
    note_unvisited,
    pending_in,
    read_shared,
    ready_by_handler,
    wait_for_deltas,
    wait_for_items,
)
from streamfold.commit.outcome import lacks_the_record
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable, HandlerError
from streamfold.keys.table import MARK
from streamfold.ledger.contribution import LedgerItem, RowContribution, stored_text
from streamfold.ledger.deltas import (
    ROWS_MAX,
    Additions,
    Delta,
    RowRefusal,
    bucket_of,
    delta_key,
    head_key,
    names_text,
    new_name,
)
from streamfold.ledger.state_keys import row_name
from streamfold.ledger.step import Step
from streamfold.records.values import decode
from streamfold.runtime import SHARED_SECONDS, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import CONDITION, CONFLICT, VALIDATION, AddRow, CorrectRow, Reason, Refused, SwapText
from tests.helpers.records import change, item

pytestmark = pytest.mark.usefixtures("exact")
ORDER, CUSTOMER = Key("ORDER#{o}", "ORDER"), Key("CUSTOMER#{c}", "TOTAL")
NOW = 1_800_000_000.0


def application():
    router = Router()

    @router.view(ORDER, into=CUSTOMER)
    def totals(order):
        yield Row(c=order["c"], total=Sum(order["n"]), mean=Average(order["n"]), orders=Count())

    return App("shop", routers=[router])


APP = application()
(TOTALS,) = APP.routes


def rows_of_one_bucket(count, wanted=0):
    rows = (("main", f"CUSTOMER#{number}", "TOTAL") for number in range(100_000))
    found = (row for row in rows if bucket_of(row) == wanted)
    return [next(found) for _ in range(count)]


A, B, C = rows_of_one_bucket(3)


def entering(row=A, amount=5, contributors=1):
    return AddRow(row, {"total": amount}, contributors)


def leaving(row=A, amount=-5, contributors=-1):
    return AddRow(row, {"total": amount}, contributors, contributors_min=-contributors)


def amending(row=A, amount=1):
    return AddRow(row, {"total": amount}, 0, contributors_min=1)


class Store:
    """A store that many processes share. ``trouble(writes, go)`` may stand in the way of a transaction.

    ``calls`` counts its calls, and ``before`` is called before each.
    """

    is_local = False

    def __init__(self, engine):
        self.engine = engine
        self.trouble = None
        self.before = None
        self.calls = Counter()
        self.sent = []

    def transact(self, writes, expires_at):
        self._begin("transact")
        self.sent.append(writes)

        def go():
            return self.engine.transact(writes, expires_at)

        return self.trouble(writes, go) if self.trouble else go()

    def _begin(self, name):
        self.calls[name] += 1
        if self.before:
            self.before()

    def __getattr__(self, name):
        real = getattr(self.engine, name)
        if name not in ("read_state", "read_rows", "read_entries", "read_together", "swap_state"):
            return real

        def call(*given, **named):
            self._begin(name)
            return real(*given, **named)

        return call


class Shop:
    """Deltas in a store, and the rows below them."""

    def __init__(self):
        self.engine = MemoryEngine(APP.tables.values())
        self.now = NOW
        self.tokens = 0

    def runtime(self, store=None):
        return Runtime(
            APP,
            store or Store(self.engine),
            Settings(),
            clock=lambda: self.now,
            pause=self.pause,
            pace=SendingPace(),
        )

    def pause(self, seconds):
        self.now += seconds

    def put(self, *additions, met=(), refused=None, bucket=0):
        """Puts a delta, and returns its name."""
        self.tokens += 1
        name = new_name(bucket, f"{self.tokens % 16:x}{self.tokens:016x}")
        delta = Additions(additions).delta(["totals"], met)._replace(refused=refused)
        assert self.engine.transact([SwapText(delta_key("shop", name), delta.text(), None)], 0) is None
        return name

    def add(self, row, amount, contributors):
        """Has a row count contributors."""
        assert self.engine.transact([AddRow(row, {"total": amount}, contributors)], 0) is None

    def pending(self, bucket=0):
        return {name: Delta.of(text) for name, text in pending_in(self.runtime(), bucket).items()}

    def mover(self, store=None):
        runtime = self.runtime(store)
        return Mover(runtime, pending_in(runtime, 0))

    def move(self, store=None):
        """Moves all that is pending; returns the mover."""
        mover = self.mover(store)
        mover.move_all({name: Delta.of(text) for name, text in mover.texts.items()})
        return mover

    def row(self, row=A):
        """A row's total and its contributors; None if there is no row."""
        found = self.engine.rows.get(row)
        return found and tuple(int(decode(found.get(name, {"N": "0"}))) for name in ("total", "_sf_n"))

    def head(self, bucket=0):
        key = head_key("shop", bucket)
        return Head.of(self.engine.read_state([key]).get(key))

    def shared(self, bucket=0):
        """The rows that are noted as shared."""
        return read_shared(self.runtime())[bucket].rows


@pytest.fixture
def shop():
    return Shop()


def at(row, code, times=10**9):
    """Refuses transactions that write a row, with this reason at the row."""
    left = [times]

    def trouble(writes, go):
        if all(write.key != row for write in writes) or left[0] <= 0:
            return go()
        left[0] -= 1
        return Refused(tuple(Reason(code, None, "no") if write.key == row else None for write in writes))

    return trouble


# Moving.


def test_deltas_move_together_and_each_row_is_added_to_once(shop):
    for _ in range(3):
        shop.put(entering(A), entering(B, 2))
    store = Store(shop.engine)
    mover = shop.move(store)
    assert (shop.row(A), shop.row(B)) == ((15, 3), (6, 3))
    assert [len(writes) for writes in store.sent] == [3 + 2]
    assert (mover.merged, mover.lost, shop.pending()) == (3, set(), {})


def test_a_transaction_takes_as_many_deltas_as_it_may_have_actions(shop):
    for _ in range(250):
        shop.put(entering(A))
    store = Store(shop.engine)
    shop.move(store)
    assert shop.row(A) == (1_250, 250)
    assert [len(writes) for writes in store.sent] == [ACTIONS_MAX, ACTIONS_MAX, 52 + 1]


def test_a_delta_of_as_many_rows_as_it_may_have_moves_alone(shop):
    rows = rows_of_one_bucket(ROWS_MAX)
    shop.put(*map(entering, rows))
    shop.put(entering(rows[0]))
    store = Store(shop.engine)
    shop.move(store)
    assert sorted(len(writes) for writes in store.sent) == [2, ACTIONS_MAX]
    assert shop.row(rows[0]) == (10, 2)


def test_a_row_is_written_where_what_is_added_to_it_adds_up_to_nothing(shop):
    shop.add(A, 5, 1)
    shop.put(entering(A, 5), leaving(A, -5))
    store = Store(shop.engine)
    shop.move(store)
    assert A in {write.key for write in store.sent[0]}
    assert shop.row(A) == (5, 1)


def test_deltas_whose_sum_has_too_many_digits_move_one_by_one(shop):
    shop.put(entering(A, 9 * 10**37 + 1))
    shop.put(entering(A, 9 * 10**37 + 1))
    shop.put(entering(A, 2))
    shop.move()
    assert shop.row(A) == (9 * 10**37 + 3, 2)
    (left,) = shop.pending().values()
    assert "cannot be stored" in left.refused.reason


# Rows that somebody removed.


def test_what_new_items_add_to_a_removed_row_is_kept_and_what_leaves_it_is_dropped(shop):
    shop.put(entering(A, 7), leaving(A, -5, -2))
    mover = shop.move()
    assert shop.row(A) == (7, 1)
    assert mover.lost == {("totals", A)}
    assert shop.pending() == {}


def test_what_leaves_a_removed_row_makes_no_row(shop):
    shop.put(leaving(A))
    assert shop.move().lost == {("totals", A)}
    assert shop.row(A) is None


def test_a_removed_row_is_the_matter_of_its_delta_alone(shop):
    shop.add(A, 5, 1)
    shop.put(leaving(B), entering(C, 1))
    shop.put(amending(A, 2))
    mover = shop.move()
    assert (shop.row(A), shop.row(B), shop.row(C)) == ((7, 1), None, (1, 1))
    assert mover.lost == {("totals", B)}


def test_a_row_that_is_corrected_before_the_second_try_loses_what_leaves_it(shop):
    shop.put(entering(A, 7), leaving(A, -5))
    refusals = []

    def corrected(writes, go):
        refused = go()
        if refused is not None and not refusals:
            refusals.append(refused)
            shop.add(A, 5, 1)
        return refused

    store = Store(shop.engine)
    store.trouble = corrected
    mover = shop.move(store)
    assert refusals
    assert shop.row(A) == (7, 1)
    assert mover.lost == set()


def test_a_removed_row_that_only_loses_is_not_passed_over_once_it_is_corrected(shop):
    shop.put(leaving(A, -5))
    refusals = []

    def corrected(writes, go):
        refused = go()
        if refused is not None and not refusals:
            refusals.append(refused)
            shop.add(A, 9, 2)
        return refused

    store = Store(shop.engine)
    store.trouble = corrected
    shop.move(store)
    assert shop.row(A) == (4, 1)


def test_a_removed_row_takes_the_mark_of_a_correction_away(shop):
    assert shop.engine.transact([CorrectRow(A, {}, (), {"_sf_o": MARK + "of-a-correction"}, {"_sf_n": 0})], 0) is None
    shop.put(entering(A, 7), leaving(A, -5))
    shop.move()
    assert "_sf_o" not in shop.engine.rows[A]


# Rows that take no addition.


def test_a_row_that_refuses_for_good_keeps_its_delta_under_its_name_with_the_reason(shop):
    name = shop.put(entering(A), entering(B, 2))
    store = Store(shop.engine)
    store.trouble = at(A, VALIDATION)
    shop.move(store)
    assert (shop.row(A), shop.row(B)) == (None, (2, 1))
    ((left, delta),) = shop.pending().items()
    assert (left, delta.rows, delta.refused.tried) == (name, {row_name(A)}, int(NOW))
    assert "ValidationError" in delta.refused.reason


def test_a_row_that_refuses_for_good_keeps_no_other_delta_waiting(shop):
    shop.put(entering(A))
    shop.put(entering(B, 2))
    store = Store(shop.engine)
    store.trouble = at(A, VALIDATION)
    shop.move(store)
    assert shop.row(B) == (2, 1)
    assert [delta.rows for delta in shop.pending().values()] == [{row_name(A)}]


def test_a_row_that_was_put_by_version_refuses_what_is_added_without_one(shop):
    shop.engine.rows[A] = {"PK": {"S": A[1]}, "SK": {"S": A[2]}, "_sf_v": {"S": "v"}}
    shop.put(entering(A)._replace(unversioned=True))
    shop.move()
    (left,) = shop.pending().values()
    assert "a row is put or added to, never both" in left.refused.reason


def test_an_item_of_the_application_refuses_what_comes_and_is_as_it_was(shop):
    own = shop.engine.rows[A] = {"PK": {"S": A[1]}, "SK": {"S": A[2]}, "total": {"N": "40"}}
    shop.put(entering(A), leaving(A, -5))
    shop.move()
    (left,) = shop.pending().values()
    assert "belongs to the application itself" in left.refused.reason
    assert shop.engine.rows[A] == own


def test_what_leaves_a_row_that_a_writer_replaced_is_dropped(shop):
    own = shop.engine.rows[A] = {"PK": {"S": A[1]}, "SK": {"S": A[2]}, "total": {"N": "40"}}
    shop.put(leaving(A, -5))
    assert shop.move().lost == {("totals", A)}
    assert (shop.pending(), shop.engine.rows[A]) == ({}, own)


def test_what_a_row_refused_moves_once_it_takes_it(shop):
    shop.put(entering(A), refused=RowRefusal("no", int(NOW)))
    shop.move()
    assert (shop.row(A), shop.pending()) == ((5, 1), {})


def test_a_table_that_is_missing_keeps_no_other_table_waiting(shop):
    def missing(writes, go):
        if any(write.key == A for write in writes):
            raise EngineError("no such table")
        return go()

    name = shop.put(entering(A))
    shop.put(entering(B))
    store = Store(shop.engine)
    store.trouble = missing
    shop.move(store)
    assert shop.row(B) == (5, 1)
    ((left, delta),) = shop.pending().items()
    assert (left, delta.rows, delta.refused.reason) == (name, {row_name(A)}, "no such table")


def test_a_table_that_is_missing_fails_records_that_are_never_parked(shop):
    name, store = shop.put(entering(A)), Store(shop.engine)

    def missing(writes, go):
        if any(write.key[0] == "main" for write in writes):
            raise EngineError("Table main is missing.")
        return go()

    store.trouble = missing
    [failed] = wait_for_deltas(shop.runtime(store), waiting_for(name))
    assert type(failed.error) is EngineError
    assert lacks_the_record(failed.error)
    assert Delta.of(pending_in(shop.runtime(), 0)[name]).refused.fatal


def test_conflicts_are_waited_for(shop):
    shop.put(entering(A))
    store = Store(shop.engine)
    store.trouble = at(A, CONFLICT[0], times=4)
    shop.move(store)
    assert shop.row(A) == (5, 1)
    assert len(store.sent) == 5


# Rows that become empty.


def test_a_row_that_becomes_empty_is_deleted_on_its_mark(shop):
    shop.add(A, 5, 1)
    shop.put(leaving(A))
    store = Store(shop.engine)
    shop.move(store)
    assert shop.row(A) is None
    marks, merge = store.sent
    assert [type(write).__name__ for write in marks] == ["CorrectRow"]
    assert [type(write).__name__ for write in merge] == ["DeleteState", "DeleteRow"]


def test_what_is_added_to_a_row_after_its_mark_does_not_go_with_it(shop):
    shop.add(A, 5, 1)
    shop.put(leaving(A))

    def meanwhile(writes, go):
        if any(type(write).__name__ == "DeleteRow" for write in writes):
            store.trouble = None
            assert shop.engine.transact([AddRow(A, {"total": 3}, 1)], 0) is None
        return go()

    store = Store(shop.engine)
    store.trouble = meanwhile
    shop.move(store)
    assert shop.row(A) == (3, 1)


def test_a_process_that_dies_after_its_mark_leaves_a_row_that_others_empty(shop):
    shop.add(A, 5, 1)
    shop.put(leaving(A))

    def dies(writes, go):
        if any(type(write).__name__ == "DeleteRow" for write in writes):
            raise EngineUnavailable("no answer")
        return go()

    store = Store(shop.engine)
    store.trouble = dies
    with pytest.raises(EngineUnavailable):
        shop.move(store)
    assert shop.row(A) == (5, 1)
    shop.move()
    assert (shop.row(A), shop.pending()) == (None, {})


def test_a_row_that_one_leaves_and_another_enters_is_not_deleted(shop):
    shop.add(A, 5, 1)
    shop.put(leaving(A))
    shop.put(entering(A, 2))
    shop.move()
    assert shop.row(A) == (2, 1)


# Others who are at the same bucket.


class Interrupted(Store):
    """A store in which something happens before the call of a number."""

    def __init__(self, engine, number, happens):
        super().__init__(engine)
        self.number, self.happens, self.happened = number, happens, False
        self.before = self._interrupt

    def _interrupt(self):
        if self.calls.total() == self.number:
            self.happened = True
            self.happens()


def busy():
    """Deltas that add to a row, empty one, find one removed, and are refused by one."""
    shop = Shop()
    shop.add(A, 5, 1)
    shop.add(B, 5, 1)
    shop.put(entering(A, 1), leaving(B))
    shop.put(entering(A, 2), entering(C, 4))
    shop.put(leaving(C, -3, -3))
    return shop


EXPECTED = {A: (8, 3), B: None, C: (4, 1)}


@pytest.mark.parametrize("number", range(1, 40))
def test_two_who_empty_a_bucket_at_once_add_each_delta_once(number):
    shop = busy()
    store = Interrupted(shop.engine, number, shop.move)
    shop.move(store)
    shop.move()
    assert {row: shop.row(row) for row in EXPECTED} == EXPECTED
    assert shop.pending() == {}


@pytest.mark.parametrize("number", range(1, 40))
def test_who_read_a_bucket_long_ago_moves_nothing_again(number):
    shop = busy()
    late = shop.mover()
    shop.move(Interrupted(shop.engine, number, lambda: late.move_all(read(late))))
    late.move_all(read(late))
    assert {row: shop.row(row) for row in EXPECTED} == EXPECTED


def read(mover):
    return {name: Delta.of(text) for name, text in mover.texts.items()}


def test_the_calls_at_which_others_come_are_all_of_them():
    shop = busy()
    store = Store(shop.engine)
    shop.move(store)
    assert 16 < store.calls.total() < 40


def test_what_was_moved_of_a_delta_is_not_moved_again_by_who_read_it_before(shop):
    """One row of it refuses, so its name stays: the text is another one, and the second process is refused."""
    shop.put(entering(A), entering(B, 2))
    late = shop.mover()
    store = Store(shop.engine)
    store.trouble = at(A, VALIDATION)
    shop.move(store)
    late.move_all(read(late))
    assert (shop.row(A), shop.row(B)) == (None, (2, 1))
    shop.move()
    assert (shop.row(A), shop.row(B)) == ((5, 1), (2, 1))


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("lands", [True, False])
def test_a_lost_answer_counts_nothing_twice(number, lands):
    shop = busy()
    sent = []

    def lost(writes, go):
        sent.append(writes)
        if len(sent) == number:
            if lands:
                go()
            raise EngineUnavailable("no answer")
        return go()

    store = Store(shop.engine)
    store.trouble = lost
    with suppress(EngineUnavailable):
        shop.move(store)
    assert len(sent) >= min(number, 7)
    shop.move()
    assert {row: shop.row(row) for row in EXPECTED} == EXPECTED


# The lease.


def test_a_bucket_rests_after_it_was_emptied(shop):
    shop.put(entering(A))
    assert empty_buckets(shop.runtime(), {0}, {}) == {0: set()}
    shop.put(entering(A))
    assert empty_buckets(shop.runtime(), {0}, {}) == {}
    shop.now += REST_SECONDS
    assert empty_buckets(shop.runtime(), {0}, {}) == {0: set()}
    assert shop.row(A) == (10, 2)


def test_nobody_empties_a_bucket_that_another_process_is_at(shop):
    shop.put(entering(A))
    found = []
    store = Store(shop.engine)
    store.trouble = lambda writes, go: [found.append(empty_buckets(shop.runtime(), {0}, {})), go()][1]
    empty_buckets(shop.runtime(store), {0}, {})
    assert found == [{}]
    assert shop.row(A) == (5, 1)


def test_the_bucket_of_a_process_that_died_is_free_after_its_lease(shop):
    shop.put(entering(A))
    store = Store(shop.engine)

    def dies(writes, go):
        raise EngineUnavailable("died")

    store.trouble = dies
    with pytest.raises(EngineUnavailable):
        empty_buckets(shop.runtime(store), {0}, {})
    assert shop.head().holder
    shop.now += LEASE_SECONDS - 0.01
    assert empty_buckets(shop.runtime(), {0}, {}) == {}
    shop.now += 0.01
    assert empty_buckets(shop.runtime(), {0}, {}) == {0: set()}
    assert shop.row(A) == (5, 1)


def test_a_clock_that_is_fast_keeps_nobody_waiting():
    ahead = NOW + 3_600
    assert Head(1, "other", ahead, 0.0).is_free(NOW)
    assert Head(1, "", 0.0, ahead).is_free(NOW)
    assert not Head(1, "other", NOW + 1, 0.0).is_free(NOW)
    assert not Head(1, "", 0.0, NOW + REST_SECONDS / 2).is_free(NOW)


def test_two_who_find_a_bucket_free_at_once_do_not_both_empty_it(shop):
    shop.put(entering(A))
    emptied = []
    store = Interrupted(shop.engine, 2, lambda: emptied.append(empty_buckets(shop.runtime(), {0}, {})))
    emptied.append(empty_buckets(shop.runtime(store), {0}, {}))
    assert emptied == [{0: set()}, {}]


def test_own_deltas_are_merged_though_the_query_does_not_find_them(shop):
    name = shop.put(entering(A))
    ((_, text),) = pending_in(shop.runtime(), 0).items()
    store = Store(shop.engine)
    store.read_entries = lambda wanted: []
    empty_buckets(shop.runtime(store), {0}, {name: text})
    assert shop.row(A) == (5, 1)


def test_a_query_that_need_not_be_consistent_costs_half(shop):
    wanted = []
    store = Store(shop.engine)
    store.read_entries = lambda each: wanted.append(each) or []
    empty_buckets(shop.runtime(store), {0}, {})
    assert len(wanted) == 16
    assert not any(each.consistent for each in wanted)
    assert all(each.most == FOUND_MAX for each in wanted)


# Shared rows.


def test_rows_are_shared_at_which_somebody_met_others_and_those_of_two_deltas(shop):
    shop.put(entering(A), entering(B), met=[row_name(A)])
    empty_buckets(shop.runtime(), {0}, {})
    assert shop.shared() == {row_name(A): NOW}
    shop.now += 1
    shop.put(entering(B))
    shop.put(entering(B), entering(C))
    empty_buckets(shop.runtime(), {0}, {})
    assert shop.shared() == {row_name(A): NOW, row_name(B): NOW + 1}


def test_a_row_that_was_noted_a_moment_ago_is_not_noted_again(shop):
    for _ in range(2):
        shop.put(entering(A), met=[row_name(A)])
        empty_buckets(shop.runtime(), {0}, {})
        shop.now += SHARED_FRESH_SECONDS
    assert shop.shared() == {row_name(A): NOW}
    shop.now += 1
    shop.put(entering(A), met=[row_name(A)])
    empty_buckets(shop.runtime(), {0}, {})
    assert shop.shared() == {row_name(A): shop.now}


def test_rows_at_which_nobody_met_for_a_minute_are_noted_no_more(shop):
    shop.put(entering(A), met=[row_name(A)])
    empty_buckets(shop.runtime(), {0}, {})
    shop.now += SHARED_SECONDS + 1
    shop.put(entering(B), met=[row_name(B)])
    empty_buckets(shop.runtime(), {0}, {})
    assert shop.shared() == {row_name(B): shop.now}


def test_the_rows_that_were_met_last_are_kept():
    rows = {f"{number:08d}": NOW + number for number in range(SHARED_ROWS_MAX + 50)}
    kept = SharedRows.of({**SharedRows(0, rows).attributes(), "r": 1}).rows
    assert sorted(kept) == sorted(rows)[50:]


@pytest.mark.parametrize("text", ["ab", "ab@soon", "a@1@2"])
def test_damaged_shared_rows_are_none(text):
    assert SharedRows.of({"r": 3, "s": text}) == SharedRows(3)


# Heads.


def test_a_head_comes_back_from_its_attributes():
    head = Head(3, "ab12", NOW + 1, NOW + 2, NOW)
    assert Head.of({**head.attributes(), "r": 3}) == head
    assert Head.of(None) == Head()


def test_a_lease_is_kept_while_its_process_goes_on(shop):
    turn, other = Turn(shop.runtime(), 0), Turn(shop.runtime(), 0)
    assert turn.take()
    for _ in range(3):
        shop.now += LEASE_SECONDS * 0.75
        turn.renew()
        assert not other.take()
    turn.give_back()
    shop.now += REST_SECONDS
    assert other.take()


@pytest.mark.parametrize("damaged", [{"r": 1, "until": "soon"}, {"holder": "x"}])
def test_a_damaged_head_is_an_error_of_the_store(damaged):
    with pytest.raises(EngineError, match="The head of a bucket"):
        Head.of(damaged)


def test_shared_rows_are_read_in_one_request_by_a_process_that_met_others(shop):
    shop.put(entering(A), met=[row_name(A)])
    empty_buckets(shop.runtime(), {0}, {})
    store = Store(shop.engine)
    runtime = shop.runtime(store)
    learn_shared(runtime)
    assert store.calls == {}
    runtime.pace.sharing.met([B], shop.now, first=True)
    learn_shared(runtime)
    learn_shared(runtime)
    assert store.calls == {"read_state": 1}
    assert runtime.pace.sharing.is_shared(A)
    shop.now += 3
    learn_shared(runtime)
    assert store.calls == {"read_state": 2}


def begun(runtime):
    """The first batches of a new process."""
    note_unvisited(runtime)
    while runtime.pace.sharing.unvisited:
        empty_unvisited(runtime)


def test_a_new_process_empties_what_nobody_looked_into_for_ten_minutes(shop):
    shop.put(entering(A))
    begun(shop.runtime())
    assert shop.row(A) == (5, 1)
    shop.put(entering(A))
    begun(shop.runtime())
    assert shop.row(A) == (5, 1)
    shop.now += LOOKED_SECONDS
    begun(shop.runtime())
    assert shop.row(A) == (10, 2)


def test_a_new_process_looks_into_eight_buckets_with_each_batch(shop):
    store = Store(shop.engine)
    runtime = shop.runtime(store)
    note_unvisited(runtime)
    for batch in (8, 8, 0):
        store.calls.clear()
        empty_unvisited(runtime)
        assert store.calls["swap_state"] == 2 * batch


# Waiting.


def waiting_for(*names, rows=(A,), own=()):
    waiting = WaitingDeltas()
    text = names_text({name: frozenset(map(row_name, rows)) for name in names})
    waiting.wait_for(text, [TOTALS], [CHANGE])
    waiting.put(own)
    return waiting


CHANGE = change(None, item("ORDER#1", "ORDER"))


def test_who_waits_empties_the_bucket(shop):
    waiting = waiting_for(shop.put(entering(A)))
    assert wait_for_deltas(shop.runtime(), waiting) == []
    assert shop.row(A) == (5, 1)


def test_nobody_calls_a_store_for_nothing(shop):
    store = Store(shop.engine)
    assert wait_for_deltas(shop.runtime(store), WaitingDeltas()) == []
    assert store.calls == {}


def test_deltas_of_others_are_asked_for_as_of_one_moment_and_own_ones_one_by_one(shop):
    mine, theirs = shop.put(entering(A)), shop.put(entering(A))
    own = SwapText(delta_key("shop", mine), pending_in(shop.runtime(), 0)[mine], None)
    shop.move()
    for names, calls in (((mine,), {"read_state": 1}), ((theirs,), {"read_together": 1})):
        store = Store(shop.engine)
        wait_for_deltas(shop.runtime(store), waiting_for(*names, own=[own]))
        assert store.calls == calls


def test_own_deltas_are_waited_for_before_they_are_looked_for(shop):
    mine = shop.put(entering(A))
    own = SwapText(delta_key("shop", mine), pending_in(shop.runtime(), 0)[mine], None)
    shop.move()
    runtime = shop.runtime()
    wait_for_deltas(runtime, waiting_for(mine, own=[own]))
    seconds = runtime.pace.sharing.wait_seconds
    assert (1 - JITTER) * seconds <= shop.now - NOW <= (1 + JITTER) * seconds


def test_deltas_that_are_pending_at_the_deadline_are_reported(shop):
    runtime = shop.runtime().until(lambda: 0.0)
    [failed] = wait_for_deltas(runtime, waiting_for(shop.put(entering(A))))
    assert (failed.change, failed.route) == (CHANGE, TOTALS)
    assert isinstance(failed.error, EngineUnavailable)


def test_what_a_row_refuses_is_reported_to_those_who_add_to_it_and_no_others(shop):
    name = shop.put(entering(A), entering(B))
    store = Store(shop.engine)
    store.trouble = at(A, VALIDATION)
    waiting = waiting_for(name, rows=(A,))
    waiting.wait_for(names_text({name: frozenset([row_name(B)])}), [TOTALS], [CHANGE])
    [failed] = wait_for_deltas(shop.runtime(store), waiting)
    assert isinstance(failed.error, HandlerError)
    assert "ValidationError" in str(failed.error)
    assert shop.row(B) == (5, 1)


def test_what_a_row_refused_is_tried_again_once_a_minute(shop):
    name = shop.put(entering(A), refused=RowRefusal("no", int(NOW)))
    shop.now += TRIED_AGAIN_SECONDS - 1
    [failed] = wait_for_deltas(shop.runtime(), waiting_for(name))
    assert str(failed.error) == "no"
    shop.now += 1
    assert wait_for_deltas(shop.runtime(), waiting_for(name)) == []
    assert shop.row(A) == (5, 1)


def test_what_a_row_refuses_still_is_tried_once_by_each_piece_of_work(shop):
    name = shop.put(entering(A), refused=RowRefusal("no", 0))
    store = Store(shop.engine)
    store.trouble = at(A, VALIDATION)
    waiting = waiting_for(name)
    assert len(wait_for_deltas(shop.runtime(store), waiting)) == 1
    sent = len(store.sent)
    shop.now += 2 * TRIED_AGAIN_SECONDS
    assert len(wait_for_deltas(shop.runtime(store), waiting)) == 1
    assert len(store.sent) == sent


def test_a_person_who_repairs_has_what_a_row_refused_tried_at_once(shop):
    waiting = waiting_for(shop.put(entering(A), refused=RowRefusal("no", int(NOW))))
    waiting.tries_all = True
    assert wait_for_deltas(shop.runtime(), waiting) == []
    assert shop.row(A) == (5, 1)


def test_who_waits_learns_which_rows_somebody_removed(shop):
    waiting = waiting_for(shop.put(leaving(A)))
    wait_for_deltas(shop.runtime(), waiting)
    assert waiting.lost == {("totals", A)}


def test_failures_are_of_deltas_that_are_not_gone(shop):
    waiting = waiting_for("a" * 18, "b" * 18)
    waiting.gone.add("a" * 18)
    waiting.refused["b" * 18] = Additions([entering(B)]).delta((), ())._replace(refused=RowRefusal("no", 0))
    assert waiting.failures(EngineUnavailable("later")) == []  # what refuses is another row than theirs
    waiting.refused.clear()
    assert [str(failed.error) for failed in waiting.failures(EngineUnavailable("later"))] == ["later"]


# Steps of items whose last step waits.


def ledger_item(names, rows=(A,), text=""):
    found = LedgerItem.of(
        {
            "r": 1,
            "totals.v": "1",
            "totals.s": text,
            "totals.p": names_text({name: frozenset(map(row_name, rows)) for name in names}),
        }
    )
    assert found.waits
    return found


def ready(found, steps, waiting):
    item, faults = ready_by_handler(found, steps, waiting)
    for fault in faults.values():
        raise fault
    return item


def step(*rows):
    return Step(TOTALS, "2", None, {row: RowContribution({"total": 1}, None, "") for row in rows})


def test_what_a_ledger_item_names_is_merged_before_its_next_step(shop):
    found, waiting = ledger_item([shop.put(entering(A))]), WaitingDeltas()
    wait_for_items(shop.runtime(), waiting, [found])
    assert shop.row(A) == (5, 1)
    assert ready(found, [step(A)], waiting).contributions["totals"].deltas == ""


def test_a_step_goes_on_naming_what_another_row_than_its_own_refuses(shop):
    name = shop.put(entering(A), refused=RowRefusal("no", int(NOW)))
    found, waiting = ledger_item([name], rows=(A, C)), WaitingDeltas()
    wait_for_items(shop.runtime(), waiting, [found])
    made = ready(found, [step(B)], waiting)
    assert made.contributions["totals"].deltas == names_text({name: frozenset([row_name(A)])})


def test_a_step_that_moves_a_row_waits_for_what_this_row_refuses(shop):
    found = ledger_item([shop.put(entering(A), refused=RowRefusal("the row is full", int(NOW)))])
    waiting = WaitingDeltas()
    wait_for_items(shop.runtime(), waiting, [found])
    with pytest.raises(HandlerError, match="the row is full"):
        ready(found, [step(A)], waiting)


def test_who_takes_an_item_out_of_a_row_that_refuses_it_waits_too(shop):
    text = stored_text({A: RowContribution({"total": 5}, None, "")})
    found = ledger_item([shop.put(entering(A), refused=RowRefusal("the row is full", int(NOW)))], text=text)
    waiting = WaitingDeltas()
    wait_for_items(shop.runtime(), waiting, [found])
    with pytest.raises(HandlerError, match="the row is full"):
        ready(found, [step()], waiting)


def test_a_damaged_delta_fails_those_who_wait_for_it(shop):
    name = shop.put(entering(A))
    shop.engine.state[delta_key("shop", name)]["s"] = "damaged"
    [failed] = wait_for_deltas(shop.runtime(), waiting_for(name))
    assert "A delta" in str(failed.error)


def test_a_refusal_at_a_delta_means_that_others_moved_it(shop):
    shop.put(entering(A))
    store = Store(shop.engine)
    store.trouble = lambda writes, go: Refused((Reason(CONDITION), *(None,) * (len(writes) - 1)))
    shop.move(store)
    assert len(store.sent) == 1
    assert shop.row(A) is None
