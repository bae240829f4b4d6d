"""Shared rows that expire with their contributors. A row expires last: contributors must find it to take back."""

import json
from copy import copy
from typing import TYPE_CHECKING

from streamfold.records.change import Change
from streamfold.records.values import Number, decode_number
from streamfold.routes.aggregates import Ordered

if TYPE_CHECKING:
    from streamfold.derivations.expected import Share
    from streamfold.ledger.contribution import Contribution, RowContribution
    from streamfold.routes.route import Route, Target

GRACE_DAYS = 7
"""DynamoDB deletes an expired item within a few days (Developer Guide, TTL), and does so in any order."""
GRACE_SECONDS = GRACE_DAYS * 24 * 60 * 60


def postponed(target: "Target", name: str, value: Ordered) -> Ordered:
    """A value as a row shows it. Only the time to live of a shared row differs: it is later by the grace."""
    if target.replaces or name != target.key.table.ttl or not value.of_one_source:
        return value
    if isinstance(value.value, bool) or not isinstance(value.value, Number):
        return value
    return value.with_value(value.value + GRACE_SECONDS)


def outlived(route: "Route", change: Change, after: "Contribution") -> bool:
    """Whether an item contributes to a row that may expire first: with an earlier time, or if only the row expires.

    The item's value for the row counts, with the grace of a shared row.
    """
    names = None
    for target in route.targets:
        if (ttl := target.key.table.ttl) and any(each.ordered for each in after.values()):
            names = {**(names or {}), target.key.table.name: ttl}
    if not names:
        return False
    own = change.new.get(change.table.ttl) if change.table.ttl else None
    if isinstance(own, bool) or not isinstance(own, Number):
        own = None
    return any(_is_before(each, names.get(key[0], ""), own) for key, each in after.items())


def _is_before(contribution: "RowContribution", name: str, own: Number | None) -> bool:
    """Whether an item gives a row an earlier time to live than its own; None: the item has none."""
    if name not in contribution.ordered:
        return False
    texts = (json.loads(entry.content or "{}") for entry in contribution.ordered[name].entries.values())
    return own is None or any("N" in value and decode_number(value["N"]) < own for value in texts)


def with_grace(route: "Route", share: "Share") -> "Share":
    """A share of a row, as proofs expect it: if several sources share the row, it expires later than their values."""
    target = route.target_of(share.key)
    name = None if target is None or target.replaces else target.key.table.ttl
    given = share.values.get(name) if name else None
    if not isinstance(given, Ordered) or not given.of_one_source:
        return share
    if isinstance(given.value, bool) or not isinstance(given.value, Number):
        return share
    later = copy(given)
    later.value = given.value + GRACE_SECONDS
    return share._replace(values={**share.values, str(name): later})
