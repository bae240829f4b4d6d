"""The results that proofs compare with: each kind computes them from its declarations.

This module uses neither the planner, the ledger nor a store: it can be checked by comparing it with the declarations.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from streamfold.engines.protocol import StoredItem
from streamfold.records.change import Change, ItemKey, item_name
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import RowKey

FIELDS_KEPT_MAX = 100_000
"""A proof reads the same few thousand items again in each of its runs, for every route."""

Values = dict[str, Any]
Stored = Mapping[RowKey, StoredItem]
"""Items of the store by key, with DynamoDB's attribute values."""


@dataclass(slots=True)
class History:
    """The changes of an application's items."""

    changes: Sequence[Change]  # each once, in order
    items: Mapping[ItemKey, Mapping[str, Any]]  # their last images, and the known derived rows
    called: Callable[[Route, Any, Fields, ItemKey], list[Any]]  # calls a handler with an image or a change
    referents: Mapping[ItemKey, Mapping[str, Any]] | None = None  # the items that may be looked up, unless all of them

    def changes_of(self, route: Route) -> Iterator[tuple[Change, Fields]]:
        """The changes of the items that a route is declared for, with the fields of their keys."""
        for change in self.changes:
            if (fields := fields_of(route, change.item)) is not None:
                yield change, fields

    def items_of(self, route: Route) -> Iterator[tuple[ItemKey, Mapping[str, Any], Fields]]:
        """The existing items that a route is declared for."""
        for item, image in self.items.items():
            if image and (fields := fields_of(route, item)) is not None:
                yield item, image, fields


class Share(NamedTuple):
    """The contribution of one item to a row, or to the derived attributes of an item."""

    key: RowKey
    source: str
    order: Any  # by which the item wins, or claims the row
    values: Values


@dataclass(slots=True)
class Expected:
    """The right results of one route."""

    rows: dict[RowKey, Values] = field(default_factory=dict)
    shares: list[Share] = field(default_factory=list)  # of rows that are sums of several items
    claims: list[Share] = field(default_factory=list)  # of rows that one of several items wins
    ranked: Any = None  # of claims: whether the ``smallest`` wins, and the rule for ``ties``
    on_items: list[Share] = field(default_factory=list)  # of attributes of other items
    outside: dict[RowKey, Values] = field(default_factory=dict)  # contents outside of the store


@lru_cache(FIELDS_KEPT_MAX)
def fields_of(route: Route, item: ItemKey) -> Fields | None:
    """The fields of an item's key, by the route's narrowest source for it."""
    keys = [key for key in route.sources if key.table.name == item[0] and key.match_values(*item[1:]) is not None]
    narrowest = next((key for key in keys if len(keys) == 1 or all(other.contains(key) for other in keys)), None)
    return None if narrowest is None else narrowest.match_values(*item[1:])


def shares_of(
    route: Route,
    history: History,
    more: Callable[[Fields], Fields] = lambda _: {},
    order: Callable[[Mapping[str, Any]], Any] | None = None,
) -> list[Share]:
    """The shares that the handler of a route yields of existing items.

    ``more`` gives fields beside those of the key, ``order`` the order by which an item claims a row, instead of
    ``Row(wins=)``.
    """
    shares = []
    for item, image, fields in history.items_of(route):
        referents = referents_of(
            route, image, fields, history.items if history.referents is None else history.referents
        )
        if referents is None:
            continue
        for effect in history.called(route, image, {**fields, **referents}, item):
            key, values = placed(route, effect, {**fields, **more(fields)})
            by = effect.wins if order is None else order(image)
            shares.append(Share(key, f"{item[0]}|{item_name(item)}", by, values))
    return shares


def referents_of(
    route: Route, image: Mapping[str, Any], fields: Fields, items: Mapping[ItemKey, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """What an item refers to, by the names of the lookups; None where one is missing that is not optional."""
    keys = references_of(route, image, fields, items)
    found = {each.name: items.get(keys[each.name]) or None if each.name in keys else None for each in route.lookups}
    if any(found[each.name] is None and not each.optional for each in route.lookups):
        return None
    return {each.name: _read(each.reads, found[each.name]) for each in route.lookups}


def references_of(
    route: Route, image: Mapping[str, Any], fields: Fields, items: Mapping[ItemKey, Mapping[str, Any]]
) -> Mapping[str, ItemKey]:
    """The keys of what an item refers to, by the names of the lookups. There may be no item of such a key."""
    keys: dict[str, ItemKey] = {}
    known: dict[str, Fields] = {}  # the fields of these keys
    for lookup in route.lookups:
        base, own = image, fields
        if lookup.through is not None:
            name = lookup.through.name
            base, own = items.get(keys[name], {}) if name in keys else {}, known.get(name, {})
        given = {field: own.get(name, base and base.get(name)) for field, name in lookup.taken} if base else {}
        if base and all(value not in (None, "", b"") for value in given.values()):
            key = lookup.key.compose(given)
            known[lookup.name] = lookup.key.match_values(*key) or {}
            keys[lookup.name] = (lookup.key.table.name, *key)
    return keys


def _read(reads: Collection[str] | None, item: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return item if item is None or reads is None else {name: item[name] for name in reads if name in item}


def placed(route: Route, effect: Any, fields: Fields) -> tuple[RowKey, Values]:
    """The row of an effect, and its attributes."""
    target = effect.target or route.writes[0]
    values = {name: value for name, value in effect.values.items() if name not in target.types}
    key = target.compose({**fields, **effect.values})
    return (target.table.name, *key), {**values, **(effect.attributes or {})}
