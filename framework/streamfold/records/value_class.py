"""Values: classes whose instances are made by the thousand, compared by what they hold, and never changed.

Making one takes two thirds of what a ``NamedTuple`` takes, and reading an attribute a third (instructions, CPython
3.11). Equality and ``repr`` are the same for all of them, because every start waits for what ``dataclass`` generates.
"""

from dataclasses import dataclass
from typing import Any, Self, TypeVar, dataclass_transform

T = TypeVar("T")


class Nothing(dict[str, Any]):
    """The empty mapping. Unlike other dicts it may be the default of an attribute; nobody adds to it."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return 0


class Value:
    """What all values can do."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._held() == other._held()

    def __hash__(self) -> int:
        return hash(self._held())

    def __repr__(self) -> str:
        held = zip(self.__slots__, self._held(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={content!r}' for name, content in held)})"

    def _held(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__slots__])

    def _replace(self, **changes: Any) -> Self:
        """A copy with other contents of some attributes."""
        return type(self)(**{**dict(zip(self.__slots__, self._held(), strict=True)), **changes})


@dataclass_transform(frozen_default=True)
def value(made: type[T]) -> type[T]:
    """Makes a class of values. Type checkers refuse changes of an instance; nothing watches for them at run time."""
    return dataclass(slots=True, eq=False, repr=False, match_args=False)(made)
