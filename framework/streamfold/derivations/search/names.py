"""The names of indexes, and the ids of documents."""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from streamfold.errors import DeclarationError, HandlerError, SettingsError, told
from streamfold.keys.field import Field
from streamfold.keys.key_part import KeyPart, KeyValue
from streamfold.records.change import ItemKey
from streamfold.records.numbers import number_text
from streamfold.settings import INDEX_PREFIX, environment_name

GONE = "_sf_gone"
"""The field that hides a document whose item is gone: the alias filters it out."""
GONE_AT = "_sf_at"
"""The field of a hidden document that says when it was hidden, in epoch milliseconds."""
CODE = "_sf_h"
"""The field that holds a digest of the handler's code."""
MADE = "~"
"""Begins what the framework adds to the name of an index. No search, setting or tenant can have it in a name: templates
may not hold it (``check_index``), and in the value of a field it is escaped."""
NEXT = MADE + "next"
"""Ends the alias of a search that is to take over the index of another (``replaces=``)."""
NUMBERED = "{}" + MADE + "{:06}"
"""The name of an index behind an alias. A rebuild counts on."""
OWN = MADE + "write"
"""Ends the alias that only one index has: documents are sent to that index through it, and never to one that a server
would make by itself because it is gone."""
NAME_BYTES_MAX = 255
"""Length of an index's name (OpenSearch, CreateIndexRequest; ``MetadataCreateIndexService``)."""
INDEX_BYTES_MAX = NAME_BYTES_MAX - len(OWN) - len(NUMBERED.format("", 1)) - len(NEXT)
"""Length of the name that a search gives: what the framework adds to it has to fit too."""
LITERAL = re.compile(r"[a-z0-9._-]*")
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
FIRST = re.compile(r"[a-z0-9{]")
ID_BYTES_WHOLE = 480
"""Longer ids are cut and get a digest: the limit is ``ID_BYTES_MAX``."""
ID_BYTES_KEPT = 400


def check_index(index: KeyPart, at: str) -> None:
    """Raises ``DeclarationError`` for a template whose names an index cannot have."""
    literals = [piece for piece in index.pieces if isinstance(piece, str)]
    if not FIRST.match(index.text) or not all(map(LITERAL.fullmatch, literals)):
        raise DeclarationError(
            f"search at {at} has to={index.text!r}: the name of an index has small letters, digits, '-', '_' and '.', "
            "and begins with a letter or a digit."
        )


def setting_name(index: KeyPart) -> str:
    """The name of an index in settings, STREAMFOLD_INDEX_<NAME>: its template without fields and what is left over."""
    literals = (piece for piece in index.pieces if isinstance(piece, str))
    return "".join(literals).strip("-_.") or index.fields[0].name


def setting_variable(index: KeyPart) -> str:
    """The environment variable that gives an index its real name."""
    return INDEX_PREFIX + environment_name(setting_name(index))


def real_template(index: KeyPart, real: str | None) -> KeyPart:
    """The template of an index's real names. Raises ``SettingsError`` for a setting that has other fields."""
    if real is None:
        return index
    try:
        template = KeyPart(real, "#", INDEX_BYTES_MAX)
        check_index(template, "a setting")
    except DeclarationError as error:
        raise SettingsError(f"{setting_variable(index)}={real!r} names no index: {error}") from None
    mine, theirs = ({field.name for field in part.fields} for part in (index, template))
    if mine != theirs:
        wanted = ", ".join(f"{{{name}}}" for name in sorted(mine)) or "none"
        raise SettingsError(
            f"{setting_variable(index)}={real!r}: expected the fields {wanted}, as to={index.text!r} has them."
        )
    return template


def index_name(index: KeyPart, fields: Mapping[str, Any]) -> str:
    """The name of the index for an item with these fields.

    Values are escaped, so that two values never give one name: capital letters, and what an index's name cannot hold.
    Raises ``HandlerError`` for a name that is too long.
    """
    safe = "" if len(index.fields) > 1 else "-"
    name = "".join(_piece(piece, fields, safe) for piece in index.pieces)
    if len(name) > INDEX_BYTES_MAX:
        raise HandlerError(f"Index {told(name)} has {len(name)} letters: a name has {INDEX_BYTES_MAX} at most.")
    return name


def own_alias(index: str) -> str:
    """The alias that one index alone has."""
    return index + OWN


def alias_of(name: str) -> str:
    """The alias that a name belongs to: that of an index behind it, one that only such an index has, or an alias."""
    index = name.removesuffix(OWN)
    alias, mark, number = index.rpartition(MADE)
    return alias if mark and number.isdecimal() else index


def _piece(piece: str | Field, fields: Mapping[str, Any], safe: str) -> str:
    if isinstance(piece, str):
        return piece
    text = str(piece.write(fields[piece.name]))
    return "".join(letter if letter in PLAIN or letter in safe else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02x}" for byte in letter.encode())


def key_id(item: ItemKey, *, names_table: bool) -> str:
    """The id of the document of an item: its key, with ``|`` between the parts and ``%`` and ``|`` escaped in them."""
    table, *values = item
    parts = [_key_text(value) for value in values if value is not None]
    return shortened_id("|".join([table, *parts] if names_table else parts))


def _key_text(value: KeyValue) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.replace("%", "%25").replace("|", "%7C") if isinstance(value, str) else number_text(value)


def shortened_id(text: str) -> str:
    """An id that an index takes: a long one is cut, and ends with a digest."""
    content = text.encode()
    if len(content) <= ID_BYTES_WHOLE:
        return text
    return f"{content[:ID_BYTES_KEPT].decode(errors='ignore')}~{sha256(content).hexdigest()}"


def in_path(text: str) -> str:
    """A name or an id as a part of an URL."""
    return quote(text, safe="")
