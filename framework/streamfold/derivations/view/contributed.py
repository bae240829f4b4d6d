"""What an item contributes to the rows of a view."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from streamfold.derivations.view.fold import folded
from streamfold.derivations.view.rows import COUNTED, Making, row_part
from streamfold.derivations.view.shards import SHARD, shard_of
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.errors import HandlerError, KeyValueError, shown
from streamfold.keys.key import Key
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.ledger.forms import Forms
from streamfold.records.images import Image
from streamfold.routes.effects import Row
from streamfold.routes.route import ROUTES_KEPT_MAX, Fields, Route, may_expire
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.records.values import Number


def contributed(route: Route, image: Image, fields: Fields, forms: Forms) -> Contribution:
    """What an existing item contributes. Raises ``HandlerError`` for rows that the declaration does not allow."""
    effects: list[Row] = yielded(route, image, fields, Row)
    if may_expire(route):
        forms.note_expiry(route, effects)
    shards = route.options.shards
    if shards:
        _check_shards(route, effects)
        fields = {**fields, SHARD: shard_of(fields, shards)}
    rows = _sums_alone(route, effects, fields, forms)
    return folded(Making(route, forms, fields, spread=shards > 0), effects, _row) if rows is None else rows


def _check_shards(route: Route, effects: Iterable[Row]) -> None:
    for effect in effects:
        if SHARD in effect.values:
            shards = route.options.shards
            raise HandlerError(f"{shown(effect)} gives {SHARD}=, which shards={shards} fills: leave it out.")


def _sums_alone(route: Route, effects: Iterable[Row], fields: Fields, forms: Forms) -> Contribution | None:
    """Rows of nothing but sums that are known of their handler, as most are; None if more has to be looked at."""
    template = _plain_target(route)
    known = None if template is None else forms.by_target.get(template)
    known_forms = None if known is None else known.get(route.name)
    if template is None or known_forms is None:
        return None
    rows: Contribution = {}
    for effect in effects:
        given = effect.values
        names, may_be_set = template.divided((*given,))
        if effect.target is not None or effect.attributes or effect.wins is not None or not may_be_set:
            return None
        sums: dict[str, Number] = {}
        for name in names:
            value = given[name]
            if COUNTED.get(type(value)) != known_forms.get(name, ""):
                return None
            sums[name] = value.amount
        try:
            keyed = len(given) - len(names)  # fields of the key that the row gives
            partition, sort = template.compose(
                fields if not keyed else given if keyed == len(template.types) else {**fields, **given}
            )
        except KeyValueError:  # ``split`` says it in the words of the handler
            return None
        key = template.table.name, partition, sort
        if key in rows:
            return None
        rows[key] = RowPart(sums, None, "")
    return rows


@lru_cache(ROUTES_KEPT_MAX)
def _plain_target(route: Route) -> Key | None:
    """The target of a route, if it has one, and nothing that a row gives has to be compared with its source."""
    target = route.targets[0]
    checked = target.contested or target.owned or target.tenant is not None
    return None if checked or len(route.targets) > 1 else target.key


def _row(making: Making, effect: Row) -> tuple[RowKey, RowPart]:
    target = target_of(making.route, effect)
    key, values = split(target, effect, making.fields)
    return key, row_part(making, target, values, effect.wins)
