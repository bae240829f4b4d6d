"""What an item contributes to the rows of a view."""

from collections.abc import Iterable

from streamfold.derivations.view.fold import folded
from streamfold.derivations.view.rows import Making, known_sums, row_part
from streamfold.derivations.view.shards import SHARD, shard_of
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.errors import HandlerError, KeyValueError, shown
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.ledger.forms import Forms
from streamfold.records.images import Image
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import RowKey


def contributed(route: Route, image: Image, fields: Fields, forms: Forms) -> Contribution:
    """What an existing item contributes. Raises ``HandlerError`` for rows that the declaration does not allow."""
    effects: list[Row] = yielded(route, image, fields, Row)
    if shards := route.options.shards:
        given = {**fields, SHARD: shard_of(fields, shards)}
        return folded(Making(route, forms, given, spread=True), effects, _row)
    rows = _sums_alone(route, effects, fields, forms)
    return folded(Making(route, forms, fields), effects, _row) if rows is None else rows


def _sums_alone(route: Route, effects: Iterable[Row], fields: Fields, forms: Forms) -> Contribution | None:
    """Rows of nothing but sums that are known of the handler, as most are; None if more has to be looked at."""
    target = route.targets[0]
    template, known_forms = target.key, forms.of(target.key).get(route.name)
    if known_forms is None or len(route.targets) > 1 or target.contested or target.tenant is not None:
        return None
    rows: Contribution = {}
    for effect in effects:
        given = effect.values
        names, may_be_set = template.divided((*given,))
        keyed = len(names) != len(given)
        if effect.target is not None or effect.attributes or effect.wins is not None or not may_be_set:
            return None
        sums = None if keyed and target.owned else known_sums(known_forms, given, names)
        if sums is None:
            return None
        try:
            partition, sort = template.compose({**fields, **given} if keyed else fields)
        except KeyValueError:  # ``split`` says it in the words of the handler
            return None
        key = template.table.name, partition, sort
        if key in rows:
            return None
        rows[key] = RowPart(sums, None, "")
    return rows


def _row(making: Making, effect: Row) -> tuple[RowKey, RowPart]:
    if making.spread and SHARD in effect.values:
        shards = making.route.options.shards
        raise HandlerError(f"{shown(effect)} gives {SHARD}=, which shards={shards} fills: leave it out.")
    targets = making.route.targets
    target = targets[0] if effect.target is None and len(targets) == 1 else target_of(making.route, effect)
    key, values = split(target, effect, making.fields)
    return key, row_part(making, target, values, effect.wins)
