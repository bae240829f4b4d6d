"""What an index is created with: its mapping and its settings, from files or from names of types."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamfold.derivations.search.names import CODE, GONE, GONE_AT
from streamfold.errors import DeclarationError
from streamfold.keys.table import RESERVED_PREFIX

FieldTypes = Mapping[str, str | Mapping[str, Any]]
"""The fields of a mapping by name: a type, "text", or all that OpenSearch has to know of the field."""
OWN_FIELDS: Mapping[str, Any] = {
    GONE: {"type": "boolean"},
    GONE_AT: {"type": "date", "format": "epoch_millis"},
    CODE: {"type": "keyword"},
}
"""The framework's own fields. Unmapped, the alias's filter would find nothing and every hidden document would show."""
DETAILS: Mapping[str, Mapping[str, Any]] = {"scaled_float": {"scaling_factor": 100}}
"""What a type needs beside its name, where ``fields=`` gives the name alone."""


def index_mapping(path: str | None, fields: FieldTypes | None, at: str) -> Mapping[str, Any]:
    """The mapping of an index. Nothing is inferred from documents unless it says so: ``dynamic`` is false.

    Raises ``DeclarationError`` for a file that is no mapping, and where neither or both are given.
    """
    if (path is None) == (fields is None):
        raise DeclarationError(
            f'search at {at} needs mapping= or fields=, and not both: mapping="mappings/products.json", or '
            'fields={"title": "text", "price": "scaled_float"}.'
        )
    given = _of_fields(fields, at) if fields is not None else _read(path, "mapping", at)
    given = given.get("mappings", given)
    properties = given.get("properties") if isinstance(given, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        raise DeclarationError(f'search at {at} has mapping={path!r}: expected an object with "properties".')
    for name in properties:
        if name.startswith(RESERVED_PREFIX):
            raise DeclarationError(
                f"search at {at} maps {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved."
            )
    return {"dynamic": False, **given, "properties": {**properties, **OWN_FIELDS}}


def index_settings(path: str | None, at: str) -> Mapping[str, Any]:
    """The settings of an index: analyzers, synonyms, shards. Raises ``DeclarationError`` for a file that has none."""
    if path is None:
        return {}
    given = _read(path, "settings", at)
    settings = given.get("settings", given)
    if not isinstance(settings, Mapping):
        raise DeclarationError(f"search at {at} has settings={path!r}: expected an object of settings.")
    return settings


def _of_fields(fields: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) and name for name in fields):
        raise DeclarationError(f'search at {at} has fields={fields!r}: expected types by name, {{"title": "text"}}.')
    return {"properties": {name: _field(name, given, at) for name, given in fields.items()}}


def _field(name: str, given: object, at: str) -> Mapping[str, Any]:
    if isinstance(given, str) and given:
        return {"type": given, **DETAILS.get(given, {})}
    if isinstance(given, Mapping) and given:
        return given
    raise DeclarationError(f'search at {at} has the field {name!r}: {given!r} is no type; expected "text" or a dict.')


def _read(path: object, what: str, at: str) -> dict[str, Any]:
    """The object in a JSON file, which lies beside the file of the declaration or below it."""
    if not isinstance(path, str) or not path:
        raise DeclarationError(f'search at {at} has {what}={path!r}: expected a file, {what}="{what}s/products.json".')
    file = Path(at.rpartition(":")[0]).parent / path
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclarationError(
            f"search at {at} has {what}={path!r}: {file} cannot be read ({error.strerror})."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DeclarationError(f"search at {at} has {what}={path!r}, which is no JSON ({error}).") from None
    if not isinstance(found, dict):
        raise DeclarationError(f"search at {at} has {what}={path!r}: expected an object, found {type(found).__name__}.")
    return found
