"""Handlers that look others up in runs over whole tables: verify, live and by exports, backlinks, and estimates."""

import pytest

from streamfold import App, Count, Key, Router, Row, Sum, Table
from streamfold.commit.referents import lacking_backlinks
from streamfold.errors import SettingsError
from streamfold.failures.repair import Repair
from streamfold.keys.table import STATE
from streamfold.ledger.contribution import backlink_key, backlinks
from streamfold.lifecycle.exports import open_export
from streamfold.lifecycle.other_rows import verify_exports
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.verify import Verifier, idle_backlinks
from streamfold.settings import Settings
from streamfold.writes.guarded import DeleteState
from tests.batch.test_lookups import LINE, PRODUCT, Shop
from tests.helpers.exports import write_export
from tests.helpers.looked_up import EACH, made

LINE_1, PRODUCT_P, PRODUCT_Q = (
    ("main", "ORDER#1", "ITEM#a"),
    ("main", "PRODUCT#p", "META"),
    ("main", "PRODUCT#q", "META"),
)
OTHER_PRODUCT = Key("P#{product_id}", None, Table("products", sort=None))
SALES_X = ("main", "CATEGORY#x", "SALES")


@pytest.fixture
def shop():
    shop = Shop()
    shop.process(
        shop.product("p", "x"), shop.product("q", "y"), *(shop.line(number, "pq"[number % 2]) for number in range(6))
    )
    assert shop.sales() == {"x": 3, "y": 3}
    return shop


def put_other_product(shop):
    shop.engine.put_sources([(("products", "P#p", None), {"PK": {"S": "P#p"}, "category": {"S": "x"}}, "1")])


def verified_rows(shop, *, live=False):
    runtime = shop.runtime()
    runtime.store = runtime.engine = shop.engine
    return RowsVerifier(runtime, shop.app.routes, live=live).verify()


def verified_items(shop, *numbers):
    pages = Pages(shop.runtime(), {route.name for route in shop.app.routes}, dry_run=True)
    verifier = Verifier(pages, 0)
    verifier.page([("main", f"ORDER#{number}", "ITEM#a") for number in numbers])
    return verifier.found


def exports_of(shop, folder):
    engine, tables = shop.engine, {**shop.app.tables, "state": STATE}
    found = {}
    for name, table in tables.items():
        items = list(engine.state_items() if name == "state" else engine.items(table))
        if name != "state":  # the engine keeps source items apart from rows
            items += [image for key, (_, image) in engine._sources.items() if key[0] == name and image]
        place = write_export(folder / name, items, files=2, table=name)
        found[table.name] = open_export(place, table, None)
    return found


def verified_exports(shop, folder):
    return verify_exports(shop.app, Settings(), shop.app.routes, exports_of(shop, folder))


def differing(found):
    return [(each.row[1], each.what) for each in found.different]


def test_rows_that_follow_both_sides_are_not_different(shop, tmp_path):
    for found in (verified_rows(shop), verified_rows(shop, live=True), verified_exports(shop, tmp_path).rows):
        assert (found.rows, differing(found), found.failed) == (2, [], [])


def test_a_change_of_a_referent_that_was_lost_shows_in_the_rows_of_both_values(shop, tmp_path):
    shop.product("p", "z")  # no function hears of it
    for found in (verified_rows(shop), verified_exports(shop, tmp_path).rows):
        assert differing(found) == [("CATEGORY#x", "extra"), ("CATEGORY#z", "missing")]
    items = verified_exports(shop, tmp_path).items
    assert (items.equal, len(items.different)) == (3, 3)


def test_a_row_that_somebody_changed_is_found_in_an_export_of_both_sides(shop, tmp_path):
    shop.engine.rows[SALES_X] |= {"units": {"N": "7"}}
    found = verified_exports(shop, tmp_path)
    assert (differing(found.rows), found.items.different) == ([("CATEGORY#x", "different")], [])


@pytest.mark.parametrize("handler", EACH, ids=lambda handler: handler.__name__)
def test_rows_of_every_kind_with_lookups_can_be_verified_by_an_export(handler, tmp_path):
    shop = Shop(made(handler))
    changes = [
        shop.write("SUPPLIER#s", "META", {"supplier_id": "s", "name": "one"}),
        shop.product("p", "x", price=2, supplier_id="s"),
        shop.product("q", "y", price=7, supplier_id="s"),
        shop.line(1, "p", 3),
        shop.line(2, "q", 5),
        shop.line(3, "gone"),
    ]
    shop.process(*changes)
    shop.fan_out()
    shop.app.process({"Records": [each.record for each in shop.engine.pending(100)]}, engine=shop.engine)
    assert (verified_rows(shop).different, verified_exports(shop, tmp_path).rows.different) == ([], [])


def test_a_derived_row_that_looks_a_plain_item_up_is_folded_with_it(tmp_path):
    """The fold makes the row itself, page by page, and reads what the row refers to behind it."""
    total, band = Key("TOTAL#{product_id}", "ALL"), Key("BAND#{category}", "ALL")
    router = Router()
    router.view(LINE, into=total, name="total")(
        lambda line: Row(product_id=line["product_id"], units=Sum(line["quantity"]))
    )

    @router.view(total, into=band, lookup={"product": OTHER_PRODUCT})
    def bands(row, product):
        return Row(category=product["category"], units=Sum(row["units"]))

    shop = Shop(App("shop", routers=[router]))
    put_other_product(shop)
    shop.process(shop.line(1, "p", 3), shop.line(2, "p", 4))
    for each in shop.engine.pending(100):
        shop.app.process({"Records": [each.record]}, engine=shop.engine)
    assert shop.engine.rows["main", "BAND#x", "ALL"]["units"] == {"N": "7"}
    assert (differing(verified_rows(shop)), differing(verified_exports(shop, tmp_path).rows)) == ([], [])


def test_referents_of_another_table_are_read_from_its_export_and_it_must_be_given(tmp_path):
    router = Router()
    router.view(LINE, into=Key("CATEGORY#{category}", "SALES"), lookup={"product": OTHER_PRODUCT}, name="sales")(
        lambda line, product: Row(category=product["category"], units=Sum(line["quantity"]), lines=Count())
    )
    shop = Shop(App("shop", routers=[router]))
    shop.engine.source_tables.add("products")
    shop.process(shop.line(2, "absent"))
    assert differing(verified_rows(shop)) == []  # of no referent at all
    put_other_product(shop)
    shop.process(shop.line(1, "p"))
    exports = exports_of(shop, tmp_path)
    found = verify_exports(shop.app, Settings(), shop.app.routes, exports)
    assert (found.rows.rows, found.rows.different, found.items.different) == (1, [], [])
    del exports["products"]
    with pytest.raises(SettingsError, match="look up table products, of which there is no export"):
        verify_exports(shop.app, Settings(), shop.app.routes, exports)


# Backlinks.


def lose_backlink(shop, item=LINE_1, referent=PRODUCT_Q):
    shop.engine.transact([DeleteState(backlink_key("shop", "sales", referent, item))], 0)


def test_a_reference_without_its_backlink_is_a_difference_that_a_repair_corrects(shop):
    lose_backlink(shop)
    (different,) = verified_items(shop, *range(6)).different
    assert (different.item, different.lacking, different.stored == different.expected) == (LINE_1, 1, True)
    shop.process(shop.product("q", "z"))
    assert shop.sales() == {"x": 3, "y": 1, "z": 2}  # stale, because its change reached two of three
    Repair(shop.runtime()).item(LINE_1)
    assert (verified_items(shop, *range(6)).different, shop.sales()) == ([], {"x": 3, "z": 3})
    lose_backlink(shop)
    Pages(shop.runtime(), {"sales"}, always=True).reconcile([LINE_1])
    assert verified_items(shop, *range(6)).different == []


def test_an_export_of_the_state_shows_lost_and_idle_backlinks(shop, tmp_path):
    lose_backlink(shop)
    shop.engine.insert_state(backlinks("shop", "sales", LINE_1, [PRODUCT_P]))
    shop.engine.insert_state(backlinks("shop", "sales", ("main", "ORDER#99", "ITEM#a"), [PRODUCT_P]))
    found = verified_exports(shop, tmp_path).items
    assert ([each.lacking for each in found.different], found.idle_backlinks) == ([1], 2)


def test_a_backlink_that_goes_with_its_reference_between_two_reads_is_no_difference(shop, monkeypatch):
    """The ledger item is read before its backlinks: its step may drop one in between."""
    moves = iter(["p"])

    def meanwhile(runtime, references):
        for product in moves:
            shop.process(shop.line(1, product))
        return lacking_backlinks(runtime, references)

    monkeypatch.setattr("streamfold.lifecycle.page.lacking_backlinks", meanwhile)
    found = verified_items(shop, 1)
    assert (found.different, found.moving, [*moves]) == ([], 0, [])


def test_idle_backlinks_are_counted_and_dropped_by_the_next_change_of_the_referent(shop):
    shop.engine.insert_state(backlinks("shop", "sales", LINE_1, [PRODUCT_P]))
    assert idle_backlinks(shop.runtime(), shop.app.routes) == 1
    shop.process(shop.product("p", "z"))
    assert idle_backlinks(shop.runtime(), shop.app.routes) == 0
    router = Router()
    router.view(LINE, into=Key("X", "Y"), name="plain")(lambda line: Row(lines=Count()))
    assert idle_backlinks(shop.runtime(), App("shop", routers=[router]).routes) is None


def test_the_reference_in_a_large_contribution_has_its_backlink_too():
    router = Router()

    @router.view(LINE, into=Key("ROW#{row}", "TOTAL"), lookup={"product": PRODUCT}, name="sales")
    def rows(line, product):
        for number in range(70):
            yield Row(row=f"{product['category']}{number}", units=Sum(line["quantity"]))

    shop = Shop(App("shop", routers=[router]))
    shop.process(shop.product("p", "x"), shop.line(1, "p"))
    assert (verified_items(shop, 1).different, idle_backlinks(shop.runtime(), shop.app.routes)) == ([], 0)
    lose_backlink(shop, referent=PRODUCT_P)
    assert [each.lacking for each in verified_items(shop, 1).different] == [1]


def test_an_estimate_counts_the_backlinks_that_a_run_puts(shop):
    places = [("main", f"ORDER#{number}", "ITEM#a") for number in range(100, 200)]
    for number in range(100, 200):
        shop.line(number, "p")
    expected = Pages(shop.runtime(), {"sales"}, dry_run=True).reconcile(places).write_units
    shop.store.calls.clear()
    Pages(shop.runtime(), {"sales"}).reconcile(places)
    assert expected == pytest.approx(sum(call.write_units for call in shop.store.calls), rel=0.1)
    assert expected > 300
