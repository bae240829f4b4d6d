"""How the text of each setting is read. Every reader raises ``SettingsError`` for a wrong text."""

import re
from collections.abc import Callable
from errno import EACCES, ENAMETOOLONG
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from streamfold.errors import SettingsError, shortened
from streamfold.settings.limits import ACTIONS_MAX, CALL_SECONDS_MAX, LANES_MAX

PREFIX = "STREAMFOLD_"
EMBEDDED = "embedded:"
"""Begins a value of ``engine``; the path of the local state's file follows."""
FOLDER = "file:"
"""Begins a value that names a folder of this machine."""
EPOCH_MAX = 99
KEY_BYTES_MIN = 32
"""Length of the audit key: a key shorter than the hash's output weakens the digests (RFC 2104, section 3)."""
SERVICES = ("es", "aoss", "none")
"""The service that requests to a search server are signed for: a domain, a Serverless collection, or none."""
OBSERVE = ("lines", "powertools", "traced", "off")
"""Who writes the log and the metrics of a function; ``traced`` adds a tracer to ``powertools``."""
SWITCH = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}
DIGITS_MAX = 20
"""A text with more digits is no number of a setting, and Python reads no more than 4,300 (int_max_str_digits)."""
QUOTED_LETTERS_MAX = 100
"""Of a text that may be of any length, in a message."""
NO_FILE = {EACCES: "its folder may not be read", ENAMETOOLONG: "it is longer than the file system takes"}
OWNER_ONLY = 0o600
"""The mode of files that hold contents or keys of items: states, recordings, parked records, keys that failed."""
RETENTION_DAYS_MIN = 30
"""Longer than a record may take to come back: one day in the stream, 28 in the failure bucket (template.yaml)."""
SECRET_STORES = {"secretsmanager": r"[\w/+=.@:-]+", "ssm": r"[\w/.:-]+"}
"""What holds a secret that a setting refers to, with the names that it takes: an ARN too (API References, CreateSecret,
PutParameter)."""
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


class SecretReference(NamedTuple):
    """A secret in place of its value: ``secretsmanager:NAME``, ``secretsmanager:NAME#FIELD`` or ``ssm:NAME``."""

    store: str
    name: str
    field: str = ""  # of a secret that is an object of JSON

    def __str__(self) -> str:
        return f"{self.store}:{self.name}{'#' * bool(self.field)}{self.field}"


def is_loopback(url: str | None) -> bool:
    """Whether a URL names this machine: ``localhost``, or an address of 127.0.0.0/8 or ``::1`` (RFC 6890).

    A name such as ``127.example.com`` belongs to another machine.
    """
    host = urlsplit(url or "").hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _switch(name: str, text: str) -> bool:
    if text.lower() not in SWITCH:
        raise SettingsError(f"Setting {name}={text!r} is no switch: expected on or off.")
    return SWITCH[text.lower()]


def _whole(minimum: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not text.isdecimal() or len(text) > DIGITS_MAX or not minimum <= int(text) <= most:
            value = shortened(text, QUOTED_LETTERS_MAX)
            raise SettingsError(
                f"Setting {name}={value!r} does not fit: expected a whole number from {minimum} to {most}."
            )
        return int(text)

    return read


def read_text(name: str, text: str) -> str:
    if not text:
        raise SettingsError(f"Setting {name} is empty: give a value or leave it out.")
    return text


def read_path(what: str, text: str) -> Path:
    """The path that a text names for ``what``. Raises ``SettingsError`` for one that no file here can have.

    An empty text, from a shell variable that is not set, would name the current folder.
    """
    why = "" if text else "it is empty"
    try:
        text.encode()
        Path(text).stat()
    except UnicodeEncodeError:
        why = "it is no text in UTF-8"
    except ValueError:  # of stat
        why = "it holds a NUL"
    except OSError as error:
        why = NO_FILE.get(error.errno or 0, "")  # any other: there is no such file yet
    if why:
        raise SettingsError(f"{what} {shortened(text, QUOTED_LETTERS_MAX)!a} can be no file: {why}. Name another.")
    return Path(text)


def make_private(file: Path) -> None:
    """Makes a missing file that only its owner may read: it will hold contents or keys of items.

    Raises ``OSError`` where it cannot be made.
    """
    if not file.exists():
        file.touch(OWNER_ONLY)


def _engine(name: str, text: str) -> str:
    if not text.startswith(EMBEDDED) or text == EMBEDDED:
        raise SettingsError(
            f"Setting {name}={text!r} names no engine: expected {EMBEDDED}FILE, or nothing for DynamoDB."
        )
    return text


def _folder(name: str, text: str) -> str:
    if not text.startswith(FOLDER) or text == FOLDER:
        raise SettingsError(f"Setting {name}={text!r} names no folder: expected {FOLDER}FOLDER.")
    return text


def _url(name: str, text: str) -> str:
    """The text is quoted only where it can hold no password."""
    try:
        parts = urlsplit(text)
        valid = bool(parts.hostname) and parts.port != 0 and parts.scheme in ("https", "http")
    except ValueError:
        valid = False
    if not valid or any(mark in text for mark in "@?# "):
        raise SettingsError(
            f"Setting {name} is no URL of a server: expected https://HOST, without a user, a query or a fragment. "
            f"{PREFIX}SEARCH_USER and {PREFIX}SEARCH_PASSWORD name a user."
        )
    _check_encrypted(name, text, "https://HOST")
    return text.rstrip("/")


def _check_encrypted(name: str, url: str, expected: str) -> None:
    if urlsplit(url).scheme == "http" and not is_loopback(url):
        raise SettingsError(
            f"Setting {name}={url!r} is not encrypted: expected {expected}. Plain http is for this machine only: "
            "localhost, 127.0.0.1, ::1."
        )


def _queue(name: str, text: str) -> str:
    """The URL of a standard queue: a FIFO queue would hold segments behind one another."""
    try:
        parts = urlsplit(text)
        valid = bool(parts.hostname and parts.path.strip("/") and parts.port != 0) and parts.scheme in ("https", "http")
    except ValueError:
        valid = False
    if not valid or text.endswith(".fifo") or any(mark in text for mark in "@?# "):
        shown = "" if "@" in text else f"={text!r}"  # before an @ there may be a password
        raise SettingsError(
            f"Setting {name}{shown} is no URL of a standard queue: expected https://sqs.REGION.amazonaws.com/ACCOUNT/"
            "NAME, not a FIFO queue, which would hold segments behind one another."
        )
    _check_encrypted(name, text, "https://sqs.REGION.amazonaws.com/ACCOUNT/NAME")
    return text


def _one_of(*known: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in known:
            raise SettingsError(f"Setting {name}={text!r} is not known: expected {', '.join(known)}.")
        return text

    return read


def secret_reference(name: str, text: object) -> SecretReference | None:
    """The reference that a setting's text is; None for one that is the secret itself, and for another value.

    Raises ``SettingsError`` for a reference to no secret.
    """
    store, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if store not in SECRET_STORES:
        return None
    secret, mark, field = rest.partition("#")
    is_named = re.fullmatch(SECRET_STORES[store], secret, re.ASCII) is not None
    if not is_named or bool(mark) != bool(field) or (field and store == "ssm"):
        raise SettingsError(
            f"Setting {name} begins with {store}: and refers to no secret: expected secretsmanager:NAME, "
            "secretsmanager:NAME#FIELD of an object of JSON, or ssm:NAME."
        )
    return SecretReference(store, secret, field)


def _password(name: str, text: str) -> str | SecretReference:
    return secret_reference(name, text) or read_text(name, text)


def _key(name: str, text: str) -> bytes | SecretReference:
    return secret_reference(name, text) or read_key(f"Setting {name}", text)


def read_key(what: str, text: str) -> bytes:
    """The key of history's digests. Raises ``SettingsError`` for one that is too short; the message has its length."""
    secret = text.encode(errors="surrogateescape")
    if len(secret) < KEY_BYTES_MIN:
        raise SettingsError(
            f"{what} has {len(secret)} bytes: expected {KEY_BYTES_MIN} or more, drawn at random, for "
            "example by `openssl rand -base64 32`."
        )
    return secret


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise SettingsError(f"Setting {name}={text!r} is no list: expected names of handlers, NAME,NAME.")
    return names


READERS: dict[str, Callable[[str, str], Any]] = {
    "app": read_text,
    "engine": _engine,
    "role": read_role,
    "state_table": read_text,
    "group": read_text,
    "epoch": _whole(0, EPOCH_MAX),
    "chunk_actions": _whole(2, ACTIONS_MAX),
    "lanes": _whole(1, LANES_MAX),
    "retention_days": _whole(RETENTION_DAYS_MIN, 3650),
    "stop_seconds": _whole(CALL_SECONDS_MAX, 900),
    "park": read_text,
    "jobs": _queue,
    "archive": read_text,
    "publish": _folder,
    "search": _url,
    "search_service": _one_of(*SERVICES),
    "search_user": read_text,
    "search_password": _password,
    "search_ca": read_text,
    "handlers_off": _names,
    "gate_seconds": _whole(0, 86_400),
    "older_code": _switch,
    "observe_handlers": _switch,
    "observe": _one_of(*OBSERVE),
    "audit_key": _key,
}
"""How each setting is read: from the name of its variable and its text."""
