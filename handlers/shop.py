"""The shop: totals and states of orders, sales by day, customers with their orders, the history of every order, and the
ratings of products.

Each function says what one item contributes; amendments, moves and deletions follow from it.

What is shipped of an order is an application of its own, whose rows are made of several items together:
``streamfold replay events/shop/deliveries.jsonl --app handlers.shop:app`` runs it.
"""

from streamfold import App, Count, Every, Item, Key, Parts, Router, Row, Sum

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
SHIPMENT = Key("ORDER#{order_id}", "SHIPMENT#{number:06d}")
ORDER_TOTAL = Key("ORDER#{order_id}", "TOTAL")
CUSTOMER = Key("CUSTOMER#{customer_id}", "PROFILE")
CUSTOMER_BY_EMAIL = Key("EMAIL#{email}", "CUSTOMER")
ORDER_BY_STATUS = Key("STATUS#{status}", "ORDER#{order_id}")
ORDER_BY_DELIVERY = Key("DELIVERY#{delivery}", "ORDER#{order_id}")
CUSTOMER_ORDERS = Key("CUSTOMER#{customer_id}", "ORDERS")
CUSTOMER_HISTORY = Key("CUSTOMER#{customer_id}", "ORDER#{at}#{order_id}")
SALES = Key("SALES#{day}", "SKU#{sku}")
ALL_ORDERS = Key("TOTALS#ALL", "ORDERS")
PRODUCT = Key("SKU#{sku}", "PRODUCT")
REVIEW = Key("SKU#{sku}", "REVIEW#{customer_id}")
PRODUCT_RATING = Key("SKU#{sku}", "RATING")

router, deliveries = Router(), Router()
router.audit(ORDER, ORDER_ITEM, redact=["email"])
router.cascade(ORDER, children=[ORDER_ITEM], name="order_items")  # whoever deletes an order need not know its items
router.archive(ORDER, to="s3://deleted-orders/shop", name="deleted_orders")  # or as STREAMFOLD_ARCHIVE says


@router.view(ORDER_ITEM, into=ORDER_TOTAL)
def order_total(item: Item) -> Row:
    return Row(total=Sum(item["price"] * item["quantity"]), lines=Count())


@router.view(ORDER_ITEM, into=SALES)
def daily_sales(item: Item) -> Row:
    return Row(day=item["at"][:10], units=Sum(item["quantity"]), revenue=Sum(item["price"] * item["quantity"]))


@router.index(ORDER, into=ORDER_BY_STATUS)
def orders_by_status(order: Item) -> Row:
    return Row(status=order["status"], customer_id=order["customer_id"], at=order["at"], total=order["total"])


@router.index(ORDER, into=CUSTOMER_HISTORY)  # one query gives a customer's orders, oldest first
def customer_history(order: Item) -> Row:
    return Row(customer_id=order["customer_id"], at=order["at"], status=order["status"], total=order["total"])


@router.index(CUSTOMER, into=CUSTOMER_BY_EMAIL, unique=True)  # of two customers with one address both are shown
def customer_by_email(customer: Item, customer_id: str) -> Row | None:
    if customer.get("email"):
        return Row(email=customer["email"].lower(), customer_id=customer_id)
    return None


@router.view(ORDER, into=CUSTOMER_ORDERS)
def customer_orders(order: Item) -> Row | None:
    if order["status"] != "cancelled":
        return Row(customer_id=order["customer_id"], orders=Count(), spent=Sum(order["total"]))
    return None


@router.view(ORDER_TOTAL, into=ALL_ORDERS)  # a chain: its source is the row that order_total keeps
def all_orders(order: Item) -> Row:
    return Row(orders=Count(), lines=Sum(order["lines"]), total=Sum(order["total"]))


@router.view(REVIEW, into=PRODUCT_RATING)  # beside the product: its document is gathered from both (search.py)
def product_rating(review: Item) -> Row:
    return Row(stars=Sum(review["stars"]), reviews=Count())


# Of a line the key alone counts: a changed price or quantity costs nothing, and neither does a shipment's new carrier.
@deliveries.attributes(ORDER, parts=[Every(ORDER_ITEM, reads=[]), Every(SHIPMENT, reads=["sku"])])
def delivery_of_order(order: Item, parts: Parts) -> Row:
    shipped = {each["sku"] for each in parts(SHIPMENT)}
    missing = [line.key["sku"] for line in parts(ORDER_ITEM) if line.key["sku"] not in shipped]
    state = "open" if not shipped else "partly shipped" if missing else "shipped"
    return Row(delivery=state, missing=missing)


@deliveries.index(ORDER, into=ORDER_BY_DELIVERY)  # sees what delivery_of_order derives
def orders_by_delivery(order: Item) -> Row | None:
    return Row(delivery=order["delivery"], missing=order["missing"]) if "delivery" in order else None


app = App("deliveries", routers=[deliveries])
lambda_handler = app.lambda_handler
