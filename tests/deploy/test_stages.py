"""The page on stages: what it puts on top of the template reaches every service that functions call."""

import pytest

import handlers
from streamfold.deploy.check import check_template
from streamfold.deploy.functions import Deployment
from streamfold.deploy.template_file import TemplateFile
from tests.helpers.commands import ROOT
from tests.helpers.template import load_overlaid, load_template

OF_LAMBDA = {"logs"}
"""What Lambda does by itself, outside of the function's network."""
IN_THE_NETWORK = {"es"}
FUNCTIONS = ("Projector", "Spreader", "Searcher", "Verifier")


@pytest.fixture(scope="module")
def template():
    return load_overlaid((ROOT / "docs/stages.md").read_text("utf-8"))


def test_every_function_is_in_the_network_and_may_be(template):
    for name in FUNCTIONS:
        inside = template["Resources"][name]["Properties"]["VpcConfig"]
        assert inside["SubnetIds"] == [{"Ref": "SubnetA"}, {"Ref": "SubnetB"}]
        (managed,) = template["Resources"][f"{name}Role"]["Properties"]["ManagedPolicyArns"]
        assert managed["Fn::Sub"].endswith("/AWSLambdaVPCAccessExecutionRole")
    functions = {name for name, each in load_template()["Resources"].items() if each["Type"].endswith("::Function")}
    assert functions == set(FUNCTIONS)


def test_there_is_an_endpoint_for_every_service_that_functions_call(template):
    deployment = Deployment(handlers.app, handlers)
    mapped = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "dynamodb:GetRecords")
    called = {
        each.action.partition(":")[0]
        for function in deployment.functions
        for each in deployment.permissions(function)
        if each.action not in mapped
    }
    endpoints = [each for each in template["Resources"].values() if each["Type"] == "AWS::EC2::VPCEndpoint"]
    reached = {each["Properties"]["ServiceName"]["Fn::Sub"].rpartition(".")[2] for each in endpoints}
    assert called - OF_LAMBDA - IN_THE_NETWORK == reached
    for each in endpoints:
        assert each["Properties"]["VpcEndpointType"] == ("Interface" if "sqs" in str(each) else "Gateway")


def test_the_check_finds_nothing_wrong(template):
    found = check_template(handlers.app, "handlers", TemplateFile(template))
    assert [str(each) for each in found if each.level == "wrong"] == []


def test_functions_reach_endpoints_and_nobody_reaches_functions(template):
    groups = {name: template["Resources"][name]["Properties"] for name in ("FunctionGroup", "EndpointGroup")}
    assert "SecurityGroupIngress" not in groups["FunctionGroup"]
    (way_in,) = groups["EndpointGroup"]["SecurityGroupIngress"]
    assert (way_in["FromPort"], way_in["SourceSecurityGroupId"]) == (443, {"Ref": "FunctionGroup"})
    for each in template["Resources"].values():
        assert each["Type"] not in ("AWS::EC2::InternetGateway", "AWS::EC2::NatGateway")


def test_an_alias_that_shifts_traffic_is_accepted():
    template = load_template()
    shifts = {"Type": "Canary10Percent5Minutes", "Alarms": [{"Ref": "ProjectorErrors"}]}
    template["Resources"]["Projector"]["Properties"] |= {"AutoPublishAlias": "live", "DeploymentPreference": shifts}
    found = check_template(handlers.app, "handlers", TemplateFile(template))
    assert [str(each) for each in found if each.level == "wrong"] == []
