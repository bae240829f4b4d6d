"""The list of mutants, and how one is entered."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from streamfold.engines import applied


class Mutant(NamedTuple):
    """One thing made wrong.

    ``guard`` names the application that histories are drawn for, None where none shows it; ``faults`` are those that
    they are drawn with, None for all. ``tests`` are the tests of the suite that fail. ``equivalent``: nothing fails.
    """

    name: str
    made: Callable[[], AbstractContextManager[None]]
    guard: str | None
    tests: tuple[str, ...] = ()
    faults: frozenset[str] | None = None
    equivalent: bool = False


MUTANTS: list[Mutant] = []


def mutant(
    name: str,
    guard: str | None = "ledger",
    *,
    tests: str | tuple[str, ...] = (),
    faults: Collection[str] | None = None,
    equivalent: bool = False,
) -> Callable[[Callable[[], Iterator[None]]], Any]:
    """Enters what a generator function changes up to its ``yield``."""

    def enter(made: Callable[[], Iterator[None]]) -> Any:
        all_tests = (tests,) if isinstance(tests, str) else tests
        only = None if faults is None else frozenset(faults)
        MUTANTS.append(Mutant(name, contextmanager(made), guard, all_tests, only, equivalent))
        return made

    return enter


@contextmanager
def on_engines(name: str, changed: Callable[[Any], Any]) -> Iterator[None]:
    """Exchanges a function that the local engines share for what ``changed`` makes of it."""
    with patch.object(applied, name, changed(getattr(applied, name))):
        yield


@contextmanager
def on_writes(changed: Callable[[Any], Any], *kinds: type) -> Iterator[None]:
    """Exchanges what makes a row after such writes, on the local engines, for what ``changed`` makes of it."""
    with patch.dict(applied.ROW_WRITES, {kind: changed(applied.ROW_WRITES[kind]) for kind in kinds}):
        yield
