"""``streamfold template --check`` of alarms: a person's own forms are accepted, and those that never rise are named."""

from copy import deepcopy

import pytest

from handlers import app
from streamfold.deploy.check import check_template
from streamfold.deploy.template_file import TemplateFile
from tests.helpers.template import load_template, properties

WHOLE = load_template()
TOPIC = {"Ref": "PageTopic"}


def wrong(change):
    """The wrong findings of a template that a function changed, as resource and path."""
    template = deepcopy(WHOLE)
    change(template)
    found = check_template(app, "handlers", TemplateFile(template))
    return [(each.resource, each.path) for each in found if each.level == "wrong"]


def composite(rule, **more):
    """Gives ``ProjectorErrors`` and ``ProjectorThrottles`` no actions, and a composite alarm with this rule one."""

    def change(template):
        for name in ("ProjectorErrors", "ProjectorThrottles"):
            del properties(template, name)["AlarmActions"]
        given = {"AlarmRule": rule, "AlarmActions": [TOPIC]}
        template["Resources"]["Together"] = {"Type": "AWS::CloudWatch::CompositeAlarm", "Properties": given | more}

    return change


SILENT = [(name, "Properties.AlarmActions") for name in ("ProjectorErrors", "ProjectorThrottles")]
EITHER = {"Fn::Sub": "ALARM(${ProjectorErrors}) OR ALARM(${ProjectorThrottles})"}


@pytest.mark.parametrize(
    "rule",
    [
        EITHER,
        {"Fn::Sub": 'ALARM("${ProjectorErrors}") OR ALARM("${ProjectorThrottles}")'},
        {"Fn::Sub": "ALARM(${ProjectorErrors.Arn}) OR\n ALARM(${ProjectorThrottles.Arn})"},
        {"Fn::Sub": "(ALARM(${ProjectorErrors}) OR ALARM(${ProjectorThrottles})) AND NOT ALARM(Maintenance)"},
        {"Fn::Join": ["", ["ALARM(", {"Ref": "ProjectorErrors"}, ") OR ALARM(", {"Ref": "ProjectorThrottles"}, ")"]]},
    ],
)
def test_an_alarm_may_notify_by_a_composite_alarm_that_rises_with_it(rule):
    assert wrong(composite(rule)) == []


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        ({"Fn::Sub": "ALARM(${ProjectorErrors}) AND ALARM(${ProjectorThrottles})"}, {}),
        ({"Fn::Sub": "NOT ALARM(${ProjectorErrors}) AND NOT ALARM(${ProjectorThrottles})"}, {}),
        ("ALARM(Somebody) OR ALARM(Else)", {}),
        (EITHER, {"AlarmActions": []}),
        (EITHER, {"ActionsEnabled": False}),
        ("no rule (", {}),
    ],
)
def test_a_composite_alarm_that_does_not_rise_with_an_alarm_alone_notifies_nobody_of_it(rule, more):
    assert wrong(composite(rule, **more)) == SILENT


@pytest.mark.parametrize(
    "rule",
    [
        "ALARM(${AWS::StackName}-ProjectorErrors) OR ALARM(${AWS::StackName}-ProjectorThrottles)",
        'ALARM("ARN:${AWS::StackName}-ProjectorErrors") OR ALARM("ARN:${AWS::StackName}-ProjectorThrottles")',
    ],
)
def test_a_composite_alarm_may_name_alarms_by_the_names_that_they_give_themselves(rule):
    def change(template):
        place = "arn:${AWS::Partition}:cloudwatch:${AWS::Region}:${AWS::AccountId}:alarm"
        composite({"Fn::Sub": rule.replace("ARN", place)})(template)
        for name in ("ProjectorErrors", "ProjectorThrottles"):
            properties(template, name)["AlarmName"] = {"Fn::Sub": f"${{AWS::StackName}}-{name}"}

    assert wrong(change) == []


def test_a_composite_alarm_whose_rule_is_of_another_stack_is_pointed_out():
    template = deepcopy(load_template())
    composite({"Fn::ImportValue": "rule"})(template)
    found = check_template(app, "handlers", TemplateFile(template))
    at = [(each.level, each.resource) for each in found if each.path == "Properties.AlarmActions"]
    assert at == [("advice", "ProjectorErrors"), ("advice", "ProjectorThrottles")]


def test_a_composite_alarm_may_be_made_of_others():
    def change(template):
        composite(EITHER, AlarmActions=[])(template)
        given = {"AlarmRule": {"Fn::Sub": "ALARM(${Together})"}, "AlarmActions": [TOPIC]}
        template["Resources"]["All"] = {"Type": "AWS::CloudWatch::CompositeAlarm", "Properties": given}

    assert wrong(change) == []


@pytest.mark.parametrize(
    "softer",
    [
        {"Threshold": 100},
        {"Period": 3600, "EvaluationPeriods": 24, "DatapointsToAlarm": 20},
        {"Period": 86_400, "EvaluationPeriods": 1, "DatapointsToAlarm": 1, "Threshold": 10},
        {"Period": 60, "EvaluationPeriods": 1, "DatapointsToAlarm": 1},
    ],
)
def test_near_misses_may_be_softened(softer):
    assert wrong(lambda template: properties(template, "ProjectorNearMisses").update(softer)) == []


def test_near_misses_that_rise_after_more_than_a_day_are_named():
    late = {"Period": 86_400, "EvaluationPeriods": 2, "DatapointsToAlarm": 2}
    found = wrong(lambda template: properties(template, "ProjectorNearMisses").update(late))
    assert found == [("ProjectorNearMisses", "Properties.Period")]


@pytest.mark.parametrize(
    ("name", "unit", "is_right"),
    [
        ("ProjectorRefused", "Count", True),
        ("ProjectorRefused", "Seconds", False),
        ("ProjectorAge", "Milliseconds", True),
        ("ProjectorAge", "Seconds", False),
        ("SpreaderAge", "Seconds", True),
        ("TableWriteThrottles", "Count/Second", False),
    ],
)
def test_an_alarm_on_a_unit_that_its_metric_has_not_is_named(name, unit, is_right):
    found = wrong(lambda template: properties(template, name).update(Unit=unit))
    assert found == ([] if is_right else [(name, "Properties.Unit")])


@pytest.mark.parametrize(
    ("name", "change", "is_right"),
    [
        ("ProjectorErrors", {"Threshold": 10}, True),
        ("ProjectorErrors", {"Threshold": 11}, False),
        ("ProjectorErrors", {"Threshold": 20, "Period": 120}, True),
        ("ProjectorErrors", {"Threshold": -1}, False),
        ("SpreaderErrors", {"Threshold": 50}, True),
        ("ProjectorAge", {"Threshold": 60_000}, True),
        ("ProjectorAge", {"Threshold": 59_000}, False),
        ("ProjectorAge", {"Threshold": 43_200_000}, True),
        ("ProjectorAge", {"Threshold": 43_200_001}, False),
        ("ProjectorParked", {"Threshold": 1}, False),
        ("ProjectorParked", {"Threshold": 1, "ComparisonOperator": "GreaterThanOrEqualToThreshold"}, True),
    ],
)
def test_a_threshold_may_be_stricter_or_looser_within_its_bounds(name, change, is_right):
    found = wrong(lambda template: properties(template, name).update(change))
    assert found == ([] if is_right else [(name, "Properties.Threshold")])


@pytest.mark.parametrize(
    "actions",
    [
        [{"Ref": "TicketTopic"}],
        [{"Ref": "PageTopic"}],
        ["arn:aws:sns:us-east-1:123456789012:mine"],
        {"Fn::If": ["OwnPageTopic", [{"Ref": "PageTopic"}], [{"Ref": "PageTopicArn"}]]},
    ],
)
@pytest.mark.parametrize("name", ["ProjectorGivenUp", "ProjectorNearMisses"])
def test_an_alarm_may_go_to_either_topic_and_tell_nobody_of_its_end(name, actions):
    def change(template):
        properties(template, name)["AlarmActions"] = actions
        del properties(template, name)["OKActions"]

    assert wrong(change) == []


# Of a mapping that stands still.

PLAIN = {
    "Namespace": "AWS/Lambda",
    "MetricName": "PolledEventCount",
    "Dimensions": [{"Name": "EventSourceMappingUUID", "Value": {"Ref": "ProjectorTableStream"}}],
    "Statistic": "SampleCount",
    "Period": 900,
    "EvaluationPeriods": 1,
    "Threshold": 1,
    "ComparisonOperator": "LessThanThreshold",
    "AlarmActions": [TOPIC],
}


def heartbeat(template):
    return template["Resources"]["ProjectorStandsStill"]


def test_an_alarm_of_a_mapping_that_stands_still_has_to_rise_above_its_threshold():
    def change(template):
        properties(template, "ProjectorStandsStill")["ComparisonOperator"] = "LessThanThreshold"

    assert wrong(change) == [("ProjectorStandsStill", "Properties.ComparisonOperator")]


def test_an_alarm_that_rises_after_the_stream_dropped_its_records_is_too_late():
    def change(template):
        properties(template, "ProjectorStandsStill").update(EvaluationPeriods=30, DatapointsToAlarm=30)

    assert wrong(change) == [("ProjectorStandsStill", "Properties.EvaluationPeriods")]


def test_a_missing_alarm_of_a_mapping_that_stands_still_is_named():
    found = wrong(lambda template: template["Resources"].pop("ProjectorStandsStill"))
    assert found == [("Projector", "")]


def test_an_alarm_on_polls_alone_has_to_rise_without_data():
    def change(template, **more):
        heartbeat(template)["Properties"] = PLAIN | more

    assert wrong(lambda template: change(template, TreatMissingData="breaching")) == []
    expected = [("ProjectorStandsStill", "Properties.TreatMissingData")]
    assert wrong(lambda template: change(template, TreatMissingData="notBreaching")) == expected
    assert wrong(change) == expected


@pytest.mark.parametrize(
    ("expression", "is_right"),
    [
        ("IF(FILL(polls, 0) < 1, 1, 0)", True),
        ("FILL(polls, 0) == 0", True),
        ("IF(writes > 0 AND polls == 0, 1, 0)", False),
        ("IF(writes > 0 AND FILL(polls, 0) > 0, 1, 0)", False),
    ],
)
def test_an_expression_has_to_rise_where_no_poll_is_counted(expression, is_right):
    def change(template):
        (result,) = [each for each in heartbeat(template)["Properties"]["Metrics"] if each["Id"] == "result"]
        result["Expression"] = expression

    assert wrong(change) == ([] if is_right else [("ProjectorStandsStill", "Properties.Metrics")])
