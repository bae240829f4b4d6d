"""Source items that a rehearsal puts into real tables: the newest image of each stays, in whatever order they come."""

import boto3
import pytest

from streamfold import App, Count, Key, Lookup, Router, Row, Table
from streamfold.cli.dynamodb import TRIES_MAX, SourceWriter, create_tables
from streamfold.engines import DynamoEngine
from streamfold.errors import EngineError
from streamfold.keys.table import MAIN
from streamfold.records.values import decode, encode
from streamfold.writes.guarded import CONFLICT, VALIDATION, Reason, Refused
from tests.cli.conftest import SHOP
from tests.helpers.source import Source
from tests.helpers.tables import make_table

ITEM, OTHER = ("main", "ORDER#1", "METADATA"), ("main", "ORDER#2", "METADATA")


class Sources:
    """A table on moto, and a writer of its source items."""

    def __init__(self):
        self.client = boto3.client("dynamodb")
        make_table(self.client, "shop", {"PK": "S", "SK": "S"})
        make_table(self.client, "state", {"pk": "S", "sk": "S"})
        self.engine = DynamoEngine(self.client, {"main": (MAIN, "shop")}, "state")
        self.pauses = []
        self.writer = SourceWriter(self.engine, "shop", self.pauses.append)

    def put(self, version, item=ITEM, **attributes):
        raw = encode({"PK": item[1], "SK": item[2], **attributes})["M"]
        self.writer([(item, raw, f"v{version}")])

    def remove(self, version, item=ITEM):
        self.writer([(item, None, f"v{version}")])

    def stored(self):
        return [decode({"M": item}) for item in self.engine.items(MAIN)]


@pytest.fixture
def sources(aws):
    return Sources()


def test_source_item_is_put_as_it_is_without_any_attribute_of_the_framework(sources):
    attributes = {"total": 5, "photo": b"\x00", "parts": [b"\x01", {"more": b"\x02"}], "sizes": {b"\x03", b"\x04"}}
    sources.put(1, **attributes)
    assert sources.stored() == [{"PK": "ORDER#1", "SK": "METADATA", **attributes}]


def test_newer_image_takes_the_place_of_an_older_one(sources):
    sources.put(1, total=5, note="gift")
    sources.put(2, total=6)
    assert sources.stored() == [{"PK": "ORDER#1", "SK": "METADATA", "total": 6}]


def test_older_or_equal_image_changes_nothing(sources):
    sources.put(2, total=6)
    sources.put(2, total=7)
    sources.put(1, total=5)
    sources.remove(1)
    assert [item["total"] for item in sources.stored()] == [6]


def test_item_that_was_removed_does_not_come_back_with_an_older_image(sources):
    sources.put(1, total=5)
    sources.remove(3)
    sources.put(2, total=6)
    assert sources.stored() == []
    sources.put(4, total=7)
    assert [item["total"] for item in sources.stored()] == [7]


def test_versions_of_two_items_are_apart(sources):
    sources.put(2, total=6)
    sources.put(1, OTHER, total=5)
    assert [item["total"] for item in sources.stored()] == [6, 5]


def test_write_that_meets_another_is_tried_again(sources, monkeypatch):
    send, answers = sources.engine.send, [Refused((Reason(code), None)) for code in CONFLICT]
    monkeypatch.setattr(sources.engine, "send", lambda actions: answers.pop() if answers else send(actions))
    sources.put(1, total=5)
    assert len(sources.stored()) == 1
    assert sources.pauses == [0.05, 0.1, 0.2]


def test_tables_that_take_no_writes_are_given_up_with_the_item(sources, monkeypatch):
    monkeypatch.setattr(sources.engine, "send", lambda _: Refused((None, Reason(CONFLICT[0]))))
    with pytest.raises(EngineError, match="Source item ORDER#1 / METADATA could not be put: the tables do not take"):
        sources.put(1)
    assert len(sources.pauses) == TRIES_MAX


def test_image_that_the_table_does_not_take_is_told_with_the_item_and_the_reason(sources, monkeypatch):
    monkeypatch.setattr(sources.engine, "send", lambda _: Refused((None, Reason(VALIDATION, None, "no key PK"))))
    with pytest.raises(EngineError, match="ORDER#1 / METADATA was refused with ValidationError: no key PK"):
        sources.put(1)


PARTIAL = SHOP.replace(
    "\n\napp =",
    """

@router.view(ITEM, into=Key("ALL", "TOTAL"))
def everything(item):
    yield Row(items=Count())


app =""",
)


def test_a_replay_is_refused_while_a_handler_is_partial_unless_it_is_forced(on_aws):
    source = Source(table="shop")
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 2)]
    on_aws.deliver(records[0])
    on_aws.folder.app(PARTIAL)
    on_aws.deliver(records[1])
    file = on_aws.folder.records(*records)
    refused = on_aws.run("replay", file, "--yes")
    assert (refused.code, "'everything' is partial since" in refused.err) == (2, True), refused.err
    assert on_aws.row("ALL")["items"] == {"N": "1"}
    forced = on_aws.run("replay", file, "--yes", "--force")
    assert forced.code == 0, forced.err
    assert on_aws.row("ALL")["items"] == {"N": "2"}
    assert "--force belongs to --engine dynamodb" in on_aws.folder.run("replay", file, "--force").err


def test_a_table_that_only_a_lookup_names_is_created_with_its_key_types(aws):
    numbers = Table("numbers", partition="id", sort=None)
    router = Router()

    @router.view(
        Key("L#{l}", "X"), into=Key("R#{c}", "T"), lookup={"number": Lookup(Key("{p:number}", table=numbers), p="by")}
    )
    def sales(line, number):
        return Row(c=number["c"], n=Count())

    client = boto3.client("dynamodb")
    engine = DynamoEngine(client, {"main": (MAIN, "shop"), "numbers": (numbers, "numbers")}, "state")
    assert create_tables(App("sums", routers=[router]), engine) == ["shop", "numbers", "state"]
    made = client.describe_table(TableName="numbers")["Table"]
    assert made["AttributeDefinitions"] == [{"AttributeName": "id", "AttributeType": "N"}]
