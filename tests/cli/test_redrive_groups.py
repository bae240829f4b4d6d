"""``streamfold redrive`` of an application with several groups: what belongs to another group is left to it."""

import json

import boto3
import pytest

from streamfold.deploy.functions import group_of_function
from tests.helpers.failures import parked_document, s3_object
from tests.helpers.source import Source

STATE = ("--state", "state.db")
SHOP = """
from streamfold import App, Count, Document, Key, Router, Row

ORDER = Key("ORDER#{order_id}", "METADATA")
router = Router()


@router.view(ORDER, into=Key("TOTAL", "ALL"), on_error="park")
def total(order):
    yield Row(orders=Count())


@router.view(ORDER, into=Key("REPORT", "ALL"), on_error="park", group="daily-reports")
def report(order):
    yield Row(orders=Count())


app = App("shop", routers=[router])
"""
ALL = {"TOTAL / ALL", "REPORT / ALL"}


@pytest.fixture
def folder(folder):
    folder.app(SHOP)
    return folder


@pytest.fixture
def record(source, folder):
    """A record of a state that has seen another."""
    folder.run("replay", folder.records(source.put("ORDER#0", "METADATA")), *STATE)
    return source.put("ORDER#1", "METADATA")


def redriven(folder, content, *, group=None, monkeypatch=None):
    """The exit code, the outcome of each handler, and the counts of rows, after a redrive."""
    if group is not None:
        monkeypatch.setenv("STREAMFOLD_GROUP", group)
    ran = folder.run("redrive", folder.write("failed.json", content), *STATE, "--apply", "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    rows = {key: int(row["orders"]["N"]) for key, row in folder.rows(*STATE).items()}
    return ran.code, {line["handler"]: line["outcome"] for line in lines if "handler" in line}, rows


@pytest.mark.parametrize(
    ("function", "outcomes", "counts"),
    [
        ("prod-Projector-1A2B3C4D5E", {"total": "applied"}, {"TOTAL / ALL": 2, "REPORT / ALL": 1}),
        ("prod-eu-DailyReportsProjector-1A2B3C4D5E", {"report": "applied"}, {"TOTAL / ALL": 1, "REPORT / ALL": 2}),
        ("orders", {"total": "applied", "report": "applied"}, dict.fromkeys(ALL, 2)),
    ],
)
def test_a_batch_is_redriven_for_the_group_that_its_function_names(folder, record, function, outcomes, counts):
    assert redriven(folder, s3_object(record, function=function)) == (0, outcomes, counts)


def test_a_batch_of_another_group_is_left_to_it_and_no_failure(folder, record, monkeypatch):
    content = s3_object(record, function="prod-DailyReportsProjector-1A2B3C4D5E")
    code, outcomes, rows = redriven(folder, content, group="main", monkeypatch=monkeypatch)
    assert (code, outcomes, rows) == (0, {None: "skipped"}, dict.fromkeys(ALL, 1))
    code, outcomes, rows = redriven(folder, content, group="daily-reports", monkeypatch=monkeypatch)
    assert (code, outcomes, rows["REPORT / ALL"]) == (0, {"report": "applied"}, 2)


def test_a_batch_of_a_function_without_a_known_group_is_redriven_by_each_group_in_turn(folder, record, monkeypatch):
    content = s3_object(record, function="orders")
    code, outcomes, _ = redriven(folder, content, group="main", monkeypatch=monkeypatch)
    assert (code, outcomes) == (0, {"total": "applied", "report": "skipped"})
    code, outcomes, rows = redriven(folder, content, group="daily-reports", monkeypatch=monkeypatch)
    assert (code, outcomes, rows) == (0, {"total": "skipped", "report": "applied"}, dict.fromkeys(ALL, 2))


def test_a_parked_record_of_another_group_is_left_to_it_and_no_failure(folder, record, monkeypatch):
    content = json.dumps(parked_document(record, "report"))
    code, outcomes, rows = redriven(folder, content, group="main", monkeypatch=monkeypatch)
    assert (code, outcomes, rows["REPORT / ALL"]) == (0, {"report": "skipped"}, 1)
    ran = folder.run("redrive", "failed.json", *STATE)
    assert "1 of group daily-reports are left to its own redrive: STREAMFOLD_GROUP=daily-reports." in ran.out


def test_an_object_of_another_group_is_not_cleared(folder, record, aws, monkeypatch):
    client = boto3.client("s3")
    client.create_bucket(Bucket="failures")
    for name in ("prod-Projector-1A2B3C4D5E", "prod-DailyReportsProjector-1A2B3C4D5E", "orders"):
        client.put_object(Bucket="failures", Key=name, Body=s3_object(record, function=name))
    monkeypatch.setenv("STREAMFOLD_GROUP", "main")
    assert folder.run("redrive", "s3://failures", *STATE, "--apply", "--clear").code == 0
    kept = [each["Key"] for each in client.list_objects_v2(Bucket="failures")["Contents"]]
    assert kept == ["orders", "prod-DailyReportsProjector-1A2B3C4D5E"]


def test_a_handler_that_is_switched_off_is_left_over_in_its_own_group(folder, record, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "total")
    code, outcomes, _ = redriven(folder, s3_object(record, function="prod-Projector-1A2B3C4D5E"))
    assert (code, outcomes) == (1, {"total": "skipped"})


SEARCH = """
@router.search(ORDER, to="orders", fields={"n": "long"}, group="search")
def documents(order):
    return Document(n=1)


app = App("shop", routers=[router])
"""


def test_a_search_without_a_server_leaves_the_other_handlers_their_record(folder, on_aws, monkeypatch):
    folder.app(SHOP.replace('app = App("shop", routers=[router])\n', SEARCH))
    record = Source(table="shop").put("ORDER#1", "METADATA")
    on_aws._put([record])
    file = folder.write("failed.json", s3_object(record, function="orders"))
    ran = folder.run("redrive", file, *on_aws.OPTIONS, "--apply", "--yes", "--json")
    found = {line["handler"]: line for line in map(json.loads, ran.out.splitlines()) if "handler" in line}
    assert ran.code == 1
    assert {name: line["outcome"] for name, line in found.items()} == {
        "total": "applied", "report": "applied", "documents": "skipped"
    }  # fmt: skip
    assert "STREAMFOLD_SEARCH" in found["documents"]["why"]
    monkeypatch.setenv("STREAMFOLD_GROUP", "main")
    assert folder.run("redrive", file, *on_aws.OPTIONS, "--apply", "--yes").code == 0


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("Projector", "main"),
        ("prod-Projector-1A2B3C4D5E", "main"),
        ("prod-DailyReportsProjector-1A2B3C4D5E", "daily-reports"),
        ("prod-OtherProjector-1A2B3C4D5E", None),
        ("projector", None),
        ("prod-Projector", None),
        ("prod-Spreader-1A2B3C4D5E", None),
    ],
)
def test_a_name_of_cloudformation_names_the_group(folder, name, group):
    assert group_of_function(folder.load(), name) == group
