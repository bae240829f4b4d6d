"""Any redelivery, whatever fails on the way, leaves the rows of one clean replay, and those of the model."""

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers import app as shop
from streamfold.chains import run_chains
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import EngineUnavailable
from streamfold.process import World, process_event
from streamfold.settings import Settings
from tests import everything
from tests.faulty import Died, FaultyEngine
from tests.histories import batches, random_steps, random_writes, records_of, steps, writes
from tests.model import model, stored

TRIES_MAX = 60
"""Deliveries after which nothing fails any more, so that every history ends."""
EVENTS = Path(__file__).parent.parent / "events"
FILES = [pytest.param(path, id=path.name) for path in (*sorted(EVENTS.glob("*.jsonl")), *sorted(EVENTS.glob("special/*")))]


def new_engine(app):
    return EmbeddedEngine(app.tables.values(), wanted=app.chains)


def delivered(app, batches, engine=None, **settings):
    """The rows after these batches; none of them may fail."""
    engine = engine or new_engine(app)
    for batch in batches:
        assert app.process(batch, engine=engine, settings=Settings(**settings)) == []
    return stored(app, engine)


def recorded(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text())["Records"]


@given(history=writes())
def test_clean_replay_gives_the_rows_of_the_model(history):
    records = records_of(history)

    assert delivered(everything.app, [records]) == model(everything.app, records)


@given(history=writes(), steps=steps(), actions=st.sampled_from([2, 10, 25, 100]))
@settings(max_examples=300, deadline=None)
def test_any_redelivery_gives_the_rows_of_one_clean_replay(history, steps, actions):
    records = records_of(history)

    rows = delivered(everything.app, batches(records, steps), chunk_actions=actions)

    assert rows == delivered(everything.app, [records])
    assert rows == model(everything.app, records)


def driven(app, records, random, rate):
    """Delivers as Lambda does, from the lowest failed record on, while calls fail; returns the engine."""
    engine = FaultyEngine(app, new_engine(app), random, rate)
    world = World(Settings(chunk_actions=random.choice((2, 10, 25, 100))), pause=lambda seconds: None)
    position, tries = 0, 0
    while position < len(records):
        tries += 1
        if tries > TRIES_MAX:
            engine.bury()
        batch = records[position : position + random.choice((1, 3, 10, 1000))]
        try:
            failures = process_event(app, batch, engine, world).failures
            run_chains(app, engine, world)
        except (Died, EngineUnavailable):
            app.checked_engines.discard(engine)
            continue
        sequences = [record["dynamodb"]["SequenceNumber"] for record in batch]
        position += min((sequences.index(failure.sequence) for failure in failures), default=len(batch))
    engine.bury()
    engine.retry()
    assert run_chains(app, engine, world).failures == []
    return engine


def check_faults(seed):
    random = Random(seed)
    records = records_of(random_writes(random, random.choice((5, 20, 40))))

    engine = driven(everything.app, records, random, random.choice((0.05, 0.2, 0.4)))

    rows = stored(everything.app, engine)
    assert rows == model(everything.app, records)
    assert delivered(everything.app, batches(records, random_steps(random, 5)), engine.engine) == rows
    return engine


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_faults_of_every_call_leave_the_rows_of_the_model_and_the_invariants(first):
    for seed in range(first, first + 30):
        check_faults(seed)
