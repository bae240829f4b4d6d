"""Unique index items: the sort position of each claimant.

A row that several items may claim keeps its claimants as entries. The winner is a function of that set, so it depends
neither on the order of arrival nor on claimants that have left.
"""

from collections.abc import Mapping
from typing import Any

from streamfold.derivations.index.options import Unique
from streamfold.derivations.view.rows import Making, note
from streamfold.errors import HandlerError, shown
from streamfold.keys.key import Key
from streamfold.ledger.contribution import RowPart
from streamfold.ledger.entries import PLAIN_ENTRY, held
from streamfold.routes.effects import Row
from streamfold.routes.ordered import Moment, Ordered
from streamfold.routes.orderings import CONFLICT
from streamfold.routes.route import Target


def claim_order(name: str, unique: Unique, image: Mapping[str, Any]) -> Moment:
    """The value of ``by`` that orders an item's claim. Raises ``HandlerError`` for an item without one."""
    if unique.by is None:
        return ""
    value = image.get(unique.by)
    if value is None:
        raise HandlerError(
            f"Index {name!r} orders those who claim a row by={unique.by!r}, which the item does not have: expected a "
            "number, text, bytes, a date or a time. Yield no row for an item without it."
        )
    return value  # type: ignore[no-any-return]


def check_claim(name: str, target: Key, effect: Row, fields: Mapping[str, Any]) -> None:
    """Refuses a unique key with an empty field, which every item without a value would claim."""
    for field in target.fields:
        value = effect.values[field] if field in effect.values else fields.get(field, field)
        if value is None or (isinstance(value, str | bytes) and not value):
            raise HandlerError(
                f"Index {name!r} gave {shown(effect)}, a unique key that is empty: {field}={shown(value)}. Yield a "
                f"row only for an item that has a value, if item.get({field!r}): yield ..."
            )
    if CONFLICT in effect.values or CONFLICT in (effect.attributes or ()):
        raise HandlerError(
            f"Index {name!r} gave {CONFLICT!r}, under which a unique row lists those who do not win: give the "
            "attribute another name."
        )


def claim_part(making: Making, target: Target, unique: Unique, values: Mapping[str, Any], order: Moment) -> RowPart:
    """What a claim contributes to its row: an entry beside those of other claimants."""
    one = Ordered.of(unique.ordering, order, values, lambda: f"The claim of index {making.route.name!r}")
    note(making, target, PLAIN_ENTRY, one)
    return RowPart({}, None, "", {PLAIN_ENTRY: held(one)})
