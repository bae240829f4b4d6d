"""A local replay of handlers that look others up: a file has no table to read, so what it never showed is named."""

import json

import pytest

from tests.cli.conftest import folder  # noqa: F401 - a fixture
from tests.helpers.records import item, record

SHOP = """
from streamfold import App, Count, Key, Lookup, Router, Row, Sum

LINE, PRODUCT = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("PRODUCT#{product_id}", "META")
TOTAL = Key("TOTAL#{product_id}", "ALL")
router = Router()


@router.view(LINE, into=Key("CATEGORY#{category}", "SALES"), lookup={"product": PRODUCT})
def sales(line, product):
    return Row(category=product["category"], lines=Count())


@router.view(LINE, into=TOTAL)
def totals(line):
    return Row(product_id=line["product_id"], lines=Count())


@router.view(LINE, into=Key("SHARE#{order_id}", "{sku}"), lookup={"total": Lookup(TOTAL, optional=True)})
def shares(line, total):
    return Row(of=total["lines"] if total else 0)


app = App("shop", routers=[router])
"""


def line(number, product, *, removed=False):
    image = item(f"ORDER#{number}", "ITEM#a", product_id=product)
    return record(image, None, number) if removed else record(None, image, number)


def product(product_id, sequence):
    return record(None, item(f"PRODUCT#{product_id}", "META", category="x"), sequence)


@pytest.fixture
def replayed(folder):  # noqa: F811
    folder.app(SHOP)
    return lambda *records, **more: folder.run("replay", folder.records(*records), *more.get("options", ()))


@pytest.mark.parametrize("options", [(), ("--state", "state.db"), ("--batch-size", "1")])
def test_items_that_no_record_showed_are_named_and_rows_are_made_of_the_others(replayed, options):
    records = [line(1, "p"), line(2, "q"), line(3, "r"), product("p", 4)]
    ran = replayed(*records, options=options)
    assert ran.code == 0
    assert "handlers look up 2 items that no record showed: PRODUCT#q / META; PRODUCT#r / META. Rows lack" in ran.err
    again = ("--fresh",) if "--state" in options else ()
    found = json.loads(replayed(*records, options=(*options, *again, "--json")).out)
    assert [each["key"]["PK"]["S"] for each in found["absent"]] == ["PRODUCT#q", "PRODUCT#r"]


def test_an_item_that_came_late_or_was_removed_was_shown(replayed):
    gone = record(item("PRODUCT#q", "META", category="x"), None, 2)
    ran = replayed(line(1, "p"), gone, line(3, "q"), product("p", 4), options=("--batch-size", "1"))
    assert (ran.code, "no record showed" in ran.err) == (0, False)
    assert "absent" not in json.loads(replayed(line(1, "p"), product("p", 2), options=["--json"]).out)


def test_a_dry_run_names_none(replayed):
    assert "no record showed" not in replayed(line(1, "p"), options=("--dry-run",)).err
