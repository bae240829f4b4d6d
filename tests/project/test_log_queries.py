"""The queries of docs/wrong-rows.md, run on the lines that a function wrote: each finds what the page says."""

import io
import json
import re
from contextlib import redirect_stdout
from types import SimpleNamespace

import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold.engines import EmbeddedEngine
from streamfold.lambda_entry.function import Function
from streamfold.lambda_entry.telemetry import invocation_ids
from streamfold.parking import FileParking
from streamfold.settings import Settings
from tests.helpers.insights import Event, run
from tests.helpers.source import Source
from tests.helpers.template import ROOT

PAGE = (ROOT / "docs" / "wrong-rows.md").read_text("utf-8")
QUERIES = dict(re.findall(r"\*\*([^*]+)\*\*[^\n]*\n\n```insights\n(.*?)```", PAGE, re.DOTALL))
LINE, SALES = Key("ORDER#{order_id}", "LINE#{sku}"), Key("SALES#{day}", "TOTAL")
TRACE = "1-5759e988-bd862e3fe1be46a994272793"
BEGIN = 1_772_355_600.0


def application():
    router = Router()

    def poisoned(line):
        if line["number"] < 0:
            raise LookupError("poison")
        yield Row(day="d", units=Sum(line["number"]))

    router.view(LINE, into=SALES, name="sales")(poisoned)
    router.view(LINE, into=Key("PARKED#{day}", "TOTAL"), name="parks", on_error="park")(poisoned)
    return App("shop", routers=[router])


class Recorded:
    """The log of a function: batches are invocations one minute apart, with the lines of Lambda around each."""

    def __init__(self, folder):
        self.events, self.requests, self.printed = [], [], io.StringIO()
        settings = Settings(state_table="state", park="s3://failures/parked")
        with redirect_stdout(self.printed):
            self.function = Function(application(), settings, client=object())
        self.function.engine = EmbeddedEngine(self.function.app.tables.values())
        self.function.parking = self.parking = FileParking(str(folder / "parked.jsonl"))

    def invoke(self, *records):
        number = len(self.requests)
        request, at = f"00000000-0000-4000-8000-{number:012}", BEGIN + 60 * number
        self.requests.append(request)
        self.function.clock = lambda: at
        context = SimpleNamespace(aws_request_id=request, get_remaining_time_in_millis=lambda: 60_000)
        before = self.printed.tell()
        with redirect_stdout(self.printed):
            self.function({"Records": list(records)}, context)
        own = self.printed.getvalue()[before:].splitlines()
        lines = [f"START RequestId: {request} Version: $LATEST", *own, f"END RequestId: {request}"]
        self.events += [Event(at + position / 1000, line) for position, line in enumerate(lines)]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Six invocations: quiet ones, a record that fails at three tries, and one that nearly matches the key."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(invocation_ids, "present", {})
        patched.setenv("_X_AMZN_TRACE_ID", f"Root={TRACE};Parent=53995c3f42cd8ad8;Sampled=1")
        source, recorded = Source(), Recorded(tmp_path_factory.mktemp("log"))
        recorded.invoke(source.put("ORDER#1", "LINE#a", number=1))
        recorded.poison = source.put("ORDER#2", "LINE#a", number=-1)
        for _ in range(3):
            recorded.invoke(recorded.poison)
        recorded.invoke(source.put("ORDER#3#b", "LINE#a", number=1))
        recorded.invoke(source.put("ORDER#4", "LINE#a", number=4))
    return recorded


def found(log, name, **given):
    query = QUERIES[name]
    for word, value in given.items():
        assert word in query
        query = query.replace(word, value)
    return run(query, log.events)


def sequence(log):
    return log.poison["dynamodb"]["SequenceNumber"]


def test_every_query_of_the_page_has_a_test_and_is_understood(log):
    blocks = re.findall(r"```insights\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == len(QUERIES) + 1  # the last is the first once more, over another log
    for query in blocks:
        run(query, log.events)


def test_all_lines_of_a_request_are_found_with_those_of_lambda(log):
    rows = found(log, "All lines of a request", REQUEST=log.requests[1])
    assert rows[0]["@message"].startswith("START")
    assert rows[-1]["@message"].startswith("END")
    failed = next(row for row in rows if row.get("error_type") == "LookupError" and row.get("handler") == "sales")
    assert (failed["level"], failed["sequence"]) == ("ERROR", sequence(log))
    assert re.fullmatch(r".*test_log_queries\.py:\d+", failed["at"])
    assert all(log.requests[1] in row["@message"] for row in rows)


def test_all_tries_of_a_record_are_counted_by_handler(log):
    rows = found(log, "All tries of a record", SEQUENCE=sequence(log))
    (tries,) = [row for row in rows if row.get("handler") == "sales"]
    assert (tries["tries"], tries["error_type"]) == (3, "LookupError")
    assert 120 <= tries["last"] - tries["first"] < 121


def test_the_most_frequent_cause_comes_first(log):
    first = found(log, "What fails, the most frequent cause first")[0]
    assert (first["handler"], first["records"], first["invocations"]) == ("sales", 3, 3)


def test_what_was_parked_has_a_record_and_its_request(log):
    rows = found(log, "What was parked")
    assert {(row["handler"], row["parked"], row["sequence"]) for row in rows} == {("parks", 1, sequence(log))}
    assert {row["function_request_id"] for row in rows} <= set(log.requests)
    documents = [json.loads(line) for line in log.parking.path.read_text().splitlines()]
    assert {each["request_id"] for each in documents} == {row["function_request_id"] for row in rows}


def test_items_that_nearly_match_are_counted_by_key_and_field(log):
    (row,) = found(log, "Items that nearly match a key")
    assert (row["records"], row["field"]) == (1, "order_id")


def test_how_late_rows_are_is_read_from_the_metrics(log):
    rows = found(log, "How late rows are")
    assert sum(row["records"] for row in rows) == 6
    assert sum(row["failed"] for row in rows) == 3


def test_every_line_has_the_ids_of_its_invocation(log):
    own = [json.loads(event.line) for event in log.events if event.line.startswith("{")]
    assert {line["function_request_id"] for line in own} == set(log.requests)
    assert {line["xray_trace_id"] for line in own} == {TRACE}


def test_an_invocation_in_which_nothing_failed_writes_one_line_of_its_own(log):
    quiet = [event.line for event in log.events if log.requests[0] in event.line and event.line.startswith("{")]
    assert len(quiet) == 1
    assert "_aws" in json.loads(quiet[0])


@pytest.mark.parametrize(
    "query",
    ["parse @message '*' as a", "filter a ~ 1", "stats avg(a)", "filter (a = 1", "sort a", "fields a + b"],
)
def test_a_query_that_nobody_tested_is_refused(query):
    with pytest.raises((ValueError, IndexError)):
        run(query, [Event(0.0, '{"a": 1}')])
