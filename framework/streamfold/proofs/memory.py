"""The memory of handlers between calls, and calls with the memory of a new process.

A handler that keeps a value in its module, on a function, in a default or in an enclosing function may give the same
result at every call. Another process, which has seen other records, gives another result. The names that the code of
handlers, and of the functions that they call, uses in the application's own modules are checked.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from datetime import date
from decimal import Decimal
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.proofs.handlers import is_called

ENTRIES_MAX = 10_000
"""A larger container counts as a table of constants: to compare it at every call would take most of a proof."""
CONTAINERS = (dict, list, set, deque)
PLAIN = (int, float, Decimal, str, bytes, date, tuple, frozenset, type(None))
"""Values that cannot be changed: a handler remembers one by binding a name again."""
INSTALLED = ("site-packages", "dist-packages")


class Binding(NamedTuple):
    """A name of a module, or a variable of an enclosing function, and its value."""

    holder: dict[str, Any] | CellType
    name: str
    value: Any

    @property
    def now(self) -> Any:
        """The value now."""
        if isinstance(self.holder, CellType):
            return self.holder.cell_contents
        return self.holder.get(self.name)

    def bind(self, value: Any) -> None:
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.name] = value


class Remembered:
    """The containers and names that an application's handlers can reach without their arguments, as they are now."""

    def __init__(self, app: App) -> None:
        functions = [route.function for route in app.routes if route.function is not None and is_called(route)]
        reached = list(_reached(functions))
        self.bindings = [each for each in reached if isinstance(each, Binding)]
        containers = [each for each in reached if not isinstance(each, Binding)]
        self.held = {id(each): (each, kept) for each in containers if (kept := _kept(each)) is not None}

    @contextmanager
    def forgotten(self) -> Iterator[bool]:
        """Restores the memory of the beginning inside; gives whether it differs from the memory now."""
        changed = [(each, kept, copy(each)) for each, kept in self.held.values() if each != kept]
        bound = [(each, each.now) for each in self.bindings if each.now != each.value]
        for each, kept, _ in changed:
            _fill(each, deepcopy(kept))
        for binding, _ in bound:
            binding.bind(binding.value)
        try:
            yield bool(changed or bound)
        finally:
            for each, _, now in changed:
                _fill(each, now)
            for binding, now in bound:
                binding.bind(now)


def _reached(functions: Iterable[Callable[..., Any]]) -> Iterator[Any]:
    """The containers and bindings that functions and those that they call can reach, each at least once."""
    waiting, seen = list(functions), set[int]()
    while waiting:
        function = waiting.pop()
        if id(function) in seen or not isinstance(function, FunctionType):
            continue
        seen.add(id(function))
        for found in _near(function):
            if isinstance(found, FunctionType):
                waiting.append(found)
            else:
                yield found


def _near(function: FunctionType) -> Iterator[Any]:
    """The functions, containers and bindings that one function can reach."""
    names = set(_names(function.__code__))
    yield function.__dict__
    for value in function.__dict__.values():  # a decorated function
        if isinstance(value, (*CONTAINERS, FunctionType)):
            yield value
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _held(value)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():
            yield from _of(cell, name, cell.cell_contents)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield from _of(function.__globals__, name, value)
        if isinstance(value, ModuleType) and _is_own(value.__name__):
            for inner in names & vars(value).keys():
                yield from _of(vars(value), inner, vars(value)[inner])


def _of(holder: dict[str, Any] | CellType, name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, PLAIN):
        yield Binding(holder, name, value)
    yield from _held(value)


def _held(value: Any) -> Iterator[Any]:
    """A container, a function of one's own, or the attributes of an object of a class of one's own."""
    if isinstance(value, CONTAINERS) or (isinstance(value, FunctionType) and _is_own(value.__module__)):
        yield value
    elif not isinstance(value, type | ModuleType) and _is_own(type(value).__module__):
        yield from [vars(value)] if hasattr(value, "__dict__") else []


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_own(module: str | None) -> bool:
    """Whether a module is neither Python's, nor this framework's, nor of an installed package."""
    package = (module or "").partition(".")[0]
    if not package or package == __name__.partition(".")[0] or package in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return not any(part in file for part in INSTALLED)


def _kept(container: Any) -> Any:
    """A copy of the content of a container; None if it cannot be compared: it has no plain values of records then."""
    if len(container) > ENTRIES_MAX:
        return None
    try:
        kept = deepcopy(container)
        return kept if kept == container else None
    except Exception:  # noqa: BLE001 - its content cannot be copied or compared
        return None


def _fill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)
