"""Checks of audits, made when they are declared."""

from collections.abc import Sequence
from itertools import combinations

from streamfold.derivations.audit.options import default_target, recorded_of, refused_target
from streamfold.errors import DeclarationError
from streamfold.keys.field import Unreadable
from streamfold.keys.key import Key
from streamfold.keys.table import Table, merged
from streamfold.routes.declaration import Into, target_keys
from streamfold.routes.route import Route, Target

AUDIT_FIELDS = ("item", "version")
"""What fills the key of an audit row, beside the fields of the source's key."""


def audit_template(route: Route, tenant: str) -> str:
    """A partition for history rows that overlaps none of the application's, which begin with the field, or do not."""
    source, field = route.sources[0], f"{{{tenant}}}"
    parts = [field, "AUDIT"] if source.partition.text.startswith(str(source.types[tenant])) else ["AUDIT", field]
    return source.table.delimiter.join([*parts, "{item:rest}"])


def audit_targets(into: Into | None, sources: tuple[Key, ...], at: str) -> tuple[Key, ...]:
    """The key of the history rows; without ``into``, the default key in each source's table.

    Raises ``DeclarationError`` for several keys, and for a table that the default key does not fit.
    """
    if into is None:
        tables: dict[str, Table] = {}
        for source in sources:
            known = tables.get(source.table.name, source.table)
            tables[source.table.name] = merged(known, source.table) or known
        return tuple(dict.fromkeys(_default_target(source, tables[source.table.name], at) for source in sources))
    targets = target_keys(into, at)
    if len(targets) > 1:
        raise DeclarationError(f"audit at {at} has into={into!r}: expected one Key.")
    return targets


def _default_target(source: Key, table: Table, at: str) -> Key:
    if source.table.sort is None or any(part.attribute_type != "S" for part in source.parts):
        raise DeclarationError(
            f"audit at {at}: rows for {source!r} cannot go to the default target, because table {source.table.name!r} "
            "does not have a text partition and sort key. Give one: "
            'into=Key("AUDIT#{item:rest}", "{version:rest}", table=...).'
        )
    return default_target(table)


def check_audit(route: Route, target: Target) -> None:
    who, key = f"Audit {route.name!r} ({route.declared_at})", target.key
    if not (target.owned and "version" in key.types and _takes_audit_texts(key)):
        raise DeclarationError(
            f"{who} writes {key!r}: expected a template with {{version:rest}} and either {{item:rest}} or every field "
            "of the source's key, so that each change has a row of its own."
        )
    keys = {name for source in route.sources for name in source.table.attributes}
    if redacted := sorted(recorded_of(route).redact & keys):
        raise DeclarationError(
            f"{who} has redact={redacted!r}: key attributes never stand among the changes, but an item's key is part "
            "of its rows' keys, in clear. Leave them out, and keep what is to be redacted out of keys."
        )
    filled = set.intersection(*(set(source.types) for source in route.sources))
    if unknown := sorted(key.types.keys() - filled - set(AUDIT_FIELDS)):
        raise DeclarationError(f"{who}: nothing fills {', '.join(unknown)} of {key!r}.")
    if why := refused_target(recorded_of(route), key):
        raise DeclarationError(f"{who} {why}")


def check_histories(routes: Sequence[Route]) -> None:
    """Refuses one target for the histories of two tables in which an item could have the same key."""
    audits = [(route, source, _history(route, source)) for route in routes for source in route.sources]
    for (one, source, key), (other, other_source, other_key) in combinations(audits, 2):
        if source.table.name != other_source.table.name and key == other_key and _mix(key, source, other_source):
            raise DeclarationError(
                f"Audit {one.name!r} ({one.declared_at}) of {source!r} and audit {other.name!r} ({other.declared_at}) "
                f"of {other_source!r} write one target, {key!r}: items of two tables with the same key would share one "
                "history. Give each table a target of its own, for example "
                'Key("AUDIT#MUSIC#{item:rest}", "{version:rest}").'
            )


def _history(route: Route, source: Key) -> Key:
    """The target that the history of a source's items goes to: the only one, or the one in their table."""
    return next((key for key in route.into if key.table.name == source.table.name), route.into[0])


def _mix(target: Key, one: Key, other: Key) -> bool:
    """Whether two sources could make one partition of a target: by their keys where it names the item."""
    return one.alike(other) if "item" in target.types else True


def _takes_audit_texts(key: Key) -> bool:
    """Whether the fields for item and version take any name of an item and any version."""
    like = {"item": f"ORDER{key.table.delimiter}1|METADATA", "version": "00/2026-03-01T10:00:00.000/0000"}
    try:
        return all(key.types[name].write(text) for name, text in like.items() if name in key.types)
    except Unreadable:
        return False
