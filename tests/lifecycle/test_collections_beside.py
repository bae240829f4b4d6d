"""Collections beside everything that is no batch: backfill, verify, repair, explain, diff, checks, permissions."""

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.manifest import _entries
from streamfold.deploy.permissions import Role, of_route
from streamfold.errors import ManifestError
from streamfold.failures.repair import Repair
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.diff import CodeDiff, side_page
from streamfold.lifecycle.explain import Explaining, explain_item
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import ItemKeys
from streamfold.proofs.check import check
from streamfold.proofs.determinism import calls_on
from tests.batch.test_collections import (
    DEVICE,
    LINE,
    ORDER,
    READING,
    ROWS,
    SHIPMENT,
    STATE,
    Shop,
    last_readings,
    on_order,
    rows_of_orders,
    states,
)

ITEMS = {
    ORDER: [{"name": "first"}, {"name": "second"}],
    LINE: [{"price": 3}, {"price": 5}],
}


OF_ORDERS = {**ITEMS, SHIPMENT: [{"sku": "a"}, {"sku": "b"}]}
EXAMPLES = {
    states: OF_ORDERS,
    on_order: OF_ORDERS,
    rows_of_orders: ITEMS,
    last_readings: {DEVICE: [{"name": "d"}], READING: [{"value": 1}, {"value": 2}]},
}


def app_of(*declare):
    router = Router()
    for each in declare:
        each(router)
    return App("shop", routers=[router])


def filled(*declare):
    """A table with two orders and lines, none of which a function has seen."""
    shop = Shop(app_of(*declare))
    for change in (("ORDER#1", "META"), ("ORDER#1", "LINE#a"), ("ORDER#1", "LINE#b"), ("ORDER#2", "LINE#c")):
        shop.write(*change, {"price": 1})
    return shop


def backfilled(shop, *, dry_run=False):
    keys = ItemKeys(shop.app, shop.engine, shop.app.routes)
    pages = Pages(shop.runtime(), [route.name for route in shop.app.routes], dry_run=dry_run)
    return pages.reconcile(keys.all())


def test_a_backfill_reads_roots_with_their_parts_and_makes_no_row_of_a_part():
    shop = filled(states)
    report = backfilled(shop)
    assert (report.items, report.written, report.failed) == (1, 1, [])
    assert shop.states() == [1, 0, 0]
    assert backfilled(shop).written == 0
    assert {key.pk for key in shop.engine.state if key.pk.startswith("ledger")} == {"ledger#shop#main#main#S#ORDER#1"}


def test_a_backfill_with_optional_leads_each_part_to_its_root():
    shop = filled(rows_of_orders)
    backfilled(shop)
    assert [shop.row("ROW#1")["lines"], shop.row("ROW#2")] == [2, {"there": False, "lines": 1, "of": "2"}]
    assert backfilled(shop, dry_run=True).differing == []


def test_a_repair_of_a_part_visits_its_root():
    shop = filled(states)
    backfilled(shop)
    shop.shipment(1, "a")  # its record is lost
    (repaired,) = Repair(shop.runtime()).item(("main", "ORDER#1", "SHIPMENT#000001"))
    assert (repaired.item, repaired.error) == (("main", "ORDER#1", "META"), None)
    assert shop.states() == [0, 1, 0]


def test_verify_folds_rows_with_the_parts_behind_it_and_finds_a_lost_record():
    shop = filled(states)
    backfilled(shop)
    assert RowsVerifier(shop.runtime(), shop.app.routes, live=False).verify().different == []
    shop.shipment(1, "a")
    found = RowsVerifier(shop.runtime(), shop.app.routes, live=False).verify()
    assert sorted(each.what for each in found.different) == ["extra", "missing"]


def test_a_second_look_at_the_row_of_an_absent_root_gathers_its_parts_again():
    shop = filled(rows_of_orders)
    backfilled(shop)
    shop.line("lost", "2")
    (found,) = RowsVerifier(shop.runtime(), shop.app.routes, live=True).verify().different
    assert (found.what, found.expected["lines"]) == ("different", 2)


def totals_and_states(router):
    """Rows that a view makes as the parts of others."""
    total = Key("ORDER#{order_id}", "TOTAL#{kind}")

    @router.view(LINE, into=total)
    def totals(line, order_id):
        return Row(order_id=order_id, kind="x", amount=Sum(line["price"]))

    @router.index(ORDER, into=ROWS, parts=[total])
    def amounts(order, parts):
        return Row(amounts=[each["amount"] for each in parts(total)])


def test_verify_gathers_rows_that_its_own_fold_makes():
    router = Router()
    totals_and_states(router)
    app = App("shop", routers=[router])
    check(app, ITEMS, histories=4, changes=12, seed=1, processes=1)


def test_explain_of_a_root_agrees_and_a_part_has_no_contribution():
    shop = filled(states)
    backfilled(shop)
    by = Explaining(shop.app, shop.engine, Schema())
    assert [each.agrees for each in explain_item(by, ("main", "ORDER#1", "META"))] == [True]
    assert explain_item(by, ("main", "ORDER#1", "LINE#a")) == []
    shop.shipment(1, "a")
    assert [each.agrees for each in explain_item(by, ("main", "ORDER#1", "META"))] == [False]


def test_diff_gives_both_sides_the_same_parts():
    def by_number(router):
        @router.view(ORDER, into=STATE, parts=[LINE], name="orders_by_state")
        def orders_by_state(order, parts):
            return Row(state=f"{len(parts(LINE))} lines", orders=Count())

    shop, old = filled(states), app_of(by_number)

    def rows(items, referents):
        return side_page(old, Schema(), items, None, referents)

    diff = CodeDiff(shop.app, shop.engine, Schema(), ["orders_by_state"], rows)
    diff.page([("main", "ORDER#1", "META"), ("main", "ORDER#1", "LINE#a")])
    assert [(each.row[1], each.old is None) for each in diff.changes] == [
        ("STATE#2 lines", False),
        ("STATE#open", True),
    ]
    same = CodeDiff(
        shop.app,
        shop.engine,
        Schema(),
        ["orders_by_state"],
        lambda *page: side_page(shop.app, Schema(), page[0], None, page[1]),
    )
    same.page([("main", "ORDER#1", "META")])
    assert same.changes == []


def test_diff_compares_the_rows_of_absent_roots_each_once():
    def one_more(router):
        @router.index(ORDER, into=ROWS, parts=[LINE], optional=True, name="rows")
        def rows(order, parts, order_id):
            return Row(there=order is not None, lines=len(parts(LINE)) + 1, of=order_id)

    shop, old = filled(rows_of_orders), app_of(one_more)
    shop.line("d", "2")

    def rows(items, referents):
        return side_page(old, Schema(), items, None, referents)

    diff = CodeDiff(shop.app, shop.engine, Schema(), ["rows"], rows)
    lines = [("main", "ORDER#1", "META"), *(("main", "ORDER#2", f"LINE#{sku}") for sku in "cd")]
    assert [diff.page(lines[:2]), diff.page(lines[2:])] == [2, 1]
    assert [(each.row[1], each.old["lines"], each.new["lines"]) for each in diff.changes] == [
        ("ROW#1", {"N": "3"}, {"N": "2"}),
        ("ROW#2", {"N": "3"}, {"N": "2"}),
    ]
    assert {name: (each.items, each.changed) for name, each in diff.found.items()} == {"rows": (2, 2)}


@pytest.mark.parametrize("declare", [states, on_order, rows_of_orders, last_readings])
def test_checks_pass_under_faults(declare):
    check(app_of(declare), EXAMPLES[declare], histories=4, changes=14, seed=3, processes=1)


def test_a_handler_of_parts_is_checked_for_determinism():
    shop = Shop(app_of(states))
    changes = [shop.order(), shop.line("a")]
    (call,) = calls_on(shop.app, changes)
    assert [effect.values["state"] for effect in call()] == ["open"]


def test_parts_are_read_by_queries_of_their_table():
    (route,) = app_of(states).routes
    for kind in ("stream", "verifier", "operate", "read"):
        actions = {each.action for each in of_route(route, Role(kind)) if each.place.name == "main"}
        assert "dynamodb:Query" in actions, kind


def test_parts_are_pseudo_targets_of_the_manifest_so_that_older_code_stops():
    (entry,) = _entries(app_of(states).routes).values()
    assert entry["targets"][1:] == [f"part {LINE.stored_name}", "part main: ORDER#{order_id} / SHIPMENT#{number:06d}"]


def test_code_that_loses_parts_is_refused_and_code_that_gains_some_is_not():
    def fewer(router):
        @router.view(ORDER, into=STATE, parts=[LINE], name="orders_by_state")
        def orders_by_state(order, parts):
            return Row(state="open", orders=Count())

    shop = Shop(app_of(fewer))
    shop.process(shop.order())
    shop.app = app_of(states)
    assert shop.process(shop.line("a")) == []
    shop.app = app_of(fewer)
    with pytest.raises(ManifestError, match="changed its targets"):
        shop.process(shop.line("b"))


def test_the_newest_parts_are_named_in_the_routes():
    from streamfold.pages.graph import described

    app = app_of(last_readings)
    assert described(app, app.routes[0])["parts"] == ["DEVICE#{device} / READING#{at}, the newest 2"]
