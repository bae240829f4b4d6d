"""The clocks that a handler can read, put forward by more than a year for a while."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

SHIFT_SECONDS = 400 * 24 * 60 * 60 + 4_321
"""More than a year and not a whole number of hours: whatever is read of a clock differs."""
CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
CLOCKS_TOLD = ("localtime", "gmtime", "ctime", "asctime", "strftime")
"""Those that tell a time that they are given, and the clock's where they are given none."""


class KnownClock(NamedTuple):
    """A name by which a module knows a clock, and what is put in its place."""

    module: ModuleType
    name: str
    original: Any
    shifted: Any


class Clocks:
    """The clocks that handlers' packages can see, found once for all calls."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], list[KnownClock]] = {}  # by package, and how many modules there were

    @contextmanager
    def later(self, function: Callable[..., Any]) -> Iterator[None]:
        """Shifts every clock that the handler's package can see."""
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
    clocks += [KnownClock(time, name, getattr(time, name), _shifted_told(name)) for name in CLOCKS_TOLD]
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


def _shifted_told(name: str) -> Callable[..., Any]:
    tell, now, localtime = getattr(time, name), time.time, time.localtime
    wanted = 2 if name == "strftime" else 1

    def told(*given: Any) -> Any:
        if len(given) == wanted:
            return tell(*given)
        seconds = now() + SHIFT_SECONDS
        return tell(*given, localtime(seconds) if name in ("asctime", "strftime") else seconds)

    return told


class _Instances(type):
    """``isinstance(x, datetime)`` goes on to work while the name is bound to the shifted class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class _LaterDatetime(datetime, metaclass=_Instances):
    def __new__(cls, *parts: Any, **named: Any) -> Any:
        return cls.__mro__[1](*parts, **named)  # what is made of an item's values is what it always is

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
