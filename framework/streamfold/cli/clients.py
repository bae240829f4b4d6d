"""boto3 clients for commands; what boto3 refuses becomes one message."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from streamfold.engines.dynamodb_client import make_client, unreachable
from streamfold.errors import EngineError, refusal


def make_clients(endpoint_url: str | None) -> tuple[Any, Any]:
    """Low-level clients for DynamoDB and its streams."""
    return make_client(endpoint_url), boto3.client("dynamodbstreams", endpoint_url=endpoint_url)


def make_streams_client(service: str, stream_arn: str, endpoint_url: str | None) -> Any:
    """A low-level client for streams, ``"dynamodbstreams"`` or ``"kinesis"``, in the region of one of them."""
    region = None if endpoint_url else stream_arn.split(":")[3:4]
    return boto3.client(service, endpoint_url=endpoint_url, region_name=region[0] if region else None)


@contextmanager
def explained(service: str = "DynamoDB") -> Iterator[None]:
    """Makes an ``EngineError`` of what boto3 raises inside, where no engine stands between."""
    try:
        yield
    except ClientError as error:
        raise EngineError(f"{service} refused a call with {refusal(error)}") from error
    except BotoCoreError as error:
        raise unreachable(error) from error
