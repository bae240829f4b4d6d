"""The engine contract on DynamoDB Local, which decides where engines disagree."""

import pytest

from tests.helpers.counter_contract import CounterContract
from tests.helpers.deltas_contract import DeltasContract
from tests.helpers.engine_contract import (
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
    """The contract on DynamoDB Local."""


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
