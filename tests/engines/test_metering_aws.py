"""What a client's calls consume, as DynamoDB answers it."""

from threading import Thread

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from streamfold.engines.dynamodb_client import Consumed, Meter
from tests.helpers.tables import make_table

KEY = {"pk": {"S": "a"}}
GET = {"TableName": "shop", "Key": KEY}
STATEMENT = {"Statement": 'DELETE FROM "shop" WHERE "pk" = ?', "Parameters": [{"S": "a"}]}


@pytest.fixture
def client(monkeypatch):
    made = boto3.client("dynamodb", "us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
    yield made
    made.close()


@pytest.fixture
def stub(client):
    with Stubber(client) as stub:
        yield stub


@pytest.fixture
def meter(client):
    meter = Meter(client)
    yield meter
    meter.close()


def told(units, **more):
    return {"TableName": "shop", "CapacityUnits": units, **more}


def asked(**given):
    """What is sent: what was given, and the wish to be told."""
    return {"ReturnConsumedCapacity": "TOTAL", **given}


@pytest.mark.parametrize(
    ("operation", "given", "capacity", "read", "write"),
    [
        ("get_item", GET, told(0.5), 0.5, 0),
        ("query", {"TableName": "shop"}, told(1.5), 1.5, 0),
        ("scan", {"TableName": "shop"}, told(128.0), 128, 0),
        ("batch_get_item", {"RequestItems": {"shop": {"Keys": [KEY]}}}, [told(2.0), told(3.0)], 5, 0),
        ("transact_get_items", {"TransactItems": [{"Get": GET}]}, [told(2.0)], 2, 0),
        ("put_item", {"TableName": "shop", "Item": KEY}, told(3.0), 0, 3),
        ("update_item", GET, told(1.0), 0, 1),
        ("delete_item", GET, told(1.0), 0, 1),
        ("batch_write_item", {"RequestItems": {"shop": [{"DeleteRequest": {"Key": KEY}}]}}, [told(4.0)], 0, 4),
        ("transact_write_items", {"TransactItems": [{"Delete": GET}]}, [told(4.0, WriteCapacityUnits=4.0)], 0, 4),
        ("execute_statement", STATEMENT, told(1.0), 0, 1),
        ("execute_statement", STATEMENT, told(0.5, ReadCapacityUnits=0.5), 0.5, 0),
        ("batch_execute_statement", {"Statements": [STATEMENT]}, [told(2.0)], 0, 2),
        ("execute_transaction", {"TransactStatements": [STATEMENT]}, [told(2.0, WriteCapacityUnits=2.0)], 0, 2),
    ],
)
def test_units_are_asked_for_and_counted(client, stub, meter, operation, given, capacity, read, write):
    stub.add_response(operation, {"ConsumedCapacity": capacity}, asked(**given))
    answer = getattr(client, operation)(**given)
    assert answer["ConsumedCapacity"] == capacity
    assert meter.take() == Consumed(read, write, 1, 0, 0)
    assert meter.consumed == Consumed()


def test_calls_add_up(client, stub, meter):
    for _ in range(3):
        stub.add_response("get_item", {"ConsumedCapacity": told(0.5)}, asked(**GET))
        client.get_item(**GET)
    stub.add_response("delete_item", {"ConsumedCapacity": told(2.0)}, asked(**GET))
    client.delete_item(**GET)
    assert (meter.consumed.read, meter.consumed.write, meter.consumed.requests) == (1.5, 2, 4)


def test_more_detail_that_was_asked_for_is_kept(client, stub, meter):
    stub.add_response("get_item", {"ConsumedCapacity": told(1.0)}, {**GET, "ReturnConsumedCapacity": "INDEXES"})
    client.get_item(**GET, ReturnConsumedCapacity="INDEXES")
    stub.add_response("get_item", {"ConsumedCapacity": told(1.0)}, asked(**GET))
    client.get_item(**GET, ReturnConsumedCapacity="NONE")
    assert meter.consumed.read == 2


def test_refused_calls_are_counted_without_units(client, stub, meter):
    stub.add_client_error("put_item", "ConditionalCheckFailedException", http_status_code=400)
    with pytest.raises(ClientError):
        client.put_item(TableName="shop", Item=KEY)
    assert meter.take() == Consumed(0, 0, 1, 1, 0)


def test_attempts_before_an_answer_are_counted(client, stub, meter):
    metadata = {"RetryAttempts": 2, "HTTPStatusCode": 200}
    stub.add_response("get_item", {"ConsumedCapacity": told(1.0), "ResponseMetadata": metadata}, asked(**GET))
    client.get_item(**GET)
    assert meter.take() == Consumed(1, 0, 1, 0, 2)


def test_calls_that_consume_nothing_are_sent_as_they_are(client, stub, meter):
    stub.add_response("describe_table", {}, {"TableName": "shop"})
    client.describe_table(TableName="shop")
    assert meter.take() == Consumed(0, 0, 1, 0, 0)


def test_closed_meter_counts_and_asks_nothing(client, stub, meter):
    Meter(client).close()
    other = Meter(client)
    other.close()
    stub.add_response("get_item", {"ConsumedCapacity": told(1.0)}, asked(**GET))
    client.get_item(**GET)
    assert (meter.consumed.read, other.consumed.read) == (1, 0)
    meter.close()
    stub.add_response("get_item", {}, GET)
    client.get_item(**GET)
    assert meter.consumed.requests == 1


def test_pages_of_a_paginator_and_several_threads_are_counted(aws):
    client = boto3.client("dynamodb")
    make_table(client, "shop", {"pk": "S"})
    meter = Meter(client)
    for number in range(6):
        client.put_item(TableName="shop", Item={"pk": {"S": str(number)}})
    assert meter.take() == Consumed(0, 6, 6, 0, 0)
    pages = client.get_paginator("scan").paginate(TableName="shop", PaginationConfig={"PageSize": 2})
    assert sum(len(page["Items"]) for page in pages) == 6
    scanned = meter.take()
    assert scanned.requests >= 3
    assert scanned.read > 0
    threads = [Thread(target=lambda: [client.put_item(TableName="shop", Item=KEY) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.take() == Consumed(0, 20, 20, 0, 0)
