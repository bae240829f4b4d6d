"""The engine writes the request that botocore would send; everything else of a call is left to botocore."""

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold import Table
from streamfold.engines import DynamoEngine
from streamfold.engines.dynamodb_client import Meter, RequestEncoding
from streamfold.engines.protocol import Counter
from streamfold.engines.requests import Requests
from streamfold.records import values as json_values
from streamfold.writes.guarded import (
    AbsentSource,
    AddRow,
    Claim,
    CorrectRow,
    CounterWrite,
    DeleteRow,
    DeleteSource,
    DeleteState,
    GuardedPut,
    HandlerContribution,
    LedgerWrite,
    PutRow,
    PutState,
    RecomputedRow,
    StateKey,
    SwapState,
    SwapText,
    UpdateSource,
)
from tests.helpers.wire import Wire

ROOT = Path(__file__).parents[2]
ANSWERS = str(Path(__file__).with_name("test_dynamodb_client.py"))
OLDEST = "1.35.0"
"""The oldest boto3 that pyproject.toml allows."""
EXAMPLES = 12
TABLES = {"shop": (Table("shop", partition="pk", sort="sk", ttl="expires"), "real-shop")}
ROW, ITEM = ("shop", "ROW#ä", "1"), StateKey("ledger#app#main#shop#S#ü", "S#x")


def without_token(body):
    """What the idempotency token of a transaction is, botocore draws at each call."""
    return {name: value for name, value in body.items() if name != "ClientRequestToken"}


def engine_of(wire):
    return DynamoEngine(wire.client, TABLES, "state")


@pytest.fixture
def wire():
    return Wire()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(-(10**30), 10**30) | st.decimals(-1000, 1000, places=2)
values = st.recursive(
    texts
    | numbers
    | st.booleans()
    | st.none()
    | st.binary(max_size=4)
    | st.sets(st.text("abc", min_size=1), min_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts.filter(bool), inner, max_size=3),
    max_leaves=5,
)
attributes = st.dictionaries(st.text("abcd.#é", min_size=1, max_size=3), values, max_size=4)
amounts = st.dictionaries(st.text("xyz é", min_size=1, max_size=3), numbers, max_size=3)
versions = st.sampled_from(["0", "00/2026/" + "1".zfill(40)])
names = st.none() | texts
parts = st.builds(
    HandlerContribution, st.sampled_from(["one", "two.three"]), versions, texts, texts, names, names, names
)  # fmt: skip
counts = st.integers(0, 3)
images = st.just({"pk": {"S": "é"}, "n": {"N": "1"}, "b": {"B": b"\x00\xff"}, "s": {"BS": [b"1", b"2"]}})
additions = st.builds(
    AddRow, st.just(ROW), amounts, st.integers(-1, 2), st.booleans(), st.sampled_from(["", "stamp"]),
    st.just(()), st.none() | counts, attributes, st.sampled_from([(), ("gone",), ("gone", "é")]), st.booleans(),
)  # fmt: skip
lives = st.sampled_from([(None, False), ("", False), ("life", False), ("life", True)])
WRITES = {
    AddRow: st.builds(lambda write, life: write._replace(life=life[0], born=life[1]), additions, lives),
    PutRow: st.builds(PutRow, st.just(ROW), attributes, st.none() | st.just("app/handler|ö"), amends=st.booleans()),
    DeleteRow: st.builds(DeleteRow, st.just(ROW), st.none() | st.just("app/handler")),
    GuardedPut: st.builds(GuardedPut, st.just(ROW), st.none() | attributes, versions, st.none() | st.just("app")),
    LedgerWrite: st.builds(
        LedgerWrite, st.just(ITEM),
        st.lists(parts, min_size=1, max_size=2, unique_by=lambda part: part.handler).map(tuple),
        st.none() | counts, st.integers(-1, 1), st.booleans(), st.none() | counts, st.booleans(),
    ),
    Claim: st.builds(Claim, st.just(ITEM), texts, texts),
    SwapText: st.builds(SwapText, st.just(ITEM), texts, names),
    PutState: st.builds(PutState, st.just(ITEM), texts),
    DeleteState: st.just(DeleteState(ITEM)),
    CorrectRow: st.builds(
        CorrectRow, st.just(ROW), attributes, st.sampled_from([(), ("absent", "é")]), attributes, amounts,
    ),
    RecomputedRow: st.builds(RecomputedRow, st.just(ROW), st.just("stamp"), attributes.filter(bool)),
    SwapState: st.builds(SwapState, st.just(ITEM), attributes, counts),
    CounterWrite: st.builds(
        CounterWrite, st.just(ITEM), counts, st.none() | counts, added=st.frozensets(texts.filter(bool)),
        references=st.none() | texts,
    ),
    AbsentSource: st.just(AbsentSource(ROW)),
    DeleteSource: st.builds(DeleteSource, st.just(ROW), images, st.just("v")),
    UpdateSource: st.builds(UpdateSource, st.just(ROW), attributes, st.just(("absent",)), attributes.filter(bool)),
}  # fmt: skip


def two_wires():
    """A client of which the engine writes the bodies, after its first calls, and one that it leaves alone."""
    ours, ordinary = Wire(), Wire()
    engine, other = engine_of(ours), engine_of(ordinary)
    other._encodings.clear()
    return ours, engine, ordinary, other


REQUESTS = Requests(TABLES, "state")
OURS, ENGINE, ORDINARY, OTHER = two_wires()


def sent_by_both(call):
    for wire, engine in ((OURS, ENGINE), (ORDINARY, OTHER)):
        wire.sent.clear()
        call(engine)
    return OURS.sent, ORDINARY.sent


def test_bodies_are_tried_with_the_extra_that_makes_them_quicker():
    assert json_values.ORJSON is not None


@pytest.mark.parametrize("kind", WRITES, ids=lambda kind: kind.__name__)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_both_bodies_of_a_write_say_the_same_alone_and_in_a_transaction(kind, data):
    write, library = data.draw(WRITES[kind]), data.draw(st.sampled_from([None, json_values.ORJSON]))
    for writes in ([write], [write, PutState(StateKey("other", "ü"), "")]):
        with patch.object(json_values, "ORJSON", library):
            mine, theirs = sent_by_both(lambda engine, writes=writes: engine.transact(writes, 1_800_000_000))
        assert [(name, without_token(body)) for name, body in mine] == [
            (name, without_token(body)) for name, body in theirs
        ]
        assert ["ClientRequestToken" in body for _, body in mine] == [
            "ClientRequestToken" in body for _, body in theirs
        ]


@settings(max_examples=60, deadline=None)
@given(write=WRITES[LedgerWrite] | WRITES[AddRow])
def test_expressions_that_were_kept_have_the_values_of_those_that_are_made_anew(write):
    made = Requests(TABLES, "state").action(write, expires_at=0)
    for _ in range(2):
        assert REQUESTS.action(write, expires_at=0) == made


def test_each_text_of_a_ledger_write_is_sent_once():
    parts = tuple(HandlerContribution(name, "version", "same", "") for name in ("one", "two", "three"))
    (action,) = REQUESTS.action(LedgerWrite(ITEM, parts, None, 3, expires=False), expires_at=0).values()
    texts = [value["S"] for value in action["ExpressionAttributeValues"].values() if "S" in value]
    assert texts == ["version", "", "same"]


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.read_state([ITEM, StateKey("other", "ü")], consistent=True),
        lambda engine: engine.read_together([ITEM, StateKey("other", "ü")]),
        lambda engine: engine.read_rows([ROW]),
        lambda engine: engine.insert_rows([PutRow(ROW, {"a'b": Decimal("1.50"), "b": b"\x00", "s": {"x"}})]),
        lambda engine: engine.remove_empty([ROW]),
        lambda engine: engine.clear_pending({ITEM: {"one": "tëxt"}}),
        lambda engine: engine.count_up([Counter(ITEM, new=True)], 3, 1_800_000_000),
        lambda engine: engine.swap_state(ITEM, {"a": [1, "ö"]}, 0),
        lambda engine: engine.swap_state(ITEM, {"a": [1, "ö"]}, 4),
    ],
)
def test_both_bodies_of_any_other_call_say_the_same(call):
    for _ in range(2):
        mine, theirs = sent_by_both(call)
        assert mine == theirs != []


def test_the_first_call_of_an_operation_goes_the_ordinary_way_and_the_next_is_not_serialised_by_botocore(wire):
    engine, built = engine_of(wire), []
    wire.client.meta.events.register(
        "before-parameter-build.dynamodb.*", lambda params, **_: built.append(dict(params))
    )
    for _ in range(2):
        engine.transact([Claim(ITEM)], 1)
    assert [build["Item"] for build in built] == [{"pk": {"S": ITEM.pk}, "sk": {"S": ITEM.sk}, "ttl": {"N": "1"}}, {}]
    assert wire.sent[0] == wire.sent[1]


def test_a_client_whose_events_do_not_come_is_called_the_ordinary_way(wire):
    engine = engine_of(wire)
    for operation in ("PutItem", "UpdateItem"):
        wire.client.meta.events.unregister(
            f"before-call.dynamodb.{operation}", unique_id=f"streamfold-bodies-call-{operation}"
        )
    for _ in range(3):
        engine.transact([Claim(ITEM)], 1)
    assert wire.sent == [wire.sent[0]] * 3
    assert wire.sent[0][1]["Item"]["pk"] == {"S": ITEM.pk}


def test_a_body_that_says_something_else_is_never_sent(wire, monkeypatch):
    monkeypatch.setattr("streamfold.engines.dynamodb_client.request_json", lambda arguments: b'{"Item":{}}')
    engine = engine_of(wire)
    for _ in range(3):
        engine.transact([Claim(ITEM)], 1)
    assert [body["Item"]["pk"] for _, body in wire.sent] == [{"S": ITEM.pk}] * 3


def test_tables_that_are_named_by_arns_are_called_the_ordinary_way(wire):
    encodings = RequestEncoding(wire.client, ["arn:aws:dynamodb:eu-west-1:123456789012:table/shop"])
    assert encodings._ready is False


def test_what_a_meter_asks_for_stays_in_the_body(wire):
    engine = engine_of(wire)
    meter = Meter(wire.client)
    for _ in range(2):
        engine.transact([Claim(ITEM)], 1)
        engine.transact([Claim(ITEM), DeleteState(StateKey("a", "b"))], 1)
    assert {body["ReturnConsumedCapacity"] for _, body in wire.sent} == {"TOTAL"}
    assert meter.consumed.requests == 4


def test_two_engines_of_one_client_do_not_stand_in_each_others_way(wire):
    for engine in [engine_of(wire), engine_of(wire)] * 2:
        engine.transact([Claim(ITEM)], 1)
    assert wire.sent == [wire.sent[0]] * 4


def test_a_refusal_is_told_in_the_same_words_either_way(wire):
    wire.status = 400
    wire.answer = {"__type": "com.amazon.coral.validate#ValidationException", "message": "Item size is too large"}
    engine = engine_of(wire)
    told = [engine.transact([Claim(ITEM)], 1) for _ in range(2)]
    assert told[0] == told[1]
    assert told[0].reasons[0].message == "Item size is too large"
    assert [body for _, body in wire.sent] == [wire.sent[0][1]] * 2


@pytest.mark.nightly
def test_both_bodies_say_the_same_with_the_oldest_boto3(tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), f"boto3=={OLDEST}"]
    subprocess.run(pip, check=True)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "framework")])
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not nightly", "-p", "no:cacheprovider", __file__, ANSWERS]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
