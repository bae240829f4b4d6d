"""The form of an attribute of a row, and which forms go together.

The state remembers whether each attribute is summed, ordered or plain, so that a new process refuses a conflicting
form. Values of all types go together, because they are ordered across types (``aggregates.order_text``).
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
"""Forms whose amounts are added up, by several handlers too."""
ORDERED, SET, LIST = "ordered", "set", "list"
"""Forms that a state knows of the framework's ordered attributes. One may follow another, because the row is recomputed
from its entries. But a set never becomes a list, nor a list a set: readers of the row expect the one or the other."""
COLLECTED = {"set": "Collect(into=set)", "list": "Collect(into=list)"}
RETIRED = "retired"
"""The form of what a retired handler left in rows: nobody may add to it."""


def type_of(value: Any) -> str:
    """The form that a yielded value gives its attribute, as precisely as one process tells forms apart."""
    return value.form() if isinstance(value, Aggregate) else PLAIN


def known(kind: str) -> str:
    """The form as a state remembers it. Aggregates of others' own are remembered by name: only one follows itself."""
    if kind in (PLAIN, *ADDED, ORDERED, SET, LIST) or kind.startswith(OWN):
        return kind
    return next((form for form, name in COLLECTED.items() if name == kind), ORDERED)


def in_words(kind: str) -> str:
    """A form, for a message."""
    return "Max, Top or the like" if kind == ORDERED else COLLECTED.get(kind, kind)


def follows(before: str, now: str) -> bool:
    """Whether a handler may yield an attribute in the form ``now``, if its form was ``before``.

    ``before`` is from the state, or from this process. Within one process the form may not change at all.
    """
    if before != known(before):  # seen by this process: one code yields one kind
        return before == now
    return _goes_on(before, known(now))


def shares(other: str, now: str) -> bool:
    """Whether a handler may yield an attribute that another handler yields in the form ``other``."""
    return now in ADDED and other == now


def joined(before: str, now: str) -> str:
    """The form that a state remembers after both: a set or a list stays one."""
    return before if known(now) == ORDERED else known(now)


def _goes_on(before: str, now: str) -> bool:
    ordered = (ORDERED, SET, LIST)
    return before == now or (before in ordered and now in ordered and ORDERED in (before, now))


SchemaByHandler = dict[str, dict[str, str]]
"""The forms of one target's attributes, by handler and name."""
SeenTypes = Mapping[tuple[Key, str], str]
"""The forms in which attributes were yielded, by target and name."""


class Schema:
    """What a process knows of the forms of attributes, from its handlers and from the state."""

    def __init__(self, by_target: dict[Key, SchemaByHandler] | None = None) -> None:
        self.by_target = {} if by_target is None else by_target
        self.expiring: dict[str, set[str]] = {}  # the places of targets whose rows a handler lets expire

    def of(self, target: Key) -> SchemaByHandler:
        """The forms of a target, which the caller may change."""
        found = self.by_target.get(target)
        if found is None:
            found = self.by_target[target] = {}
        return found

    def learn(self, handler: str, seen: SeenTypes) -> None:
        """Remembers the forms that a handler yielded, once all of its effects were accepted."""
        for (target, name), form in seen.items():
            self.of(target).setdefault(handler, {})[name] = form

    def note_expiry(self, route: Route, effects: Iterable[Row]) -> None:
        """Remembers the targets of which one of these rows has a time to live."""
        for key in route.into:
            ttl, known = key.table.ttl, self.expiring.get(route.name, ())
            if ttl is None or key.place in known:
                continue
            if any(ttl in (effect.attributes or effect.values) for effect in effects if effect.target in (None, key)):
                self.expiring.setdefault(route.name, set()).add(key.place)

    def retired_names(self, target: Key) -> frozenset[str]:
        """The attributes of a target's rows that nobody makes but retired handlers."""
        schema = [names.items() for names in self.of(target).values()]
        left = {name for names in schema for name, form in names if form == RETIRED}
        return frozenset(left.difference(name for names in schema for name, form in names if form != RETIRED))

    def __len__(self) -> int:
        return sum(len(names) for handlers in self.by_target.values() for names in handlers.values())
