"""What a version of the code makes of an item is what the item alone would show its readers."""

import pytest

from streamfold import App, Key, Lookup, Router, Row, Table
from streamfold.engines import MemoryEngine
from streamfold.errors import SettingsError
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.diff import CodeDiff, RaisedError, SideRows, row_at, side_page
from streamfold.proofs.oracle import folded_rows, stored_rows
from streamfold.records.values import encode
from tests.helpers.backfill_histories import IMAGES, application
from tests.helpers.records import item
from tests.helpers.woken import START, at, counted, made

APP = application(new=True)


@pytest.mark.parametrize("image", IMAGES)
def test_rows_of_one_item_are_those_of_its_fold(image):
    whole = item("ITEM#1", "METADATA", **image)
    folded = folded_rows(APP, {("main", "ITEM#1", "METADATA"): whole})
    (made,) = side_page(APP, Schema(), [("main", encode(whole)["M"])])
    found = {row_at(place): row for rows in made.rows.values() for place, row in rows.items()}
    assert found == stored_rows(APP, ((key, encode(row)["M"]) for key, row in folded.items()))
    assert SideRows.of(made.line()) == made


def test_only_wanted_handlers_are_asked_and_one_that_raises_fails_alone():
    image = encode(item("ITEM#1", "METADATA", group="x", amount=2))["M"]
    (made,) = side_page(APP, Schema(), [("main", image)], {"total", "name"})
    assert list(made.rows) == ["total"]
    assert made.raised["name"].type == "AttributeMissing"
    assert isinstance(SideRows.of(made.line()).raised["name"], RaisedError)


def test_items_of_another_table_or_with_other_keys_are_nobodys():
    nobodys = side_page(APP, Schema(), [("other", {}), ("main", {"id": {"S": "1"}})])
    assert nobodys == [({}, {}, {}, {}), ({}, {}, {}, {})]


LINE, PRODUCT = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("PRODUCT#{product_id}", "META")
SUPPLIER = Key("SUPPLIER#{supplier_id}", "META")


def looking(**lookups):
    router = Router()

    @router.index(LINE, into=Key("LINE#{order_id}", "{sku}"), lookup=lookups)
    def line(line, product, supplier=None):
        return Row(category=product["category"], **({"supplier": supplier["name"]} if supplier else {}))

    return App("shop", routers=[router])


def test_a_version_names_the_referents_that_it_lacks_level_by_level():
    app = looking(product=PRODUCT, supplier=Lookup(SUPPLIER, through="product", optional=True))
    line = encode(item("ORDER#1", "ITEM#a", product_id="p"))["M"]
    (made,), referents, asked = side_page(app, Schema(), [("main", line)]), {}, []
    while made.wanted:
        assert (made.rows, SideRows.of(made.line())) == ({}, made)
        (lacking,) = made.wanted["line"]
        asked.append(row_at(lacking))
        stored = {"PRODUCT#p": {"category": "x", "supplier_id": "s"}, "SUPPLIER#s": {"name": "n"}}
        _, name, sort = row_at(lacking)
        referents[lacking] = encode(item(name, sort, **stored[name]))["M"]
        (made,) = side_page(app, Schema(), [("main", line)], None, referents)
    assert asked == [("main", "PRODUCT#p", "META"), ("main", "SUPPLIER#s", "META")]
    assert [*made.rows["line"].values()] == [{"category": {"S": "x"}, "supplier": {"S": "n"}}]


def test_a_referent_that_is_known_to_be_absent_is_asked_for_once():
    line = encode(item("ORDER#1", "ITEM#a", product_id="p"))["M"]
    app = looking(product=PRODUCT)
    (made,) = side_page(app, Schema(), [("main", line)])
    (lacking,) = made.wanted["line"]
    (made,) = side_page(app, Schema(), [("main", line)], None, {lacking: None})
    assert made.rows == {"line": {}}


class Shop(MemoryEngine):
    """Items of two versions of the code."""

    def __init__(self, app, **items):
        super().__init__(app.tables.values())
        self.source_tables.update(app.tables)
        keys = {"line": ("ORDER#1", "ITEM#a"), "product": ("PRODUCT#p", "META")}
        self.put_sources(
            (("main", *keys[name]), encode(item(*keys[name], **content))["M"], "1") for name, content in items.items()
        )


def compared(old, new, engine):
    def before(items, referents):
        return [made for each in items for made in side_page(old, Schema(), [each], None, referents)]

    made = CodeDiff(new, engine, Schema(), ["line"], before)
    assert made.page([("main", "ORDER#1", "ITEM#a")]) == 1
    return [(each.old, each.new) for each in made.changes]


def test_both_versions_get_the_referents_that_each_asks_for():
    old, new = looking(product=Lookup(PRODUCT, product_id="before")), looking(product=PRODUCT)
    engine = Shop(new, line={"product_id": "p", "before": "q"}, product={"category": "x"})
    assert compared(new, new, engine) == []
    assert compared(old, new, engine) == [(None, {"category": {"S": "x"}})]
    assert compared(new, old, engine) == [({"category": {"S": "x"}}, None)]


def test_a_lookup_in_a_table_that_the_new_code_does_not_declare_is_refused():
    other = looking(product=Key("P#{product_id}", None, Table("products", sort=None)))
    new = looking(product=PRODUCT)
    engine = Shop(new, line={"product_id": "p"})
    with pytest.raises(SettingsError, match="looks up items of table 'products', which the new one does not declare"):
        compared(other, new, engine)


def test_both_versions_are_asked_at_one_time():
    app = made(counted)
    engine = MemoryEngine(app)
    engine.source_tables.update(app.tables)
    ticket = item("TICKET#1", "META", status="open", team="a", due_at=at(60))
    engine.put_sources([(("main", "TICKET#1", "META"), encode(ticket)["M"], "1")])

    def before(items, referents):
        return side_page(app, Schema(), items, None, referents, START + 59)

    same = CodeDiff(app, engine, Schema(), ["counted"], before, START + 59)
    later = CodeDiff(app, engine, Schema(), ["counted"], before, START + 60)
    for each in (same, later):
        each.page([("main", "TICKET#1", "META")])
    assert (same.differs, [(each.old, each.new) for each in later.changes]) == (
        False,
        [(None, {"tickets": {"N": "1"}})],
    )
