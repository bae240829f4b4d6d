"""The settings of a deployed application: one frozen value, read once from ``STREAMFOLD_*``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from streamfold.errors import SettingsError
from streamfold.limits import ACTIONS_MAX, CALL_SECONDS_MAX, STOP_SECONDS

PREFIX = "STREAMFOLD_"
TABLE_PREFIX = PREFIX + "TABLE_"
EMBEDDED = "embedded:"
"""Begins a value of ``engine``; the path of the local state's file follows."""
EPOCH_MAX = 99
RETENTION_DAYS_MIN = 30
"""Longer than a record may take to come back: one day in the stream, 28 in the failure bucket (template.yaml)."""
KEY_BYTES_MIN = 32
"""Length of the audit key: a key shorter than the hash's output weakens the digests (RFC 2104, section 3)."""
SWITCH = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}


def _setting(default: Any, text: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"text": text, "secret": secret})


@dataclass(frozen=True, slots=True)
class Settings:
    """The values that may differ between deployments of one application; ``origins`` tells where each came from."""

    tables: Mapping[str, str] = field(
        default_factory=dict, metadata={"text": "real names of tables, STREAMFOLD_TABLE_<NAME>"}
    )
    app: str | None = _setting(None, "the application that commands work on, MODULE:NAME; handlers:app if not set")
    engine: str | None = _setting(None, "a local state that lambda_handler works on instead of DynamoDB, embedded:FILE")
    state_table: str | None = _setting(None, "real name of the state table; <application>-state if not set")
    group: str | None = _setting(None, "the group of handlers that this function runs; all if not set")
    epoch: int = _setting(
        0, "raised by one at a failover to another region, and when a table comes through another source or is another"
    )
    chunk_actions: int = _setting(25, "writes in one transaction, 2 to 100")
    retention_days: int = _setting(
        RETENTION_DAYS_MIN, "how long claims and tombstones are kept; longer than the longest redrive"
    )
    stop_seconds: int = _setting(STOP_SECONDS, "no further call is begun when the invocation has less time left")
    park: str | None = _setting(None, "where failing records are put aside: s3://BUCKET/PREFIX, a queue's URL, a file")
    archive: str | None = _setting(
        None, "where archives go instead of their declared places: s3://BUCKET/PREFIX, file:FOLDER"
    )
    handlers_off: tuple[str, ...] = _setting((), "handlers that are switched off; their records are parked or skipped")
    older_code: bool = _setting(
        False, "code runs that lacks handlers of the state, as after a rollback; these are partial from then on"
    )
    logger: bool = _setting(True, "Powertools Logger in the Lambda function")
    metrics: bool = _setting(True, "Powertools Metrics in the Lambda function")
    tracer: bool = _setting(False, "Powertools Tracer in the Lambda function; needs aws-lambda-powertools[tracer]")
    audit_key: bytes | None = _setting(
        None, "the secret that history rows are signed with; rows have no digests if not set", secret=True
    )
    origins: Mapping[str, str] = field(default_factory=dict, metadata={"text": ""})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Reads ``STREAMFOLD_*``. Raises ``SettingsError`` for an unknown name or a value that does not fit."""
        values: dict[str, Any] = {"tables": {}}
        origins: dict[str, str] = {}
        for name, text in environment.items():
            if name.startswith(TABLE_PREFIX) and len(name) > len(TABLE_PREFIX):
                values["tables"][name[len(TABLE_PREFIX) :].lower()] = _text(name, text)
                origins["tables"] = TABLE_PREFIX + "<NAME>"
            elif name.startswith(PREFIX):
                setting = name[len(PREFIX) :].lower()
                if setting not in READERS:
                    raise SettingsError(
                        f"Setting {name} is not known: expected "
                        f"{', '.join(sorted(PREFIX + known.upper() for known in READERS))}, or {TABLE_PREFIX}<NAME>."
                    )
                values[setting] = READERS[setting](name, text)
                origins[setting] = name
        return cls(**values, origins=origins)

    def real_name(self, logical: str) -> str | None:
        """The real name that is set for a table; the environment knows it in upper case only."""
        return self.tables.get(logical) or self.tables.get(environment_name(logical).lower())

    def described(self) -> list[tuple[str, str, str, str]]:
        """Every setting as (name of the variable, value, origin, meaning)."""
        return [
            (
                PREFIX + setting.name.upper() if setting.name != "tables" else TABLE_PREFIX + "<NAME>",
                _shown(getattr(self, setting.name), secret=setting.metadata.get("secret", False)),
                self.origins.get(setting.name, "default"),
                setting.metadata["text"],
            )
            for setting in fields(self)
            if setting.name != "origins"
        ]


def undeclared_tables(settings: Settings, declared: Iterable[str]) -> list[str]:
    """What to say of each setting that gives the real name of a table that is not declared."""
    names = {environment_name(logical): logical for logical in declared}
    unknown = [name for name in settings.tables if environment_name(name) not in names]
    return [_undeclared(environment_name(name), names) for name in unknown]


def _undeclared(name: str, names: Mapping[str, str]) -> str:
    import difflib  # only needed where a name is wrong

    near = difflib.get_close_matches(name, names, n=1)
    known = ", ".join(f"{TABLE_PREFIX}{known} for table {logical!r}" for known, logical in names.items())
    hint = f"Did you mean {TABLE_PREFIX}{near[0]}?" if near else "It has no effect."
    return f"{TABLE_PREFIX}{name} names no table of the application: expected {known}. {hint}"


def environment_name(logical: str) -> str:
    """A table's logical name as part of an environment variable's name."""
    return "".join(character if character.isalnum() else "_" for character in logical).upper()


def _shown(value: Any, *, secret: bool = False) -> str:
    if secret:
        return "-" if value is None else "set"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={real}" for name, real in value.items()) or "-"
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)


def _switch(name: str, text: str) -> bool:
    if text.lower() not in SWITCH:
        raise SettingsError(f"Setting {name}={text!r} is no switch: expected on or off.")
    return SWITCH[text.lower()]


def _whole(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise SettingsError(
                f"Setting {name}={text!r} does not fit: expected a whole number from {least} to {most}."
            )
        return int(text)

    return read


def _text(name: str, text: str) -> str:
    if not text:
        raise SettingsError(f"Setting {name} is empty: give a value or leave it out.")
    return text


def _engine(name: str, text: str) -> str:
    if not text.startswith(EMBEDDED) or text == EMBEDDED:
        raise SettingsError(
            f"Setting {name}={text!r} names no engine: expected {EMBEDDED}FILE, or nothing for DynamoDB."
        )
    return text


def _secret(name: str, text: str) -> bytes:
    secret = text.encode(errors="surrogateescape")
    if len(secret) < KEY_BYTES_MIN:
        raise SettingsError(
            f"Setting {name} has {len(secret)} bytes: expected {KEY_BYTES_MIN} or more, drawn at random, for example "
            "what `openssl rand -base64 32` prints."
        )
    return secret


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise SettingsError(f"Setting {name}={text!r} is no list: expected names of handlers, NAME,NAME.")
    return names


READERS: dict[str, Callable[[str, str], Any]] = {
    "app": _text,
    "engine": _engine,
    "state_table": _text,
    "group": _text,
    "epoch": _whole(0, EPOCH_MAX),
    "chunk_actions": _whole(2, ACTIONS_MAX),
    "retention_days": _whole(RETENTION_DAYS_MIN, 3650),
    "stop_seconds": _whole(CALL_SECONDS_MAX, 900),
    "park": _text,
    "archive": _text,
    "handlers_off": _names,
    "older_code": _switch,
    "logger": _switch,
    "metrics": _switch,
    "tracer": _switch,
    "audit_key": _secret,
}
