"""The options of external handlers, and their pending calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.errors import DeclarationError

if TYPE_CHECKING:
    from streamfold.derivations.on.kind import Filter
    from streamfold.derivations.outside_calls import CallLimits
    from streamfold.records.change import Change
    from streamfold.routes.route import Fields, Route


class Call(NamedTuple):
    """A pending call for a change."""

    route: Route
    changes: tuple[Change, ...]
    fields: Fields

    def __str__(self) -> str:
        return f"call {self.route.name} for {self.changes[0].name}"


class ExternalOptions(NamedTuple):
    """The options of an external handler."""

    filter: Filter
    limits: CallLimits


def external_options(chosen: Filter, at_once: Any, per_second: Any, at: str) -> ExternalOptions:
    """The options of the declaration ``at`` a line of code. Raises ``DeclarationError`` for limits that cannot be."""
    from streamfold.derivations.outside_calls import checked_limits  # most applications have no external handler

    return ExternalOptions(chosen, checked_limits(at_once, per_second, at))


def refuse_limits(at_once: Any, per_second: Any, at: str) -> None:
    """Refuses limits of calls for a handler that calls nothing."""
    for name, given, default in (("at_once", at_once, 1), ("per_second", per_second, None)):
        if given != default:
            raise DeclarationError(
                f"The handler at {at} has {name}={given!r} and writes rows: leave {name} out, which limits the calls "
                "of a handler with external=True. STREAMFOLD_LANES limits the calls that write rows."
            )


def limits_of(route: Route) -> CallLimits:
    """How many calls of a route one process makes."""
    if isinstance(route.options, ExternalOptions):
        return route.options.limits
    from streamfold.derivations.outside_calls import CallLimits

    return CallLimits()


def is_coroutine(route: Route) -> bool:
    from inspect import iscoroutinefunction

    return iscoroutinefunction(route.function)
