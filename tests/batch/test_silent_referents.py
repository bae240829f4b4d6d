"""Referents of a table whose records never come: right at first and silently stale, so the first one warns, once."""

import pytest

from streamfold import App, Count, Key, Lookup, Router, Row, Table
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.records.envelope import STREAM, Seen
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

LINE, PRODUCTS = Key("ORDER#{order_id}", "ITEM#{sku}"), Table("products", sort=None)
PRODUCT, HERE = Key("P#{product_id}", None, PRODUCTS), Key("PRODUCT#{product_id}", "META")
MAIN, BOTH = {"main": Seen(STREAM, "shop")}, {"main": Seen(STREAM, "shop"), "products": Seen(STREAM, "products")}


class Function:
    """A function whose warnings are kept."""

    def __init__(self, key=PRODUCT, *, writes=False):
        router = Router()
        if writes:  # the looked-up rows are another handler's
            router.view(LINE, into=PRODUCT, name="products")(lambda line: Row(product_id=line["product_id"], n=Count()))
        router.view(LINE, into=Key("SALES", "ALL"), lookup={"product": Lookup(key, optional=True)}, name="sales")(
            lambda line, product: Row(lines=Count())
        )
        self.app = App("shop", routers=[router])
        self.engine = MemoryEngine(self.app)
        self.engine.source_tables.update(("main", "products"))
        self.warnings, self.warned, self.number = [], set(), 0

    def gets(self, sources, **attributes):
        self.number += 1
        changes = [change(None, item(f"ORDER#{self.number}", "ITEM#a", **attributes), self.number)]
        runtime = Runtime(
            self.app, self.engine, Settings(), warn=self.warnings.append, warned=self.warned, pause=lambda _: None
        )
        assert process_changes(runtime, changes, sources).failures == []
        return [text for text in self.warnings if "no record" in text]


def test_the_first_item_that_looks_one_up_warns_once_and_names_the_remedy():
    function = Function()
    assert function.gets(MAIN) == []  # it refers to nothing
    (text,) = function.gets(MAIN, product_id="p")
    assert "Handler 'sales'" in text
    assert "items of table 'products', of which no record ever came" in text
    assert "Make the stream of that table an event source of the function" in text
    assert len(function.gets(MAIN, product_id="q")) == 1


def test_a_table_of_which_a_record_came_to_any_process_is_heard_of():
    function = Function()
    function.gets(BOTH)
    assert function.gets(MAIN, product_id="p") == []


@pytest.mark.parametrize("function", [Function(HERE), Function(writes=True)])
def test_the_items_own_table_and_rows_that_the_store_itself_delivers_need_no_record(function):
    assert function.gets(MAIN, product_id="p") == []


def test_records_that_name_no_table_say_nothing_of_others():
    assert Function().gets({}, product_id="p") == []
