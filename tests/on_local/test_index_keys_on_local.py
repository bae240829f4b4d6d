"""Keys of secondary indexes on DynamoDB Local, which decides what is refused."""

import pytest

from tests.helpers.index_key_contract import IndexKeyContract, indexed_engine


@pytest.fixture
def engine(dynamodb):
    return indexed_engine(dynamodb)


class TestIndexKeys(IndexKeyContract):
    """The contract on DynamoDB Local."""
