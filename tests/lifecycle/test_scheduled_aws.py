"""``verify`` as a scheduled function: what it counts, what it may call, and what it logs."""

import json
from random import Random
from types import SimpleNamespace

import boto3
import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import DynamoEngine, MemoryEngine
from streamfold.errors import EngineError, ManifestError, SettingsError
from streamfold.lambda_entry.function import handle_verify
from streamfold.lifecycle.verify import SAMPLE_METRICS, AskedSample, verify_sample
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.partiql import WithStatements
from tests.helpers.source import Source
from tests.helpers.tables import make_table

ORDER = Key("ORDER#{order_id}", "METADATA")


def app_of(factor=1, *, name="total", with_late=False):
    router = Router()
    if with_late:
        router.audit(ORDER, name="late")

    @router.view(ORDER, into=Key("TOTAL#{group}", "TOTAL"), name=name)
    def total(item):
        return Row(group=item["group"], total=Sum(factor * item["total"]))

    return App("shop", routers=[router])


@pytest.fixture
def client(aws, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_TABLE_MAIN", "main")
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "off")
    client = WithStatements(boto3.client("dynamodb"))
    make_table(client, "main", {"PK": "S", "SK": "S"})
    make_table(client, "shop-state", {"pk": "S", "sk": "S"})
    source, app = Source(), app_of()
    records = [source.put(f"ORDER#{number}", group="secret", total=number) for number in range(5)]
    for each in records:
        client.put_item(TableName="main", Item=each["dynamodb"]["NewImage"])
    engine = DynamoEngine(client, {"main": (app.tables["main"], "main")}, "shop-state")
    assert process_event(Runtime(app, engine, Settings()), records).failures == []
    return client


def context(seconds=900):
    return SimpleNamespace(get_remaining_time_in_millis=lambda: seconds * 1000)


def test_what_agrees_has_no_difference_and_nothing_is_called_but_reads(client):
    called = []
    client.meta.events.register("before-call.dynamodb.*", lambda model, **_: called.append(model.name))
    counts = handle_verify(app_of(), {"sample": 100, "tolerance": 0}, context(), client)
    assert counts == {**dict.fromkeys(SAMPLE_METRICS, 0), "verified": 5}
    assert set(called) == {"Scan", "BatchGetItem"}


def test_a_comparison_in_which_nothing_failed_writes_one_line(client, monkeypatch, capsys):
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "lines")
    handle_verify(app_of(), {"sample": 100, "tolerance": 0}, context(), client)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["verified"] == 5


def test_what_differs_is_counted_by_handler_and_no_key_is_logged(client, monkeypatch, capsys):
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "lines")
    counts = handle_verify(app_of(2), {"tolerance": 0}, context(), client)
    assert (counts["different"], counts["verified"]) == (4, 5)
    printed = capsys.readouterr().out
    assert "ORDER#" not in printed
    assert "secret" not in printed
    lines = [json.loads(line) for line in printed.splitlines()]
    (error,) = [line for line in lines if line.get("level") == "ERROR"]
    assert (error["message"], error["handler"], error["count"]) == ("contributions differ", "total", 4)
    metrics = next(line for line in lines if "_aws" in line)
    assert (metrics["different"], metrics["service"]) == (4, "shop")


def test_a_state_that_no_function_has_written_yet_is_compared_without_an_error(client, monkeypatch):
    make_table(client, "new-state", {"pk": "S", "sk": "S"})
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "new-state")
    assert handle_verify(app_of(), {}, context(), client) == dict.fromkeys(SAMPLE_METRICS, 0)


def test_handlers_that_may_have_missed_items_are_counted_and_named(client, monkeypatch, capsys):
    app = app_of(with_late=True)
    engine = DynamoEngine(client, {"main": (app.tables["main"], "main")}, "shop-state")
    process_event(Runtime(app, engine, Settings()), [Source().put("ORDER#9", group="x", total=1)])
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "lines")
    counts = handle_verify(app, {"tolerance": 0}, context(), client)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (named,) = [line for line in lines if line.get("message") == "handler may have missed items"]
    assert (counts["partial_handlers"], named["handler"], named["level"]) == (1, "late", "ERROR")
    assert named["since"][:2] == "20"
    assert next(line for line in lines if "_aws" in line)["partial_handlers"] == 1


def test_a_look_ends_before_the_invocation_does(client):
    counts = handle_verify(app_of(2), {"tolerance": 60}, context(200), client)
    assert counts["verified"] == 0


def test_what_cannot_be_read_again_in_time_is_undecided():
    app, engine = app_of(), MemoryEngine(app_of().tables.values())
    engine.source_tables.add("main")
    run = Runtime(app, engine, Settings(), pause=lambda _: None)
    source = Source()
    process_event(run, [])
    body = source.put("ORDER#1", group="x", total=1)["dynamodb"]["NewImage"]
    engine.put_sources([(("main", "ORDER#1", "METADATA"), body, "1")])
    left = iter([900.0, 900.0, 900.0])
    run.seconds_left = lambda: next(left, 20.0)
    found = verify_sample(run, AskedSample(10, 60), Random(1))
    assert (found.counts["undecided"], found.counts["different"]) == (1, 0)


@pytest.mark.parametrize(
    ("app", "event", "error"),
    [
        (app_of(name="other"), {}, ManifestError),
        (app_of(), {"sample": 0}, SettingsError),
        (app_of(), {"tolerance": "a minute"}, SettingsError),
    ],
)
def test_what_does_not_fit_ends_the_invocation(client, app, event, error):
    with pytest.raises(error):
        handle_verify(app, event, context(), client)


def test_a_missing_table_ends_the_invocation(client, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "nowhere")
    with pytest.raises(EngineError):
        handle_verify(app_of(), {}, context(), client)
