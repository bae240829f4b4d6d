"""Envelopes: what a reader of CloudEvents gets, ids that every delivery repeats, and JSON that loses nothing."""

import json
from base64 import b64decode, b64encode
from decimal import Decimal

import pytest
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from streamfold import App, Router
from streamfold.derivations.publish.envelope import json_text, message_of
from streamfold.errors import HandlerError
from streamfold.keys.table import MAIN
from streamfold.records.change import Origin
from streamfold.records.kinesis import KinesisChange
from streamfold.testing import KinesisTwin, change
from tests.helpers.publishers import ORDER
from tests.helpers.records import item, record
from tests.helpers.values import texts, values

PAID = {"old": {"status": "new"}, "new": {"status": "paid"}}


def message(given=None, app="shop", handler=None, **options):
    router = Router()
    options |= {} if handler is None else {"name": "paid"}
    declare = router.publish(ORDER, to="sqs:orders", type="order.{event}", **options)
    if handler is not None:
        declare(handler)
    (route,) = App(app, routers=[router]).routes
    return message_of(route, given or change(ORDER, order_id="1", **PAID), {"order_id": "1"})


def data(**options):
    return json.loads(message(**options).text)["data"]


def test_the_envelope_is_what_the_library_of_cloudevents_reads():
    event = JSONFormat().read(None, message(data_version="2").text.encode())
    assert event.get_specversion() == "1.0"
    assert (event.get_source(), event.get_type(), event.get_subject()) == ("shop", "order.modified", "ORDER#1|METADATA")
    assert event.get_time().isoformat() == "2026-03-01T09:00:00+00:00"
    assert event.get_datacontenttype() == "application/json"
    assert event.get_extension("dataversion") == "2"
    assert event.get_data()["new"]["status"] == "paid"


def test_the_standard_data_have_both_images_and_the_changed_attributes_as_histories_do():
    assert data() == {
        "event": "MODIFY",
        "key": {"PK": "ORDER#1", "SK": "METADATA"},
        "new": {"PK": "ORDER#1", "SK": "METADATA", "status": "paid"},
        "old": {"PK": "ORDER#1", "SK": "METADATA", "status": "new"},
        "changes": {"status": {"old": "new", "new": "paid"}},
    }


def test_a_declaration_chooses_the_sections_of_the_data():
    assert data(data=["changes"]).keys() == {"event", "key", "changes"}


def test_an_expiry_says_so():
    assert data(given=change(ORDER, order_id="1", old={"a": 1}, expired=True))["expired"] is True


def test_redacted_attributes_have_no_value_anywhere():
    found = message(redact=["status"])
    assert "paid" not in found.text
    assert json.loads(found.text)["data"]["changes"] == {"status": {"redacted": ["old", "new"]}}


def test_a_function_gives_the_data_and_nothing_for_none():
    assert data(handler=lambda change: {"status": change.new["status"]}) == {"status": "paid"}
    assert message(handler=lambda change: None) is None


def test_a_function_that_gives_no_mapping_is_refused():
    with pytest.raises(HandlerError, match="as a mapping"):
        message(handler=lambda change: ["paid"])


@pytest.mark.parametrize("value", [0.5, {1: 2}, object(), float("nan")])
def test_data_that_no_item_could_have_are_refused(value):
    with pytest.raises(HandlerError):
        message(handler=lambda change: {"value": value})


def test_ids_differ_by_application_handler_and_change_and_by_nothing_else():
    one = message()
    assert message().id == one.id
    assert message(data=["new"]).id == one.id
    others = [message(app="mall"), message(name="other"), message(change(ORDER, order_id="2", **PAID))]
    assert len({one.id, *(each.id for each in others)}) == 4
    assert len(one.id) <= 128
    assert one.id.isascii()
    assert one.group == message(name="other").group
    assert "ORDER" not in one.group


def test_attributes_for_filter_policies_are_of_the_data():
    found = message(
        attributes=["status", "count", "missing", "vip", "empty"],
        handler=lambda change: {
            "status": "paid",
            "count": Decimal("1.50"),
            "vip": True,
            "empty": "",
        },
    )
    own = {each.name: (each.type, each.text) for each in found.attributes}
    assert own.keys() == {"id", "source", "type", "sequence", "status", "count", "vip"}
    assert (own["status"], own["count"], own["vip"]) == (("String", "paid"), ("Number", "1.5"), ("String", "true"))


def test_an_attribute_with_a_control_character_is_refused():
    with pytest.raises(HandlerError, match="control character"):
        message(attributes=["status"], handler=lambda change: {"status": "a\x00"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63 - 1, "9223372036854775807"),
        (2**63, '"9223372036854775808"'),
        (-(2**63), "-9223372036854775808"),
        (-(2**63) - 1, '"-9223372036854775809"'),
        (Decimal("1E+2"), "100"),
        (Decimal("9.99"), "9.99"),
        (Decimal("0.12345678901234567"), '"0.12345678901234567"'),
        (Decimal("-0.000123456789012345"), "-0.000123456789012345"),
        (True, "true"),
        (None, "null"),
        (b"\x00\xff", '"AP8="'),
        ({"b", "a"}, '["a","b"]'),
        ({2, 10}, "[2,10]"),
        (set(), "[]"),
        ("\ud800\uffff", '"\\ud800\\uffff"'),
        ("é", '"é"'),
    ],
)
def test_values_as_json(value, text):
    assert json_text(value) == text


@given(st.dictionaries(texts, values, max_size=5))
def test_every_item_is_json_that_no_reader_rounds(item):
    text = json_text(item)
    text.encode()
    assert "\ufffe" not in text
    assert "\uffff" not in text
    read = json.loads(text, parse_int=exact, parse_float=exact)
    assert read.keys() == item.keys()


def exact(text):
    number = Decimal(text)
    assert Decimal(repr(float(text))) == number or (number == int(number) and abs(number) < 2**63 + 1)
    return number


@given(st.text())
def test_every_text_is_read_back(text):
    assert json.loads(json_text(text)) == text


def through_kinesis(**new):
    kinesis = KinesisTwin().append(record(item("ORDER#1"), item("ORDER#1", **new)))
    data = json.loads(b64decode(kinesis["kinesis"]["data"]))
    data["dynamodb"]["ApproximateCreationDateTime"] = 1_789_780_904_316_691
    kinesis["kinesis"]["data"] = b64encode(json.dumps(data).encode()).decode()
    return KinesisChange(kinesis, data, Origin(MAIN, "00/kinesis/"))


def test_two_changes_of_one_microsecond_through_kinesis_have_two_ids():
    one, other = through_kinesis(status="paid"), through_kinesis(status="sent")
    assert one.version_text == other.version_text
    assert message(one).id != message(other).id
    assert message(one).id == message(through_kinesis(status="paid")).id


def test_an_id_reveals_nothing_of_redacted_values():
    one, other = through_kinesis(email="a"), through_kinesis(email="b")
    assert message(one, redact=["email"]).id == message(other, redact=["email"]).id
