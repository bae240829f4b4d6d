"""Images with the members of their sets in another order, as another process may have them."""

from collections.abc import Iterator
from typing import Any

from streamfold.records.change import Change
from streamfold.records.images import Image


def with_sets_reversed(subject: Any) -> Any:
    """An image, or a change with images, whose sets are gone through backwards; equal to those of the one given."""
    return _Change(subject) if isinstance(subject, Change) else _Image(subject.raw)


class _Change:
    """A change that differs from another in nothing but its images."""

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
        return _reversed(super()._decode(name))


class _Set(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__())[::-1])


def _reversed(value: Any) -> Any:
    if isinstance(value, set):
        return _Set(value)
    if isinstance(value, list):
        return [_reversed(member) for member in value]
    return {name: _reversed(member) for name, member in value.items()} if isinstance(value, dict) else value
