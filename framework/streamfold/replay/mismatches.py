"""Mismatches of an application's declarations and the items in its records.

- An attribute that a declaration names, such as ``redact=["email"]``, and that no item had. A misspelled name is no
  error: the item may simply lack the attribute. But a history then has what it should not have, a filter lets nothing
  through, and a reference leads to no item.
- An item of the application's own at the key of a row.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from streamfold.errors import redacted, shown
from streamfold.keys.key import Key
from streamfold.keys.table import DERIVED
from streamfold.records.change import Change
from streamfold.records.images import hidden, without_derived
from streamfold.records.values import RawImage
from streamfold.routes.application import Application
from streamfold.routes.route import NamedAttribute, Route

NAMES_MAX = 1_000
"""Names of one key's items that are kept, to suggest one."""


class UnseenAttribute(NamedTuple):
    """An attribute that a declaration names, and that no item of the records had."""

    route: Route
    named: NamedAttribute
    near: str | None  # the most similar name that the items had

    @property
    def text(self) -> str:
        """The message, with the names marked as item content."""
        keys = " and ".join(repr(key) for key in self.named.keys)
        meant = f" Did you mean {shown(self.near)}?" if self.near is not None else ""
        return (
            f"{self.named.option} of {self.route.kind} {self.route.name!r} ({self.route.declared_at}) names "
            f"{redacted(repr(self.named.name))}, which no item of {keys} has in the records.{meant}"
        )


class _Items:
    """What was seen of the items of one key."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.written: set[str] = set()  # of these, what the application wrote
        self.wanted: set[str] = set()


class NamedAttributes:
    """Looks for the attributes that the declarations of an application name in the images of its items."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._named = [(route, named) for route in routes for named in route.kind.named_attributes(route)]
        self._items: dict[Key, _Items] = {}
        for _, named in self._named:
            for key in named.keys:
                self._items.setdefault(key, _Items()).wanted.add(named.name)
        self._open = dict(self._items)  # keys of whose items some names are still to be seen

    def seen(self, change: Change) -> Change:
        """The change, after the attributes of both its images were noted."""
        if self._open:
            table, partition, sort = change.item
            for key in [key for key in self._open if key.table.name == table]:
                if key.match_values(partition, sort) is not None:
                    self._note(key, self._open[key], change)
        return change

    def _note(self, key: Key, items: _Items, change: Change) -> None:
        images = [*([change.new.raw] if change.has_new else []), *([change.old.raw] if change.has_old else [])]
        for image in images:
            _add(items.names, image, items.wanted)
            _add(items.written, without_derived(image) if DERIVED in image else image, items.wanted)
        if items.wanted <= items.written:
            del self._open[key]

    def unseen(self) -> list[UnseenAttribute]:
        """The attributes that no item had, of keys that items were seen of."""
        from difflib import get_close_matches  # only for a message: a function's start should not pay for it

        found = []
        for route, named in self._named:
            items = [self._items[key] for key in named.keys]
            names = set(chain.from_iterable(each.names if named.sees_derived else each.written for each in items))
            if names and named.name not in names:
                near = get_close_matches(named.name, sorted(names), 1)
                found.append(UnseenAttribute(route, named, near[0] if near else None))
        return found


def unseen_attributes(routes: Iterable[Route], changes: Iterable[Change]) -> Sequence[UnseenAttribute]:
    """The attributes that declarations name and that no item of these changes had."""
    named = NamedAttributes(routes)
    for change in changes:
        named.seen(change)
    return named.unseen()


def _add(names: set[str], image: RawImage, wanted: set[str]) -> None:
    is_full = len(names) >= NAMES_MAX
    names.update(name for name in image if (name in wanted or not is_full) and not hidden(name))


class ItemsAtRows(NamedTuple):
    """The records of one target's keys whose items have no mark of a row."""

    target: Key
    handlers: tuple[str, ...]  # that write the target
    records: int

    @property
    def text(self) -> str:
        """What is wrong, and what to do."""
        some = "1 record is of an item" if self.records == 1 else f"{self.records:,} records are of items"
        return (
            f"{some} at keys of {redacted(self.target.template)}, the target of {', '.join(self.handlers)}, and no "
            "handler put them: they have no mark of a row. In DynamoDB the handler is refused there, and its records "
            f"fail. Give it a target whose keys nobody else writes ({self.target.declared_at})."
        )


class RecordedItemsAtRows:
    """Counts the records of the application's own items at keys of rows."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._records: dict[Key, int] = {}

    def see(self, change: Change) -> None:
        """Counts a change of an item whose key is one of a target, if the item is the application's own."""
        if self._application.is_of_writer(change):
            table, partition, sort = change.item
            target = next(
                key
                for route in self._application.routes
                for key in route.into
                if key.table.name == table and key.match_values(partition, sort) is not None
            )
            self._records[target] = self._records.get(target, 0) + 1

    def found(self) -> tuple[ItemsAtRows, ...]:
        return tuple(
            ItemsAtRows(key, tuple(route.name for route in self._application.routes if key in route.into), count)
            for key, count in self._records.items()
        )
