"""The declaration of an audit: what its rows record, their target, and how its rows and items are named."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.errors import DeclarationError
from streamfold.keys.field import Unreadable
from streamfold.keys.key import Key
from streamfold.keys.table import RESERVED_PREFIX, merged
from streamfold.records.change import name_components, typed_values
from streamfold.routes.declaration import target_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamfold.keys.key import KeyValues
    from streamfold.keys.table import Table
    from streamfold.routes.declaration import Into
    from streamfold.routes.route import Route, Target

KEEP_DAYS_MAX = 36_500
"""A century; a row without an end has no ``keep_days``."""
ROW_NAMES = (
    "event", "at", "item", "version", "changes", "unchanged", "fields", "left_out", "expired", "actor", "digests"
)  # fmt: skip
"""The attributes of a history row, beside its key and its time to live."""
NAMED = {"item", "version"}
"""Of these, the names that the key of a row may hold too."""

DIGEST = "sha256:[0-9a-f]{64}"
"""The name of an item whose key is too long for one."""

AUDIT_FIELDS = ("item", "version")
"""Fields of an audit row's key beside the fields of the source's key."""


class Recorded(NamedTuple):
    """The contents of a history row."""

    redact: frozenset[str] = frozenset()  # attributes whose values are never written
    fields: frozenset[str] | None = None  # the only attributes that are recorded; None for all
    actor: str | None = None  # the attribute with the writer's identity
    unchanged: bool = True  # whether a row also holds the attributes that its change left alone
    keep_days: int | None = None  # after how many days a row expires; None for never

    def shows(self, name: str) -> bool:
        """Whether the values of an attribute are written."""
        return name not in self.redact and (self.fields is None or name in self.fields)


def recorded_of(route: Route) -> Recorded:
    """The contents of an audit's history rows."""
    assert isinstance(route.options, Recorded)
    return route.options


AUDIT = Key("AUDIT#{item:rest}", "{version:rest}")
"""The default target of ``audit``: one partition per item, its changes in order.

``AUDIT.query(item=audit_item(ORDER.key(order_id="1")))`` returns the history of one order; see ``streamfold.read``.
"""


def default_target(table: Table) -> Key:
    """The target of history rows without a declared one."""
    return AUDIT if table == AUDIT.table else Key("AUDIT#{item:rest}", "{version:rest}", table=table)


def checked_recorded(
    at: str,
    redact: Collection[str],
    fields: Collection[str] | None,
    actor: str | None,
    unchanged: bool,  # noqa: FBT001 - a declaration's options, passed on
    keep_days: int | None,
) -> Recorded:
    """The recorded contents of an audit declared at ``at``. Raises ``DeclarationError`` for impossible options."""
    recorded = Recorded(
        _names("redact", redact, at),
        None if fields is None else _names("fields", fields, at),
        actor,
        unchanged,
        keep_days,
    )
    if recorded.fields is not None and not recorded.fields:
        raise DeclarationError(f"audit at {at} has fields=[]: expected names of attributes, or no fields= for all.")
    if not isinstance(unchanged, bool):
        raise DeclarationError(f"audit at {at} has unchanged={unchanged!r}: expected True or False.")
    _check_actor(recorded, at)
    _check_days(keep_days, at)
    return recorded


def plain_row(target: Key, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A stored row in plain values, always with ``item`` and ``version``; None if it is no row of the target.

    If the table's key attributes have these names, the values are read from the row's key.
    """
    fields = target.match(row)
    return None if fields is None else {**row, **{name: fields[name] for name in NAMED if name in fields}}


def item_values(source: Key, item: str) -> KeyValues | None:
    """The key values of the item with this name; None if it is not of the source, or if its name is a digest."""
    components = [] if re.fullmatch(DIGEST, item) else name_components(item)
    values = typed_values(source, components[0], *components[1:] or (None,)) if 1 <= len(components) <= 2 else None
    return None if values is None or source.match_values(*values) is None else values


def refused_target(
    recorded: Recorded, target: Key, names: tuple[str, ...] = ROW_NAMES, option: str = "into"
) -> str | None:
    """Why an audit's rows with attributes of these names cannot go to a target; None if they can."""
    table = target.table
    if recorded.keep_days is not None and table.ttl is None:
        return (
            f"has keep_days={recorded.keep_days}, but table {table.name!r} declares no time-to-live attribute: "
            f'Table({table.name!r}, ttl="expires"), and switch it on for the real table.'
        )
    taken = [name for name in table.attributes if name in names and name not in (NAMED & target.types.keys())]
    if recorded.keep_days is not None and table.ttl in names:
        taken.append(table.ttl)
    if taken:
        return (
            f"writes rows with the attributes {', '.join(names)}, of which {taken[0]!r} is an attribute of table "
            f"{table.name!r} itself: give the history a table of its own, {option}=Key(..., table=...)."
        )
    return None


def _names(option: str, names: Any, at: str) -> frozenset[str]:
    if isinstance(names, str):
        raise DeclarationError(f'audit at {at} has {option}={names!r}: expected a list of names, ["{names}"].')
    if not isinstance(names, Collection) or not all(isinstance(name, str) and name for name in names):
        raise DeclarationError(f"audit at {at} has {option}={names!r}: expected names of attributes, as text.")
    return frozenset(names)


def _check_actor(recorded: Recorded, at: str) -> None:
    actor: Any = recorded.actor
    if actor is None:
        return
    if not isinstance(actor, str) or not actor or actor.startswith(RESERVED_PREFIX):
        raise DeclarationError(
            f"audit at {at} has actor={actor!r}: expected the name of the attribute with each writer's identity, "
            'actor="updated_by".'
        )
    if actor in recorded.redact:
        raise DeclarationError(
            f"audit at {at} has actor={actor!r}, which redact= names too: a row would hold the value after all. "
            "Leave one of them out."
        )


def _check_days(keep_days: Any, at: str) -> None:
    if keep_days is None:
        return
    if isinstance(keep_days, bool) or not isinstance(keep_days, int) or not 1 <= keep_days <= KEEP_DAYS_MAX:
        raise DeclarationError(
            f"audit at {at} has keep_days={keep_days!r}: expected a whole number from 1 to {KEEP_DAYS_MAX}."
        )


def audit_template(route: Route, tenant: str) -> str:
    """A partition of history rows that overlaps none of the application, wherever the field is."""
    source, field = route.sources[0], f"{{{tenant}}}"
    components = [field, "AUDIT"] if source.partition.text.startswith(str(source.types[tenant])) else ["AUDIT", field]
    return source.table.delimiter.join([*components, "{item:rest}"])


def audit_targets(into: Into | None, sources: tuple[Key, ...], at: str) -> tuple[Key, ...]:
    """The key of the history rows; without ``into``, the default key in each source's table.

    Raises ``DeclarationError`` for several keys, and for a table that cannot hold the default key.
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
    if source.table.sort is None or any(component.attribute_type != "S" for component in source.parts):
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
            f"{who} has redact={redacted!r}: key attributes are never among the changes, but an item's key is part "
            "of its rows' keys, in clear. Leave them out, and keep what is to be redacted out of keys."
        )
    filled = set.intersection(*(set(source.types) for source in route.sources))
    if unknown := sorted(key.types.keys() - filled - set(AUDIT_FIELDS)):
        raise DeclarationError(f"{who}: nothing fills {', '.join(unknown)} of {key!r}.")
    if why := refused_target(recorded_of(route), key):
        raise DeclarationError(f"{who} {why}")


def check_histories(routes: Sequence[Route]) -> None:
    """Refuses one target for the histories of two tables if items of both could have the same key."""
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
    return next((key for key in route.into if key.table.name == source.table.name), route.into[0])


def _mix(target: Key, one: Key, other: Key) -> bool:
    # A partition that names the item is shared only by items with the same key.
    return one.alike(other) if "item" in target.types else True


def _takes_audit_texts(key: Key) -> bool:
    """Whether the fields for item and version take every name of an item and every version."""
    like = {"item": f"ORDER{key.table.delimiter}1|METADATA", "version": "00/2026-03-01T10:00:00.000/0000"}
    try:
        return all(key.types[name].write(text) for name, text in like.items() if name in key.types)
    except Unreadable:
        return False
