"""An application without AWS: lambda_handler on a local state, and what app.process keeps in one."""

import json
import logging
import subprocess
import sys
from contextlib import closing

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.engines import EmbeddedEngine
from streamfold.errors import SettingsError
from tests.helpers.commands import environment, streamfold
from tests.helpers.failures import parked_document
from tests.helpers.records import record

LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
ALL = Key("ALL", "ORDERS")
PROJECT = """
from streamfold import App, Count, Key, Router, Row, Sum

router = Router()


@router.view(Key("ORDER#{order_id}", "LINE#{sku}"), into=Key("ORDER#{order_id}", "TOTAL"))
def total(line):
    yield Row(total=Sum(line["price"]))


@router.view(Key("ORDER#{order_id}", "TOTAL"), into=Key("ALL", "ORDERS"))
def orders(order):
    yield Row(orders=Count(), total=Sum(order["total"]))


app = App("shop", routers=[router])
lambda_handler = app.lambda_handler
"""
INVOKE = """
import json, sys
from handlers import lambda_handler
print(json.dumps(lambda_handler(json.load(sys.stdin), None)))
print([name for name in ("boto3", "botocore", "aws_lambda_powertools") if name in sys.modules])
"""


def application(name):
    router = Router()

    @router.view(LINE, into=TOTAL)
    def total(line):
        yield Row(total=Sum(line["price"]), lines=Count())

    @router.view(TOTAL, into=ALL)
    def orders(order):
        if order["total"] < 0:
            raise ValueError("less than nothing")
        yield Row(orders=Count(), total=Sum(order["total"]))

    @router.on(LINE, external=True)
    def mail(change):
        raise AssertionError

    return App(name, routers=[router])


@pytest.fixture
def app():
    return application("shop")


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("STREAMFOLD_ENGINE", f"embedded:{tmp_path / 'shop.db'}")
    return tmp_path / "shop.db"


def row(app, place, *key):
    with closing(EmbeddedEngine(app.tables.values(), place)) as engine:
        return engine.read_source(("main", *key))


def event(*records):
    return {"Records": list(records)}


def test_a_project_is_tried_end_to_end_without_a_client_of_aws(tmp_path, source):
    (tmp_path / "handlers.py").write_text(PROJECT)
    given = json.dumps(event(source.put("ORDER#1", "LINE#a", price=3), source.put("ORDER#2", "LINE#a", price=4)))
    how = {"cwd": tmp_path, "env": environment(STREAMFOLD_ENGINE="embedded:shop.db"), "input": given, "text": True}
    for _ in range(2):  # delivered again: nothing changes
        done = subprocess.run([sys.executable, "-c", INVOKE], capture_output=True, check=False, **how)
        assert done.stdout.splitlines() == ['{"batchItemFailures": []}', "[]"], done.stderr
    ran = streamfold("show", "ALL", "--state", "shop.db", "--json", folder=tmp_path)
    assert ran.out == '{"PK":{"S":"ALL"},"SK":{"S":"ORDERS"},"orders":{"N":"2"},"total":{"N":"7"}}\n'
    assert len(streamfold("show", "--source", "--state", "shop.db", "--json", folder=tmp_path).out.splitlines()) == 2


def test_records_under_a_new_name_of_an_application_are_reported(app, place, source, caplog):
    app.lambda_handler(event(source.put("ORDER#1", "LINE#a", price=3)), None)
    before, record = row(app, place, "ALL", "ORDERS"), source.put("ORDER#1", "LINE#b", price=4)
    failures = application("store").lambda_handler(event(record), None)["batchItemFailures"]
    assert failures == [{"itemIdentifier": record["dynamodb"]["SequenceNumber"]}]
    assert row(app, place, "ALL", "ORDERS") == before
    assert "application 'shop' derives rows of" in caplog.text


def test_setting_with_a_name_that_no_file_can_have_is_refused(app, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_ENGINE", f"embedded:{'x' * 5000}")
    with pytest.raises(SettingsError, match="' can be no file: it is longer than the file system takes"):
        app.lambda_handler(event(), None)


def test_records_that_fail_are_reported_by_their_number_and_logged_with_the_reason(app, place, source, caplog):
    bad, good = source.put("ORDER#1", "LINE#a", price="three"), source.put("ORDER#2", "LINE#a", price=4)
    found = app.lambda_handler(event(bad, good), None)
    assert found == {"batchItemFailures": [{"itemIdentifier": bad["dynamodb"]["SequenceNumber"]}]}
    assert row(app, place, "ALL", "ORDERS")["orders"] == {"N": "1"}
    told = [message for _, level, message in caplog.record_tuples if level == logging.ERROR]
    assert len(told) == 1
    assert "Record failed and is retried: handler 'total'" in told[0]
    assert "External handler mail was not called for 2 records" in caplog.text


def test_a_chain_that_fails_is_logged_and_comes_again_with_the_next_event(app, place, source, caplog):
    assert app.lambda_handler(event(source.put("ORDER#1", "LINE#a", price=-1)), None) == {"batchItemFailures": []}
    assert "less than nothing" in caplog.text
    assert app.lambda_handler(event(source.put("ORDER#1", "LINE#b", price=5)), None) == {"batchItemFailures": []}
    assert row(app, place, "ALL", "ORDERS")["total"] == {"N": "4"}


def test_recorded_rows_of_the_application_are_made_anew(app, place, source):
    made = record(None, {"PK": "ORDER#1", "SK": "TOTAL", "total": 3, "_sf_n": 1}, 99)
    app.lambda_handler(event(source.put("ORDER#1", "LINE#a", price=4), made), None)
    assert row(app, place, "ALL", "ORDERS")["total"] == {"N": "4"}


def test_a_lambda_function_refuses_a_state_in_its_own_files(app, place, monkeypatch, source):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "projector")
    with pytest.raises(SettingsError, match=r"is set in the Lambda function 'projector', whose files are lost with"):
        app.lambda_handler(event(source.put("ORDER#1", "LINE#a", price=3)), None)
    assert not place.exists()


def test_a_folder_that_is_not_there_is_named(app, monkeypatch, tmp_path):
    monkeypatch.setenv("STREAMFOLD_ENGINE", f"embedded:{tmp_path / 'none' / 'shop.db'}")
    with pytest.raises(SettingsError, match=r"there is no folder .*none; make it first"):
        app.lambda_handler(event(), None)


def test_a_state_that_was_made_by_process_can_be_redriven(tmp_path, source):
    (tmp_path / "handlers.py").write_text(PROJECT)
    names = {}
    exec(compile(PROJECT, "handlers.py", "exec"), names)
    app, bad = names["app"], source.put("ORDER#1", "LINE#a", price=3)
    with closing(EmbeddedEngine(app.tables.values(), tmp_path / "shop.db", app.chains)) as engine:
        assert app.process([source.put("ORDER#2", "LINE#a", price=4)], engine=engine) == []
    (tmp_path / "parked.jsonl").write_text(json.dumps(parked_document(bad, "total")))

    ran = streamfold("redrive", "parked.jsonl", "--state", "shop.db", "--apply", folder=tmp_path)

    assert (ran.code, "1 applied" in ran.out) == (0, True), ran.err


def test_a_warning_in_the_log_tells_no_item(app, place, source, caplog):
    app.lambda_handler({"Records": [source.put("ORDER#secret", "LINE#")]}, None)
    (told,) = [message for message in caplog.messages if "LINE#{sku}" in message]
    assert "secret" not in told
    assert told.isascii()


def test_process_warns_once_in_the_log(app, source, caplog):
    engine = EmbeddedEngine(app.tables.values())
    for _ in range(2):
        assert app.process([source.put("ORDER#1", "LINE#")], engine=engine) == []
    assert len([message for message in caplog.messages if "LINE#{sku}" in message]) == 1
