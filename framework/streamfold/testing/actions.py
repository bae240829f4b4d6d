"""What a transaction of ``TableTwin`` is made of (API Reference, TransactWriteItems)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

ItemImage: TypeAlias = Mapping[str, Any]
"""An item: attribute names and Python values, key attributes included."""
KeyOfItem: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
"""An item's key: ``{"PK": "ORDER#1", "SK": "METADATA"}`` or ``("ORDER#1", "METADATA")``."""


@dataclass(frozen=True, slots=True)
class _Action:
    """``exists`` is the one condition there is: True requires that the item is there before, False that it is not."""

    exists: bool | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class _ActionOnKey(_Action):
    key: KeyOfItem


@dataclass(frozen=True, slots=True)
class PutItem(_Action):
    """Puts an item in the place of the one with its key."""

    item: ItemImage


@dataclass(frozen=True, slots=True)
class UpdateItem(_ActionOnKey):
    """Sets attributes, adds to numbers, removes attributes; makes the item of its key and these if there is none."""

    put: Mapping[str, Any] = field(default_factory=dict)
    add: Mapping[str, Any] = field(default_factory=dict)
    remove: Iterable[str] = ()


class DeleteItem(_ActionOnKey):
    """Deletes an item if there is one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CheckItem(_ActionOnKey):
    """Requires that an item is there, or is not; writes nothing."""

    exists: bool = field(default=True, kw_only=True)


TableAction: TypeAlias = PutItem | UpdateItem | DeleteItem | CheckItem
