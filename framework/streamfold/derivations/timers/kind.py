"""The kind ``timer``: the moments of items, beside the handler that is called at them.

A declaration with ``at=`` adds two routes. The handler's own route is of its kind, and no change reaches it. Beside it
this kind notes the moment of each item in the ledger, as any handler that asks for the time, and has no rows. A step
only puts the wake; a visit at the wake calls the handler (``batch.timers``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from streamfold.derivations.derivation import Contributing

if TYPE_CHECKING:
    from streamfold.derivations.expected import Expected, History
    from streamfold.ledger.contribution import Contribution
    from streamfold.ledger.schema import Schema
    from streamfold.records.images import Image
    from streamfold.routes.lookups import JoinedImage
    from streamfold.routes.moments import Now
    from streamfold.routes.route import Fields, Route

TIME = "now"
"""The name of the time beside an item."""


class TimerOptions(NamedTuple):
    """The options of the moments of a handler."""

    handler: str  # the name of the route that is called at them


class Timers(Contributing):
    """The moments of items, each of which is known in the ledger until it has been used."""

    name = "timer"
    write_units = "2 for a moment; 4 at it"
    reads_derived = False

    def calls_once(self, route: Route) -> str:
        options = route.options
        assert isinstance(options, TimerOptions)
        return options.handler

    def contribution(self, route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
        """Asks for the moment of an item; no row is made of it."""
        assert route.function is not None
        now = cast("Now", cast("JoinedImage", image).referents[TIME])
        now.passed(route.function(image))
        return {}

    def orders(self, route: Route) -> bool:
        return False

    def adds(self, route: Route) -> bool:
        return False

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected

        return Expected()


TIMERS = Timers()
