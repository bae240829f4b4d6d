"""Each rule of a deployment, by the three that take it: the generator, the check of a template, and doctor."""

import sys
from copy import deepcopy
from datetime import UTC, datetime

import pytest

from streamfold.deploy.check.template import check_template
from streamfold.deploy.deployed import Account as Asked
from streamfold.deploy.deployed import LiveFunction
from streamfold.deploy.diagnosis import BAD
from streamfold.deploy.doctor import Doctor
from streamfold.deploy.functions import Deployment
from streamfold.deploy.rules import (
    AGE,
    AGE_OF_KINESIS,
    KEPT_LETTERS,
    MESSAGE_RULES,
    RECEIVES,
    RECOVERY,
    STANDARD,
    DeploymentRule,
    as_properties,
    mapping_rules,
    time_to_live_rules,
    timeout_rule,
    visibility_rule,
)
from streamfold.deploy.sam import SamTemplate
from streamfold.deploy.template_file import ABSENT, TemplateFile
from tests.deploy.test_doctor import application
from tests.helpers.account import DEAD, Account

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
APP = application()
lambda_handler, jobs_handler, verify_handler = APP.lambda_handler, APP.jobs_handler, APP.verify_handler
WHOLE = SamTemplate(Deployment(APP, sys.modules[__name__])).content
STREAM, QUEUE = "Events.TableStream.Properties", "Events.Messages.Properties"
OF_STREAMS = {
    "StartingPosition": ["LATEST", "AT_TIMESTAMP", None],
    "BatchSize": [10_001],
    "MaximumBatchingWindowInSeconds": [301],
    "ParallelizationFactor": [11],
    "FunctionResponseTypes": [[], None],
    "BisectBatchOnFunctionError": [False, None],
    "MaximumRetryAttempts": [-1, 0, 10_001, None],
    "MaximumRecordAgeInSeconds": [-1, 59, 86_400, None],
    "TumblingWindowInSeconds": [30],
    "MetricsConfig.Metrics": [[], None],
    "DestinationConfig.OnFailure.Destination": [DEAD, None],
}
OF_QUEUES = {
    "BatchSize": [10, None],
    "FunctionResponseTypes": [[], None],
    "ScalingConfig.MaximumConcurrency": [1001],
    "FilterCriteria": [{"Filters": [{"Pattern": "{}"}]}],
}
"""Wrong values of each property; None: it is missing."""


def changed(content, path, value):
    """Sets what lies at a path, or takes it away."""
    *before, last = path.split(".")
    for step in before:
        content = content.setdefault(step, {})
    if value is None:
        content.pop(last, None)
    else:
        content[last] = value


def named_by_check(resource, path, value):
    """Whether the check names a value of a template."""
    template = deepcopy(WHOLE)
    changed(template["Resources"][resource]["Properties"], path, value)
    found = check_template(APP, __name__, TemplateFile(template))
    return any(each.level == "wrong" and each.resource == resource and path in each.path for each in found)


def named_by_doctor(change):
    """The checks of which a live deployment has a bad line."""
    account = Account(now=NOW)
    change(account)
    asked = Asked(account.client)
    functions = [LiveFunction(asked, name) for name in ("projector", "spreader")]
    return {line.check for line in Doctor(APP, asked, functions, NOW.timestamp()).lines() if line.state == BAD}


def each_of(rules):
    return [(path, value) for path, values in rules.items() for value in values]


@pytest.mark.parametrize(("path", "value"), each_of(OF_STREAMS))
def test_a_wrong_value_of_a_streams_mapping_is_wrong_to_the_check_and_to_doctor(path, value):
    assert named_by_check("Projector", f"{STREAM}.{path}", value)
    assert named_by_doctor(lambda account: changed(account.mappings[0], path, value))


@pytest.mark.parametrize(("path", "value"), each_of(OF_QUEUES))
def test_a_wrong_value_of_a_queues_mapping_is_wrong_to_the_check_and_to_doctor(path, value):
    assert named_by_check("Spreader", f"{QUEUE}.{path}", value)
    assert named_by_doctor(lambda account: changed(account.mappings[1], path, value))


def test_every_rule_of_a_mapping_has_wrong_values_here():
    assert OF_STREAMS.keys() == mapping_rules(kinesis=False).keys() - {"Enabled"}
    assert OF_QUEUES.keys() == MESSAGE_RULES.keys() - {"Enabled"}


@pytest.mark.parametrize(("resource", "path"), [("Projector", STREAM), ("Spreader", QUEUE)])
def test_a_mapping_that_is_off_is_wrong_to_both(resource, path):
    assert named_by_check(resource, f"{path}.Enabled", "false")
    number = 0 if resource == "Projector" else 1
    assert named_by_doctor(lambda account: account.mappings[number].update(State="Disabled")) == {"mapping"}


@pytest.mark.parametrize(
    ("resource", "path", "value", "breaks"),
    [
        ("Doorbell", "VisibilityTimeout", 719, lambda it: it.queues["doorbell"].update(VisibilityTimeout="719")),
        (
            "Doorbell",
            "RedrivePolicy.maxReceiveCount",
            4,
            lambda it: it.queues["doorbell"].update(
                RedrivePolicy='{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": 4}'
            ),
        ),
        (
            "DoorbellFailures",
            "MessageRetentionPeriod",
            86_400,
            lambda it: it.queues["dead"].update(MessageRetentionPeriod="86400"),
        ),
        ("Projector", "Timeout", 22, lambda it: it.functions["projector"].update(Timeout=22)),
        (
            "StateTable",
            "PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled",
            False,
            lambda it: it.recovered.remove("state"),
        ),
        ("StateTable", "TimeToLiveSpecification.AttributeName", "x", lambda it: it.expiring.update(state="x")),
        ("StateTable", "TimeToLiveSpecification.Enabled", False, lambda it: it.expiring.update(state=None)),
    ],
)
def test_a_wrong_value_of_a_queue_a_function_or_a_table_is_wrong_to_both(resource, path, value, breaks):
    assert named_by_check(resource, path, value)
    assert named_by_doctor(breaks)


def test_a_queue_in_order_is_wrong_to_the_check():
    assert named_by_check("Doorbell", STANDARD.property, True)


def test_records_of_kinesis_are_kept_longer_than_a_day():
    assert AGE_OF_KINESIS.accepts(200_000)
    assert not AGE.accepts(200_000)


RULES = [
    *mapping_rules(kinesis=False).values(),
    *mapping_rules(kinesis=True).values(),
    *MESSAGE_RULES.values(),
    RECEIVES,
    STANDARD,
    KEPT_LETTERS,
    RECOVERY,
    *time_to_live_rules("expires"),
    visibility_rule(60, "Projector"),
]


@pytest.mark.parametrize("rule", RULES, ids=[rule.property for rule in RULES])
def test_a_printed_value_is_right_by_its_own_rule(rule):
    file = TemplateFile(WHOLE)
    printed = file.first(as_properties([rule]))
    assert rule.value is ABSENT or rule.holds(printed)
    assert not rule.choice or rule.holds(printed)


def test_right_values_of_a_resource_come_before_those_of_a_rule():
    rule = DeploymentRule("A.B", lambda value: True, "anything", 1)
    assert as_properties([rule, DeploymentRule("A.C", bool, "it")]) == {"A": {"B": 1}}
    assert as_properties([rule], {"A.B": 2}) == {"A": {"B": 2}}


def test_a_timeout_leaves_one_call_before_the_last_seconds():
    assert [timeout_rule(12).accepts(seconds) for seconds in (22, 23, 900, 901)] == [False, True, True, False]
