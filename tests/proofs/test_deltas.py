"""Histories whose additions go through deltas, under every fault: 5,000 in CI, 100,000 at night.

An item has several handlers, which share rows, and moves between rows; rows become empty and are made again. Half of
the additions go through deltas, and half directly, so that each meets the other at every row.
"""

from copy import copy
from unittest.mock import patch

import pytest

from streamfold import Add, App, Average, Count, Key, Max, Router, Row, Sum, Table
from streamfold.commit.buckets import Mover
from streamfold.ledger.deltas import Additions, delta_key, names_text, new_name
from streamfold.ledger.state_keys import ledger_key, row_name
from streamfold.proofs import check as proofs
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Scripted
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.invariants import InvariantBroken
from streamfold.testing import check
from streamfold.writes.guarded import AddRow, HandlerContribution, LedgerWrite, PutState
from tests.helpers import looked_up
from tests.helpers.records import change, item

ORDER, CUSTOMER, ALL = Key("ORDER#{order_id}", "ORDER"), Key("CUSTOMER#{customer}", "TOTAL"), Key("ALL", "TOTAL")
CHANGES = Key("CHANGES", "TOTAL")
EXPIRING = Table("expiring", ttl="expires")
ORDERS = {
    ORDER: [
        {"customer": "a", "amount": 5, "open": True},
        {"customer": "b", "amount": 5},
        {"customer": "a", "amount": 7, "open": True},
        {"customer": "b", "amount": -3},
        {"customer": "c", "amount": 0, "open": True},
    ]
}


def declare(router):
    """Two views that share a row."""

    @router.view(ORDER, into=[CUSTOMER, ALL])
    def totals(order):
        yield Row(CUSTOMER, customer=order["customer"], total=Sum(order["amount"]), orders=Count())
        if order.get("open"):
            yield Row(ALL, total=Sum(order["amount"]))

    @router.view(ORDER, into=CUSTOMER)
    def means(order):
        if order.get("open"):
            yield Row(customer=order["customer"], mean=Average(order["amount"]))


def views():
    router = Router()
    declare(router)
    return App("views", routers=[router])


def changes():
    """The same beside additions of changes."""
    router = Router()
    declare(router)

    @router.on(ORDER, into=CHANGES)
    def changed(change):
        if change.event != "MODIFY":
            yield Add(changes=1, amount=(change.new or change.old)["amount"])

    return App("changes", routers=[router])


def beside():
    """The same beside handlers whose additions never wait, or whose items are derived of others."""
    router = Router()
    declare(router)
    looked_up.sales(router)

    @router.view(ORDER, into=Key("CUSTOMER#{customer}", "RECENT", table=EXPIRING))
    def recent(order):
        yield Row(customer=order["customer"], orders=Count(), total=Sum(order["amount"]), expires=Max(2_000_000_000))

    @router.view(ORDER, into=CUSTOMER)
    def largest(order):
        yield Row(customer=order["customer"], largest=Max(order["amount"]))

    return App("beside", routers=[router])


def check_histories(app, items, histories, seed):
    """All of these histories have deltas."""
    with patch.object(proofs, "DELTAS_EACH", 1):
        assert check(app, items, histories=histories, seed=seed, processes=0).unproved == ()


APPS = {
    "views": (views, ORDERS),
    "changes": (changes, ORDERS),
    "beside": (beside, {**ORDERS, **looked_up.items_of(looked_up.made(looked_up.sales))}),
}
each_app = pytest.mark.parametrize("name", APPS)


@each_app
def test_rows_are_right_in_some_histories_with_deltas(name):
    app, items = APPS[name]
    check_histories(app(), items, 20, seed=0)


@pytest.mark.ci
@pytest.mark.parametrize("part", range(4))
def test_rows_are_right_in_thousands_of_histories_with_deltas(part):
    check_histories(views(), ORDERS, 1_100, seed=1 + part)


@pytest.mark.ci
@pytest.mark.parametrize(("name", "histories"), [("changes", 400), ("beside", 200)])
def test_rows_are_right_in_hundreds_of_histories_with_deltas_beside_others(name, histories):
    app, items = APPS[name]
    check_histories(app(), items, histories, seed=11)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "histories"), [("views", 3_000), ("changes", 1_500), ("beside", 500)])
@pytest.mark.parametrize("part", range(20))
def test_rows_are_right_in_many_thousands_of_histories_with_deltas(name, histories, part):
    app, items = APPS[name]
    check_histories(app(), items, histories, seed=100 + part)


def test_histories_move_deltas_together_and_one_by_one():
    app, items = APPS["changes"]
    moved, move = [], Mover.move
    with patch.object(Mover, "move", lambda self, deltas: [moved.append(len(deltas)), move(self, deltas)][1]):
        check_histories(app(), items, 40, seed=1)
    assert 1 in moved
    assert max(moved) > 1


def test_one_history_of_four_has_deltas_where_nobody_asks_for_more():
    assert proofs.DELTAS_EACH == 4


def test_a_record_that_kinesis_holds_twice_is_acknowledged_once_neither_copy_fails():
    first = change(None, item("ORDER#1", SK="ORDER", order_id="1", customer="a", amount=5), 1)
    second = copy(first)
    second.sequence = "2"
    driver = Driver(FaultyHandlers(views()), [[first]], Scripted({}), 25, deltas=1)
    row = ("main", "CUSTOMER#a", "TOTAL")
    name = new_name(0, f"{1:017x}")
    additions = Additions()
    additions.add(AddRow(row, {"total": 5}, 1))
    driver.store.transact([PutState(delta_key("views", name), additions.delta({"totals"}, {}).text())], 0)
    put = HandlerContribution(
        "totals", first.version_text, "", "", deltas=names_text({name: frozenset({row_name(row)})})
    )
    driver._waiting.commit([LedgerWrite(ledger_key("views", "main", first.item), (put,), None, 0, False, None)], 0)
    for failed in ({first.sequence}, {second.sequence}):
        driver._check_acknowledged([first, second], failed, driver._waiting.number)
    assert driver._broken is None
    driver._check_acknowledged([first, second], set(), driver._waiting.number)
    assert isinstance(driver._broken, InvariantBroken)
