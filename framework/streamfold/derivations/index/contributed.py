"""What an item contributes to the rows of an index."""

from collections.abc import Mapping
from typing import Any

from streamfold.derivations.index.claims import check_claim, claim_order, claim_part
from streamfold.derivations.index.options import unique_of
from streamfold.derivations.view.fold import folded
from streamfold.derivations.view.rows import Making, note_all
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.errors import HandlerError
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.ledger.forms import Forms
from streamfold.records.images import Image
from streamfold.routes.aggregates import Aggregate
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route, may_expire
from streamfold.writes.guarded import RowKey


def contributed(route: Route, image: Image, fields: Fields, forms: Forms) -> Contribution:
    """What an existing item contributes. Raises ``HandlerError`` for rows that the declaration does not allow."""
    unique = unique_of(route)

    def row(making: Making, effect: Row) -> tuple[RowKey, RowPart]:
        target = target_of(route, effect)
        if unique is not None:
            check_claim(route.name, target.key, effect, fields)
        key, values = split(target, effect, fields)
        _check_plain(route, effect, values)
        note_all(making, target, values)
        if unique is not None:
            return key, claim_part(making, target, unique, values, claim_order(route.name, unique, image))
        return key, RowPart({}, values, "")

    effects: list[Row] = yielded(route, image, fields, Row)
    if may_expire(route):
        forms.note_expiry(route, effects)
    return folded(Making(route, forms, fields), effects, row)


def _check_plain(route: Route, effect: Row, values: Mapping[str, Any]) -> None:
    aggregates = [name for name, value in values.items() if isinstance(value, Aggregate)]
    if aggregates or effect.wins is not None:
        what = f"{aggregates[0]!r} as an aggregate" if aggregates else "wins="
        raise HandlerError(f"Index {route.name!r} gave {what}: an index item has one source; use a view.")
