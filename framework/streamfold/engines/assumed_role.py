"""Sessions of boto3 with the credentials of a role in another account, which are renewed before they end.

A role that a function assumes is chained: AWS ends its credentials after an hour at most (IAM User Guide,
id_roles_terms-and-concepts, Role chaining). botocore asks for new ones from 15 minutes before the end, by one thread
while the others go on. A renewal that fails meanwhile is repeated by the next call.
"""

from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.session import Session

from streamfold.errors import RoleRefused, manual
from streamfold.settings.limits import CONNECT_SECONDS_MAX

ROLE_SECONDS = 3_600
"""How long credentials hold: the longest of a chained role, and the default of every role."""
STS_READ_SECONDS_MAX = 2
"""A call of DynamoDB waits for its credentials. STS answers in a fraction of a second; a renewal has 15 minutes."""
SESSION_NAME = "streamfold"
"""Names the session in CloudTrail of the other account."""


class AssumedRole(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    """Credentials of a role, by those that the process has."""

    METHOD = "assume-role"

    def __init__(self, own: Session, role: str) -> None:
        super().__init__(own)
        self.own = own
        self.role = role

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(self._fetch, self.METHOD)

    def _fetch(self) -> Mapping[str, Any]:
        credentials = self.own.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        asked = {"RoleSessionName": SESSION_NAME, "DurationSeconds": ROLE_SECONDS}
        fetcher = AssumeRoleCredentialFetcher(self._client, credentials, self.role, asked)
        try:
            found: Mapping[str, Any] = fetcher.fetch_credentials()
        except ClientError as error:
            raise RoleRefused(_why(self.role, error)) from None
        return found

    def _client(self, service: str, **credentials: Any) -> Any:
        config = Config(
            connect_timeout=CONNECT_SECONDS_MAX,
            read_timeout=STS_READ_SECONDS_MAX,
            retries={"mode": "standard", "total_max_attempts": 1},
        )
        return self.own.create_client(service, config=config, **credentials)


def _why(role: str, error: ClientError) -> str:
    name, code = role.rpartition("/")[2], error.response["Error"]["Code"]
    return (
        f"Role {role} could not be assumed: STS refused with {code}. Expected sts:AssumeRole on it in the "
        f"function's own role, and the function's role in the trust policy of {name} ({manual('accounts')})."
    )


def session_of(role: str) -> boto3.Session:
    """A session whose clients work with the credentials of a role. No call is made before the first one of a client.

    Its clients raise ``RoleRefused`` where the role may not be assumed.
    """
    own, made = Session(), Session()
    own.set_config_variable("sts_regional_endpoints", "regional")  # a network without a way out reaches no other
    made.register_component("credential_provider", CredentialResolver([AssumedRole(own, role)]))
    return boto3.Session(botocore_session=made)
