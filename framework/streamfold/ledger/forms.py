"""What an attribute of a row may be made of, and which of these go together.

A state knows the form of each attribute, because what is stored was made so. Values of any type go together: they are
ordered across types (``ordered.order_text``), so that no record says of which type the next ones are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamfold.keys.key import Key
from streamfold.ledger.contribution import Contribution
from streamfold.routes.aggregates import Aggregate, Average
from streamfold.routes.ordered import Ordered

PLAIN, SUM, AVERAGE = "plain", "Sum", "Average"
ADDED = (SUM, AVERAGE)
"""Kinds whose amounts are added up, by several handlers too."""
ORDERED, SET, LIST = "ordered", "set", "list"
"""Kinds that a state knows of what is ordered: a row of any form is made of its entries anew, so that one may follow
another, but a set never becomes a list, nor a list a set: readers of the row take the one or the other."""
COLLECTED = {"set": "Collect(into=set)", "list": "Collect(into=list)"}
RETIRED = "retired"
"""Stands for the kind of what a retired handler left in rows: nobody may add to it."""


def form_of(value: Any) -> str:
    """What a yielded value makes of its attribute, as precisely as a process tells kinds apart."""
    if isinstance(value, Ordered):
        return COLLECTED.get(value.ordering.form) or (value.ordering.form if type(value) is Ordered else _name(value))
    if isinstance(value, Aggregate):
        return AVERAGE if isinstance(value, Average) else SUM  # a count is a sum of ones
    return PLAIN


def known(kind: str) -> str:
    """What a state knows of a kind."""
    if kind in (PLAIN, *ADDED, ORDERED, SET, LIST):
        return kind
    return next((form for form, name in COLLECTED.items() if name == kind), ORDERED)


def in_words(kind: str) -> str:
    """A kind, for a message."""
    return "Max, Top or the like" if kind == ORDERED else COLLECTED.get(kind, kind)


def follows(before: str, now: str) -> bool:
    """Whether a handler may yield an attribute so, of which a state or this process knows that it was made so before.

    ``before`` is a state's word or this process's own; two of this process differ where they are not the same.
    """
    if before != known(before):  # seen by this process: one code yields one kind
        return before == now
    return _goes_on(before, known(now))


def shares(other: str, now: str) -> bool:
    """Whether a handler may yield an attribute so that another handler yields."""
    return now in ADDED and other == now


def joined(before: str, now: str) -> str:
    """What a state knows of an attribute that was made in these ways: that it is a set or a list, once it was one."""
    return before if known(now) == ORDERED else known(now)


def _goes_on(before: str, now: str) -> bool:
    ordered = (ORDERED, SET, LIST)
    return before == now or (before in ordered and now in ordered and ORDERED in (before, now))


def _name(value: Any) -> str:
    return type(value).__name__


FormsByHandler = dict[str, dict[str, str]]
"""What attributes of one target are made of, by handler and name."""
SeenForms = Mapping[tuple[Key, str], str]
"""What attributes were yielded as, by target and name."""


class Contributed(NamedTuple):
    """What an item contributes through one handler, and the forms of the attributes that it was made of."""

    rows: Contribution
    seen: SeenForms


@dataclass(slots=True)
class Forms:
    """What a process knows of the forms of attributes, by target: what its handlers gave, and what a state says."""

    by_target: dict[Key, FormsByHandler] = field(default_factory=dict)

    def of(self, target: Key) -> FormsByHandler:
        """What is known of a target, to be read and amended."""
        return self.by_target.setdefault(target, {})

    def learn(self, handler: str, seen: SeenForms) -> None:
        """Notes what a handler yielded once all of it was accepted."""
        for (target, name), form in seen.items():
            self.of(target).setdefault(handler, {})[name] = form

    def __len__(self) -> int:
        return sum(len(names) for handlers in self.by_target.values() for names in handlers.values())
