"""Merges the shards of a spread row into the row that a view without shards would have.

Numbers are added up. For ordered aggregates each shard stores its own winners and their sort positions, in attributes
of the framework. A sort position is the ordering value and the source's key, so merged shards have the order that a
single row would have, ties included.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from streamfold.keys.table import EDGE, PLACES, PLAIN_NAMES
from streamfold.ledger.entries import PLAIN_ENTRY, in_order
from streamfold.records.images import hidden
from streamfold.records.numbers import WIDE, number_text
from streamfold.routes.ordered import order_text
from streamfold.routes.orderings import FORMS, PLAIN, Form, Ordering, Together

ShardRow = Mapping[str, Any]
Combine = Mapping[str, Callable[[Sequence[Any]], Any]]


def together(shards: Sequence[ShardRow], keys: Iterable[str], combine: Combine) -> dict[str, Any]:
    """All attributes of a row except its key, merged from its shards. ``combine``: functions that merge an attribute.

    Raises ``TypeError`` for an attribute that cannot be merged without such a function.
    """
    plain = _winner(shards)
    names = dict.fromkeys(name for row in shards for name in row if not hidden(name) and name not in keys)
    return {
        name: combine[name]([row[name] for row in shards if name in row]) if name in combine else one(shards, name)
        for name in names
        if name in combine or name in plain or not _is_won(shards, name)
    }


def one(shards: Sequence[ShardRow], name: str) -> Any:
    """One attribute of a row, merged from its shards. Raises ``TypeError`` if it cannot be merged."""
    if _is_won(shards, name):
        return _winner(shards)[name]
    having = [row for row in shards if name in row]
    orderings = [_ordering(row, name) for row in having]
    found = [ordering for ordering in orderings if ordering is not None]
    if not found:
        return _total(name, [row[name] for row in having])
    if len({ordering.form for ordering in found}) > 1 or len(found) < len(having):
        said = ", ".join(sorted({str(ordering or "a number") for ordering in orderings}))
        raise TypeError(
            f"Attribute {name!r} is made differently in its shards ({said}), because the view has changed: say how "
            f"they are combined, combine={{{name!r}: list}}, until the older items have changed too."
        )
    # A shard without changes since the view asked for more still lists fewer: only the common number is exact.
    return _ordered(name, having, found[0].form, min(ordering.most for ordering in found))


def _ordering(row: ShardRow, name: str) -> Ordering | None:
    """How a row says that one of its attributes is made; None for what is added up."""
    text, _, _ = str(row.get(EDGE + name, "")).partition(" ")
    return Ordering.of(text) if text else None


def _ordered(name: str, shards: Sequence[ShardRow], text: str, most: int) -> Any:
    form = FORMS.get(text)
    if form is None or form.together is None:
        raise TypeError(
            f"Attribute {name!r} is made in the form {text!r}, of which this code does not know how shards are put "
            f"together: say how, combine={{{name!r}: list}}, or read with the code that writes it."
        )
    if form.made is len:
        raise TypeError(
            f"Attribute {name!r} counts different values, and two shards may have the same one: they cannot be added "
            "up. Count them in a view without shards=, or take the shards' counts for what they are, "
            f"combine={{{name!r}: list}}."
        )
    if form.together is Together.PLACES:
        placed = [each for row in shards for each in zip(row[PLACES + name], row[name], strict=True)]
        return [value for _, value in in_order(form, placed)][:most]
    if form.together is Together.FIRST:
        return _first(shards, EDGE + name, form)[name]
    if form.together is Together.VALUES:
        return _listed(name, [value for row in shards for value in row[name]], form, most)
    if form.made is not list:
        raise TypeError(f"Attribute {name!r} cannot be put together: say how, combine={{{name!r}: list}}.")
    raise TypeError(
        f"Attribute {name!r} is a list whose shards do not say in which order it stands, because its view has no "
        f"shards=: say how they are combined, combine={{{name!r}: list}}."
    )


def _listed(name: str, values: list[Any], form: Form, most: int) -> Any:
    """The smallest values of all; of a set each once, so that they need no more than their order."""
    by_order = sorted(((order_text(_bytes(value), lambda: name), value) for value in values), key=_place)
    if form.once:
        by_order = list(dict(by_order).items())
    return form.made([value for _, value in by_order[:most]])


def _place(placed: tuple[str, Any]) -> str:
    return placed[0]


def _bytes(value: Any) -> Any:
    """A value whose bytes are no ``Binary`` of boto3, which has them as its value."""
    return getattr(value, "value", value)


def _first(shards: Sequence[ShardRow], edge: str, form: Form) -> ShardRow:
    """The shard whose one entry counts first of all."""
    return in_order(form, [(str(row[edge]).partition(" ")[2], row) for row in shards])[0][1]


def _is_won(shards: Sequence[ShardRow], name: str) -> bool:
    """Whether an attribute is one of the plain attributes of which one source has all, ``Row(wins=...)``."""
    return any(name in row.get(PLAIN_NAMES, ()) for row in shards)


def _winner(shards: Sequence[ShardRow]) -> dict[str, Any]:
    """The plain attributes of the source that wins."""
    having = [row for row in shards if EDGE + PLAIN_ENTRY in row]
    if not having:
        return {}
    row = _first(having, EDGE + PLAIN_ENTRY, FORMS[PLAIN])
    return {name: row[name] for name in row[PLAIN_NAMES]}


def _total(name: str, values: Sequence[Any]) -> Decimal:
    if not all(isinstance(value, Decimal | int) and not isinstance(value, bool) for value in values):
        raise TypeError(f"Attribute {name!r} is no number: say how its shards are combined, combine={{{name!r}: max}}.")
    total = Decimal(0)
    for value in values:
        total = WIDE.add(total, value)  # of some of the shards it may need more digits than of all
    return Decimal(number_text(total))
