"""Steps whose additions a row refuses are taken back, or replaced by newer ones: nobody else waits for the row."""

import pytest

from streamfold import App, Count, Key, Router, Row, Sum, Table
from streamfold.batch.process import process_event
from streamfold.commit.buckets import WaitingDeltas, wait_for_deltas
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable, HandlerError
from streamfold.failures.repair import Repair
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.deltas import Delta, is_delta
from streamfold.ledger.state_keys import ledger_key
from streamfold.proofs.invariants import InvariantBroken, Invariants
from streamfold.records.values import decode
from streamfold.runtime import Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.writes.guarded import VALIDATION, CorrectRow, PutState, Reason, StateKey, SwapText
from tests.helpers.records import change
from tests.helpers.source import Source

NOW = 1_800_000_000.0
OTHER = Table("other")
ITEM, TOTAL, SEEN = Key("ITEM#{i}", "ITEM"), Key("TOTAL#{g}", "TOTAL"), Key("SEEN#{g}", "TOTAL", table=OTHER)
MISTAKEN = 9 * 10**37


def application():
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def totals(item):
        for group in item["groups"]:
            yield Row(g=group, amount=Sum(item["n"]), items=Count())

    @router.view(ITEM, into=SEEN)
    def seen(item):
        yield Row(g="all", times=Sum(item["m"]))

    return App("shop", routers=[router])


APP = application()


class Store(MemoryEngine):
    is_local = False
    row = None  # takes no write
    table = None  # is missing
    dies = False  # the process that merges does
    checked = staticmethod(lambda: None)  # is called after each transaction

    def transact(self, writes, expires_at):
        if any(not isinstance(write.key, StateKey) and write.key[0] == self.table for write in writes):
            raise EngineError(f"Table {self.table} is missing.")
        merges = any(isinstance(write.key, StateKey) and is_delta(write.key) for write in writes)
        puts = any(isinstance(write, SwapText) and write.expected is None for write in writes)
        if self.dies and (merges or isinstance(writes[0], CorrectRow)) and not puts:
            raise KeyboardInterrupt
        refused = super().transact(writes, expires_at)
        self.checked()
        return refused

    def _try(self, write, *more):
        return Reason(VALIDATION, message="no") if write.key == self.row else super()._try(write, *more)


class Shop:
    def __init__(self):
        self.now, self.source = NOW, Source()
        self.store = Store(APP.tables.values(), APP.chains)
        self.store.source_tables.add("main")
        self.begin()

    def begin(self):
        """A new process."""
        self.known, self.pace = Knowledge(), SendingPace()
        self.pace.sharing.forced = lambda row: True

    def runtime(self):
        return Runtime(
            APP, self.store, Settings(), clock=lambda: self.now, pause=self.pause, known=self.known, pace=self.pace
        )

    def pause(self, seconds):
        self.now += max(seconds, 0.1)

    def deliver(self, *records):
        """Delivers a batch; returns who failed, and how."""
        failures = process_event(self.runtime(), list(records)).failures
        return sorted((each.handler, each.item.split("#")[1][0], type(each.error)) for each in failures)

    def deliver_and_die(self, *records):
        """Delivers records to a process that dies before it merges."""
        self.store.dies = True
        with pytest.raises(KeyboardInterrupt):
            self.deliver(*records)
        self.store.dies = False
        self.now += 60
        self.begin()

    def item(self, number, n=1, groups=("a",), m=1):
        return self.source.put(f"ITEM#{number}", "ITEM", n=n, groups=[*groups], m=m)

    def amounts(self):
        rows = {key[1]: decode({"M": row}) for key, row in self.store.rows.items()}
        return {name: row.get("amount", row.get("times")) for name, row in rows.items()}

    def deltas(self):
        return {key: Delta.of(item["s"]) for key, item in self.store.state.items() if is_delta(key)}

    def ledger(self, number):
        return LedgerItem.of(self.store.state.get(ledger_key("shop", "main", ("main", f"ITEM#{number}", "ITEM"))))


@pytest.fixture
def shop():
    return Shop()


def test_an_item_of_the_same_delta_is_counted_though_another_one_has_a_mistaken_amount(shop):
    assert shop.deliver(shop.item(1, MISTAKEN)) == []
    assert shop.deliver(shop.item(2, 5), shop.item(3, MISTAKEN), shop.item(4, 7)) == [("totals", "3", HandlerError)]
    assert shop.amounts() == {"TOTAL#a": MISTAKEN + 12, "SEEN#all": 4}
    assert shop.deltas() == {}


def test_a_step_is_taken_back_from_all_rows_that_it_moved(shop):
    assert shop.deliver(shop.item(1, 5, "ab")) == []
    shop.store.row = ("main", "TOTAL#c", "TOTAL")
    assert shop.deliver(shop.item(1, 6, "ac")) == [("totals", "1", HandlerError)]
    assert shop.amounts() == {"TOTAL#a": 5, "TOTAL#b": 5, "SEEN#all": 1}
    assert shop.deltas() == {}


def test_a_row_that_the_way_back_leaves_empty_is_removed(shop):
    shop.store.row = ("main", "TOTAL#c", "TOTAL")
    assert shop.deliver(shop.item(1, 6, "bc")) == [("totals", "1", HandlerError)]
    assert shop.amounts() == {"SEEN#all": 1}


def test_a_redelivery_moves_what_the_row_refuses_alone(shop):
    moved = shop.item(1, 6, "bc")
    shop.deliver_and_die(moved)
    shop.store.row = ("main", "TOTAL#c", "TOTAL")
    assert shop.deliver(moved) == [("totals", "1", HandlerError)]
    assert shop.amounts()["TOTAL#b"] == 6
    shop.store.row = None
    assert shop.deliver(moved) == []
    assert shop.amounts() == {"TOTAL#b": 6, "TOTAL#c": 6, "SEEN#all": 1}


@pytest.mark.parametrize("handlers", [("totals",), ("totals", "seen")])
def test_a_newer_contribution_replaces_what_a_process_left_that_died(shop, handlers):
    assert shop.deliver(shop.item(1, MISTAKEN)) == []
    shop.deliver_and_die(shop.item(2, MISTAKEN), shop.item(3, 1))
    m = 1 if handlers == ("totals",) else 8
    assert shop.deliver(shop.item(2, 20, m=m)) == []
    assert shop.amounts() == {"TOTAL#a": MISTAKEN + 20, "SEEN#all": 2 + m}
    assert [each.amounts["amount"] for delta in shop.deltas().values() for each in delta.additions] == [1]


def test_a_removal_replaces_it_too(shop):
    assert shop.deliver(shop.item(1, MISTAKEN)) == []
    shop.deliver_and_die(shop.item(2, MISTAKEN))
    assert shop.deliver(shop.source.remove("ITEM#2", "ITEM")) == []
    assert shop.amounts() == {"TOTAL#a": MISTAKEN, "SEEN#all": 1}
    assert shop.deltas() == {}


def test_a_redelivery_is_reported_with_the_class_of_the_fault_until_it_is_over(shop):
    record = shop.item(1)
    shop.deliver_and_die(record)
    shop.store.table = "other"
    for _ in range(3):
        assert shop.deliver(record) == [("seen", "1", EngineError)]
    assert shop.amounts() == {"TOTAL#a": 1}
    shop.store.table = None
    assert shop.deliver(record) == []
    assert shop.amounts() == {"TOTAL#a": 1, "SEEN#all": 1}
    assert shop.deltas() == {}


def test_an_older_record_replaces_nothing(shop):
    older, newer = shop.item(1, 5), shop.item(1, 6)
    shop.deliver_and_die(older, newer)
    shop.store.row = ("main", "TOTAL#a", "TOTAL")
    version = shop.ledger(1).contributions["totals"].version
    shop.deliver(older)
    assert shop.ledger(1).contributions["totals"].version == version


def test_a_repair_replaces_what_a_row_refuses(shop):
    assert shop.deliver(shop.item(1, MISTAKEN)) == []
    shop.deliver_and_die(shop.item(2, MISTAKEN))
    shop.source.put("ITEM#2", "ITEM", n=4, groups=["a"], m=1)
    key = ("main", "ITEM#2", "ITEM")
    image = {
        "n": {"N": "4"},
        "m": {"N": "1"},
        "groups": {"L": [{"S": "a"}]},
        "PK": {"S": "ITEM#2"},
        "SK": {"S": "ITEM"},
    }
    shop.store.put_sources([(key, image, "9")])
    version = shop.ledger(2).contributions["totals"].version
    assert [each.error for each in Repair(shop.runtime()).item(key)] == [None, None]
    assert shop.amounts() == {"TOTAL#a": MISTAKEN + 4, "SEEN#all": 2}
    assert (shop.ledger(2).contributions["totals"].version, shop.deltas()) == (version, {})


def test_a_damaged_delta_concerns_its_own_handler_alone(shop):
    shop.deliver_and_die(shop.item(1))
    (damaged,) = [key for key, delta in shop.deltas().items() if "TOTAL#a" in str(delta)]
    shop.store.transact([PutState(damaged, "{}")], 0)
    assert shop.deliver(shop.item(1, m=5)) == [("totals", "1", HandlerError)]
    assert shop.amounts() == {"SEEN#all": 5}


def test_damaged_names_of_deltas_concern_their_own_handler_alone(shop):
    assert shop.deliver(shop.item(1)) == []
    key = ledger_key("shop", "main", ("main", "ITEM#1", "ITEM"))
    item = shop.store.state[key]
    shop.store.swap_state(key, {**item, "totals.p": "zz"}, item["r"])
    shop.begin()
    assert shop.deliver(shop.item(1, n=3, m=5)) == [("totals", "1", EngineError)]
    assert shop.amounts() == {"TOTAL#a": 1, "SEEN#all": 5}


def test_a_step_that_its_process_took_back_is_not_taken_for_done(shop):
    assert shop.deliver(shop.item(1)) == []
    key = ledger_key("shop", "main", ("main", "ITEM#1", "ITEM"))
    found, waiting = shop.ledger(1), WaitingDeltas()
    totals = next(route for route in APP.routes if route.name == "totals")
    waiting.wait_for_item(found, [totals], [change(None, {"PK": "ITEM#1", "SK": "ITEM"}, 1)], key)
    assert wait_for_deltas(shop.runtime(), waiting) == []
    item = shop.store.state[key]
    shop.store.swap_state(key, {**item, "totals.v": "00/"}, item["r"])
    (failed,) = wait_for_deltas(shop.runtime(), waiting_again(found, totals, key))
    assert type(failed.error) is EngineUnavailable


def waiting_again(found, route, key):
    waiting = WaitingDeltas()
    waiting.wait_for_item(found, [route], [change(None, {"PK": "ITEM#1", "SK": "ITEM"}, 1)], key)
    return waiting


@pytest.mark.parametrize("groups", ["c", "ac"])
def test_the_proof_takes_a_step_back_for_no_broken_invariant(shop, groups):
    shop.store.checked = Invariants(APP, shop.store).check
    assert shop.deliver(shop.item(1, 5, "ab")) == []
    shop.store.row = ("main", "TOTAL#c", "TOTAL")
    assert shop.deliver(shop.item(1, 6, groups)) == [("totals", "1", HandlerError)]
    assert shop.amounts() == {"TOTAL#a": 5, "TOTAL#b": 5, "SEEN#all": 1}


@pytest.mark.parametrize("row", [None, ("main", "TOTAL#c", "TOTAL")])
def test_the_proof_notices_a_version_that_falls_without_its_delta_or_to_another_version(shop, row):
    invariants, key = Invariants(APP, shop.store), ledger_key("shop", "main", ("main", "ITEM#1", "ITEM"))
    shop.deliver_and_die(shop.item(1, 5, "c"))
    if row:  # the delta is refused, and stays
        shop.store.row = row
        wait_for_refusal(shop, key)
    invariants.check()
    item = shop.store.state[key]
    shop.store.swap_state(key, {**item, "totals.v": "00/", "totals.p": ""}, item["r"])
    with pytest.raises(InvariantBroken, match=r"version totals.v of .* fell"):
        invariants.check()


def wait_for_refusal(shop, key):
    waiting, totals = WaitingDeltas(), next(route for route in APP.routes if route.name == "totals")
    waiting.wait_for_item(shop.ledger(1), [totals], [change(None, {"PK": "ITEM#1", "SK": "ITEM"}, 1)], key)
    assert [type(each.error) for each in wait_for_deltas(shop.runtime(), waiting)] == [HandlerError]
