"""The items of a run: all of them, samples, and those that only the state knows."""

from random import Random

import pytest

from streamfold.batch.process import process_changes
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.lifecycle.sources import ItemKeys
from tests.helpers.records import change, item
from tests.lifecycle.test_page import app_of, keys, put, run_of

ITEMS = 200


@pytest.fixture
def app():
    return app_of()


@pytest.fixture(params=["memory", "embedded"])
def engine(app, request):
    made = MemoryEngine(app.tables.values()) if request.param == "memory" else EmbeddedEngine(app.tables.values())
    process_changes(run_of(app, made), put(made, *range(ITEMS)))
    return made


def found_by(app, engine, segments=64):
    return ItemKeys(app, engine, app.routes, segments)


def test_all_items_come_once_without_derived_rows(app, engine):
    assert sorted(found_by(app, engine).all()) == sorted(keys(*range(ITEMS)))


def test_an_item_that_is_gone_comes_from_the_state(app, engine):
    engine.put_sources([(keys(7)[0], None, "9")])
    assert list(found_by(app, engine).all())[-1] == keys(7)[0]
    assert len(list(found_by(app, engine).all())) == ITEMS


def test_an_item_of_another_application_or_that_no_handler_reads_is_left_out(app, engine):
    engine.put_sources([(("main", "USER#1", "X"), {"PK": {"S": "USER#1"}, "SK": {"S": "X"}}, "9")])
    engine.swap_state(next(iter(_ledger(engine)))._replace(pk="ledger#other#main#main#S#ITEM#x"), {}, 0)
    assert len(list(found_by(app, engine).all())) == ITEMS


@pytest.mark.parametrize("most", [1, 20, ITEMS, 10 * ITEMS])
@pytest.mark.parametrize("segments", [1, 64, 1_000_000])
def test_a_sample_has_as_many_items_as_it_may_each_once(app, engine, most, segments):
    found = list(found_by(app, engine, segments).sample(most, Random(1)))
    assert len(found) == len(set(found)) == min(most, ITEMS)


def test_samples_differ(app, engine):
    samples = {tuple(sorted(found_by(app, engine).sample(5, Random(seed)))) for seed in range(8)}
    assert len(samples) > 4


def test_a_sample_has_items_that_are_gone(app, engine):
    process_changes(run_of(app, engine), [change(None, item("ITEM#x", "METADATA", group="x", amount=1), 999)])
    assert list(found_by(app, engine).sample(10 * ITEMS, Random(1)))[-1] == ("main", "ITEM#x", "METADATA")


def _ledger(engine):
    from streamfold.writes.guarded import StateKey

    return (
        StateKey(each["pk"]["S"], each["sk"]["S"])
        for each in engine.state_items()
        if each["pk"]["S"].startswith("ledger#")
    )
