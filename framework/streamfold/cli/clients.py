"""boto3 clients for commands; what boto3 refuses becomes one message."""

from typing import Any

from botocore.exceptions import BotoCoreError

from streamfold.errors import EngineError


def make_clients(endpoint_url: str | None) -> tuple[Any, Any]:
    """Low-level clients for DynamoDB and its streams."""
    import boto3

    from streamfold.engines.dynamodb import make_client

    try:
        return make_client(endpoint_url), boto3.client("dynamodbstreams", endpoint_url=endpoint_url)
    except (BotoCoreError, ValueError) as error:
        raise EngineError(f"The DynamoDB client cannot be made: {error}") from None
