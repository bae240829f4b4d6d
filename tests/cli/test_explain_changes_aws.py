"""``streamfold explain --item`` of handlers without a ledger: what they did for the newest change of an item."""

import json
from pathlib import Path

import pytest

STATE = ("--state", "state.db")
CODE = """
from streamfold import App, Count, Key, Put, Router, Row

ORDER, LOG = Key("ORDER#{order_id}", "METADATA"), Key("LOG#{order_id}", "ROW")
router = Router()


@router.view(ORDER, into=Key("CUSTOMER#{customer}", "ORDERS"))
def counted(order):
    return Row(customer=order["customer"], orders=Count())


@router.on(ORDER, into=LOG)
def logged(change):
    return Put(LOG, total=change.new["total"])


@router.on(ORDER, external=True, at_once=4)
def mailed(change):
    if change.new["total"] > 100:
        raise ConnectionError


router.publish(ORDER, to="sns:orders", type="order.{event}", name="sent")
router.publish(ORDER, to="sns:orders", type="order.{event}", name="sent_once", once=True)
router.archive(ORDER, to="s3://bucket/removed", name="kept")
app = App("shop", routers=[router])
"""
KEY = ("ORDER#1", "METADATA")


@pytest.fixture
def shop(folder, monkeypatch):
    folder.app(CODE)
    monkeypatch.setenv("STREAMFOLD_PUBLISH", "file:messages")
    return folder


def replayed(folder, source, *flags, total=5):
    records = folder.records(source.put(*KEY, customer="ada", total=total))
    return folder.run("replay", records, *STATE, *flags).code


def changes(folder):
    ran = folder.run("explain", "--item", *KEY, *STATE, "--json")
    handlers = json.loads(ran.out)["handlers"]
    assert len({each["version"] for each in handlers if "change" in each}) == 1
    return {each["handler"]: each["change"] for each in handlers if "change" in each}


def test_a_call_that_was_made_is_named(shop, source):
    assert replayed(shop, source, "--external") == 0
    assert changes(shop)["mailed"] == "called"
    assert "  called\n" in shop.run("explain", "--item", *KEY, *STATE).out


def test_a_call_that_failed_is_named(shop, source):
    assert replayed(shop, source, "--external", total=500) == 1
    assert changes(shop)["mailed"] == "the call failed; it is made again with its record"


def test_a_call_that_was_not_made_is_named(shop, source):
    assert replayed(shop, source) == 0
    assert changes(shop)["mailed"] == "no note: not called, or long ago"


def test_effects_of_a_change_are_named(shop, source):
    assert replayed(shop, source) == 0
    assert changes(shop)["logged"] == "applied"


def test_messages_are_named_by_their_ids(shop, source):
    assert replayed(shop, source) == 0
    found = changes(shop)
    sent = [json.loads(line) for file in Path("messages").rglob("*.jsonl") for line in file.read_text().splitlines()]
    ids = {each["id"] for each in sent}
    assert len(ids) == 2
    assert {found[name].split()[1].rstrip(",") for name in ("sent", "sent_once")} == ids
    assert found["sent"].endswith("if there is one for this change")
    assert found["sent_once"].endswith("if there is one for this change: sent")


def test_a_handler_that_keeps_nothing_has_no_line_of_a_change(shop, source):
    assert replayed(shop, source) == 0
    assert "kept" not in changes(shop)
