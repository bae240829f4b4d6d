"""The kind ``view``."""

from typing import NamedTuple

from streamfold.derivations.derivation import Contributing
from streamfold.derivations.expected import Expected, History, shares_of
from streamfold.derivations.view.expiry import outlived
from streamfold.derivations.view.fold import fold
from streamfold.derivations.view.rows import Making, row_part
from streamfold.derivations.view.shards import SHARD, shard_of
from streamfold.derivations.yielded import split, target_of
from streamfold.errors import HandlerError, shown
from streamfold.ledger.contribution import Contribution, RowPart
from streamfold.ledger.forms import Contributed, Forms
from streamfold.records.change import Change
from streamfold.records.images import Image
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import RowKey


class ViewOptions(NamedTuple):
    """What a view declares beside its keys."""

    shards: int = 0  # how many rows a row is spread over; 0 for none


def spread_over(route: Route) -> int:
    """How many rows a row of a route is spread over; 0 for none."""
    return route.options.shards if isinstance(route.options, ViewOptions) else 0


class View(Contributing):
    """Rows that add up what their source items contribute."""

    name = "view"
    yields = (Row,)
    shares_rows = True
    sees_derived_attributes = True

    def may_share(self, one: Route, other: Route) -> bool:
        del one, other
        return True

    def spread(self, route: Route) -> bool:
        return bool(spread_over(route))

    def contribution(self, route: Route, image: Image, fields: Fields, forms: Forms) -> Contributed:
        if shards := route.options.shards:
            given = {**fields, SHARD: shard_of(fields, shards)}
            return fold(Making(route, forms, given, spread=True), image, fields, _row)
        return fold(Making(route, forms, fields), image, fields, _row)

    def outlived(self, route: Route, change: Change, after: Contribution) -> bool:
        return outlived(route, change, after)

    def expected(self, route: Route, history: History) -> Expected:
        shards = spread_over(route)

        def more(fields: Fields) -> Fields:
            return {SHARD: shard_of(fields, shards)} if shards else {}

        return Expected(shares=shares_of(route, history, more))


def _row(making: Making, effect: Row) -> tuple[RowKey, RowPart]:
    if making.spread and SHARD in effect.values:
        shards = spread_over(making.route)
        raise HandlerError(f"{shown(effect)} gives {SHARD}=, which shards={shards} fills: leave it out.")
    target = target_of(making.route, effect)
    key, values = split(target, effect, making.fields)
    return key, row_part(making, target, values, effect.wins)


VIEW = View()
