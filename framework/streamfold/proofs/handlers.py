"""An application whose handlers raise on purpose, and a parking location for its records."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import DecimalException
from functools import cached_property
from typing import Any

from streamfold.app import App
from streamfold.commit.outcome import raised_at
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import ItemVersion
from streamfold.derivations.yielded import inexact
from streamfold.errors import ParkingError
from streamfold.parking import Parked
from streamfold.records.change import Change
from streamfold.routes.effects import each_effect
from streamfold.routes.moments import Now
from streamfold.routes.route import Route
from streamfold.testing.twin import parking_conflicts

FAULTS = ("raises-once", "raises-for-one", "raises-always", "switched-off")
"""Failures of user code: at one call, at every call with one item, or at every call until the code is corrected. A
handler that is switched off gets no calls, and its records are parked."""


class InjectedError(Exception):
    """Raised by a handler as an injected fault."""


class FaultyHandlers:
    """Decides at each call of a handler whether it raises. ``app`` is the ``declared`` application with these handlers.

    ``yielded`` names the handlers that yielded something, ``off`` those that are switched off.
    """

    def __init__(self, app: App) -> None:
        self.declared = app
        self.app = self._another()
        self.once: set[str] = set()
        self.always: set[str] = set()
        self.for_one: dict[str, Any] = {}
        self.yielded: set[str] = set()
        self.off: set[str] = set()

    def recover(self) -> None:
        """From here on no handler raises, and all are switched on."""
        self.off.clear()
        self.once.clear()
        self.always.clear()
        self.for_one.clear()

    def break_down(self, option: str) -> None:
        """Injects the fault of an option: ``raises-once order_total``."""
        fault, _, name = option.partition(" ")
        if fault == "raises-once":
            self.once.add(name)
        elif fault == "raises-always":
            self.always.add(name)
        elif fault == "switched-off":
            self.off.add(name)
        else:
            self.for_one.setdefault(name, None)

    @cached_property
    def other(self) -> App:
        """The application of another process. Runs share it; ``Invoker.known`` keeps its knowledge for each run."""
        return self._another()

    def _another(self) -> App:
        return with_functions(self.declared, self._wrapped)

    @property
    def options(self) -> list[str]:
        names = [route.name for route in self.app.routes if is_called(route)]
        return [f"{fault} {name}" for name in names for fault in FAULTS]

    def _wrapped(self, route: Route) -> Callable[..., Any]:
        function, name = route.function, route.name
        assert function is not None
        if derivation(route).gives_value:
            return self._giving(function, name)

        def handler(subject: Any, *more: Any, **fields: Any) -> Iterator[Any]:
            if self.once or self.always or self.for_one:
                self._raise(name, subject, fields)
            for effect in each_effect(name, function(subject, *more, **fields)):
                self.yielded.add(name)
                yield effect

        return handler

    def _giving(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def handler(subject: Any, **fields: Any) -> Any:
            if self.once or self.always or self.for_one:
                self._raise(name, subject, fields)
            if (given := function(subject, **fields)) is not None:
                self.yielded.add(name)
            return given

        return handler

    def _raise(self, name: str, subject: Any, fields: Mapping[str, Any]) -> None:
        if name in self.always:
            raise InjectedError
        if name in self.once:
            self.once.discard(name)
            raise InjectedError
        if name in self.for_one:
            mark = subject.identity_text if isinstance(subject, Change) else (dict(subject), dict(fields))
            if self.for_one[name] is None:
                self.for_one[name] = mark
            if self.for_one[name] == mark:
                raise InjectedError


def with_functions(app: App, wrapped: Callable[[Route], Callable[..., Any]]) -> App:
    """The application with other functions for its handlers that yield rows. External handlers are unchanged."""
    return app.with_functions(lambda route: wrapped(route) if is_called(route) else route.function)


def is_called(route: Route) -> bool:
    """Whether a proof calls the handler of a route: it yields, and has no effects outside of the store."""
    single, kind = route.items_given == 1, route.kind
    yields = route.function is not None and (single or kind.gets_items) and not kind.calls_once(route)
    return yields and bool(kind.subscriptions(route)) and not derivation(route).outside


def time_given(route: Route, at: int) -> dict[str, Now]:
    """The time as an argument, for a handler that asks for it: each call gets one of its own."""
    return {route.asks_time: Now(at)} if route.asks_time else {}


def failure_message(route: Route, item: str, error: Exception) -> str:
    """The message about a handler that raised: its name, its line, the item and the whole error."""
    location = raised_at(route, error) or route.declared_at
    shown = inexact(route, error) if isinstance(error, DecimalException) else error
    return f"handler {route.name!r} ({location}), item {item}: {type(shown).__name__}: {shown}"


NamedObject = tuple[str, str, str]
"""A change by its table, its item's name and its identity."""


class ProofParking:
    """Keeps the delivered records that are parked, in order.

    It refuses records of derived rows, because no redrive reads them, and records of a conflict of a unique index,
    because these end with the conflict and not with a redrive. Both are reported and redelivered.
    """

    def __init__(self, app: App) -> None:
        self.parked: list[Change] = []
        self.versions: dict[str, set[ItemVersion]] = defaultdict(set)  # of parked changes, by handler
        self._conflicts = parking_conflicts(app)
        self._delivered: dict[NamedObject, Change] = {}
        self._unnamed: list[Iterable[Change]] = []

    def delivered(self, changes: Iterable[Change]) -> None:
        """Notes the changes of an invocation. Few are parked, so they are indexed by name only in ``park``."""
        self._unnamed.append(changes)

    def park(self, parked: Parked) -> None:
        """Keeps a record. Raises ``ParkingError`` for a record that it refuses."""
        named = (((each.table.name, each.name, each.identity_text), each) for some in self._unnamed for each in some)
        self._delivered.update(named)
        self._unnamed.clear()
        change = self._delivered.get((parked.table, parked.item, parked.version))
        if change is None or parked.handler in self._conflicts:
            raise ParkingError("this place takes records of the stream alone, and none of a conflict")
        if change not in self.parked:
            self.parked.append(change)
        self.versions[parked.handler].add(ItemVersion(change.item, change.version_text))
