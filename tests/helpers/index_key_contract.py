"""What is no key of a secondary index is refused, on every engine that keeps indexes: local ones, and DynamoDB's."""

from decimal import Decimal

import pytest

from streamfold import Table
from streamfold.engines import DynamoEngine
from streamfold.records.values import encode
from streamfold.writes.guarded import AddRow, GuardedPut, PutRow, UpdateSource
from tests.helpers.engine_contract import EXPIRES, STATE_TABLE
from tests.helpers.tables import make_table

INDEXED = Table(
    "indexed",
    indexes={"GSI1": {"text": "S", "number": "N"}, "GSI2": {"bytes": "B"}, "GSI3": {"number": "N", "other": "S"}},
)
KEY = ("indexed", "P#1", "S#1")
TAKEN = [
    {},
    {"text": "a"},
    {"number": 5},
    {"text": "k" * 2048},
    {"other": "k" * 1024},
    {"bytes": b"\x00"},
    {"bytes": b"k" * 2048},
    {"text": "é" * 1024, "number": Decimal("-1.5"), "bytes": b"x", "other": "b"},
    {"free": "", "free_too": None},
]
REFUSED = [
    {"text": ""},
    {"text": 5},
    {"text": None},
    {"text": True},
    {"text": b"a"},
    {"text": ["a"]},
    {"text": {"a": 1}},
    {"text": {"a", "b"}},
    {"text": "k" * 2049},
    {"text": "é" * 1025},
    {"number": "5"},
    {"number": ""},
    {"number": None},
    {"bytes": b""},
    {"bytes": "a"},
    {"bytes": b"k" * 2049},
    {"other": "k" * 1025},
    {"text": "a", "number": "b"},
]


def indexed_engine(client):
    """An engine on this client, whose table has the indexes that are declared."""
    make_table(client, "real-indexed", {"PK": "S", "SK": "S"}, indexes=INDEXED.indexes)
    make_table(client, STATE_TABLE, {"pk": "S", "sk": "S"})
    return DynamoEngine(client, {"indexed": (INDEXED, "real-indexed")}, STATE_TABLE, pause=lambda seconds: None)


def stored(engine):
    return [{name: item[name] for name in item if name not in ("PK", "SK")} for item in engine.items(INDEXED)]


class IndexKeyContract:
    """The writes of rows and items, with attributes that are keys of indexes."""

    @pytest.mark.parametrize("attributes", TAKEN)
    def test_a_key_of_an_index_is_taken(self, engine, attributes):
        assert engine.transact([PutRow(KEY, attributes)], EXPIRES) is None
        assert len(stored(engine)) == 1

    @pytest.mark.parametrize("attributes", REFUSED)
    def test_what_is_no_key_of_an_index_is_refused(self, engine, attributes):
        (reason,) = engine.transact([PutRow(KEY, attributes)], EXPIRES).reasons
        assert "Validation" in reason.code
        assert stored(engine) == []

    @pytest.mark.parametrize("attributes", REFUSED[:3])
    def test_a_guarded_put_is_refused_too(self, engine, attributes):
        (reason,) = engine.transact([GuardedPut(KEY, attributes, "v1")], EXPIRES).reasons
        assert "Validation" in reason.code

    @pytest.mark.parametrize("attributes", REFUSED[:3])
    def test_an_inserted_row_is_refused_too(self, engine, attributes):
        assert engine.insert_rows([PutRow(KEY, attributes)]).missing == [KEY]
        assert stored(engine) == []

    def test_a_sum_is_no_text(self, engine):
        (reason,) = engine.transact([AddRow(KEY, {"text": Decimal(1)}, 1)], EXPIRES).reasons
        assert "Validation" in reason.code
        assert engine.transact([AddRow(KEY, {"number": Decimal(1)}, 1)], EXPIRES) is None

    @pytest.mark.parametrize("attributes", REFUSED[:3])
    def test_an_update_of_an_item_is_refused_too(self, engine, attributes):
        item = {"PK": KEY[1], "SK": KEY[2], "n": 1}
        if hasattr(engine, "put_sources"):
            engine.put_sources([(KEY, encode(item)["M"], "v1")])
        else:
            engine.client.put_item(TableName="real-indexed", Item=encode(item)["M"])
        (reason,) = engine.transact([UpdateSource(KEY, {"n": 1}, (), attributes, ())], EXPIRES).reasons
        assert "Validation" in reason.code
        assert engine.transact([UpdateSource(KEY, {"n": 1}, (), {"text": "a"}, ())], EXPIRES) is None
