"""The preview of a dashboard: metric math on the metrics of a replay, in the batches that Lambda would make."""

import json

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.deploy.dashboards import WIDGETS
from streamfold.deploy.functions import Deployment
from streamfold.deploy.sam import SamTemplate
from streamfold.errors import SettingsError
from streamfold.pages.dashboard import NAMESPACE, DataPoints, Periods, boards, calculated, lines, measured, previewed
from streamfold.replay.costs import beginning
from streamfold.replay.files import RecordedFiles
from streamfold.settings import Settings
from tests.helpers.here import streamfold
from tests.helpers.source import Source

LINE, TOTAL = Key("ORDER#{order_id}", "LINE#{sku}"), Key("ORDER#{order_id}", "TOTAL")
BEGIN = 1_772_352_000
PERIODS = Periods(BEGIN, 60, 3)
SERVICE = {"service": "small", "function": "Projector"}


def application():
    router = Router()

    @router.view(LINE, into=TOTAL)
    def order_total(line):
        if line["price"] < 0:
            raise LookupError("poison")
        yield Row(total=Sum(line["price"]), lines=Count())

    return App("small", routers=[router])


@pytest.fixture
def template():
    return SamTemplate(Deployment(application(), "module"))


@pytest.fixture
def recorded(tmp_path):
    """Gives the entries of a recording: each record is the second of its write, and a price."""

    def entries(*written):
        source, found = Source(), []
        for number, (second, price) in enumerate(written):
            record = source.put(f"ORDER#{number}", "LINE#a", price=price)
            record["dynamodb"]["ApproximateCreationDateTime"] = BEGIN + second
            found.append(json.dumps(record) + "\n")
        (tmp_path / "records.jsonl").write_text("".join(found))
        return beginning(RecordedFiles([str(tmp_path / "records.jsonl")]))

    return entries


def of_metric(points, name, **more):
    """The values of a metric of the function."""
    return [value for _, value in points[NAMESPACE, name, tuple(sorted({**SERVICE, **more}.items()))]]


def chart(shown, title):
    (found,) = [each for board in shown for each in board["widgets"] if each["title"].startswith(title)]
    return {line["label"]: line["values"] for line in found["lines"]}


def test_records_of_a_window_are_one_batch_and_later_ones_the_next(template, recorded):
    points = measured(template, Settings(), recorded((0, 1), (1, 1), (10, 1)))
    assert of_metric(points, "records") == [2, 1]


def test_freshness_is_a_window_and_the_work_and_handlers_have_theirs(template, recorded):
    points = measured(template, Settings(), recorded((0, 1), (10, 1)))
    for found in (
        of_metric(points, "freshness_seconds"),
        of_metric(points, "freshness_seconds", handler="order_total"),
    ):
        assert len(found) == 2
        assert all(1 <= seconds < 10 for seconds in found)


def test_a_record_that_fails_is_on_the_graph(template, recorded):
    shown = boards(template, measured(template, Settings(), recorded((0, 1), (5, -1))))
    assert chart(shown, "Failed")["Projector failed"] == [1]


def units_by_table(points, name):
    return {
        dict(ends)["TableName"]: sum(value for _, value in own)
        for (_, metric, ends), own in points.items()
        if metric == name
    }


def test_the_units_of_tables_are_those_of_the_function_and_of_the_writers(template, recorded):
    points = measured(template, Settings(), recorded((0, 1), (10, 1), (20, 1)))
    written, writers = units_by_table(points, "ConsumedWriteCapacityUnits"), 3
    assert written.keys() == {"Table", "StateTable"}
    assert sum(written.values()) == sum(of_metric(points, "write_units")) + writers
    assert sum(units_by_table(points, "ConsumedReadCapacityUnits").values()) == sum(of_metric(points, "read_units"))


def test_the_graph_of_records_holds_each_record_once(template, recorded):
    points = measured(template, Settings(), recorded(*((30 * number, 1) for number in range(9))))
    (values,) = chart(boards(template, points), "Records a second").values()
    assert sum(value or 0 for value in values) * 60 == pytest.approx(9)


def test_the_cost_of_a_day_is_units_and_time_at_list_price(template):
    points, day = DataPoints(), 86_400
    points.put(BEGIN, "AWS/DynamoDB", {"TableName": "Table"}, {"ConsumedWriteCapacityUnits": 1e6})
    points.put(BEGIN, "AWS/DynamoDB", {"TableName": "StateTable"}, {"ConsumedReadCapacityUnits": 2e6})
    own = {"FunctionName": "Projector"}
    points.put(BEGIN + day, "AWS/Lambda", own, {"Duration": 2_000_000, "Invocations": 1e6})

    found = chart(boards(template, points), "Cost of a day")
    assert found["tables, with the writes of their writers"] == [0.625, 0]
    assert found["state"] == [0.25, 0]
    assert found["functions"] == [0, pytest.approx(1000 * 0.0000133334 + 0.20)]  # 2,000 seconds of half a gigabyte


def test_deltas_pending_are_those_put_less_those_merged(template):
    points = DataPoints()
    for minute, put, merged in ((0, 5, 0), (1, 0, 3), (2, 0, 2)):
        points.put(BEGIN + 60 * minute, NAMESPACE, SERVICE, {"deltas_put": put, "deltas_merged": merged})
    assert chart(boards(template, points), "Deltas")["Projector"] == [5, 2, 0]


def test_a_function_that_takes_half_of_its_timeout_is_at_50_percent(template):
    points = DataPoints()
    points.put(BEGIN, "AWS/Lambda", {"FunctionName": "Projector"}, {"Duration": 30_000})
    assert chart(boards(template, points), "Duration") == {"Projector of 60 s": [50]}


def test_a_graph_without_a_metric_has_no_line(template, recorded):
    shown = boards(template, measured(template, Settings(), recorded((0, 1))))
    assert chart(shown, "Throttled") == {}
    assert sum(len(board["widgets"]) for board in shown) > len(WIDGETS) - 2


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        ("a / PERIOD(a)", [60.0, None, 120.0], [1, None, 2]),
        ("RUNNING_SUM(FILL(a, 0))", [1.0, None, 2.0], [1, 1, 3]),
        ("a / 0", [1, 2, 3], [None, None, None]),
        ("FILL(a, 0)", [None, None, None], [None, None, None]),
    ],
)
def test_metric_math_is_calculated_for_each_period(expression, values, expected):
    assert calculated(expression, {"a": values}, PERIODS) == expected


def test_a_search_finds_the_metrics_of_each_handler_of_a_function():
    points = DataPoints()
    for handler, function in (("one", "Projector"), ("two", "Projector"), ("three", "Searcher")):
        points.put(BEGIN, NAMESPACE, {**SERVICE, "function": function, "handler": handler}, {"freshness_seconds": 2})
    search = (
        'SEARCH(\'{streamfold,function,handler,service} MetricName="freshness_seconds" service="small" '
        "function=\"Projector\"', 'Maximum', 60)"
    )
    assert {line["label"] for line in lines([[{"expression": search, "label": "x"}]], points, PERIODS)} == {
        "one",
        "two",
    }
    with pytest.raises(ValueError, match="cannot be evaluated"):
        list(lines([[{"expression": "SEARCH(x)", "label": "x"}]], points, PERIODS))


def test_a_long_recording_has_longer_periods():
    points = DataPoints()
    for at in (BEGIN, BEGIN + 86_400 * 29):
        points.put(at, NAMESPACE, SERVICE, {"records": 1})
    found = Periods.of(points, 60)
    assert found.seconds == 6 * 3600
    assert sum(value or 0 for value in found.values([(BEGIN, 1), (BEGIN + 86_400 * 29, 1)], "Sum")) == 2


def test_records_without_a_time_or_of_others_are_an_error(template):
    with pytest.raises(SettingsError, match=r"No record of the application's own items .* name files"):
        previewed(template, Settings(), [])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["events/shop.jsonl"], "EVENTS are replayed for --dashboard-preview alone"),
        (["--dashboard-preview", "a.html"], "--dashboard-preview needs records"),
        (["--dashboard-preview", "a.html", "x", "--check", "y"], "and --check is of a template"),
        (
            ["--dashboard-preview", "none/a.html", "events/shop.jsonl"],
            "--dashboard-preview none/a.html cannot be written",
        ),
    ],
)
def test_a_wrong_option_is_an_error_with_its_remedy(options, error):
    ran = streamfold("template", *options)
    assert ran.code == 2
    assert error in ran.err
