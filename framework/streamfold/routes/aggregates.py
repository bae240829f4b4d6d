"""What a row adds up over its sources: aggregates with an inverse, so that a source is taken back by its amount alone.

A new one is a class here: it says what it adds to which attributes (``amounts``). The ledger stores these amounts, and
one addition to the row, merged over all sources of a batch, moves them: no read, whatever the number of sources.
Aggregates that cannot be taken back so are in ``ordered``.
"""

from abc import abstractmethod
from decimal import Decimal

from streamfold.errors import HandlerError, shown
from streamfold.records.values import WHOLE_MAX, WHOLE_MIN, Number, number_text

Amounts = tuple[tuple[str, Number], ...]
"""Attributes of a row, each with what is added to it."""

SUM_SUFFIX, COUNT_SUFFIX = "_sum", "_count"
"""``Average`` keeps the two numbers that it is made of; ``streamfold.read.average`` divides them."""


class Aggregate:
    """What a row makes of one attribute over its sources."""

    __slots__ = ()

    @abstractmethod
    def amounts(self, name: str) -> Amounts:
        """What this source adds, if the row's attribute has this name."""


class _Amount(Aggregate):
    """A number that is added up. ``amount`` is what this source contributes."""

    __slots__ = ("amount",)
    amount: Number

    def amounts(self, name: str) -> Amounts:
        return ((name, self.amount),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Amount) and type(self) is type(other) and self.amount == other.amount

    def __hash__(self) -> int:
        return hash((type(self), self.amount))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.amount!r})"


class Sum(_Amount):
    """The sum of a number over a row's sources; amended, moved and deleted sources are taken back.

    Raises ``HandlerError`` for a float, for what is no number, and for more than 38 digits.
    """

    __slots__ = ()

    def __init__(self, value: Number) -> None:
        self.amount = _number(value, type(self).__name__)


class Count(_Amount):
    """How many sources a row has."""

    __slots__ = ()
    amount = 1  # of the class, because many are made

    def __repr__(self) -> str:
        return "Count()"


class Average(_Amount):
    """The average of a number over a row's sources, kept as its sum and count: exact, and taken back like a ``Sum``.

    ``Row(score=Average(x))`` keeps ``score_sum`` and ``score_count``; ``streamfold.read.average(row, "score")`` divides
    them. Raises ``HandlerError`` as ``Sum`` does.
    """

    __slots__ = ()

    def __init__(self, value: Number) -> None:
        self.amount = _number(value, type(self).__name__)

    def amounts(self, name: str) -> Amounts:
        return (name + SUM_SUFFIX, self.amount), (name + COUNT_SUFFIX, 1)


def _number(value: Number, name: str) -> Number:
    if type(value) is int and WHOLE_MIN <= value <= WHOLE_MAX:  # as nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        remedy = f": use Decimal({str(value)!r}); in place of a / b, divide(a, b, places=2)"
        hint = remedy if isinstance(value, float) else ""
        raise HandlerError(f"{name}({shown(value)}) is of type {type(value).__name__}, expected int or Decimal{hint}.")
    number_text(value)  # refuses what could not be stored
    return value
