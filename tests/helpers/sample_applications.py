"""Twenty-odd applications, each with one option or a few, and a history that makes all of their calls.

A history is a list of steps, each of which is delivered before the next: what is written in it, as ``Played.write``
takes it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from random import Random
from typing import Any, NamedTuple

from handlers import app as examples
from streamfold import (
    Add,
    App,
    Average,
    Collect,
    Count,
    Delete,
    Document,
    Every,
    Key,
    Lookup,
    Max,
    Newest,
    Put,
    Router,
    Row,
    Sum,
    Table,
    Unprocessable,
)
from streamfold.derivations.feed.options import FeedOptions
from tests.helpers import everything, looked_up
from tests.helpers.histories import EXPIRED, random_writes

ORDER, LINE = Key("ORDER#{order_id}", "METADATA"), Key("ORDER#{order_id}", "ITEM#{sku}")
PRODUCT, SUPPLIER = Key("PRODUCT#{product_id}", "META"), Key("SUPPLIER#{supplier_id}", "META")
TAG, CARD = Key("TAG#{tag}", "TOTAL"), Key("ORDER#{order_id}", "CARD#{tag}")
BY_TAG = Key("TAGGED#{tag}", "ORDER#{order_id}")
EXPIRING = Table("main", ttl="expires")
DAY, NIGHT = Key("DAY#{day}", "TOTAL", EXPIRING), Key("NIGHT#{night}", "TOTAL", EXPIRING)
WIDE = [f"{letter * 900}" for letter in "uvwxyz"]
"""Tags whose rows make a contribution that has an item of its own in the state."""
DECADES = 36_500
"""Days that a feed's rows last: people's commands run by the clock of the machine, long after the posts."""
LINES = 5
"""Children, or items that refer to one, of which a fan-out has several pages."""


class Sample(NamedTuple):
    """An application and what happens to its items."""

    app: App
    history: Sequence[Sequence[tuple[Any, Any]]]
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    refusals: int = 0  # of calls with statements on rows, in each step: somebody else writes them meanwhile
    meanwhile: Sequence[tuple[Any, Any]] = ()  # written while a fan-out is open


def made(*declares, name="shop"):
    router = Router()
    for each in declares:
        each(router)
    return App(name, routers=[router])


def order(number=1, **attributes):
    return (f"ORDER#{number}", "METADATA"), {"status": "placed", "tags": ["a"], "total": 5, **attributes}


def line(number=1, sku="a", **attributes):
    return (f"ORDER#{number}", f"ITEM#{sku}"), {"price": 2, "quantity": 3, "product_id": "p", **attributes}


def gone(write, how=None):
    return write[0], how


LIFE = [
    [order(), order(2, tags=["a", "b"])],
    [order(tags=WIDE), order(2, status="paid")],
    [order(tags=["b"]), gone(order(2))],
    [order(status="bad"), order(3, tags=["c"], status="bad")],
    [order(status="paid")],
    [gone(order(), EXPIRED), order(2)],
]
"""Orders come, change, grow large and small, and go; a handler that refuses bad ones fails on two of them."""


CLAIMS = [LIFE[0], [*LIFE[1], order(4)], [*LIFE[2], gone(order(4))], *LIFE[3:]]
"""The same with an order that claims another one's row in the step that a backfill meets."""


# Views and indexes.


def sums(router, **options):
    @router.view(ORDER, into=TAG, name="sums", **options)
    def sums(order):
        for tag in order["tags"]:
            yield Row(tag=tag, orders=Count(), total=Sum(order["total"]), mean=Average(order["total"]))


def parked_sums(router):
    @router.view(ORDER, into=TAG, on_error="park")
    def parked_sums(order):
        if order["status"] == "bad":
            raise Unprocessable("a bad order")
        return [Row(tag=tag, orders=Count()) for tag in order["tags"]]


def greatest(router):
    @router.view(ORDER, into=TAG)
    def greatest(order):
        for tag in order["tags"]:
            yield Row(tag=tag, greatest=Max(order["total"]), states=Collect(order["status"]))


def by_a_helper(router):
    def rows(order):
        return [Row(tag=tag, greatest=Max(order["total"])) for tag in order["tags"]]

    @router.view(ORDER, into=TAG)
    def by_a_helper(order):
        return rows(order)


def newest_wins(router):
    @router.view(ORDER, into=TAG)
    def newest_wins(order):
        for tag in order["tags"]:
            yield Row(tag=tag, status=order["status"], wins=order["total"])


def shards(router):
    @router.view(ORDER, into=Key("SPREAD#{tag}", "SHARD#{shard:02d}"), shards=2)
    def shards(order):
        for tag in order["tags"]:
            yield Row(tag=tag, greatest=Max(order["total"]))


def cards(router):
    @router.view(ORDER, into=CARD)
    def cards(order):
        for tag in order["tags"]:
            yield Row(tag=tag, status=order["status"]) if tag != "b" else Row(tag=tag, orders=Count())


def by_tag(router):
    @router.index(ORDER, into=BY_TAG)
    def by_tag(order):
        for tag in order["tags"]:
            yield Row(tag=tag, status=order["status"])


def only_one(router, **options):
    @router.index(ORDER, into=Key("ONLY#{tag}", "ORDER"), unique=True, by="total", **options)
    def only_one(order, order_id):
        for tag in order["tags"]:
            yield Row(tag=tag, order=order_id)


def days(router):
    @router.view(ORDER, into=DAY)
    def days(order):
        for tag in order["tags"]:
            yield Row(day=tag, orders=Count(), expires=Max(1_900_000_000))


def nights(router):
    """Its rows might expire, and never do."""

    @router.view(ORDER, into=NIGHT)
    def nights(order):
        for tag in order["tags"]:
            yield Row(night=tag, orders=Count())


def on_order(router):
    @router.attributes(LINE, of=ORDER)
    def on_order(line):
        for name in line.get("names", ["lines"]):
            yield Row(attributes={name: Sum(line["quantity"])}, dearest=Max(line["price"]))


def work_key(router):
    @router.attributes(ORDER)
    def work_key(order):
        return None if order["status"] == "paid" else Row(GSI1PK=f"WORK#{order['status']}")


# Each change.


def signs(router):
    @router.on(ORDER, into=Key("SIGNS#{status}", "TOTAL"))
    def signs(change):
        yield Add(status="all", changes=1)


def seen(router):
    @router.on(ORDER, into=Key("SEEN#{order_id}", "ORDER"))
    def seen(change):
        yield Put(status=change.new["status"]) if change.new else Delete()


def audited(router, **options):
    router.audit(ORDER, redact=["total"], **options)


def numbered(router):
    router.audit(ORDER, versions=Key("ORDER#{order_id}", "V#{total:02d}"), latest=Key("ORDER#{order_id}", "LATEST"))


def copied(router):
    router.copy(ORDER, to=Table("copies"))


def called(router):
    @router.on(ORDER, external=True)
    def called(change):
        assert change.event


def published(router):
    """To one destination of each service; the order's own text is too long for a topic."""
    options = {"type": "order.{event}", "at_once": 1}  # moto is of one thread
    router.publish(ORDER, to="eventbridge:shop", name="events", **options)
    router.publish(ORDER, to="sns:orders", name="topics", large="s3://large/orders", **options)
    router.publish(ORDER, to="sqs:orders-2.fifo", name="queues", once=True, **options)


def archived(router):
    router.archive(ORDER, to="s3://removed/orders")


def cascade(router):
    router.cascade(ORDER, children=[LINE], name="lines")


LINES_OF_ORDERS = [
    [order(), *(line(sku=f"{number}") for number in range(LINES)), order(2), line(2)],
    [order(tags=WIDE), line(names=[f"n{number:04d}" * 150 for number in range(6)])],
    [order(status="paid"), line(sku="1", price=7), line(), gone(line(2), EXPIRED)],
    [gone(order()), order(2, status="paid")],
    [gone(order(2))],
]
"""Orders with lines; one goes before its lines."""


# Items that refer to others.


def product(number="p", **attributes):
    return (f"PRODUCT#{number}", "META"), {
        "product_id": number, "category": "x", "price": 2, "supplier_id": "s", **attributes
    }  # fmt: skip


def supplier(number="s", **attributes):
    return (f"SUPPLIER#{number}", "META"), {"supplier_id": number, "name": "one", **attributes}


REFERENTS = [
    [supplier(), product(), product("q", category="y")],
    [line(1, f"{number}") for number in range(LINES)],
    [product(category="z", price=9, tags=["t"]), line(1, "0", product_id="q")],
    [supplier(name="two"), product("q", category="w" * 900)],
    [product(category="u", tags=["v"]), gone(line(1, "1")), gone(line(1, "2"), EXPIRED)],
    [gone(product("q")), line(1, "3", quantity=7)],
    [gone(line(1, f"{number}")) for number in range(LINES)],
]
"""Lines refer to products, and products to suppliers."""


MEANWHILE = [product("r"), line(1, "3", product_id="r"), line(1, "4", product_id="r"), line(1, "5", bad=True)]
"""Lines that refer to another product by now."""


def tags_of_products(router):
    @router.view(LINE, into=TAG, lookup={"product": Lookup(PRODUCT, optional=True)}, inline=1)
    def tags_of_products(line, product):
        if "bad" in line:
            raise Unprocessable("a bad line")
        for tag in (product or {}).get("tags", [line["product_id"]]):
            yield Row(tag=tag, lines=Count())


def names_on_lines(router):
    @router.attributes(LINE, lookup={"product": Lookup(PRODUCT, optional=True)}, inline=1)
    def names_on_lines(line, product):
        if "bad" in line:
            raise Unprocessable("a bad line")
        return Row(product_category=product["category"]) if product and "tags" not in product else None


TAGS_OF_PRODUCTS = [[product(tags=["a"])], *REFERENTS[1:2], [product(tags=WIDE)], [product(tags=["b"])], *REFERENTS[4:]]


# Feeds and searches.

BEGIN = 1_772_355_600
POST = Key("USER#{author_id}", "POST#{at:datetime.seconds}#{post_id}", EXPIRING)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{author_id}", EXPIRING)
FEED = Key("FEED#{reader_id}", "{at:datetime.seconds}#{author_id}#{post_id}", EXPIRING)


def timeline(router, **options):
    @router.feed(POST, audience=FOLLOW, into=FEED, keep_days=DECADES, **{"inline": 2, "most": 1} | options)
    def timeline(post, follow):
        if post["text"] == "bad":
            raise Unprocessable("a bad post")
        return None if follow.get("muted") else Row(text=post["text"], name=follow["name"])


def post(number, text="hello", author="b"):
    at = datetime.fromtimestamp(BEGIN, UTC) + timedelta(seconds=number)
    return POST.compose({"author_id": author, "at": at, "post_id": f"p{number}"}), {"text": text}


def follow(reader, **attributes):
    return FOLLOW.compose({"reader_id": reader, "author_id": "b"}), {"name": "n", **attributes}


POSTS = [
    [follow("v"), post(1)],
    [post(1, "new"), post(5)],
    [follow("u"), gone(follow("v"))],
    [follow("v"), follow("w"), follow("x"), post(1), post(6, "bad")],
    [post(1, "edited"), post(2), post(3)],
    [follow("y"), follow("v", name="m"), gone(post(2))],
    [gone(follow("w")), follow("x", muted=True)],
    [post(4), follow("x"), gone(post(1), EXPIRED)],
    [post(3, "again"), post(4, "again")],
]


def documents(router, **options):
    @router.search(ORDER, to="orders", fields={"status": "keyword"}, **options)
    def documents(order):
        return Document(status=order["status"])


def gathered(router):
    @router.search(ORDER, parts=[LINE], to="gathered", fields={"lines": "long"}, group="search")
    def gathered(order, parts):
        return Document(lines=len([*parts(LINE)]))


def lines_together(router):
    @router.view(ORDER, parts=[Every(LINE, reads=["price"])], into=TAG)
    def lines_together(order, parts):
        for tag in order["tags"]:
            yield Row(tag=tag, orders=Count(), lines=Sum(len(parts(LINE))))

    @router.attributes(ORDER, parts=[Newest(LINE, 2)])
    def last_lines(order, parts):
        return Row(last=[each.key["sku"] for each in parts(LINE)])


def lines_found(router):
    @router.search(
        LINE,
        to="lines",
        fields={"category": "keyword"},
        lookup={"product": PRODUCT, "supplier": Lookup(SUPPLIER, through="product", optional=True)},
        inline=1,
    )
    def lines_found(line, product, supplier):
        if "bad" in line:
            raise Unprocessable("a bad line")
        return Document(category=product["category"], supplier=(supplier or {}).get("name"))


def everything_of(app, seed, count):
    writes = random_writes(Random(seed), count)
    return Sample(app, [writes[start : start + 6] for start in range(0, count, 6)])


def with_small_fan_outs(app):
    """The same handlers, whose batches hand nearly everything to fan-outs; one of them refuses bad lines."""
    router = Router()
    for route in app.routes:
        options, function = route.options, route.function
        if isinstance(options, FeedOptions):
            options = options._replace(inline=1, most=1, keep_days=DECADES)
        if route.name == "product_on_line":
            function = refusing(function)
        router.routes.append(replace(route, inline=1, options=options, function=function, targets=()))
    return App(app.name, routers=[router])


def refusing(handler):
    @wraps(handler)
    def refuses(line, *more, **named):
        if "bad" in line:
            raise Unprocessable("a bad line")
        return handler(line, *more, **named)

    return refuses


def sold(sku="a", **attributes):
    return (f"SKU#{sku}", "PRODUCT"), {"name": "n", "category": "c", "price": 2, "supplier_id": "s", **attributes}


def order_of(number=1, status="placed"):
    return (f"ORDER#{number}", "METADATA"), {"customer_id": "c", "status": status, "total": 5, "at": "2026-03-01"}


def line_of(number, sku="a", **attributes):
    given = {"price": 2, "quantity": 3, "name": "n", "at": "2026-03-01T08:00:00Z", **attributes}
    return (f"ORDER#{number}", f"ITEM#{sku}"), given


SESSION = ("SESSION#1", "METADATA"), {"user_id": "v", "started": "2026-03-01T08:00:00Z", "expires": BEGIN}
CART_LINES = [((("SESSION#1"), f"LINE#{sku}"), {"price": 1, "quantity": 2}) for sku in "abc"]
SHOP = [
    [
        (("USER#b", "PROFILE"), {"name": "b"}),
        *((("USER#v", f"FOLLOWS#{author}"), {"since": "2026"}) for author in "bd"),
        post(1),
        post(9, author="d"),
        (("SUPPLIER#s", "PROFILE"), {"city": "k"}),
        (("CUSTOMER#c", "PROFILE"), {"email": "c@example.com", "tier": "gold"}),
        sold(),
        *(order_of(number) for number in (1, 2, 3)),
        *(line_of(number) for number in (1, 2, 3)),
        SESSION,
        *CART_LINES,
    ],
    [post(1, "edited"), post(9, "edited", "d"), post(2), sold(category="d")],
    [*((("USER#" + reader, "FOLLOWS#b"), {"since": "2026"}) for reader in "wx"), order_of(1, "paid")],
    [post(1, "again"), sold(category="e", name="m", supplier_id="t"), (("USER#b", "PROFILE"), {"name": "bb"})],
    [*(line_of(1, sku) for sku in "bcd"), (("USER#w", "FOLLOWS#b"), None)],
    [gone(order_of(1)), gone(line_of(2)), sold(category="f"), gone(SESSION, EXPIRED)],
]
"""What happens to the items of the examples. A person's backfill meets the second step: the row of the one reader of an
author is replaced without a fan-out. Records of the last step are redriven, so that the archive gets one.
"""


ONE_ORDER = {"status": "placed", "customer": "ana", "labels": ["gift"], "weight": 1, "total": 5}
ONE_ITEM = {"price": 2, "quantity": 3, "day": "2026-03-01", "tags": [], "customer": "ana"}
KEPT_ITEMS = [
    [
        *(order(number, **ONE_ORDER) for number in (1, 2)),
        *(line(sku=f"{number}", **ONE_ITEM) for number in range(LINES)),
    ],
    [order(**ONE_ORDER | {"status": "paid"}), (SESSION[0], {"user": "ana", "day": "2026-03-01", "devices": 1})],
    [order(**ONE_ORDER | {"status": "cancelled"})],
    [gone(order())],
    [order(**ONE_ORDER)],
    *everything_of(everything.kept, 1, 12).history,
    [gone(order())],
]
"""Two orders claim the row of their customer. One of them goes before its lines, which are a long cascade, and comes
back.
"""


SAMPLES = {
    "sums": Sample(made(sums), LIFE),
    "parked": Sample(made(parked_sums), LIFE),
    "ordered": Sample(made(greatest), LIFE),
    "ordered by a helper": Sample(made(by_a_helper), LIFE),
    "newest wins": Sample(made(newest_wins), LIFE),
    "shards": Sample(made(shards), LIFE),
    "cards": Sample(made(cards), LIFE),
    "index": Sample(made(by_tag), LIFE),
    "unique": Sample(made(only_one), LIFE),
    "unique, parked": Sample(made(partial(only_one, on_conflict="park")), LIFE),
    "unique, shown": Sample(made(partial(only_one, on_conflict=Key("BOTH#{tag}", "ORDERS"))), CLAIMS),
    "expiring": Sample(made(days, nights), LIFE),
    "attributes": Sample(made(on_order, work_key), LINES_OF_ORDERS),
    "attributes of the item itself": Sample(made(work_key), LIFE),
    "attributes with a lookup": Sample(made(names_on_lines), REFERENTS, meanwhile=MEANWHILE),
    "additions": Sample(made(signs), LIFE),
    "puts": Sample(made(seen), LIFE),
    "audit": Sample(made(audited), LIFE),
    "numbered": Sample(made(numbered), LIFE),
    "copy": Sample(made(copied), LIFE),
    "external": Sample(made(called), LIFE),
    "archive": Sample(made(archived), LIFE),
    "publish": Sample(made(published), [*LIFE, [gone(order(), EXPIRED), order(2), order(9, note="x" * 200_000)]]),
    "cascade": Sample(made(cascade), LINES_OF_ORDERS, {"chunk_actions": 3}),
    "lookup": Sample(made(tags_of_products), TAGS_OF_PRODUCTS, meanwhile=MEANWHILE),
    "lookups": Sample(
        made(tags_of_products, looked_up.leaders, looked_up.by_supplier, names_on_lines),
        REFERENTS,
        meanwhile=MEANWHILE,
    ),
    "feed": Sample(made(timeline), POSTS, refusals=2),
    "feed, kept": Sample(made(partial(timeline, unfollow="keep")), POSTS, refusals=2),
    "feed, pulled": Sample(made(partial(timeline, pull_above=2)), POSTS, refusals=2),
    "collections": Sample(made(lines_together), [*LINES_OF_ORDERS, *LIFE]),
    "search": Sample(made(documents), LIFE),
    "search with parts": Sample(made(sums, gathered), LINES_OF_ORDERS),
    "search with lookups": Sample(made(lines_found), REFERENTS, meanwhile=MEANWHILE),
    "the examples": Sample(
        with_small_fan_outs(examples), SHOP, {"chunk_actions": 4}, meanwhile=[line_of(3, bad=True), sold("z")]
    ),
    "everything": everything_of(everything.app, 1, 30),
    "everything of items": Sample(everything.kept, KEPT_ITEMS, {"chunk_actions": 3}),
}
