"""Checks that a handler is a function of its input: called again, with its sets in another order, more than a year
later, and in other time zones, it must give the same result.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import partitions_of, parts_among, referents_of, with_parts
from streamfold.proofs.handlers import is_called, time_given
from streamfold.proofs.memory import Remembered
from streamfold.records.change import Change, times_of
from streamfold.records.images import Image
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Route
from streamfold.runtime import MICROSECONDS


def with_sets_reversed(subject: Any) -> Any:
    """An equal image, or change with images, whose sets are iterated backwards."""
    return _Change(subject) if isinstance(subject, Change) else _Image(subject.raw)


class _Change:
    """A change with the images of another, their sets reversed."""

    def __init__(self, change: Change) -> None:
        self._change = change
        if change.has_old:
            self.old = _Image(change.old.raw)
        if change.has_new:
            self.new = _Image(change.new.raw)

    def without_derived(self) -> "_Change":
        return _Change(self._change.without_derived())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._change, name)


class _Image(Image):
    __slots__ = ()

    def _decode(self, name: str) -> Any:
        value = self._decoded[name] = _reversed(super()._decode(name))
        return value


class _Set(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__())[::-1])


def _reversed(value: Any) -> Any:
    if isinstance(value, set):
        return _Set(value)
    if isinstance(value, list):
        return [_reversed(member) for member in value]
    return {name: _reversed(member) for name, member in value.items()} if isinstance(value, dict) else value


SHIFT_SECONDS = 400 * 24 * 60 * 60 + 4_321
"""More than a year and not a whole number of hours: every value derived from a clock differs."""
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
CLOCKS_GIVEN = ("localtime", "gmtime", "ctime", "asctime", "strftime")
"""Functions that convert a given time, and without one the time of the clock."""


ZONES = ("XST-13:45", "YST11:30")
"""Time zones for ``TZ``, without a database of names (POSIX, Environment Variables). They are 25 hours and a quarter
apart: no instant has the same day, hour or minute in both, so one of them differs from the machine's own.
"""


@contextmanager
def zone(name: str) -> Iterator[None]:
    """Sets the time zone of this process; where the system cannot set it, nothing changes."""
    own = os.environ.get("TZ")
    try:
        _set_zone(name)
        yield
    finally:
        _set_zone(own)


def _set_zone(name: str | None) -> None:
    if hasattr(time, "tzset"):
        if name is None:
            os.environ.pop("TZ", None)
        else:
            os.environ["TZ"] = name
        time.tzset()


class KnownClock(NamedTuple):
    """A name by which a module knows a clock, and its replacement."""

    module: ModuleType
    name: str
    original: Any
    shifted: Any


class Clocks:
    """The clocks that handlers' packages can read, found once for all calls."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], list[KnownClock]] = {}  # by package, and how many modules there were

    @contextmanager
    def later(self, function: Callable[..., Any]) -> Iterator[None]:
        """Shifts every clock that the handler's package can read."""
        package = (function.__module__ or "").partition(".")[0]
        known = package, len(sys.modules)  # a handler may import a module when it is called
        if known not in self._found:
            self._found[known] = _clocks_near(package)
        clocks = self._found[known]
        try:
            for each in clocks:
                setattr(each.module, each.name, each.shifted)
            yield
        finally:
            for each in clocks:
                setattr(each.module, each.name, each.original)


def _clocks_near(package: str) -> list[KnownClock]:
    """The clocks of the module ``time``, and the names by which the package's modules know a clock."""
    clocks = [KnownClock(time, name, getattr(time, name), _shifted_clock(name)) for name in CLOCKS]
    clocks += [KnownClock(time, name, getattr(time, name), _shifted_given(name)) for name in CLOCKS_GIVEN]
    shifted = {each.original: each.shifted for each in clocks}
    for module in [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]:
        for name, value in list(vars(module).items()):
            if (replacement := _replacement(value, shifted)) is not None:
                clocks.append(KnownClock(module, name, value, replacement))
    return clocks


def _replacement(value: Any, shifted: dict[Any, Any]) -> Any:
    if value is datetime:
        return _LaterDatetime
    if value is date:
        return _LaterDate
    if isinstance(value, ModuleType) and value.__name__ == "datetime":
        return SimpleNamespace(**{**vars(value), "datetime": _LaterDatetime, "date": _LaterDate})
    return shifted.get(value) if callable(value) and getattr(value, "__module__", "") == "time" else None


def _shifted_clock(name: str) -> Callable[[], float]:
    clock, shift = getattr(time, name), SHIFT_SECONDS * (1_000_000_000 if name.endswith("_ns") else 1)
    return lambda: clock() + shift


def _shifted_given(name: str) -> Callable[..., Any]:
    original, now, localtime = getattr(time, name), time.time, time.localtime
    wanted = 2 if name == "strftime" else 1

    def shifted(*given: Any) -> Any:
        if len(given) == wanted:
            return original(*given)
        seconds = now() + SHIFT_SECONDS
        return original(*given, localtime(seconds) if name in ("asctime", "strftime") else seconds)

    return shifted


class _Instances(type):
    """Keeps ``isinstance(x, datetime)`` right while the name is bound to the shifted class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class _LaterDatetime(datetime, metaclass=_Instances):
    def __new__(cls, *parts: Any, **named: Any) -> Any:
        return cls.__mro__[1](*parts, **named)  # a time that is made of an item's values is not shifted

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + timedelta(seconds=SHIFT_SECONDS)

    @classmethod
    def utcnow(cls) -> Any:
        return datetime.now() + timedelta(seconds=SHIFT_SECONDS)  # noqa: DTZ005 - as the original gives it

    @classmethod
    def today(cls) -> Any:
        return datetime.now() + timedelta(seconds=SHIFT_SECONDS)  # noqa: DTZ005 - as the original gives it


class _LaterDate(date, metaclass=_Instances):
    def __new__(cls, *parts: Any, **named: Any) -> Any:
        return cls.__mro__[1](*parts, **named)

    @classmethod
    def today(cls) -> Any:
        return date.today() + timedelta(seconds=SHIFT_SECONDS)  # noqa: DTZ011 - as the original gives it


SETS = "it depends on the order of a set, which differs between processes"
AGAIN = "called twice it gives two results: it reads a clock, draws at random, or remembers other calls"
AFTER_OTHERS = "it remembers other calls: after calls with other items it gives another result"
MEMORY = "it remembers other calls: a new process gives another result"
CLOCK = "it reads a clock: a year later it gives another result"
ZONE = (
    "it reads the machine's time zone: in another zone it gives another result, and Lambda has UTC. Name the zone, "
    "datetime.fromtimestamp(seconds, UTC)"
)


class NotDeterministic(AssertionError):  # noqa: N818 - a public name
    """A handler gave two results for one input: it reads a clock, draws at random, or remembers something."""


class Call(NamedTuple):
    """One call of a handler. To call it gives the yielded effects, or None if the handler raises."""

    route: Route
    subject: Any
    fields: dict[str, Any]
    change: Change

    def __call__(self, subject: Any = None) -> list[Any] | None:
        """The effects for this subject, or for an equal one."""
        seconds = max(times_of([self.change]), default=0.0)
        given = {**self.fields, **time_given(self.route, round(seconds * MICROSECONDS))}
        return _given(self.route, self.subject if subject is None else subject, given)


def calls_on(app: App, changes: Iterable[Change]) -> list[Call]:
    """The calls of all handlers on these changes: of each image, or of the change. External ones are not called."""
    changes = list(changes)
    items = {change.item: change.new for change in changes if change.has_new and change.new}
    sources = ((change, *source) for change in changes for source in app.sources(change.item))
    calls, beside = [], partitions_of(items)
    for change, route, fields in sources:
        if not is_called(route) or route.items_given != 1 + bool(route.parts):
            continue
        if route.parts:
            route = with_parts(route, parts_among(route, beside[change.item[:2]], fields))  # noqa: PLW2901
        subjects: list[Any] = [change]
        if route.kind.gets_items:
            subjects = [image for image in (change.old, change.new) if image]
        for subject in subjects:
            referents = referents_of(route, subject, fields, items)
            if referents is not None:  # else it is not called
                calls.append(Call(route, subject, route.asked({**fields, **referents}), change))
    return calls


def check_deterministic(app: App, changes: Iterable[Change], remembered: Remembered) -> set[str]:
    """Calls every handler on these changes, again, more than a year later, in other time zones, and after all others.

    ``remembered`` is the memory of the handlers before the first call. Returns the names of the handlers that yielded
    something. Raises ``NotDeterministic``.
    """
    calls = calls_on(app, changes)
    clocks = Clocks()
    firsts = [_checked(call, remembered, clocks) for call in calls]
    for call, first in reversed(list(zip(calls, firsts, strict=True))):
        if first is not None and call() != first:
            raise NotDeterministic(message(call.route, call.change, AFTER_OTHERS))
    return {call.route.name for call, first in zip(calls, firsts, strict=True) if first}


def _checked(call: Call, remembered: Remembered, clocks: Clocks) -> list[Any] | None:
    """The result of a call, which must not change; None if it raises.

    After each difference the call is made once more as it was: if it differs from itself, the cause is ``AGAIN``.
    """
    first = call()
    if first is None:
        return None
    if call() != first:
        raise NotDeterministic(message(call.route, call.change, AGAIN))
    if not _alike(call(with_sets_reversed(call.subject)), first):
        raise NotDeterministic(message(call.route, call.change, SETS if call() == first else AGAIN))
    with remembered.forgotten() as differs:
        if differs and call() != first:
            raise NotDeterministic(message(call.route, call.change, MEMORY))
    assert call.route.function is not None
    with clocks.later(call.route.function):
        later = call()
    if later != first:
        raise NotDeterministic(message(call.route, call.change, CLOCK if call() == first else AGAIN))
    for name in ZONES:
        with zone(name):
            there = call()
        if there != first:
            raise NotDeterministic(message(call.route, call.change, ZONE if call() == first else AGAIN))
    return first


def _given(route: Route, subject: Any, fields: dict[str, Any]) -> list[Any] | None:
    """The effects of a handler; None if it raises, which other checks report."""
    assert route.function is not None
    try:
        given = route.function(subject, **fields)
        return [given] if derivation(route).gives_value else list(each_effect(route.name, given))
    except Exception:  # noqa: BLE001 - reported elsewhere, with the item
        return None


def _alike(given: list[Any] | None, first: Sequence[Any]) -> bool:
    """Whether the effects are the same in any order: a handler may yield a row for each member of a set."""
    remaining = list(first)
    for effect in given or ():
        if effect not in remaining:
            return False
        remaining.remove(effect)
    return given is not None and not remaining


def message(route: Route, change: Change, what: str) -> str:
    """The message about a handler that is no function of its input."""
    return (
        f"Handler {route.name!r} ({route.declared_at}) is no function of its input: for item {change.name} {what}. "
        "A redelivery would then write other rows than the first delivery. Take times from the item, or from "
        "change.at; ask whether a moment has come by now: Now; take ids from the key; keep nothing between calls; sort "
        "the members of a set."
    )
