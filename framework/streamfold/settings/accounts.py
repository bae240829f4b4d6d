"""Settings that name a role of another account, by which a process uses tables there."""

import re

from streamfold.errors import SettingsError

OWN = "own"
"""In place of a role: the table is in the account of the function itself."""
ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}):role/[\w+=,.@/-]{1,576}", re.ASCII)
"""A role, with the path that it may have (IAM API Reference, Role)."""


def read_role(name: str, text: str) -> str:
    """The role that a setting names for all tables and the state."""
    if not ROLE_ARN.fullmatch(text):
        raise SettingsError(f"Setting {name}={text!r} is no role: expected arn:aws:iam::ACCOUNT:role/NAME.")
    return text


def read_role_of_table(name: str, text: str) -> str:
    """The role that a setting names for one table, or ``OWN``."""
    if text != OWN and not ROLE_ARN.fullmatch(text):
        raise SettingsError(
            f"Setting {name}={text!r} is no role: expected arn:aws:iam::ACCOUNT:role/NAME, or {OWN} for a table in "
            "the function's own account."
        )
    return text


def account_of_role(role: str | None) -> str | None:
    """The number of a role's account; None without a role."""
    found = ROLE_ARN.fullmatch(role or "")
    return found[1] if found else None


def account_of(arn: object) -> str | None:
    """The number of the account in an ARN; None for what is no ARN, and for one without an account."""
    parts = arn.split(":") if isinstance(arn, str) else []
    return parts[4] or None if len(parts) > 5 else None
