"""Chains in a local state whose handlers are of several groups: each group follows, whoever ran before it."""

from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.settings import Settings
from tests.helpers.model import stored
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
ALL = Key("ALL", "TOTALS")
SOLD = Key("SKU#{sku}", "SOLD")
GROUPS = ("orders", "totals", "stock")
ENGINES = pytest.mark.parametrize("make", [EmbeddedEngine, MemoryEngine], ids=["SQLite", "dictionaries"])


def failing(order):
    if order["total"]:
        raise LookupError("no such total")
    return Row(orders=Count())


def make_app(total=None):
    """Orders lead to totals, which a second group adds up. A cascade removes items, which a third group counts."""
    router = Router()
    router.view(ITEM, into=TOTAL, name="total", group="orders")(lambda item: Row(total=Sum(item["price"])))
    router.cascade(ORDER, children=[ITEM], group="orders")
    total = total or (lambda order: Row(orders=Count(), total=Sum(order["total"])))
    router.view(TOTAL, into=ALL, name="all", group="totals")(total)
    router.view(ITEM, into=SOLD, name="sold", group="stock")(lambda item: Row(sold=Count()))
    return App("shop", routers=[router])


def run(app, engine, records, group):
    return app.process(records, engine=engine, settings=Settings(group=group))


def orders(source, count=3):
    return [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in range(1, count + 1)]


@ENGINES
@pytest.mark.parametrize("groups", [("orders", "totals"), ("orders", "orders", None), ("totals", "orders", "totals")])
def test_derived_records_wait_for_the_group_whose_handlers_read_them(make, source, groups):
    app, records = make_app(), orders(source)
    with closing(make(app)) as engine:
        for group in groups:
            assert run(app, engine, records, group) == []
        assert stored(app, engine)["main", "ALL", "TOTALS"] == {"orders": 3, "total": 6}
        for group in ("orders", "totals"):
            engine.retry(group)
            assert engine.pending(10, group) == []


def test_children_that_a_cascade_removed_wait_for_the_group_whose_handlers_read_them(source, tmp_path):
    app = make_app()
    order, item = source.put("ORDER#1", "METADATA"), source.put("ORDER#1", "ITEM#a", price=5)
    removal = source.remove("ORDER#1", "METADATA")
    with closing(EmbeddedEngine(app, tmp_path / "shop.db")) as engine:
        for group in GROUPS:
            assert run(app, engine, [order, item], group) == []
        assert stored(app, engine)["main", "SKU#a", "SOLD"] == {"sold": 1}
        assert run(app, engine, [removal], "orders") == []
        assert stored(app, engine)["main", "SKU#a", "SOLD"] == {"sold": 1}
        assert run(app, engine, [removal], "stock") == []
        assert ("main", "SKU#a", "SOLD") not in stored(app, engine)


@ENGINES
def test_records_that_wait_for_another_group_are_not_read_with_each_event(make, source, monkeypatch):
    app = make_app()
    with closing(make(app)) as engine:
        pending, read = engine.pending, []
        monkeypatch.setattr(engine, "pending", lambda *asked: read.append(pending(*asked)) or read[-1])
        for record in orders(source, 20):
            run(app, engine, [record], "orders")
        assert max(map(len, read)) == 1  # looked at, to warn of the group
        assert len(pending(100, "totals")) == 20


@ENGINES
def test_record_that_failed_in_its_group_comes_again_with_that_group(make, source):
    broken, mended, records = make_app(failing), make_app(), orders(source, 1)
    with closing(make(mended)) as engine:
        run(broken, engine, records, "orders")
        assert [failure.handler for failure in run(broken, engine, [], "totals")] == ["all"]
        assert run(mended, engine, [], "orders") == []
        assert ("main", "ALL", "TOTALS") not in stored(mended, engine)
        assert run(mended, engine, [], "totals") == []
        assert stored(mended, engine)["main", "ALL", "TOTALS"] == {"orders": 1, "total": 1}


def test_records_wait_in_the_file_when_it_is_opened_again(source, tmp_path):
    app, path = make_app(), tmp_path / "shop.db"
    for group, records in (("orders", orders(source)), ("totals", [])):
        with closing(EmbeddedEngine(app, path)) as engine:
            assert run(app, engine, records, group) == []
            rows = stored(app, engine)
    assert rows["main", "ALL", "TOTALS"] == {"orders": 3, "total": 6}


def test_group_for_which_records_wait_is_named_once(source, caplog):
    app = make_app()
    with closing(MemoryEngine(app)) as engine:
        for record in orders(source):
            run(app, engine, [record], "orders")
        (said,) = [record.getMessage() for record in caplog.records]
        assert said == (
            "Changes of derived rows wait in this state for handlers of group 'totals', and STREAMFOLD_GROUP is "
            "'orders': run group 'totals' too, or leave STREAMFOLD_GROUP out."
        )
        run(app, engine, [], None)
        engine.retry()
        assert engine.pending(10) == []


STEPS = st.lists(st.tuples(st.sampled_from((*GROUPS, None)), st.integers(0, 3)), max_size=8)


@ENGINES
@given(steps=STEPS)
@example(steps=[("orders", 3), ("totals", 0), ("orders", 1), (None, 0)])
def test_groups_that_run_in_any_order_lead_to_what_one_run_of_all_leads_to(make, steps):
    app, source = make_app(), Source()
    records = [source.put(f"ORDER#{number % 2}", f"ITEM#{number % 3}", price=number) for number in range(12)]
    with closing(make(app)) as engine, closing(make(app)) as model:
        place = dict.fromkeys(GROUPS, 0)
        for group, count in [*steps, *((group, 12) for group in GROUPS)]:
            served = [group] if group else GROUPS
            begin = min(place[each] for each in served)
            assert run(app, engine, records[begin : begin + count], group) == []
            place |= {each: max(place[each], begin + count) for each in served}
        assert run(app, model, records, None) == []
        assert stored(app, engine) == stored(app, model)
