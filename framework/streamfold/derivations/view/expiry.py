"""Shared rows that expire with their contributors. The row expires last: a contributor must find it to take back."""

from typing import TYPE_CHECKING

from streamfold.records.change import Change
from streamfold.records.numbers import Number
from streamfold.routes.ordered import First, Latest, Max, Min, Ordered

if TYPE_CHECKING:
    from streamfold.ledger.contribution import Contribution
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
    """Whether an item that does not expire itself contributes to a shared row that does."""
    names = None
    for target in route.targets:
        if (ttl := target.key.table.ttl) and any(part.ordered for part in after.values()):
            names = {**(names or {}), target.key.table.name: ttl}
    own = change.table.ttl
    if not names or (own is not None and own in change.new):
        return False
    return any(names.get(key[0]) in part.ordered for key, part in after.items())
