"""Numbered versions on DynamoDB Local: every item that it takes has a row that it takes, and can be put back."""

import pytest

from streamfold import App, Key, Router, Table
from streamfold.derivations.audit.numbered import ROW_BYTES_MAX, version_row
from streamfold.derivations.audit.options import Recorded
from streamfold.engines import DynamoEngine
from streamfold.records.values import ITEM_BYTES_MAX, encode, item_bytes
from streamfold.settings import Settings
from tests.helpers.engine_contract import ALL_TYPES
from tests.helpers.records import change, item
from tests.helpers.source import Source
from tests.helpers.tables import make_table

SHOP = Table("main", ttl="expires")
DOCUMENT = Key("DOC#{name}", "METADATA", table=SHOP)
NOTE = Key("NOTE#{name}", "METADATA", table=SHOP)
VERSION = Key("VERSION#{name}", "{label}#v{revision:04d}", table=SHOP)
LATEST = Key("LATEST#{name}", "LATEST", table=SHOP)
NAME = "n" * 1980
LABEL = "l" * 1000
"""Nearly as long as a partition key, and a sort key, may be."""

router = Router()
router.audit(DOCUMENT, NOTE, versions=VERSION, latest=LATEST, keep_days=30, name="history")
app = App("documents", routers=[router])


@pytest.fixture
def store(dynamodb):
    make_table(dynamodb, "shop", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "shop-state", {"pk": "S", "sk": "S"})
    return DynamoEngine(dynamodb, {"main": (SHOP, "shop")}, "shop-state")


def row(store, key, **fields):
    return store.client.get_item(TableName="shop", Key=encode(key.key(**fields))["M"])["Item"]


def full_document(less_bytes=0):
    """An item of every type, as large as DynamoDB takes it, less so many bytes; most of it is one value."""
    document = item(f"DOC#{NAME}", label=LABEL, revision=1, **ALL_TYPES, note="y" * (40 * 1024), body="")
    return {**document, "body": "x" * (ITEM_BYTES_MAX - less_bytes - item_bytes(encode(document)["M"]))}


def attributes(document):
    return {name: value for name, value in document.items() if name not in ("PK", "SK")}


def test_an_item_of_every_type_is_put_back_as_its_row_says(store):
    document = item("DOC#1", label="a", revision=1, **ALL_TYPES)
    assert app.process([Source().put("DOC#1", **attributes(document))], engine=store, settings=Settings()) == []
    image = row(store, VERSION, name="1", label="a", revision=1)["image"]["M"]
    store.client.put_item(TableName="shop", Item=image)
    assert row(store, DOCUMENT, name="1") == image
    latest = row(store, LATEST, name="1")
    assert store.client.get_item(TableName="shop", Key=latest["key"]["M"])["Item"]["image"]["M"] == image


def kept(store, document):
    """The row of the version of a document that DynamoDB took."""
    store.client.put_item(TableName="shop", Item=encode(document)["M"])
    assert app.process([Source().put(document["PK"], **attributes(document))], engine=store, settings=Settings()) == []
    return row(store, VERSION, name=NAME, label=LABEL, revision=1)


def test_the_largest_item_has_a_row_too(store):
    document = full_document()
    found = kept(store, document)
    assert found["large"]["M"].keys() == {"body"}
    assert found["image"]["M"].keys() == document.keys() - {"body"}


def test_a_row_as_large_as_it_may_be_is_taken_with_owner_and_time_to_live(store):
    sizes = (full_document(less_bytes) for less_bytes in range(4 * 1024, 16 * 1024, 64))
    whole = (each for each in sizes if "large" not in version_row(Recorded(), change(None, each), VERSION))
    found = kept(store, document := next(whole))
    assert found["image"]["M"]["body"]["S"] == document["body"]
    assert item_bytes(found) > ROW_BYTES_MAX + 4 * 1024
    assert {"_sf_o", "_sf_v", "expires"} <= found.keys()
