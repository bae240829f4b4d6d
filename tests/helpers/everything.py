"""An application with one of everything, for tests of histories: every kind, target and guard that can be declared."""

from streamfold import (
    Add,
    App,
    Average,
    Collect,
    Count,
    Delete,
    Distinct,
    First,
    Key,
    Latest,
    Max,
    Min,
    Put,
    Router,
    Row,
    Sum,
    Table,
    Top,
)

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
SESSION = Key("SESSION#{session_id}", "METADATA")

ORDER_TOTAL = Key("ORDER#{order_id}", "TOTAL")
SALES = Key("SALES#{day}", "SKU#{sku}")
TAG = Key("TAG#{tag}", "TOTAL")
CUSTOMER = Key("CUSTOMER#{customer}", "TOTAL")
CARD = Key("CARD#{order_id}", "CARD")
BY_STATUS = Key("STATUS#{status}", "ORDER#{order_id}")
PRICES = Key("PRICES#{tag}", "TOTAL")
LEADERS = Key("LEADERS", "{customer}")
SPREAD = Key("SPREAD#{day}", "SHARD#{shard:02d}")
RANGE = Key("RANGE", "TOTAL")
BAND = Key("BAND#{band}", "TOTAL")
ALL = Key("ALL", "TOTAL")
SIGN_INS = Key("SIGNINS#{day}", "TOTAL")
SEEN = Key("USER#{user}", "SESSION#{session_id}")
ORDER_VERSION = Key("ORDER#{order_id}", "VERSION#{weight:02d}")
LATEST_ORDER = Key("ORDER#{order_id}", "LATEST")

router = Router()
router.audit(ORDER, redact=["email"], versions=ORDER_VERSION, latest=LATEST_ORDER)  # of few numbers, so that they recur
router.audit(SESSION, name="session_history")
router.copy(ORDER, SESSION, to=Table("copies"))


@router.view(ORDER_ITEM, into=ORDER_TOTAL)
def order_total(item):
    yield Row(total=Sum(item["price"] * item["quantity"]), lines=Count())


@router.view(ORDER_ITEM, into=SALES)
def daily_sales(item):
    yield Row(day=item["day"], units=Sum(item["quantity"]))


@router.view(ORDER_ITEM, into=[TAG, CUSTOMER])
def tags_and_customers(item, sku):
    for tag in sorted(item["tags"]):
        yield Row(TAG, tag=tag, items=Count(), units=Sum(item["quantity"]))
    if sku != "free":
        yield Row(CUSTOMER, customer=item["customer"], spent=Sum(item["price"]), price=Average(item["price"]))


@router.view(ORDER, into=CUSTOMER)
def customer_orders(order):
    if order["status"] != "cancelled":
        yield Row(customer=order["customer"], orders=Count())


@router.view(ORDER_ITEM, into=[PRICES, LEADERS])
def prices(item, sku):
    if item["customer"] == "ana" or item["price"] > 0:
        yield Row(
            PRICES,
            tag=item["day"],
            greatest=Max(item["price"]),
            least=Min(item["price"]),
            latest=Latest(sku, by=item["quantity"]),
            first=First({"sku": sku, "tags": item["tags"]}, by=item["price"]),
            customers=Distinct(item["customer"]),
            expires=Max(item["quantity"]),
            units=Sum(item["quantity"]),
        )
    for tag in sorted(set(item["tags"])):
        yield Row(
            LEADERS,
            customer=item["customer"],
            top=Top(2, {"sku": sku, "price": item["price"]}, by=item["price"]),
            tags=Collect(tag, most=2),
            days=Collect(item["day"], into=list),
        )
    yield Row(
        LEADERS,
        customer=item["customer"],
        sku=sku,
        at=item["day"],
        wins=item["quantity"],
        score=Average(item["price"]),
    )


@router.view(ORDER_ITEM, into=SPREAD, shards=2)
def in_shards(item, sku):
    yield Row(
        day=item["day"],
        units=Sum(item["quantity"]),
        greatest=Max(item["price"]),
        top=Top(2, sku, by=item["price"]),
        customers=Distinct(item["customer"]),
    )


@router.view(PRICES, into=RANGE)
def ranges(row):
    yield Row(greatest=Max(row.get("greatest", 0)), least=Min(row.get("least", 0)), days=Count())


@router.view(ORDER, into=CARD)
def order_card(order):
    yield Row(status=order["status"], labels=order["labels"], weight=Sum(order["weight"]))


@router.index(ORDER, into=BY_STATUS)
def orders_by_status(order):
    for status in sorted({order["status"], *order["labels"]}):
        yield Row(status=status, customer=order["customer"])


@router.view(ORDER_TOTAL, into=BAND)
def bands(row):
    total = row.get("total", 0)
    yield Row(band="high" if total >= 100 else "low", orders=Count(), total=Sum(total))


@router.view(BAND, into=ALL)
def everything(row):
    yield Row(bands=Count(), total=Sum(row.get("total", 0)))


@router.on(SESSION, events=["INSERT"], into=SIGN_INS)
def sign_ins(change):
    yield Add(SIGN_INS, day=change.new["day"], sign_ins=1, devices=change.new["devices"])


@router.on(SESSION, into=SEEN)
def seen(change, session_id):
    if change.expired:
        yield Put(user=change.old["user"], state="expired", at=change.at)
    elif change.event == "REMOVE":
        yield Delete(user=change.old["user"])
    else:
        if change.old and change.old["user"] != change.new["user"]:
            yield Delete(user=change.old["user"])
        yield Put(user=change.new["user"], state="open", devices=change.new["devices"])


@router.on(SESSION, changed=["user"], events=["MODIFY"], into=Key("HANDOVERS", "TOTAL"))
def handovers(change):
    yield Add(handovers=1)


app = App("everything", routers=[router])


def app_of(*names):
    """An application with some of the handlers only."""
    chosen = Router()
    chosen.routes = [route for route in router.routes if route.name in names]
    return App("everything", routers=[chosen])


CHAINED = {"bands", "everything", "ranges"}
new_images_suffice = app_of("sign_ins", *(route.name for route in router.routes if route.kind.contributes))
"""Without those that compare both images or look at the old one."""
without_chains = app_of(*(route.name for route in router.routes if route.name not in CHAINED))
"""What one event leads to in a store whose streams nobody reads."""
new_images_without_chains = app_of(*({route.name for route in new_images_suffice.routes} - CHAINED))
"""Both."""

claims = Router()


@claims.index(ORDER, into=[Key("FIRST#{label}", "ORDER")], unique=True, by="weight", smallest=True)
def first_of_label(order, order_id):
    for label in sorted({order["status"], *order["labels"]}):
        yield Row(label=label, order=order_id, customer=order["customer"])


claimed = App("everything", routers=[claims])
"""Rows that several items may claim."""

items = Router()
items.cascade(ORDER, children=[ORDER_ITEM])
items.archive(ORDER, SESSION, to="s3://removed/everything")
items.publish(SESSION, to="eventbridge:sessions", type="session.{event}", changed=["user"], at_once=1)


@items.publish(ORDER, to="sqs:orders.fifo", type="order.cancelled", changed=["status"], once=True, at_once=1)
def cancelled(change, order_id):
    return {"order_id": order_id} if change.new and change.new["status"] == "cancelled" else None


@items.attributes(ORDER_ITEM, of=ORDER)
def lines_of_order(item):
    yield Row(total=Sum(item["price"] * item["quantity"]), lines=Count(), dearest=Max(item["price"]))


@items.attributes(ORDER)
def orders_in_work(order):
    if order["status"] != "cancelled":
        yield Row(GSI1PK=f"WORK#{order['status']}", GSI1SK=order["customer"])


@items.view(ORDER, into=Key("SIZE#{size}", "ORDERS"))
def sizes(order):
    yield Row(size="large" if order.get("total", 0) >= 100 else "small", orders=Count())


@items.index(ORDER, into=Key("ONLY#{customer}", "ORDER"), unique=True, on_conflict=Key("BOTH#{customer}", "ORDERS"))
def only_order(order, order_id):
    yield Row(customer=order["customer"], order=order_id)


@items.index(
    SESSION,
    into=Key("DEVICES#{devices:d}", "SESSION"),
    unique=True,
    by="day",
    smallest=True,
    ties="largest key",
    on_conflict="park",
)
def first_session(session, session_id):
    yield Row(devices=session["devices"], session=session_id)


kept = App("everything", routers=[items])
"""What writes to items, removes and keeps them: a model of given records alone cannot tell their rows."""
whole = App("everything", routers=[router, claims, items])
"""All of it."""
