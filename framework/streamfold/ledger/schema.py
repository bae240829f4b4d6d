"""The aggregation of an attribute of a row, and which aggregations are compatible.

The state remembers whether each attribute is summed, ordered or plain, so that a new process refuses a conflicting
aggregation. Values of all types are compatible, because they are ordered across types (``aggregates.order_text``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from streamfold.keys.key import Key
from streamfold.routes.aggregates import OWN, SUM, Aggregate
from streamfold.routes.effects import Row
from streamfold.routes.route import Route
from streamfold.routes.shipped_aggregates import AVERAGE

PLAIN = "plain"
ADDED = (SUM, AVERAGE)
"""Aggregations whose amounts are added up, also by several handlers."""
ORDERED, SET, LIST = "ordered", "set", "list"
"""Aggregations that a state has for the framework's ordered attributes. One may follow another, because the row is
recomputed from its entries. But a set never becomes a list, nor a list a set: readers of the row expect one of both.
"""
COLLECTED = {"set": "Collect(into=set)", "list": "Collect(into=list)"}
RETIRED = "retired"
"""The aggregation of the amounts of a retired handler in rows: no handler may add to them."""


def type_of(value: Any) -> str:
    """The aggregation of a yielded value, as precisely as one process compares aggregations."""
    return value.form() if isinstance(value, Aggregate) else PLAIN


def known(kind: str) -> str:
    """The aggregation as a state remembers it. Users' aggregates are remembered by name."""
    if kind in (PLAIN, *ADDED, ORDERED, SET, LIST) or kind.startswith(OWN):
        return kind
    return next((collected for collected, name in COLLECTED.items() if name == kind), ORDERED)


def in_words(kind: str) -> str:
    """An aggregation, for a message."""
    return "Max, Top or the like" if kind == ORDERED else COLLECTED.get(kind, kind)


def follows(before: str, now: str) -> bool:
    """Whether a handler may yield an attribute with the aggregation ``now``, if it was ``before``.

    ``before`` is from the state, or from this process. Within one process the aggregation may not change at all.
    """
    if before != known(before):  # seen by this process: one code yields one kind
        return before == now
    ordered, after = (ORDERED, SET, LIST), known(now)
    return before == after or (before in ordered and after in ordered and ORDERED in (before, after))


def shares(other: str, now: str) -> bool:
    """Whether a handler may yield an attribute that another handler yields with the aggregation ``other``."""
    return now in ADDED and other == now


def joined(before: str, now: str) -> str:
    """The aggregation that a state remembers after both: a set or a list is never forgotten."""
    return before if known(now) == ORDERED else known(now)


SchemaByHandler = dict[str, dict[str, str]]
"""The aggregations of one target's attributes, by handler and name."""
SeenTypes = Mapping[tuple[Key, str], str]
"""The aggregations of yielded attributes, by target and name."""


class Schema:
    """A process's knowledge of the aggregations of attributes, from its handlers and from the state."""

    def __init__(self, by_target: dict[Key, SchemaByHandler] | None = None) -> None:
        self.by_target: dict[Key, SchemaByHandler] = {} if by_target is None else by_target
        self.expiring: dict[str, set[str]] = {}  # by handler: targets (``Key.stored_name``) whose rows expire

    def of(self, target: Key) -> SchemaByHandler:
        """The schema of a target, which the caller may change."""
        found = self.by_target.get(target)
        if found is None:
            found = self.by_target[target] = {}
        return found

    def learn(self, handler: str, seen: SeenTypes) -> None:
        """Remembers the aggregations that a handler yielded, once all of its effects were accepted."""
        for (target, name), aggregation in seen.items():
            self.of(target).setdefault(handler, {})[name] = aggregation

    def note_expiry(self, route: Route, effects: Iterable[Row]) -> None:
        """Remembers the targets of which one of these rows has a time to live."""
        for key in route.into:
            ttl, known = key.table.ttl, self.expiring.get(route.name, ())
            if ttl is None or key.stored_name in known:
                continue
            if any(ttl in (effect.attributes or effect.values) for effect in effects if effect.target in (None, key)):
                self.expiring.setdefault(route.name, set()).add(key.stored_name)

    def retired_names(self, target: Key) -> frozenset[str]:
        """The attributes of a target's rows that nobody makes but retired handlers."""
        schema = [names.items() for names in self.of(target).values()]
        retired = {name for names in schema for name, aggregation in names if aggregation == RETIRED}
        return frozenset(
            retired.difference(name for names in schema for name, aggregation in names if aggregation != RETIRED)
        )

    def __len__(self) -> int:
        return sum(len(names) for handlers in self.by_target.values() for names in handlers.values())
