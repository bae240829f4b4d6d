"""Histories on DynamoDB Local: what was signed before it was stored is honest when it is read back."""

from datetime import UTC, datetime

import boto3
import pytest

from streamfold import App, Key, Router
from streamfold.cli.history import all_rows, audited, rows_of
from streamfold.derivations.audit.history import findings
from streamfold.engines import DynamoEngine
from streamfold.keys.table import MAIN
from streamfold.read import as_of, history
from streamfold.records.values import encode
from streamfold.settings import Settings
from tests.helpers.engine_contract import ALL_TYPES
from tests.helpers.history_rows import BORN, SECRET
from tests.helpers.source import Source
from tests.helpers.tables import make_table

ORDER = Key("ORDER#{order_id}", "METADATA")
FOR_BOTO3 = {name: value for name, value in ALL_TYPES.items() if name not in ("smallest", "largest")}
"""What boto3's ``Table`` can read: it refuses the smallest and the largest numbers that DynamoDB holds."""
ORDERS = {"1": ALL_TYPES, "2": FOR_BOTO3}
CHANGES = 30
"""With a value of 30 KB in each, more than one page of a query or scan (1 MB)."""

router = Router()
router.audit(ORDER, redact=["email"])
app = App("shop", routers=[router])


@pytest.fixture
def store(dynamodb):
    """A store with the histories of two orders, of values of every type."""
    make_table(dynamodb, "shop", {"PK": "S", "SK": "S"})
    make_table(dynamodb, "shop-state", {"pk": "S", "sk": "S"})
    engine = DynamoEngine(dynamodb, {"main": (MAIN, "shop")}, "shop-state")
    source = Source()
    records = [
        source.put(f"ORDER#{order}", **values, n=number, email=f"{number}@example.com", note="x" * 30_000)
        for number in range(CHANGES)
        for order, values in ORDERS.items()
    ]
    records += [source.put("ORDER#3", n=1), source.remove("ORDER#3")]
    assert app.process(records, engine=engine, settings=Settings(audit_key=SECRET)) == []
    return engine


def problems(item, rows):
    return [finding.problem for finding in findings(item, rows, SECRET)]


def test_rows_of_every_type_are_honest_when_they_are_read_back(store):
    found = {audited.item: rows for audited, rows in all_rows(store, app, None)}
    assert {item: len(rows) for item, rows in found.items()} == {
        "ORDER#1|METADATA": CHANGES,
        "ORDER#2|METADATA": CHANGES,
        "ORDER#3|METADATA": 2,
    }
    assert [problems(*pair) for pair in found.items()] == [[], [], []]


def test_a_row_that_is_removed_or_edited_is_found(store):
    found = audited(app, "ORDER#1", "METADATA", None)
    rows = rows_of(store, found)
    keys = [{name: encode(row[name]) for name in ("PK", "SK")} for row in rows]
    store.client.delete_item(TableName="shop", Key=keys[3])
    edit = {"UpdateExpression": "SET changes.n.#new = :n", "ExpressionAttributeNames": {"#new": "new"}}
    store.client.update_item(TableName="shop", Key=keys[7], **edit, ExpressionAttributeValues={":n": {"N": "1000"}})
    assert problems(found.item, rows_of(store, found)) == ["gap", "forged"]


@pytest.fixture
def table(dynamodb, dynamodb_endpoint, access_key):
    """boto3's ``Table`` of the same database."""
    place = {"endpoint_url": dynamodb_endpoint, "region_name": dynamodb.meta.region_name}
    return boto3.resource("dynamodb", **place, aws_access_key_id=access_key, aws_secret_access_key="secret").Table(
        "shop"
    )


@pytest.mark.parametrize("order_id", ORDERS)
def test_an_item_is_read_as_it_was(store, dynamodb, table, order_id):
    place = table if order_id == "2" else (dynamodb, "shop")
    assert len(list(history(place, ORDER, order_id=order_id))) == CHANGES
    known = as_of(place, ORDER, datetime.fromtimestamp(BORN, UTC), order_id=order_id)
    values = {**ORDERS[order_id], "n": CHANGES - 1, "note": "x" * 30_000}
    assert (known.item, known.redacted, known.whole) == (
        {**ORDER.key(order_id=order_id), **values},
        ("email",),
        True,
    )
    assert as_of(place, ORDER, datetime.fromtimestamp(BORN, UTC), order_id="3").exists is False
