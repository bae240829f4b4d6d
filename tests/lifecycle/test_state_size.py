"""Ledger items that hold nothing expire; nothing else does, whatever happens meanwhile."""

import pytest

from streamfold.batch.process import process_changes
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.ledger.state_keys import audience_key, index_key, jobs_partition, segments_partition
from streamfold.lifecycle.retire import OTHERS, PURPOSES, StateGarbage, state_sizes
from streamfold.records.values import item_bytes
from streamfold.writes.guarded import StateKey
from tests.helpers.doorbells import opened
from tests.helpers.feed_histories import small
from tests.helpers.records import change, item
from tests.lifecycle.test_page import app_of, row, run_of


@pytest.fixture
def app():
    return app_of()


@pytest.fixture(params=["memory", "embedded"])
def engine(app, request):
    return (MemoryEngine if request.param == "memory" else EmbeddedEngine)(app.tables.values())


def process(app, engine, old, new, number):
    assert process_changes(run_of(app, engine), [change(old, new, number)]).failures == []


def thing(number=1):
    return item(f"ITEM#{number}", group="x", amount=2)


def ledger(engine):
    (found,) = (each for each in engine.state_items() if each["pk"]["S"].startswith("ledger#"))
    key = StateKey(found["pk"]["S"], found["sk"]["S"])
    return key, engine.read_state([key])[key]


def endless(app, engine):
    """A ledger item that holds nothing, as it was left before it could expire."""
    process(app, engine, None, thing(), 1)
    process(app, engine, thing(), None, 2)
    key, stored = ledger(engine)
    left = {name: value for name, value in stored.items() if name not in ("ttl", "r")}
    assert engine.swap_state(key, {**left, "live": 1}, stored["r"])
    return key


def collected(app, engine, before=lambda: None):
    garbage = StateGarbage(run_of(app, engine))
    for page in garbage.pages():
        before()
        garbage.mark(page)
    return garbage.report


def test_a_ledger_item_that_holds_nothing_gets_a_time_to_live(app, engine):
    endless(app, engine)
    report = collected(app, engine)
    _, stored = ledger(engine)
    assert (report.found, report.marked, report.busy) == (1, 1, [])
    assert (stored["live"], stored["ttl"] > 0, "total.v" in stored) == (0, True, True)
    assert collected(app, engine).found == 0


def test_an_item_that_holds_something_or_expires_already_is_left_alone(app, engine):
    process(app, engine, None, thing(), 1)
    before = list(engine.state_items())
    assert collected(app, engine).found == 0
    assert list(engine.state_items()) == before


def test_an_item_that_comes_back_meanwhile_is_left_alone(app, engine):
    endless(app, engine)
    report = collected(app, engine, lambda: process(app, engine, None, thing(), 3))
    assert (report.found, report.marked, report.busy) == (1, 0, [])
    assert "ttl" not in ledger(engine)[1]


def test_late_records_are_kept_away_as_before(app, engine):
    endless(app, engine)
    collected(app, engine)
    process_changes(run_of(app, engine), [change(None, thing(), 1)])
    assert row(engine) is None


def test_what_is_unfinished_is_left_alone(app, engine):
    key = endless(app, engine)
    _, stored = ledger(engine)
    engine.swap_state(key, {**stored, "total.u": "12345678[]"}, stored["r"])
    assert collected(app, engine).found == 0


def test_an_item_that_others_change_at_every_try_is_told(app, engine, monkeypatch):
    key = endless(app, engine)
    monkeypatch.setattr(engine, "swap_state", lambda *_: False)
    assert collected(app, engine).busy == [key]


def test_sizes_are_told_by_kind_with_those_of_other_applications_apart(app, engine):
    process(app, engine, None, thing(), 1)
    engine.swap_state(StateKey("ledger#other#main#main#S#x", "-"), {"live": 1}, 0)
    engine.swap_state(StateKey("unknown", "-"), {"ttl": 1}, 0)
    read = []
    sizes = state_sizes(app, engine, read.append)
    assert {kind: size.items for kind, size in sizes.items()} == {
        "ledger": 1,
        "kinds": 1,
        "manifest": 1,
        OTHERS: 1,
        "unknown": 1,
    }
    assert sizes["unknown"].expiring == 1
    assert read == [5]
    assert sum(size.size_bytes for size in sizes.values()) == 500 + sum(map(item_bytes, engine.state_items()))


def test_every_item_of_a_state_has_a_purpose(app, engine):
    keys = (
        jobs_partition("shop"),
        segments_partition("shop", "1"),
        index_key("shop", "a").pk,
        "dirty#shop#a",
        "search#a",
        audience_key("shop", "timeline", "b").pk,
    )
    for number, pk in enumerate(keys):
        assert engine.swap_state(StateKey(pk, str(number)), {"s": ""}, 0)
    assert engine.swap_state(StateKey(jobs_partition("other"), "1"), {"s": ""}, 0)
    found = {purpose: size.items for purpose, size in state_sizes(app, engine, lambda _: None).items()}
    assert found == {"job": 2, "index": 1, "dirty": 1, "search": 1, "audience": 1, OTHERS: 1}
    assert found.keys() <= {purpose for purpose, what in PURPOSES.items() if what}


def test_what_feeds_keep_has_a_purpose_and_is_left_alone():
    with small():
        app, engine, _ = opened(9)
    before = list(engine.state_items())
    assert collected(app, engine).found == 0
    assert list(engine.state_items()) == before
    purposes = state_sizes(app, engine, lambda _: None).keys()
    assert {"posts", "edges", "fan"} <= purposes <= PURPOSES.keys()
