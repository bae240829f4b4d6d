"""The list of mutants, and how one is entered."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple


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
