"""The template beside ``streamfold template --check``: its roles, its builds, and what docs/sources.md makes of it."""

import importlib
import json
import re

import pytest

from handlers import app
from streamfold.deploy.permissions import Role, permissions
from tests.helpers.template import ROOT, kinesis_template, load_template, properties

RESOURCES = load_template()["Resources"]
FUNCTIONS = [name for name, each in RESOURCES.items() if each["Type"] == "AWS::Serverless::Function"]
SPREADER = "Spreader"
ROLES = {
    "Projector": Role("stream", "main"),
    "Searcher": Role("stream", "search"),
    SPREADER: Role("queue", "main"),
    "Verifier": Role("verifier"),
}
"""The functions, as ``permissions`` knows them."""
SEARCH_DOMAIN = "arn:${AWS::Partition}:es:${AWS::Region}:${AWS::AccountId}:domain/${SearchDomain}"


@pytest.fixture(scope="module")
def template():
    return load_template()


def mapping_of(template, function):
    (event,) = properties(template, function)["Events"].values()
    assert event["Type"] == "DynamoDB"
    return event["Properties"]


def statements_of(template, function):
    policies = properties(template, f"{function}Role")["Policies"]
    return {statement["Sid"]: statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]}


@pytest.fixture(scope="module")
def mapping(template):
    return mapping_of(template, "Projector")


@pytest.fixture(scope="module")
def statements(template):
    return statements_of(template, "Projector")


def resource_of(place, function):
    """The resource that the template has for a place."""
    return {
        "table": {"Fn::GetAtt": ["Table", "Arn"]},
        "stream": {"Fn::GetAtt": ["Table", "StreamArn"]},
        "state": {"Fn::GetAtt": ["StateTable", "Arn"]},
        "failure bucket": {"Fn::GetAtt": ["FailureBucket", "Arn"]},
        "failures": {"Fn::Sub": "${FailureBucket.Arn}/aws/lambda/*"},
        "parked": {"Fn::Sub": "${FailureBucket.Arn}/parked/*"},
        "archive": {"Fn::Sub": "${ArchiveBucket.Arn}/*"},
        "queue": {"Fn::GetAtt": ["Doorbell", "Arn"]},
        "search": {"Fn::Sub": f"{SEARCH_DOMAIN}/{place.name}"},
        "log": {"Fn::GetAtt": [f"{function}Log", "Arn"]},
    }[place.kind]


def listed(value):
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_may_do_exactly_what_follows_from_its_routes(template, function):
    statements = statements_of(template, function).values()
    assert {statement["Effect"] for statement in statements} == {"Allow"}
    granted = [
        (action, str(resource))
        for statement in statements
        for action in listed(statement["Action"])
        for resource in listed(statement["Resource"])
    ]
    needed = {
        (action, str(resource_of(place, function)))
        for action, place in permissions(app, ROLES[function])
        if place.kind != "queue" or SPREADER in RESOURCES  # which may be left out
    }
    assert sorted(granted) == sorted(needed)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_parameter_lets_older_code_run_in_all_functions_and_is_off(template, function):
    parameter = template["Parameters"]["OlderCode"]
    assert properties(template, function)["Environment"]["Variables"]["STREAMFOLD_OLDER_CODE"] == {"Ref": "OlderCode"}
    assert (parameter["Default"], parameter["AllowedValues"]) == ("off", ["off", "on"])


def test_what_searches_is_there_only_with_an_endpoint(template):
    (name,) = [name for name, condition in template["Conditions"].items() if "SearchEndpoint" in str(condition)]
    assert template["Parameters"]["SearchEndpoint"]["Default"] == ""
    names = {name, *(each for each, condition in template["Conditions"].items() if f"'{name}'" in str(condition))}
    conditional = {each for each, resource in template["Resources"].items() if resource.get("Condition") in names}
    assert conditional == {each for each in template["Resources"] if each.startswith("Search")}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_is_found_and_has_a_build_target(template, function):
    resource = template["Resources"][function]
    module, _, name = resource["Properties"]["Handler"].rpartition(".")
    entries = (app.lambda_handler, app.jobs_handler, app.verify_handler)
    assert getattr(importlib.import_module(module), name) in entries
    assert resource["Metadata"]["BuildMethod"] == "makefile"
    targets = re.findall(r"^(build-[^:]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert f"build-{function}" in " ".join(targets).split()


# What docs/sources.md puts on top of it, for a table whose changes go to Kinesis.


@pytest.fixture(scope="module")
def on_kinesis():
    return kinesis_template()


@pytest.fixture(scope="module")
def kinesis_mapping(on_kinesis):
    (event,) = properties(on_kinesis, "Projector")["Events"].values()
    assert event["Type"] == "Kinesis"
    return event["Properties"]


def test_kinesis_gets_changes_of_the_table_in_microseconds(on_kinesis):
    table = properties(on_kinesis, "Table")
    assert table["KinesisStreamSpecification"] == {
        "StreamArn": {"Fn::GetAtt": ["Changes", "Arn"]},
        "ApproximateCreationDateTimePrecision": "MICROSECOND",
    }
    assert table["KeySchema"] == properties(load_template(), "Table")["KeySchema"]


def test_failed_record_of_kinesis_fails_alone_and_does_not_stop_its_shard(mapping, kinesis_mapping, on_kinesis):
    same = {"StartingPosition", "FunctionResponseTypes", "BisectBatchOnFunctionError", "DestinationConfig"}
    assert {name: kinesis_mapping[name] for name in same} == {name: mapping[name] for name in same}
    assert kinesis_mapping["Stream"] == {"Fn::GetAtt": ["Changes", "Arn"]}
    kept_seconds = properties(on_kinesis, "Changes")["RetentionPeriodHours"] * 60 * 60
    assert kinesis_mapping["MaximumRecordAgeInSeconds"] <= kept_seconds / 2


def test_alarms_and_the_dashboard_name_a_mapping_that_is_there_on_kinesis_too(on_kinesis):
    made = {f"Projector{event}" for event in properties(on_kinesis, "Projector")["Events"]}
    named = set(re.findall(r"Projector\w*Stream\b", json.dumps(on_kinesis["Resources"])))
    assert named == made


def test_function_may_read_that_stream_of_kinesis_and_no_other(on_kinesis, statements):
    policies = properties(on_kinesis, "ProjectorRole")["Policies"]
    found = {statement["Sid"]: statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]}
    assert found["ReadStream"]["Resource"] == {"Fn::GetAtt": ["Changes", "Arn"]}
    assert all(action.startswith("kinesis:") for action in found["ReadStream"]["Action"])
    assert {sid: found[sid] for sid in found if sid != "ReadStream"} == {
        sid: statements[sid] for sid in statements if sid != "ReadStream"
    }
