"""What an item contributes to the attributes of other items, or to its own."""

from streamfold.derivations.attributes.stored import MARK, stored_of
from streamfold.derivations.view.fold import fold
from streamfold.derivations.view.rows import Making, row_part
from streamfold.derivations.yielded import split, target_of
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.ledger.forms import Forms
from streamfold.records.images import Image, without_derived
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import RowKey


def contributed(route: Route, image: Image, fields: Fields, forms: Forms) -> Contribution:
    """What an existing item contributes. Raises ``HandlerError`` for rows that the declaration does not allow."""
    image = Image(without_derived(image.raw))  # never from what was derived before: that would not come to an end
    stored = stored_of(route)
    assert stored is not None, "an application says where the attributes of its routes are kept"

    def row(making: Making, effect: Row) -> tuple[RowKey, RowPart]:
        target = target_of(route, effect)
        key, values = split(target, effect, fields)
        marked = {MARK + name: value for name, value in values.items()}
        return stored.row(key[1:]), row_part(making, target, marked, effect.wins)

    return fold(Making(route, forms, fields, mark=MARK), image, fields, row)
