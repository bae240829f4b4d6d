"""Any redelivery, whatever fails on the way, leaves the rows of one clean replay, and those of the model."""

import json
from functools import cache
from itertools import zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers import app as shop
from streamfold.engines import EmbeddedEngine
from streamfold.records.envelope import Origins
from streamfold.replay.replay import newest_sources
from streamfold.settings import Settings
from tests.helpers import everything
from tests.helpers.histories import batches, random_steps, random_writes, records_of, steps, writes
from tests.helpers.model import model, stored
from tests.helpers.watched import driven

EVENTS = Path(__file__).parents[2] / "events"
ROWS = {"group": "main", "handlers_off": ("order_items", "cart_lines", "author_of_post")}
"""The shipped handlers that make rows. The removals of cascades are in the recordings already, and the model of a feed
knows nothing of what is derived onto posts.
"""
PATHS = [*sorted(EVENTS.glob("*.jsonl")), *sorted(EVENTS.glob("special/*"))]
FILES = [pytest.param(path, id=path.name) for path in PATHS]
BATCHES = {
    "record by record": [(1, 0, False)] * 9999,
    "batches of 7": [(7, 0, True)] * 999,
    "at random": random_steps(Random(1), 40),
}
RECORDS_FEW = 400
"""A file of more records takes seconds in several batches: the long tests have that."""


def new_engine(app):
    return EmbeddedEngine(app.tables.values(), wanted=app.chains)


def delivered(app, batches, engine=None, **settings):
    """The rows after these batches; none of them may fail. The items are held for handlers that look others up."""
    engine = engine or new_engine(app)
    for batch in batches:
        if any(route.lookups for route in app.routes):
            put_items(app, engine, batch)
        assert app.process(batch, engine=engine, settings=Settings(**settings)) == []
    return stored(app, engine)


def put_items(app, engine, records):
    """Puts the items as they are by these records, unless newer ones are there."""
    changes = map(Origins(app.source_tables, Settings()).change, records)
    engine.put_sources(newest_sources(change for change in changes if not app.derived(change.item)))


def recorded(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text())["Records"]


@given(history=writes())
def test_clean_replay_gives_the_rows_of_the_model(history):
    records = records_of(history)

    assert delivered(everything.app, [records]) == model(everything.app, records)


def check_redelivery(history, steps, actions):
    records = records_of(history)

    rows = delivered(everything.app, batches(records, steps), chunk_actions=actions)

    assert rows == delivered(everything.app, [records])
    assert rows == model(everything.app, records)


any_redelivery = given(history=writes(), steps=steps(), actions=st.sampled_from([2, 10, 25, 100]))


@any_redelivery
@settings(max_examples=40, deadline=None)
def test_any_redelivery_gives_the_rows_of_one_clean_replay(history, steps, actions):
    check_redelivery(history, steps, actions)


@pytest.mark.nightly
@any_redelivery
@settings(max_examples=5000, deadline=None)
def test_any_of_many_redeliveries_gives_the_rows_of_one_clean_replay(history, steps, actions):
    check_redelivery(history, steps, actions)


@given(history=writes(), steps=steps())
@settings(max_examples=40, deadline=None)
def test_any_redelivery_of_new_images_alone_gives_the_rows_of_the_model(history, steps):
    records = records_of(history, view="NEW_IMAGE")
    app = everything.new_images_suffice

    assert delivered(app, batches(records, steps)) == model(app, records)


@given(history=writes(), steps=steps(), others=steps())
@settings(max_examples=20, deadline=None)
def test_two_processes_with_the_same_records_give_the_rows_of_the_model(history, steps, others):
    records = records_of(history)
    app = everything.app
    with TemporaryDirectory() as folder:
        engines = [EmbeddedEngine(app.tables.values(), Path(folder) / "state.db", app.chains) for _ in range(2)]
        for both in zip_longest(batches(records, steps), batches(records, others)):
            for engine, batch in zip(engines, both, strict=True):
                delivered(app, [batch or []], engine)

        assert stored(app, engines[0]) == model(app, records)

        for engine in engines:
            engine.close()


@cache
def recorded_model(path):
    return model(shop, recorded(path))


def each_in_batches():
    for path in PATHS:
        large = len(recorded(path)) > RECORDS_FEW
        for name, sizes in BATCHES.items():
            marks = [pytest.mark.ci] if large else []
            yield pytest.param(path, sizes, marks=marks, id=f"{name}-{path.name}")


@pytest.mark.parametrize(("path", "steps"), [*each_in_batches()])
def test_recorded_file_gives_the_rows_of_the_model_in_any_batches(path, steps):
    assert delivered(shop, batches(recorded(path), steps), **ROWS) == recorded_model(path)


@pytest.mark.parametrize("path", FILES)
def test_recorded_file_in_one_batch_gives_the_rows_of_the_model_and_changes_no_row_when_it_comes_again(path):
    records = recorded(path)
    engine = new_engine(shop)

    assert delivered(shop, [records], engine, **ROWS) == recorded_model(path)
    again = batches(records, random_steps(Random(2), 20))
    assert delivered(shop, again, engine, **ROWS) == recorded_model(path)


def check_faults(seed):
    random = Random(seed)
    records = records_of(random_writes(random, random.choice((5, 20, 40))))

    engine = new_engine(everything.app)

    rows = driven(everything.app, engine, records, random)

    assert rows == model(everything.app, records)
    assert delivered(everything.app, batches(records, random_steps(random, 5)), engine) == rows


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.ci) for first in range(5, 80, 5))])
def test_faults_of_every_call_leave_the_rows_of_the_model_and_the_invariants(first):
    for seed in range(first, first + 5):
        check_faults(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(80, 5580, 500))
def test_faults_of_every_call_leave_the_rows_of_the_model_in_many_histories(first):
    for seed in range(first, first + 500):
        check_faults(seed)
