"""Two processes that empty one bucket at once, one of which stands still at the worst moment."""

import pytest

from streamfold.commit.buckets import pending_in
from streamfold.keys.table import OWNER
from streamfold.writes.guarded import CorrectRow
from tests.commit.test_damaged_deltas import BUCKET, Shop


@pytest.fixture
def shop():
    return Shop()


def test_a_mark_that_comes_late_is_taken_away_from_a_row_that_others_made_again(shop):
    """The row looks as it did when it was read: it counts one item, and nobody has it."""
    assert shop.deliver(shop.item(1)) == []
    moved = shop.item(1, g=None)
    shop.deliver_and_die(moved)
    late, others = Shop(), Shop()
    for each in (late, others):
        each.store.engine, each.source, each.now = shop.store.engine, shop.source, shop.now
    transact = late.store.engine.transact

    def stands_still(writes, expires_at):
        if isinstance(writes[0], CorrectRow):
            late.store.engine.transact = transact
            others.now += 60
            assert others.deliver(moved, shop.item(2)) == []
            assert (shop.row()["items"], OWNER in shop.row()) == (1, False)
        return transact(writes, expires_at)

    late.store.engine.transact = stands_still
    assert late.deliver(moved) == []
    assert (shop.row()["items"], OWNER in shop.row()) == (1, False)
    assert pending_in(late.runtime(), BUCKET) == {}
