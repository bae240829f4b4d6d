"""Rows that expire: shared rows, which expire last, and times to live that remove no row or remove it at once.

Contributors must find a shared row to take their contributions back, so it expires after all of them.

DynamoDB takes the attribute that a table names as a number of whole seconds since 1970 (Developer Guide,
howitworks-ttl). Anything else is stored without an error, and such a row stays for ever: nobody notices.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from streamfold.keys.table import is_in_state
from streamfold.ledger.contribution import PLAIN_ENTRY, Contribution
from streamfold.ledger.state_keys import ATTRIBUTE_MARK
from streamfold.records.change import Change, times_of
from streamfold.records.values import Number, decode, decode_number
from streamfold.routes.aggregates import Ordered
from streamfold.routes.route import Route, times_to_live
from streamfold.settings.limits import SECONDS_A_DAY
from streamfold.writes.guarded import AddRow, GuardedPut, RowKey

if TYPE_CHECKING:
    from streamfold.derivations.expected import Share
    from streamfold.ledger.contribution import RowContribution
    from streamfold.routes.route import Target
    from streamfold.runtime import Runtime


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


SECONDS_MAX = 100_000_000_000
"""The year 5138 in seconds, and 1973 in milliseconds: a larger number is no time in seconds."""
WrittenValues = Mapping[str, Any]
MILLISECONDS = "in milliseconds or finer: the row never expires. Divide it, item[...] // 1000"
NO_NUMBER = "that is no number: the row never expires. Write the seconds since 1970, int(moment.timestamp())"
FRACTION = "with a fraction: the row may never expire. Write whole seconds, int(...)"
PAST = (
    "more than a day before the change: the row is removed at once, and never if it is over five years. Write a time "
    "after the change, in seconds since 1970"
)
"""What is said of a value; no message has the value itself, which is an item's content."""


def look_at_contribution(runtime: "Runtime", route: Route, rows: Contribution, changes: Iterable[Change]) -> None:
    """Warns once of a handler whose contributions give rows a time to live that DynamoDB does not take as such.

    ``changes`` are those of the item; none if it is derived by itself, as in a backfill.
    """
    if names := times_to_live(route):
        _look(runtime, route, names, _contributed(names, rows), changes)


def look_at_writes(runtime: "Runtime", route: Route, writes: Iterable[object], changes: Iterable[Change]) -> None:
    """Warns once of a handler whose effects do, or whose copies."""
    if names := times_to_live(route):
        _look(runtime, route, names, _written(writes), changes)


def _contributed(names: Mapping[str, str], rows: Contribution) -> Iterator[tuple[RowKey, WrittenValues]]:
    for row, each in rows.items():
        values = {**(each.plain or {}), **each.amounts}
        if PLAIN_ENTRY in each.ordered:  # all attributes are one entry, as of a claim to a unique row
            for entry in each.ordered[PLAIN_ENTRY].entries.values():
                yield row, decode(json.loads(entry.content)) if entry.content else {}
        name = _name(names, row)
        if name is not None and name in each.ordered:
            for entry in each.ordered[name].entries.values():
                found = json.loads(entry.content or "{}")
                yield row, {name: decode(found)} if found else {}
        yield row, values


def _written(writes: Iterable[object]) -> Iterator[tuple[RowKey, WrittenValues]]:
    for write in writes:
        if isinstance(write, GuardedPut):
            yield write.key, write.attributes or {}
        elif isinstance(write, AddRow):
            yield write.key, write.amounts


def _name(names: Mapping[str, str], row: RowKey) -> str | None:
    # Derived attributes are in the state until they are on their item: a route writes to one table of items.
    return ATTRIBUTE_MARK + next(iter(names.values())) if is_in_state(row) else names.get(row[0])


def _look(
    runtime: "Runtime",
    route: Route,
    names: Mapping[str, str],
    found: Iterable[tuple[RowKey, WrittenValues]],
    changes: Iterable[Change],
) -> None:
    for row, values in found:
        name = _name(names, row)
        if name is None or values.get(name) is None:
            continue
        if why := _fault(values[name], changes):
            own = name.removeprefix(ATTRIBUTE_MARK)
            runtime.warn_once(
                ("lifetime", route.name, why),
                f"Handler {route.name!r} ({route.declared_at}) gives a row the time to live {own!r} {why}.",
            )


def _fault(value: Any, changes: Iterable[Change]) -> str:
    """Why a value is no time to live; empty for one that is."""
    if isinstance(value, bool) or not isinstance(value, Number):
        return NO_NUMBER
    if value >= SECONDS_MAX:
        return MILLISECONDS
    if isinstance(value, Decimal) and value != value.to_integral_value():
        return FRACTION
    now = max(times_of(changes), default=0.0)
    return PAST if value < max(now - SECONDS_A_DAY, 0) else ""
