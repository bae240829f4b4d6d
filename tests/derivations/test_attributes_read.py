"""A change of attributes that a handler does not read calls it once, and its rows are as if it was called twice."""

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.model import model, stored
from tests.helpers.source import Source

ITEM, TOTAL = Key("ITEM#{i}", "META"), Key("TOTAL#{group}", "SUM")


class Shop:
    def __init__(self):
        self.called, router = 0, Router()

        @router.view(ITEM, into=TOTAL)
        def totals(item):
            self.called += 1
            yield Row(group=item["group"], items=Count(), total=Sum(item.get("price", 0)))

        self.app = App("shop", routers=[router])
        self.engine = MemoryEngine(self.app.tables.values())
        self.source = Source()
        self.records = []

    def deliver(self, *records):
        self.called = 0
        self.records += records
        assert process_event(Runtime(self.app, self.engine, Settings()), list(records)).failures == []
        called = self.called
        assert stored(self.app, self.engine) == model(self.app, self.records)
        return called

    def put(self, **attributes):
        return self.source.put("ITEM#1", "META", **attributes)


@pytest.fixture
def shop():
    shop = Shop()
    shop.deliver(shop.put(group="a", price=2, note="x"))
    return shop


@pytest.mark.parametrize(
    ("amended", "called"),
    [
        ({"group": "a", "price": 2, "note": "y"}, 1),
        ({"group": "a", "price": 3, "note": "x"}, 2),
        ({"group": "b", "price": 2, "note": "x"}, 2),
        ({"group": "a", "note": "x"}, 2),
    ],
    ids=["what is not read", "a number", "the row", "what is gone"],
)
def test_a_handler_is_called_once_for_a_change_of_what_it_does_not_read(shop, amended, called):
    assert shop.deliver(shop.put(**amended)) == called


def test_a_removed_item_contributes_nothing_whatever_was_read(shop):
    shop.deliver(shop.source.remove("ITEM#1", "META"))
    assert stored(shop.app, shop.engine) == {}


def test_several_changes_of_an_item_are_one_step_from_the_first_image_to_the_last(shop):
    changes = [shop.put(group="b", price=2, note="x"), shop.put(group="a", price=2, note="z")]
    assert shop.deliver(*changes) == 1
