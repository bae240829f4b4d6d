"""``streamfold backfill AUDIT --opening``: a first row for items that were there before their audit."""

import pytest

from tests.cli.conftest import SHOP

STATE = ("--state", "state.db")
AUDITED = SHOP.replace("\n\napp =", '\n\nrouter.audit(ITEM, name="lines")\n\n\napp =')
SECRET = "k" * 40


@pytest.fixture
def old(folder, source):
    """Two lines that were there before the audit, and a third that came later."""
    folder.run("replay", folder.records(*(source.put("ORDER#1", f"ITEM#{n}", price=n) for n in (1, 2))), *STATE)
    folder.app(AUDITED)
    folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#3", price=3)), *STATE)
    return folder


def history(folder, number, *more):
    ran = folder.run("history", "ORDER#1", f"ITEM#{number}", *STATE, "--json", *more)
    return ran.objects()


def events(folder, number):
    return [row["event"]["S"] for row in history(folder, number)]


def test_an_item_without_a_history_gets_one_row_and_one_with_a_history_none(old):
    ran = old.run("backfill", "lines", "--opening", *STATE)
    assert (ran.code, "5 keys of the tables read, 2 contributions written, 1 right before" in ran.out) == (0, True), (
        ran.err
    )
    assert [events(old, number) for number in (1, 2, 3)] == [["OPENING"], ["OPENING"], ["INSERT"]]
    (row,) = history(old, 1)
    assert row["changes"]["M"]["price"]["M"] == {"new": {"N": "1"}}


def test_a_second_run_changes_nothing_and_later_changes_follow(old, source):
    old.run("backfill", "lines", "--opening", *STATE)
    before = history(old, 1)
    assert "0 contributions written, 3 right before" in old.run("backfill", "lines", "--opening", *STATE).out
    assert history(old, 1) == before
    old.run("replay", old.records(source.put("ORDER#1", "ITEM#1", price=9)), *STATE)
    assert events(old, 1) == ["OPENING", "MODIFY"]


def test_the_item_is_known_from_then_on(old):
    old.run("backfill", "lines", "--opening", *STATE)
    (known,) = history(old, 2, "--at", "2100-01-01T00:00:00Z")
    assert (known["exists"], known["item"]["price"]) == (True, {"N": "2"})
    (before,) = history(old, 2, "--at", "2000-01-01T00:00:00Z")
    assert before["exists"] is None


def test_a_history_with_a_first_row_is_whole(old, source, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_AUDIT_KEY", SECRET)
    old.run("backfill", "lines", "--opening", *STATE)
    old.run("replay", old.records(source.put("ORDER#1", "ITEM#1", price=9)), *STATE)
    ran = old.run("audit", "verify", "ORDER#1", "ITEM#1", *STATE)
    assert ran.code == 0, ran.out + ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--opening needs the names of audits: lines"),
        (["order_total"], "'order_total'"),
        (["lines", "--load"], "leave --export, --load and --max-lag out"),
        (["lines", "--runner", "elsewhere"], "leave --runner, --processes and --spark-master out"),
    ],
)
def test_what_has_no_history_is_refused(old, arguments, text):
    ran = old.run("backfill", *arguments, "--opening", *STATE)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_a_dry_run_writes_nothing(old):
    assert "over 5 items" in old.run("backfill", "lines", "--opening", "--dry-run", *STATE).err
    assert events(old, 1) == []
