"""The engine contract on DynamoDB Local, which decides where engines disagree."""

import pytest

pytest.register_assert_rewrite("tests.engine_contract")

from tests.engine_contract import EngineContract, dynamo_store  # noqa: E402 - after its assertions can be explained


@pytest.fixture
def store(dynamodb):
    return dynamo_store(dynamodb)


class TestEngine(EngineContract):
    """The contract on DynamoDB Local."""
