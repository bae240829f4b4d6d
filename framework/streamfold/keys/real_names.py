"""Names of tables that must differ: each declared table is one of its own, and none is the state table."""

from collections.abc import Iterable, Mapping

from streamfold.errors import DeclarationError, SettingsError
from streamfold.keys.table import STATE, Table
from streamfold.settings import TABLE_PREFIX, environment_name


def check_variables(names: Iterable[str]) -> None:
    """Raises ``DeclarationError`` where one setting would give two tables their real name."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(variable := environment_name(name), name)
        if other != name:
            raise DeclarationError(
                f"Tables {other!r} and {name!r} would both be named by the setting {TABLE_PREFIX}{variable}, and all "
                "records would go to the first: give one of them a logical name that differs in letters or digits."
            )


def check_real_names(tables: Mapping[str, tuple[Table, str]], state_table: str | None = None) -> None:
    """Raises ``SettingsError`` where two declared tables, or one and the state, are really one."""
    known: dict[tuple[str, str | None], str] = {}
    for name, (table, real) in tables.items():
        if name == STATE.name:
            continue
        if real == state_table and table.region is None:
            raise SettingsError(
                f"Table {name!r} and the state table are both {real!r}: every note of the state would be a record of "
                "the application's stream. Give the state a table of its own, STREAMFOLD_STATE_TABLE."
            )
        other = known.setdefault((real, table.region), name)
        if other != name:
            raise SettingsError(
                f"Tables {other!r} and {name!r} are both {real!r}, and its records would go to the first alone: "
                f"expected one declared table for each. Change {TABLE_PREFIX}{environment_name(other)} or "
                f"{TABLE_PREFIX}{environment_name(name)}, or declare one Table and give it to the Keys of both."
            )
