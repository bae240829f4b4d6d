"""What raising counters costs on DynamoDB Local: requests, and units by the sizes of items."""

import pytest

from streamfold.engines.protocol import Counter
from streamfold.records.values import item_bytes
from streamfold.writes.guarded import StateKey
from tests.helpers.engine_contract import EXPIRES, dynamo_store

KEYS = [StateKey("document#shop#orders#shop#S#ORDER#1", f"S#{number:03d}") for number in range(100)]
HALF = len(KEYS) // 2


@pytest.fixture
def store(dynamodb):
    return dynamo_store(dynamodb)


@pytest.fixture
def requests(store, dynamodb):
    """The calls from now on."""
    seen = []
    dynamodb.meta.events.register("before-call.dynamodb", lambda model, **rest: seen.append(model.name))
    return seen


def count(store, counters):
    found = store.engine.count_up(counters, 1000, EXPIRES)
    assert all(item_bytes(item) <= 1024 for item in store.engine.state_items())  # a unit for each write
    return [found[counter.key]["n"] for counter in counters]


def test_hundred_counters_take_four_requests_and_a_write_each(store, requests):
    assert count(store, [Counter(key, new=True) for key in KEYS]) == [1001] * 100
    assert requests == ["BatchExecuteStatement"] * 4 + ["Scan"]
    assert count(store, [Counter(key) for key in KEYS]) == [1002] * 100
    assert requests[5:] == ["BatchExecuteStatement"] * 4 + ["Scan"]


def test_new_counters_beside_known_ones_take_no_request_more(store, requests):
    count(store, [Counter(key, new=True) for key in KEYS[:HALF]])
    requests.clear()
    found = count(store, [Counter(key, new=number >= HALF) for number, key in enumerate(KEYS)])
    assert found == [1002] * HALF + [1001] * HALF
    assert requests == ["BatchExecuteStatement"] * 4 + ["Scan"]


def test_each_wrong_guess_takes_a_request_more(store, requests):
    count(store, [Counter(key, new=True) for key in KEYS[:HALF]])
    requests.clear()
    found = count(store, [Counter(key, new=number < HALF) for number, key in enumerate(KEYS)])
    assert found == [1002] * HALF + [1001] * HALF
    assert requests == ["BatchExecuteStatement"] * 4 + ["UpdateItem"] * 100 + ["Scan"]
