"""``streamfold replay --cost``: what a million records cost, and what switching off each handler saves."""

import json
import re

import pytest

from streamfold.replay import costs
from tests.helpers.commands import ROOT
from tests.helpers.source import Source

FRAMEWORK = ROOT / "framework"

APP = """
from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
router = Router()
router.audit(ITEM)


@router.view(ITEM, into=TOTAL)
def order_total(item):
    return Row(total=Sum(item["price"]), lines=Count())


@router.view(TOTAL, into=Key("TOTALS", "ALL"))
def all_orders(order):
    return Row(orders=Count())


@router.view(Key("REVIEW#{number}", "X"), into=Key("REVIEWS", "ALL"))
def reviews(review):
    return Row(reviews=Count())


app = App("shop", routers=[router])
"""


@pytest.fixture
def folder(folder):
    folder.app(APP)
    return folder


@pytest.fixture
def recorded(folder):
    source = Source()
    return folder.records(*(source.put(f"ORDER#{n}", "ITEM#a", price=3) for n in range(10)))


def as_json(folder, *arguments):
    ran = folder.run("replay", *arguments, "--cost", "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_million_records_cost_their_units(folder, recorded):
    found = as_json(folder, recorded)

    # Ledger items and totals in a transaction, a history row each, then ledger items of the totals and their row.
    assert found["a_million"]["write_units"] == 1e6 * (10 * 2 * 2 + 10 + 10 * 2 + 2) / 10
    assert found["a_million"]["dollars"] == pytest.approx(
        0.625 * found["a_million"]["write_units"] / 1e6 + 0.125 * found["a_million"]["read_units"] / 1e6, abs=1e-3
    )
    assert (found["records"], found["failed"], found["derived"]) == (10, 0, 0)


def test_switching_off_a_handler_saves_its_own_rows_and_the_chain_behind_it(folder, recorded):
    saved = as_json(folder, recorded)["saved_without"]

    assert saved["audit_order_item"]["write_units"] == 1e6
    assert saved["all_orders"]["write_units"] == 1e6 * (10 * 2 + 2) / 10
    assert saved["order_total"]["write_units"] == 1e6 * (10 * 2 * 2 + 10 * 2 + 2) / 10


def test_handlers_that_no_record_reaches_have_no_run(folder, recorded):
    found = as_json(folder, recorded)

    assert found["runs"] == 4
    assert "reviews" not in found["saved_without"]


def test_all_runs_share_a_bound_of_records(folder, recorded, monkeypatch):
    monkeypatch.setattr(costs, "RECORDS_MAX", 12)

    assert as_json(folder, recorded)["records"] == 3


def test_batches_of_several_sizes_stand_beside_each_other(folder, recorded):
    found = as_json(folder, recorded)

    # Alone, each record writes the ledger item, its total and history, then the total's ledger item and its row.
    assert found["batches"]["1"]["write_units"] == 1e6 * (10 * 2 * 2 + 10 + 10 * 2 * 2) / 10
    assert found["batches"]["100"] == found["a_million"]
    assert list(found["batches"]) == ["1", "10", "100"]
    assert list(as_json(folder, recorded, "--batch-size", 5)["batches"]) == ["1", "5", "10", "100"]


def test_metrics_alarms_and_log_lines_are_priced(folder, recorded, monkeypatch):
    found = as_json(folder, recorded)["observation"]

    assert found["dollars_a_month"] == round(0.3 * found["metrics"] + 0.1 * found["alarms"], 2)
    assert found["log"]["1"] == pytest.approx(100 * found["log"]["100"], rel=0.02)
    assert f"{found['metrics']} metrics at $0.30" in folder.run("replay", recorded, "--cost").err
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "off")
    assert as_json(folder, recorded)["observation"]["metrics"] == 0


def test_prices_can_be_given(folder, recorded):
    found = as_json(folder, recorded, "--price-write", 1, "--price-read", 0)

    assert found["a_million"]["dollars"] == found["a_million"]["write_units"] / 1e6
    assert found["prices"] == {"write": 1, "read": 0}


def test_a_person_reads_what_was_counted_and_what_was_not(folder, recorded):
    ran = folder.run("replay", recorded, "--cost")

    assert ran.out.splitlines()[0].split() == [
        "a",
        "million",
        "records",
        "requests",
        "write",
        "units",
        "read",
        "units",
        "dollars",
    ]
    assert "4 runs: one with all handlers, and one without each." in ran.err
    assert "Counted over the first 10 records, in batches of 100, on empty tables." in ran.err
    assert "Not counted: writes of the items themselves" in ran.err


def test_nothing_is_written_and_no_handler_runs_on_a_state(folder, recorded):
    folder.run("replay", recorded, "--cost")

    assert not list(folder.path.rglob("*.db"))


def test_failed_records_are_reported_because_their_writes_are_missing(folder):
    source = Source()
    records = folder.records(source.put("ORDER#1", "ITEM#a", price=3), source.put("ORDER#2", "ITEM#a", price="three"))
    ran = folder.run("replay", records, "--cost")

    assert ran.code == 1
    assert "1 record failed; their writes are missing from the numbers." in ran.err


def test_the_page_shows_what_each_handler_adds(folder, recorded):
    ran = folder.run("replay", recorded, "--cost", "--html", "costs.html")

    assert ran.code == 0, ran.err
    assert "Saved by switching off" in (folder.path / "costs.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--state", "x.db"], "--state does not go with --cost"),
        (["--chaos"], "--chaos does not go with --cost"),
        (["--dry-run"], "--dry-run does not go with --cost"),
        (["--external"], "--external does not go with --cost"),
    ],
)
def test_options_about_a_store_do_not_go_with_costs(folder, recorded, arguments, expected):
    ran = folder.run("replay", recorded, "--cost", *arguments)

    assert (ran.code, expected in ran.err) == (2, True), ran.err


def test_a_price_belongs_to_costs(folder, recorded):
    assert "--price-write belongs to --cost." in folder.run("replay", recorded, "--price-write", 1).err


def test_files_without_records_of_the_application_are_refused(folder):
    ran = folder.run("replay", folder.write("none.jsonl", ""), "--cost")

    assert "No record of the application's own items was read: name files that hold some." in ran.err


def test_a_bad_line_stops_it_unless_it_is_left_out(folder):
    source = Source()
    folder.records(source.put("ORDER#1", "ITEM#a", price=3))
    folder.write("bad.jsonl", "{\n")

    assert "Bad line: bad.jsonl:1" in folder.run("replay", "bad.jsonl", "records.jsonl", "--cost").err
    ran = folder.run("replay", "bad.jsonl", "records.jsonl", "--cost", "--json", "--keep-going")
    assert (json.loads(ran.out)["records"], json.loads(ran.out)["failed"]) == (1, 1)


def test_the_prices_of_dynamodb_are_in_one_module():
    priced = re.compile(r"\b0\.625\b|\b0\.125\b")
    found = [file.name for file in FRAMEWORK.rglob("*.py") if priced.search(file.read_text("utf-8"))]

    assert found == ["capacity.py"]
