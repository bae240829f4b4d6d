"""The table twin beside DynamoDB Local: the same writes give the same records, or are refused by both.

Compared are event, keys, images and view type of every record, item by item: between items no order is promised. What
Local cannot confirm: sequence numbers (its are padded to one length), sizes, and time to live, which it leaves to a job
of its own.
"""

from collections import defaultdict
from decimal import Decimal
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError, ParamValidationError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamfold import Table
from streamfold.records.values import decode, encode
from streamfold.replay.stream import StreamReader
from streamfold.testing import (
    CheckItem,
    ConditionFailed,
    DeleteItem,
    PutItem,
    TableTwin,
    TransactionCancelled,
    UpdateItem,
    WriteRefused,
)
from tests.helpers.tables import make_table

VIEWS = ("NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY")
CONDITIONS = {
    None: {},
    True: {"ConditionExpression": "attribute_exists(PK)"},
    False: {"ConditionExpression": "attribute_not_exists(PK)"},
}
ANSWERS = {
    "ValidationException": WriteRefused,
    "ConditionalCheckFailedException": ConditionFailed,
    "TransactionCanceledException": TransactionCancelled,
}


class Local:
    """A table of DynamoDB Local, written to as the twin is."""

    def __init__(self, dynamodb, dynamodbstreams, view):
        self.client, self.streams, self.name = dynamodb, dynamodbstreams, f"twin-{uuid4().hex[:12]}"
        stream = {"StreamEnabled": True, "StreamViewType": view}
        make_table(dynamodb, self.name, {"PK": "S", "SK": "S"}, StreamSpecification=stream)

    def request(self, action):
        """The arguments of a single write, or those of an action in a transaction: they are the same."""
        given = {"TableName": self.name, **CONDITIONS[action.exists]}
        if isinstance(action, PutItem):
            return {**given, "Item": encode(action.item)["M"]}
        key = {"Key": encode(dict(zip(("PK", "SK"), action.key, strict=True)))["M"]}
        return {**given, **key, **(update_of(action) if isinstance(action, UpdateItem) else {})}

    def single(self, action):
        calls = {PutItem: "put_item", UpdateItem: "update_item", DeleteItem: "delete_item"}
        getattr(self.client, calls[type(action)])(**self.request(action))

    def transact(self, *actions):
        kinds = {PutItem: "Put", UpdateItem: "Update", DeleteItem: "Delete", CheckItem: "ConditionCheck"}
        self.client.transact_write_items(
            TransactItems=[{kinds[type(action)]: self.request(action)} for action in actions]
        )

    def batch(self, puts, deletes):
        requests = [{"PutRequest": {"Item": self.request(PutItem(item))["Item"]}} for item in puts]
        requests += [{"DeleteRequest": {"Key": self.request(DeleteItem(key))["Key"]}} for key in deletes]
        self.client.batch_write_item(RequestItems={self.name: requests})

    def disable_stream(self):
        self.client.update_table(TableName=self.name, StreamSpecification={"StreamEnabled": False})

    def enable_stream(self, view):
        specification = {"StreamEnabled": True, "StreamViewType": view}
        self.client.update_table(TableName=self.name, StreamSpecification=specification)

    def label(self):
        return self.client.describe_table(TableName=self.name)["Table"]["LatestStreamLabel"]

    def records(self):
        reader = StreamReader(self.client, self.streams, self.name, pause_seconds=0)
        return [record for page in reader.pages() for record in page.records]

    def items(self):
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        return [decode({"M": item}) for page in pages for item in page["Items"]]


class PostAndEdge:
    """The same table twice."""

    def __init__(self, local, twin):
        self.local, self.twin = local, twin

    def single(self, action):
        return self._both(lambda: self.local.single(action), lambda: one_write(self.twin, action))

    def put(self, item, exists=None):
        return self.single(PutItem(item, exists=exists))

    def transact(self, *actions):
        return self._both(lambda: self.local.transact(*actions), lambda: self.twin.transact(*actions))

    def batch(self, puts=(), deletes=()):
        return self._both(lambda: self.local.batch(puts, deletes), lambda: self.twin.batch(puts, deletes))

    def disable_stream(self):
        self.local.disable_stream()
        self.twin.disable_stream()

    def enable_stream(self, view):
        self.local.enable_stream(view)
        self.twin.enable_stream(view)

    def compared(self):
        """What both have in their latest streams, item by item; fails when they differ there or in their items."""
        twins = [record for shard in self.twin.stream.shards for record in shard.records]
        assert by_key(self.twin.items()) == by_key(self.local.items())
        assert by_item(twins) == by_item(self.local.records())
        return by_item(twins)

    def events(self):
        return {key[0]: [record[0] for record in records] for key, records in self.compared().items()}

    def _both(self, local, twin):
        """Writes to both, and tells the class of the refusal; fails when only one refuses, or for other reasons."""
        refusals = [refusal(local), refusal(twin)]
        assert refusals[0] == refusals[1]
        return refusals[0]


def one_write(twin, action):
    exists = action.exists
    if isinstance(action, PutItem):
        twin.put(action.item, exists=exists)
    elif isinstance(action, DeleteItem):
        twin.delete(action.key, exists=exists)
    else:
        twin.update(action.key, put=action.put, add=action.add, remove=action.remove, exists=exists)


def update_of(action):
    """An UpdateExpression with its names and values."""
    names = {f"#{name}": name for name in (*action.put, *action.add, *action.remove)}
    values = {f":{name}": encode(value) for name, value in (action.put | action.add).items()}
    clauses = [
        f"{word} {', '.join(parts)}"
        for word, parts in (
            ("SET", [f"#{name} = :{name}" for name in action.put]),
            ("ADD", [f"#{name} :{name}" for name in action.add]),
            ("REMOVE", [f"#{name}" for name in action.remove]),
        )
        if parts
    ]
    return {
        **({"UpdateExpression": " ".join(clauses), "ExpressionAttributeNames": names} if clauses else {}),
        **({"ExpressionAttributeValues": values} if values else {}),
    }


def refusal(write):
    """The class of the twin's error, and the reasons of a cancelled transaction."""
    try:
        write()
    except ClientError as error:
        reasons = tuple(reason["Code"] for reason in error.response.get("CancellationReasons", []))
        if "ValidationError" in reasons:  # an action that cannot be done: to the twin a refusal like any other
            return WriteRefused, ()
        return ANSWERS[error.response["Error"]["Code"]], reasons
    except ParamValidationError:  # boto3 asks for what the API requires before it calls
        return WriteRefused, ()
    except WriteRefused as error:
        return type(error), getattr(error, "reasons", ())
    return None


def item_of(action):
    return action.item["PK"] if isinstance(action, PutItem) else action.key[0]


def spelt(image):
    """An image in one spelling: DynamoDB Local keeps ``1.0`` inside a list, and sets have no order."""
    return None if image is None else encode(decode({"M": image}))


def by_item(records):
    items = defaultdict(list)
    for record in records:
        change = record["dynamodb"]
        images = [spelt(change.get(name)) for name in ("OldImage", "NewImage")]
        key = tuple(change["Keys"][name]["S"] for name in ("PK", "SK"))
        items[key].append((record["eventName"], *images, change["StreamViewType"], "userIdentity" in record))
    return dict(items)


def by_key(items):
    return {(item["PK"], item["SK"]): encode(item) for item in items}


def row(number, **attributes):
    return {"PK": f"ORDER#{number}", "SK": "METADATA", **attributes}


def key(number):
    return (f"ORDER#{number}", "METADATA")


@pytest.fixture
def make_pair(dynamodb, dynamodbstreams):
    def make(view="NEW_AND_OLD_IMAGES"):
        return PostAndEdge(Local(dynamodb, dynamodbstreams, view), TableTwin(Table("main"), view=view))

    return make


@pytest.fixture
def pair(make_pair):
    return make_pair()


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_views_carry_the_same_images(make_pair, view):
    pair = make_pair(view)
    pair.put(row(1, total=1))
    pair.put(row(1, total=2))
    pair.single(UpdateItem(key(1), put={"status": "paid"}, add={"total": 3}, remove=("note",)))
    pair.single(DeleteItem(key(1)))
    assert pair.events() == {"ORDER#1": ["INSERT", "MODIFY", "MODIFY", "REMOVE"]}


def test_values_of_every_type_come_through_alike(pair):
    deep = {"list": [b"\x00\xff", None, {"empty": {}}, [], "", b""], "number": Decimal("-0.5"), "yes": True}
    pair.put(row(1, deep=deep, texts={"b", "a"}, numbers={3, Decimal("1.5")}, binaries={b"\x01"}, text="ü€😀"))
    pair.single(DeleteItem(key(1)))
    assert pair.events() == {"ORDER#1": ["INSERT", "REMOVE"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"n": Decimal("1.0")}, {"n": 1}),
        ({"n": Decimal("1E+3")}, {"n": 1000}),
        ({"n": {1, Decimal("2.50")}}, {"n": {Decimal("2.5"), 1}}),
        ({"s": {"a", "b"}}, {"s": {"b", "a"}}),
        ({"l": [Decimal("1.0")]}, {"l": [1]}),
        ({}, {}),
    ],
)
def test_writes_that_change_nothing_leave_no_record(pair, before, after):
    pair.put(row(1, **before))
    pair.put(row(1, **after))
    pair.single(UpdateItem(key(1), put=after))
    pair.batch(puts=[row(1, **after)])
    pair.transact(PutItem(row(1, **after)))
    pair.single(DeleteItem(key(2)))
    assert pair.events() == {"ORDER#1": ["INSERT"]}


def test_writes_that_change_only_a_type_or_an_order_leave_one(pair):
    for value in (1, "1", True, [1, 2], [2, 1], {1, 2}, {"1", "2"}, None, "", {}):
        pair.put(row(1, value=value))
    assert len(pair.events()["ORDER#1"]) == 10


# --- updates ----------------------------------------------------------------------------------------------------------


def test_updates_make_items_that_are_not_there(pair):
    pair.single(UpdateItem(key(1)))
    pair.single(UpdateItem(key(2), remove=("note",)))
    pair.single(UpdateItem(key(3), add={"total": Decimal("-1.50")}))
    assert pair.events() == {f"ORDER#{number}": ["INSERT"] for number in (1, 2, 3)}


def test_additions_are_alike(pair):
    for amount in (1, 0, Decimal("-0.25"), 10**35, -(10**35)):
        pair.single(UpdateItem(key(1), add={"total": amount}))
    assert pair.events() == {"ORDER#1": ["INSERT", *["MODIFY"] * 3]}


@pytest.mark.parametrize(
    "update",
    [
        UpdateItem(key(1), add={"text": 1}),
        UpdateItem(key(1), add={"total": "1"}),
        UpdateItem(key(1), add={"large": Decimal("0.5")}),
        UpdateItem(key(1), put={"PK": "ORDER#2"}),
        UpdateItem(key(1), remove=("SK",)),
    ],
)
def test_updates_that_cannot_be_done_are_refused_by_both(pair, update):
    pair.put(row(1, text="a", total=1, large=10**38 - 1))
    assert pair.single(update) == (WriteRefused, ())
    assert pair.events() == {"ORDER#1": ["INSERT"]}


# --- items and keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        {"PK": "", "SK": "METADATA"},
        {"PK": "ORDER#1", "SK": ""},
        {"PK": "ORDER#1"},
        {"PK": 1, "SK": "METADATA"},
        {"PK": "x" * 2049, "SK": "METADATA"},
        {"PK": "ORDER#1", "SK": "x" * 1025},
        row(1, text="x" * (400 * 1024)),
    ],
    ids=["empty partition", "empty sort", "no sort", "number", "long partition", "long sort", "large item"],
)
def test_items_that_cannot_be_stored_are_refused_by_both(pair, item):
    assert pair.put(item) == (WriteRefused, ())
    assert pair.transact(PutItem(row(2)), PutItem(item)) == (WriteRefused, ())
    assert pair.compared() == {}


def test_item_of_exactly_400_kilobytes_is_taken_by_both(pair):
    room = 400 * 1024 - len("PKORDER#1SKMETADATAtext")
    assert pair.put(row(1, text="x" * room)) is None
    assert pair.put(row(1, text="x" * (room + 1))) == (WriteRefused, ())
    assert pair.events() == {"ORDER#1": ["INSERT"]}


# --- conditions, batches, transactions --------------------------------------------------------------------------------


def test_conditions_hold_and_fail_alike(pair):
    answers = [
        pair.put(row(1), exists=True),
        pair.put(row(1), exists=False),
        pair.put(row(1, total=1), exists=False),
        pair.single(UpdateItem(key(2), put={"total": 1}, exists=True)),
        pair.single(DeleteItem(key(2), exists=True)),
        pair.single(DeleteItem(key(1), exists=True)),
    ]
    failed = (ConditionFailed, ())
    assert answers == [failed, None, failed, failed, failed, None]
    assert pair.events() == {"ORDER#1": ["INSERT", "REMOVE"]}


def test_batches_put_and_delete_alike(pair):
    pair.batch(puts=[row(number, total=1) for number in range(25)])
    pair.batch(puts=[row(1, total=2), row(2, total=1), row(30)], deletes=[key(3), key(31)])
    assert pair.batch(puts=[row(1, total=5)], deletes=[key(1)]) == (WriteRefused, ())
    assert pair.batch(puts=[row(number, total=9) for number in range(26)]) == (WriteRefused, ())
    assert pair.batch() == (WriteRefused, ())
    assert pair.events()["ORDER#1"] == ["INSERT", "MODIFY"]


def test_transactions_do_all_or_nothing_alike(pair):
    pair.put(row(1, total=1))
    pair.put(row(2))
    update = UpdateItem(key(1), add={"total": 5})
    assert (
        pair.transact(update, DeleteItem(key(2)), PutItem(row(3), exists=False), CheckItem(key(9), exists=False))
        is None
    )
    cancelled = (TransactionCancelled, ("None", "ConditionalCheckFailed", "None"))
    assert pair.transact(update, CheckItem(key(2)), PutItem(row(4))) == cancelled
    assert pair.transact(update, DeleteItem(key(2), exists=True), CheckItem(key(3))) == cancelled
    assert pair.transact(update, CheckItem(key(1))) == (WriteRefused, ())
    assert pair.transact() == (WriteRefused, ())
    assert pair.events() == {"ORDER#1": ["INSERT", "MODIFY"], "ORDER#2": ["INSERT", "REMOVE"], "ORDER#3": ["INSERT"]}


def test_update_of_a_transaction_has_to_change_something(pair):
    assert pair.transact(UpdateItem(key(1))) == (WriteRefused, ())
    assert pair.compared() == {}


def test_transactions_have_the_same_limits(pair):
    assert pair.transact(*(PutItem(row(number)) for number in range(101))) == (WriteRefused, ())
    assert pair.transact(*(PutItem(row(number, text="x" * 400_000)) for number in range(11))) == (WriteRefused, ())
    assert pair.transact(*(PutItem(row(number)) for number in range(100))) is None
    assert len(pair.compared()) == 100


# --- the stream on and off --------------------------------------------------------------------------------------------


def test_stream_that_is_switched_on_again_has_a_new_label_and_misses_what_was_written_meanwhile(pair):
    pair.put(row(1))
    assert pair.events() == {"ORDER#1": ["INSERT"]}
    before = pair.local.label(), pair.twin.stream.label
    pair.disable_stream()
    pair.put(row(2))
    pair.put(row(1, total=1))
    assert pair.events() == {"ORDER#1": ["INSERT"]}
    pair.enable_stream("NEW_IMAGE")
    pair.put(row(1, total=2))
    assert pair.events() == {"ORDER#1": ["MODIFY"]}
    assert pair.local.label() > before[0]
    assert pair.twin.stream.label > before[1]


# --- histories --------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(1, 4)
EXISTS = st.sampled_from([None, None, None, True, False])
VALUES = st.sampled_from(
    [0, 1, Decimal("1.0"), Decimal("-2.5"), "", "a", True, None, [1], {1, 2}, {"a"}, {"a": [b"b"]}]
)
ATTRIBUTES = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
ADDED = st.dictionaries(st.sampled_from("de"), st.sampled_from([0, 1, Decimal("-0.5"), 10**20]), max_size=2)
PUTS = st.builds(lambda number, item, exists: PutItem(row(number, **item), exists=exists), NUMBERS, ATTRIBUTES, EXISTS)
UPDATES = st.builds(
    lambda number, put, add, remove, exists: UpdateItem(
        key(number), put, add, tuple(remove - put.keys()), exists=exists
    ),
    NUMBERS,
    ATTRIBUTES,
    ADDED,
    st.sets(st.sampled_from("abcf"), max_size=2),
    EXISTS,
)
DELETES = st.builds(lambda number, exists: DeleteItem(key(number), exists=exists), NUMBERS, EXISTS)
CHECKS = st.builds(lambda number, exists: CheckItem(key(number), exists=exists), NUMBERS, st.booleans())
SINGLES = st.one_of(PUTS, PUTS, UPDATES, DELETES)
# Where one item is in a transaction twice, Local may look at the conditions first; AWS refuses it as it is.
TRANSACTIONS = st.lists(st.one_of(SINGLES, CHECKS), min_size=1, max_size=4, unique_by=item_of)
HISTORIES = st.lists(st.one_of(SINGLES, SINGLES, SINGLES, TRANSACTIONS), max_size=25)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=HISTORIES, view=st.sampled_from(VIEWS))
def test_any_history_leaves_the_same_records(make_pair, history, view):
    pair = make_pair(view)
    for write in history:
        if isinstance(write, list):
            pair.transact(*write)
        else:
            pair.single(write)
    pair.compared()
