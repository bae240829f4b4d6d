"""A hot row spread over shards: where an item goes, what must be declared, and that every change stays exact."""

from collections import Counter

import pytest

from streamfold import App, Count, Key, Router, Row, Sum, Top
from streamfold.batch.process import process_event
from streamfold.derivations.view.shards import shard_of
from streamfold.engines import MemoryEngine
from streamfold.errors import DeclarationError
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import HandlerFails, Twin, check
from streamfold.writes.guarded import AddRow
from tests.helpers.counting import KeepingEngine
from tests.helpers.source import Source

ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
SALES = Key("SALES#{day}#{shard:02d}", "TOTAL")
ITEM = {"price": 3, "day": "1"}


def sales(item):
    yield Row(day=item["day"], revenue=Sum(item["price"]), lines=Count())


def app_with(function=sales, *, shards=4, into=SALES, source=ORDER_ITEM):
    router = Router()
    router.view(source, into=into, shards=shards)(function)
    return App("shop", routers=[router])


def test_an_item_always_goes_to_the_same_shard_and_items_spread():
    shards = [shard_of({"order_id": str(number), "sku": "a"}, 8) for number in range(800)]
    assert shards == [shard_of({"sku": "a", "order_id": str(number)}, 8) for number in range(800)]
    assert set(Counter(shards)) == set(range(8))
    assert min(Counter(shards).values()) > 50


def test_fields_that_are_swapped_are_another_item():
    assert len({shard_of({"a": str(one), "b": str(two)}, 100) for one, two in ((1, 2), (2, 1))}) == 2


def test_the_rows_of_all_shards_add_up_to_the_row():
    twin = Twin(app_with())
    for number in range(20):
        twin.put(ORDER_ITEM, order_id=str(number), sku="a", **ITEM)
    twin.delete(ORDER_ITEM, order_id="3", sku="a")
    rows = twin.rows(SALES)
    assert len(rows) == 4
    assert (sum(row["revenue"] for row in rows), sum(row["lines"] for row in rows)) == (57, 19)


def test_a_transaction_keeps_to_one_shard():
    app, source = app_with(), Source()
    engine = KeepingEngine(MemoryEngine(app.tables.values(), app.chains))
    records = [source.put(f"ORDER#{number}", "ITEM#a", **ITEM) for number in range(20)]
    process_event(Runtime(app, engine, Settings()), records)
    rows = [write.key for write in engine.writes if isinstance(write, AddRow)]
    assert (len(engine.named("transact")), len(rows), len(set(rows))) == (4, 4, 4)


@pytest.mark.slow
def test_spread_rows_stay_exact_under_faults():
    assert check(app_with(), {ORDER_ITEM: ITEM}, histories=60).histories == 60


def leaders(item):
    yield Row(day=item["day"], leaders=Top(2, {"price": item["price"]}, by=item["price"]))


@pytest.mark.slow
def test_lists_of_spread_rows_stay_exact_under_faults():
    assert check(app_with(leaders), {ORDER_ITEM: ITEM}, histories=60).histories == 60


def test_another_number_of_shards_is_safe_at_any_time():
    twin = Twin(app_with(shards=8))
    for price in (3, 4):
        for number in range(20):
            twin.put(ORDER_ITEM, order_id=str(number), sku="a", price=price, day="1")
        twin.app = app_with(shards=2)
    rows = twin.rows(SALES)
    assert {SALES.match(row)["shard"] for row in rows} == {0, 1}
    assert (sum(row["revenue"] for row in rows), sum(row["lines"] for row in rows)) == (80, 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 1}, "has shards=1: expected a whole number from 2 to 100"),
        ({"shards": 101}, "has shards=101: expected"),
        ({"shards": True}, "has shards=True: expected"),
        ({"into": Key("SALES#{day}", "TOTAL")}, "for example in its partition: 'SALES#{day}#{shard:02d}'"),
        ({"into": Key("SALES#{day}#{shard}", "TOTAL")}, "has no field {shard:02d} for the number of a shard"),
        ({"into": Key("SALES#{day}#{shard:01d}", "TOTAL"), "shards": 11}, "does not take shard 10"),
        ({"source": Key("ORDER#{shard}", "ITEM#{sku}")}, "which has a field 'shard' of its own"),
    ],
)
def test_shards_that_do_not_fit_are_refused_with_the_remedy(options, message):
    with pytest.raises(DeclarationError) as caught:
        app_with(**options)
    assert message in str(caught.value)


def test_a_row_does_not_say_its_shard_itself():
    def forward(item):
        yield Row(day="1", shard=2, lines=Count())

    twin = Twin(app_with(forward))
    with pytest.raises(HandlerFails, match=r"gives shard=, which shards=4 fills: leave it out"):
        twin.put(ORDER_ITEM, order_id="1", sku="a", **ITEM)
