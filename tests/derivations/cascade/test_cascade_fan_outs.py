"""Cascades that go on as fan-outs: the record is acknowledged, and every child goes once."""

from contextlib import closing, contextmanager
from unittest.mock import patch

import pytest

from streamfold.batch.fan_outs import enqueue_open, run_chains, run_fan_outs, work_on
from streamfold.batch.process import process_event
from streamfold.derivations.cascade import children
from streamfold.derivations.cascade import children as lanes
from streamfold.errors import EngineUnavailable, NotStarted
from streamfold.jobs.fan_outs import FanOuts
from streamfold.proofs.faults import Choices
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Died, check
from tests.derivations.cascade.test_children import (
    CLOCK,
    ORDER,
    ORDER_ITEM,
    Faulty,
    Store,
    items_of,
    make_app,
    removal,
)
from tests.helpers.records import item, record

SETTINGS = Settings(chunk_actions=10)  # eight children a page


@contextmanager
def small():
    """One page inline, and two pages between moves of a lane."""
    with patch.object(children, "INLINE_PAGES", 1), patch.object(lanes, "PAGES_A_MOVE", 2):
        yield


@pytest.fixture
def app():
    return make_app()


@pytest.fixture
def engine(app):
    with closing(Store(app)) as engine, small():
        engine.put(*items_of(50), *items_of(3, "ORDER#2"))
        yield engine


def a_run(app, engine, **more):
    return Runtime(app, engine, SETTINGS, clock=lambda: CLOCK, pause=lambda _: None, **more)


def open_ones(app, engine):
    return [job.what for job in FanOuts(a_run(app, engine)).all()]


def test_a_record_with_many_children_is_acknowledged_and_a_fan_out_goes_on(app, engine):
    run = a_run(app, engine)
    report = process_event(run, [removal()])
    assert (report.failures, report.tallies["cascade"].removed) == ([], 8)
    assert (open_ones(app, engine), len(engine.left())) == (["cascade"], 42)
    done = run_fan_outs(run)
    assert (done.failures, done.tallies["cascade"].removed) == ([], 42)
    assert (open_ones(app, engine), engine.left(), len(engine.left("ORDER#2"))) == ([], [], 3)


def test_where_nobody_works_on_fan_outs_the_record_comes_again(app, engine):
    with patch.object(children, "PAGES_MAX", 3):
        report = process_event(a_run(app, engine, fans_out=False), [removal()])
        assert [type(failure.error) for failure in report.failures] == [NotStarted]
        assert (open_ones(app, engine), len(engine.left())) == ([], 26)
        process_event(a_run(app, engine, fans_out=False), [removal()])
        assert len(engine.left()) == 2


def test_a_record_whose_job_would_be_too_large_comes_again(app, engine):
    with patch("streamfold.jobs.fan_outs.RECORD_LETTERS_MAX", 10):
        report = process_event(a_run(app, engine), [removal()])
    assert [type(failure.error) for failure in report.failures] == [NotStarted]


def test_a_parent_that_exists_again_keeps_the_children_that_are_left(app, engine):
    run = a_run(app, engine)
    process_event(run, [removal()])
    engine.put(item("ORDER#1"), version="v3")
    assert not run_fan_outs(run).failures
    assert (open_ones(app, engine), len(engine.left())) == ([], 43)  # the parent too


def test_a_later_removal_leads_the_open_fan_out(app, engine):
    process_event(a_run(app, engine), [removal(5)])
    engine.put(item("ORDER#1"), *items_of(60), version="v6")
    process_event(a_run(app, engine), [record(None, item("ORDER#1"), 6)])
    engine.drop("ORDER#1", "METADATA", version="v7")
    process_event(a_run(app, engine), [removal(7)])
    run = a_run(app, engine)
    assert open_ones(app, engine) == ["cascade"]
    enqueue_open(run)
    assert not run_fan_outs(run).failures
    assert (open_ones(app, engine), engine.left()) == ([], [])


def test_children_that_came_back_before_the_cursor_go_with_a_removal_between_two_pages(app, engine):
    process_event(a_run(app, engine), [removal(5)])
    store, moves = FanOuts._store, []

    def removed_again(fan_outs, job, lane, moved):
        moves.append(lane)
        if len(moves) == 2:
            engine.put(item("ORDER#1"), *items_of(20), version="v6")
            engine.drop("ORDER#1", "METADATA", version="v7")
            process_event(a_run(app, engine), [removal(7)])
        return store(fan_outs, job, lane, moved)

    run = a_run(app, engine)
    enqueue_open(run)
    with patch.object(FanOuts, "_store", removed_again):
        assert not run_fan_outs(run).failures
    assert len(moves) > 2
    assert engine.left() == []
    assert open_ones(app, engine) == []


def test_a_run_whose_store_holds_no_items_leaves_the_fan_out_open(app, engine):
    process_event(a_run(app, engine), [removal()])
    run = a_run(app, engine, source_items=False)
    assert not enqueue_open(run)
    assert (open_ones(app, engine), len(engine.left())) == (["cascade"], 42)


def test_a_fan_out_that_is_worked_on_after_its_end_removes_nothing(app, engine):
    run = a_run(app, engine)
    process_event(run, [removal()])
    again = a_run(app, engine, queued=[*run.queued, *run.queued])
    assert not run_fan_outs(run).failures
    engine.put(*items_of(5), version="v9")
    assert not run_fan_outs(again).failures
    assert not process_event(a_run(app, engine), [removal()]).failures
    assert len(engine.left()) == 5


def test_children_of_children_go_on_as_a_fan_out_where_the_table_has_a_real_name():
    app, settings = make_app(nested=True), SETTINGS._replace(tables={"main": "orders-prod"})
    with closing(Store(app)) as engine, small():
        run = Runtime(app, engine, settings, clock=lambda: CLOCK, pause=lambda _: None)
        engine.put(item("ORDER#1", "NOTE#000001"), *(item("ORDER#1", f"LINE#000001#{n:02d}") for n in range(50)))
        removed = record(item("ORDER#1"), None, 5, table="orders-prod")
        assert process_event(run, [removed]).failures == []
        assert run_chains(run, engine).failures == []
        assert (engine.left(), open_ones(app, engine)) == ([], [])


class FannedOut(Faulty):
    """The same history, where an acknowledged record never comes again: the fan-out has to do what is left."""

    acknowledged = False

    def deliver(self):
        run = Runtime(self.app, self.engine, Settings(chunk_actions=9), clock=lambda: CLOCK, pause=lambda _: None)
        failures = []
        try:
            if not self.acknowledged:
                failures = process_event(run, [removal()]).failures
                self.acknowledged = not failures
            elif self.random.random() < 0.5:
                enqueue_open(run)
            self.engine.retry()
            return failures + run_chains(run, self.engine).failures
        except (Died, EngineUnavailable):
            return [None]

    def run(self):
        with small():
            for _ in range(20):
                self.deliver()
            self.engine.choices = Choices()
            self.finish()
            assert self.count() == (self.at or 0)
            self.engine.land_all()
            self.finish()
            assert not [*FanOuts(a_run(self.app, self.store)).all()]

    def finish(self):
        assert not self.deliver()
        run = a_run(self.app, self.engine)
        enqueue_open(run)
        assert not run_chains(run, self.engine).failures


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, 10))
def test_all_children_go_once_by_fan_outs_under_faults(app, first):
    for seed in range(first, first + 10):
        history = FannedOut(app, seed)
        history.run()
        (gone,) = history.store.items(app.tables["main"], "GONE#1") if history.at != 30 else ({"gone": {"N": "0"}},)
        assert int(gone["gone"]["N"]) == 30 - (history.at or 0)


def test_cascades_that_are_all_fan_outs_are_proved(monkeypatch):
    monkeypatch.setattr(children, "INLINE_PAGES", 0)
    items = {ORDER: [{"order_id": "1"}, {"order_id": "2"}], ORDER_ITEM: [{"order_id": "1", "sku": "a", "price": 1}]}
    proof = check(make_app(), items, histories=40, processes=0)
    assert proof.histories == 40
    assert proof.faults["bell-lost"]


def test_a_cascade_that_is_led_to_a_later_removal_before_its_lane_is_read_begins_anew(app, engine):
    process_event(a_run(app, engine), [removal(5)])
    stored, moves, read, reads = FanOuts._store, [], FanOuts.segment, []

    def stops(self, *move):
        moves.append(1)
        if len(moves) > 2:
            raise NotStarted("time")
        return stored(self, *move)

    def overtaken(self, job, number):
        reads.append(1)
        if len(reads) == 1:  # another process, after the job was read
            engine.put(item("ORDER#1"), *items_of(20), version="v6")
            engine.drop("ORDER#1", "METADATA", version="v7")
            process_event(a_run(app, engine), [removal(7)])
        return read(self, job, number)

    enqueue_open(run := a_run(app, engine))
    with patch.object(FanOuts, "_store", stops):
        work_on(run, run.queued[0])
    enqueue_open(run := a_run(app, engine))
    with patch.object(FanOuts, "segment", overtaken):
        run_fan_outs(run)
    enqueue_open(run := a_run(app, engine))
    run_fan_outs(run)
    assert engine.left() == []
    assert open_ones(app, engine) == []
