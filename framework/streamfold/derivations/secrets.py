"""Secrets that settings refer to: they are read once a process, and again where a server refuses them.

A process keeps what it read: Secrets Manager and the Parameter Store bill and bound calls, and a function handles many
batches. What could not be read is not kept, so that the next batch asks again.
"""

import json
from collections.abc import Callable
from threading import Lock
from typing import Any

from streamfold.errors import EngineError, EngineUnavailable, refusal
from streamfold.settings.readers import SecretReference, read_key

ACTIONS = {"secretsmanager": "secretsmanager:GetSecretValue", "ssm": "ssm:GetParameter"}
"""What a role needs to read a secret. One that is encrypted with a key of its own takes kms:Decrypt on the key too."""
FOR_GOOD = frozenset(
    (
        "AccessDeniedException",
        "DecryptionFailure",
        "InvalidKeyId",
        "InvalidParameterException",
        "InvalidRequestException",
        "ParameterNotFound",
        "ParameterVersionNotFound",
        "ResourceNotFoundException",
        "ValidationException",
    )
)
"""Codes of calls that no retry helps (API References, GetSecretValue and GetParameter)."""

_read: dict[SecretReference, str] = {}
_reading = Lock()


def secret_text(value: str | SecretReference) -> str:
    """The text of a setting, or of the secret that it refers to.

    Raises ``EngineError`` if the secret cannot be read, ``EngineUnavailable`` if it could not be read now.
    """
    if isinstance(value, str):
        return value
    with _reading:  # threads of one process ask once
        if value not in _read:
            _read[value] = _fetched(value)
        return _read[value]


def secret_key(value: bytes | SecretReference | None) -> bytes | None:
    """The key of a setting, or of the secret that it refers to; None for none. Raises as ``secret_text``.

    Raises ``SettingsError`` for a key that is too short.
    """
    if isinstance(value, SecretReference):
        return read_key(f"The key in {value}", secret_text(value))
    return value


def is_renewed(value: str | SecretReference | None) -> bool:
    """Reads a secret again, after a server refused its text: whether the text is another one now.

    Raises as ``secret_text``.
    """
    if not isinstance(value, SecretReference):
        return False
    text = _fetched(value)
    with _reading:
        was, _read[value] = _read.get(value), text
    return text != was


def _fetched(reference: SecretReference) -> str:
    from botocore.exceptions import BotoCoreError, ClientError

    from streamfold.parking import make_client

    try:
        text = READERS[reference.store](make_client(reference.store), reference.name)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in FOR_GOOD:
            raise EngineUnavailable(f"The secret {reference} could not be read ({refusal(error)}).") from error
        raise EngineError(
            f"The secret {reference} cannot be read ({refusal(error)}). Expected an existing secret, and a role with "
            f"{ACTIONS[reference.store]} on it, and kms:Decrypt on its key if it has one of its own."
        ) from error
    except BotoCoreError as error:
        raise EngineUnavailable(f"The secret {reference} could not be read ({error}).") from error
    return _field(reference, text) if reference.field else text


def _of_secrets_manager(client: Any, name: str) -> str:
    found = client.get_secret_value(SecretId=name)
    if "SecretString" not in found:
        raise EngineError(f"The secret secretsmanager:{name} holds bytes: expected a text.")
    return str(found["SecretString"])


def _of_parameter_store(client: Any, name: str) -> str:
    return str(client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])


READERS: dict[str, Callable[[Any, str], str]] = {"secretsmanager": _of_secrets_manager, "ssm": _of_parameter_store}


def _field(reference: SecretReference, text: str) -> str:
    try:
        value = json.loads(text)[reference.field]
    except (ValueError, TypeError, KeyError):
        value = None
    if not isinstance(value, str) or not value:
        raise EngineError(
            f"The secret {reference} has no text {reference.field!r}: expected an object of JSON with this field."
        )
    return value
