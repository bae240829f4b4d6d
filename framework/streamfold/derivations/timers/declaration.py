"""Declarations with ``at=``: what is refused, and the two routes that are added."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.derivations.on.kind import Filter, GivesMoment  # noqa: TC001 - a named tuple's fields are evaluated
from streamfold.derivations.timers.kind import TIME, TIMERS, TimerOptions
from streamfold.errors import DeclarationError
from streamfold.records.change import EVENTS, Change
from streamfold.routes.declaration import POSITIONAL, with_typed_items
from streamfold.routes.moments import EVENT
from streamfold.routes.route import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamfold.routes.moments import TimerChange

SUFFIX = ".timer"
"""Behind a handler's name, in the name of the route of its moments."""
REMEDY = "write at=lambda item: item['due_at'], which gives a moment, or None for an item without one"


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
        first = next(iter(inspect.signature(function).parameters.values()), None) if function else None
        if first is not None and first.annotation in (Change, Change.__name__):
            raise DeclarationError(
                f"The handler at {where} has at= and takes {first.name}: Change: it is called at a moment of its item, "
                "and gets a Timer. Write timer: Timer; timer.item is the item, timer.at the moment."
            )
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
