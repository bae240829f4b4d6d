"""Copies are led to their items: without setting one back that a record brings meanwhile."""

import pytest

from streamfold import App, Key, Router, Table
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.lifecycle.page import Pages
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
KEY = ("main", "ORDER#1", "METADATA")
COPY = ("copies", "ORDER#1", "METADATA")
FIRST, SECOND = (item("ORDER#1", "METADATA", total=total) for total in (1, 2))


@pytest.fixture
def app():
    router = Router()
    router.copy(ORDER, to=Table("copies"), name="copy")
    return App("shop", routers=[router])


@pytest.fixture
def engine(app):
    engine = MemoryEngine(app.tables.values())
    engine.source_tables.add("main")
    return engine


def run_of(app, engine):
    return Runtime(app, engine, Settings(), pause=lambda _: None)


def put(app, engine, *changes, delivered=True):
    engine.put_sources(newest_sources(changes))
    if delivered:
        assert not process_changes(run_of(app, engine), changes).failures


def reconcile(app, engine):
    return Pages(run_of(app, engine), ["copy"]).reconcile([KEY])


def total(engine):
    return engine.read_rows([COPY]).get(COPY, {}).get("total")


def test_an_item_that_was_never_copied_is(app, engine):
    put(app, engine, change(None, FIRST), delivered=False)
    assert reconcile(app, engine).rows == 1
    assert total(engine) == 1


def test_a_lost_change_and_a_lost_removal_are_made_up_for(app, engine):
    put(app, engine, change(None, FIRST))
    put(app, engine, change(FIRST, SECOND, 2), delivered=False)
    reconcile(app, engine)
    assert total(engine) == 2
    put(app, engine, change(SECOND, None, 3), delivered=False)
    reconcile(app, engine)
    assert total(engine) is None


def test_a_copy_that_agrees_is_left_alone(app, engine):
    put(app, engine, change(None, FIRST))
    assert reconcile(app, engine).rows == 0


def test_a_record_that_comes_after_it_wins_and_an_older_one_does_not(app, engine):
    put(app, engine, change(None, FIRST))
    put(app, engine, change(FIRST, SECOND, 5), delivered=False)
    reconcile(app, engine)
    process_changes(run_of(app, engine), [change(None, FIRST)])
    assert total(engine) == 2
    third = item("ORDER#1", "METADATA", total=3)
    put(app, engine, change(SECOND, third, 6))
    assert total(engine) == 3


@pytest.mark.parametrize(("before", "after"), [(1, True), (False, 0), ([1], [True]), ({"a": 0}, {"a": False})])
def test_a_number_that_became_a_truth_value_is_made_up_for(app, engine, before, after):
    old, new = (item("ORDER#1", "METADATA", paid=paid) for paid in (before, after))
    put(app, engine, change(None, old))
    put(app, engine, change(old, new, 2), delivered=False)
    assert reconcile(app, engine).rows == 1
    assert repr(engine.read_rows([COPY])[COPY]["paid"]) == repr(after)
