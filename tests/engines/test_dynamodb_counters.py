"""How the DynamoDB engine raises counters and reads source items: what it sends, and what it makes of trouble."""

import pytest
from botocore.exceptions import ReadTimeoutError

from streamfold import Table
from streamfold.engines import DynamoEngine
from streamfold.engines.deadline import TRIES_MAX, Deadline
from streamfold.engines.protocol import Counter
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.writes.guarded import StateKey
from tests.helpers.answering import BUSY_CODES, Client, error, statement, statements

SHOP = Table("shop", sort=None)
FAR = Table("far", sort=None, region="eu-west-1")
TABLES = {"shop": (SHOP, "real-shop"), "far": (FAR, "real-far")}
KEYS = [StateKey("document", str(number)) for number in range(100)]
START, EXPIRES = 1000, 5
TIMEOUT = ReadTimeoutError(endpoint_url="http://127.0.0.1")
ABSENT, DUPLICATE = "ConditionalCheckFailed", "DuplicateItem"
REFUSED = error("ConditionalCheckFailedException")


def engine(*responses, **how):
    return DynamoEngine(Client(*responses), TABLES, "state", pause=lambda seconds: None, **how)


def raised(number, key=KEYS[0], **more):
    """The attributes of a counter that was raised."""
    return {"pk": {"S": key.pk}, "sk": {"S": key.sk}, "n": {"N": str(number)}, **more}


def answered(*keys, number=7):
    return {"Responses": [{"Item": raised(number, key)} for key in keys]}


def count(store, *counters):
    return store.count_up(counters, START, EXPIRES)


def operations(store):
    return [call.operation for call in store.client.calls]


def updates(store):
    return [call for call in store.client.calls if call.operation == "update_item"]


# What is sent


def test_counters_that_are_there_and_new_ones_are_raised_in_one_call():
    store = engine({"Responses": [{"Item": raised(7, KEYS[0], ids={"SS": ["b"]})}, {}, {"Item": raised(8, KEYS[2])}]})
    counters = [Counter(KEYS[0]), Counter(KEYS[1], new=True), Counter(KEYS[2], expires=False)]
    assert count(store, *counters) == {
        KEYS[0]: {"n": 7, "ids": {"b"}},
        KEYS[1]: {"n": START + 1, "ttl": EXPIRES},
        KEYS[2]: {"n": 8},
    }
    (call,) = store.client.calls
    where = 'WHERE "pk" = ? AND "sk" = ? RETURNING ALL NEW *'
    assert call.Statements == [
        {
            "Statement": f'UPDATE "state" SET "n" = "n" + 1 SET "ttl" = ? {where}',
            "Parameters": [{"N": "5"}, {"S": "document"}, {"S": "0"}],
        },
        {
            "Statement": "INSERT INTO \"state\" VALUE {'pk': ?, 'sk': ?, 'n': ?, 'ttl': ?}",
            "Parameters": [{"S": "document"}, {"S": "1"}, {"N": "1001"}, {"N": "5"}],
        },
        {"Statement": f'UPDATE "state" SET "n" = "n" + 1 {where}', "Parameters": [{"S": "document"}, {"S": "2"}]},
    ]


@pytest.mark.parametrize("new", [True, False])
def test_hundred_counters_take_four_calls(new):
    pages = [answered(*KEYS[start : start + 25]) for start in range(0, 100, 25)]
    store = engine(*pages)
    assert count(store, *(Counter(key, new) for key in KEYS)).keys() == {*KEYS}
    assert operations(store) == ["batch_execute_statement"] * 4


@pytest.mark.parametrize(("new", "code"), [(True, DUPLICATE), (False, ABSENT)])
def test_counter_that_is_not_as_it_was_expected_takes_one_call_more(new, code):
    responses = [statement(code), {"Item": raised(7, KEYS[1])}]
    store = engine({"Responses": responses}, {"Attributes": raised(9)})
    assert count(store, Counter(KEYS[0], new), Counter(KEYS[1])) == {KEYS[0]: {"n": 9}, KEYS[1]: {"n": 7}}
    (call,) = updates(store)
    assert (call.TableName, call.Key) == ("state", {"pk": {"S": "document"}, "sk": {"S": "0"}})
    assert call.UpdateExpression == "SET #0 = if_not_exists(#0, :0) + :1, #1 = :2"
    assert call.ExpressionAttributeNames == {"#0": "n", "#1": "ttl"}
    assert call.ExpressionAttributeValues == {":0": {"N": "1000"}, ":1": {"N": "1"}, ":2": {"N": "5"}}
    assert call.ReturnValues == "ALL_NEW"
    assert not hasattr(call, "ConditionExpression")


@pytest.mark.parametrize(
    ("new", "code", "conditions"),
    [
        (True, DUPLICATE, ["attribute_exists(pk)", "attribute_not_exists(pk)"]),
        (False, ABSENT, ["attribute_not_exists(pk)", "attribute_exists(pk)"]),
    ],
)
def test_counter_that_does_not_expire_gets_a_time_to_live_only_where_there_was_no_item(new, code, conditions):
    counter = Counter(KEYS[0], new, expires=False)
    store = engine(statements(code), REFUSED, {"Attributes": raised(9)})
    assert count(store, counter) == {KEYS[0]: {"n": 9}}
    assert [call.ConditionExpression for call in updates(store)] == conditions
    for call in updates(store):
        absent = call.ConditionExpression == "attribute_not_exists(pk)"
        assert ("ttl" in call.ExpressionAttributeNames.values()) is absent


def test_counter_that_is_made_and_removed_meanwhile_is_left_out():
    store = engine(statements(ABSENT), REFUSED)
    assert count(store, Counter(KEYS[0], expires=False)) == {}
    assert len(updates(store)) == 2


def test_counter_whose_item_is_not_told_is_raised_once_more():
    store = engine({"Responses": [{}]}, {"Attributes": raised(9)})
    assert count(store, Counter(KEYS[0])) == {KEYS[0]: {"n": 9}}


# Trouble


@pytest.mark.parametrize("code", BUSY_CODES)
def test_busy_counter_is_tried_again_alone(code):
    first = {"Responses": [{"Item": raised(7, KEYS[0])}, statement(code)]}
    store = engine(first, answered(KEYS[1]))
    assert count(store, Counter(KEYS[0]), Counter(KEYS[1])).keys() == {*KEYS[:2]}
    assert [len(call.Statements) for call in store.client.calls] == [2, 1]


def test_counter_that_stays_busy_is_left_out():
    store = engine({"Responses": [{"Item": raised(7)}, statement(BUSY_CODES[0])]}, statements(BUSY_CODES[0]))
    assert count(store, Counter(KEYS[0]), Counter(KEYS[1])) == {KEYS[0]: {"n": 7}}
    assert len(store.client.calls) == TRIES_MAX


def test_counters_without_an_answer_are_left_out_and_what_follows_is_not_sent():
    store = engine(answered(*KEYS[:25]), TIMEOUT)
    assert count(store, *map(Counter, KEYS)).keys() == {*KEYS[:25]}
    assert len(store.client.calls) == 2


def test_counters_none_of_which_has_an_answer_have_an_unknown_outcome():
    with pytest.raises(EngineUnavailable, match="outcome of a DynamoDB call is unknown"):
        count(engine(TIMEOUT), *map(Counter, KEYS))


def test_single_update_without_an_answer_leaves_its_counter_out_and_those_after_it():
    first = {"Responses": [{"Item": raised(7)}, *[statement(ABSENT)] * 3]}
    store = engine(first, {"Attributes": raised(1001, KEYS[1])}, TIMEOUT)
    assert count(store, *map(Counter, KEYS[:4])).keys() == {*KEYS[:2]}
    assert len(updates(store)) == 2


def test_single_update_without_an_answer_and_nothing_else_has_an_unknown_outcome():
    with pytest.raises(EngineUnavailable):
        count(engine(statements(ABSENT), TIMEOUT), Counter(KEYS[0]))


def test_single_update_that_is_throttled_leaves_its_counter_out_and_no_other():
    throttled = error("ThrottlingException")
    store = engine(statements(ABSENT, ABSENT), throttled, {"Attributes": raised(1001, KEYS[1])})
    assert count(store, *map(Counter, KEYS[:2])).keys() == {KEYS[1]}


@pytest.mark.parametrize(
    "responses",
    [
        [statements("AccessDenied")],
        [error("AccessDeniedException")],
        [statements(ABSENT), error("AccessDeniedException")],
        [statements("ValidationError")],
        [statements(ABSENT), error("ValidationException")],
    ],
)
def test_count_that_is_refused_for_good_stops_the_run(responses):
    with pytest.raises(EngineError, match="refused the call with") as stopped:
        count(engine(*responses), Counter(KEYS[0]))
    assert not isinstance(stopped.value, EngineUnavailable)


def test_no_count_is_begun_when_the_time_is_over():
    store = engine(answered(KEYS[0]))
    store.deadline = Deadline(seconds_left=lambda: 0)
    with pytest.raises(EngineUnavailable, match="time is nearly over"):
        count(store, Counter(KEYS[0]))
    assert store.client.calls == []


# Source items


def sources(*numbers, left=()):
    unread = {"real-shop": {"Keys": [{"PK": {"S": str(number)}} for number in left]}} if left else {}
    found = [{"PK": {"S": str(number)}, "b": {"B": b"\x00"}} for number in numbers]
    return {"Responses": {"real-shop": found}, "UnprocessedKeys": unread}


def places(*numbers):
    return [("shop", str(number), None) for number in numbers]


def test_source_items_are_read_consistently_a_hundred_a_call_and_as_they_are_stored():
    store = engine(sources(*range(100)), sources(100))
    found = store.read_sources([*places(*range(102)), *places(5)])
    assert found == {key: {"PK": {"S": key[1]}, "b": {"B": b"\x00"}} for key in places(*range(101))}
    requests = [call.RequestItems["real-shop"] for call in store.client.calls]
    assert [(len(request["Keys"]), request["ConsistentRead"]) for request in requests] == [(100, True), (2, True)]


def test_source_items_left_unprocessed_are_read_again():
    store = engine(sources(1, left=[2]), sources(2))
    assert store.read_sources(places(1, 2)).keys() == {*places(1, 2)}
    assert store.client.calls[1].RequestItems == sources(left=[2])["UnprocessedKeys"]


def test_source_items_left_unprocessed_to_the_end_are_no_empty_answer():
    store = engine(sources(1, left=[2]))
    with pytest.raises(EngineUnavailable, match="Table real-shop is throttled: 1 items could not be read"):
        store.read_sources(places(1, 2))
    assert len(store.client.calls) == TRIES_MAX


def test_source_items_of_another_region_are_read_there():
    client = Client({"Responses": {"real-far": [{"PK": {"S": "1"}}]}})
    store = engine(regional=lambda region: {"eu-west-1": client}[region])
    assert store.read_sources([("far", "1", None)]) == {("far", "1", None): {"PK": {"S": "1"}}}
    assert store.client.calls == []


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (lambda store: store.read_sources(places(1)), "BatchGetItem"),
        (lambda store: store.read_source(*places(1)), "GetItem"),
    ],
)
def test_source_items_that_may_not_be_read_say_which_permission_is_needed(call, action):
    with pytest.raises(EngineError) as stopped:
        call(engine(error("AccessDeniedException")))
    assert not isinstance(stopped.value, EngineUnavailable)
    assert str(stopped.value) == (
        f"Source items of table real-shop may not be read: dynamodb:{action} on it is needed. why"
    )


@pytest.mark.parametrize("trouble", [TIMEOUT, error("ThrottlingException"), error("InternalServerError", 500)])
def test_read_of_source_items_without_an_answer_has_an_unknown_outcome(trouble):
    with pytest.raises(EngineUnavailable):
        engine(trouble).read_sources(places(1))
