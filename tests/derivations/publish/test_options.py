"""Declarations of publishers: what is taken, and what is refused with the line to write instead."""

import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold.errors import DeclarationError
from tests.helpers.publishers import ORDER

TOTAL = Key("TOTAL#{order_id}", "TOTAL")


def declared(*sources, **options):
    router = Router()
    router.publish(*(sources or [ORDER]), **{"to": "sns:orders", "type": "order.{event}", **options})
    return App("shop", routers=[router]).routes[0]


def test_a_publisher_without_a_function_is_named_after_its_source():
    route = declared()
    assert (route.name, route.kind.name, route.function) == ("publish_order_metadata", "publish", None)
    assert route.kind.outside_locations(route) == ("sns:orders",)
    assert __file__ in route.declared_at


def test_a_function_takes_the_place_of_the_standard_envelope():
    router = Router()

    @router.publish(ORDER, to="sns:orders", type="order.paid")
    def paid(change):
        return {}

    (route,) = App("shop", routers=[router]).routes
    assert (route.name, route.function) == ("paid", paid)


def test_the_source_of_an_envelope_is_the_application_unless_the_declaration_has_one():
    assert declared().options.source == "shop"
    assert declared(source="https://shop.example/").options.source == "https://shop.example/"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "orders"}, "eventbridge:NAME"),
        ({"to": "kafka:orders"}, "eventbridge:NAME"),
        ({"to": "sns:"}, "eventbridge:NAME"),
        ({"type": ""}, "1 to 128"),
        ({"type": "order.{status}"}, "{event}"),
        ({"type": "{event" + "x" * 130}, "{event}"),
        ({"type": "x" * 121 + "{event}"}, "1 to 128"),
        ({"source": "aws.shop"}, "aws."),
        ({"source": "a b"}, "URI reference"),
        ({"redact": "email"}, "a list"),
        ({"redact": ["PK"]}, "subject"),
        ({"data": ["newest"]}, "new, old, changes"),
        ({"data_version": 2}, 'data_version="2"'),
        ({"attributes": list("abcdef")}, "at most 5"),
        ({"attributes": ["type"]}, "already"),
        ({"attributes": ["email"], "redact": ["email"]}, "redacted"),
        ({"large": "bucket"}, "s3://BUCKET/PREFIX"),
        ({"once": 1}, "True or False"),
        ({"at_once": 0}, "at_once="),
        ({"events": ["CREATED"]}, "INSERT"),
        ({"changed": "status"}, "a list"),
    ],
)
def test_an_option_that_cannot_work_is_refused_with_what_to_write(options, words):
    with pytest.raises(DeclarationError) as raised:
        declared(**options)
    assert words in str(raised.value)


def test_an_application_whose_name_is_no_source_needs_one():
    router = Router()
    router.publish(ORDER, to="sns:orders", type="order")
    with pytest.raises(DeclarationError, match=r"aws\."):
        App("aws.shop", routers=[router])


def test_an_option_of_the_standard_envelope_is_refused_beside_a_function():
    router = Router()
    with pytest.raises(DeclarationError, match="redact= or data="):

        @router.publish(ORDER, to="sns:orders", type="order", redact=["email"])
        def paid(change):
            return {}


def test_a_function_that_yields_is_refused():
    router = Router()
    with pytest.raises(DeclarationError, match="one message, or None"):

        @router.publish(ORDER, to="sns:orders", type="order")
        def paid(change):
            yield {}


def test_a_function_that_is_async_is_refused():
    router = Router()
    with pytest.raises(DeclarationError, match="one message, or None"):

        @router.publish(ORDER, to="sns:orders", type="order")
        async def paid(change):
            return {}


@pytest.mark.parametrize("other", ["sqs:orders", "sns:Orders", "sns:ORDERS"])
def test_two_destinations_of_one_variable_are_refused(other):
    router = Router()
    router.publish(ORDER, to="sns:orders", type="order", name="one")
    router.publish(ORDER, to=other, type="order", name="two")
    with pytest.raises(DeclarationError, match="STREAMFOLD_PUBLISH_ORDERS"):
        App("shop", routers=[router])


def test_a_dot_and_a_dash_become_one_variable():
    router = Router()
    router.publish(ORDER, to="sqs:x.fifo", type="order", name="one")
    router.publish(ORDER, to="sqs:x-fifo", type="order", name="two")
    with pytest.raises(DeclarationError, match="STREAMFOLD_PUBLISH_X_FIFO"):
        App("shop", routers=[router])


def test_rows_are_no_source_of_a_publisher():
    router = Router()

    @router.view(ORDER, into=TOTAL)
    def totals(order):
        return Row(total=Sum(1))

    router.publish(TOTAL, to="sns:orders", type="total")
    with pytest.raises(DeclarationError):
        App("shop", routers=[router])
