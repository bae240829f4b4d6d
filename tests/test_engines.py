"""The engine contract on the embedded engine, in memory and in a file, and on moto; and what DynamoDB's client says of trouble."""

import boto3
import pytest
from moto import mock_aws

pytest.register_assert_rewrite("tests.engine_contract")

from streamfold.engines.embedded import EmbeddedEngine  # noqa: E402 - after its assertions can be explained
from tests.engine_contract import TABLES, EngineContract, Store, dynamo_store  # noqa: E402

MOTO_DIFFERS = {}


@pytest.fixture(scope="module")
def moto_client():
    """A client of moto. Its tables have no streams: transactions on those take seconds."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "disabled")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        client = boto3.client("dynamodb", region_name="us-east-1")
        yield client
        client.close()


@pytest.fixture(params=["embedded", "embedded file", "dynamodb on moto"])
def store(request, tmp_path):
    if request.param == "dynamodb on moto":
        if reason := MOTO_DIFFERS.get(request.node.originalname):
            request.applymarker(pytest.mark.xfail(reason=f"moto: {reason}"))
        client = request.getfixturevalue("moto_client")
        yield dynamo_store(client)
        for name in client.list_tables()["TableNames"]:
            client.delete_table(TableName=name)
        return
    engine = EmbeddedEngine(TABLES, None if request.param == "embedded" else tmp_path / "state.db")
    yield Store(engine)
    engine.close()


class TestEngine(EngineContract):
    """The contract on each of the stores above."""
