"""The account that the table of a record is in, where it is not the function's own."""

from collections.abc import Callable
from typing import Any

from streamfold.derivations.derivation import reads_items
from streamfold.engines.dynamodb_client import table_id
from streamfold.errors import SettingsError, manual
from streamfold.keys.table import Table
from streamfold.routes.application import Application
from streamfold.settings import ROLE_PREFIX, Settings, environment_name
from streamfold.settings.readers import account_of, account_of_role

LOCAL_ACCOUNT = "000000000000"
"""The account of DynamoDB Local and of LocalStack: their events are sent by hand, and are no samples."""


class SourceAccounts:
    """Asks for the ids of source tables. ``client_of``: makes the client of a role, or of the function itself.

    ``function_arn`` gives the ARN of the function that runs, as far as it is known.
    """

    def __init__(
        self,
        app: Application,
        settings: Settings,
        client_of: Callable[[str | None], Any],
        function_arn: Callable[[], object],
    ) -> None:
        self.app = app
        self.settings = settings
        self._client_of = client_of
        self._function_arn = function_arn

    def identify(self, table: Table, real: str, arn: object) -> str | None:
        """The id of the table that a stream is of; None where it may not be asked for.

        Raises ``SettingsError`` where handlers use the table, and would use one of that name in another account:
        nothing of the batch is derived then, and no table gets a marker.
        """
        role = self.settings.role_of(table.name)
        expected = account_of(self._function_arn()) if role is None else account_of_role(role)
        found = account_of(arn)
        if expected is None or found in (None, expected, LOCAL_ACCOUNT):
            return table_id(self._client_of(role), real)
        if uses_table(self.app, self.settings, table.name):
            variable = ROLE_PREFIX + environment_name(table.name)
            raise SettingsError(
                f"A record comes from {arn}, and handlers would use table {real!r} of account {expected}, which is "
                f"another one. Expected a role of account {found}: STREAMFOLD_ROLE for state and all tables, or "
                f"{variable} for this one, which no handler may write rows to then ({manual('accounts')})."
            )
        # By its ARN the table itself is asked, which its own policy may allow.
        return table_id(self._client_of(None), str(arn).partition("/stream/")[0])


def uses_table(app: Application, settings: Settings, logical: str) -> bool:
    """Whether handlers that run here read or write a table, besides getting its records."""
    return any(
        key.table.name == logical
        for route in app.routes
        if settings.serves(route.group)
        for key in (*route.writes, *route.kind.touches(route), *(route.reads if reads_items(route) else ()))
    )
