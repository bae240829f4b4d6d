"""Spans by OpenTelemetry's API: of a batch, its handlers and its transactions, without contents of items."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest

from streamfold import App, Change, Count, Key, Put, Router, Row
from streamfold.derivations.calls import named_by
from streamfold.engines import EmbeddedEngine
from streamfold.errors import RecordError
from streamfold.lambda_entry.function import Function
from streamfold.lambda_entry.queue import RING, QueueFunction
from streamfold.routes.route import declared
from streamfold.settings import Settings
from tests.helpers.commands import ROOT, environment
from tests.helpers.source import Source

WHERE = "OpenTelemetry's SDK is a package of the tests: make .venv/.dev"
sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=WHERE)
export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=WHERE)
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=WHERE)
trace = pytest.importorskip("opentelemetry.trace", reason=WHERE)
spans = pytest.importorskip("streamfold.lambda_entry.spans", reason=WHERE)

ORDER = Key("ORDER#{order_id}", "METADATA")
BY_CUSTOMER, LOG = Key("CUSTOMER#{customer}", "ORDERS"), Key("LOG#{order_id}", "STATE")
SETTINGS = Settings(observe="off", state_table="state")
REQUEST = "request-1"


class Context(SimpleNamespace):
    def get_remaining_time_in_millis(self):
        return 60_000


class Traced:
    """A function on the embedded engine, and the spans that it ends."""

    def __init__(self, at_once=1):
        self.exporter = in_memory.InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")
        router = Router()
        router.view(ORDER, into=BY_CUSTOMER, name="counted")(self.counted)
        router.on(ORDER, into=LOG, name="logged")(self.logged)
        router.on(ORDER, external=True, name="mailed", at_once=at_once)(self.mailed)
        router.on(ORDER, external=True, name="scored", at_once=at_once)(self.scored)
        app = App("shop", routers=[router])
        self.function = Function(app, SETTINGS, SimpleNamespace())
        self.function.engine = EmbeddedEngine(app.tables.values())
        self.function.spans = spans.Spans(app, self.provider)

    @staticmethod
    def counted(order):
        if order["customer"] == "nobody":
            raise ValueError(order["customer"])
        yield Row(customer=order["customer"], orders=Count())

    @staticmethod
    def logged(change: Change):
        return Put(LOG, customer=change.new["customer"])

    def mailed(self, change: Change):
        with self.tracer.start_as_current_span("POST mail"):
            if change.new["customer"] == "nobody":
                raise ConnectionError(change.new["customer"])

    async def scored(self, change: Change):
        with self.tracer.start_as_current_span("POST score"):
            await asyncio.sleep(0)

    def deliver(self, *customers):
        source = Source()
        records = [source.put(f"ORDER#{number}", customer=customer) for number, customer in enumerate(customers)]
        return self.function({"Records": records}, Context(aws_request_id=REQUEST))

    def named(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span


@pytest.fixture(params=[1, 4], ids=["one by one", "side by side"])
def traced(request):
    return Traced(request.param)


def test_a_batch_has_a_span_with_its_counts(traced):
    assert traced.deliver("ada", "bob") == {"batchItemFailures": []}
    span = traced.one("streamfold batch")
    assert dict(span.attributes) == {
        "streamfold.application": "shop",
        "streamfold.records": 2,
        "streamfold.failed": 0,
        "faas.invocation_id": REQUEST,
    }
    assert span.status.status_code is trace.StatusCode.UNSET


def test_all_spans_of_a_batch_are_below_it(traced):
    traced.deliver("ada", "bob", "eve")
    batch = traced.one("streamfold batch")
    names = set()
    for span in traced.exporter.get_finished_spans():
        assert span.context.trace_id == batch.context.trace_id, span.name
        if span is not batch:
            names.add(span.name)
            assert batch.start_time <= span.start_time <= span.end_time <= batch.end_time
            if not span.name.startswith("POST"):
                assert span.parent.span_id == batch.context.span_id, span.name
    assert {"handler counted", "handler logged", "handler mailed", "handler scored", "streamfold transact"} <= names


def test_a_batch_is_below_the_span_of_its_caller(traced):
    with traced.tracer.start_as_current_span("invocation") as caller:
        traced.deliver("ada")
    assert traced.one("streamfold batch").parent.span_id == caller.get_span_context().span_id


def test_a_handler_that_computes_has_one_span_in_a_batch(traced):
    traced.deliver("ada", "bob", "eve")
    for name in ("counted", "logged"):
        attributes = traced.one(f"handler {name}").attributes
        assert attributes["streamfold.calls"] == 3
        assert 0 < attributes["streamfold.seconds"] < 10


def test_the_next_batch_counts_anew(traced):
    traced.deliver("ada", "bob", "eve")
    traced.exporter.clear()
    traced.function({"Records": [Source().put("ORDER#9", customer="kim")]}, None)
    assert traced.one("handler counted").attributes["streamfold.calls"] == 1


def test_a_call_outside_has_a_span_and_those_of_its_clients_are_below_it(traced):
    traced.deliver("ada", "bob")
    for handler, client in (("handler mailed", "POST mail"), ("handler scored", "POST score")):
        calls = {span.context.span_id for span in traced.named(handler)}
        assert len(calls) == 2
        assert {span.parent.span_id for span in traced.named(client)} == calls


def test_transactions_are_spans_with_their_number_of_writes(traced):
    traced.deliver("ada")
    assert all(span.attributes["streamfold.writes"] > 0 for span in traced.named("streamfold transact"))
    assert traced.named("streamfold transact")


def test_failures_are_marked_and_no_span_has_contents_of_items(traced):
    response = traced.deliver("ada", "nobody")
    assert len(response["batchItemFailures"]) == 1
    assert traced.one("streamfold batch").attributes["streamfold.failed"] == 1
    assert traced.one("streamfold batch").status.status_code is trace.StatusCode.ERROR
    assert traced.one("handler counted").attributes["streamfold.failed"] == 1
    wrong = [span for span in traced.named("handler mailed") if span.status.status_code is trace.StatusCode.ERROR]
    assert [span.status.description for span in wrong] == ["ConnectionError"]
    for span in traced.exporter.get_finished_spans():
        if not span.name.startswith("POST"):  # a client's own span, in the test's handler
            shown = f"{span.name} {dict(span.attributes)} {span.status.description} {span.events}"
            assert not any(content in shown for content in ("nobody", "ada", "ORDER#")), shown


@pytest.mark.parametrize("event", [None, "text", {"Records": None}, {"Records": "none"}])
def test_an_invocation_that_fails_ends_its_span_with_the_type_of_the_error(traced, event):
    with pytest.raises(RecordError, match="expected"):
        traced.function(event, None)
    assert traced.one("streamfold batch").status.description == "RecordError"
    assert traced.one("streamfold batch").status.status_code is trace.StatusCode.ERROR


def test_rows_are_the_same_with_spans_and_without(traced):
    traced.deliver("ada", "bob", "ada")
    plain = Traced()
    plain.function.spans = None
    plain.deliver("ada", "bob", "ada")
    rows = [sorted(map(str, each.function.engine.items(BY_CUSTOMER.table))) for each in (traced, plain)]
    assert rows[0] == rows[1]


def test_failures_are_reported_the_same_with_spans_and_without(traced):
    plain, found = Traced(), []
    plain.function.spans = None
    for each in (traced, plain):
        report = []
        each.function.observe = lambda batch, report=report: report.extend(batch.report.failures)
        each.deliver("ada", "nobody")
        found.append(sorted((failure.handler, failure.at, str(failure)) for failure in report))
    assert found[0] == found[1]
    assert [handler for handler, *_ in found[0]] == ["counted", "mailed"]
    assert all(__file__ in at for _, at, _ in found[0])


def test_what_a_handler_names_is_read_of_its_own_code(traced):
    own = traced.function.spans.app.routes
    assert all(route.function is not None and declared(route.function) is not route.function for route in own)
    assert [named_by(route.function) for route in own] == [named_by(declared(route.function)) for route in own]
    assert named_by(own[1].function).makes(Put)
    assert not named_by(own[1].function).makes(Count)


def test_the_function_of_a_queue_has_spans_of_its_own_name(traced, client):
    settings = SETTINGS._replace(jobs="https://sqs.example/1/jobs", tables={"main": "main"})
    function = QueueFunction(traced.function.app, settings, client)
    function.spans = spans.Spans(traced.function.app, traced.provider)
    function(RING, Context(aws_request_id=REQUEST))
    assert traced.one("streamfold segments").attributes["streamfold.records"] == 0


def test_a_function_has_spans_if_something_imported_the_api(monkeypatch, traced):
    assert Function(traced.function.app, SETTINGS, SimpleNamespace()).spans is not None
    monkeypatch.delitem(sys.modules, trace.__name__)
    assert Function(traced.function.app, SETTINGS, SimpleNamespace()).spans is None


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
"""
PROGRAM = """
import sys
from types import SimpleNamespace
from streamfold import App, Key, Router
from streamfold.errors import RecordError
from streamfold.lambda_entry.function import Function
from streamfold.settings import Settings
router = Router()
router.cascade(Key("A#{a}", "M"), children=[Key("A#{a}", "C#{c}")])
Function(App("shop", routers=[router]), Settings(observe="off", state_table="state"), SimpleNamespace())
print(*sorted(sys.modules))
"""


def test_a_function_imports_the_same_modules_where_opentelemetry_is_not_installed():
    with_it, without = (
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment(),
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for program in (PROGRAM, ABSENT + PROGRAM)
    )
    assert with_it == without
    assert not [name for name in with_it if "opentelemetry" in name or name == spans.__name__]
