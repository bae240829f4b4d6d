"""A transaction that meets another one at a row: what it adds goes through deltas, and what that costs."""

from collections import Counter
from unittest.mock import patch

import pytest

from streamfold import Add, App, Count, Key, Max, Router, Row, Sum
from streamfold.batch import manifest
from streamfold.batch.manifest import CLOSED, DELTAS, DELTAS_TARGET, read_manifest
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable, ManifestError
from streamfold.ledger.deltas import names_in
from streamfold.ledger.state_keys import ledger_key, row_name
from streamfold.records.values import decode
from streamfold.runtime import DELTAS_AFTER_SECONDS, Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.writes.guarded import CONFLICT, VALIDATION, AddRow, LedgerWrite, Reason, Refused, SwapText
from tests.commit.test_buckets import Store
from tests.helpers.source import Source

ORDER, CUSTOMER, ALL = Key("ORDER#{o}", "ORDER"), Key("CUSTOMER#{c}", "TOTAL"), Key("ALL", "TOTAL")
BEST, SEEN = Key("BEST#{c}", "TOTAL"), Key("SEEN#{c}", "TOTAL")
EVERYTHING, A = ("main", "ALL", "TOTAL"), ("main", "CUSTOMER#a", "TOTAL")
NOW = 1_800_000_000.0


def application():
    router = Router()

    @router.view(ORDER, into=CUSTOMER)
    def totals(order):
        yield Row(c=order["c"], total=Sum(order["n"]), orders=Count())

    @router.view(ORDER, into=ALL)
    def everything(order):
        yield Row(total=Sum(order["n"]))

    @router.view(ORDER, into=BEST)
    def best(order):
        if order.get("best"):
            yield Row(c=order["c"], best=Max(order["n"]))

    @router.on(ORDER, into=SEEN)
    def seen(change):
        if change.event == "INSERT" and change.new.get("seen"):
            yield Add(c=change.new["c"], times=1)

    return App("shop", routers=[router])


APP = application()


class Process:
    """A process of the application."""

    def __init__(self, shop, store):
        self.shop, self.store = shop, store
        self.known, self.pace = Knowledge(), SendingPace()

    def deliver(self, *records, trouble=None, **more):
        """Delivers a batch; returns the errors."""
        self.store.trouble = trouble
        self.store.calls.clear()
        self.store.sent.clear()
        self.pace.unsure = False
        runtime = Runtime(
            APP,
            self.store,
            Settings(),
            clock=lambda: self.shop.now,
            pause=self.shop.pause,
            known=self.known,
            pace=self.pace,
            **more,
        )
        return [failure.error for failure in process_event(runtime, list(records)).failures]

    @property
    def puts(self):
        """The deltas that were put by the last batch, each with its rows."""
        writes = [write for writes in self.store.sent for write in writes if isinstance(write, SwapText)]
        return {write.key.sk for write in writes}


class Shop:
    """A store in which deltas may be put, and the source that feeds processes."""

    def __init__(self, *, is_open=True, is_local=False):
        self.now = NOW
        self.engine = MemoryEngine(APP.tables.values())
        self.source = Source()
        self.is_local = is_local
        self.first = self.process()
        if is_open:
            self.first.deliver(self.order(0), trouble=at(1, EVERYTHING))
            self.now += DELTAS_AFTER_SECONDS
            self.first = self.process()
            self.first.deliver(self.order(0, n=0))

    def process(self):
        store = Store(self.engine)
        store.is_local = self.is_local
        return Process(self, store)

    def pause(self, seconds):
        self.now += max(seconds, 0.1)

    def order(self, number, c="a", n=1, **more):
        return self.source.put(f"ORDER#{number}", "ORDER", c=c, n=n, **more)

    def amount(self, row, name="total"):
        return int(decode(self.engine.rows[row][name]))

    def manifest(self):
        return read_manifest("shop", self.engine)

    def named(self, number, handler="everything"):
        """The deltas that a ledger item names."""
        key = ledger_key("shop", "main", ("main", f"ORDER#{number}", "ORDER"))
        return names_in(self.engine.state[key].get(f"{handler}.p", ""))

    def pending(self):
        return [key for key in self.engine.state if key.pk.startswith("delta#")]


def at(times, *keys, code=CONFLICT[0]):
    """Refuses a transaction that writes one of these rows so many times, with a conflict at them."""
    left = [times]

    def trouble(writes, go):
        hit = [write.key in keys for write in writes]
        if not any(hit) or left[0] == 0:
            return go()
        left[0] -= 1
        return Refused(tuple(Reason(code) if each else None for each in hit))

    return trouble


def at_the_ledger(times, code=CONFLICT[0]):
    left = [times]

    def trouble(writes, go):
        if not isinstance(writes[0], LedgerWrite) or left[0] == 0:
            return go()
        left[0] -= 1
        return Refused((Reason(code), *(None,) * (len(writes) - 1)))

    return trouble


@pytest.fixture
def shop():
    return Shop()


def added(writes):
    return {write.key for write in writes if isinstance(write, AddRow)}


def test_a_conflict_at_a_row_has_what_is_added_to_it_go_through_a_delta(shop):
    assert shop.first.deliver(shop.order(1), trouble=at(1, EVERYTHING)) == []
    refused, sent, moved = shop.first.store.sent
    assert added(refused) == {A, EVERYTHING}
    assert added(sent) == {A}  # at this row it met nobody
    assert added(moved) == {EVERYTHING}
    assert (shop.amount(EVERYTHING), shop.amount(A), shop.pending()) == (1, 1, [])
    assert set(shop.named(1)) == shop.first.puts
    assert list(shop.named(1).values()) == [{row_name(EVERYTHING)}]


def test_the_next_batch_of_a_process_that_met_others_adds_through_deltas_at_once(shop):
    shop.first.deliver(shop.order(1), shop.order(2), trouble=at(1, EVERYTHING))
    shop.first.pace.sharing.all = False
    assert shop.first.deliver(shop.order(3)) == []
    assert len(shop.first.puts) >= 1
    assert shop.amount(EVERYTHING) == 3


def test_a_second_conflict_has_all_additions_go_through_deltas(shop):
    meets = iter([at(1, EVERYTHING), at(1, A)])

    def trouble(writes, go):
        return next(meets, lambda *_: go())(writes, go)

    assert shop.first.deliver(shop.order(1), trouble=trouble) == []
    assert [added(writes) for writes in shop.first.store.sent[:3]] == [{A, EVERYTHING}, {A}, set()]
    assert (shop.amount(EVERYTHING), shop.amount(A), shop.pending()) == (1, 1, [])


def test_a_conflict_at_a_ledger_item_makes_no_row_shared(shop):
    assert shop.first.deliver(shop.order(1), trouble=at_the_ledger(2)) == []
    assert shop.first.puts == set()
    assert not shop.first.pace.sharing
    assert len(shop.first.store.sent) == 3


def test_a_throttled_row_is_no_shared_one(shop):
    assert shop.first.deliver(shop.order(1), trouble=at(1, EVERYTHING, code=CONFLICT[1])) == []
    assert shop.first.puts == set()
    assert not shop.first.pace.sharing


def test_a_row_of_entries_is_no_shared_one(shop):
    best = ("main", "BEST#a", "TOTAL")
    assert shop.first.deliver(shop.order(1, best=True), trouble=at(1, best)) == []
    assert shop.first.puts == set()
    assert not shop.first.pace.sharing


def test_a_conflict_at_a_row_of_entries_beside_a_shared_one_is_met_there_alone(shop):
    best = ("main", "BEST#a", "TOTAL")
    assert shop.first.deliver(shop.order(1, best=True), trouble=at(1, best, EVERYTHING)) == []
    assert added(shop.first.store.sent[1]) == {A, best}
    assert (shop.amount(EVERYTHING), shop.amount(best, "best")) == (1, 1)


def test_an_addition_of_a_change_goes_through_a_delta_that_its_claim_names(shop):
    seen = ("main", "SEEN#a", "TOTAL")
    record = shop.order(1, seen=True)
    assert shop.first.deliver(record, trouble=at(1, seen)) == []
    assert (shop.amount(seen, "times"), shop.pending()) == (1, [])
    claims = [item for key, item in shop.engine.state.items() if key.pk.startswith("claim#") and "p" in item]
    assert [set(names_in(claim["p"])) for claim in claims] == [shop.first.puts]
    assert shop.first.deliver(record) == []
    assert shop.amount(seen, "times") == 1


def test_a_store_of_this_machine_meets_nobody():
    shop = Shop(is_open=False, is_local=True)
    assert shop.first.deliver(shop.order(1), trouble=at(2, EVERYTHING)) == []
    assert (shop.first.puts, shop.manifest().deltas) == (set(), None)
    assert not shop.first.pace.sharing


# Since when deltas are put.


def test_the_first_process_that_meets_another_one_notes_it_and_puts_nothing_yet():
    shop = Shop(is_open=False)
    assert shop.first.deliver(shop.order(1), trouble=at(2, EVERYTHING)) == []
    assert (shop.first.puts, shop.amount(EVERYTHING)) == (set(), 1)
    mark = shop.manifest().deltas
    assert mark.since == shop.now
    assert not mark.closed
    entries = shop.manifest().handlers
    assert {name for name, entry in entries.items() if DELTAS_TARGET in entry["targets"]} == set(entries)


@pytest.mark.parametrize(("after", "puts"), [(DELTAS_AFTER_SECONDS - 60, False), (DELTAS_AFTER_SECONDS, True)])
def test_deltas_are_put_a_quarter_of_an_hour_later(after, puts):
    shop = Shop(is_open=False)
    shop.first.deliver(shop.order(1), trouble=at(1, EVERYTHING))
    shop.now += after
    assert shop.first.deliver(shop.order(2), trouble=at(1, EVERYTHING)) == []
    assert bool(shop.first.puts) is puts
    assert shop.amount(EVERYTHING) == 2


def test_no_deltas_are_put_while_the_manifest_says_that_none_may_be(shop):
    key = next(key for key in shop.engine.state if key.pk.startswith("manifest#"))
    stored = shop.engine.state[key]
    assert DELTAS in stored["handlers"]
    shop.engine.state[key] = {
        **stored,
        "r": stored["r"] + 1,
        "handlers": stored["handlers"].replace(f'"{DELTAS}"', f'"{CLOSED}": true, "{DELTAS}"'),
    }
    assert shop.first.deliver(shop.order(1), trouble=at(1, EVERYTHING)) == []
    assert shop.first.puts == set()
    assert shop.manifest().deltas.closed


def test_code_that_knows_no_deltas_stops(shop):
    """Such code knows no target of this name: what a stored entry has more than its own is refused."""
    with patch.object(manifest, "DELTAS_TARGET", "another"), pytest.raises(ManifestError, match="targets"):
        shop.process().deliver(shop.order(1))


def test_code_that_knows_deltas_keeps_the_mark_that_it_finds(shop):
    before = shop.manifest().deltas
    other = shop.process()
    other.deliver(shop.order(1))
    assert shop.manifest().deltas == before == other.known.deltas


# Items that change afterwards: what they cost.


def costs(process, *records):
    assert process.deliver(*records) == []
    return Counter(process.store.calls)


def test_an_item_that_changes_in_the_same_process_costs_what_any_change_does(shop):
    shop.first.deliver(shop.order(1), shop.order(2), trouble=at(1, EVERYTHING))
    assert shop.named(1)
    shop.first.pace = SendingPace()
    plain = shop.process()
    plain.deliver(shop.order(9))
    usual = costs(plain, shop.order(9, n=2))
    assert costs(shop.first, shop.order(1, n=2)) == usual == {"read_state": 1, "transact": 1}
    assert shop.named(1) == {}
    assert shop.amount(EVERYTHING) == 2 + 1 + 2


def test_an_item_that_changes_in_another_process_costs_one_transaction_of_reads_more(shop):
    shop.first.deliver(shop.order(1), trouble=at(1, EVERYTHING))
    other = shop.process()
    other.deliver(shop.order(9))
    assert costs(other, shop.order(1, n=2)) == {
        "read_state": 1,  # the manifest
        "transact": 2,  # the first one is refused, and shows the ledger item
        "read_together": 1,
    }
    assert shop.amount(EVERYTHING) == 2 + 1
    assert costs(other, shop.order(1, n=3)) == {"read_state": 1, "transact": 1}


def test_items_that_change_in_another_process_are_asked_for_together(shop):
    numbers = range(1, 31)
    shop.first.deliver(*map(shop.order, numbers), trouble=at(1, EVERYTHING))
    other = shop.process()
    other.deliver(shop.order(99))
    found = costs(other, *(shop.order(number, n=2) for number in numbers))
    assert found["read_together"] == 1
    assert shop.amount(EVERYTHING) == 60 + 1


def test_a_process_that_meets_nobody_calls_the_store_as_if_there_were_no_deltas():
    shops = Shop(), Shop(is_open=False)
    found = []
    for shop in shops:
        process = shop.process()
        process.deliver(shop.order(1))
        found.append(costs(process, *map(shop.order, range(1, 200))))
    assert found[0] == found[1]


# Who comes after a process that put deltas and died.


def dying(process, *records):
    """Delivers records through a delta, and stops before anybody empties it."""
    process.pace.sharing.forced = lambda row: row == EVERYTHING
    errors = process.deliver(*records, seconds_left=lambda: 0.0 if process.puts else 100.0)
    assert {type(error) for error in errors} == {EngineUnavailable}
    process.pace.sharing.forced = None


def test_a_record_whose_delta_is_pending_is_not_acknowledged(shop):
    dying(shop.first, shop.order(1))
    assert len(shop.pending()) == 1
    assert shop.amount(EVERYTHING) == 0


@pytest.mark.parametrize("unsure", [False, True])
def test_a_redelivery_moves_what_its_ledger_items_name(shop, unsure):
    record = shop.order(1)
    dying(shop.first, record)
    other = shop.process()
    other.deliver(shop.order(9, c="b"))
    other.pace.unsure = unsure
    assert other.deliver(record) == []
    assert (shop.amount(EVERYTHING), shop.pending()) == (2, [])


def test_a_step_waits_for_the_delta_of_the_step_before_it(shop):
    record = shop.order(1, n=5)
    dying(shop.first, record)
    other = shop.process()
    other.deliver(shop.order(9, c="b"))
    assert other.deliver(shop.source.remove("ORDER#1", "ORDER")) == []
    assert (shop.amount(EVERYTHING), shop.pending()) == (1, [])


def test_a_process_whose_delta_is_pending_takes_no_step_over_it(shop):
    dying(shop.first, shop.order(1, n=5))
    assert shop.first.deliver(shop.source.remove("ORDER#1", "ORDER")) == []
    assert shop.pending() == []
    assert shop.amount(EVERYTHING) == 0


def test_a_step_that_moves_no_row_is_reported_while_its_row_refuses_what_the_step_before_added(shop):
    """It is acknowledged once the row has what its ledger item says."""
    shop.first.pace.sharing.forced = lambda row: row == EVERYTHING
    refuses = at(100, EVERYTHING, code=VALIDATION)
    [reported] = shop.first.deliver(shop.order(1, n=5), trouble=refuses)
    assert "ValidationError" in str(reported)
    again = shop.order(1, n=5, note="x")
    assert {str(error) for error in shop.first.deliver(again, trouble=refuses)} == {str(reported)}
    shop.now += 60
    assert shop.first.deliver(again) == []
    assert shop.amount(EVERYTHING) == 5


def test_a_redelivered_change_moves_what_its_claim_names(shop):
    seen, record = ("main", "SEEN#a", "TOTAL"), shop.order(1, seen=True)
    shop.first.pace.sharing.forced = lambda row: row == seen
    process = shop.first
    assert process.deliver(record, seconds_left=lambda: 0.0 if process.puts else 100.0)
    assert seen not in shop.engine.rows
    assert shop.process().deliver(record) == []
    assert (shop.amount(seen, "times"), shop.pending()) == (1, [])


def test_a_new_process_moves_what_nobody_else_came_for(shop):
    dying(shop.first, shop.order(1))
    shop.now += 1_000
    process = shop.process()
    for number in (8, 9):  # half of the buckets with each batch
        process.deliver(shop.order(number, c="b"))
    assert (shop.amount(EVERYTHING), shop.pending()) == (3, [])
