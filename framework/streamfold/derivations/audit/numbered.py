"""Numbered versions, an option of an audit: a row for every number that the writer gave an item, and the latest.

The number is an attribute of the item, so a row is a function of one change, as all rows: a dense count of changes
would be none. The rows are puts of an ``on`` handler, whose guard lets no older change overwrite a newer one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from streamfold.derivations.audit.options import Recorded, recorded_of, refused_target
from streamfold.derivations.audit.rows import (
    expiry,
    fingerprint,
    is_recordable,
    own_change,
    row_bytes,
    row_head,
    time_of,
    wanted,
)
from streamfold.derivations.on.kind import ON, Filter
from streamfold.errors import DeclarationError, HandlerError, KeyValueError, reason
from streamfold.keys.key import Key
from streamfold.records.change import EVENTS, Change, Event
from streamfold.records.values import ITEM_BYTES_MAX
from streamfold.routes.effects import Delete, Put
from streamfold.routes.route import Fields, Route, owns

SUFFIX = "_versions"
"""The suffix of the name of the handler that keeps an audit's numbered versions."""
WRITES: frozenset[Event] = frozenset(["INSERT", "MODIFY"])
"""The events that leave an item, and so a version of it."""
ROW_NAMES = ("event", "at", "version", "fields", "actor", "left_out", "image", "redacted", "large")
"""The attributes of a version row, beside its key and its time to live."""
LATEST_NAMES = ("at", "key")
"""The attributes of the row that names the latest version, beside its key and the number."""
ROW_BYTES_MAX = ITEM_BYTES_MAX - 8 * 1024
"""Size of a version row without its key (3,072 bytes and two names), its owner (2 KB), its version and its time to
live."""
VALUE_BYTES = (None, *(ROW_BYTES_MAX >> halvings for halvings in range(11)))
"""Limits that are tried, until a row fits: a larger value is written as digest and size. None: no limit, which fits
every item that is not nearly as large, or as deep, as DynamoDB allows. The last limit, 392 bytes, is not much more than
the size of digest and size."""
VALUE_LEVEL = 2
"""The depth of a value in its row, if it was at level 1 in the item: below the image."""
VERSIONS_FORMAT, LATEST_FORMAT = (
    'Key("DOC#{document_id}", "v{revision:04d}")',
    'Key("DOC#{document_id}", "latest")',
)
"""Examples of the options, for messages."""


def numbered_route(audit: Route, versions: Any, latest: Any) -> Route:
    """The route that keeps numbered versions beside an audit.

    Raises ``DeclarationError`` for keys that may not give every version a row of its own.
    """
    who = f"audit at {audit.declared_at}"
    _check_kinds(who, versions, latest)
    for source in audit.sources:
        _check_versions(who, versions, source, recorded_of(audit))
        if latest is not None:
            _check_latest(who, latest, source, numbers_of(versions, source))
    if why := refused_target(recorded_of(audit), versions, ROW_NAMES, "versions"):
        raise DeclarationError(f"{who} has versions={versions!r}, and {why}")
    return _route(audit, versions, latest)


def numbers_of(versions: Key, source: Key) -> list[str]:
    """The fields of a version row's key that are attributes of the item: those that are not in the source's key."""
    return [name for name in versions.fields if name not in source.types]


def _route(audit: Route, versions: Key, latest: Key | None) -> Route:
    return Route(
        audit.name + SUFFIX,
        ON,
        audit.sources,
        (versions,) if latest is None else (versions, latest),
        _keeper(audit, versions, latest),
        audit.declared_at,
        audit.group,
        options=Filter(WRITES if latest is None else frozenset(EVENTS)),
        policy=audit.policy,
    )


def _keeper(audit: Route, versions: Key, latest: Key | None) -> Callable[[Change], Iterator[Put | Delete]]:
    """The handler that keeps the rows: the recorded contents of the item after each change, under its number."""

    def keep(change: Change) -> Iterator[Put | Delete]:
        own = own_change(change)
        if own is None:
            return  # only derived attributes changed: the row of that number is complete
        if own.new:
            fields = _source_fields(audit.sources, own)
            key = _row_key(audit.name, versions, fields, own.new)
            numbers = {name: own.new[name] for name in versions.fields if name not in fields}
            yield Put(versions, attributes=version_row(recorded_of(audit), own, versions), **numbers)
            if latest is not None:
                yield Put(latest, attributes={**numbers, **time_of(own), "key": key})
        elif latest is not None:
            yield Delete(latest)

    return keep


def _source_fields(sources: Sequence[Key], change: Change) -> Fields:
    """The fields of the item's key, by its source."""
    own = (source for source in sources if source.table.name == change.table.name)
    found = (source.match_values(*change.item[1:]) for source in own)
    return next(fields for fields in found if fields is not None)


def _row_key(name: str, versions: Key, fields: Fields, image: Mapping[str, Any]) -> dict[str, Any]:
    """The key of the row of an item's number. Raises ``HandlerError`` if the item has no number, or a wrong one."""
    values = dict(fields)
    for number in versions.fields:
        if number not in fields and number not in image:
            raise HandlerError(
                f"Audit {name!r} numbers versions by {versions.types[number]} of {versions!r}, but the item has no "
                f"attribute {number!r}: expected a number that its writer raises with each edit. Let every write of "
                'the item set it; with on_error="park" the records of items without it hold up no others.'
            )
        values.setdefault(number, image.get(number))
    try:
        return versions.attributes(*versions.compose(values))
    except KeyValueError as error:
        raise HandlerError(
            f"Audit {name!r} cannot number this version: {reason(error)} Let the writer give every edit a value that "
            f"{versions!r} takes."
        ) from None


def version_row(recorded: Recorded, change: Change, versions: Key) -> dict[str, Any]:
    """The attributes of the row of one version: a function of its change alone."""
    image, table = change.new, versions.table
    names = wanted(recorded, change, image)
    head = row_head(recorded, change)
    if redacted := [name for name in names if name in recorded.redact]:
        head["redacted"] = redacted
    values = {name: image[name] for name in names if name not in recorded.redact}
    row = _fitting(head, change.keys, values) | expiry(recorded, change, table)
    return {name: value for name, value in row.items() if name not in table.attributes}


def _fitting(head: dict[str, Any], key: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The row with as much of the item as fits; ``large`` and ``left_out`` name the rest."""
    for bytes_max in VALUE_BYTES:
        large = (
            ()
            if bytes_max is None
            else [name for name in values if not is_recordable(values[name], bytes_max, VALUE_LEVEL)]
        )
        row = {**head, "image": {**key, **{name: values[name] for name in values if name not in large}}}
        if large:
            row["large"] = {name: fingerprint(values[name]) for name in large}
        if row_bytes(row) <= ROW_BYTES_MAX:
            return row
    return {**head, "image": dict(key), "left_out": [*head.get("left_out", ()), "image"]}


def _check_kinds(who: str, versions: Any, latest: Any) -> None:
    if versions is None:
        raise DeclarationError(
            f"{who} has latest={latest!r} without versions=, whose newest it names: add versions={VERSIONS_FORMAT}."
        )
    for option, key, example in (("versions", versions, VERSIONS_FORMAT), ("latest", latest, LATEST_FORMAT)):
        if not isinstance(key, Key) and (option, key) != ("latest", None):
            raise DeclarationError(f"{who} has {option}={key!r}: expected one Key, {option}={example}.")


def _check_versions(who: str, versions: Key, source: Key, recorded: Recorded) -> None:
    _check_owned(f"{who} has versions={versions!r}", versions, source)
    numbers = numbers_of(versions, source)
    if not numbers:
        raise DeclarationError(
            f"{who} has versions={versions!r}, which has no field beyond those of {source!r}: all versions of an item "
            "would be one row. Add the attribute that the writer raises with each edit, for example {revision:04d}."
        )
    if redacted := sorted(recorded.redact.intersection(numbers)):
        raise DeclarationError(
            f"{who} has versions={versions!r}, whose {redacted[0]!r} redact= names too: the key of a row would hold "
            "the value in clear. Leave one of them out."
        )


def _check_latest(who: str, latest: Key, source: Key, numbers: Sequence[str]) -> None:
    what = f"{who} has latest={latest!r}"
    _check_owned(what, latest, source)
    if beyond := [name for name in latest.fields if name not in source.types]:
        raise DeclarationError(
            f"{what}, whose field {beyond[0]!r} is none of {source!r}: expected one row for each item, which its key "
            "alone can name. Leave the field out."
        )
    table = latest.table
    if taken := [name for name in numbers if name in (*LATEST_NAMES, *table.attributes, table.ttl)]:
        raise DeclarationError(
            f"{what}, whose rows hold {', '.join(LATEST_NAMES)}, the table's own attributes and the number, and "
            f"{taken[0]!r} is two of them: number versions by an attribute of another name."
        )


def _check_owned(what: str, key: Key, source: Key) -> None:
    """Refuses a key under which two items could share one row."""
    if not owns(key, source):
        missing = ", ".join(str(field) for name, field in source.types.items() if name not in key.types)
        raise DeclarationError(
            f"{what}, which does not hold every field of {source!r}: rows of several items would be one. "
            f"Missing: {missing or 'a field of the same type'}."
        )
