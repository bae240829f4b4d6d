"""An application whose handlers raise on purpose, and that remembers what each of them gave for which input."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from decimal import DecimalException
from functools import cached_property
from typing import Any

from streamfold.app import App
from streamfold.commit.outcome import raised_at
from streamfold.derivations.derivation import derivation
from streamfold.derivations.yielded import inexact
from streamfold.errors import ParkingError
from streamfold.parking import Parked
from streamfold.records.change import Change
from streamfold.routes.application import Dispatch, entries_of
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Route
from streamfold.testing.twin import parking_conflicts

FAULTS = ("raises-once", "raises-for-one", "raises-always", "switched-off")
"""How user code fails: at one call, for one item as often as it comes, or at every call until it is mended; or it is
switched off, and what it would have been called for is parked."""


class InjectedError(Exception):
    """A handler raised this because it was told to."""


class FaultyHandlers:
    """Decides at each call of a handler whether it raises. ``app`` is what was ``declared``, with these handlers.

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
        """Carries out an option: ``raises-once order_total``."""
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
        """The same application as another process has it. Runs share it: what a process learns is theirs."""
        return self._another()

    def _another(self) -> App:
        return with_functions(self.declared, self._wrapped)

    @property
    def options(self) -> list[str]:
        names = [route.name for route in self.app.routes if is_called(route)]
        return [f"{fault} {name}" for name in names for fault in FAULTS]

    def _wrapped(self, route: Route) -> Callable[..., Iterator[Any]]:
        function, name = route.function, route.name
        assert function is not None

        def handler(subject: Any, *more: Any, **fields: Any) -> Iterator[Any]:
            if self.once or self.always or self.for_one:
                self._raise(name, subject, fields)
            for effect in each_effect(name, function(subject, *more, **fields)):
                self.yielded.add(name)
                yield effect

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
    """The application with other functions behind its handlers that yield rows.

    External handlers stay.
    """
    twin = copy(app)
    twin.routes = tuple(replace(route, function=wrapped(route)) if is_called(route) else route for route in app.routes)
    twin.dispatch = {
        name: Dispatch(entries_of(twin.routes, name), table.delimiter) for name, table in twin.tables.items()
    }
    return twin


def is_called(route: Route) -> bool:
    """Whether a route has a handler that yields, and has no effects outside of the store."""
    alone = route.items_given == 1
    return route.function is not None and (alone or route.kind.gets_items) and not derivation(route).outside


def failure_message(route: Route, item: str, error: Exception) -> str:
    """What is said of a handler that raised: its name, its line, the item and the whole error."""
    place = raised_at(route, error) or route.declared_at
    failure_message = inexact(route, error) if isinstance(error, DecimalException) else error
    return f"handler {route.name!r} ({place}), item {item}: {type(failure_message).__name__}: {failure_message}"


NamedObject = tuple[str, str, str]
"""A change by its table, its item's name and its version."""


class ProofParking:
    """Takes the records that were delivered, and keeps them in the order in which they were parked.

    It refuses the records of derived rows, which no redrive reads, and those of a conflict of a unique index, which
    end with the conflict and not with a redrive: both are reported and come again.
    """

    def __init__(self, app: App) -> None:
        self.parked: list[Change] = []
        self._conflicts = parking_conflicts(app)
        self._delivered: dict[NamedObject, Change] = {}
        self._unnamed: list[Iterable[Change]] = []

    def delivered(self, changes: Iterable[Change]) -> None:
        """Notes the changes of an invocation, of which some may be parked: few are, so they are named only then."""
        self._unnamed.append(changes)

    def park(self, parked: Parked) -> None:
        """Keeps a record. Raises ``ParkingError`` for one that has no place here."""
        named = (((each.table.name, each.name, each.version_text), each) for some in self._unnamed for each in some)
        self._delivered.update(named)
        self._unnamed.clear()
        change = self._delivered.get((parked.table, parked.item, parked.version))
        if change is None or parked.handler in self._conflicts:
            raise ParkingError("this place takes records of the stream alone, and none of a conflict")
        if change not in self.parked:
            self.parked.append(change)
