"""Shared rows that expire with their contributors. The row expires last: a contributor must find it to take back."""

import json
from typing import TYPE_CHECKING

from streamfold.records.change import Change
from streamfold.records.values import Number, decode_number
from streamfold.routes.ordered import First, Latest, Max, Min, Ordered

if TYPE_CHECKING:
    from streamfold.ledger.contribution import Contribution, RowPart
    from streamfold.routes.route import Route, Target

GRACE_DAYS = 7
"""DynamoDB deletes an expired item within a few days (Developer Guide, TTL), and does so in any order."""
GRACE_SECONDS = GRACE_DAYS * 24 * 60 * 60


def postponed(target: "Target", name: str, value: Ordered) -> Ordered:
    """A value as a row shows it. Only the time to live of a shared row differs: it is later by the grace."""
    if target.whole or name != target.key.table.ttl or not isinstance(value, Max | Min | Latest | First):
        return value
    if isinstance(value.value, bool) or not isinstance(value.value, Number):
        return value
    return Ordered.of(value.ordering, value.by, value.value + GRACE_SECONDS, value.said)


def outlived(route: "Route", change: Change, after: "Contribution") -> bool:
    """Whether an item contributes to a row that may expire before it: that says an earlier time, or expires alone.

    What the item says of the row counts, with the grace that a shared row has.
    """
    names = None
    for target in route.targets:
        if (ttl := target.key.table.ttl) and any(part.ordered for part in after.values()):
            names = {**(names or {}), target.key.table.name: ttl}
    if not names:
        return False
    own = change.new.get(change.table.ttl) if change.table.ttl else None
    if isinstance(own, bool) or not isinstance(own, Number):
        own = None
    return any(_is_before(part, names.get(key[0], ""), own) for key, part in after.items())


def _is_before(part: "RowPart", name: str, own: Number | None) -> bool:
    """Whether what an item says of a row's time to live is earlier than its own; None: it has none."""
    if name not in part.ordered:
        return False
    said = (json.loads(entry.content or "{}") for entry in part.ordered[name].entries.values())
    return own is None or any("N" in value and decode_number(value["N"]) < own for value in said)
