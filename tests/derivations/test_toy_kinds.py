"""A kind is added by a value: declared, routed, planned, committed, finished, redriven, reconciled and proved."""

from functools import partial

import pytest

from streamfold import App, Key, Router, Row
from streamfold.batch.manifest import read_manifest
from streamfold.batch.process import plan_changes, process_event
from streamfold.derivations.derivation import Derivation
from streamfold.engines import MemoryEngine
from streamfold.errors import DeclarationError
from streamfold.failures.repair import Repair
from streamfold.records.change import image_of
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import check
from tests.derivations.toys import JOIN, TALLY, declared
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
PAYMENT = Key("ORDER#{order_id}", "PAYMENT")
BY_STATUS = Key("STATUS#{status}", "COUNT")
BILL = Key("BILL#{order_id}", "BILL")
ITEMS = {ORDER: [{"status": "new", "total": 5}, {"status": "old", "total": 7}], PAYMENT: [{"paid": 5}, {"paid": 7}]}


def shop(**options) -> App:
    router = Router()

    @declared(router, TALLY, ORDER, into=BY_STATUS, options="orders", **options)
    def orders_by_status(order):
        return [Row(status=order["status"])]

    @declared(router, JOIN, ORDER, into=BILL, options=PAYMENT)
    def bill(order, payment):
        return {"due": order["total"] - payment["paid"]}

    return App("toys", routers=[router])


@pytest.fixture
def app():
    return shop()


@pytest.fixture
def engine(app):
    return MemoryEngine(app.tables.values())


def put(app, engine, *changes, **run):
    """Processes changes as a replay does that keeps the items."""
    engine.put_sources(newest_sources(changes))
    return process_event(Runtime(app, engine, Settings(), **run), [each.record for each in changes])


BEFORE = item("ORDER#1", "METADATA", status="new", total=7)
ORDERED = change(None, BEFORE)
PAID = change(None, item("ORDER#1", "PAYMENT", paid=5))


def row(engine, *key):
    return engine.read_rows([("main", *key)]).get(("main", *key))


def test_they_are_committed_and_finished(app, engine):
    assert not put(app, engine, ORDERED, PAID).failures
    assert row(engine, "STATUS#new", "COUNT")["orders"] == 1
    assert row(engine, "BILL#1", "BILL")["due"] == 2


def test_an_item_that_changes_is_taken_back_and_joined_again(app, engine):
    put(app, engine, ORDERED, PAID)
    put(app, engine, change(BEFORE, item("ORDER#1", "METADATA", status="old", total=5), 2))
    assert row(engine, "STATUS#new", "COUNT") is None
    assert row(engine, "STATUS#old", "COUNT")["orders"] == 1
    assert row(engine, "BILL#1", "BILL")["due"] == 0


def test_they_are_planned_without_being_written(app, engine):
    plan, _ = plan_changes(Runtime(app, engine, Settings()), [ORDERED])
    assert len(plan.transactions) == len(plan.deferred) == 1
    assert not list(engine.rows)


def test_work_that_the_time_does_not_suffice_for_is_reported_with_its_record(app, engine):
    left = iter([20.0] * 3)
    report = put(app, engine, ORDERED, PAID, seconds_left=lambda: next(left, 0.0))
    assert {failure.handler for failure in report.failures} >= {"bill"}


def test_their_names_stand_in_the_manifest_and_their_targets_are_checked(app, engine):
    put(app, engine, ORDERED)
    assert {entry["kind"] for entry in read_manifest("toys", engine).handlers.values()} == {"tally", "join"}
    loop = Router()
    loop.declare(TALLY, BY_STATUS, name="loop", into=BY_STATUS, handler=lambda row: [], options="n")
    with pytest.raises(DeclarationError, match="would read rows derived from its own rows"):
        App("toys", routers=[loop])


def test_an_item_is_reconciled_with_what_it_is_now(app, engine):
    put(app, engine, ORDERED, PAID)
    now = change(BEFORE, item("ORDER#1", "METADATA", status="old", total=9), 2)
    engine.put_sources(newest_sources([now]))  # whose record was lost
    found = Repair(Runtime(app, engine, Settings())).item(now.item)
    assert [repaired.error for repaired in found] == [None, None]
    assert row(engine, "STATUS#old", "COUNT")["orders"] == 1
    assert row(engine, "BILL#1", "BILL")["due"] == 4


def test_they_are_proved_under_faults():
    proof = check(shop(), ITEMS, histories=20, seed=5, processes=0)
    assert not proof.unproved
    assert proof.faults


class Slow(MemoryEngine):
    """Its first read of a source takes so long that another invocation comes and goes meanwhile."""

    def read_source(self, item):
        found = super().read_source(item)
        meanwhile, self.meanwhile = getattr(self, "meanwhile", None), None
        if meanwhile:
            meanwhile()
        return found


def raced(app):
    """The bill after an invocation that was slow to read what it joins, while the order was changed and joined."""
    engine = Slow(app.tables.values())
    put(app, engine, PAID)
    engine.meanwhile = lambda: put(app, engine, change(BEFORE, item("ORDER#1", "METADATA", status="new", total=9), 2))
    put(app, engine, ORDERED)
    return row(engine, "BILL#1", "BILL")["due"]


def test_a_slow_join_overwrites_no_newer_one(app):
    assert raced(app) == 4


def test_a_kind_that_reads_before_it_raises_its_counter_is_found_out(monkeypatch):
    def hasty(self, engine, key):
        hasty.values = [engine.read_source(each) for each in (("main", "ORDER#1", "METADATA"), PAID.item)]
        return raised(engine, key)

    raised, values = type(JOIN)._raised, type(JOIN)._values
    monkeypatch.setattr(type(JOIN), "_raised", staticmethod(partial(hasty, None)))
    early = lambda route, images: values(route, [image_of(each or {}) for each in hasty.values])  # noqa: E731
    monkeypatch.setattr(type(JOIN), "_values", staticmethod(early))
    assert raced(shop()) != 4


class Nameless(Derivation):
    """A kind that lacks what has no default."""


class Unguarded(Nameless):
    """A kind that does not say by what its writes are exact."""

    name = "unguarded"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("view", "expected a kind, an object such as MYKIND"),
        (Nameless(), 'Kind Nameless has no name: give the class name = "..."'),
        (Unguarded(), "Kind 'unguarded' does not define the guard of its writes: give Unguarded a method guard"),
    ],
)
def test_a_kind_that_lacks_what_has_no_default_is_refused_where_it_is_declared(kind, said):
    with pytest.raises(DeclarationError, match=said):
        Router().declare(kind, ORDER, name="toy", into=BILL)


class Broken(type(TALLY)):
    """A kind with a mistake of its own."""

    def contribution(self, route, image, fields, schema):
        raise TypeError("a mistake of the kind")


def test_a_mistake_in_a_kind_is_told_with_its_line():
    router = Router()

    @declared(router, Broken(), ORDER, into=BY_STATUS, options="orders")
    def orders_by_status(order):
        return [Row(status=order["status"])]

    with pytest.raises(AssertionError, match=r"test_toy_kinds\.py:\d+\).* a mistake of the kind"):
        check(App("toys", routers=[router]), {ORDER: ITEMS[ORDER]}, histories=1, processes=0)
