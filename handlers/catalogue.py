"""The catalogue: order lines with the name and category of their product, sales by category, lines by supplier, and
open orders by the tier of their customer. All follow both sides.

The price on a line is no lookup: the writer copies it when the order is placed, because it stays what was paid.
"""

from handlers.shop import CUSTOMER, ORDER, ORDER_ITEM, PRODUCT
from streamfold import Count, Item, Key, Lookup, Router, Row, Sum

SUPPLIER = Key("SUPPLIER#{supplier_id}", "PROFILE")
CATEGORY_SALES = Key("CATEGORY#{category}", "SALES")
SUPPLIER_LINES = Key("SUPPLIER#{supplier_id}", "LINE#{order_id}#{sku}")
OPEN_ORDERS = Key("TIER#{tier}", "OPEN#{at}#{order_id}")

router = Router()


@router.attributes(ORDER_ITEM, lookup={"product": Lookup(PRODUCT, reads=["name", "category"])})
def product_on_line(line: Item, product: Item) -> Row:
    return Row(product_name=product["name"], category=product["category"])


@router.view(ORDER_ITEM, into=CATEGORY_SALES, lookup={"product": Lookup(PRODUCT, reads=["category"])})
def category_sales(line: Item, product: Item) -> Row:
    units, paid = line["quantity"], line["price"] * line["quantity"]
    return Row(category=product["category"], units=Sum(units), revenue=Sum(paid), lines=Count())


@router.index(
    ORDER_ITEM,
    into=SUPPLIER_LINES,
    lookup={
        "product": Lookup(PRODUCT, reads=["name", "supplier_id"]),
        "supplier": Lookup(SUPPLIER, through="product", reads=["city"]),  # the supplier_id of the product
    },
)
def supplier_lines(line: Item, product: Item, supplier: Item) -> Row:
    supplier_id, name = product["supplier_id"], product["name"]
    return Row(supplier_id=supplier_id, product=name, quantity=line["quantity"], ships_from=supplier["city"])


@router.index(ORDER, into=OPEN_ORDERS, lookup={"customer": Lookup(CUSTOMER, optional=True, reads=["tier"])})
def open_orders(order: Item, customer: Item | None) -> Row | None:
    if order["status"] not in ("placed", "paid"):
        return None
    tier = customer.get("tier", "standard") if customer else "standard"
    return Row(tier=tier, at=order["at"], customer_id=order["customer_id"], total=order["total"])
