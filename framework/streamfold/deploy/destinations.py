"""Destinations of messages in a template: a parameter each, or a bus, topic or queue that the stack makes.

A destination whose parameter is empty is made. The parameter is the ARN of one that exists, also of another account,
whose policy has to allow the role of the function.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from streamfold.deploy import rules
from streamfold.deploy.functions import logical_id
from streamfold.deploy.rules import as_properties
from streamfold.derivations.calls import Place
from streamfold.derivations.derivation import derivation
from streamfold.parking import s3_location
from streamfold.routes.route import Route
from streamfold.settings import PUBLISH_PREFIX, environment_name

DESTINATION = "destination"
"""The places of a route's permissions that are destinations."""
SORTS = {"eventbridge": "EventBus", "sns": "MessageTopic", "sqs": "MessageQueue"}
"""The end of a resource's name, by service."""
ARNS = {"eventbridge": "events", "sns": "sns", "sqs": "sqs"}
ACTIONS = {"eventbridge": "events:PutEvents", "sns": "sns:Publish", "sqs": "sqs:SendMessage"}
FIFO = ".fifo"
KEY_PARAMETER, KEY_CONDITION = "DestinationKeyArn", "OwnDestinationKey"


class DeployedDestination(NamedTuple):
    """A destination as a template has it."""

    service: str
    name: str

    @property
    def resource(self) -> str:
        return logical_id(self.name) + SORTS[self.service]

    @property
    def parameter(self) -> str:
        return f"{self.resource}Arn"

    @property
    def condition(self) -> str:
        return f"Makes{self.resource}"

    @property
    def variable(self) -> str:
        return PUBLISH_PREFIX + environment_name(self.name)

    @property
    def arn(self) -> dict[str, Any]:
        """Its ARN, as a value of a template."""
        own = {"Ref": self.resource} if self.service == "sns" else {"Fn::GetAtt": [self.resource, "Arn"]}
        return {"Fn::If": [self.condition, own, {"Ref": self.parameter}]}

    @property
    def made(self) -> dict[str, Any]:
        """The resource of one that the stack makes."""
        real, fifo = {"Fn::Sub": f"${{AWS::StackName}}-{self.name}"}, self.name.endswith(FIFO)
        if self.service == "eventbridge":
            return {"Type": "AWS::Events::EventBus", "Condition": self.condition, "Properties": {"Name": real}}
        if self.service == "sns":
            named = {"TopicName": real, "FifoTopic": True} if fifo else {}
            return {"Type": "AWS::SNS::Topic", "Condition": self.condition, "Properties": named}
        named = {"QueueName": real, "FifoQueue": True} if fifo else {}
        properties = {**as_properties([rules.ENCRYPTED, rules.KEPT_LETTERS]), **named}
        return {"Type": "AWS::SQS::Queue", "Condition": self.condition, "Properties": properties}


def destinations_of(routes: Iterable[Route]) -> list[DeployedDestination]:
    """The destinations of routes, each once."""
    names = {
        call.place.name
        for route in routes
        for call in derivation(route).process_calls(route)
        if call.place.kind == DESTINATION
    }
    return [destination_named(name) for name in sorted(names)]


def destination_named(place: str) -> DeployedDestination:
    """The destination of a place's name, ``sns:orders``."""
    service, _, name = place.partition(":")
    return DeployedDestination(service, name)


def made_destinations(routes: Iterable[Route]) -> dict[str, Any]:
    """The resources of the destinations that the stack may make."""
    return {each.resource: each.made for each in destinations_of(routes)}


def addresses_of_destinations(routes: Iterable[Route]) -> dict[str, Any]:
    """The variables with the addresses of destinations."""
    return {each.variable: each.arn for each in destinations_of(routes)}


def destination_parameters(routes: Iterable[Route]) -> dict[str, Any]:
    found = destinations_of(routes)
    parameters = {
        each.parameter: {
            "Type": "String",
            "Default": "",
            "AllowedPattern": f"^(arn:aws[a-z0-9-]*:{ARNS[each.service]}:.+)?$",
            "Description": f"The ARN of {each.service}:{each.name}, of any account; empty, and the stack makes it",
        }
        for each in found
    }
    key = {
        "Type": "String",
        "Default": "",
        "Description": "The key (KMS) of encrypted destinations of your own; empty: AWS encrypts them",
    }
    return {**parameters, KEY_PARAMETER: key} if found else {}


def destination_conditions(routes: Iterable[Route]) -> dict[str, Any]:
    found = destinations_of(routes)
    made = {each.condition: {"Fn::Equals": [{"Ref": each.parameter}, ""]} for each in found}
    own = {KEY_CONDITION: {"Fn::Not": [{"Fn::Equals": [{"Ref": KEY_PARAMETER}, ""]}]}}
    return {**made, **own} if found else {}


def key_statements(routes: Iterable[Route]) -> list[dict[str, Any]]:
    """What messages to encrypted destinations take of their key (SQS Developer Guide, key management)."""
    statement = {
        "Sid": "UseDestinationKey",
        "Effect": "Allow",
        "Action": ["kms:GenerateDataKey", "kms:Decrypt"],
        "Resource": {"Ref": KEY_PARAMETER},
    }
    return [{"Fn::If": [KEY_CONDITION, statement, {"Ref": "AWS::NoValue"}]}] if destinations_of(routes) else []


def arn_for_messages(place: Place) -> dict[str, Any] | None:
    """The ARN of a destination, or of the objects with large data; None for another place."""
    if place.kind == DESTINATION:
        return destination_named(place.name).arn
    if place.kind != "large data":
        return None
    bucket, prefix = s3_location(place.name)
    return {"Fn::Sub": f"arn:${{AWS::Partition}}:s3:::{bucket}/{prefix}*"}


def notes_of_destinations(routes: Sequence[Route], role: str) -> Iterator[str]:
    """What the owner of a destination in another account has to allow; ``role`` is the name of the role's resource."""
    for each in destinations_of(routes):
        statement = {
            "Effect": "Allow",
            "Principal": {"AWS": f"${{{role}.Arn}}"},
            "Action": ACTIONS[each.service],
            "Resource": f"${{{each.parameter}}}",
        }
        yield (
            f"{each.service}:{each.name} of another account ({each.parameter}) needs this statement in its own policy: "
            f"{json.dumps(statement)}"
        )
