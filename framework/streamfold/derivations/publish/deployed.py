"""What a function needs to publish: the calls of each destination."""

from streamfold.derivations.calls import STATE as STATE_PLACE
from streamfold.derivations.calls import Permission, Permissions, Place, dynamodb
from streamfold.derivations.publish.options import EVENTBRIDGE, SNS, SQS, published_of
from streamfold.routes.route import Route

ACTIONS = {
    EVENTBRIDGE: ("events:PutEvents",),
    SNS: ("sns:Publish", "sns:GetTopicAttributes"),
    SQS: ("sqs:SendMessage", "sqs:GetQueueAttributes"),
}
"""The calls of each service; those that send several messages are permitted as those of one (Service Authorization
Reference)."""


def process_calls(route: Route) -> Permissions:
    """The calls of one publisher."""
    options = published_of(route)
    destination = Place("destination", str(options.to))
    calls = frozenset(Permission(action, destination) for action in ACTIONS[options.to.service])
    if options.large is not None:
        calls |= {Permission("s3:PutObject", Place("large data", options.large))}
    return calls | dynamodb(STATE_PLACE, "BatchGetItem", "PutItem") if options.once else calls
