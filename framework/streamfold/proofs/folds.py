"""What a row shows of all that its sources yield, told by sorting Python values: the aggregates of the oracle."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from streamfold.derivations.index.kind import Unique
from streamfold.records.values import decode, encode
from streamfold.routes.aggregates import Aggregate, Average, Count, Sum
from streamfold.routes.ordered import Collect, Distinct, First, Latest, Max, Min, Ordered, Top
from streamfold.routes.orderings import LARGEST_KEY, SMALLEST_KEY, Ties

Yielded = tuple[str, Any, dict[str, Any]]
"""One row that a source yields: the name of the source, by what its plain attributes win, and the attributes."""

FoldPlace = tuple[int, Any]


def folded_row(yielded: Sequence[Yielded]) -> dict[str, Any]:
    """The row of these sources."""
    row: dict[str, Any] = {}
    given: dict[str, list[tuple[str, Aggregate]]] = defaultdict(list)
    winners: dict[tuple[FoldPlace, str], dict[str, Any]] = {}
    for source, wins, values in yielded:
        plain = {name: value for name, value in values.items() if not isinstance(value, Aggregate)}
        if wins is None:
            row.update(plain)
        else:
            winners.setdefault((_place(wins), source), {}).update(plain)
        for name, value in values.items():
            if isinstance(value, Aggregate):
                given[name].append((source, value))
    if winners:
        most, _ = max(winners)
        row.update(winners[min(place for place in winners if place[0] == most)])
    for name, found in given.items():
        row.update(_of_one_kind(name, found))
    return row


def claimed_row(yielded: Sequence[Yielded], unique: Unique) -> dict[str, Any]:
    """The row that these sources claim, each with by what it does: that of the winner, and ten of them at most."""
    claims = {(_place(by), source): values for source, by, values in yielded}
    first, *others = (claims[place] for place in _in_order(claims, smallest=unique.smallest, ties=unique.ties)[:10])
    return {**first, "conflict": others} if others else first


def _of_one_kind(name: str, found: Sequence[tuple[str, Aggregate]]) -> dict[str, Any]:
    values = [value for _, value in found]
    if isinstance(values[0], Ordered):
        return {name: _ordered(values[0], found)}
    total = sum((value.amount for value in values if isinstance(value, Sum | Count | Average)), 0)
    if isinstance(values[0], Average):
        return {f"{name}_sum": total, f"{name}_count": len(values)}
    return {name: total}


def _ordered(kind: Ordered, found: Sequence[tuple[str, Any]]) -> Any:
    places = {(_place(value.by), source): value.value for source, value in found}
    values = [places[place] for place in sorted(places)]
    if isinstance(kind, Max):
        return values[-1]
    if isinstance(kind, Min):
        return values[0]
    if isinstance(kind, Latest | First | Top):
        form = kind.ordering.form
        ties = LARGEST_KEY if form.endswith("key") else SMALLEST_KEY
        best = [places[place] for place in _in_order(places, smallest="smallest" in form, ties=ties)]
        return best[: kind.ordering.most] if isinstance(kind, Top) else best[0]
    different = list(dict.fromkeys(map(_plain, values)))
    if isinstance(kind, Distinct):
        return len(different)
    assert isinstance(kind, Collect)
    most = kind.ordering.most
    return set(different[:most]) if kind.ordering.form == "set" else values[:most]


def _in_order(places: Iterable[tuple[FoldPlace, str]], *, smallest: bool, ties: Ties) -> list[tuple[FoldPlace, str]]:
    """Places, those that win first."""
    by_source = sorted(places, key=lambda place: place[1], reverse=ties == LARGEST_KEY)
    return sorted(by_source, key=lambda place: place[0], reverse=not smallest)


def _place(value: Any) -> FoldPlace:
    """A value with its place among those of other types: bytes, then numbers, then texts."""
    plain = _plain(value)
    return (0 if isinstance(plain, bytes) else 2 if isinstance(plain, str) else 1), plain


def _plain(value: Any) -> Any:
    """A value that compares: dates and times are text."""
    return decode(encode(value))
