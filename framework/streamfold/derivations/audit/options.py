"""The options of an audit: which attributes its rows hold, who made a change, and how long rows are kept."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from streamfold.errors import DeclarationError
from streamfold.keys.key import Key, KeyValues
from streamfold.keys.table import RESERVED_PREFIX, Table
from streamfold.records.item_names import item_parts
from streamfold.records.numbers import decode_number
from streamfold.routes.route import Route

KEEP_DAYS_MAX = 36_500
"""A century; a row that is to stay for good has no ``keep_days``."""
ROW_NAMES = (
    "event", "at", "item", "version", "changes", "unchanged", "fields", "left_out", "expired", "actor", "digests"
)  # fmt: skip
"""The attributes of a history row, beside its key and its time to live."""
NAMED = {"item", "version"}
"""Of these, what the key of a row may hold too."""

READERS: Mapping[str, Callable[[str], Any]] = {"S": str, "N": decode_number, "B": bytes.fromhex}
"""How a key attribute is read from an item's name or as it was typed, by its type; bytes are in hexadecimal."""
DIGEST = "sha256:[0-9a-f]{64}"
"""The name of an item whose key is too long for one."""


class Recorded(NamedTuple):
    """What a history row holds."""

    redact: frozenset[str] = frozenset()  # attributes whose values are never written
    fields: frozenset[str] | None = None  # the only attributes that are recorded; None for all
    actor: str | None = None  # the attribute in which a writer says who it is
    unchanged: bool = True  # whether a row also holds the attributes that its change left alone
    keep_days: int | None = None  # after how many days a row expires; None for never

    def shows(self, name: str) -> bool:
        """Whether the values of an attribute are written."""
        return name not in self.redact and (self.fields is None or name in self.fields)


def recorded_of(route: Route) -> Recorded:
    """What the history rows of an audit hold."""
    assert isinstance(route.options, Recorded)
    return route.options


AUDIT = Key("AUDIT#{item:rest}", "{version:rest}")
"""The default target of ``audit``: one partition per item, its changes in order.

``AUDIT.query(item=audit_item(ORDER.key(order_id="1")))`` gives the history of one order; see ``streamfold.read``.
"""


def default_target(table: Table) -> Key:
    """Where history rows go that no target is named for."""
    return AUDIT if table == AUDIT.table else Key("AUDIT#{item:rest}", "{version:rest}", table=table)


def checked_recorded(
    at: str,
    redact: Collection[str],
    fields: Collection[str] | None,
    actor: str | None,
    unchanged: bool,  # noqa: FBT001 - a declaration's options, passed on
    keep_days: int | None,
) -> Recorded:
    """What an audit declared at ``at`` records. Raises ``DeclarationError`` for what cannot be."""
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
    """The key values of the item with this name; None for one that is not of the source, or whose name is a digest."""
    parts = [] if re.fullmatch(DIGEST, item) else item_parts(item)
    values = typed_values(source, parts[0], *parts[1:] or (None,)) if 1 <= len(parts) <= 2 else None
    return None if values is None or source.match_values(*values) is None else values


def typed_values(source: Key, partition: str, sort: str | None) -> KeyValues | None:
    """Texts as the values of a source's key; None where it is of another type."""
    if (sort is None) != (source.sort is None):
        return None
    try:
        first = READERS[source.partition.attribute_type](partition)
        second = None if sort is None or source.sort is None else READERS[source.sort.attribute_type](sort)
    except (ArithmeticError, ValueError):
        return None
    return first, second


def refused_target(
    recorded: Recorded, target: Key, names: tuple[str, ...] = ROW_NAMES, option: str = "into"
) -> str | None:
    """Why rows of an audit, with attributes of these names, cannot go to a target; None where they can."""
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
            f"audit at {at} has actor={actor!r}: expected the name of the attribute in which each writer says who it "
            'is, actor="updated_by".'
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
