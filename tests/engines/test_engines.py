"""The engine contract on SQLite, in memory and in a file, on dictionaries, and on moto."""

from contextlib import nullcontext

import boto3
import pytest
from moto import mock_aws

from streamfold import App, Key, Router, Row, Sum
from streamfold.engines import DynamoEngine, EmbeddedEngine, MemoryEngine
from streamfold.keys.table import STATE
from tests.helpers.counter_contract import CounterContract
from tests.helpers.deltas_contract import DeltasContract
from tests.helpers.engine_contract import (
    TABLES,
    EngineContract,
    MissingTablesContract,
    Store,
    dynamo_engine,
    dynamo_store,
)
from tests.helpers.entries_contract import EntriesContract
from tests.helpers.guards_contract import GuardsContract
from tests.helpers.pairs_contract import PairsContract
from tests.helpers.partiql import WithStatements
from tests.helpers.scan_contract import ScanContract
from tests.helpers.source import Source

SEGMENTS = "it takes the hash of texts only"
NUMBERS = "it refuses no sum, however many digits that has"
SIZES = "it counts the bytes of an item otherwise"
MOTO_DIFFERS = {
    "test_sum_of_more_than_38_digits_is_refused_for_good": NUMBERS,
    "test_sum_beyond_the_largest_number_is_refused_for_good": NUMBERS,
    "test_transaction_over_4_megabytes_is_refused_for_good_and_one_just_under_it_is_made": "it takes larger ones",
    "test_ids_over_400_kilobytes_are_refused_for_good": SIZES,
    "test_ids_over_4_megabytes_are_refused_for_good": "it takes larger ones",
    "test_row_just_under_400_kilobytes_is_written": SIZES,
    "test_binary_keys_of_a_table_without_sort_key": SEGMENTS,
    "test_row_just_under_400_kilobytes_is_inserted_beside_others": SIZES,
    "test_row_that_grows_over_400_kilobytes_is_refused_for_good": SIZES,
    "test_attributes_that_make_an_item_too_large_are_refused_for_good": SIZES,
    "test_a_write_of_a_row_is_what_its_description_says[dynamodb on moto-CorrectRow]": "it takes true for 1",
}
"""Where moto disagrees with DynamoDB Local, on which the same tests pass."""


TRIES = {MemoryEngine: 300, EmbeddedEngine: 60, DynamoEngine: 40}
"""Writes of each kind that are drawn: as many as an engine makes in little time."""


def expect_difference(request):
    reason = MOTO_DIFFERS.get(request.node.originalname) or MOTO_DIFFERS.get(request.node.name)
    if reason:
        request.applymarker(pytest.mark.xfail(reason=f"moto: {reason}"))


@pytest.fixture(scope="module")
def moto_client():
    """A client of moto. Its tables have no streams: transactions on those take seconds."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "disabled")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        client = boto3.client("dynamodb", region_name="us-east-1")
        yield WithStatements(client)
        client.close()


@pytest.fixture
def moto_store(request, moto_client):
    expect_difference(request)
    yield dynamo_store(moto_client)
    for name in moto_client.list_tables()["TableNames"]:
        moto_client.delete_table(TableName=name)


MOTO = pytest.param("dynamodb on moto", marks=pytest.mark.nightly)  # DynamoDB Local plays the same tests in CI


@pytest.fixture(params=["embedded", "embedded file", "embedded file in a batch", "memory", MOTO])
def store(request, tmp_path):
    if request.param == "dynamodb on moto":
        yield request.getfixturevalue("moto_store")
        return
    if request.param == "memory":
        yield Store(MemoryEngine(TABLES))
        return
    engine = EmbeddedEngine(TABLES, None if request.param == "embedded" else tmp_path / "state.db")
    with engine.batch() if request.param == "embedded file in a batch" else nullcontext():
        yield Store(engine)
    engine.close()


@pytest.fixture
def engine(request, moto_client):
    expect_difference(request)
    return dynamo_engine(moto_client)


class TestEngine(EngineContract):
    """The contract on each of the stores above."""


class TestEntries(EntriesContract):
    """The contract of entries, and of what rows make of them."""


class TestCounters(CounterContract):
    """The contract of numbers that are raised, and of the ids beside them."""


class TestDeltas(DeltasContract):
    """The contract of deltas."""


@pytest.fixture
def tries(request, store):
    return TRIES[type(store.engine)]


class TestGuards(GuardsContract):
    """The contract of what descriptions say."""


class TestPairs(PairsContract):
    """The contract of rows that are made of two items, and of their mirrors."""


class TestScans(ScanContract):
    """The contract of scans by segments."""


class TestMissingTables(MissingTablesContract):
    """On moto only: the embedded engine makes its tables itself."""


@pytest.mark.parametrize("make", [EmbeddedEngine, MemoryEngine])
def test_an_engine_of_an_application_has_its_tables_and_runs_its_chains(make):
    router, source = Router(), Source()
    line, total, totals = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("ORDER#{order_id}", "TOTAL"), Key("ALL", "ORDERS")
    router.view(line, into=total, name="total")(lambda item: Row(total=Sum(item["price"])))
    router.view(total, into=totals, name="all")(lambda order: Row(total=Sum(order["total"])))
    app = App("shop", [router])
    engine = make(app)
    assert engine.tables.keys() == {*app.tables, STATE.name}
    assert app.process([source.put("ORDER#1", "ITEM#a", price=2)], engine=engine) == []
    assert engine.read_rows([("main", "ALL", "ORDERS")])["main", "ALL", "ORDERS"]["total"] == 2
