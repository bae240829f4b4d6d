"""What the tests against a real engine share: its address, and a database of their own in it."""

import os
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config

from tests.helpers.required import lacking

HERE = Path(__file__).parent
REGION = "us-east-1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def dynamodb_endpoint():
    """DynamoDB Local's address."""
    endpoint = os.environ.get("DYNAMODB_ENDPOINT")
    if not endpoint:
        lacking("no DynamoDB Local: run tests/tools/engine.py with dynamodb -- .venv/bin/python -m pytest -m engine")
    return endpoint


@pytest.fixture(scope="session")
def dynamodb_control(dynamodb_endpoint):
    """Where shards roll over, records age and databases end: POST /rollover, /dilate and /forget, ?key=ACCESS_KEY."""
    control = os.environ.get("DYNAMODB_CONTROL")
    if not control:
        lacking("DynamoDB Local runs without its control port: start it with tests/tools/engine.py")
    return control


@contextmanager
def new_access_key(control):
    """A new key, letters and digits only. To DynamoDB Local each one is an empty database of its own.

    The database ends with it: the threads of hundreds that nobody needs take as much time as all tests.
    """
    key = f"test{uuid4().hex[:16]}"
    yield key
    with urllib.request.urlopen(urllib.request.Request(f"{control}/forget?key={key}", method="POST"), timeout=60):
        pass


@pytest.fixture
def access_key(dynamodb_control):
    with new_access_key(dynamodb_control) as key:
        yield key


def client_of(endpoint, access_key):
    """A client of the database of an access key."""
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key="secret",
        config=Config(account_id_endpoint_mode="disabled", retries={"total_max_attempts": 3}),
    )


@pytest.fixture
def dynamodb(dynamodb_endpoint, access_key):
    """A client of an empty database that no other test sees."""
    with closing(client_of(dynamodb_endpoint, access_key)) as client:
        yield client


@pytest.fixture
def dynamodbstreams(dynamodb, dynamodb_endpoint, access_key):
    """The streams client of the same database: DynamoDB Local keeps one for each access key and region."""
    client = boto3.client(
        "dynamodbstreams",
        endpoint_url=dynamodb_endpoint,
        region_name=dynamodb.meta.region_name,
        aws_access_key_id=access_key,
        aws_secret_access_key="secret",
    )
    yield client
    client.close()
