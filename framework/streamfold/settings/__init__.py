"""The settings of a deployed application: one frozen value, read once from ``STREAMFOLD_*``."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.errors import SettingsError
from streamfold.settings.limits import ACTIONS_MAX, LANES_MAX, STOP_SECONDS
from streamfold.settings.readers import (
    OWN,
    PREFIX,
    READERS,
    RETENTION_DAYS_MIN,
    SecretReference,
    read_role_of_table,
    read_text,
)

TABLE_PREFIX = PREFIX + "TABLE_"
INDEX_PREFIX = PREFIX + "INDEX_"
PUBLISH_PREFIX = PREFIX + "PUBLISH_"
ROLE_PREFIX = PREFIX + "ROLE_"
NAMED = {"tables": TABLE_PREFIX, "indexes": INDEX_PREFIX, "destinations": PUBLISH_PREFIX, "roles": ROLE_PREFIX}
"""Settings that give real names, addresses and roles, with the prefixes of their variables."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
SECRETS = ("search_password", "audit_key")
"""Settings whose values are never shown; a reference to a secret is."""
TEXTS = {
    "tables": "real names of tables, STREAMFOLD_TABLE_<NAME>",
    "indexes": "real names of search indexes, STREAMFOLD_INDEX_<NAME>",
    "destinations": "addresses of buses, topics and queues, STREAMFOLD_PUBLISH_<NAME>: an ARN, or the URL of a queue",
    "roles": "roles of other accounts by which single tables are used, STREAMFOLD_ROLE_<NAME>; own: none",
    "app": (
        "the application that commands work on, MODULE:NAME; if not set, streamfold_app of pyproject.toml, or "
        "handlers:app"
    ),
    "engine": "a local state that lambda_handler works on instead of DynamoDB, embedded:FILE",
    "role": "role of another account by which the state and all tables are used",
    "state_table": "real name of the state table; <application>-state if not set",
    "group": "the group of handlers that this function runs; all if not set",
    "epoch": (
        "raised by one when a table comes through another source, and when state and tables fit under other names"
    ),
    "chunk_actions": "the most writes in one transaction, 2 to 100; fewer for a while after a conflict",
    "lanes": f"calls of DynamoDB side by side in one invocation, 1 to {LANES_MAX}; reads of the state a quarter more",
    "retention_days": "how long claims and tombstones are kept; longer than the longest redrive",
    "stop_seconds": "no further call is begun when the invocation has less time left",
    "park": "where failing records are put aside: s3://BUCKET/PREFIX, a queue's URL, a file",
    "jobs": "URL of the SQS queue for segments of fan-outs; its function is jobs_handler",
    "archive": "where archives go instead of their declared locations: s3://BUCKET/PREFIX, file:FOLDER",
    "publish": "where messages go instead of their destinations, in a run of this machine: file:FOLDER",
    "search": "where documents go: the URL of an OpenSearch server, https://HOST",
    "search_service": "the service that requests to it are signed for, es, aoss or none; by the host's name if not set",
    "search_user": "name of a user of the search server, instead of signed requests",
    "search_password": "password of that user, or the secret that has it: secretsmanager:NAME[#FIELD], ssm:NAME",
    "search_ca": "file with the certificates of the search server's own authority",
    "handlers_off": "handlers that are switched off; their records are parked or skipped",
    "gate_seconds": (
        "how long an invocation of older code may go on after a handler was first named, before it is filled"
    ),
    "older_code": "code runs that lacks handlers of the state, as after a rollback; these are partial from then on",
    "observe": (
        "what writes a function's log and metrics: lines; powertools, with a longer cold start; traced, which adds the "
        "tracer of aws-lambda-powertools[tracer]; off"
    ),
    "observe_handlers": "metrics of each handler too, which CloudWatch bills by name and handler",
    "audit_key": (
        "the key that history rows are signed with, or the secret that has it: secretsmanager:NAME[#FIELD], ssm:NAME; "
        "rows have no digests if not set"
    ),
}
"""The meaning of each setting, for a person."""


OBSERVED = "STREAMFOLD_OBSERVE sets log, metrics and traces together: lines, powertools, traced or off."
BOUNDED = "It is gone: a request with documents has at most 5 MB, and is not compressed. Remove it."
EARLIER = {
    "logger": OBSERVED,
    "metrics": OBSERVED,
    "powertools": OBSERVED,
    "tracer": OBSERVED,
    "function": "STREAMFOLD_GROUP names the group of handlers that a function runs.",
    "search_bulk_bytes": BOUNDED,
    "search_gzip": BOUNDED,
}
"""Settings of earlier commits, and what has taken their place."""


class Settings(NamedTuple):
    """The values that may differ between deployments of one application; ``TEXTS`` has their meanings, ``origins``
    their sources.
    """

    tables: Mapping[str, str] = NO_NAMES
    indexes: Mapping[str, str] = NO_NAMES
    destinations: Mapping[str, str] = NO_NAMES
    roles: Mapping[str, str] = NO_NAMES
    app: str | None = None
    engine: str | None = None
    role: str | None = None
    state_table: str | None = None
    group: str | None = None
    epoch: int = 0
    chunk_actions: int = ACTIONS_MAX
    lanes: int = 8
    retention_days: int = RETENTION_DAYS_MIN
    stop_seconds: int = STOP_SECONDS
    park: str | None = None
    jobs: str | None = None
    archive: str | None = None
    publish: str | None = None
    search: str | None = None
    search_service: str | None = None
    search_user: str | None = None
    search_password: str | SecretReference | None = None
    search_ca: str | None = None
    handlers_off: tuple[str, ...] = ()
    gate_seconds: int = 900
    older_code: bool = False
    observe: str = "lines"
    observe_handlers: bool = False
    audit_key: bytes | SecretReference | None = None
    origins: Mapping[str, str] = NO_NAMES

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Reads ``STREAMFOLD_*``. Raises ``SettingsError`` for an unknown name or a wrong value."""
        values: dict[str, Any] = {names: {} for names in NAMED}
        origins: dict[str, str] = {}
        for name, text in environment.items():
            if names := _names_of(name):
                prefix = NAMED[names]
                named = environment_name(name[len(prefix) :]).lower()  # as ``real_name`` looks for it
                read = read_role_of_table if names == "roles" else read_text
                if values[names].setdefault(named, read(name, text)) != text:
                    raise SettingsError(
                        f"Setting {name} is given twice, in two spellings and with two values: keep one."
                    )
                origins[names] = prefix + "<NAME>"
            elif name.startswith(PREFIX):
                setting = _known(name)
                values[setting] = READERS[setting](name, text)
                origins[setting] = name
        return cls(**values, origins=origins)

    def real_name(self, logical: str) -> str | None:
        """The real name that is set for a table; the environment knows it in upper case only."""
        return self.tables.get(logical) or self.tables.get(environment_name(logical).lower())

    def role_of(self, logical: str) -> str | None:
        """The role by which a table is used, or the state; None: with the credentials of the process."""
        own = self.roles.get(logical) or self.roles.get(environment_name(logical).lower())
        return None if own == OWN else own or self.role

    def real_index(self, logical: str) -> str | None:
        """The real name that is set for a search index; None if none is."""
        return self.indexes.get(logical) or self.indexes.get(environment_name(logical).lower())

    def destination(self, logical: str) -> str | None:
        """The address that is set for a bus, a topic or a queue; None if none is."""
        return self.destinations.get(logical) or self.destinations.get(environment_name(logical).lower())

    def index_name(self, logical: str) -> str:
        """The real name of a search index: its own, if no other is set."""
        return self.real_index(logical) or logical

    def serves(self, group: str) -> bool:
        """Whether handlers of a group run here: of the group that is set, or of all groups."""
        return self.group in (None, group)

    def runs(self, handler: str, group: str) -> bool:
        """Whether a handler of a group runs here and is not switched off."""
        return handler not in self.handlers_off and self.serves(group)

    def described(self) -> list[tuple[str, str, str, str]]:
        """Every setting as (name of the variable, value, origin, meaning)."""
        return [
            (
                NAMED[name] + "<NAME>" if name in NAMED else PREFIX + name.upper(),
                _shown(getattr(self, name), secret=name in SECRETS),
                self.origins.get(name, "default"),
                text,
            )
            for name, text in TEXTS.items()
        ]

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self._asdict().items() if name not in SECRETS)
        return f"Settings({', '.join(shown)})"


def _names_of(variable: str) -> str | None:
    """The setting whose names a variable gives."""
    for setting, prefix in NAMED.items():
        if variable.startswith(prefix) and variable != prefix:
            return setting
    return None


def _known(variable: str) -> str:
    setting = variable[len(PREFIX) :].lower()
    if setting not in READERS:
        raise SettingsError(f"Setting {variable} is not known{_expected(setting)}")
    return setting


def _expected(setting: str) -> str:
    """How a message about an unknown setting ends: with the one that is near it, or else with all of them."""
    if setting in EARLIER:
        return f". {EARLIER[setting]}"
    from difflib import get_close_matches  # only needed where a name is wrong

    variables = {known: PREFIX + known.upper() for known in sorted(READERS)}
    variables |= {prefix[len(PREFIX) :].lower(): f"{prefix}<NAME>" for prefix in NAMED.values()}
    if near := get_close_matches(setting, variables, n=1):
        return f". Did you mean {variables[near[0]]}?"
    *others, last = variables.values()
    return f": expected {', '.join(others)} or {last}."


def undeclared_tables(settings: Settings, declared: Iterable[str]) -> list[str]:
    """The warnings about settings that give the real name of an undeclared table."""
    return _undeclared(settings.tables, {logical: logical for logical in declared}, TABLE_PREFIX, "table")


def undeclared_roles(settings: Settings, declared: Iterable[str]) -> list[str]:
    """The warnings about settings that give the role of an undeclared table."""
    return _undeclared(settings.roles, {logical: logical for logical in declared}, ROLE_PREFIX, "table")


def undeclared_indexes(settings: Settings, declared: Mapping[str, str]) -> list[str]:
    """The warnings about settings that give the real name of an undeclared index.

    declared: the indexes as they are declared, by the names that settings have for them.
    """
    return _undeclared(settings.indexes, declared, INDEX_PREFIX, "index")


def _undeclared(given: Iterable[str], declared: Mapping[str, str], prefix: str, what: str) -> list[str]:
    from difflib import get_close_matches  # only needed where a name is wrong

    names = {environment_name(name): shown for name, shown in declared.items()}
    known = ", ".join(f"{prefix}{name} for {what} {shown!r}" for name, shown in names.items())
    texts = []
    for name in map(environment_name, given):
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"Did you mean {prefix}{near[0]}?" if near else "It has no effect."
            texts.append(
                f"{prefix}{name} names no {what} of the application: expected {known or f'none, as it has no {what}'}. "
                f"{hint}"
            )
    return texts


def environment_name(logical: str) -> str:
    """The logical name of a table or an index in an environment variable's name."""
    return "".join(character if character.isalnum() else "_" for character in logical).upper()


def _shown(value: Any, *, secret: bool = False) -> str:
    if secret and not isinstance(value, SecretReference):
        return "-" if value is None else "set"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={real}" for name, real in value.items()) or "-"
    if isinstance(value, tuple) and not isinstance(value, SecretReference):
        return ", ".join(value) or "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)
