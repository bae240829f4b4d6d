"""Keys of secondary indexes on the local engines."""

import pytest

from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.records.values import encode
from streamfold.writes.guarded import AddRow
from tests.helpers.engine_contract import EXPIRES
from tests.helpers.index_key_contract import INDEXED, KEY, IndexKeyContract, stored


@pytest.fixture(params=["memory", "embedded", "embedded file"])
def engine(request, tmp_path):
    if request.param == "memory":
        yield MemoryEngine([INDEXED])
        return
    engine = EmbeddedEngine([INDEXED], tmp_path / "state.db" if "file" in request.param else None)
    yield engine
    engine.close()


class TestIndexKeys(IndexKeyContract):
    """The contract on dictionaries and SQLite."""


def test_a_source_item_from_before_the_index_is_kept(engine):
    """A record tells what the table holds, perhaps from before it had the index."""
    engine.put_sources([(KEY, encode({"PK": KEY[1], "SK": KEY[2], "text": ""})["M"], "v1")])
    assert stored(engine) == [{"text": {"S": ""}}]


def test_an_attribute_that_stays_as_it_is_is_not_looked_at(tmp_path):
    before = EmbeddedEngine([type(INDEXED)("indexed")], tmp_path / "state.db")
    before.transact([AddRow(KEY, {"text": 1}, 1)], EXPIRES)
    before.close()
    now = EmbeddedEngine([INDEXED], tmp_path / "state.db")
    assert now.transact([AddRow(KEY, {"number": 1}, 1)], EXPIRES) is None
    now.close()
