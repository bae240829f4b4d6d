"""The kind ``view``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from streamfold.derivations.derivation import Expiring
from streamfold.routes.effects import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamfold.derivations.derivation import Contributes
    from streamfold.derivations.expected import Expected, History
    from streamfold.routes.route import Fields, Route


class ViewOptions(NamedTuple):
    """The options of a view beside its keys."""

    shards: int = 0  # how many rows a row is spread over; 0 for none


def spread_over(route: Route) -> int:
    """The number of shards of a route's rows; 0 for none."""
    return route.options.shards if isinstance(route.options, ViewOptions) else 0


class View(Expiring):
    """Rows that are sums of their source items' contributions."""

    name = "view"
    takes_time = True
    write_units = "2, and 2 per row and batch; 2 more for a change that may leave a counted row empty"
    yields = (Row,)
    shares_rows = True
    sees_derived_attributes = True

    def may_share(self, one: Route, other: Route) -> bool:
        return True

    def spread(self, route: Route) -> bool:
        return bool(spread_over(route))

    def check(self, own: Sequence[Route], routes: Sequence[Route]) -> None:
        from streamfold.derivations.view.shards import check_aggregates

        super().check(own, routes)
        for route in own:
            if spread_over(route):
                check_aggregates(route)

    @cached_property  # an import statement costs, and this is called for each item
    def contribution(self) -> Contributes:
        from streamfold.derivations.view.rows import contributed

        return contributed

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected, shares_of
        from streamfold.derivations.expiry import with_grace
        from streamfold.derivations.view.shards import shard_of
        from streamfold.routes.route import SHARD

        shards = spread_over(route)

        def more(fields: Fields) -> Fields:
            return {SHARD: shard_of(fields, shards)} if shards else {}

        return Expected(shares=[with_grace(route, share) for share in shares_of(route, history, more)])


VIEW = View()
