"""The shipped handlers, and one of everything, under every fault: 5,000 histories here, 100,000 at night."""

import pytest

from handlers import app as shipped
from streamfold.testing import check
from tests import everything

FILES = ("events/shop.jsonl", "events/music.jsonl", "events/sessions.jsonl")
ITEMS = {
    everything.ORDER: [
        {"status": "placed", "customer": "ana", "labels": [], "weight": 3, "email": "a@example.com"},
        {"status": "paid", "customer": "bo", "labels": ["gift", "rush"], "weight": 7, "email": "b@example.com"},
        {"status": "cancelled", "customer": "bo", "labels": ["paid"], "weight": 0, "email": "b@example.com"},
    ],
    everything.ORDER_ITEM: [
        {"sku": "a", "price": 3, "quantity": 2, "day": "2026-03-01", "tags": ["new", "old"], "customer": "ana"},
        {"sku": "free", "price": 60, "quantity": 1, "day": "2026-03-02", "tags": [], "customer": "bo"},
    ],
    everything.SESSION: [
        {"user": "ana", "day": "2026-03-01", "devices": 1},
        {"user": "bo", "day": "2026-03-02", "devices": 2},
    ],
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("file", FILES)
def test_shipped_handlers_hold_under_every_fault(file, seed):
    check(shipped, recorded=file, histories=500, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_one_of_everything_holds_under_every_fault(seed):
    check(everything.app, ITEMS, histories=500, seed=seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("file", FILES)
def test_shipped_handlers_hold_under_every_fault_in_many_histories(file, seed):
    check(shipped, recorded=file, histories=1000, seed=seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 140))
def test_one_of_everything_holds_under_every_fault_in_many_histories(seed):
    check(everything.app, ITEMS, histories=1000, seed=seed)
