"""The framework's aggregates, from ``Sum`` to ``Distinct``, plain attributes, and claims to a row.

.github/CONTRIBUTING.md says how to add one ("Add an aggregate").
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from streamfold.errors import HandlerError, shown
from streamfold.records.values import Number, decode, encode
from streamfold.routes.aggregates import (
    LARGEST_KEY,
    SMALLEST_KEY,
    TIES,
    Added,
    Aggregation,
    Amounts,
    Moment,
    Ordered,
    Ordering,
    Saying,
    ShardValue,
    Ties,
    check_most,
    check_size,
    checked_number,
    order_of_read,
    ordering,
)

SUM_SUFFIX, COUNT_SUFFIX = "_sum", "_count"
"""``Average`` keeps the two numbers that it is made of; ``streamfold.read.average`` divides them."""
TOP_MAX = 100
"""Entries that ``Top`` keeps at most: with values of ``TOP_BYTES_MAX`` half of an item (Developer Guide, Limits), and
with their sort positions three quarters.
"""
TOP_BYTES_MAX = 2048
COLLECT_MAX = 500
"""Values that ``Collect`` keeps at most, for the same reason; each is no longer than ``ORDER_BYTES_MAX``."""
CLAIMANTS_MAX = 10
"""Claimants of a unique row that it shows, winner included: an item of 400 KB holds ten values of ``VALUE_BYTES_MAX``.
"""
AVERAGE = "Average"
"""The aggregation of the numbers of an ``Average``."""
CONFLICT = "conflict"
"""The attribute of a unique row that lists the attributes of its other claimants, in their order."""


class _Amount(Added):
    """A number that is added up. ``amount`` is the number of this source."""

    __slots__ = ("amount",)
    amount: Number

    def amounts(self, name: str) -> Amounts:
        return ((name, self.amount),)

    def folded(self, name: str, given: Sequence[Any]) -> Mapping[str, Any]:
        return {name: sum(each.amount for each in given)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Amount) and type(self) is type(other) and self.amount == other.amount

    def __hash__(self) -> int:
        return hash((type(self), self.amount))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.amount!r})"


class Sum(_Amount):
    """The sum of a number over a row's sources; numbers of amended, moved and deleted sources are subtracted again.
    Raises ``HandlerError`` for a float, for another type, and for more than 38 digits.
    """

    __slots__ = ()

    def __init__(self, value: Number) -> None:
        self.amount: Number = checked_number(value, type(self).__name__)


class Count(_Amount):
    """How many sources a row has."""

    __slots__ = ()
    amount: Number = 1  # of the class, because many are made

    def __repr__(self) -> str:
        return "Count()"


class Average(_Amount):
    """The average of a number over a row's sources, kept as its sum and count: exact, and subtracted again like a
    ``Sum``.

    ``Row(score=Average(x))`` keeps ``score_sum`` and ``score_count``; ``streamfold.read.average(row, "score")`` divides
    them. Raises ``HandlerError`` as ``Sum`` does.
    """

    __slots__ = ()

    def __init__(self, value: Number) -> None:
        self.amount: Number = checked_number(value, type(self).__name__)

    def amounts(self, name: str) -> Amounts:
        return (name + SUM_SUFFIX, self.amount), (name + COUNT_SUFFIX, 1)

    def form(self) -> str:
        return AVERAGE

    def folded(self, name: str, given: Sequence[Any]) -> Mapping[str, Any]:
        return {f"{name}_sum": sum(each.amount for each in given), f"{name}_count": len(given)}


class _OfOneSource(Ordered):
    """An aggregate that shows the value of the one source that counts."""

    __slots__ = ()
    in_shards = of_one_source = True

    @staticmethod
    def show(values: Sequence[Any]) -> Any:
        return values[0]

    @classmethod
    def kept(cls, shard: ShardValue) -> list[tuple[str, Any]]:
        return [(shard.position, shard.shown)]


class Max(_OfOneSource):
    """The largest value of a row's sources: a number, text, bytes, date or time.

    A removed largest value costs one query of one entry, whatever the number of sources; a smaller one costs none.
    """

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = (Aggregation("max", descending=True, largest_key=True, by_value=True),)

    def __init__(self, value: Moment) -> None:
        self._set(MAX, value, value, lambda: f"Max({shown(value)})")

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return max(given, key=_by).value


class Min(_OfOneSource):
    """The smallest value of a row's sources; as ``Max``, the other way round."""

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = (Aggregation("min", by_value=True),)

    def __init__(self, value: Moment) -> None:
        self._set(MIN, value, value, lambda: f"Min({shown(value)})")

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return min(given, key=_by).value


def _chosen(name: str, **more: Any) -> tuple[Aggregation, ...]:
    """The aggregations of which a declaration chooses one, by ``smallest=`` and ``ties=``."""
    return tuple(
        Aggregation(aggregation_name(name, smallest=smallest, ties=ties), not smallest, ties == LARGEST_KEY, **more)
        for smallest in (False, True)
        for ties in TIES
    )


def aggregation_name(name: str, *, smallest: bool, ties: Ties) -> str:
    """The name of the aggregation that a declaration chooses."""
    return f"{name}{'-smallest' if smallest else ''}{'-largestkey' if ties == LARGEST_KEY else ''}"


class Latest(_OfOneSource):
    """The value of the source with the largest ``by``. ``ties`` chooses the winner among sources with equal ``by``.

    It costs as much as ``Max``. A value is anything that an item may hold, of 32 KB at most.
    """

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = _chosen("latest")

    def __init__(self, value: Any, *, by: Moment, ties: Ties = SMALLEST_KEY) -> None:
        def message() -> str:
            return f"Latest({shown(value)}, by={shown(by)}{_choice(ties=ties)})"

        self._set(_ordering("latest", 1, message, smallest=False, ties=ties), by, value, message)

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return _best_first(given)[0].value


class First(Latest):
    """The value of the source with the smallest ``by``; otherwise as ``Latest``."""

    __slots__ = ()

    def __init__(self, value: Any, *, by: Moment, ties: Ties = SMALLEST_KEY) -> None:
        def message() -> str:
            return f"First({shown(value)}, by={shown(by)}{_choice(ties=ties)})"

        self._set(_ordering("latest", 1, message, smallest=True, ties=ties), by, value, message)


class Top(Ordered):
    """The values of the ``n`` sources with the largest ``by``, as a list, the largest first.

    ``value`` is listed for a source, such as a map for a leaderboard, 2 KB at most. ``n`` is 100 at most. With
    ``smallest=True`` the sources with the smallest ``by`` are listed, the smallest first. ``ties`` chooses the
    first of several sources with equal ``by``. A change among the first ``n`` costs one query of ``n`` entries, and a
    second one if more sources tie for the last position than the list takes; a change behind them costs none.
    """

    __slots__ = ()
    # A shard's row has another aggregation: it keeps the sort positions of its list, because the values do not show
    # them.
    forms: ClassVar[tuple[Aggregation, ...]] = (
        *(form._replace(sharded=form.name.replace("top", "ranked")) for form in _chosen("top")),
        *_chosen("ranked", keeps=True),
    )
    in_shards = True

    def __init__(self, n: int, value: Any, *, by: Moment, smallest: bool = False, ties: Ties = SMALLEST_KEY) -> None:
        def message() -> str:
            return f"Top({shown(n)}, {shown(value)}, by={shown(by)}{_choice(smallest=smallest, ties=ties)})"

        check_most(n, TOP_MAX, message)
        self._set(_ordering("top", n, message, smallest=smallest, ties=ties), by, value, message)
        check_size(self.content, message, TOP_BYTES_MAX)

    @staticmethod
    def show(values: Sequence[Any]) -> Any:
        return list(values)

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return [each.value for each in _best_first(given)][: given[0].ordering.most]

    @classmethod
    def keep(cls, form: Aggregation, places: Sequence[str], values: Sequence[Any]) -> list[Any]:
        del form, values  # the row shows them
        return list(places)

    @classmethod
    def kept(cls, shard: ShardValue) -> list[tuple[str, Any]]:
        if shard.kept is None:
            raise TypeError(
                f"Attribute {shard.name!r} is a list whose shards do not keep its order, because its view has no "
                f"shards=: give the function that combines them, combine={{{shard.name!r}: list}}."
            )
        return list(zip(shard.kept, shard.shown, strict=True))


class Collect(Ordered):
    """The values of a row's sources as a set, or with ``into=list`` as a sorted list with one value for each source.

    Of more than ``most`` values (100 if not given, 500 at most) the smallest are kept, and ``streamfold.read.has_more``
    reads from the row that there are more. A change among those kept costs a query of them, a page of 100 for each 100
    values of a set; one beyond them costs none.
    """

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = (Aggregation("set", by_value=True, once=True, collects=True),)
    in_shards = True

    def __init__(self, value: Moment, *, most: int = 100, into: type = set) -> None:
        def message() -> str:
            return f"Collect({shown(value)}, most={shown(most)}, into={getattr(into, '__name__', into)})"

        if into not in (set, list):
            raise HandlerError(f"{message()}: expected into=set or into=list.")
        check_most(most, COLLECT_MAX, message)
        self._set(ordering(into.__name__, most), value, value, message)

    @staticmethod
    def show(values: Sequence[Any]) -> Any:
        return set(values)

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return set(_different(given)[: given[0].ordering.most])

    @classmethod
    def kept(cls, shard: ShardValue) -> list[tuple[str, Any]]:
        return [(order_of_read(value), value) for value in shard.shown]

    def form(self) -> str:
        return f"Collect(into={self.ordering.form.name})"


class _Listed(Collect):
    """``Collect(into=list)``: the differences of a list from a set."""

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = (Aggregation("list", by_value=True, collects=True),)

    @staticmethod
    def show(values: Sequence[Any]) -> Any:
        return list(values)

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return [each.value for each in sorted(given, key=_by)][: given[0].ordering.most]


class Distinct(Ordered):
    """How many different values a row's sources have, exactly.

    The only one whose cost grows: every change reads the values again, one query of a page of 100 entries for every
    value in which more than 100 sources agree, and for every 100 entries of the others. For millions of values use
    ``Count`` on a row for each value. Of more than 1,000 values the count is refused: the row does not change, and each
    record that changes them fails.
    """

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = (Aggregation("distinct", by_value=True, once=True),)
    in_shards = True  # readers who say ``combine=`` have the counts of the shards

    def __init__(self, value: Moment) -> None:
        self._set(DISTINCT, value, value, lambda: f"Distinct({shown(value)})")

    @staticmethod
    def show(values: Sequence[Any]) -> Any:
        return len(values)

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return len(_different(given))

    @classmethod
    def kept(cls, shard: ShardValue) -> list[tuple[str, Any]]:
        raise TypeError(
            f"Attribute {shard.name!r} counts different values, and two shards may have the same one: they cannot be "
            "added up. Count them in a view without shards=, or read the count of each shard, "
            f"combine={{{shard.name!r}: list}}."
        )


class Winner(_OfOneSource):
    """The plain attributes of the source with the largest ``wins``, together: ``Row(..., wins=...)``."""

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = (Aggregation("wins", descending=True),)

    def __init__(self, attributes: Mapping[str, Any], wins: Moment) -> None:
        self._set(WINS, wins, attributes, lambda: f"Row(wins={shown(wins)})")

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        return _best_first(given)[0].value

    def form(self) -> str:
        return self.ordering.form.name


class Claimed(Ordered):
    """The attributes of a unique row: its first claimant's, and a list of the other claimants' attributes."""

    __slots__ = ()
    forms: ClassVar[tuple[Aggregation, ...]] = _chosen("claim")

    def __init__(self, attributes: Mapping[str, Any], by: Moment, claims: Ordering, index: str) -> None:
        self._set(claims, by, attributes, lambda: f"The claim of index {index!r}")

    @staticmethod
    def show(values: Sequence[Any]) -> Any:
        return {**values[0], CONFLICT: list(values[1:])} if len(values) > 1 else values[0]

    @staticmethod
    def fold(given: Sequence[Ordered]) -> Any:
        first, *others = (each.value for each in _best_first(given)[:10])
        return {**first, "conflict": others} if others else first

    def form(self) -> str:
        return self.ordering.form.name


def _choice(*, smallest: object = False, ties: object = SMALLEST_KEY) -> str:
    chosen = {"smallest": (smallest, False), "ties": (ties, SMALLEST_KEY)}
    return "".join(f", {name}={shown(value)}" for name, (value, default) in chosen.items() if value != default)


def _ordering(name: str, most: int, message: Saying, *, smallest: Any, ties: Any) -> Ordering:
    if not isinstance(smallest, bool) or ties not in TIES:
        raise HandlerError(f"{message()}: expected smallest=True or False, and ties={TIES[0]!r} or {TIES[1]!r}.")
    return ordering(aggregation_name(name, smallest=smallest, ties=ties), most)


MAX, MIN, DISTINCT = ordering("max", 1), ordering("min", 1), ordering("distinct", 0)
WINS = ordering("wins", 1)
"""Orderings that no declaration changes, made once: values are many."""


def claims_in_order(*, smallest: bool, ties: Ties) -> Ordering:
    """The ordering of the claims to a unique row."""
    return ordering(aggregation_name("claim", smallest=smallest, ties=ties), CLAIMANTS_MAX)


# For proofs to compare with: sorted by Python, without the texts by which entries are sorted.


def comparable(value: Any) -> tuple[int, Any]:
    """A value with its rank among those of other types: bytes, then numbers, then texts, which dates and times are."""
    found = decode(encode(value))
    return (0 if isinstance(found, bytes) else 2 if isinstance(found, str) else 1), found


def _by(given: Ordered) -> tuple[int, Any]:
    return comparable(given.by)


def _best_first(given: Sequence[Ordered]) -> list[Ordered]:
    """Values in the order in which they count, as the name of their aggregation prescribes; ``given`` in the order of
    sources' keys.
    """
    name = given[0].ordering.form.name
    by_source = given[::-1] if name.endswith("largestkey") else given
    return sorted(by_source, key=_by, reverse="smallest" not in name)


def _different(given: Iterable[Ordered]) -> list[Any]:
    return list(dict.fromkeys(value for _, value in sorted(map(_by, given))))
