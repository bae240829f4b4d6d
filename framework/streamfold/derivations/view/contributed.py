"""What an item contributes to the rows of a view."""

from streamfold.derivations.view.fold import fold
from streamfold.derivations.view.rows import Making, row_part
from streamfold.derivations.view.shards import SHARD, shard_of
from streamfold.derivations.yielded import split, target_of
from streamfold.errors import HandlerError, shown
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.ledger.forms import Forms
from streamfold.records.images import Image
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import RowKey


def contributed(route: Route, image: Image, fields: Fields, forms: Forms) -> Contribution:
    """What an existing item contributes. Raises ``HandlerError`` for rows that the declaration does not allow."""
    if shards := route.options.shards:
        given = {**fields, SHARD: shard_of(fields, shards)}
        return fold(Making(route, forms, given, spread=True), image, fields, _row)
    return fold(Making(route, forms, fields), image, fields, _row)


def _row(making: Making, effect: Row) -> tuple[RowKey, RowPart]:
    if making.spread and SHARD in effect.values:
        shards = making.route.options.shards
        raise HandlerError(f"{shown(effect)} gives {SHARD}=, which shards={shards} fills: leave it out.")
    targets = making.route.targets
    target = targets[0] if effect.target is None and len(targets) == 1 else target_of(making.route, effect)
    key, values = split(target, effect, making.fields)
    return key, row_part(making, target, values, effect.wins)
