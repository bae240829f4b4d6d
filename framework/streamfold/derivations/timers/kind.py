"""The kind ``timer``: the moments of items, beside the handler that is called at them.

A declaration with ``at=`` adds two routes. The handler's own route is of its kind, and no change reaches it. Beside it
this kind notes the moment of each item in the ledger, as any handler that asks for the time, and has no rows. A step
only puts the wake; a visit at the wake calls the handler (``batch.timers``).
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from streamfold.derivations.derivation import Contributing
from streamfold.derivations.expected import Expected
from streamfold.derivations.on.kind import Filter, GivesMoment  # noqa: TC001 - a named tuple's fields are evaluated
from streamfold.derivations.timers.timer import EVENT
from streamfold.errors import DeclarationError
from streamfold.records.change import EVENTS
from streamfold.routes.declaration import POSITIONAL, with_typed_items
from streamfold.routes.lookups import JoinedImage
from streamfold.routes.route import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamfold.derivations.derivation import CountedWord
    from streamfold.derivations.expected import History
    from streamfold.derivations.timers.timer import TimerChange
    from streamfold.keys.key import Key
    from streamfold.ledger.contribution import Contribution
    from streamfold.ledger.schema import Schema
    from streamfold.records.images import Image
    from streamfold.routes.moments import Now
    from streamfold.routes.route import Fields

SUFFIX = ".timer"
"""Behind a handler's name, in the name of the route of its moments."""
TIME = "now"
"""The name of the time beside an item."""
REMEDY = "write at=lambda item: item['due_at'], which gives a moment, or None for an item without one"


class TimerOptions(NamedTuple):
    """The options of the moments of a handler."""

    handler: str  # the name of the route that is called at them


class Timers(Contributing):
    """The moments of items, each of which is known in the ledger until it has been used."""

    name = "timer"
    write_units = "2 for a moment, and 4 at it"
    reads_derived = False
    says: ClassVar[Mapping[str, CountedWord]] = {}

    def calls_once(self, route: Route) -> str:
        options = route.options
        assert isinstance(options, TimerOptions)
        return options.handler

    def contribution(self, route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
        """Asks for the moment of an item; no row is made of it."""
        assert isinstance(image, JoinedImage), "the time is beside the item"
        assert route.function is not None
        now = cast("Now", image.referents[TIME])
        now.passed(route.function(image))
        return {}

    def orders(self, route: Route) -> bool:
        return False

    def adds(self, route: Route) -> bool:
        return False

    def delta_keys(self, route: Route) -> tuple[Key, ...]:
        return ()

    def expected(self, route: Route, history: History) -> Expected:
        return Expected()


TIMERS = Timers()


class Moments(NamedTuple):
    """What a declaration has with ``at=``."""

    at: GivesMoment
    filters: Mapping[str, Any]  # of changes, as they were given

    def chosen(self, where: str) -> Filter:
        """The filter of the handler that is declared ``where``: no change passes it. Raises ``DeclarationError`` for a
        function that gives no moment of an item, and for filters of changes.
        """
        self._check_function(where)
        defaults = {"events": EVENTS, "changed": (), "expired": None}
        for name, given in self.filters.items():
            if given != defaults[name]:
                raise DeclarationError(
                    f"The handler at {where} has at= and {name}={given!r}: it is called at a moment of its item, and "
                    f"for no change. Leave {name} out, and have at= give None for items that it is not for."
                )
        return Filter(frozenset([EVENT]))

    def _check_function(self, where: str) -> None:
        at: Any = self.at
        if not inspect.isroutine(at):
            raise DeclarationError(f"The handler at {where} has at={at!r}: expected a function of the item; {REMEDY}.")
        name = at.__name__
        if inspect.iscoroutinefunction(at) or inspect.isgeneratorfunction(at) or inspect.isasyncgenfunction(at):
            raise DeclarationError(
                f"The handler at {where} has at={name}, which yields or is async: an item has one moment; {REMEDY}."
            )
        parameters = inspect.signature(at).parameters.values()
        required = [each for each in parameters if each.default is inspect.Parameter.empty]
        if len(required) != 1 or required[0].kind not in POSITIONAL:
            raise DeclarationError(
                f"The handler at {where} has at={name} with {len(required)} parameters: expected one, the item, from "
                f"which alone its moment follows; {REMEDY}."
            )

    def routes(self, route: Route) -> tuple[Route, ...]:
        """The route of the handler, and that of its moments."""
        where, function = route.declared_at, route.function
        moments = Route(
            route.name + SUFFIX,
            TIMERS,
            route.sources,
            (),
            with_typed_items(self.at, route.name, 1, (), gets_items=True, at=where),
            where,
            route.group,
            options=TimerOptions(route.name),
            policy=route.policy,
            asks_time=TIME,
        )
        return (route if function is None else replace(route, function=_given_timer(function))), moments


def _given_timer(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a handler, called with the timer instead of the change in its place."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(change: TimerChange, **fields: Any) -> Any:
            return await function(change.timer, **fields)

        return awaited

    @wraps(function)
    def called(change: TimerChange, **fields: Any) -> Any:
        return function(change.timer, **fields)

    return called
