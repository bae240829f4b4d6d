"""What the other tests take for granted of the engine that tests/tools/engine.py starts."""

import urllib.request
from urllib.parse import urlsplit

import boto3
import pytest

TABLE = {
    "TableName": "items",
    "AttributeDefinitions": [{"AttributeName": "PK", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}],
    "BillingMode": "PAY_PER_REQUEST",
    "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
}


def post(url):
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10) as answer:
        return answer.read().decode()


def test_it_listens_on_loopback(dynamodb_endpoint, dynamodb_control):
    assert [urlsplit(url).hostname for url in (dynamodb_endpoint, dynamodb_control)] == ["127.0.0.1"] * 2


@pytest.mark.parametrize("run", ["first", "second"])
def test_each_test_has_an_empty_database(dynamodb, run):
    assert dynamodb.list_tables()["TableNames"] == []
    dynamodb.create_table(**TABLE)


def test_shards_roll_over_on_demand(dynamodb, dynamodb_endpoint, dynamodb_control, access_key):
    stream = dynamodb.create_table(**TABLE)["TableDescription"]["LatestStreamArn"]
    assert post(f"{dynamodb_control}/rollover?key={access_key}") == "ok 1\n"

    streams = boto3.client(
        "dynamodbstreams",
        endpoint_url=dynamodb_endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key="secret",
    )
    shards = streams.describe_stream(StreamArn=stream)["StreamDescription"]["Shards"]
    streams.close()
    assert [shard.get("ParentShardId") for shard in shards] == [None, shards[0]["ShardId"]]


def test_a_database_ends_when_it_is_forgotten(dynamodb, dynamodb_control, access_key):
    dynamodb.create_table(**TABLE)
    assert post(f"{dynamodb_control}/forget?key={access_key}") == "ok 1\n"
    assert dynamodb.list_tables()["TableNames"] == []
