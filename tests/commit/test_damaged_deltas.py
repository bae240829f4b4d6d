"""Deltas, heads of buckets and rows that somebody damaged: they keep nobody waiting but those who need them."""

import pytest

from streamfold import App, Count, Key, Router, Row, Sum, Table
from streamfold.batch.process import process_event
from streamfold.commit.buckets import TRIED_AGAIN_SECONDS
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.keys.table import CONTRIBUTORS
from streamfold.ledger.deltas import Delta, bucket_of, delta_key, head_key
from streamfold.runtime import Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from streamfold.writes.guarded import AddRow, CorrectRow, DeleteState, PutRow, PutState, StateKey, SwapText
from tests.helpers.source import Source

NOW = 1_800_000_000.0
OTHER = Table("other")
ITEM, A_TOTAL, B_TOTAL = Key("ITEM#{i}", "ITEM"), Key("A#{g}", "TOTAL"), Key("B#{g}", "TOTAL", table=OTHER)


def application():
    router = Router()

    @router.view(ITEM, into=A_TOTAL)
    def one(item):
        if item.get("g"):
            yield Row(g=item["g"], amount=Sum(item["n"]), items=Count())

    @router.view(ITEM, into=B_TOTAL)
    def two(item):
        if item.get("h"):
            yield Row(g=item["h"], amount=Sum(item["n"]), items=Count())

    return App("shop", routers=[router])


APP = application()
A = ("main", "A#a", "TOTAL")
BUCKET = bucket_of(A)
SAME = [name for name in (f"g{number}" for number in range(99)) if bucket_of(("main", f"A#{name}", "TOTAL")) == BUCKET]
"""Groups whose rows lie in the bucket of ``A``."""
B = next(
    name for name in (f"h{number}" for number in range(99)) if bucket_of(("other", f"B#{name}", "TOTAL")) == BUCKET
)
"""A group whose row in the other table lies there, too."""


class Store:
    """A store in which merges may fail, or a table may be missing."""

    def __init__(self):
        self.engine = MemoryEngine(APP.tables.values())
        self.merges, self.missing = True, None

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def transact(self, writes, expires_at):
        puts = any(isinstance(write, SwapText) and write.expected is None for write in writes)
        if (
            not self.merges
            and any(is_delta(write.key) or isinstance(write, CorrectRow) for write in writes)
            and not puts
        ):
            raise KeyboardInterrupt
        if any(write.key[0] == self.missing for write in writes):
            raise EngineError(f"Table {self.missing} is missing.")
        return self.engine.transact(writes, expires_at)


def is_of_merge(write):
    return isinstance(write, DeleteState | CorrectRow) or (isinstance(write, SwapText) and write.expected is not None)


def is_delta(key):
    return isinstance(key, StateKey) and key.pk.startswith("delta#")


class Shop:
    def __init__(self):
        self.now, self.store, self.source = NOW, Store(), Source()
        self.state = self.store.engine.state
        self.begin()

    def begin(self):
        """A new process."""
        self.known, self.pace = Knowledge(), SendingPace()
        self.pace.sharing.forced = lambda row: True

    def runtime(self):
        return Runtime(
            APP, self.store, Settings(), clock=lambda: self.now, pause=self.pause, known=self.known, pace=self.pace
        )

    def deliver(self, *records):
        return [failure.error for failure in process_event(self.runtime(), list(records)).failures]

    def deliver_and_die(self, *records):
        """Delivers records to a process that dies before it merges."""
        self.store.merges = False
        with pytest.raises(KeyboardInterrupt):
            self.deliver(*records)
        self.store.merges = True
        self.now += 60  # the lease is over
        self.begin()

    def pause(self, seconds):
        self.now += max(seconds, 0.1)

    def item(self, number, g="a", n=1, **more):
        return self.source.put(f"ITEM#{number}", "ITEM", g=g, n=n, **more)

    def row(self, row=A):
        return self.store.read_rows([row]).get(row)

    def deltas(self):
        return {key: item["s"] for key, item in self.state.items() if is_delta(key)}


@pytest.fixture
def shop():
    return Shop()


def test_a_damaged_delta_keeps_no_other_delta_of_its_bucket_waiting(shop):
    damaged = [delta_key("shop", f"{BUCKET:x}{stripe}{'0' * 16}") for stripe in range(3)]
    texts = ["{", '{"add":[[1]],"by":[]}', ""]
    shop.store.engine.transact([PutState(key, text) for key, text in zip(damaged, texts, strict=True)], 0)
    assert shop.deliver(shop.item(1), shop.item(2, SAME[0])) == []
    assert shop.row()["amount"] == 1
    assert shop.deltas().keys() == {*damaged}


def test_a_damaged_delta_fails_those_who_need_it_and_says_what_to_do(shop):
    lost, other = shop.item(1), shop.item(2, SAME[0])
    shop.deliver_and_die(lost)
    (key,) = shop.deltas()
    shop.store.engine.transact([PutState(key, "{}")], 0)
    (error,) = shop.deliver(lost, other)
    assert (shop.row(), shop.row(("main", f"A#{SAME[0]}", "TOTAL"))["amount"]) == (None, 1)
    for words in ("cannot be read", key.pk, key.sk, "verify --rows --repair"):
        assert words in str(error)
    failed = shop.deliver(shop.item(1, n=5), shop.item(2, SAME[0], n=3))
    assert {str(each) for each in failed} == {str(error)}
    assert shop.row(("main", f"A#{SAME[0]}", "TOTAL"))["amount"] == 3
    shop.store.engine.transact([DeleteState(key)], 0)
    shop.begin()
    assert shop.deliver(shop.item(1, n=7)) == []


@pytest.mark.parametrize("damaged", [{"rows": "ab"}, {"until": "soon"}, None])
def test_a_damaged_head_is_made_anew(shop, damaged):
    key = head_key("shop", BUCKET)
    if damaged is None:
        shop.store.engine.transact([PutState(key, "no head")], 0)
    else:
        assert shop.store.engine.swap_state(key, damaged, 0)
    assert shop.deliver(shop.item(1)) == []
    assert shop.row()["amount"] == 1
    assert shop.state[head_key("shop", BUCKET)].keys() >= {"r", "until", "looked"}


@pytest.mark.parametrize("counted", ["many", True, None, 1.5, -3])
@pytest.mark.parametrize("then", [{"n": 5}, {"g": SAME[0]}])
def test_a_row_whose_count_somebody_damaged_ends_no_process(shop, counted, then):
    assert shop.deliver(shop.item(1), shop.item(2, SAME[1])) == []
    shop.store.engine.transact([PutRow(A, {"amount": 1, CONTRIBUTORS: counted})], 0)
    failed = shop.deliver(shop.item(1, **then), shop.item(2, SAME[1], n=9))
    assert len(failed) <= 1
    assert shop.row(("main", f"A#{SAME[1]}", "TOTAL"))["amount"] == 9


def test_a_missing_table_keeps_rows_of_other_tables_in_the_same_delta_from_nothing(shop):
    one, both = shop.item(1, "a"), shop.item(2, None, h=B)
    shop.deliver_and_die(one, both)
    assert [len(Delta.of(text).additions) for text in shop.deltas().values()] == [2]
    shop.store.missing = "other"
    (error,) = shop.deliver(one, both)
    assert str(error) == "Table other is missing."
    assert shop.row()["amount"] == 1
    shop.store.missing = None
    shop.now += TRIED_AGAIN_SECONDS
    assert shop.deliver(one, both) == []
    assert shop.row(("other", f"B#{B}", "TOTAL"))["amount"] == 1
    assert (shop.row()["amount"], shop.deltas()) == (1, {})


def test_what_a_fast_clock_tried_is_tried_again(shop):
    one, both = shop.item(1, "a"), shop.item(2, None, h=B)
    shop.deliver_and_die(one, both)
    shop.store.missing = "other"
    shop.now += 3_600
    shop.deliver(one, both)
    shop.store.missing = None
    shop.now -= 3_600
    assert shop.deliver(one, both) == []
    assert shop.row(("other", f"B#{B}", "TOTAL"))["amount"] == 1


@pytest.mark.parametrize("damaged", ["{", "zz", "0" * 17, "g" + "0" * 17, f"{'0' * 18}abc"])
@pytest.mark.parametrize("again", [False, True])
def test_damaged_names_of_deltas_fail_their_item_alone(shop, damaged, again):
    record = shop.item(1)
    assert shop.deliver(record) == []
    (key,) = [key for key in shop.state if key.pk.startswith("ledger#")]
    item = shop.state[key]
    shop.store.engine.swap_state(key, {**item, "one.p": damaged}, item["r"])
    shop.begin()
    failed = shop.deliver(record if again else shop.item(1, n=2), shop.item(2, SAME[0]))
    assert {str(each).partition(":")[0] for each in failed} == {"What a ledger item or a claim names cannot be read"}
    assert shop.row(("main", f"A#{SAME[0]}", "TOTAL"))["amount"] == 1


def test_a_delta_of_code_with_another_table_is_left_to_that_code(shop):
    """As of two versions of an application under a deployment, the newer one of which has another table."""
    record = shop.item(1)
    shop.deliver_and_die(record)
    ((key, text),) = shop.deltas().items()
    more = Delta.of(text)
    more = more._replace(additions=(*more.additions, AddRow(("newer", "ROW", "TOTAL"), {"amount": 1}, 1)))
    shop.store.engine.transact([PutState(key, more.text())], 0)
    assert shop.deliver(shop.item(2, SAME[0])) == []
    assert shop.row(("main", f"A#{SAME[0]}", "TOTAL"))["amount"] == 1
    assert (shop.row(), shop.deltas()) == (None, {key: more.text()})
    before = shop.now
    errors = shop.deliver(record)
    assert {type(error) for error in errors} == {EngineUnavailable}
    assert "adds to table newer, which this application does not have" in str(errors[0])
    assert shop.now < before + 1
    shop.store.engine.transact([PutState(key, text)], 0)
    assert shop.deliver(record) == []
    assert (shop.row()["amount"], shop.deltas()) == (1, {})
