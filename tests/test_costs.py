"""What a record costs on DynamoDB, counted at the engine: requests, and the units that would be billed."""

from random import Random

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.process import World, process_event
from streamfold.settings import Settings
from streamfold.values import item_bytes
from tests.counting import CountingEngine
from tests.source import Source

BATCH = 100
MEASURED = 1000
EXPENSE = Key("EXPENSE#{expense_id}", "METADATA")
GROUP = Key("GROUP#{group}", "TOTAL")


def make_app():
    router = Router()

    @router.view(EXPENSE, into=GROUP)
    def group_total(item):
        yield Row(group=item["group"], total=Sum(item["amount"]), expenses=Count())

    return App("shop", routers=[router])


class Load:
    """Items over groups that are amended; 10 % of the changes move an item to another group, 5 % remove it."""

    def __init__(self, items, groups):
        self.random = Random(20260301)
        self.source = Source()
        self.keys = [(f"EXPENSE#{number:06d}", "METADATA") for number in range(items)]
        self.groups = [f"{number:02d}" for number in range(groups)]

    def first(self):
        return [self._put(key, self._group()) for key in self.keys]

    def changes(self, count):
        return [self._change(self.random.choice(self.keys)) for _ in range(count)]

    def _change(self, key):
        item = self.source.items.get(key)
        chance = self.random.random()
        if item is None:
            return self._put(key, self._group())
        if chance < 0.05:
            return self.source.remove(key)
        if chance < 0.15:
            return self._put(key, self.random.choice([group for group in self.groups if group != item["group"]]))
        return self._put(key, item["group"])

    def _put(self, key, group):
        return self.source.put(key, group=group, amount=self.random.randint(1, 10_000))

    def _group(self):
        return self.random.choice(self.groups)


@pytest.fixture
def app():
    return make_app()


@pytest.fixture
def engine(app):
    return CountingEngine(EmbeddedEngine(app.tables.values()))


def process(app, engine, records):
    for start in range(0, len(records), BATCH):
        report = process_event(app, records[start : start + BATCH], engine, World(Settings()))
        assert report.failures == []


@pytest.mark.parametrize(
    ("items", "groups", "requests_max", "units_max"),
    [pytest.param(500, 20, 0.08, 2.7, id="spread"), pytest.param(20, 5, 0.05, 0.8, id="hot")],
)
def test_record_of_a_view_costs_this_much(app, engine, items, groups, requests_max, units_max):
    load = Load(items, groups)
    process(app, engine, load.first())
    engine.calls.clear()

    process(app, engine, load.changes(MEASURED))

    requests, units = engine.requests / MEASURED, engine.write_units / MEASURED
    print(f"{items} items over {groups} groups: {requests:.3f} requests and {units:.2f} write units a record")
    for name in ("transact", "remove_empty"):
        calls = engine.named(name)
        print(name, len(calls), sum(c.requests for c in calls), sum(c.actions for c in calls), sum(c.write_units for c in calls))
    assert requests <= requests_max
    assert units <= units_max
    assert engine.read_units == 0
    assert engine.refused == []


def rows(app, engine):
    return list(engine.items(app.tables["main"]))


def test_batch_that_comes_again_changes_no_row_and_is_read_after_one_refused_chunk(app, engine):
    load = Load(500, 20)
    process(app, engine, load.first())
    batch = load.changes(BATCH)
    process(app, engine, batch)
    before, state_before = rows(app, engine), list(engine.state_items())
    engine.calls.clear()

    process(app, engine, batch)

    assert rows(app, engine) == before
    assert list(engine.state_items()) == state_before
    for c in engine.calls: print(c)
    assert [call.name for call in engine.calls[:2]] == ["transact", "read_state"]
    assert len(engine.named("transact")) == len(engine.refused) == 1


ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")


def five_views():
    router = Router()

    @router.view(ORDER_ITEM, into=Key("ORDER#{order_id}", "TOTAL"))
    def order_total(item):
        yield Row(total=Sum(item["price"] * item["quantity"]), lines=Count())

    @router.view(ORDER_ITEM, into=Key("SALES#{day}", "SKU#{sku}"))
    def daily_sales(item):
        yield Row(day=item["at"][:10], units=Sum(item["quantity"]))

    @router.view(ORDER_ITEM, into=Key("CUSTOMER#{customer_id}", "TOTAL"))
    def customer_total(item):
        yield Row(customer_id=item["customer_id"], spent=Sum(item["price"] * item["quantity"]), lines=Count())

    @router.view(ORDER_ITEM, into=Key("STOCK#{sku}", "RESERVED"))
    def stock_reserved(item):
        yield Row(units=Sum(item["quantity"]))

    @router.view(ORDER_ITEM, into=Key("REGION#{region}", "MONTH#{month}"))
    def monthly_revenue(item):
        yield Row(region=item["region"], month=item["at"][:7], revenue=Sum(item["price"] * item["quantity"]), orders=Count())

    return App("shop", routers=[router])


def test_five_small_views_of_an_item_cost_one_ledger_action_within_a_kilobyte():
    app = five_views()
    engine = CountingEngine(EmbeddedEngine(app.tables.values()))
    source = Source("shop-orders")
    key = ("ORDER#20260301-000123", "ITEM#sku-48213")
    record = source.put(key, price=1999, quantity=3, at="2026-03-01T10:15:00Z", customer_id="customer-00417", region="eu-central")

    process(app, engine, [record])
    for item in engine.state_items(): print(item, item_bytes(item))
