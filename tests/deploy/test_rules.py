"""Each rule of a deployment, by the three that take it: the generator, the check of a template, and doctor."""

import re
import sys
from copy import deepcopy
from datetime import UTC, datetime
from itertools import chain

import pytest

from streamfold.deploy.alarms import STREAM_AGE
from streamfold.deploy.check import check_template
from streamfold.deploy.deployed import Account as Asked
from streamfold.deploy.deployed import LiveFunction
from streamfold.deploy.diagnosis import BAD
from streamfold.deploy.doctor import Doctor
from streamfold.deploy.functions import Deployment
from streamfold.deploy.rules import (
    AGE,
    AGE_OF_KINESIS,
    DESTINATION_TYPE,
    MESSAGE_RULES,
    OURS,
    RECOVERY,
    RULES,
    STANDARD,
    TIMEOUT_SECONDS,
    DeploymentRule,
    alarm_rules,
    ample_timeout_rule,
    as_properties,
    mapping_rules,
    runtime_rule,
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
OF_FUNCTIONS = {
    ("function", "Projector"): {
        "Architectures": ["arm64", ["arm64", "x86_64"], ["mips"]],
        "MemorySize": [255, 10_241, None],
        "ReservedConcurrentExecutions": [0],
        "FunctionUrlConfig.AuthType": ["NONE"],
        "AutoPublishAlias": ["live"],
    },
    ("function of a queue", "Spreader"): {"RecursiveLoop": ["Terminate", None]},
    ("role", "ProjectorRole", "AssumeRolePolicyDocument.Statement.0"): {
        "Principal": ["*", {"Service": "ec2.amazonaws.com"}, {"Service": "lambda.amazonaws.com", "AWS": "*"}, None]
    },
}
OF_QUEUES_THEMSELVES = {
    ("queue", "Doorbell"): {
        "FifoQueue": [True, "true"],
        "RedrivePolicy.maxReceiveCount": [4, None],
        "SqsManagedSseEnabled": [False, None],
    },
    ("dead-letter queue", "DoorbellFailures"): {
        "MessageRetentionPeriod": [86_400, None],
        "SqsManagedSseEnabled": [False, None],
    },
}
OF_STORES = {
    ("table", "Table"): {RECOVERY.property: [False, None], "MultiRegionConsistency": ["STRONG"]},
    ("state", "StateTable"): {
        RECOVERY.property: [False, None],
        "StreamSpecification": [{"StreamViewType": "KEYS_ONLY"}],
    },
    ("table or bucket", "FailureBucket", None): {
        "DeletionPolicy": ["Delete", None],
        "UpdateReplacePolicy": ["Delete", None],
    },
    ("bucket", "FailureBucket"): {
        "BucketEncryption.ServerSideEncryptionConfiguration": [[], None],
        "PublicAccessBlockConfiguration.BlockPublicAcls": [False, None],
        "PublicAccessBlockConfiguration.BlockPublicPolicy": [False, None],
        "PublicAccessBlockConfiguration.IgnorePublicAcls": [False, None],
        "PublicAccessBlockConfiguration.RestrictPublicBuckets": [False, None],
    },
    ("log", "ProjectorLog"): {"RetentionInDays": ["always", None], "LogGroupClass": ["INFREQUENT_ACCESS"]},
}
OF_ALARMS = {
    ("alarm", "ProjectorAge"): {"ComparisonOperator": ["LessThanThreshold", None], "ActionsEnabled": [False]},
    ("alarm on polls", "ProjectorStandsStill"): {
        "ComparisonOperator": ["LessThanThreshold"],
        "ActionsEnabled": [False],
        "TreatMissingData": ["notBreaching"],
    },
    ("alarm_rules", "ProjectorRefused"): {
        "Statistic": ["SampleCount", None],
        "Unit": ["Seconds"],
        "TreatMissingData": ["breaching"],
    },
}
"""By resource of ``RULES``, the one of the template, and where its properties are: None, beside ``Properties``."""


def changed(content, path, value):
    """Sets what lies at a path, or takes it away."""
    *before, last = path.split(".")
    for step in before:
        content = content[int(step)] if step.isdecimal() else content.setdefault(step, {})
    if value is None:
        content.pop(last, None)
    else:
        content[last] = value


def named_by_check(resource, path, value, *, level="wrong", before="Properties", template=WHOLE):
    """Whether the check names a value of a template."""
    template = deepcopy(template)
    full = f"{before}.{path}" if before else path
    changed(template["Resources"][resource], full, value)
    found = check_template(APP, __name__, TemplateFile(template))
    return any(each.level == level and each.resource == resource and full in each.path for each in found)


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


def wrong_values(*tables):
    """Each wrong value with its resource of ``RULES``."""
    for resources in tables:
        for (kind, resource, *inner), properties in resources.items():
            below = "" if inner == [None] else ".".join(["Properties", *inner])
            for path, values in properties.items():
                for value in values:
                    yield pytest.param(kind, resource, below, path, value, id=f"{kind} {path} {value}")


def assert_named(kind, resource, below, path, value):
    level = next((rule.level for rule in RULES.get(kind, ()) if rule.property == path), "wrong")
    assert named_by_check(resource, path, value, level=level, before=below)


@pytest.mark.parametrize(("kind", "resource", "below", "path", "value"), [*wrong_values(OF_FUNCTIONS)])
def test_a_wrong_value_of_a_function_or_its_role_is_named_by_the_check(kind, resource, below, path, value):
    assert_named(kind, resource, below, path, value)


@pytest.mark.parametrize(("kind", "resource", "below", "path", "value"), [*wrong_values(OF_QUEUES_THEMSELVES)])
def test_a_wrong_value_of_a_queue_is_named_by_the_check(kind, resource, below, path, value):
    assert_named(kind, resource, below, path, value)


@pytest.mark.parametrize(("kind", "resource", "below", "path", "value"), [*wrong_values(OF_STORES)])
def test_a_wrong_value_of_a_table_a_bucket_or_a_log_is_named_by_the_check(kind, resource, below, path, value):
    assert_named(kind, resource, below, path, value)


def polled():
    """The template with an alarm on one metric alone, in place of an expression, for a mapping that does not poll."""
    template = deepcopy(WHOLE)
    given = template["Resources"]["ProjectorStandsStill"]["Properties"]
    (metric,) = [each["MetricStat"] for each in given.pop("Metrics") if each["Id"] == "polls"]
    given |= {**metric["Metric"], "Statistic": metric["Stat"], "Period": 3600, "TreatMissingData": "breaching"}
    return template


@pytest.mark.parametrize(("kind", "resource", "below", "path", "value"), [*wrong_values(OF_ALARMS)])
def test_a_wrong_value_of_an_alarm_is_named_by_the_check(kind, resource, below, path, value):
    template = polled() if path == "TreatMissingData" else WHOLE
    assert named_by_check(resource, path, value, before=below, template=template)


def test_an_alarm_on_one_metric_that_rises_without_a_poll_is_right():
    assert [*map(str, check_template(APP, __name__, TemplateFile(polled())))] == []


def test_every_rule_has_wrong_values_here():
    assert OF_STREAMS.keys() == mapping_rules(kinesis=False).keys() - {"Enabled"}
    assert OF_QUEUES.keys() == MESSAGE_RULES.keys() - {"Enabled"}
    tables = OF_FUNCTIONS | OF_QUEUES_THEMSELVES | OF_STORES | OF_ALARMS
    named = {kind: {*properties} for (kind, *_), properties in tables.items()}
    for kind, rules in RULES.items():
        if not kind.startswith("mapping"):
            assert named[kind] == {rule.property for rule in rules}, kind
    related = alarm_rules(STREAM_AGE)
    assert named["alarm_rules"] | named["alarm"] >= {rule.property for rule in related}


def test_a_rule_of_a_service_names_its_page():
    for rules in RULES.values():
        for rule in rules:
            assert rule.source == OURS or re.match(r"\w.* (API Reference|\w+ Guide), \w", rule.source), rule


@pytest.mark.parametrize(
    ("kind", "named", "path"),
    [("AWS::Lambda::Url", "TargetFunctionArn", "AuthType"), ("AWS::Lambda::Permission", "FunctionName", "Principal")],
)
def test_who_may_call_a_function_is_named_by_the_check(kind, named, path):
    template = deepcopy(WHOLE)
    template["Resources"]["Way"] = {"Type": kind, "Properties": {named: {"Ref": "Projector"}}}
    assert named_by_check("Way", path, {"AuthType": "NONE", "Principal": "*"}[path], template=template)


def test_a_timeout_with_little_more_than_the_last_seconds_is_advice():
    assert named_by_check("Projector", "Timeout", 23, level="advice")
    assert named_by_check("Verifier", "Timeout", 60, level="advice")


def test_a_destination_of_another_type_is_wrong_to_the_check():
    assert named_by_check("Projector", f"{STREAM}.{DESTINATION_TYPE.property}", "SQS")


def test_another_python_is_wrong_to_the_check():
    assert named_by_check("Projector", "Runtime", "python3.12")


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
        ("Doorbell", "FifoQueue", True, lambda it: it.queues["doorbell"].update(FifoQueue="true")),
        (
            "Doorbell",
            "SqsManagedSseEnabled",
            False,
            lambda it: it.queues["doorbell"].update(SqsManagedSseEnabled="false"),
        ),
        ("DoorbellFailures", "SqsManagedSseEnabled", None, lambda it: it.queues["dead"].pop("SqsManagedSseEnabled")),
        ("Table", "MultiRegionConsistency", "STRONG", lambda it: it.strong.add("orders")),
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


PRINTED = [
    *chain(*RULES.values()),
    *time_to_live_rules("expires"),
    *alarm_rules(STREAM_AGE),
    visibility_rule(60, "Projector"),
    runtime_rule("python3.13"),
    *map(ample_timeout_rule, TIMEOUT_SECONDS),
]


@pytest.mark.parametrize("rule", PRINTED, ids=[rule.property for rule in PRINTED])
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
