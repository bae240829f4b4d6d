"""Folds the values that the sources of a row yield: each aggregate folds its own (``Aggregate.folded``)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.derivations.index.unique import Unique
from streamfold.routes.aggregates import Aggregate, Ordered
from streamfold.routes.shipped_aggregates import Claimed, Winner, claims_in_order, comparable

Yielded = tuple[str, Any, dict[str, Any]]
"""One row that a source yields: the name of the source, the value by which its plain attributes win, the attributes."""


def folded_row(yielded: Sequence[Yielded]) -> dict[str, Any]:
    """The row of these sources."""
    row: dict[str, Any] = {}
    given: dict[str, list[tuple[str, Aggregate]]] = defaultdict(list)
    winners: dict[tuple[str, Any], tuple[Any, dict[str, Any]]] = {}
    for source, wins, values in yielded:
        plain = {name: value for name, value in values.items() if not isinstance(value, Aggregate)}
        if wins is None:
            row.update(plain)
        else:
            winners.setdefault((source, comparable(wins)), (wins, {}))[1].update(plain)
        for name, value in values.items():
            if isinstance(value, Aggregate):
                given[name].append((source, value))
    if winners:
        row.update(Winner.fold([Winner(plain, wins) for _, (wins, plain) in sorted(winners.items(), key=_first)]))
    for name, found in given.items():
        row.update(_of_one_kind(name, found))
    return row


def claimed_row(yielded: Sequence[Yielded], unique: Unique) -> dict[str, Any]:
    """The row that these sources claim, each with the value by which it claims."""
    claims = {(source, comparable(by)): (by, values) for source, by, values in yielded}
    order = claims_in_order(smallest=unique.smallest, ties=unique.ties)
    found = Claimed.fold([Claimed(values, by, order, "") for _, (by, values) in sorted(claims.items(), key=_first)])
    return dict(found)


def _of_one_kind(name: str, found: Sequence[tuple[str, Aggregate]]) -> Mapping[str, Any]:
    by_source = sorted(found, key=_first)
    if isinstance(found[0][1], Ordered):  # equal values of one source count once
        keyed = {(source, comparable(value.by)): (source, value) for source, value in by_source}  # type: ignore[attr-defined]
        by_source = [*keyed.values()]
    values = [value for _, value in by_source]
    return values[0].folded(name, values)


def _first(each: tuple[Any, Any]) -> Any:
    return each[0]
