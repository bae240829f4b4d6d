"""Descriptions of writes: there is one of each write, and a write's shape says which it is."""

from typing import get_args

import pytest

from streamfold.writes.descriptions import conditions, described, shape_of
from streamfold.writes.guarded import (
    AddRow,
    Claim,
    GuardedPut,
    GuardedWrite,
    HandlerContribution,
    LedgerWrite,
    OtherWrite,
    PutRow,
    PutState,
    StateKey,
)
from tests.helpers.engine_contract import PLAIN, SHOP
from tests.helpers.guards_contract import OTHER_WRITES, ROW_WRITES, STATE_WRITES, Drawn

TRIES = 300
ROW, ITEM = ("shop", "ROW", "1"), StateKey("ledger", "1")


def test_every_write_of_the_closed_set_is_drawn():
    assert {*ROW_WRITES, *STATE_WRITES} == set(get_args(GuardedWrite))
    assert set(OTHER_WRITES) == set(get_args(OtherWrite))


@pytest.mark.parametrize("kind", [*ROW_WRITES, *STATE_WRITES], ids=lambda kind: kind.__name__)
def test_writes_of_one_shape_have_one_description(kind):
    drawn, known = Drawn(kind.__name__), {}
    for _ in range(TRIES):
        table = drawn.of(SHOP, PLAIN)
        write = drawn.row_write(kind, ROW, drawn.row()) if kind in ROW_WRITES else drawn.state_write(kind, ITEM)
        description = described(write, table)
        assert known.setdefault(shape_of(write, table), description) == description


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (LedgerWrite(ITEM, (HandlerContribution("a", "v1", "new", ""),), None, 1, expires=False), ["as before"]),
        (Claim(ITEM), ["there is none"]),
        (PutState(ITEM, "text"), []),
        (AddRow(ROW, {"n": 1}, 1, contributors_min=1), []),
        (AddRow(ROW, {"n": 1}, 1, unversioned=True, contributors_min=1), ["none put it"]),
        (PutRow(ROW, {}), []),
        (PutRow(ROW, {}, "owner"), ["nobody adds to it"]),
        (PutRow(ROW, {}, "owner", amends=True), ["nobody adds to it"]),
        (GuardedPut(ROW, {}, "v1"), ["older"]),
        (GuardedPut(ROW, None, "v1", "owner"), ["older", "it is no other item's"]),
    ],
)
def test_a_dry_run_names_the_conditions_of_a_write(write, expected):
    assert conditions(write) == expected
