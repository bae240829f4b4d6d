"""Whether Python values of attributes are equal: Python takes ``True`` for 1 and ``False`` for 0, and no store does."""

from collections.abc import Mapping
from typing import Any


def alike(one: Any, other: Any) -> bool:
    """Whether two decoded values are equal: numbers by value, ``True`` and ``False`` to themselves alone."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def is_zero(value: Any) -> bool:
    """Whether a decoded value is the number 0, which means the same as no attribute."""
    return value is not False and bool(value == 0)
