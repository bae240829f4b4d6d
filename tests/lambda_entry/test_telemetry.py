"""Logs and metrics of a function, beside those of Powertools, which have the same form."""

import json
import logging
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from streamfold import App, Router
from streamfold.batch.report import Report
from streamfold.commit.outcome import Failure
from streamfold.engines.dynamodb_client import Consumed
from streamfold.errors import HandlerError, SettingsError, redacted
from streamfold.lambda_entry.telemetry import (
    LEVEL_VARIABLE,
    NAMESPACE,
    TRACE_VARIABLE,
    Processed,
    ids_of,
    invocation_ids,
    log,
    measuring,
    observer,
    start_log,
)
from streamfold.routes.route import ROWS_LOST
from streamfold.runtime import SendingPace
from streamfold.settings import Settings

COUNTS = {"records": 100, "failed": 0, "fan_out_oldest_seconds": 7}


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    handlers, level, propagate = log.handlers, log.level, log.propagate
    monkeypatch.setenv(LEVEL_VARIABLE, "INFO")
    monkeypatch.setattr(invocation_ids, "present", {})
    yield
    log.handlers, log.propagate = handlers, propagate
    log.setLevel(level)


def logged(capsys, settings, write):
    """What is printed when something is logged, line by line."""
    log.handlers = []
    start_log("shop", settings)
    write()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def measured(capsys, settings):
    measuring("shop", settings)(COUNTS)
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def both(capsys, printed, *arguments):
    """What is printed without Powertools, and with it."""
    return tuple(printed(capsys, Settings(observe=observe), *arguments) for observe in ("lines", "powertools"))


def test_a_log_line_has_the_names_that_powertools_gives_it(capsys):
    ours, theirs = both(capsys, logged, lambda: log.warning("met %s", "none", extra={"handler": "totals", "count": 3}))
    assert ours[0].keys() == theirs[0].keys()
    told = {name: ours[0][name] for name in ("level", "message", "service", "handler", "count")}
    assert told == {"level": "WARNING", "message": "met none", "service": "shop", "handler": "totals", "count": 3}
    assert told.items() <= theirs[0].items()


def test_metrics_are_those_of_powertools(capsys):
    ours, theirs = both(capsys, measured)
    assert ours.keys() == theirs.keys()
    assert {name: [float(ours[name])] for name in COUNTS} == {name: theirs[name] for name in COUNTS}
    (mine,), (other,) = (line["_aws"]["CloudWatchMetrics"] for line in (ours, theirs))
    assert mine == other
    assert mine["Namespace"] == NAMESPACE
    assert {"Name": "fan_out_oldest_seconds", "Unit": "Seconds"} in mine["Metrics"]
    assert abs(ours["_aws"]["Timestamp"] - theirs["_aws"]["Timestamp"]) < 60_000


IDS = {"function_request_id": "request-1", "xray_trace_id": "1-5759e988-bd862e3fe1be46a994272793"}
HEADER = f"Root={IDS['xray_trace_id']};Parent=53995c3f42cd8ad8;Sampled="


@pytest.fixture
def invoked(monkeypatch):
    """Begins an invocation that X-Ray traces."""
    monkeypatch.setenv(TRACE_VARIABLE, HEADER + "1")
    invocation_ids.begin(SimpleNamespace(aws_request_id="request-1"))


@pytest.mark.usefixtures("invoked")
@pytest.mark.parametrize("observe", ["lines", "powertools"])
def test_each_line_and_the_metrics_have_the_ids_of_the_invocation(capsys, observe):
    log.handlers = []
    start_log(f"ids-{observe}", Settings(observe=observe))
    log.error("failed")
    measuring("shop", Settings(observe=observe))(COUNTS)
    line, metrics = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert line.items() >= IDS.items()
    assert metrics.items() >= IDS.items()


@pytest.mark.parametrize(
    ("context", "header", "found"),
    [
        (SimpleNamespace(aws_request_id="request-1"), HEADER + "1", IDS),
        (SimpleNamespace(aws_request_id="request-1"), HEADER + "0", {"function_request_id": "request-1"}),
        (SimpleNamespace(aws_request_id="request-1"), "", {"function_request_id": "request-1"}),
        (SimpleNamespace(), "Sampled=1", {}),
        (None, "nonsense", {}),
    ],
)
def test_an_id_is_there_only_where_it_leads_somewhere(context, header, found):
    assert ids_of(context, {TRACE_VARIABLE: header}) == found


def test_the_level_is_that_of_the_variable(capsys, monkeypatch):
    monkeypatch.setenv(LEVEL_VARIABLE, "error")
    lines = logged(capsys, Settings(), lambda: (log.warning("not told"), log.error("told")))
    assert [line["message"] for line in lines] == ["told"]


def test_a_level_that_is_none_is_told(monkeypatch):
    monkeypatch.setenv(LEVEL_VARIABLE, "loud")
    with pytest.raises(SettingsError, match="POWERTOOLS_LOG_LEVEL='LOUD': expected one of DEBUG, INFO, WARNING"):
        start_log("shop", Settings())


def test_a_second_start_writes_each_line_once(capsys):
    start_log("shop", Settings())
    assert len(logged(capsys, Settings(), lambda: log.info("once"))) == 1


def test_a_line_tells_the_trace_of_its_error(capsys):
    def failing():
        try:
            raise KeyError("sku")
        except KeyError:
            log.exception("failed")

    (line,) = logged(capsys, Settings(), failing)
    assert line["exception"].endswith("KeyError: 'sku'")


def test_no_log_is_set_up_where_observing_is_off():
    before = log.handlers
    start_log("shop", Settings(observe="off"))
    assert log.handlers is before
    assert not any(isinstance(each, logging.StreamHandler) and each.stream is sys.stdout for each in before)


def test_nothing_is_measured_where_observing_is_off(capsys):
    measuring("shop", Settings(observe="off"))(COUNTS)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("observe", ["powertools", "traced"])
def test_a_function_without_the_powertools_that_its_setting_names_is_refused_with_the_remedy(monkeypatch, observe):
    monkeypatch.setitem(sys.modules, "aws_lambda_powertools", None)
    expected = rf"STREAMFOLD_OBSERVE is {observe}, but Powertools is not installed: build .* STREAMFOLD_OBSERVE=lines"
    with pytest.raises(SettingsError, match=expected):
        start_log("shop", Settings(observe=observe))


def lines_of(capsys, report, level="INFO"):
    """What is printed of a batch, line by line."""
    log.handlers = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(LEVEL_VARIABLE, level)
        observe = observer(App("shop", routers=[Router()]), Settings(), SendingPace())
    observe(Processed(report, [], 0, Consumed(), 0.1, 0.0))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_batch_without_trouble_is_one_short_line_that_has_its_counts(capsys):
    report = Report()
    report.records["daily"] += 3
    (line,) = lines_of(capsys, report)
    assert "_aws" in line
    (also, again) = lines_of(capsys, report, "DEBUG")
    assert (also["message"], "_aws" in again) == ("batch processed", True)
    own = {"level", "location", "message", "timestamp", "service", "name"}
    assert {name: also[name] for name in also.keys() - own}.items() <= again.items()
    assert len(json.dumps(line, separators=(",", ":"))) < 2000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failures", [Failure("1", "ORDER#1", "daily", HandlerError("none"))]),
        ("parked", Counter(daily=1)),
        ("counts", {ROWS_LOST: Counter(daily=1)}),
    ],
)
def test_the_counts_of_a_batch_stand_beside_its_lines_of_trouble(capsys, name, value):
    report = Report()
    setattr(report, name, value)
    first, *more = lines_of(capsys, report)
    assert (first["message"], len(more)) == ("batch processed", 2)


def observed(capsys, pace, monkeypatch):
    """The counts in the log's line of a batch, and its metrics."""
    log.handlers = []
    monkeypatch.setenv(LEVEL_VARIABLE, "DEBUG")
    observe = observer(App("shop", routers=[Router()]), Settings(), pace)
    observe(Processed(Report(), [], 0, Consumed(), 0.1, 0.0))
    line, metrics = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["message"] == "batch processed"
    return line, metrics


SHARED = ("deltas_put", "deltas_merged", "bucket_wait_seconds", "rows_shared")


def test_a_process_that_meets_nobody_counts_no_deltas(capsys, monkeypatch):
    line, metrics = observed(capsys, SendingPace(), monkeypatch)
    assert not {*SHARED} & {*line, *metrics}
    assert {each["Name"] for each in metrics["_aws"]["CloudWatchMetrics"][0]["Metrics"]}.isdisjoint(SHARED)


def test_deltas_are_counted_once_and_shared_rows_as_long_as_they_are_known(capsys, monkeypatch):
    pace = SendingPace()
    pace.sharing.put, pace.sharing.merged, pace.sharing.waited_seconds = 3, 5, 0.25049
    pace.sharing.met([("main", "A", "B"), ("main", "A", "C")], 1000.0, first=True)
    for expected in ((3, 5, 0.25, 2), (0, 0, 0, 2)):
        line, metrics = observed(capsys, pace, monkeypatch)
        for printed in (line, metrics):
            assert tuple(printed[name] for name in SHARED) == expected
        units = {each["Name"]: each["Unit"] for each in metrics["_aws"]["CloudWatchMetrics"][0]["Metrics"]}
        assert [units[name] for name in SHARED] == ["Count", "Count", "Seconds", "Count"]
    pace.sharing.began(1, 2000.0)  # long after anybody met at them
    line, metrics = observed(capsys, pace, monkeypatch)
    assert not {*SHARED} & {*line, *metrics}


def test_parts_are_counted_once_and_batches_that_read_none_have_no_such_metric(capsys, monkeypatch):
    pace = SendingPace()
    pace.parts_read = 7
    for printed in observed(capsys, pace, monkeypatch):
        assert printed["parts_read"] == 7
    assert all("parts_read" not in printed for printed in observed(capsys, pace, monkeypatch))


def test_failures_of_one_cause_are_one_line_of_the_log_and_hide_no_other_handler(capsys):
    many = [
        Failure(str(n), f"ORDER#{n}", "daily", HandlerError(f"row {redacted(n)} has {n} bytes")) for n in range(678)
    ]
    other = Failure("x", "ORDER#x", "weekly", HandlerError("no week"))
    lines = lines_of(capsys, Report([*many, other]))
    failed = [(each["handler"], each["failures"]) for each in lines if "failures" in each]
    assert failed == [("daily", 678), ("weekly", 1)]
