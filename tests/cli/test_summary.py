"""A plan as ``replay --dry-run`` prints it."""

import pytest

from streamfold import Key
from streamfold.cli.summary import plan_lines, write_line
from streamfold.commit.plan import KeyedPut, Plan, Transaction
from streamfold.derivations.archive.archives import Archived
from streamfold.derivations.copy.copies import Copied
from streamfold.derivations.copy.kind import COPY
from streamfold.routes.route import Route
from streamfold.settings import Settings
from streamfold.writes.guarded import (
    AddRow,
    ChangedEntries,
    Claim,
    DeleteRow,
    DeleteState,
    GuardedPut,
    HandlerContribution,
    LedgerWrite,
    PutRow,
    PutState,
    StateKey,
)
from tests.helpers.records import change, item

ROW, STATE = ("main", "ORDER#1", "TOTAL"), StateKey("ledger#shop#main#main#ORDER#1", "ITEM#a")
BEST = ChangedEntries("entries#", "best", "max:1", frozenset({"1"}))
PARTS = (HandlerContribution("total", "v", "{}", ""), HandlerContribution("lines", "v", "{}", ""))


@pytest.mark.parametrize(
    ("write", "line"),
    [
        (AddRow(ROW, {"total": 5, "n": -1, "m": 0}, 1), "add to ORDER#1 / TOTAL: total +5, n -1, contributors +1"),
        (AddRow(ROW, {}, 0, True, "s", (BEST,)), "add to ORDER#1 / TOTAL, if none put it: values of best"),
        (PutRow(ROW, {"a": "", "b": None, "_sf_n": 1}), 'put ORDER#1 / TOTAL: a="", b=null'),
        (PutRow(("plain", 7, None), {"a": 1}, "o"), "put plain: 7, if nobody adds to it: a=1"),
        (DeleteRow(ROW), "remove ORDER#1 / TOTAL"),
        (DeleteRow(ROW, "o"), "remove ORDER#1 / TOTAL, if nobody adds to it"),
        (
            AddRow(ROW, {"n": 1}, -1, contributors_min=1, values={"a": 1}, removed=("b", "_sf_e_b")),
            "add to ORDER#1 / TOTAL: n +1, a=1, without b, contributors -1",
        ),
        (GuardedPut(ROW, {"a": 1}, "v"), "put ORDER#1 / TOTAL, if older: a=1"),
        (GuardedPut(ROW, None, "v", "o"), "remove ORDER#1 / TOTAL, if older, if it is no other item's"),
        (Claim(STATE), "guard ledger#shop#main#main#ORDER#1 / ITEM#a, if there is none"),
        (PutState(STATE, "x"), "put state ledger#shop#main#main#ORDER#1 / ITEM#a"),
        (DeleteState(STATE), "remove state ledger#shop#main#main#ORDER#1 / ITEM#a"),
        (
            LedgerWrite(STATE, PARTS, None, 1, expires=False),
            "guard ledger#shop#main#main#ORDER#1 / ITEM#a, if as before: total, lines",
        ),
    ],
)
def test_a_write_is_a_line_with_its_row_its_condition_and_what_changes(write, line):
    assert write_line(write) == line


def test_a_plan_is_its_transactions_and_what_is_written_beside_them():
    of = change(None, item("ORDER#1", "METADATA"))
    copied = Route("copy", COPY, (Key("ORDER#{order_id}", "METADATA"),), (), None, "here:1")
    plan = Plan(
        (Transaction((None,), (Claim(STATE), DeleteRow(ROW))),),
        (KeyedPut(copied, of, PutRow(ROW, {"event": "INSERT"})),),
        (Copied(copied, (of,), GuardedPut(ROW, {"a": 1}, "v")), Archived(copied, (of,), "{}")),
    )
    assert list(plan_lines(plan, Settings())) == [
        "transaction 1: 1 unit, 2 writes",
        "  guard ledger#shop#main#main#ORDER#1 / ITEM#a, if there is none",
        "  remove ORDER#1 / TOTAL",
        "put ORDER#1 / TOTAL: event=INSERT",
        "copy: put ORDER#1 / TOTAL, if older: a=1",
        "archive ORDER#1 / METADATA",
    ]
