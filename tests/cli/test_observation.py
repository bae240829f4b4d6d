"""What CloudWatch bills: counted for the functions, the alarms and the line that a deployment has."""

import json

import handlers
from streamfold import App, Count, Key, Router, Row
from streamfold.batch.report import Report
from streamfold.cli.costs import observation
from streamfold.deploy.functions import Deployment
from streamfold.deploy.sam import SamTemplate
from streamfold.engines.dynamodb_client import Consumed
from streamfold.lambda_entry.telemetry import Processed, observer
from streamfold.lifecycle.verify import SAMPLE_METRICS
from streamfold.runtime import SendingPace
from streamfold.settings import Settings
from tests.helpers.records import change, item


def application():
    router = Router()
    router.view(Key("ORDER#{i}", "META"), into=Key("DAY#{day}", "ALL"), name="days")(lambda order: Row(n=Count()))
    return App("shop", routers=[router])


def test_each_metric_of_the_line_of_a_batch_is_counted_and_its_length_is_that_of_the_line(capsys):
    written = change(None, item("ORDER#1", "META"))
    observe = observer(application(), Settings(), SendingPace())
    observe(Processed(Report(), [written], 0, Consumed(), 0.1, written.at_seconds + 0.5))
    text = capsys.readouterr().out
    names = [each["Name"] for each in json.loads(text)["_aws"]["CloudWatchMetrics"][0]["Metrics"]]
    found = observation(application(), Settings())
    assert found.metrics == len(names) + len(SAMPLE_METRICS)
    assert abs(found.line_bytes - len(text)) < 20


def test_metrics_of_handlers_are_billed_where_they_are_measured():
    with_handlers = observation(application(), Settings(observe_handlers=True))
    assert with_handlers.metrics - observation(application(), Settings()).metrics == 4


def test_each_metric_that_an_alarm_of_the_template_reads_is_billed():
    resources = SamTemplate(Deployment(handlers.app, handlers)).content["Resources"].values()
    alarms = [each["Properties"] for each in resources if each["Type"] == "AWS::CloudWatch::Alarm"]
    of_two = [each for each in alarms if len(each.get("Metrics", ())) == 3]  # the expression is no metric
    assert of_two
    assert observation(handlers.app, Settings()).alarms == len(alarms) + len(of_two)


def test_without_metrics_and_log_only_alarms_are_billed():
    found = observation(application(), Settings(observe="off"))
    assert (found.metrics, found.line_bytes, found.dollars_a_month) == (0, 0, found.alarms * 0.1)
