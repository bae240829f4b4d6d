"""Destinations of messages in a template: parameters, what the stack makes, permissions, and another account's side."""

import json
import sys
from types import ModuleType

import pytest

from streamfold import App, Key, Router
from streamfold.deploy.check import check_template
from streamfold.deploy.doctor import destination_arn
from streamfold.deploy.functions import Deployment
from streamfold.deploy.permissions import Place, Role, permissions
from streamfold.deploy.sam import SamTemplate, notes, plain
from streamfold.deploy.template_file import TemplateFile
from streamfold.settings import Settings

ORDER = Key("ORDER#{order_id}", "METADATA")


@pytest.fixture
def template(monkeypatch):
    router = Router()
    router.publish(ORDER, to="eventbridge:shop", type="order.{event}", name="events", large="s3://big/orders")
    router.publish(ORDER, to="sns:orders.fifo", type="order.{event}", name="topics")
    router.publish(ORDER, to="sqs:reminders", type="order.{event}", name="queues", once=True)
    app = App("shop", routers=[router])
    module = ModuleType("publishing_handlers")
    for name in ("lambda_handler", "jobs_handler", "verify_handler"):
        setattr(module, name, getattr(app, name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return SamTemplate(Deployment(app, module))


def statements(template):
    policy = template.content["Resources"]["ProjectorRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    return {each["Sid"]: each for each in policy["Statement"] if "Sid" in each}


def test_the_check_finds_nothing_in_the_generated_template(template):
    file = TemplateFile(json.loads(json.dumps(template.content)))
    assert check_template(template.deployment.app, "publishing_handlers", file) == []


def test_the_check_finds_a_destination_that_the_role_may_not_reach(template):
    content = json.loads(json.dumps(template.content))
    policy = content["Resources"]["ProjectorRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    policy["Statement"] = [each for each in policy["Statement"] if each.get("Sid") != "DestinationEventbridgeShop"]
    found = check_template(template.deployment.app, "publishing_handlers", TemplateFile(content))
    assert any("events:PutEvents" in str(each) for each in found)


def test_a_destination_is_made_unless_its_parameter_names_one(template):
    content = template.content
    assert content["Conditions"]["MakesShopEventBus"] == {"Fn::Equals": [{"Ref": "ShopEventBusArn"}, ""]}
    made = {
        name: each["Type"]
        for name, each in content["Resources"].items()
        if each.get("Condition", "").startswith("Makes")
    }
    assert made == {
        "ShopEventBus": "AWS::Events::EventBus",
        "OrdersFifoMessageTopic": "AWS::SNS::Topic",
        "RemindersMessageQueue": "AWS::SQS::Queue",
    }
    assert content["Resources"]["OrdersFifoMessageTopic"]["Properties"]["FifoTopic"] is True


def test_the_function_gets_the_address_and_may_send_there(template):
    variables = template.content["Resources"]["Projector"]["Properties"]["Environment"]["Variables"]
    assert variables["STREAMFOLD_PUBLISH_SHOP"] == statements(template)["DestinationEventbridgeShop"]["Resource"]
    own = {sid: each["Action"] for sid, each in statements(template).items() if sid.startswith(("Dest", "Large"))}
    assert own == {
        "DestinationEventbridgeShop": ["events:PutEvents"],
        "DestinationSnsOrdersFifo": ["sns:GetTopicAttributes", "sns:Publish"],
        "DestinationSqsReminders": ["sqs:GetQueueAttributes", "sqs:SendMessage"],
        "LargeDataS3BigOrders": ["s3:PutObject"],
    }


def test_encrypted_destinations_take_their_key_where_one_is_given(template):
    policy = template.content["Resources"]["ProjectorRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    (condition, statement, _) = policy["Statement"][-1]["Fn::If"]
    assert condition == "OwnDestinationKey"
    assert statement["Action"] == ["kms:GenerateDataKey", "kms:Decrypt"]


def test_the_statement_of_the_other_account_s_side_is_printed(template):
    found = [each for each in notes(template) if "another account" in each]
    assert len(found) == 3
    assert '"Action": "sqs:SendMessage"' in found[-1]
    assert "${ProjectorRole.Arn}" in found[-1]


def test_only_claims_need_the_state(template):
    app = template.deployment.app
    for name, wanted in (("queues", {"dynamodb:BatchGetItem", "dynamodb:PutItem"}), ("events", set())):
        (route,) = [route for route in app.routes if route.name == name]
        assert {each.action for each in route.kind.process_calls(route) if each.place.kind == "state"} == wanted


def test_people_who_redrive_may_send(template):
    granted = permissions(template.deployment.app, Role("operate"))
    assert "events:PutEvents" in {each.action for each in granted}
    assert plain(TemplateFile(template.content), template.role("operate"))


def test_doctor_knows_the_arn_of_a_destination():
    settings = Settings(destinations={"shop": "arn:aws:events:eu-west-1:1:event-bus/shop", "orders": "https://x/1/o"})
    assert destination_arn(settings, Place("destination", "eventbridge:shop")) == settings.destinations["shop"]
    assert destination_arn(settings, Place("destination", "sqs:orders")) is None
