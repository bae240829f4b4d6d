"""The services of AWS: the form of requests, which botocore checks, sizes, and what each answer means."""

import json

import pytest

from streamfold.derivations.publish.addresses import address_of
from streamfold.derivations.publish.envelope import Message, MessageAttribute
from streamfold.derivations.publish.options import NamedDestination, Published
from streamfold.derivations.publish.targets import DestinationThrottled, RequestRefused, open_target
from streamfold.errors import EngineError, EngineUnavailable, SettingsError
from streamfold.routes.route import Route
from streamfold.settings import Settings
from streamfold.testing import change
from tests.helpers.publishers import ORDER
from tests.helpers.services import LOST, Service, made

ACCOUNT = "123456789012"
BUS = f"arn:aws:events:eu-west-1:{ACCOUNT}:event-bus/shop"
NEW_BUS = f"arn:aws:events:eu-west-1:{ACCOUNT}:event-busv2/shop/{'a' * 25}"
TOPIC, FIFO_TOPIC = f"arn:aws:sns:eu-west-1:{ACCOUNT}:orders", f"arn:aws:sns:eu-west-1:{ACCOUNT}:orders.fifo"
QUEUE = f"https://sqs.eu-west-1.amazonaws.com/{ACCOUNT}/orders"
FIFO_QUEUE = f"{QUEUE}.fifo"
CHANGE = change(ORDER, order_id="1", new={"status": "new"})


def target(text, *answers, size=None):
    service = {"event": "eventbridge", "sns": "sns", "http": "sqs"}[
        "http" if text.startswith("http") else "event" if ":events:" in text else "sns"
    ]
    to = NamedDestination(service, "shop")
    name = {"eventbridge": "events", "sns": "sns", "sqs": "sqs"}[service]
    client = Service("eventbridgev2" if "busv2" in text else name, answers, size)
    address = address_of(to, Settings(destinations={"shop": text}), "Publisher")
    return open_target(address, made({client.name: client})), client


def messages(count=2, data='{"a":1}'):
    options = Published(NamedDestination("sqs", "shop"), "order.inserted", source="shop")
    route = Route("orders", None, (ORDER,), (), None, "here:1", options=options)
    given = (MessageAttribute("type", "String", "order.inserted"), MessageAttribute("count", "Number", "1"))
    return [
        Message(route, (CHANGE,), f"id{number}", f"group{number}", "order.inserted", '{"id":1', data, given)
        for number in range(count)
    ]


@pytest.mark.parametrize("text", [BUS, NEW_BUS, TOPIC, FIFO_TOPIC, QUEUE, FIFO_QUEUE])
def test_each_service_takes_its_requests(text):
    found, client = target(text)
    assert found.send(messages()) == [None, None]
    (request,) = client.requests
    assert text in json.dumps(request, default=str)
    fifo = "id0" in json.dumps(client.taken[0], default=str)
    assert fifo == (text in (NEW_BUS, FIFO_TOPIC, FIFO_QUEUE))


def test_an_event_has_the_type_and_the_envelope_as_its_detail():
    found, client = target(BUS)
    found.send(messages(1))
    (entry,) = client.taken
    assert entry == {
        "Source": "shop",
        "DetailType": "order.inserted",
        "Detail": '{"id":1,"data":{"a":1}}',
        "Time": CHANGE.at,
        "EventBusName": BUS,
    }


def test_a_message_has_attributes_for_filter_policies():
    found, client = target(QUEUE)
    found.send(messages(1))
    assert client.taken[0]["MessageAttributes"]["count"] == {"DataType": "Number", "StringValue": "1"}


@pytest.mark.parametrize("text", [BUS, NEW_BUS, TOPIC, QUEUE])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ThrottlingException", DestinationThrottled),
        ("RequestThrottled", DestinationThrottled),
        ("KmsThrottled", DestinationThrottled),
        ("InternalFailure", EngineUnavailable),
        ("InternalError", EngineUnavailable),
        ("AccessDeniedException", EngineError),
        ("AWS.SimpleQueueService.NonExistentQueue", EngineError),
        ("KMSDisabledException", EngineError),
        ("InvalidMessageContents", RequestRefused),
    ],
)
def test_a_refused_entry_fails_alone_with_the_meaning_of_its_code(text, code, kind):
    found, client = target(text, [None, code])
    one, other = found.send(messages())
    assert (one, type(other)) == (None, kind)
    assert len(client.taken) == 1


@pytest.mark.parametrize("text", [BUS, NEW_BUS, TOPIC, QUEUE])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (("ThrottlingException", 400), DestinationThrottled),
        (("ServiceUnavailable", 503), EngineUnavailable),
        (("AccessDenied", 403), EngineError),
        (("NotFound", 404), EngineError),
        (("BatchRequestTooLong", 400), RequestRefused),
        (LOST, EngineUnavailable),
    ],
)
def test_a_refused_request_raises_the_meaning_of_its_code(text, answer, kind):
    found, _ = target(text, answer)
    with pytest.raises(kind) as raised:
        found.send(messages())
    assert type(raised.value) is kind


def test_an_entry_without_an_answer_counts_as_not_sent():
    found, _ = target(QUEUE, [None, "nothing"])
    _, other = found.send(messages())
    assert type(other) is EngineUnavailable


def test_a_fault_of_the_service_itself_passes():
    found, _ = target(QUEUE, ["Strange"])
    assert type(found.send(messages(1))[0]) is EngineUnavailable


@pytest.mark.parametrize(
    ("text", "size", "limits"),
    [
        (BUS, None, (10, 999_999, 999_999)),
        (NEW_BUS, None, (100, 999_999, 999_999)),
        (TOPIC, None, (10, 262_144, 262_144)),
        (TOPIC, 1_048_576, (10, 1_048_576, 1_048_576)),
        (TOPIC, "denied", (10, 262_144, 262_144)),
        (QUEUE, None, (10, 1_048_576, 1_048_576)),
        (QUEUE, 65_536, (10, 1_048_576, 65_536)),
        (QUEUE, "denied", (10, 1_048_576, 1_048_576)),
    ],
)
def test_the_limits_are_those_of_the_destination_which_is_asked_once(text, size, limits):
    found, client = target(text, size=size)
    assert (found.limits, found.limits) == (limits, limits)
    assert client.asked == (text in (TOPIC, QUEUE))


def test_the_size_of_a_message_counts_bytes_and_attributes():
    (one,) = messages(1, '"é"')
    assert target(QUEUE)[0].bytes_of(one) == len('{"id":1,"data":"é"}'.encode()) + len(
        "typeStringorder.inserted"
    ) + len("countNumber1")
    assert target(BUS)[0].bytes_of(one) == len('{"id":1,"data":"é"}'.encode()) + len("shoporder.inserted") + 14


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("eventbridge:shop", TOPIC),
        ("eventbridge:shop", f"arn:aws:events:eu-west-1:{ACCOUNT}:rule/shop"),
        ("sns:shop", BUS),
        ("sns:shop", f"{TOPIC}:subscription"),
        ("sqs:shop", TOPIC),
        ("sqs:shop", "http://sqs.eu-west-1.amazonaws.com/1/orders"),
        ("sqs:shop", "https://sqs.eu-west-1.amazonaws.com/orders"),
        ("sqs:shop", "https://[::1/1/orders"),
        ("sqs:shop.fifo", QUEUE),
    ],
)
def test_an_address_of_another_service_is_refused(to, text):
    destination = NamedDestination(*to.split(":"))
    with pytest.raises(SettingsError, match="STREAMFOLD_PUBLISH_SHOP"):
        address_of(destination, Settings(destinations={destination.name: text}), "Publisher")


def test_a_destination_without_a_setting_is_refused_with_its_variable():
    with pytest.raises(SettingsError, match="STREAMFOLD_PUBLISH_SHOP is not set"):
        address_of(NamedDestination("sns", "shop"), Settings(), "Publisher 'orders'")


def test_the_arn_of_a_queue_becomes_its_url():
    settings = Settings.from_environment({"STREAMFOLD_PUBLISH_SHOP": f"arn:aws-cn:sqs:cn-north-1:{ACCOUNT}:orders"})
    found = address_of(NamedDestination("sqs", "shop"), settings, "Publisher")
    assert (found.text, found.region) == (f"https://sqs.cn-north-1.amazonaws.com.cn/{ACCOUNT}/orders", "cn-north-1")


def test_the_url_of_a_queue_gives_its_arn_and_an_emulator_its_endpoint():
    def found(text):
        return address_of(NamedDestination("sqs", "shop"), Settings(destinations={"shop": text}), "Publisher")

    assert found(QUEUE).arn == f"arn:aws:sqs:eu-west-1:{ACCOUNT}:orders"
    local = found("http://localhost:9324/000000000000/orders")
    assert (local.arn, local.endpoint_url) == (None, "http://localhost:9324")
