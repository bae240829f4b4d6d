"""Finds the routes for a key."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from streamfold.keys.key import Key, NearMiss
from streamfold.keys.key_part import KeyPart, KeyValue
from streamfold.routes.route import Route


class Listener(NamedTuple):
    """A route that changes of an item reach, and the role of the item for the route."""

    route: Route
    role: str
    called: bool


class DispatchEntry(NamedTuple):
    """A key with the routes that its changes reach, in the order of their declaration."""

    key: Key
    listeners: tuple[Listener, ...] = ()


FoundEntries = list[tuple[DispatchEntry, dict[str, Any]]]
Segments = tuple[str | None, str | None]


class Dispatch:
    """From key values to entries, by the first segment of partition and sort key: fifty keys cost what one does."""

    def __init__(self, entries: Iterable[DispatchEntry], delimiter: str) -> None:
        self.delimiter = delimiter
        self.entries: dict[Segments, list[DispatchEntry]] = {}
        for entry in entries:
            self.entries.setdefault(self._segments(entry.key), []).append(entry)
        firsts = dict.fromkeys([None, *(first for first, _ in self.entries)])
        self._fitting = {first: self._of_partition(first) for first in firsts}

    def find(self, partition: KeyValue, sort: KeyValue | None) -> FoundEntries:
        """The entries whose key matches, each with the values of its fields."""
        found = []
        for entry in self.candidates(partition, sort):
            values = entry.key.match_values(partition, sort)
            if values is not None:
                found.append((entry, values))
        return found

    def candidates(self, partition: KeyValue, sort: KeyValue | None) -> list[DispatchEntry]:
        """The entries whose first segments fit."""
        delimiter = self.delimiter
        first = second = None
        if isinstance(partition, str):
            first = partition[: partition.find(delimiter) + 1] or partition
        if isinstance(sort, str):
            second = sort[: sort.find(delimiter) + 1] or sort
        fitting = self._fitting.get(first) or self._fitting[None]
        return fitting.get(second) or fitting[None]

    def _of_partition(self, first: str | None) -> dict[str | None, list[DispatchEntry]]:
        """The entries that fit a first segment of partition keys, by that of sort keys; None: any other one."""
        partitions = dict.fromkeys((first, None))
        known = dict.fromkeys([None, *(second for own, second in self.entries if own in partitions)])
        return {
            second: [
                entry
                for partition in partitions
                for sort in dict.fromkeys((second, None))
                for entry in self.entries.get((partition, sort), ())
            ]
            for second in known
        }

    def near_misses(self, partition: KeyValue, sort: KeyValue | None) -> list[NearMiss]:
        """The templates that this key misses by one field, unless a narrower template matches it."""
        candidates = [entry.key for entry in self.candidates(partition, sort)]
        matched = [key for key in candidates if key.match_values(partition, sort) is not None]
        misses = [key.near_miss(partition, sort) for key in candidates if key not in matched]
        return [miss for miss in misses if miss and all(key.contains(miss.template) for key in matched)]

    def is_alone(self, key: Key) -> bool:
        """Whether no other key fits the first segments of an item that this one matches: such an item misses none."""
        own = self._segments(key)
        fit = [entry.key for segments, entries in self.entries.items() if _meet(own, segments) for entry in entries]
        return fit == [key]

    def _segments(self, key: Key) -> Segments:
        return self._template_segment(key.partition), None if key.sort is None else self._template_segment(key.sort)

    def _template_segment(self, part: KeyPart) -> str | None:
        text = part.pieces[0]
        if not isinstance(text, str):
            return None
        end = text.find(self.delimiter)
        if end >= 0:
            return text[: end + 1]
        return text if len(part.pieces) == 1 else None


def _meet(one: Segments, other: Segments) -> bool:
    """Whether one item may have both first segments; None stands for any."""
    return all(mine == theirs or None in (mine, theirs) for mine, theirs in zip(one, other, strict=True))


ROW = "row"
"""The role of a row for a route that adds to it."""


def targets_of(routes: Sequence[Route], table_name: str) -> list[DispatchEntry]:
    """The keys of one table that routes write, each with the routes that watch its rows."""
    watchers: dict[Key, list[Listener]] = {}
    for route in routes:
        watched = route.kind.watches(route)
        for key in route.into:
            if key.table.name == table_name:
                watchers.setdefault(key, []).extend([Listener(route, ROW, False)] if key in watched else [])
    return [DispatchEntry(key, tuple(found)) for key, found in watchers.items()]


def entries_of(routes: Sequence[Route], table_name: str) -> list[DispatchEntry]:
    """The keys of one table whose changes reach routes."""
    listeners: dict[Key, list[Listener]] = {}
    for called in (True, False):  # keys of sources come first
        for route in routes:
            for each in route.kind.listens(route):
                if each.called is called and each.key.table.name == table_name:
                    listeners.setdefault(each.key, []).append(Listener(route, each.role, each.called))
    return [DispatchEntry(key, tuple(found)) for key, found in listeners.items()]
