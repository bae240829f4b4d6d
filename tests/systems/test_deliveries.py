"""What is shipped of orders: the state of each order from the lines and shipments of its partition."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from handlers.shop import ORDER, ORDER_BY_DELIVERY, ORDER_ITEM, SHIPMENT, app, delivery_of_order
from streamfold import Part, Parts, Row
from tests.systems import Folded, delivered_again, in_other_order, items_after, recorded

RECORDS, _ = recorded("shop/deliveries")
SIZES = (1, 7, 100, len(RECORDS))
MOMENTS = 6
"""Numbers of records behind which rows are compared."""


class Warehouse:
    """What a person would write down who goes through all parcels and orders: no code of the handlers."""

    def __init__(self, records):
        self.orders, self.lines, self.parcels = set(), {}, {}
        for (partition, sort), item in items_after(records).items():
            order, (what, _, rest) = partition.removeprefix("ORDER#"), sort.partition("#")
            if what == "METADATA":
                self.orders.add(order)
            elif what == "ITEM":
                self.lines.setdefault(order, set()).add(rest)
            else:
                self.parcels.setdefault(order, set()).add(item["sku"])

    def deliveries(self):
        """The state of each order that exists, with the lines that no parcel has."""
        found = {}
        for order in self.orders:
            lines, parcels = self.lines.get(order, set()), self.parcels.get(order, set())
            missing = sorted(lines - parcels)
            state = "partly shipped" if missing else "shipped"
            found[order] = (state if parcels else "open", missing)
        return found


def deliveries(folded):
    """The same of a state: what orders show, which the rows by state repeat."""
    orders = {order: (item["delivery"], item["missing"]) for (order,), item in folded.rows(ORDER).items()}
    rows = {order: (state, row["missing"]) for (state, order), row in folded.rows(ORDER_BY_DELIVERY).items()}
    assert rows == orders
    return orders


@pytest.mark.parametrize("size", SIZES)
def test_orders_show_what_is_shipped_of_them_for_every_size_of_batches(size):
    assert deliveries(Folded(app, RECORDS, size)) == Warehouse(RECORDS).deliveries()


@pytest.mark.parametrize("seed", range(MOMENTS))
def test_orders_show_what_is_shipped_of_them_while_records_come(seed):
    records = RECORDS[: Random(seed).randrange(len(RECORDS))]
    assert deliveries(Folded(app, records, 40)) == Warehouse(records).deliveries()


@pytest.mark.parametrize("seed", range(2))
def test_lines_and_shipments_may_come_in_any_order(seed):
    records = in_other_order(RECORDS, Random(seed))
    assert deliveries(Folded(app, records, 7 + 30 * seed)) == Warehouse(RECORDS).deliveries()


def test_records_that_are_delivered_again_change_nothing():
    folded = Folded(app, delivered_again(RECORDS, Random(1)), size=11)
    assert deliveries(folded) == Warehouse(RECORDS).deliveries()
    folded.add(RECORDS)
    assert deliveries(folded) == Warehouse(RECORDS).deliveries()


def test_the_recording_has_what_makes_collections_hard():
    seen = [Warehouse(RECORDS[:count]) for count in range(len(RECORDS) + 1)]
    moves, waiting, left = Counter(), 0, 0
    for before, after in pairwise(seen):
        states, then = before.deliveries(), after.deliveries()
        moves.update((states[order][0], then[order][0]) for order in states.keys() & then.keys())
        came, went = after.orders - before.orders, before.orders - after.orders
        waiting += sum(order in before.parcels and order in before.lines for order in came)
        left += sum(order in after.parcels for order in went)
    steps = [("open", "partly shipped"), ("partly shipped", "shipped"), ("open", "shipped")]
    for step in [*steps, *((to, since) for since, to in steps)]:
        assert moves[step] > 0, step
    assert waiting > 3, "orders whose lines and shipments are there before them"
    assert left > 3, "shipments that stay behind when their order goes"
    assert seen[-1].lines.keys() - seen[-1].orders, "lines of an order that never came"


def test_an_order_without_lines_is_open_until_something_is_shipped():
    assert delivery_of_order({}, Parts({ORDER_ITEM: [], SHIPMENT: []})) == Row(delivery="open", missing=[])
    sent = Parts({ORDER_ITEM: [], SHIPMENT: [{"sku": "TEA"}]})
    assert delivery_of_order({}, sent) == Row(delivery="shipped", missing=[])


def test_missing_lines_come_in_the_order_of_their_skus():
    lines = [Part({}, {"sku": sku}) for sku in ("CUP", "POT", "TEA")]
    parts = Parts({ORDER_ITEM: lines, SHIPMENT: [{"sku": "POT"}]})
    assert delivery_of_order({}, parts) == Row(delivery="partly shipped", missing=["CUP", "TEA"])
