"""What an attribute of a row may be made of, and which of these go together.

A state knows the kind of each attribute, because what is stored was made so. Values of any type go together: they are
ordered across types (``ordered.order_text``), so that no record says of which type the next ones are.
"""

from typing import Any

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


def kind_of(value: Any) -> str:
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
