"""The low-level DynamoDB client: its time-outs, and what it means when no answer came."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    SSOError,
)

from streamfold.errors import EngineError, EngineUnavailable, EngineUnreachable, told
from streamfold.settings.limits import CONNECT_SECONDS_MAX, READ_LANES_MAX, READ_SECONDS_MAX, TRIES_MAX

USER_AGENT = f"streamfold Boto3/{boto3.__version__}"
"""What requests say of their sender. botocore makes its own twice for every request: a tenth of its CPU."""
NAMED = "AWS_SDK_UA_APP_ID"
"""Names the application in the usual text, which stays where this is set."""


def make_client(endpoint_url: str | None = None, region: str | None = None) -> Any:
    """A low-level DynamoDB client with bounded time-outs and retries, for the environment's region or another.

    Raises ``EngineError`` when no region is set.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
        retries={"mode": "standard", "total_max_attempts": TRIES_MAX},
        max_pool_connections=READ_LANES_MAX,
        user_agent=None if os.environ.get(NAMED) else USER_AGENT,
    )
    try:
        return boto3.client("dynamodb", endpoint_url=endpoint_url, region_name=region, config=config)
    except NoRegionError:
        raise EngineError("No AWS region is set: set AWS_DEFAULT_REGION, or region in the AWS profile.") from None
    except (BotoCoreError, ValueError) as error:
        raise EngineError(f"The DynamoDB client cannot be made: {error}") from None


def unreachable(error: Exception) -> EngineError:
    """What an error of botocore itself means: no answer came."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return EngineError(
            "No AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if isinstance(error, CredentialRetrievalError | SSOError):
        return EngineError(f"AWS credentials could not be read: {told(error)}")
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return EngineUnreachable(
            f"Nothing answers at the DynamoDB endpoint ({told(error)}). Check --endpoint-url and the region."
        )
    return EngineUnavailable(f"The outcome of a DynamoDB call is unknown: {type(error).__name__}: {told(error)}")


def table_id(client: Any, name: str) -> str | None:
    """The id of the table that has this name now; None where it may not be asked (dynamodb:DescribeTable), and where a
    test gives a client that cannot be.
    """
    try:
        found: str | None = client.describe_table(TableName=name).get("Table", {}).get("TableId")
    except (BotoCoreError, ClientError, AttributeError):
        return None
    return found


def missing_tables(clients: Mapping[str, Any], enough_time: Callable[[], bool]) -> EngineError:
    """The error for a table that DynamoDB does not have, out of these, each with its client: it does not say which.

    Named are those that are not there; all, where it may not be asked (dynamodb:DescribeTable), has them by now or
    there is no time to ask.
    """
    missing = [name for name, client in clients.items() if enough_time() and _is_missing(client, name)]
    which = missing[0] if missing else f"one of {', '.join(clients)}"
    what = f"A table is missing: {which} does not exist"
    if len(missing) > 1:
        what = f"Tables are missing: {', '.join(missing)} do not exist"
    return EngineError(
        f"{what} in this account and region. Create what is missing (replay --create-tables does on a loopback "
        "endpoint), or name the real one: --table logical=real, STREAMFOLD_TABLE_<NAME>, STREAMFOLD_STATE_TABLE."
    )


def _is_missing(client: Any, table: str) -> bool:
    try:
        client.describe_table(TableName=table)
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == "ResourceNotFoundException")
    except BotoCoreError:
        return False
    return False
