"""The shipped handlers, and one of everything, under every fault: 300 histories in CI, 150,000 at night."""

from pathlib import Path

import pytest

from handlers import app as shipped
from handlers import documents, iot, shop, tenants, tickets
from streamfold.testing import check
from tests.helpers import everything

EVENTS = Path(__file__).parents[2] / "events"
RECORDED = [(shipped, path) for path in sorted(EVENTS.glob("*.jsonl"))]
RECORDED += [(tenants.app, path) for path in sorted(EVENTS.glob("tenants/*.jsonl"))]
RECORDED += [(tickets.app, EVENTS / "desk/deadlines.jsonl"), (shop.app, EVENTS / "shop/deliveries.jsonl")]
RECORDED += [(iot.app, EVENTS / "iot/maintenance.jsonl"), (documents.app, EVENTS / "documents/labels.jsonl")]
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


def check_histories(count, seed, recorded=RECORDED):
    """One of everything and each shipped file, so many histories each; a quarter of what takes four times as long."""
    proofs = [check(everything.app, ITEMS, histories=count, seed=seed)]
    proofs += [check(everything.kept, ITEMS, histories=count, seed=seed, processes=0)]
    assert check(everything.whole, ITEMS, histories=count // 4, seed=seed, processes=0).unproved == ()
    proofs += [check(app, recorded=path, histories=count, seed=seed, processes=0) for app, path in recorded[1:]]
    proofs += [check(recorded[0][0], recorded=recorded[0][1], histories=count, seed=seed)]
    assert all(proof.histories == count for proof in proofs)


def test_handlers_hold_under_every_fault():
    check_histories(4, seed=3, recorded=RECORDED[:2])


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3, 5))
def test_handlers_hold_under_every_fault_in_more_histories(seed):
    check_histories(12, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 125))
def test_handlers_hold_under_every_fault_in_many_histories(seed):
    check_histories(450, seed)
