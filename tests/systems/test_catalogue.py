"""The catalogue: lines with their products and suppliers, and open orders by tier, from the items at the end."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from handlers import app
from handlers.catalogue import CATEGORY_SALES, OPEN_ORDERS, SUPPLIER, SUPPLIER_LINES, open_orders
from handlers.shop import CUSTOMER, ORDER, ORDER_ITEM, PRODUCT
from streamfold import Row
from streamfold.testing import Twin
from tests.systems import BATCHES, Replayed, without_key


@pytest.fixture(scope="module", params=BATCHES)
def shop(request):
    return Replayed("catalogue", batch_records=request.param)


@pytest.fixture(scope="module")
def products(shop):
    return {sku: product for (sku,), product in shop.items(PRODUCT).items()}


@pytest.fixture(scope="module")
def sold(shop, products):
    """The lines whose products are in the catalogue, by the fields of their keys, with these products."""
    lines = shop.items(ORDER_ITEM).items()
    return {fields: (line, products[fields[1]]) for fields, line in lines if fields[1] in products}


def test_a_line_shows_the_name_and_the_category_of_its_product(shop, sold):
    expected = {fields: without_key(ORDER_ITEM, line) for fields, line in shop.items(ORDER_ITEM).items()}
    assert 0 < len(sold) < len(expected)
    for fields, (_, product) in sold.items():
        expected[fields] |= {"product_name": product["name"], "category": product["category"]}
    assert shop.rows(ORDER_ITEM) == expected


def test_a_category_sold_what_its_products_were_paid_for(shop, sold):
    expected = defaultdict(Counter)
    for line, product in sold.values():
        paid = line["price"] * line["quantity"]
        expected[(product["category"],)] += Counter(units=line["quantity"], revenue=paid, lines=1)
    assert len(expected) > 1
    assert shop.rows(CATEGORY_SALES) == expected


def test_a_line_keeps_the_price_that_was_paid(shop, sold):
    assert any(line["price"] != product["price"] for line, product in sold.values())
    revenue = sum(row["revenue"] for row in shop.rows(CATEGORY_SALES).values())
    assert revenue == sum(line["price"] * line["quantity"] for line, _ in sold.values())


def test_a_supplier_has_the_lines_of_its_products(shop, sold):
    cities = {name: supplier["city"] for (name,), supplier in shop.items(SUPPLIER).items()}
    expected = {
        (product["supplier_id"], *fields): {
            "product": product["name"],
            "quantity": line["quantity"],
            "ships_from": cities[product["supplier_id"]],
        }
        for fields, (line, product) in sold.items()
        if product.get("supplier_id") in cities
    }
    assert 0 < len(expected) < len(sold)
    assert shop.rows(SUPPLIER_LINES) == expected


def test_open_orders_stand_under_the_tier_that_their_customer_has(shop):
    tiers = {name: customer["tier"] for (name,), customer in shop.items(CUSTOMER).items()}
    expected = {
        (tiers.get(order["customer_id"], "standard"), order["at"], order_id): {
            "customer_id": order["customer_id"],
            "total": order["total"],
        }
        for (order_id,), order in shop.items(ORDER).items()
        if order["status"] in ("placed", "paid")
    }
    assert len({tier for tier, *_ in expected}) == 3
    assert shop.rows(OPEN_ORDERS) == expected


def test_the_recording_has_what_makes_lookups_hard(shop):
    products, suppliers, customers = (shop.images(key) for key in (PRODUCT, SUPPLIER, CUSTOMER))
    begun = shop.first_records(PRODUCT)
    assert any(number < begun[fields[1:]] for fields, number in shop.first_records(ORDER_ITEM).items())
    for images in (products, suppliers, customers):
        assert any(None in each[:-1] for each in images.values()), "no referent goes and comes back"
    assert any(moves(each, "category") for each in products.values())
    assert any(moves(each, "supplier_id") for each in products.values())
    assert any(moves(each, "tier") for each in customers.values())
    assert any(moves(each, "customer_id") for each in shop.images(ORDER).values())


def moves(images, name):
    """Whether an item changes an attribute from one value to another."""
    return any(one and other and one.get(name) != other.get(name) for one, other in pairwise(images))


def test_lines_of_a_product_move_with_it_and_keep_their_price():
    twin = Twin(app)
    for order_id, price in (("1", 5), ("2", 6)):
        twin.put(ORDER_ITEM, order_id=order_id, sku="LAMP", price=price, quantity=2, at="2026-03-01T08:00:00Z")
    for category in ("lamps", "sale"):
        twin.put(PRODUCT, sku="LAMP", name="Lamp", category=category, price=4)
        (row,) = twin.rows(CATEGORY_SALES)
        assert (row["PK"], row["revenue"], row["units"]) == (f"CATEGORY#{category}", 22, 4)
    twin.delete(PRODUCT, sku="LAMP")
    assert twin.rows(CATEGORY_SALES) == []


def test_a_customer_who_is_not_known_is_of_the_lowest_tier():
    order = {"status": "paid", "at": "2026-03-01T08:00:00Z", "customer_id": "k", "total": 3}
    rest = {name: order[name] for name in ("at", "customer_id", "total")}
    for customer in (None, {}, {"tier": "standard"}):
        assert open_orders(order, customer) == Row(tier="standard", **rest)
    assert open_orders(order, {"tier": "gold"}) == Row(tier="gold", **rest)
    assert open_orders(order | {"status": "shipped"}, {"tier": "gold"}) is None
