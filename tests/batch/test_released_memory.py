"""A batch releases its memory at its end, without a search for cycles."""

import gc
import json
from itertools import islice
from pathlib import Path

import pytest

from handlers import app
from streamfold.engines import EmbeddedEngine

FILES = sorted((Path(__file__).parents[2] / "events").glob("*.jsonl"))
RECORDS = 150


@pytest.fixture
def left():
    """Takes what nobody can reach any more, of the framework's own types: that is in cycles, or held by one."""
    gc.collect()
    gc.disable()

    def found():
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("streamfold")}

    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_batch_leaves_no_cycles(file, left, tmp_path):
    with file.open() as lines:
        records = [json.loads(line) for line in islice(lines, RECORDS)]
    engine = EmbeddedEngine(app.tables.values(), path=tmp_path / "state.db", wanted=app.chains)
    assert app.process(records, engine=engine) == []
    assert left() == set()
    engine.close()
