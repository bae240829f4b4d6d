"""The dashboard: template.yaml's is the code's, every figure on it is measured, and every name in it is a resource."""

import json
import re
from random import Random

import pytest

from handlers import app as shop
from streamfold import App, Count, Key, Router, Row
from streamfold.batch.report import Report
from streamfold.deploy.check import check_template
from streamfold.deploy.dashboards import ALARM_TYPES, WIDGETS, dashboards
from streamfold.deploy.functions import Deployment
from streamfold.deploy.rules import WRONG
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import TemplateFile
from streamfold.engines.dynamodb_client import Consumed
from streamfold.lambda_entry.queue import OPEN_METRICS, WAKE_METRIC, WORKED_METRICS
from streamfold.lambda_entry.telemetry import NAMESPACE, Processed, batch_numbers
from streamfold.runtime import SendingPace
from streamfold.settings import Settings
from tests.deploy.test_sam import drawn
from tests.helpers.template import load_template
from tests.tools.dashboards import of_template

NAME = re.compile(r"\$\{(?!!)(?!AWS::)(\w+)")
PARAMETERS = ("Application", "MemorySize")
NUMBERS = batch_numbers(Processed(Report(), (), 0, Consumed(), 0.1, 0.0), SendingPace(), Settings())
MEASURED = {*NUMBERS, *OPEN_METRICS, *WORKED_METRICS, WAKE_METRIC, "freshness_seconds", "deltas_put", "deltas_merged"}
GRID = 24


def template_of(app):
    return SamTemplate(Deployment(app, "module")).content


def bodies(template):
    """The texts of the dashboards of a template."""
    found = [each for each in template["Resources"].values() if each["Type"] == "AWS::CloudWatch::Dashboard"]
    return [each["Properties"]["DashboardBody"]["Fn::Sub"] for each in found]


def widgets(template, kind="metric"):
    found = [each for body in bodies(template) for each in json.loads(body)["widgets"]]
    return [each for each in found if each["type"] == kind]


def titles(template):
    return [each["properties"]["title"].partition(",")[0].partition(" ")[0] for each in widgets(template)]


@pytest.fixture(scope="module", params=["template.yaml", "printed", *range(20)])
def template(request):
    if request.param == "template.yaml":
        return load_template()
    return template_of(shop if request.param == "printed" else drawn(Random(request.param)))


def test_the_dashboards_of_the_template_are_those_of_the_code():
    template = load_template()
    for name, made in of_template(template).items():
        own = template["Resources"][name]
        assert own["Condition"] == made["Condition"]
        body = json.loads(own["Properties"]["DashboardBody"]["Fn::Sub"])
        assert body == json.loads(made["Properties"]["DashboardBody"]["Fn::Sub"]), "python -m tests.tools.dashboards"


def test_the_check_accepts_a_template_with_and_without_its_dashboards():
    for left_out in ((), ("Dashboard", "SearchDashboard")):
        template = load_template()
        for name in left_out:
            del template["Resources"][name]
        found = check_template(shop, "handlers", TemplateFile(template))
        assert [each for each in found if each.level == WRONG or "Dashboard" in each.resource] == []


def test_every_name_on_a_dashboard_is_a_resource_of_the_template(template):
    resources = template["Resources"]
    mappings = {
        f"{name}{event}" for name, each in resources.items() for event in each.get("Properties", {}).get("Events", {})
    }
    for body in bodies(template):
        assert {*NAME.findall(body)} <= {*resources, *mappings, *PARAMETERS}


def test_every_alarm_is_on_a_dashboard(template):
    shown = [name for each in widgets(template, "alarm") for name in NAME.findall(str(each["properties"]["alarms"]))]
    alarms = [name for name, each in template["Resources"].items() if each["Type"] in ALARM_TYPES]
    assert sorted(shown) == sorted(alarms)


def test_a_dashboard_shows_only_metrics_that_are_measured(template):
    shown = {one[1] for each in widgets(template) for one in each["properties"]["metrics"] if one[0] == NAMESPACE}
    assert {"records", "freshness_seconds", "parked"} <= shown <= MEASURED


def test_every_title_says_what_good_looks_like(template):
    for each in (*widgets(template), *widgets(template, "alarm")):
        assert re.search(r"\. Good: \S", each["properties"]["title"]), each["properties"]["title"]


def test_expressions_read_metrics_of_their_own_graph_and_each_graph_has_a_line(template):
    for each in widgets(template):
        series = [one[-1] for one in each["properties"]["metrics"]]
        names = [one["id"] for one in series if "id" in one]
        assert len(names) == len(set(names))
        for one in series:
            if "SEARCH" not in (text := one.get("expression", "")):
                assert {*re.findall(r"\b[a-z]+\d+\b", text)} <= {*names}
        assert any(one.get("visible", True) for one in series)


def test_no_two_graphs_of_a_dashboard_overlap(template):
    for body in bodies(template):
        taken = set()
        for each in json.loads(body)["widgets"]:
            columns = range(each["x"], each["x"] + each["width"])
            own = {(column, row) for column in columns for row in range(each["y"], each["y"] + each["height"])}
            assert not own & taken
            assert max(columns) < GRID
            taken |= own


def test_an_application_without_fan_outs_has_no_graph_of_them():
    router = Router()

    @router.view(Key("ORDER#{id}", "LINE#{sku}"), into=Key("ORDER#{id}", "TOTAL"))
    def lines(line):
        yield Row(lines=Count())

    assert "Fan-outs:" not in titles(template_of(App("small", routers=[router])))
    assert "Fan-outs:" in titles(template_of(shop))


def test_only_handlers_that_add_to_rows_have_a_graph_of_deltas():
    router = Router()
    router.audit(Key("ORDER#{id}", "METADATA"), name="history")

    assert "Deltas" not in titles(template_of(App("small", routers=[router])))
    assert "Deltas" in titles(template_of(shop))


def test_a_stack_without_the_choice_has_no_dashboard():
    template = template_of(shop)
    conditions = template["Conditions"]

    assert template["Parameters"]["ShowDashboard"]["Default"] == "on"
    assert conditions["ShowsDashboard"] == {"Fn::Equals": [{"Ref": "ShowDashboard"}, "on"]}
    assert conditions["ShowsSearchDashboard"]["Fn::And"] == [{"Condition": "Searches"}, {"Condition": "ShowsDashboard"}]
    found = [each for each in template["Resources"].values() if each["Type"] == "AWS::CloudWatch::Dashboard"]
    assert [each["Condition"] for each in found] == ["ShowsDashboard", "ShowsSearchDashboard"]


def test_an_alarm_under_a_condition_of_its_own_is_on_no_dashboard():
    template = load_template()
    template["Resources"]["ProjectorAge"]["Condition"] = "OwnPageTopic"

    found = of_template(template)

    assert "ProjectorAge" not in str(found)
    assert "ProjectorErrors" in str(found)


def test_another_graph_is_one_function(monkeypatch):
    monkeypatch.setattr("streamfold.deploy.dashboards.WIDGETS", WIDGETS[:1])
    template = load_template()
    found = dashboards(Deployment(shop, "handlers").functions, template["Resources"], {})
    (graph, *alarms) = json.loads(found["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])["widgets"]
    assert graph["properties"]["title"].startswith("Freshness")
    assert {each["type"] for each in alarms} == {"alarm"}
