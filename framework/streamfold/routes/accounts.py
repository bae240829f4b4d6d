"""Rows and state are in one account: a transaction takes no tables of two (API Reference, TransactWriteItems)."""

from collections.abc import Callable, Iterable

from streamfold.errors import SettingsError, manual
from streamfold.keys.table import STATE
from streamfold.routes.route import Route
from streamfold.settings.accounts import account_of_role

RoleOf = Callable[[str], str | None]
"""The role by which a table is used, by its logical name; None: with the credentials of the process."""


def check_accounts(routes: Iterable[Route], role_of: RoleOf) -> None:
    """Raises ``SettingsError`` where rows are written by another role than the state is.

    Only copies may be elsewhere: they are written outside of transactions.
    """
    of_state = role_of(STATE.name)
    for route in routes:
        written = () if route.kind.elsewhere else route.writes
        for key in (*written, *route.kind.touches(route)):
            if (role := role_of(key.table.name)) != of_state:
                raise SettingsError(
                    f"{route.kind} {route.name!r} ({route.declared_at}) writes to table {key.table.name!r} "
                    f"{described(role)}, and the state is used {described(of_state)}: a transaction of DynamoDB takes "
                    "the tables of one account, by one role. Set STREAMFOLD_ROLE for state and rows together; only "
                    f"router.copy writes to a table of a further account ({manual('accounts')})."
                )


def described(role: str | None) -> str:
    """How a message says by which role a table is used."""
    return "with the function's own role" if role is None else f"by {role} of account {account_of_role(role)}"
