"""What the engine's calls consume on DynamoDB Local, against DynamoDB's prices."""

from streamfold.engines.dynamodb_client import Consumed, Meter
from streamfold.engines.protocol import Segment
from streamfold.keys.table import STATE
from streamfold.writes.guarded import Claim, PutRow, StateKey
from tests.helpers.engine_contract import EXPIRES, LEDGER, SHOP, dynamo_store

KEYS = [("shop", f"ORDER#{number}", "METADATA") for number in range(10)]


def test_calls_of_the_engine_are_metered(dynamodb):
    store = dynamo_store(dynamodb)
    meter = Meter(dynamodb)
    store.write(PutRow(KEYS[0], {"text": "x" * 2500}))
    assert meter.take() == Consumed(0, 3, 1)
    store.write(Claim(LEDGER), *(PutRow(key, {"a": 1}) for key in KEYS[1:]))
    assert meter.take() == Consumed(0, 4, 1)  # DynamoDB bills 20: this engine tells one write a table
    assert store.engine.swap_state(StateKey("manifest#shop", "-"), {}, 0)
    assert meter.take() == Consumed(0, 1, 1)
    store.engine.read_state([LEDGER, StateKey("manifest#shop", "-")], consistent=True)
    assert meter.take() == Consumed(2, 0, 1)
    store.engine.read_sources(KEYS)
    assert meter.take() == Consumed(10, 0, 1)
    store.engine.read_source(KEYS[0])
    assert meter.take() == Consumed(1, 0, 1)
    assert len(store.engine.scan(SHOP, Segment(), None, 100).keys) == 10
    assert meter.take() == Consumed(1, 0, 1)  # 3 KB: the whole items count, not their keys
    assert len(store.engine.scan(STATE, Segment(), None, 1).keys) == 1
    assert meter.take() == Consumed(1, 0, 1)


def test_refused_writes_and_statements_are_untold(dynamodb):
    store = dynamo_store(dynamodb)
    store.write(Claim(LEDGER))
    meter = Meter(dynamodb)
    assert store.engine.transact([Claim(LEDGER)], EXPIRES) is not None
    assert meter.take() == Consumed(0, 0, 1, unreported=1)
    assert store.engine.insert_rows([PutRow(key, {"a": 1}) for key in KEYS]).missing == []
    assert meter.take() == Consumed(0, 0, 1, unreported=1)
