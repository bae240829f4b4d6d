"""Applications with a lookup of each kind, for histories: every kind of handler, level, and way to a referent.

``LookupShop`` plays batches of such an application over a table.
"""

from collections import Counter

from streamfold import App, Collect, Count, Document, Key, Latest, Lookup, Max, Router, Row, Sum
from streamfold.batch.fan_outs import run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

LINE = Key("ORDER#{order_id}", "ITEM#{sku}")
PRODUCT = Key("PRODUCT#{product_id}", "META")
SUPPLIER = Key("SUPPLIER#{supplier_id}", "META")
FOLDER = Key("FOLDER#{folder_id}", "META")
SALES = Key("CATEGORY#{category}", "SALES")
LINES_BY_SUPPLIER = Key("SUPPLIER#{supplier}", "ORDER#{order_id}#ITEM#{sku}")
PRODUCT_TOTAL = Key("PRODUCT#{product_id}", "TOTAL")

PRODUCT_READ = Lookup(PRODUCT, reads=["category", "price"])


def made(*handlers, name="looked_up"):
    """An application of some of the handlers."""
    router = Router()
    for handler in handlers:
        handler(router)
    return App(name, routers=[router])


def sales(router, inline=2_000):
    """Inner, rows that many items share."""

    @router.view(LINE, into=SALES, lookup={"product": PRODUCT_READ}, inline=inline)
    def sales(line, product):
        return Row(category=product["category"], total=Sum(line["quantity"] * product["price"]), lines=Count())


def sales_by_fan_outs(router):
    """The same, each referent with several referrers visited by a fan-out."""
    sales(router, inline=1)


def leaders(router):
    """Ordered values of a referent, two lookups, both optional."""

    @router.view(
        LINE,
        into=Key("LEADERS", "{category}"),
        lookup={
            "product": Lookup(PRODUCT, optional=True),
            "other": Lookup(PRODUCT, product_id="instead_of", optional=True),
        },
    )
    def leaders(line, product, other):
        if product or other:
            yield Row(
                category=(product or other).get("category", "-"),
                dearest=Max((product or other)["price"]),
                latest=Latest(product["price"] if product else -1, by=line["quantity"]),
                instead=Collect(other["price"] if other else -1, into=list),
            )


def spread(router):
    """Rows that are spread over shards."""

    @router.view(LINE, into=Key("ALL#{category}", "S#{shard:02d}"), shards=3, lookup={"product": PRODUCT})
    def spread(line, product):
        return Row(category=product["category"], units=Sum(line["quantity"]))


def by_supplier(router):
    """A row of each item, through another lookup."""

    @router.index(
        LINE,
        into=LINES_BY_SUPPLIER,
        lookup={"product": PRODUCT_READ, "supplier": Lookup(SUPPLIER, through="product", optional=True)},
        inline=1,
    )
    def by_supplier(line, product, supplier, order_id):
        name = supplier["name"] if supplier else "none"
        return Row(supplier=name, of=order_id, price=product["price"], quantity=line["quantity"])


def first_of_category(router):
    """A row that several items claim."""

    @router.index(LINE, into=Key("FIRST#{category}", "LINE"), unique=True, by="quantity", lookup={"product": PRODUCT})
    def first_of_category(line, product, order_id, sku):
        return Row(category=product["category"], order=order_id, sku=sku, price=product["price"])


def product_on_line(router):
    """Attributes of the item itself, every referrer visited by a fan-out."""

    @router.attributes(LINE, lookup={"product": Lookup(PRODUCT, optional=True, reads=["category"])}, inline=1)
    def product_on_line(line, product):
        return Row(product_category=product["category"] if product else "none")


def dearest_on_supplier(router):
    """Attributes of another item."""

    @router.attributes(PRODUCT, of=SUPPLIER, lookup={"supplier": SUPPLIER})
    def dearest_on_supplier(product, supplier):
        return Row(supplier_id=product["supplier_id"], dearest=Max(product["price"]), of=Collect(supplier["name"]))


def parent_of_folder(router):
    """A tree: items that refer to others of their key."""

    @router.attributes(FOLDER, lookup={"parent": Lookup(FOLDER, folder_id="parent_id", optional=True)})
    def parent_of_folder(folder, parent):
        return Row(parent_name=parent["name"]) if parent else None


def totals(router):
    """What the next one looks up: a plain view."""

    @router.view(LINE, into=PRODUCT_TOTAL)
    def totals(line):
        if "product_id" in line:
            yield Row(product_id=line["product_id"], units=Sum(line["quantity"]))


def share_of_total(router):
    """A row that a view keeps."""
    totals(router)

    @router.view(LINE, into=Key("SHARES#{units:d}", "TOTAL"), lookup={"total": Lookup(PRODUCT_TOTAL, optional=True)})
    def share_of_total(line, total):
        return Row(units=int(total["units"]) if total else -1, lines=Count(), quantity=Sum(line["quantity"]))


def dearest_seen(router):
    """Attributes that are derived onto a referent."""
    dearest_on_supplier(router)

    @router.view(PRODUCT, into=Key("DEAREST#{dearest:d}", "PRODUCTS"), lookup={"supplier": SUPPLIER})
    def dearest_seen(product, supplier):
        return Row(dearest=int(supplier.get("dearest", -1)), products=Count())


def document_of_line(router):
    """A document, through another lookup."""

    @router.search(
        LINE,
        to="lines",
        fields={"category": "keyword"},
        lookup={"product": PRODUCT_READ, "supplier": Lookup(SUPPLIER, through="product", optional=True)},
    )
    def document_of_line(line, product, supplier, order_id):
        name = supplier["name"] if supplier else "none"
        return Document(category=product["category"], of=order_id, supplier=name, quantity=line["quantity"])


def documents_of_line(router):
    """Documents under ids that follow from referents, each root visited by a fan-out."""

    @router.search(
        LINE,
        to="names",
        id="{order_id}#{sku}#{category}",
        fields={"category": "keyword"},
        lookup={
            "product": Lookup(PRODUCT, reads=["category"], optional=True),
            "other": Lookup(PRODUCT, product_id="instead_of", reads=["category"], optional=True),
        },
        inline=1,
    )
    def documents_of_line(line, product, other):
        for category in {each["category"] for each in (product, other) if each}:
            yield Document(category=category, quantity=line["quantity"])


def document_of_product(router):
    """A document with a row of a view as its part."""
    totals(router)

    @router.search(
        PRODUCT, parts=[PRODUCT_TOTAL], to="products", fields={"name": "text"}, lookup={"supplier": SUPPLIER}
    )
    def document_of_product(product, parts, supplier):
        return Document(name=supplier["name"], units=parts.one(PRODUCT_TOTAL).get("units", 0))


def document_with_total(router):
    """A document with a row that a view keeps, each of its roots visited by a fan-out."""
    totals(router)

    @router.search(
        LINE,
        to="totals",
        fields={"units": "long"},
        lookup={"total": Lookup(PRODUCT_TOTAL, optional=True)},
        inline=1,
    )
    def document_with_total(line, total):
        return Document(units=int(total["units"]) if total else -1)


EACH = [
    sales,
    sales_by_fan_outs,
    leaders,
    spread,
    by_supplier,
    first_of_category,
    product_on_line,
    dearest_on_supplier,
    parent_of_folder,
    share_of_total,
    dearest_seen,
    document_of_line,
    documents_of_line,
    document_of_product,
    document_with_total,
]
"""All of them; each makes an application of its own."""
TOGETHER = [sales, leaders, spread, by_supplier, first_of_category, product_on_line, parent_of_folder, share_of_total]
"""Those that make one application."""

ITEMS = {
    LINE: [
        {"product_id": "p", "quantity": 3},
        {"product_id": "q", "quantity": 5, "instead_of": "p"},
        {"quantity": 1, "instead_of": "q"},
    ],
    PRODUCT: [
        {"product_id": "p", "category": "x", "price": 2, "supplier_id": "s", "note": 1},
        {"product_id": "q", "category": "y", "price": 7, "supplier_id": "t", "note": 1},
    ],
    SUPPLIER: [{"supplier_id": "s", "name": "one", "note": 1}, {"supplier_id": "t", "name": "two", "note": 2}],
    FOLDER: [
        {"folder_id": "a", "name": "m", "parent_id": "b"},
        {"folder_id": "b", "name": "n", "parent_id": "a"},
        {"folder_id": "c", "name": "o"},
    ],
}
"""What items of each key look like."""


def items_of(app):
    """The items that an application reads."""
    read = {each.key for route in app.routes for each in route.kind.subscriptions(route)}
    return {key: items for key, items in ITEMS.items() if key in read}


class LookupShop:
    """A table, its changes, and the function that derives from them into a store that counts."""

    def __init__(self, app):
        self.app = app
        self.engine = MemoryEngine(app)
        self.engine.source_tables.update(app.source_tables)
        self.store = CountingEngine(self.engine)
        self.items, self.sequence, self.queued = {}, 0, []

    def runtime(self, **more):
        return Runtime(self.app, self.store, Settings(), pause=lambda _: None, **more)

    def write(self, pk, sk, attributes):
        """The change of an item, which is in the table by then."""
        new = None if attributes is None else item(pk, sk, **attributes)
        old, self.items[pk, sk] = self.items.get((pk, sk)), new
        self.sequence += 1
        made = change(old, new, self.sequence)
        raw = None if new is None else encode(new)["M"]
        self.engine.put_sources([(("main", pk, sk), raw, made.version_text)])
        return made

    def line_of(self, number, product_id, **attributes):
        """The change of an order line that refers to a product, or to none."""
        refers = {} if product_id is None else {"product_id": product_id}
        return self.write(f"ORDER#{number}", "ITEM#a", attributes | refers)

    def process(self, *changes, **more):
        runtime = self.runtime(**more)
        failures = process_changes(runtime, changes).failures
        self.queued = runtime.queued
        return failures

    def fan_out(self):
        """Works on the fan-outs that the last batch opened."""
        runtime = self.runtime()
        runtime.queued = self.queued
        return run_fan_outs(runtime).failures

    def backlinks(self):
        """The number of backlinks by referent."""
        return Counter(key.pk.split("#", 3)[3] for key in self.engine.state if key.pk.startswith("refs#"))

    def counted(self, *changes):
        """Requests, read units and write units of a batch, without the read of the manifest."""
        self.process()  # the manifest is known
        self.store.calls.clear()
        assert self.process(*changes) == []
        calls = self.store.calls[1:]
        return (
            sum(call.requests for call in calls),
            sum(call.read_units for call in calls),
            sum(call.write_units for call in calls),
        )


class Meanwhile(CountingEngine):
    """Calls what happens before the first call of a name."""

    happens = None

    def __getattribute__(self, name):
        happens = object.__getattribute__(self, "happens")
        if happens is not None and name == happens[0]:
            self.happens = None
            happens[1]()
        return object.__getattribute__(self, name)
