"""What handlers may remember between calls, and how they are called as a process that has just begun would call them.

A handler that keeps something in a list, set or dictionary of its module, or of a function around it, gives the same
whenever it is called again; another process, which has seen other records, gives something else.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from types import CellType
from typing import Any

from streamfold.app import App

ENTRIES_MAX = 10_000
"""A larger container is taken for a table of constants, and not compared at every call."""
CONTAINERS = (dict, list, set, deque)


class Remembered:
    """The containers that an application's handlers can reach without their arguments, as they are now."""

    def __init__(self, app: App) -> None:
        functions = [route.function for route in app.routes if route.function is not None and not route.external]
        self.held = {id(each): (each, kept) for each in _containers(functions) if (kept := _kept(each)) is not None}

    @contextmanager
    def forgotten(self) -> Iterator[bool]:
        """Handlers as they were in the beginning; whether that is anything else than they are."""
        changed = [(each, kept, copy(each)) for each, kept in self.held.values() if each != kept]
        for each, kept, _ in changed:
            _fill(each, deepcopy(kept))
        try:
            yield bool(changed)
        finally:
            for each, _, now in changed:
                _fill(each, now)


def _containers(functions: Iterable[Callable[..., Any]]) -> Iterator[Any]:
    for function in functions:
        near = getattr(function, "__globals__", {})
        reached = [value for name, value in near.items() if not name.startswith("__")]
        reached += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != CellType()]
        reached += getattr(function, "__defaults__", None) or ()
        yield from (each for each in reached if isinstance(each, CONTAINERS))


def _kept(container: Any) -> Any:
    """A copy of what a container holds; None for what holds no plain values, and so none of records."""
    if len(container) > ENTRIES_MAX:
        return None
    try:
        kept = deepcopy(container)
        return kept if kept == container else None
    except Exception:  # noqa: BLE001 - whatever it holds does not like to be copied or compared
        return None


def _fill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)
