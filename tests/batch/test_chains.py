"""Derived rows that are themselves sources, in a local replay: run to their end, once, and again where they failed."""

import pytest

from streamfold import App, Count, Key, Router, Row, Sum, Table
from streamfold.batch.fan_outs import run_chains
from streamfold.engines import EmbeddedEngine
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.model import stored

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
BAND = Key("BAND#{band}", "ORDERS")
ALL = Key("ALL", "BANDS")


def order_total(item):
    yield Row(total=Sum(item["price"]))


def make_app(band=None):
    router = Router()
    router.view(ITEM, into=TOTAL)(order_total)

    @router.view(TOTAL, into=BAND)
    def bands(order):
        yield Row(band=(band or default_band)(order["total"]), orders=Count(), total=Sum(order["total"]))

    @router.view(BAND, into=ALL)
    def everything(band):
        yield Row(bands=Count(), total=Sum(band["total"]))

    return App("shop", routers=[router])


def default_band(total):
    return "high" if total >= 100 else "low"


def no_high_band(total):
    if total >= 100:
        raise LookupError("no such band")
    return "low"


@pytest.fixture
def app():
    return make_app()


@pytest.fixture
def engine(app):
    engine = EmbeddedEngine(app.tables.values(), wanted=app.chains)
    yield engine
    engine.close()


def process(app, engine, *records):
    return app.process(list(records), engine=engine, settings=Settings())


def test_two_levels_follow_from_one_record(app, engine, source):
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=120))

    assert stored(app, engine)["main", "BAND#high", "ORDERS"] == {"orders": 1, "total": 120}
    assert stored(app, engine)["main", "ALL", "BANDS"] == {"bands": 1, "total": 120}


def test_rows_of_every_level_go_with_their_source(app, engine, source):
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=120), source.remove("ORDER#1", "ITEM#a"))

    assert stored(app, engine) == {}


def test_derived_row_that_moves_to_another_target_is_moved(app, engine, source):
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=120))
    process(app, engine, source.put("ORDER#1", "ITEM#b", price=-30))

    assert ("main", "BAND#high", "ORDERS") not in stored(app, engine)
    assert stored(app, engine)["main", "BAND#low", "ORDERS"] == {"orders": 1, "total": 90}


def test_more_derived_records_than_one_batch_takes_are_all_processed(app, engine, source, monkeypatch):
    monkeypatch.setattr("streamfold.batch.fan_outs.BATCH_RECORDS_MAX", 3)

    process(app, engine, *(source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in range(20)))

    assert stored(app, engine)["main", "ALL", "BANDS"] == {"bands": 1, "total": sum(range(20))}
    assert engine.pending(1) == []


def test_derived_rows_of_a_table_of_their_own_are_followed_there(source):
    reports = Table("reports", partition="name", sort=None)
    total, grand_total = Key("ORDER#{order_id}", table=reports), Key("ALL", table=reports)
    router = Router()
    router.view(ITEM, into=total)(order_total)

    @router.view(total, into=grand_total)
    def all_orders(order):
        yield Row(total=Sum(order["total"]), orders=Count())

    app = App("shop", routers=[router])
    engine = EmbeddedEngine(app.tables.values(), wanted=app.chains)

    process(app, engine, source.put("ORDER#1", "ITEM#a", price=5), source.put("ORDER#2", "ITEM#a", price=7))

    assert stored(app, engine)["reports", "ALL", None] == {"total": 12, "orders": 2}


def test_failure_of_a_chained_handler_is_returned_and_the_rest_goes_on(engine, source):
    app = make_app(no_high_band)

    failures = process(
        app, engine, source.put("ORDER#1", "ITEM#a", price=120), source.put("ORDER#2", "ITEM#a", price=1)
    )

    assert [(failure.handler, failure.item) for failure in failures] == [("bands", "ORDER#1 / TOTAL")]
    assert stored(app, engine)["main", "ALL", "BANDS"] == {"bands": 1, "total": 1}


def test_record_that_a_chained_handler_failed_on_comes_again_with_the_next_event(engine, source):
    process(make_app(no_high_band), engine, source.put("ORDER#1", "ITEM#a", price=120))
    mended = make_app()

    failures = process(mended, engine, source.put("ORDER#2", "ITEM#a", price=1))

    assert failures == []
    assert stored(mended, engine)["main", "BAND#high", "ORDERS"] == {"orders": 1, "total": 120}


def test_failed_record_is_kept_while_later_ones_go_on(engine, source, monkeypatch):
    monkeypatch.setattr("streamfold.batch.fan_outs.BATCH_RECORDS_MAX", 1)
    records = [source.put("ORDER#1", "ITEM#a", price=120), source.put("ORDER#2", "ITEM#a", price=1)]
    process(make_app(no_high_band), engine, *records)
    mended = make_app()

    assert process(mended, engine, records[0]) == []
    assert stored(mended, engine)["main", "ALL", "BANDS"] == {"bands": 2, "total": 121}


def test_record_that_a_chained_handler_fails_on_for_good_does_not_hold_the_others(engine, source):
    app = make_app(no_high_band)
    process(app, engine, source.put("ORDER#1", "ITEM#a", price=120))

    failures = process(app, engine, source.put("ORDER#2", "ITEM#a", price=1))

    assert [failure.item for failure in failures] == ["ORDER#1 / TOTAL"]
    assert stored(app, engine)["main", "ALL", "BANDS"] == {"bands": 1, "total": 1}


def test_process_that_died_in_a_chain_goes_on_where_it_stood(app, engine, source, monkeypatch):
    monkeypatch.setattr(engine, "advance", _die)
    with pytest.raises(KeyboardInterrupt):
        process(app, engine, source.put("ORDER#1", "ITEM#a", price=120))
    monkeypatch.undo()

    run_chains(Runtime(app, engine, Settings()), engine)

    assert stored(app, engine)["main", "ALL", "BANDS"] == {"bands": 1, "total": 120}


def _die(*arguments):
    raise KeyboardInterrupt
