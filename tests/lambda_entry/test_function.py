"""The Lambda entry: the partial batch response, time that runs out, and what is logged."""

import json
import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from streamfold import App, Change, Count, Document, Key, Put, Router, Row, Sum
from streamfold.batch.already_applied import SAMPLE
from streamfold.engines import EmbeddedEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.errors import EngineError, ManifestError, RecordError, SettingsError
from streamfold.lambda_entry.function import Function, function_of
from streamfold.lambda_entry.telemetry import observer
from streamfold.read import archived
from streamfold.runtime import Knowledge
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin, piped
from tests.helpers.commands import ROOT, environment
from tests.helpers.records import item, record
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
TOTAL = Key("TOTAL#{customer}", "TOTAL")
STATE = Key("STATE#{order_id}", "STATE")
QUIET = Settings(observe="off", state_table="state", lanes=1)  # moto is of one thread


def total(item):
    yield Row(customer=item["customer"], total=Sum(item["total"]), orders=Count())


def state(change: Change):
    yield Put(STATE, total=change.new["total"] + 0)


@pytest.fixture
def app():
    router = Router()
    router.view(ORDER, into=TOTAL)(total)
    router.on(ORDER, into=STATE)(state)
    return App("shop", routers=[router])


class Client:
    """A client that may describe no table, or gives one the ids that are set here."""

    def __init__(self):
        self.ids = {}

    def describe_table(self, **call):
        if call["TableName"] not in self.ids:
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not allowed"}}, "DescribeTable")
        return {"Table": {"TableId": self.ids[call["TableName"]]}}


class Context:
    """The Lambda context, with the milliseconds that it says are left, one after the other."""

    def __init__(self, *milliseconds):
        self.milliseconds = list(milliseconds)

    def get_remaining_time_in_millis(self):
        return self.milliseconds.pop(0) if len(self.milliseconds) > 1 else self.milliseconds[0]


def warm(app, client):
    """A function that has processed a record."""
    function = Function(app, QUIET, client)
    function(event(Source().put("ORDER#0", customer="eve", total=3)), Context(60_000))
    return function


@contextmanager
def unreachable_at(client, call):
    """Lets the transaction with this number meet an endpoint where nobody answers."""
    calls = count(1)

    def meet(**_):
        if next(calls) == call:
            raise ConnectTimeoutError(endpoint_url="https://dynamodb")

    client.meta.events.register("before-call.dynamodb.TransactWriteItems", meet)
    yield
    client.meta.events.unregister("before-call.dynamodb.TransactWriteItems", meet)


@pytest.fixture
def local(app):
    """A function on the embedded engine, with all of Powertools off."""
    function = Function(app, QUIET, client=Client())
    function.engine = EmbeddedEngine(app.tables.values())
    return function


def event(*records):
    return {"Records": list(records)}


def identifiers(response):
    assert list(response) == ["batchItemFailures"]
    return [failure["itemIdentifier"] for failure in response["batchItemFailures"]]


def rows(client):
    return [item for item in client.scan(TableName="main")["Items"] if item["PK"]["S"].startswith("TOTAL")]


def test_a_batch_that_succeeds_reports_nothing_and_writes_the_rows(app, client):
    source = Source()
    batch = event(source.put("ORDER#1", customer="ada", total=3), source.put("ORDER#2", customer="ada", total=4))
    assert identifiers(Function(app, QUIET, client)(batch, Context(60_000))) == []
    (row,) = rows(client)
    assert (row["total"], row["orders"]) == ({"N": "7"}, {"N": "2"})


def test_an_empty_batch_reports_nothing(app, client):
    assert identifiers(Function(app, QUIET, client)(event(), Context(60_000))) == []


def test_exactly_the_records_that_failed_are_reported(app, client):
    source = Source()
    good, bad = source.put("ORDER#1", customer="ada", total=3), source.put("ORDER#2", customer="ada", total="three")
    found = identifiers(Function(app, QUIET, client)(event(good, bad), Context(60_000)))
    assert found == [bad["dynamodb"]["SequenceNumber"]]
    assert rows(client)[0]["total"] == {"N": "3"}


def test_later_changes_of_the_item_are_held_for_an_on_handler_and_reported_too(app, client):
    source = Source()
    bad, later = source.put("ORDER#1", customer="ada", total="three"), source.put("ORDER#1", customer="ada", total=3)
    other = source.put("ORDER#2", customer="ada", total=5)
    found = identifiers(Function(app, QUIET, client)(event(bad, later, other), Context(60_000)))
    assert found == [bad["dynamodb"]["SequenceNumber"], later["dynamodb"]["SequenceNumber"]]
    assert rows(client)[0]["total"] == {"N": "8"}


def test_a_malformed_record_is_reported_by_its_number(app, client):
    source = Source()
    good, bad = source.put("ORDER#1", customer="ada", total=3), source.put("ORDER#2", customer="ada", total=4)
    del bad["dynamodb"]["Keys"]
    found = identifiers(Function(app, QUIET, client)(event(good, bad), Context(60_000)))
    assert found == [bad["dynamodb"]["SequenceNumber"]]


@pytest.mark.parametrize("malformed", [*range(0, 120, 7)])
def test_a_malformed_record_of_a_batch_that_came_before_is_reported_alone(local, malformed):
    source = Source()
    records = [source.put(f"ORDER#{n}", customer="eve", total=3) for n in range(120)]
    good = [each for n, each in enumerate(records) if n != malformed]
    local(event(*good), Context(60_000))
    del records[malformed]["dynamodb"]["Keys"]
    local.pace.began()  # the last invocation did not end well
    answer = local(event(*records), Context(60_000))
    assert answer == {"batchItemFailures": [{"itemIdentifier": records[malformed]["dynamodb"]["SequenceNumber"]}]}


def test_the_state_is_read_while_records_are_parsed(local, monkeypatch):
    told = []
    local(event(Source().put("ORDER#0", customer="eve", total=3)), Context(60_000))
    monkeypatch.setattr("streamfold.lambda_entry.function.begin_with_records", lambda *_: told.append("begun"))
    monkeypatch.setattr(
        "streamfold.lambda_entry.function.read_changes", lambda *_: (told.append("parsed"), ([], []))[1]
    )
    local(event(), Context(60_000))
    assert told == ["begun", "parsed"]


def test_the_manifest_and_the_sample_of_a_batch_are_read_in_one_request(local, monkeypatch):
    source = Source()
    batch = event(*(source.put(f"ORDER#{number}", customer="eve", total=3) for number in range(200)))
    local(batch, Context(60_000))
    local.engine, local.known = CountingEngine(local.engine), Knowledge()
    local.pace.began()  # as after an invocation that did not end well
    monkeypatch.setattr("streamfold.batch.process.begin", None)  # it was begun before records were parsed
    local(batch, Context(60_000))
    manifest_and_forms = 2
    assert [call.actions for call in local.engine.named("read_state")][:2] == [manifest_and_forms + SAMPLE, 200]


def test_a_record_without_a_number_fails_the_batch_instead_of_being_acknowledged(app, client):
    bad = Source().put("ORDER#1", customer="ada", total=3)
    del bad["dynamodb"]["SequenceNumber"]
    with pytest.raises(RecordError, match=r"SequenceNumber=\.\.\.: expected"):
        Function(app, QUIET, client)(event(bad), Context(60_000))


@pytest.mark.parametrize("envelope", [{}, {"records": []}, None, "text", {"Records": None}])
def test_an_unknown_envelope_is_an_error_that_says_what_was_expected(app, client, envelope):
    with pytest.raises(RecordError, match=r'expected a Lambda event \{"Records"'):
        Function(app, QUIET, client)(envelope, Context(60_000))


def test_nothing_is_started_when_the_time_is_nearly_over(app, client):
    batch = event(*(Source().put(f"ORDER#{number}", customer="ada", total=3) for number in range(3)))
    function = warm(app, client)
    before = rows(client)
    found = identifiers(function(batch, Context(12_000)))
    assert found == list(dict.fromkeys(record["dynamodb"]["SequenceNumber"] for record in batch["Records"]))
    assert rows(client) == before


def test_what_was_done_before_the_time_ran_out_stays_and_the_rest_is_reported(app, client):
    source = Source()
    batch = event(*(source.put(f"ORDER#{number}", customer=f"c{number}", total=3) for number in range(4)))
    settings = QUIET._replace(chunk_actions=2)
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 12_000 if len(rows(client)) == 2 else 60_000)
    response = Function(app, settings, client)(batch, context)
    assert len(rows(client)) == 2
    assert len(identifiers(response)) == 4  # each record has a claim too, and none of those was started


def test_a_timeout_that_leaves_no_time_to_begin_is_warned_of_once(app, client, caplog):
    function = warm(app, client)
    for _ in range(2):
        function(event(Source().put("ORDER#1", customer="ada", total=3)), Context(3_000))
    assert sum("no more time than the 12 seconds of STREAMFOLD_STOP_SECONDS" in text for text in caplog.messages) == 1


def test_one_connection_that_cannot_be_made_fails_the_records_of_its_transaction_only(app, client):
    with unreachable_at(client, call=3):
        batch = event(*(Source().put(f"ORDER#{number}", customer=f"c{number}", total=3) for number in range(40)))
        response = Function(app, QUIET._replace(chunk_actions=25), client)(batch, Context(60_000))
    assert 0 < len(identifiers(response)) < 40


def test_a_connection_that_cannot_be_made_fails_the_record_and_not_the_invocation(app, client):
    batch = event(Source().put("ORDER#1", customer="ada", total=3))
    with unreachable_at(client, call=1):
        assert len(identifiers(Function(app, QUIET, client)(batch, Context(60_000)))) == 1


def test_a_missing_table_fails_the_invocation_and_says_which(app, client):
    client.delete_table(TableName="state")
    with pytest.raises(EngineError, match="A table is missing: state does not exist"):
        Function(app, QUIET, client)(event(Source().put("ORDER#1", customer="ada", total=3)), Context(60_000))


def test_logs_hold_counts_and_numbers_and_never_contents(app, client, capsys):
    bad = Source().put("ORDER#1", customer="SECRET", total="three SECRET")
    Function(app, Settings(state_table="state"), client)(event(bad), Context(60_000))
    printed = capsys.readouterr().out
    assert "SECRET" not in printed
    assert bad["dynamodb"]["SequenceNumber"] in printed
    metrics = next(json.loads(line) for line in printed.splitlines() if '"_aws"' in line)
    assert metrics["failed"] == 1


def test_rows_that_somebody_removed_are_logged_once_for_a_handler_and_measured(app, client, capsys):
    function = Function(app, Settings(state_table="state"), client)
    gone = [
        record(item(f"TOTAL#SECRET{number}", "TOTAL", total=3, orders=1, _sf_n=1), None, 10**20 + number)
        for number in range(3)
    ]

    assert identifiers(function(event(*gone), Context(60_000))) == []

    printed = capsys.readouterr().out
    assert "SECRET" not in printed
    lines = [json.loads(line) for line in printed.splitlines()]
    (told,) = [line for line in lines if line.get("message") == "rows were removed by somebody else"]
    assert (told["level"], told["handler"], told["rows_lost"]) == ("WARNING", "total", 3)
    assert next(line for line in lines if "_aws" in line)["rows_lost"] == 3


def test_a_function_measures_that_no_row_was_removed(app, client, capsys):
    Function(app, Settings(state_table="state"), client)(event(), Context(60_000))
    assert json.loads(capsys.readouterr().out)["rows_lost"] == 0


JOBS = "https://sqs.us-east-1.amazonaws.com/123456789012/jobs"
TRACED = App("traced", [])
"""An application of its own: Powertools keeps a logger, with a test's standard output, for each service's name."""


def modules_behind(observe):
    """The modules of extras that a function of rows imports under this setting, in a process of its own."""
    program = (
        "import sys; from handlers import app; from streamfold.lambda_entry.function import Function; "
        f"from streamfold.settings import Settings; "
        f"Function(app, Settings(group='main', jobs='{JOBS}', observe={observe!r}), object()); "
        "print(*(name for name in sys.modules if name.startswith(('aws_lambda_powertools', 'aws_xray', 'opensearch'))))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_tracers_sdk_is_imported_only_when_the_tracer_is_switched_on():
    imported = modules_behind("powertools")
    assert "aws_lambda_powertools.metrics.metrics" in imported
    assert not [name for name in imported if name.startswith("aws_xray")]


@pytest.mark.parametrize("observe", ["lines", "off"])
def test_nothing_of_powertools_is_imported_unless_it_is_asked_for(observe):
    assert modules_behind(observe) == []


def test_a_function_without_searches_imports_no_client_of_a_search_server():
    imported = modules_behind("powertools")
    assert imported
    assert not [name for name in imported if name.startswith("opensearch")]


def test_tracer_without_its_sdk_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "aws_xray_sdk", None)
    with pytest.raises(SettingsError, match=r"STREAMFOLD_OBSERVE is traced.*aws-lambda-powertools\[tracer\]"):
        Function(TRACED, Settings(observe="traced"), client=object())


@pytest.mark.parametrize("observe", ["traced", "powertools", "lines", "off"])
def test_tracer_traces_what_boto3_sends_where_it_is_asked_for(monkeypatch, observe):
    made = []
    monkeypatch.setattr("aws_lambda_powertools.Tracer", lambda **given: made.append(given["service"]))
    Function(TRACED, Settings(observe=observe), client=object())
    assert made == (["traced"] if observe == "traced" else [])


def test_records_that_nearly_match_are_counted_and_logged_without_their_values(local, app, capsys):
    local.observe = observer(app, Settings(state_table="state"), local.pace)
    local(event(Source().put("ORDER#", total=3), Source().put("ORDER#1", customer="ada", total=3)), Context(60_000))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert next(line for line in lines if "_aws" in line)["near_misses"] == 1
    (warning,) = [line for line in lines if "field" in line]
    found = (warning["key"], warning["field"], warning["near_misses"])
    assert found == ("main: ORDER#{order_id} / METADATA", "order_id", 1)


def test_log_is_plain_and_no_metrics_are_printed_when_observing_is_off(local, capsys, caplog):
    with caplog.at_level("INFO", "streamfold"):
        local(event(Source().put("ORDER#1", customer="ada", total=3)), Context(60_000))
    assert capsys.readouterr().out == ""
    assert [record.getMessage() for record in caplog.records] == ["batch processed"]


def test_record_on_which_two_handlers_fail_is_reported_once(local):
    bad = Source().put("ORDER#1", total="three")
    assert identifiers(local(event(bad, bad), Context(60_000))) == [bad["dynamodb"]["SequenceNumber"]]


def test_second_table_is_refused_in_a_later_batch_too(local):
    source, other = Source(table="orders"), Source(table="invoices")
    assert identifiers(local(event(source.put("ORDER#1", customer="ada", total=3)), Context(60_000))) == []
    foreign = other.put("ORDER#2", customer="ada", total=4)
    assert identifiers(local(event(foreign), Context(60_000))) == [foreign["dynamodb"]["SequenceNumber"]]


def test_what_is_odd_is_logged_once_for_all_batches(local, caplog):
    source = Source()
    for number in range(3):
        record = source.put("ORDER#1", customer="ada", total=number)
        del record["eventSourceARN"]
        local(event(record), Context(60_000))
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_setting_for_a_table_that_is_not_declared_is_logged(app, client, caplog):
    Function(app, QUIET._replace(tables={"mian": "orders-prod"}), client)
    assert "STREAMFOLD_TABLE_MIAN names no table of the application" in caplog.text
    assert "Did you mean STREAMFOLD_TABLE_MAIN?" in caplog.text


def test_a_function_does_not_start_where_settings_make_one_index_of_two(client):
    router = Router()
    for name in ("one", "two"):
        router.search(ORDER, to=name, name=name, fields={"total": "long"})(lambda item: Document(total=item["total"]))
    settings = QUIET._replace(search="https://search.example", indexes={"one": "two"})
    with pytest.raises(SettingsError, match=r"Searches 'one' .* and 'two' .* would write one index"):
        Function(App("shop", routers=[router]), settings, client)


def test_a_function_does_not_start_with_an_unknown_handler_switched_off(app, client):
    with pytest.raises(SettingsError, match="STREAMFOLD_HANDLERS_OFF names 'other'"):
        Function(app, QUIET._replace(handlers_off=("other",)), client)


def test_setting_for_an_index_that_is_not_declared_is_logged(app, client, caplog):
    Function(app, QUIET._replace(indexes={"orders": "prod-orders"}), client)
    assert "STREAMFOLD_INDEX_ORDERS names no index of the application" in caplog.text


def test_external_handler_is_called_once_with_the_time_that_is_left(client):
    called, router = [], Router()

    @router.on(ORDER, external=True)
    def send_mail(change: Change) -> None:
        called.append(change.event)

    app = App("shop", routers=[router])
    function, batch = Function(app, QUIET, client), event(Source().put("ORDER#1"))
    for _ in range(2):
        assert identifiers(function(batch, Context(60_000))) == []
    assert called == ["INSERT"]


def test_a_function_without_powertools_that_has_an_external_handler_is_refused_with_the_remedy(client, monkeypatch):
    router = Router()
    router.on(ORDER, external=True, group="mails", name="send_mail")(lambda change: None)
    app = App("shop", routers=[router])
    monkeypatch.setattr("streamfold.derivations.external.kind.POWERTOOLS", "no_such_package")
    with pytest.raises(SettingsError, match=r"'send_mail' \(.*\) needs Powertools, and the function lacks it: build"):
        Function(app, QUIET, client)
    Function(app, QUIET._replace(group="main"), client)


def after_init(**variables):
    """Whether the import of a function's module imports boto3, makes a client, and imports the queue's entry."""
    program = (
        "import sys, handlers; found = ['boto3' in sys.modules, 'streamfold.lambda_entry.queue' in sys.modules]; "
        "from streamfold.lambda_entry.function import _prepared; print(found[0], bool(_prepared), found[1])"
    )
    command = [sys.executable, "-c", program]
    given = environment(AWS_ACCESS_KEY_ID="none", AWS_SECRET_ACCESS_KEY="none", **variables)
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=True)
    return [word == "True" for word in done.stdout.split()]


IN_LAMBDA = {"AWS_LAMBDA_FUNCTION_NAME": "shop-Projector", "AWS_DEFAULT_REGION": "us-east-1"}


def test_a_function_imports_boto3_and_makes_its_client_at_init():
    assert after_init(**IN_LAMBDA, _HANDLER="handlers.lambda_handler") == [True, True, False]


def test_the_queues_function_imports_its_entry_at_init():
    assert after_init(**IN_LAMBDA, _HANDLER="handlers.jobs_handler") == [True, True, True]


def test_a_function_of_another_entry_and_a_command_import_nothing():
    assert after_init(**IN_LAMBDA, _HANDLER="api.handler")[:2] == [False, False]
    assert after_init()[:2] == [False, False]
    assert after_init(**IN_LAMBDA, STREAMFOLD_ENGINE="embedded:x.db")[:2] == [False, False]


def test_without_a_region_init_succeeds_and_the_first_invocation_says_why_it_fails(app, monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "shop-Projector")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    handler = app.lambda_handler
    with pytest.raises(EngineError, match="No AWS region is set"):
        handler(event(), Context(60_000))


def test_the_first_function_takes_the_client_of_init(app, client, monkeypatch):
    made = [client]
    monkeypatch.setattr("streamfold.lambda_entry.function.make_client", lambda **_: made.pop())
    monkeypatch.setattr("streamfold.lambda_entry.function._prepared", [])
    monkeypatch.setattr("streamfold.lambda_entry.function._functions", {})
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "shop-Projector")
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "state")
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "off")
    handler = app.lambda_handler
    assert made == []
    assert handler(event(Source().put("ORDER#1", customer="ada", total=3)), Context(60_000))["batchItemFailures"] == []
    assert rows(client)[0]["total"] == {"N": "3"}


def test_settings_are_read_once(app, client, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "state")
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "off")
    source = Source()
    app.lambda_handler(event(source.put("ORDER#1", customer="ada", total=3)), Context(60_000))
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "another")
    app.lambda_handler(event(source.put("ORDER#2", customer="ada", total=4)), Context(60_000))
    assert rows(client)[0]["total"] == {"N": "7"}


def test_the_app_is_the_lambda_handler(app, client, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_STATE_TABLE", "state")
    monkeypatch.setenv("STREAMFOLD_OBSERVE", "off")
    batch = event(Source().put("ORDER#1", customer="ada", total=3))
    assert app.lambda_handler(batch, Context(60_000)) == {"batchItemFailures": []}
    assert app.lambda_handler(batch, Context(60_000)) == {"batchItemFailures": []}
    assert rows(client)[0]["total"] == {"N": "3"}


def test_file_on_the_function_s_own_disk_is_refused_as_a_parking_place(app, tmp_path):
    path = str(tmp_path / "parked.jsonl")
    with pytest.raises(SettingsError) as raised:
        Function(app, Settings(observe="off", park=path), client=object())
    assert str(raised.value) == (
        f"STREAMFOLD_PARK={path!r} is a file, which is lost with the function's environment: expected "
        "s3://BUCKET/PREFIX or the URL of an SQS queue."
    )


@pytest.mark.parametrize(
    ("options", "option", "instead"),
    [
        ({"on_error": "park"}, 'on_error="park"', 'on_error="retry"'),
        ({"on_error": "park", "attempts_max": 3}, 'on_error="park"', 'on_error="retry"'),
        ({"on_error": "park", "age_seconds_max": 60}, 'on_error="park"', 'on_error="retry"'),
        ({"unique": True, "on_conflict": "park"}, 'on_conflict="park"', 'on_conflict="report"'),
    ],
)
def test_handlers_that_park_need_a_parking_place(options, option, instead):
    router = Router()

    @router.index(ORDER, into=Key("BY#{order_id}", "ORDER"), group="slow", **options)
    def by_id(order):
        return Row()

    app = App("shop", [router])
    with pytest.raises(SettingsError) as raised:
        Function(app, QUIET, client=object())
    assert str(raised.value).startswith(f"Handler 'by_id' ({__file__}:")
    assert f") has {option}, but the function has no parking location: expected STREAMFOLD_PARK=s3://" in str(
        raised.value
    )
    assert str(raised.value).endswith(f"Without one, declare {instead}.")
    Function(app, QUIET._replace(group="main"), client=object())  # it runs elsewhere
    Function(app, QUIET._replace(group="slow", park="s3://failures"), client=object())


def test_function_parks_a_record_in_its_bucket_and_acknowledges_it(app, client):
    boto3.client("s3").create_bucket(Bucket="failures")
    function = Function(app, Settings(observe="off", state_table="state", park="s3://failures"), client)
    record = Source().put("ORDER#1", customer="ana", total=1)
    record["dynamodb"]["NewImage"]["total"] = {"N": "many"}

    assert function({"Records": [record]}, None) == {"batchItemFailures": []}
    listed = boto3.client("s3").list_objects_v2(Bucket="failures")["Contents"]
    assert sorted(each["Key"].split("/")[1] for each in listed) == ["state", "total"]


def number(record):
    return record["kinesis"]["sequenceNumber"]


def ada(kinesis, source, *totals):
    """The records of Kinesis for one order with these totals, one after the other."""
    return [kinesis.append(source.put("ORDER#1", customer="ada", total=total)) for total in totals]


@pytest.mark.parametrize("form", [event, lambda *records: list(map(piped, records))], ids=["mapping", "pipe"])
def test_records_of_kinesis_are_reported_by_its_sequence_number(local, form):
    first, bad, held = ada(KinesisTwin(), Source(), 3, "three", 4)
    assert identifiers(local(form(held, bad, first), Context(60_000))) == [number(bad), number(held)]


def test_a_pipes_list_of_a_dynamodb_stream_is_answered_as_an_event_is(local):
    source = Source()
    good, bad = source.put("ORDER#1", customer="ada", total=3), source.put("ORDER#2", customer="ada", total="three")
    assert identifiers(local([good, bad], Context(60_000))) == [bad["dynamodb"]["SequenceNumber"]]


def test_a_notice_that_is_no_change_is_reported_alone(local):
    good, bad = ada(KinesisTwin(), Source(), 3, 4)
    bad["kinesis"]["data"] = "bm90aGluZw=="
    assert identifiers(local(event(good, bad), Context(60_000))) == [number(bad)]
    assert local.engine.read_source(("main", "TOTAL#ada", "TOTAL"))["total"] == {"N": "3"}


def test_a_record_of_kinesis_that_could_not_be_reported_fails_the_batch(local):
    (bad,) = ada(KinesisTwin(), Source(), 3)
    del bad["kinesis"]["sequenceNumber"]
    with pytest.raises(RecordError, match="Does a pipe's input template leave it out"):
        local([piped(bad)], Context(60_000))


def test_a_table_whose_source_changed_is_refused_and_others_are_taken_as_before(local):
    kinesis, source = KinesisTwin(), Source()
    first, second = ada(kinesis, source, 3, 4)
    stream = source.put("ORDER#1", customer="ada", total=5)
    assert identifiers(local(event(first), Context(60_000))) == []
    local.origins = local._new_origins()  # another environment
    local.known = Knowledge()
    for _ in range(2):
        with pytest.raises(ManifestError, match="knows table 'main' through Kinesis"):
            local(event(stream), Context(60_000))
    assert identifiers(local(event(second), Context(60_000))) == []


def test_a_table_that_was_made_anew_under_its_name_is_refused_where_it_may_be_described(local):
    source = Source()
    first, second = source.put("ORDER#1", customer="ada", total=3), source.put("ORDER#1", customer="ada", total=5)
    name = first["eventSourceARN"].split("/")[1]
    local.client.ids[name] = "1"
    assert identifiers(local(event(first), Context(60_000))) == []
    local.client.ids[name] = "2"
    second["eventSourceARN"] = second["eventSourceARN"].replace("2026", "2027")
    with pytest.raises(ManifestError, match=rf"'{name}' \(1\), and these records are of '{name}' \(2\)"):
        local(event(second), Context(60_000))
    local.client.ids[name] = "1"  # the same table, whose stream was switched off and on
    assert identifiers(local(event(second), Context(60_000))) == []
    assert local.engine.read_source(("main", "TOTAL#ada", "TOTAL"))["total"] == {"N": "5"}


def test_two_environments_do_not_adopt_two_tables_over_one_state(local):
    source = Source()
    first, second = source.put("ORDER#1", customer="ada", total=3), source.put("ORDER#1", customer="ada", total=5)
    second["eventSourceARN"] = second["eventSourceARN"].replace("table/main", "table/copy")
    assert identifiers(local(event(first), Context(60_000))) == []
    local.origins = local._new_origins()  # another environment
    local.known = Knowledge()
    with pytest.raises(ManifestError, match="of table 'main' = 'main', and these records are of 'copy'"):
        local(event(second), Context(60_000))


SESSION = Key("SESSION#{session_id}", "METADATA")


def archiving(to="s3://kept/sessions"):
    router = Router()
    router.archive(SESSION, to=to, name="archive")
    router.cascade(ORDER, children=[Key("ORDER#{order_id}", "ITEM#{sku}")], name="cascade")
    return App("shop", routers=[router])


def test_removed_items_are_archived_in_the_declared_bucket(client):
    boto3.client("s3").create_bucket(Bucket="kept")
    function = Function(archiving(), QUIET, client)
    assert function({"Records": [record(item("SESSION#1"), None, 1)]}, None) == {"batchItemFailures": []}
    assert [kept.item["PK"] for kept in archived("s3://kept/sessions", "archive")] == ["SESSION#1"]


def test_removed_items_come_again_where_the_bucket_is_missing(client):
    function = Function(archiving(), QUIET, client)
    response = function({"Records": [record(item("SESSION#1"), None, 1)]}, None)
    assert response == {"batchItemFailures": [{"itemIdentifier": "1"}]}


@pytest.mark.parametrize("app", [archiving("file:kept"), archiving()], ids=["declared", "set"])
def test_a_folder_is_no_archive_of_a_function(client, app):
    given = {"archive": "file:kept"} if app.routes[0].options.startswith("s3") else {}
    with pytest.raises(SettingsError) as refused:
        Function(app, QUIET._replace(**given), client)
    assert str(refused.value) == (
        "Archive 'archive' goes to 'file:kept', a folder, which is lost with the function's environment: expected "
        "s3://BUCKET/PREFIX, in its declaration or as STREAMFOLD_ARCHIVE."
    )


def test_a_setting_that_names_no_archive_is_refused_before_anything_runs(client):
    with pytest.raises(SettingsError) as refused:
        Function(archiving(), QUIET._replace(archive="kept"), client)
    assert str(refused.value) == (
        "STREAMFOLD_ARCHIVE='kept' is no known location: expected s3://BUCKET/PREFIX, or locally file:FOLDER."
    )


def test_children_of_removed_items_go_and_those_of_items_that_exist_again_are_counted(client, caplog):
    for order in "12":
        client.put_item(TableName="main", Item={"PK": {"S": f"ORDER#{order}"}, "SK": {"S": "ITEM#a"}})
    client.put_item(TableName="main", Item={"PK": {"S": "ORDER#2"}, "SK": {"S": "METADATA"}})
    removals = [record(item(f"ORDER#{order}"), None, order) for order in (1, 2)]
    with caplog.at_level("INFO", "streamfold"):
        response = Function(archiving(), QUIET, client)({"Records": removals}, None)
    assert response == {"batchItemFailures": []}
    assert [found["PK"]["S"] for found in client.scan(TableName="main")["Items"]] == ["ORDER#2", "ORDER#2"]
    (kept,) = [each for each in caplog.records if each.message.startswith("children were kept")]
    assert (kept.handler, kept.kept) == ("cascade", 1)


class Kept(Function):
    """A function that needs no client."""

    def __init__(self, app, settings):
        self.app, self.settings = app, settings


class KeptBeside(Kept):
    """Another one of the same application."""


def test_an_environment_keeps_one_function_of_each_sort_for_an_application(monkeypatch):
    monkeypatch.setattr("streamfold.lambda_entry.function._functions", {})
    app = App("kept", routers=[])
    kept, beside = function_of(app, Kept), function_of(app, KeptBeside)
    assert (type(kept), type(beside)) == (Kept, KeptBeside)
    assert function_of(app, Kept) is kept
    assert function_of(app, KeptBeside) is beside
    other = App("kept", routers=[])
    assert function_of(other, Kept).app is other


HERE = "arn:aws:lambda:us-east-1:123456789012:function:projector"
ELSEWHERE = "arn:aws:lambda:eu-west-1:111122223333:function:projector"


class Invoked(Context):
    """The context of an invocation of a function that has an ARN."""

    def __init__(self, function_arn):
        super().__init__(60_000)
        self.invoked_function_arn = function_arn


def of_table(name, region="us-east-1", account="123456789012"):
    """A record of another table."""
    label = "2026-03-01T09:00:00.000"
    record = Source().put("ORDER#7", customer="ada", total=3)
    return {**record, "eventSourceARN": f"arn:aws:dynamodb:{region}:{account}:table/{name}/stream/{label}"}


@pytest.mark.parametrize(
    ("sample", "function_arn"),
    [
        (of_table("ExampleTableWithStream"), ELSEWHERE),
        (of_table("ExampleTableWithStream"), HERE),
        (of_table("ExampleTableWithStream"), None),
        (of_table("orders"), ELSEWHERE),
        (of_table("orders", account="111122223333"), ELSEWHERE),
        (of_table("orders", region="eu-west-1"), ELSEWHERE),
    ],
)
def test_a_test_event_does_not_bind_the_application_to_its_table(app, client, sample, function_arn, caplog):
    function = Function(app, QUIET, client)
    assert identifiers(function(event(sample), Invoked(function_arn))) == [sample["dynamodb"]["SequenceNumber"]]
    assert function.origins.adopted is None
    assert rows(client) == []
    assert "main" not in client.scan(TableName="state")["Items"][0].get("tables", {}).get("S", "")


def test_the_table_of_the_function_is_taken_behind_a_test_event(local):
    sample, real = of_table("ExampleTableWithStream"), of_table("orders")
    assert identifiers(local(event(sample), Invoked(HERE))) == [sample["dynamodb"]["SequenceNumber"]]
    assert identifiers(local(event(real), Invoked(HERE))) == []
    assert local.origins.adopted == "orders"


@pytest.mark.parametrize(
    ("record", "function_arn"),
    [
        (of_table("main"), HERE),
        (of_table("main", "eu-west-1", "111122223333"), ELSEWHERE),
        (of_table("main", "ddblocal", "000000000000"), HERE),
        (of_table("main"), None),
    ],
)
def test_the_first_table_is_taken_from_an_event_source_of_the_function(app, client, record, function_arn):
    function = Function(app, QUIET, client)
    assert identifiers(function(event(record), Invoked(function_arn))) == []
    assert function.origins.adopted == "main"


def test_a_table_that_a_setting_names_may_be_of_another_account_with_a_role_of_it(app, client):
    settings = QUIET._replace(tables={"main": "main"}, role="arn:aws:iam::123456789012:role/shop-tables")
    assert identifiers(Function(app, settings, client)(event(of_table("main")), Invoked(ELSEWHERE))) == []
