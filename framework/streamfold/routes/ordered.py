"""Aggregates without an inverse: what a row makes of the values of its sources, in their order.

A new one is a class here and a line of ``FORMS``. A source contributes an *entry*, a state item of its own below its
row, sorted by the text of its value. ``recompute`` reads the entries that count and writes the row's aggregate.
So a removed extreme leaves no trace, and what follows it is read, not searched for.

Costs beside the row itself: two write units for an entry that appears or disappears, four for one that moves; one read
for each touched row of a batch. If a change concerns the entries that count, also one query and one write for each row
and batch. docs/aggregates.md has the measured costs.
"""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any, ClassVar

from streamfold.errors import HandlerError, plain, shown
from streamfold.records.encoded import UNESCAPED
from streamfold.records.values import Number, encode, sortable
from streamfold.routes.aggregates import Aggregate, Amounts
from streamfold.routes.orderings import SMALLEST_KEY, TIES, Ordering, Ties, form_name

TOP_MAX = 100
"""Entries that ``Top`` keeps at most: with values of ``TOP_BYTES_MAX`` half of an item (Developer Guide, Limits), and
with their places three quarters."""
TOP_BYTES_MAX = 2048
COLLECT_MAX = 500
"""Values that ``Collect`` keeps at most, for the same reason; each is no longer than ``ORDER_BYTES_MAX``."""
ORDER_BYTES_MAX = 400
"""Bytes of a value that orders, as text that sorts as it does: they share a sort key of 1,024 bytes (Developer Guide,
Limits) with the source's."""
DISTINCT_MAX = 1000
"""Values that ``Distinct`` counts at most: each change reads all of them, with a query for each value that more than a
hundred sources share, and a function has a minute."""
CLAIMANTS_MAX = 10
"""Claimants of a unique row that it shows, winner included: ten values of ``VALUE_BYTES_MAX`` fit an item of 400 KB."""
VALUE_BYTES_MAX = 32 * 1024
"""Bytes of an entry's value: 98 of them fit the 4 MB of a transaction (API Reference, TransactWriteItems)."""
ESCAPED = {code: f"${code:02x}" for code in range(ord("$") + 1)}
"""Letters up to ``$`` are spelled with it, so that the ``#`` behind a text sorts below whatever goes on."""

Moment = Number | str | bytes | date
"""What orders: a number, text, bytes, or a date or time, which is text in the order of time."""
Saying = Callable[[], str]
"""How a message names a value. It is written when a message is: nearly no value has one."""


class Ordered(Aggregate):
    """A value with its place among those of the other sources."""

    __slots__ = ("by", "content", "order", "ordering", "said", "value")
    in_shards: ClassVar[bool] = False  # readers know what the values of shards make together, or that they make nothing

    def _set(self, ordering: Ordering, by: Any, value: Any, said: Saying) -> None:
        self.said = said
        self.by = by
        self.ordering = ordering
        self.order = order_text(by, said)
        self.value = value
        self.content = content_text(value, said)

    @classmethod
    def of(cls, ordering: Ordering, by: Any, value: Any, said: Saying) -> "Ordered":
        """A value of any form; ``said`` names it in messages."""
        found = cls()
        found._set(ordering, by, value, said)
        return found

    def amounts(self, name: str) -> Amounts:  # noqa: ARG002 - nothing is added up
        return ()

    def _content(self) -> tuple[Any, ...]:
        return self.ordering, self.order, self.content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        return plain(self.said())


class Max(Ordered):
    """The largest value of a row's sources: a number, text, bytes, date or time.

    A removed largest value costs one query of one entry, whatever the number of sources; a smaller one costs none.
    """

    __slots__ = ()
    in_shards = True

    def __init__(self, value: Moment) -> None:
        self._set(Ordering("max", 1), value, value, lambda: f"Max({shown(value)})")


class Min(Ordered):
    """The smallest value of a row's sources; as ``Max``, the other way round."""

    __slots__ = ()
    in_shards = True

    def __init__(self, value: Moment) -> None:
        self._set(Ordering("min", 1), value, value, lambda: f"Min({shown(value)})")


class Latest(Ordered):
    """The value of the source with the largest ``by``. ``ties`` says which source wins of those with equal ``by``.

    It costs what ``Max`` does. A value is anything that an item may hold, of 32 KB at most.
    """

    __slots__ = ()
    in_shards = True

    def __init__(self, value: Any, *, by: Moment, ties: Ties = SMALLEST_KEY) -> None:
        def said() -> str:
            return f"Latest({shown(value)}, by={shown(by)}{_choice(ties=ties)})"

        self._set(_ordering("latest", 1, said, smallest=False, ties=ties), by, value, said)


class First(Ordered):
    """The value of the source with the smallest ``by``; otherwise as ``Latest``."""

    __slots__ = ()
    in_shards = True

    def __init__(self, value: Any, *, by: Moment, ties: Ties = SMALLEST_KEY) -> None:
        def said() -> str:
            return f"First({shown(value)}, by={shown(by)}{_choice(ties=ties)})"

        self._set(_ordering("latest", 1, said, smallest=True, ties=ties), by, value, said)


class Top(Ordered):
    """The values of the ``n`` sources with the largest ``by``, as a list, the largest first.

    ``value`` is what is listed of a source: a map of what a leaderboard shows, 2 KB at most. ``n`` is 100 at most. With
    ``smallest=True`` the sources with the smallest ``by`` are listed, the smallest first. ``ties`` says which source
    comes first of those with equal ``by``. A change among the first ``n`` costs one query of ``n`` entries, and a
    second one where more sources tie for the last place than the list takes; one behind them costs none.
    """

    __slots__ = ()
    in_shards = True

    def __init__(self, n: int, value: Any, *, by: Moment, smallest: bool = False, ties: Ties = SMALLEST_KEY) -> None:
        def said() -> str:
            return f"Top({shown(n)}, {shown(value)}, by={shown(by)}{_choice(smallest=smallest, ties=ties)})"

        _check_most(n, TOP_MAX, said)
        self._set(_ordering("top", n, said, smallest=smallest, ties=ties), by, value, said)
        _check_size(self.content, said, TOP_BYTES_MAX)


class Collect(Ordered):
    """The values of a row's sources as a set, or with ``into=list`` as a sorted list with one value for each source.

    Of more than ``most`` values (100 if not given, 500 at most) the smallest are kept, and the row tells that there are
    more, ``streamfold.read.has_more``. A change among those kept costs a query of them, a page of 100 for each 100
    values of a set; one beyond them costs none.
    """

    __slots__ = ()
    in_shards = True

    def __init__(self, value: Moment, *, most: int = 100, into: type = set) -> None:
        def said() -> str:
            return f"Collect({shown(value)}, most={shown(most)}, into={getattr(into, '__name__', into)})"

        if into not in (set, list):
            raise HandlerError(f"{said()}: expected into=set or into=list.")
        _check_most(most, COLLECT_MAX, said)
        self._set(Ordering(into.__name__, most), value, value, said)


class Distinct(Ordered):
    """How many different values a row's sources have, exactly.

    The only one whose cost grows: every change reads the values again, one query of a page of 100 entries for every
    value in which more than 100 sources agree, and for every 100 entries of the others. For millions of values use
    ``Count`` on a row for each value. Of more than 1,000 values the count is refused: the row stays as it was, and each
    record that changes them fails.
    """

    __slots__ = ()
    in_shards = True

    def __init__(self, value: Moment) -> None:
        self._set(Ordering("distinct", 0), value, value, lambda: f"Distinct({shown(value)})")


def _choice(*, smallest: object = False, ties: object = SMALLEST_KEY) -> str:
    """What differs from the defaults, for a message."""
    chosen = {"smallest": (smallest, False), "ties": (ties, SMALLEST_KEY)}
    return "".join(f", {name}={shown(value)}" for name, (value, default) in chosen.items() if value != default)


def _ordering(name: str, most: int, said: Saying, *, smallest: Any, ties: Any) -> Ordering:
    if not isinstance(smallest, bool) or ties not in TIES:
        raise HandlerError(f"{said()}: expected smallest=True or False, and ties={TIES[0]!r} or {TIES[1]!r}.")
    return Ordering(form_name(name, smallest=smallest, ties=ties), most)


def _check_most(most: object, limit: int, said: Saying) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= limit:
        raise HandlerError(
            f"{said()} keeps {shown(most)} values: expected a whole number from 1 to {limit}. All records of the "
            "handler fail; a test that calls it once shows it. For more values write a row for each, with an index, "
            "and query them."
        )


def order_text(value: Any, said: Saying) -> str:
    """Text for a value that sorts as the values do: its type, then the value, without any letter up to ``#``.

    Raises ``HandlerError`` for what does not compare, with what was said about it.
    """
    if isinstance(value, bool) or not isinstance(value, (int, Decimal, str, bytes, date)):
        hint = f"; for a float, Decimal({str(value)!r})" if isinstance(value, float) else ""
        hint = "; leave it out for an item without a value" if value is None else hint
        raise HandlerError(
            f"{said()} is ordered by {shown(value)} of type {type(value).__name__}, which does not compare: expected a "
            f"number (int or Decimal), text, bytes, a date or a time{hint}."
        )
    if isinstance(value, (str, date)):
        tag, content = "S", str(encode(value)["S"])
        text = content.translate(ESCAPED)
    else:
        tag, content = "B" if isinstance(value, bytes) else "N", ""
        text = sortable(value)
    if len(text) * 4 > ORDER_BYTES_MAX and (size := len(text.encode())) > ORDER_BYTES_MAX:
        counted = " (each of its bytes counts two)" if tag == "B" else ""
        counted = " (each of its letters up to '$' counts three)" if tag == "S" and text != content else counted
        raise HandlerError(
            f"{said()} is ordered by a value of {size} bytes, {ORDER_BYTES_MAX} at most{counted}: order by the "
            "beginning of it, or by a digest."
        )
    return tag + text


def content_text(value: Any, said: Saying) -> str:
    """The canonical text of a value. Raises ``HandlerError`` where it cannot be stored or is too large."""
    text = UNESCAPED.encode(encode(value))
    _check_size(text, said, VALUE_BYTES_MAX)
    return text


def _check_size(text: str, said: Saying, bytes_max: int) -> None:
    if len(text) * 4 > bytes_max and (size := len(text.encode())) > bytes_max:
        raise HandlerError(f"{said()} has a value of {size} bytes, {bytes_max} at most: keep its key, or less of it.")
