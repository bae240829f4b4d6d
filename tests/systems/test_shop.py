"""The shop: customers, sales and totals, from the orders and items that are there at the end."""

from collections import Counter, defaultdict

import pytest

from handlers import app
from handlers.shop import (
    ALL_ORDERS,
    CUSTOMER,
    CUSTOMER_BY_EMAIL,
    CUSTOMER_HISTORY,
    CUSTOMER_ORDERS,
    ORDER,
    ORDER_BY_STATUS,
    ORDER_ITEM,
    ORDER_TOTAL,
    SALES,
)
from streamfold.testing import Twin
from tests.systems import Replayed


@pytest.fixture(scope="module")
def shop():
    return Replayed("shop")


@pytest.fixture(scope="module")
def orders(shop):
    return shop.items(ORDER)


@pytest.fixture(scope="module")
def lines(shop):
    return shop.items(ORDER_ITEM)


def test_a_customers_history_lists_each_order_by_its_date(shop, orders):
    expected = {
        (order["customer_id"], order["at"], order_id): {"status": order["status"], "total": order["total"]}
        for (order_id,), order in orders.items()
    }
    assert shop.rows(CUSTOMER_HISTORY) == expected


def test_orders_that_change_hands_leave_the_first_customers_history(shop, orders):
    owners = {
        order_id: {image["customer_id"] for image in images if image}
        for (order_id,), images in shop.images(ORDER).items()
    }
    assert any(len(known) > 1 for known in owners.values())
    listed = Counter(order_id for _, _, order_id in shop.rows(CUSTOMER_HISTORY))
    assert listed == Counter(order_id for (order_id,) in orders)


def test_customers_have_spent_what_their_orders_cost_that_were_not_cancelled(shop, orders):
    spent = defaultdict(list)
    for order in orders.values():
        if order["status"] != "cancelled":
            spent[order["customer_id"]].append(order["total"])
    expected = {(customer,): {"orders": len(totals), "spent": sum(totals)} for customer, totals in spent.items()}
    assert shop.rows(CUSTOMER_ORDERS) == expected


def test_every_order_stands_under_its_state_alone(shop, orders):
    assert set(shop.rows(ORDER_BY_STATUS)) == {(order["status"], order_id) for (order_id,), order in orders.items()}


def test_an_order_costs_what_the_writer_says_that_it_costs(shop, orders):
    totals = {order_id: row["total"] for (order_id,), row in shop.rows(ORDER_TOTAL).items()}
    assert totals == {order_id: order["total"] for (order_id,), order in orders.items()}


def test_a_days_sales_are_the_items_of_the_day(shop, lines):
    units = Counter()
    for (_, sku), line in lines.items():
        units[line["at"][:10], sku] += line["quantity"]
    assert {fields: row["units"] for fields, row in shop.rows(SALES).items()} == units


def test_the_total_of_all_orders_is_that_of_their_items(shop, orders, lines):
    (row,) = shop.rows(ALL_ORDERS).values()
    total = sum(line["price"] * line["quantity"] for line in lines.values())
    assert row == {"orders": len(orders), "lines": len(lines), "total": total}


def test_an_order_takes_along_the_items_that_its_writer_left_behind():
    twin = Twin(app)
    twin.put(ORDER, order_id="1", customer_id="c", status="placed", at="2026-03-01T08:00:00Z", total=3)
    twin.put(ORDER_ITEM, order_id="1", sku="TEA", name="Tea", price=3, quantity=1, at="2026-03-01T08:00:00Z")
    twin.delete(ORDER, order_id="1")
    assert [twin.rows(key) for key in (ORDER_TOTAL, SALES, ALL_ORDERS, CUSTOMER_HISTORY)] == [[], [], [], []]


def test_recorded_orders_left_no_items_behind(orders, lines):
    assert {order_id for order_id, _ in lines} == {order_id for (order_id,) in orders}


def test_every_address_leads_to_its_customer(shop):
    customers = {(item["email"],): {"customer_id": name} for (name,), item in shop.items(CUSTOMER).items()}
    assert customers
    assert shop.rows(CUSTOMER_BY_EMAIL) == customers


def test_two_customers_with_one_address_are_seen_until_one_of_them_changes_it():
    twin = Twin(app)
    for name in ("c-002", "c-001"):
        twin.put(CUSTOMER, customer_id=name, email="Ana@example.com")
    row = twin.row(CUSTOMER_BY_EMAIL, email="ana@example.com")
    assert (row["customer_id"], row["conflict"]) == ("c-001", [{"customer_id": "c-002"}])
    twin.put(CUSTOMER, customer_id="c-001", email="anna@example.com")
    assert twin.row(CUSTOMER_BY_EMAIL, email="ana@example.com")["customer_id"] == "c-002"
