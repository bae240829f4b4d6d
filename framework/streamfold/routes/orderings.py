"""The orders in which entries below a row count, and what the row makes of those that count first."""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

Ties = Literal["smallest key", "largest key"]
"""Which of the sources with equal ``by`` counts first: that with the smallest or the largest key."""
TIES: tuple[Ties, Ties] = get_args(Ties)
SMALLEST_KEY, LARGEST_KEY = TIES
ORDERINGS_KEPT_MAX = 1000
"""Texts of orderings that are kept: an application has a few, and each row is read with one."""


class Together(Enum):
    """How readers put the values of shards together."""

    FIRST = "the value of the shard whose entry counts first"
    VALUES = "the values of all shards, in the order of the values"
    PLACES = "the lists of all shards, in the order of the places that rows keep"
    NOT = "not at all"


class Form(NamedTuple):
    """What a row makes of those of its entries that count first."""

    descending: bool  # the largest ``by`` counts first
    once: bool  # each value counts once
    by_value: bool  # the value itself orders, so the order says all there is
    made: Callable[[Sequence[Any]], Any]  # the attribute, from the values that count
    placed: bool = False  # the row keeps the sort positions of its list, whose order the values do not show
    collects: bool = False  # the row's cut-off says whether there are more values
    largest_key: bool = False  # among equal ``by``, the source with the largest key counts first
    together: Together | None = None  # None: no reader knows, so that such a value is kept from rows with shards

    @property
    def in_store(self) -> bool:
        """Whether the order, ties included, is the one in which a store reads entries."""
        return self.descending == self.largest_key


def _only(values: Sequence[Any]) -> Any:
    return values[0]


def _claimed(values: Sequence[Any]) -> Any:
    return {**values[0], CONFLICT: list(values[1:])} if len(values) > 1 else values[0]


def _chosen(
    name: str, made: Callable[[Sequence[Any]], Any], together: Together, *, placed: bool = False
) -> dict[str, Form]:
    """The forms of which a declaration chooses one, by ``smallest=`` and ``ties=``."""
    return {
        form_name(name, smallest=smallest, ties=ties): Form(
            descending=not smallest,
            once=False,
            by_value=False,
            made=made,
            placed=placed,
            largest_key=ties == LARGEST_KEY,
            together=together,
        )
        for smallest in (False, True)
        for ties in TIES
    }


def form_name(name: str, *, smallest: bool, ties: Ties) -> str:
    """The name of a form, as a row keeps it."""
    return f"{name}{'-smallest' if smallest else ''}{'-largestkey' if ties == LARGEST_KEY else ''}"


FORMS = {
    "max": Form(descending=True, once=False, by_value=True, made=_only, largest_key=True, together=Together.FIRST),
    "min": Form(descending=False, once=False, by_value=True, made=_only, together=Together.FIRST),
    **_chosen("latest", _only, Together.FIRST),
    **_chosen("top", list, Together.NOT),
    **_chosen("ranked", list, Together.PLACES, placed=True),
    **_chosen("claim", _claimed, Together.NOT),
    "list": Form(descending=False, once=False, by_value=True, made=list, collects=True, together=Together.VALUES),
    "set": Form(descending=False, once=True, by_value=True, made=set, collects=True, together=Together.VALUES),
    "distinct": Form(descending=False, once=True, by_value=True, made=len, together=Together.NOT),
    "wins": Form(descending=True, once=False, by_value=False, made=_only, together=Together.FIRST),
}
PLAIN = "wins"
"""The form of a row's plain attributes, when its sources say by which value they win (``Row(wins=...)``)."""
CLAIM = "claim"
"""The form of the attributes of a unique row: those of the first of its claimants."""
SPREAD = ("top", "ranked")
"""How a form is called on a row that is spread over shards, where that differs: readers merge its lists."""
CONFLICT = "conflict"
"""The attribute of a unique row that lists what its other claimants would show, in their order."""


class Ordering(NamedTuple):
    """A form and how many entries of it count, 0 for all; as text in ledger and rows: ``max:1``, ``top:3``."""

    form: str
    most: int

    @classmethod
    @lru_cache(ORDERINGS_KEPT_MAX)
    def of(cls, text: str) -> "Ordering":
        """The ordering of a text."""
        form, _, most = text.partition(":")
        return cls(form, int(most))

    def spread(self) -> "Ordering":
        """The ordering of the same attribute on a row that is spread over shards."""
        return self._replace(form=self.form.replace(*SPREAD))

    def __str__(self) -> str:
        return f"{self.form}:{self.most}"
