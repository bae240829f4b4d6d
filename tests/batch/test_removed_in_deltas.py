"""Rows that somebody removes by hand while additions to them wait in deltas."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.commit.pending import Progress
from streamfold.engines import MemoryEngine
from streamfold.records.values import decode
from streamfold.routes.route import ROWS_LOST
from streamfold.runtime import Knowledge, Runtime, SendingPace
from streamfold.settings import Settings
from tests.helpers.source import Source

ORDER, CUSTOMER = Key("ORDER#{o}", "ORDER"), Key("CUSTOMER#{c}", "TOTAL")
ROW = ("main", "CUSTOMER#a", "TOTAL")
NOW = 1_800_000_000.0


def application():
    router = Router()

    @router.view(ORDER, into=CUSTOMER)
    def totals(order):
        yield Row(c=order["c"], total=Sum(order["n"]), orders=Count())

    return App("shop", routers=[router])


APP = application()


class Shop:
    """A process whose additions go through deltas where ``waits`` says so, for each of them in turn."""

    def __init__(self, waits=lambda: True):
        self.engine, self.source, self.now = MemoryEngine(APP.tables.values()), Source(), NOW
        self.pace, self.known = SendingPace(), Knowledge()
        self.pace.sharing.forced = lambda row: waits()
        self.lost = 0

    def deliver(self, *records):
        runtime = Runtime(
            APP,
            self.engine,
            Settings(),
            clock=lambda: self.now,
            pause=self.pause,
            pace=self.pace,
            known=self.known,
        )
        report = process_event(runtime, list(records))
        assert report.failures == []
        self.lost += sum(report.counts.get(ROWS_LOST, {}).values())

    def pause(self, seconds):
        self.now += max(seconds, 0.1)

    def order(self, number, n=1):
        return self.source.put(f"ORDER#{number}", "ORDER", c="a", n=n)

    def no_order(self, number):
        return self.source.remove(f"ORDER#{number}", "ORDER")

    def remove_row(self):
        self.engine.rows.pop(ROW, None)

    def row(self):
        found = self.engine.rows.get(ROW)
        return found and tuple(int(decode(found[name])) for name in ("total", "orders", "_sf_n"))


def test_who_enters_a_removed_row_is_kept_and_who_leaves_it_is_counted():
    shop = Shop()
    shop.deliver(shop.order(1, 5), shop.order(2, 7))
    shop.remove_row()
    shop.deliver(shop.no_order(1), shop.order(3, 4))
    assert shop.row() == (4, 1, 1)
    assert shop.lost == 1


def test_who_enters_a_removed_row_as_another_one_leaves_it_with_the_same_amount_is_kept():
    shop = Shop()
    shop.deliver(shop.order(1, 5))
    shop.remove_row()
    shop.deliver(shop.no_order(1), shop.order(2, 5))
    assert shop.row() == (5, 1, 1)
    assert shop.lost == 1


def test_a_row_that_is_removed_while_a_delta_is_pending_has_what_the_delta_adds():
    shop = Shop()
    shop.deliver(shop.order(1, 5))
    with patch.object(Progress, "wait_for_deltas", lambda *_: None):
        shop.deliver(shop.order(2, 7))
    shop.remove_row()
    shop.deliver(shop.order(2, 8))
    assert shop.row() == (8, 1, 1)
    assert shop.lost == 0


def test_an_amendment_of_a_removed_row_is_dropped_and_counted():
    shop = Shop()
    shop.deliver(shop.order(1, 5))
    shop.remove_row()
    shop.deliver(shop.order(1, 6))
    assert (shop.row(), shop.lost) == (None, 1)


amounts = st.lists(st.integers(-3, 3), min_size=1, max_size=5)


@given(amounts, amounts, st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_items_that_enter_a_removed_row_as_all_others_leave_it_are_all_that_it_holds(old, new, waits, data):
    """Some additions go through deltas and some do not, in batches of any size, after a removal at any moment."""
    turns = iter(waits * 100)
    shop = Shop(lambda: next(turns))
    shop.deliver(*(shop.order(number, n) for number, n in enumerate(old)))
    left = data.draw(st.integers(0, len(old)))
    for number in range(left):
        shop.deliver(shop.no_order(number))
    shop.remove_row()
    entering = [shop.order(100 + number, n) for number, n in enumerate(new)]
    leaving = [shop.no_order(number) for number in range(left, len(old))]
    shop.pace.sharing.forced = lambda row: True
    shop.deliver(*data.draw(st.permutations([*leaving, *entering])))
    assert shop.row() == (sum(new), len(new), len(new))
    assert shop.lost == bool(leaving)
    gone = [shop.no_order(100 + number) for number in range(len(new))]
    shop.pace.sharing.forced = lambda row: next(turns)
    shop.deliver(*gone)
    assert shop.row() is None
    assert not [key for key in shop.engine.state if key.pk.startswith("delta#")]


@pytest.mark.parametrize("pending", [False, True])
def test_a_row_of_removed_items_counts_no_fewer_than_nobody_whoever_comes_and_goes(pending):
    shop = Shop()
    shop.deliver(*(shop.order(number, 2) for number in range(4)))
    if pending:
        with patch.object(Progress, "wait_for_deltas", lambda *_: None):
            shop.deliver(shop.order(9, 3))
    shop.remove_row()
    shop.deliver(shop.order(9, 4))
    for number in range(4):
        shop.deliver(shop.no_order(number))
        assert (shop.row() or (0, 0, 0))[2] >= 0
