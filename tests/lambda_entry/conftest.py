"""What the tests of Lambda entries share: a client of the two tables of a function."""

import boto3
import pytest

from tests.helpers.tables import make_table


@pytest.fixture
def client(aws):
    client = boto3.client("dynamodb")
    make_table(client, "main", {"PK": "S", "SK": "S"})
    make_table(client, "state", {"pk": "S", "sk": "S"})
    return client
