"""The engine contract on DynamoDB Local, which decides where engines disagree."""

import pytest

from streamfold.writes.guarded import HandlerContribution, LedgerWrite
from tests.helpers.counter_contract import CounterContract
from tests.helpers.deltas_contract import DeltasContract
from tests.helpers.engine_contract import (
    LEDGER,
    EngineContract,
    MissingTablesContract,
    dynamo_engine,
    dynamo_store,
)
from tests.helpers.entries_contract import EntriesContract
from tests.helpers.guards_contract import GuardsContract
from tests.helpers.pairs_contract import PairsContract
from tests.helpers.scan_contract import ScanContract


@pytest.fixture
def store(dynamodb):
    return dynamo_store(dynamodb)


@pytest.fixture
def engine(dynamodb):
    return dynamo_engine(dynamodb)


class TestEngine(EngineContract):
    """The contract on DynamoDB Local; moto parses no condition of so many terms."""

    def test_what_very_many_handlers_left_behind_is_forgotten_beside_others(self, store):
        parts = [HandlerContribution(f"{'h' * 61}{number:03}", "v1", "", "", "[]") for number in range(55)]
        keys = [LEDGER._replace(sk=name) for name in "ab"]
        for number, some in enumerate([tuple(parts[begin : begin + 11]) for begin in range(0, 55, 11)]):
            store.write(LedgerWrite(keys[0], some, number or None, 0, expires=False))
        store.write(LedgerWrite(keys[1], tuple(parts[:1]), None, 0, expires=False))
        store.engine.clear_pending({keys[0]: {part.handler: "[]" for part in parts}, keys[1]: {parts[0].handler: "[]"}})
        assert [name for key in keys for name in store.state(key) if name.endswith(".u")] == []


class TestEntries(EntriesContract):
    """The contract of entries, and of what rows make of them."""


class TestCounters(CounterContract):
    """The contract of numbers that are raised, and of the ids beside them."""


class TestDeltas(DeltasContract):
    """The contract of deltas."""


@pytest.fixture
def tries():
    return 100


class TestGuards(GuardsContract):
    """The contract of what descriptions say."""


class TestPairs(PairsContract):
    """The contract of rows that are made of two items, and of their mirrors."""


class TestScans(ScanContract):
    """The contract of scans by segments."""


class TestMissingTables(MissingTablesContract):
    """The same without tables."""
