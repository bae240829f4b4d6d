"""Suspicions of many pages wait together, and an item that begins to fail meanwhile is no equal one."""

import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable, NotStarted
from streamfold.lifecycle import verify
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.verify import LOOKS_MAX, Verifier, stable
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item
from tests.lifecycle.test_page import app_of, keys, put, run_of


@pytest.fixture
def app():
    return app_of()


@pytest.fixture
def engine(app):
    return MemoryEngine(app.tables.values())


def verifier_of(app, engine, pause=lambda _: None):
    run = run_of(app, engine)
    run.pause = pause
    return Verifier(Pages(run, {"total"}, dry_run=True), 60)


def test_the_suspicions_of_many_pages_pause_once(app, engine):
    put(engine, 1, 2, 3)
    seconds = []
    verifier = verifier_of(app, engine, seconds.append)
    for number in (1, 2, 3):
        verifier.look(keys(number))
    verifier.recheck()
    assert (len(verifier.found.different), seconds) == (3, [60])


def test_no_more_suspicions_wait_than_fit(app, engine, monkeypatch):
    monkeypatch.setattr(verify, "SUSPECTED_MAX", 2)
    put(engine, 1, 2, 3)
    verifier = verifier_of(app, engine)
    verifier.look(keys(1))
    assert verifier.found.different == []
    verifier.look(keys(2))
    assert len(verifier.found.different) == 2


def test_an_item_on_which_the_handler_raises_meanwhile_is_failed(app, engine):
    put(engine, 1)
    wrong = {"group": {"S": "wrong"}, "amount": {"N": "1"}}
    verifier = verifier_of(app, engine, lambda _: engine.put_sources([(keys(1)[0], wrong, "9")]))
    verifier.page(keys(1))
    found = verifier.found
    assert (found.equal, found.different, found.moving) == (0, [], 0)
    assert [failed.item for failed in found.failed] == keys(1)


def test_a_part_whose_note_was_not_removed_is_pending_and_not_different():
    router = Router()
    router.view(Key("I#{i}", "X"), into=Key("G#{g}", "R"), name="total")(lambda x: Row(g=x["g"], s=Sum(x["n"])))
    app = App("shop", routers=[router])
    engine = MemoryEngine(app.tables.values(), app.chains)
    run = Runtime(app, engine, Settings(), pause=lambda _: None)
    first, second = item("I#1", "X", g="a", n=1), item("I#1", "X", g="b", n=2)
    forget = engine.clear_pending

    def throttled(finished):
        raise EngineUnavailable("throttled")

    for old, new, number in ((None, first, 1), (first, second, 2)):
        changes = [change(old, new, number)]
        engine.put_sources(newest_sources(changes))
        engine.clear_pending = throttled if old else forget
        assert not process_changes(run, changes).failures
    engine.clear_pending = forget
    key = ("main", "I#1", "X")

    def found():
        verifier = Verifier(Pages(run, ["total"], dry_run=True), 0)
        verifier.page([key])
        return verifier.found

    assert (found().different, [each.item for each in found().pending]) == ([], [key])
    Pages(run, ["total"], always=True).reconcile([key])
    assert (found().pending, found().equal) == ([], 1)


def looks(runtime, *answers, **more):
    """What is stable of what is found first, and then at each look."""
    found = iter(answers[1:])
    return stable(runtime, answers[0], lambda _: next(found), **more)


def test_what_is_found_again_is_so_and_what_is_not_found_again_is_right(app, engine):
    same, moving = looks(run_of(app, engine), {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 4}, {"b": 4})
    assert (same, moving) == ([1, 4], {})


def test_what_is_another_one_at_each_look_moves(app, engine):
    answers = [{"a": number} for number in range(LOOKS_MAX + 1)]
    assert looks(run_of(app, engine), *answers) == ([], {"a": LOOKS_MAX})


def test_nothing_is_looked_at_again_where_nothing_is_found(app, engine):
    seconds = []
    run = run_of(app, engine)
    run.pause = seconds.append
    assert (looks(run, {}, tolerance_seconds=5), seconds) == (([], {}), [])


def test_no_look_is_begun_that_the_time_does_not_suffice_for(app, engine):
    run = run_of(app, engine, seconds_left=lambda: 60)
    with pytest.raises(NotStarted):
        looks(run, {"a": 1}, {"a": 1}, tolerance_seconds=60)


def test_what_is_found_first_at_a_later_look_is_looked_at_again(app, engine):
    same, moving = looks(run_of(app, engine), {"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3})
    assert (same, moving) == ([1, 3], {})
