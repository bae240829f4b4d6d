"""Transactions in flight together: no two share an item, and the changes of an ordered item follow each other."""

import threading
import time
from contextlib import closing

import pytest

from streamfold import Add, App, Count, Key, Put, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.commit.plan import most_shared_first, pack
from streamfold.commit.transactions import Several, in_slots, read_state, slices
from streamfold.engines import MemoryEngine
from streamfold.errors import Contended, EngineUnavailable
from streamfold.ledger.state_keys import claim_key
from streamfold.proofs.faults import Choices, ChosenSlots, Scripted
from streamfold.runtime import ACTIONS_MIN, CallSlots, Runtime, SendingPace, Threads
from streamfold.settings import Settings
from streamfold.writes.guarded import CONFLICT, Claim, Reason, Refused
from tests.commit.test_plan import ONE, claim, ledger, put, shared
from tests.helpers.model import model, stored
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
CITY = Key("CITY#{city}", "TOTAL")
DAY = Key("DAY#{day}", "TOTAL")
LAST = Key("LAST#{order_id}", "ROW")
TOLD = Key("TOLD#{number:06d}", "ROW")


def shop():
    router = Router()

    @router.view(ORDER, into=CITY)
    def by_city(order):
        yield Row(city=order["city"], orders=Count(), total=Sum(order["total"]))

    @router.view(ORDER, into=DAY)
    def by_day(order):
        yield Row(day=order["day"], orders=Count())

    @router.on(ORDER, into=[LAST, Key("SEEN#{city}", "ROW")])
    def seen(change):
        if change.event != "REMOVE":
            yield Put(LAST, total=change.new["total"])
            yield Add(Key("SEEN#{city}", "ROW"), city=change.new["city"], times=1)

    @router.on(ORDER, into=TOLD)
    def told(change):
        yield Add(number=(change.new or change.old)["total"], times=1)

    return App("shop", routers=[router])


class Busy(MemoryEngine):
    """A store whose transactions take a moment, and are refused where they meet, as DynamoDB's are."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lock = threading.Lock()
        self.flying = []
        self.together = 0
        self.sent = []
        self.met = 0
        self.trouble = lambda writes: None

    def transact(self, writes, expires_at):
        keys = {write.key for write in writes}
        with self.lock:
            self.sent.append(writes)
            if any(keys & others for others in self.flying):
                self.met += 1
                return Refused((Reason(CONFLICT[0]),) * len(writes))
            self.flying.append(keys)
            self.together = max(self.together, len(self.flying))
        time.sleep(0.002)
        with self.lock:
            self.flying.remove(keys)
            return self.trouble(writes) or super().transact(writes, expires_at)


@pytest.fixture
def app():
    return shop()


@pytest.fixture
def engine(app):
    return Busy(app.tables.values(), app.chains)


@pytest.fixture
def threads():
    with closing(Threads(8)) as threads:
        yield threads


def orders(count, cities, source=None, total=1):
    source = source or Source()
    return [
        source.put(f"ORDER#{number}", city=f"c{number % cities}", day=f"d{number % 3}", total=total)
        for number in range(count)
    ]


def seasoned():
    """The pace of a process that has done a batch before."""
    pace = SendingPace()
    pace.ended(again=False)
    return pace


def deliver(app, engine, records, lanes, pace=None, actions=10, **more):
    run = Runtime(
        app, engine, Settings(chunk_actions=actions), slots=lanes, pace=pace or seasoned(), pause=lambda _: None, **more
    )
    return process_event(run, records)


def test_a_batch_in_many_threads_never_meets_itself_and_comes_out_as_in_one(app, engine, threads):
    source = Source()
    records = orders(60, 20, source) + orders(60, 7, source, total=2)
    assert deliver(app, engine, records, threads).failures == []
    assert (engine.met, engine.together > 1) == (0, True)
    alone = Busy(app.tables.values(), app.chains)
    deliver(app, alone, records, CallSlots())
    assert (alone.together, stored(app, alone)) == (1, stored(app, engine))
    assert stored(app, engine) == model(app, records)


def test_everything_that_shares_one_row_goes_one_after_another(app, engine, threads):
    assert deliver(app, engine, orders(40, 1), threads).failures == []
    assert engine.met == 0


def test_the_changes_of_an_item_go_one_after_another_and_wait_for_one_that_failed(app, engine, threads):
    source = Source()
    records = [source.put("ORDER#1", city="a", day="d", total=number) for number in range(4)]

    def lost(writes):
        claims = [write.key for write in writes if isinstance(write, Claim)]
        if any("#told#" in key.pk and records[1]["dynamodb"]["SequenceNumber"] in key.sk for key in claims):
            raise EngineUnavailable("no answer")

    engine.trouble = lost
    report = deliver(app, engine, records, threads, actions=2)
    assert {(failure.sequence, failure.held) for failure in report.failures if failure.handler == "told"} == {
        (records[1]["dynamodb"]["SequenceNumber"], False),
        (records[2]["dynamodb"]["SequenceNumber"], True),
        (records[3]["dynamodb"]["SequenceNumber"], True),
    }


def test_the_first_transaction_of_a_batch_that_may_have_come_before_goes_alone(app, engine, threads):
    records, pace = orders(60, 30), seasoned()
    deliver(app, engine, records, threads, pace)
    engine.sent.clear()
    engine.together = 0
    deliver(app, engine, records, threads, SendingPace())  # a new process
    assert (engine.together, len(engine.sent) < 3) == (1, True)
    assert stored(app, engine) == model(app, records)


def test_a_batch_after_one_that_failed_is_taken_for_one_that_comes_again():
    pace = SendingPace()
    told = []
    for again in (False, True, False):
        told.append(pace.unsure)
        pace.began()
        pace.ended(again=again)
    told.append(pace.unsure)
    pace.began()  # of which the end is not told: the invocation died
    assert [*told, pace.unsure] == [True, False, True, False, True]


def chunk_of(*units):
    (transaction,) = pack(units, 100)
    return transaction


@pytest.mark.usefixtures("exact")
def test_what_holds_up_most_others_goes_first_but_for_changes_in_order():
    apart, one, both, other = (
        chunk_of(ledger(number, (ONE, {}, shared(**dict.fromkeys(rows, 1)))))
        for number, rows in enumerate(["x", "a", "ab", "b"])
    )
    first, second = chunk_of(claim(1, 1, put(1, 1))), chunk_of(claim(1, 2, put(1, 2)))
    assert most_shared_first([apart, first, one, second, both, other]) == [both, one, other, apart, first, second]


# How large transactions are.


def test_transactions_are_halved_where_they_meet_another_process_and_grow_again(app, engine):
    pace, left = seasoned(), [2]

    def others(writes):
        left[0] -= 1
        return Refused((Reason(CONFLICT[0]),) * len(writes)) if left[0] >= 0 else None

    engine.trouble = others
    records = orders(80, 40)
    assert deliver(app, engine, records, CallSlots(), pace, actions=100).failures == []
    sizes = [len(writes) for writes in engine.sent]
    assert 50 < sizes[0] <= 100
    assert all(size <= sizes[0] // 2 for size in sizes[1:3])
    assert pace.actions(100) == max(sizes[1] // 2, ACTIONS_MIN)
    assert pace.take_counts() == (pace.actions(100), 2)
    assert stored(app, engine) == model(app, records)
    for _ in range(10):
        pace.ended(again=False)
    assert pace.actions(100) == 100


def test_conflicts_make_transactions_no_smaller_than_the_least():
    pace = SendingPace()
    for _ in range(20):
        pace.met(pace.actions(100))
    assert pace.actions(100) == ACTIONS_MIN
    assert pace.actions(2_000) == 2_000  # of a store without DynamoDB's limit


# Calls that follow the commit.


class Counted(CallSlots):
    """CallSlots that tell how many calls were in flight."""

    count = 3

    def __init__(self):
        self.most = 0
        self.flying = 0

    def flight(self):
        return self

    def begin(self, tag, call, places):
        self.flying += 1
        self.most = max(self.most, self.flying)
        self._flight = getattr(self, "_flight", None) or super().flight()
        self._flight.begin(tag, call, places)

    def join(self):
        self.flying -= 1
        return self._flight.join()


def test_no_more_calls_are_in_flight_than_there_are_lanes():
    lanes = Counted()
    assert dict(in_slots(lanes, [(number, lambda number=number: number * 2) for number in range(7)])) == {
        number: number * 2 for number in range(7)
    }
    assert (lanes.most, lanes.flying) == (3, 0)


def test_a_call_waits_for_another_one_of_its_place():
    calls = [(number, lambda: None) for number in range(4)]
    lanes = Counted()
    assert len(list(in_slots(lanes, calls, at=lambda number: number // 4))) == 4
    assert lanes.most == 1


def test_an_error_that_stops_them_lets_those_in_flight_end_and_begins_no_other():
    made = []

    def call(number):
        made.append(number)
        raise Contended("busy")

    calls = [(number, lambda number=number: call(number)) for number in range(9)]
    told = [tag for tag, _ in in_slots(Counted(), calls, stops=lambda _: True)]
    assert told == made == [0, 1, 2]


def test_an_error_that_nobody_expects_is_raised_when_all_in_flight_have_ended():
    lanes = Counted()
    calls = [(number, lambda number=number: 1 // number) for number in range(5)]
    with pytest.raises(ZeroDivisionError):
        list(in_slots(lanes, calls))
    assert lanes.flying == 0


def test_whoever_asks_for_no_more_leaves_no_call_in_flight():
    lanes = Counted()
    answers = in_slots(lanes, [(number, lambda: None) for number in range(5)])
    next(answers)
    answers.close()
    assert lanes.flying == 0


def test_keys_are_cut_only_where_there_are_lanes():
    assert [len(some) for some in slices(Counted(), range(60), 25)] == [25, 25, 10]
    assert [len(some) for some in slices(CallSlots(), range(60), 25)] == [60]


def test_whatever_a_thread_raises_reaches_the_one_who_asks(threads):
    flight = threads.flight()

    def leave():
        raise SystemExit

    flight.begin(1, leave, ())
    assert isinstance(flight.join().error, SystemExit)


def test_the_ledger_items_of_a_thousand_records_are_read_at_once(app, threads):
    class Together(MemoryEngine):
        """Answers no read before all are asked."""

        asked = threading.Barrier(10, timeout=10)

        def read_state(self, keys, *, consistent=False):
            self.asked.wait()
            return super().read_state(keys, consistent=consistent)

    keys = [claim_key("shop", "seen", ("main", "ITEM#1", "META"), f"{number:03}") for number in range(1000)]
    assert read_state(Runtime(app, Together(app.tables.values()), Settings(), slots=threads), keys) == {}


# The lanes of proofs.


@pytest.mark.parametrize("option", [None, "last-first", "all-before-an-answer", "all-before-an-answer-backwards"])
def test_a_proof_makes_calls_in_an_order_that_it_chooses(option):
    choices = Scripted({1: option}) if option else Choices()
    made = []
    flight = ChosenSlots(lambda: choices, pytest.fail).flight()
    for number in range(3):
        flight.begin(number, lambda number=number: made.append(number), [number])
    first = flight.join().tag
    backwards = option is not None and option.endswith(("first", "backwards"))
    assert first == (2 if backwards else 0)
    assert made == ([2, 1, 0] if backwards else [0, 1, 2])[: 3 if option and option.startswith("all") else 1]


def test_a_proof_notices_two_calls_in_flight_that_share_an_item():
    broken = []
    flight = ChosenSlots(Choices, broken.append).flight()
    flight.begin(1, lambda: None, Several(("a", "b")))
    flight.begin(2, lambda: None, Several(("b", "c")))
    assert [str(each) for each in broken] == ["Two calls in flight share b."]


def test_many_claims_of_one_item_are_read_side_by_side(app):
    """Changes of an item are written one after another. What is read of them has no order."""
    keys = [claim_key("shop", "seen", ("main", "ITEM#1", "META"), f"{number:03}") for number in range(150)]
    store = MemoryEngine(app.tables.values())
    store.transact([Claim(key) for key in keys[:100]], 0)
    run = Runtime(app, store, Settings(), slots=ChosenSlots(Choices, pytest.fail))
    assert read_state(run, keys).keys() == {*keys[:100]}
