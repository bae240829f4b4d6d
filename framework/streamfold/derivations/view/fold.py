"""Calls a handler with an image, and makes the item's contribution of the rows that it yields."""

from collections.abc import Callable, Iterable

from streamfold.derivations.view.rows import Making, complete, merged
from streamfold.derivations.yielded import yielded
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.records.images import Image
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields
from streamfold.writes.guarded import RowKey


def fold(
    making: Making, image: Image, fields: Fields, row: Callable[[Making, Row], tuple[RowKey, RowPart]]
) -> Contribution:
    """What an item contributes: each row that the handler yields is made a part of a contribution by ``row``.

    The forms of attributes are learnt once all rows are accepted. Raises ``HandlerError`` for what may not be written
    as declared; errors of the handler itself come as they are.
    """
    return folded(making, yielded(making.route, image, fields, Row), row)


def folded(
    making: Making, effects: Iterable[Row], row: Callable[[Making, Row], tuple[RowKey, RowPart]]
) -> Contribution:
    """``fold`` of rows that a handler has yielded already."""
    rows: Contribution = {}
    route = making.route
    for effect in effects:
        key, part = row(making, effect)
        rows[key] = merged(route, key, rows[key], part) if key in rows else part
    for key, part in rows.items():
        if part.plain is not None or part.ordered:
            rows[key] = complete(route, key, part)
    if making.seen:
        making.forms.learn(route.name, making.seen)
    return rows
