"""What a transaction of ``TableTwin`` is made of (API Reference, TransactWriteItems).

``exists`` is the one condition there is: True requires that the item is there before, False that it is not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Item: TypeAlias = Mapping[str, Any]
"""An item: attribute names and Python values, key attributes included."""
Key: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
"""An item's key: ``{"PK": "ORDER#1", "SK": "METADATA"}`` or ``("ORDER#1", "METADATA")``."""


@dataclass(frozen=True, slots=True)
class PutItem:
    """Puts an item in the place of the one with its key."""

    item: Item
    exists: bool | None = None


@dataclass(frozen=True, slots=True)
class UpdateItem:
    """Sets attributes, adds to numbers, removes attributes; makes the item of its key and these if there is none."""

    key: Key
    put: Mapping[str, Any] = field(default_factory=dict)
    add: Mapping[str, Any] = field(default_factory=dict)
    remove: Iterable[str] = ()
    exists: bool | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """Deletes an item if there is one."""

    key: Key
    exists: bool | None = None


@dataclass(frozen=True, slots=True)
class CheckItem:
    """Requires that an item is there, or is not; writes nothing."""

    key: Key
    exists: bool = True


Action: TypeAlias = PutItem | UpdateItem | DeleteItem | CheckItem
