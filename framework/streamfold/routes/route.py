"""Routes: which handler reads which items and writes which rows, and the way from a key to its routes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from streamfold.derivations.attributes.stored import Truth
from streamfold.derivations.audit.options import ALL, Recorded
from streamfold.derivations.index.claims import Unique
from streamfold.keys.key import Key, KeyPart, KeyValue, NearMiss
from streamfold.records.change import EVENTS, Change, Event
from streamfold.routes.policy import RETRY, Policy

Kind = Literal["view", "index", "attributes", "audit", "on", "copy", "cascade", "archive"]
LEDGER_KINDS: tuple[Kind, ...] = ("view", "index", "attributes")
"""Kinds that see, per item and batch, the oldest old and the newest new image; the others see every change."""
Fields = Mapping[str, Any]
"""Values of a key's fields, by name."""

GUARDS: dict[Kind, str] = {
    "audit": "keyed put",
    "copy": "row guard",
    "cascade": "parent absent, child as read",
    "archive": "name by digest",
}
"""The guards of kinds that have one only; those of ``on`` depend on its targets, all others have the ledger."""
Kinds = dict[str, dict[str, str]]
"""What attributes of a target are made of, by handler and name."""
GROUP = "main"
"""The group of handlers that name none."""


@dataclass(frozen=True, slots=True)
class Target:
    """A key that a route may write, with what the templates of the whole application say about it.

    ``owned``: every row of it has one source item. ``alone``: no other handler writes it. ``contested``: owned by the
    template of each source, but several sources could make the same row, so the row's owner is checked when written.
    ``tenant``: the field in which a row never differs from its source, where the application keeps tenants apart.
    ``shown``: what its attributes were seen to be made of (``attribute_kinds``), by handler and name, the same for all
    handlers that write it.
    """

    key: Key
    owned: bool = False
    alone: bool = True
    contested: bool = False
    tenant: str | None = None
    shown: Kinds = field(default_factory=dict, compare=False, repr=False)

    @property
    def whole(self) -> bool:
        """Whether rows are put and deleted whole; otherwise they are added to, and count their contributors."""
        return self.owned and self.alone


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One declared derivation. ``wants`` are the fields that the function asks for after its first parameter.

    ``shards``: how many rows a row is spread over; 0 for none. ``unique``: what a unique index says of claimants.
    ``of``: the items that bear derived attributes, where that is not the source; ``truth``: where these are kept.
    """

    name: str
    kind: Kind
    sources: tuple[Key, ...]
    into: tuple[Key, ...]
    function: Callable[..., Any] | None
    declared_at: str
    group: str = GROUP
    wants: tuple[str, ...] = ()
    events: frozenset[Event] = frozenset(EVENTS)
    changed: frozenset[str] = frozenset()
    expired: bool | None = None
    external: bool = False
    recorded: Recorded = ALL
    targets: tuple[Target, ...] = field(default=())
    policy: Policy = RETRY
    children: tuple[Key, ...] = ()
    place: str | None = None
    shards: int = 0
    of: Key | None = None
    truth: Truth | None = None
    unique: Unique | None = None

    @property
    def ledger(self) -> bool:
        return self.kind in LEDGER_KINDS

    @property
    def writes(self) -> tuple[Key, ...]:
        """What it was declared to write: keys of rows, or of the items that bear its attributes."""
        return self.into if self.kind != "attributes" else (self.of or self.sources[0],)

    @property
    def guard(self) -> str:
        """The guard that keeps its writes exact, in the words of the documents."""
        if self.external:
            return "idempotency"
        if self.kind == "on":
            return "claim, row guard" if any(target.owned for target in self.targets) else "claim"
        return "ledger, claimants" if self.unique else GUARDS.get(self.kind, "ledger")

    @property
    def parks_conflicts(self) -> bool:
        """Whether a record that leads to a conflict is parked."""
        return self.unique is not None and self.unique.on_conflict == "park"

    def asked(self, fields: Fields) -> dict[str, Any]:
        """What the function is called with: of the fields that it asks for, those that this source's key has."""
        return {name: fields[name] for name in self.wants if name in fields}

    def takes(self, change: Change) -> bool:
        """Whether an ``on`` route's filters let this change through."""
        if change.event not in self.events or (self.expired is not None and change.expired != self.expired):
            return False
        return not self.changed or bool(self.changed & change.changed)

    def target(self, key: Key | None) -> Target | None:
        """The declared target of this key; without a key, the only one."""
        if key is None:
            return self.targets[0] if len(self.targets) == 1 else None
        return next((target for target in self.targets if target.key is key or target.key == key), None)


class DispatchEntry(NamedTuple):
    """A source key with its routes, in the order of their declaration; ``bears``: those that derive attributes onto its
    items.
    """

    key: Key
    routes: tuple[Route, ...]
    bears: tuple[Route, ...] = ()


NONE: list["DispatchEntry"] = []

FoundEntries = list[tuple[DispatchEntry, dict[str, Any]]]
Segments = tuple[str | None, str | None]


class Dispatch:
    """From key values to entries, by the first segment of partition and sort key: fifty keys cost what one does."""

    def __init__(self, entries: Iterable[DispatchEntry], delimiter: str) -> None:
        self.delimiter = delimiter
        self.entries: dict[Segments, list[DispatchEntry]] = {}
        for entry in entries:
            sort = None if entry.key.sort is None else self._template_segment(entry.key.sort)
            self.entries.setdefault((self._template_segment(entry.key.partition), sort), []).append(entry)
        self._open_partition = any(segments[0] is None for segments in self.entries)

    def find(self, partition: KeyValue, sort: KeyValue | None) -> FoundEntries:
        """The entries whose key matches, each with the values of its fields."""
        candidates = self.candidates(partition, sort)
        matches = [(entry, entry.key.match_values(partition, sort)) for entry in candidates]
        return [(entry, values) for entry, values in matches if values is not None]

    def candidates(self, partition: KeyValue, sort: KeyValue | None) -> list[DispatchEntry]:
        """The entries that the first segments leave."""
        entries, delimiter = self.entries, self.delimiter
        first = second = None
        if isinstance(partition, str):
            first = partition[: partition.find(delimiter) + 1] or partition
        if isinstance(sort, str):
            second = sort[: sort.find(delimiter) + 1] or sort
        left = entries.get((first, second), NONE)
        if second is not None and (more := entries.get((first, None))):
            left = left + more
        if self._open_partition and first is not None:
            left = left + entries.get((None, second), [])
            if second is not None:
                left = left + entries.get((None, None), [])
        return left

    def near_misses(self, partition: KeyValue, sort: KeyValue | None) -> list[NearMiss]:
        """The templates that this key fits but for one field, unless a key inside the template takes it."""
        candidates = [entry.key for entry in self.candidates(partition, sort)]
        matched = [key for key in candidates if key.match_values(partition, sort) is not None]
        misses = [key.near_miss(partition, sort) for key in candidates if key not in matched]
        return [miss for miss in misses if miss and all(key.contains(miss.template) for key in matched)]

    def _template_segment(self, part: KeyPart) -> str | None:
        text = part.pieces[0]
        if not isinstance(text, str):
            return None
        end = text.find(self.delimiter)
        if end >= 0:
            return text[: end + 1]
        return text if len(part.pieces) == 1 else None


def entries_of(routes: Sequence[Route], table_name: str) -> list[DispatchEntry]:
    """The source keys of one table with their routes, and the keys of items that bear attributes."""
    bearing = [(route.writes[0], route) for route in routes if route.kind == "attributes"]
    keys = dict.fromkeys([*(key for route in routes for key in route.sources), *(key for key, _ in bearing)])
    return [
        DispatchEntry(
            key,
            tuple(route for route in routes if key in route.sources),
            tuple(route for borne, route in bearing if borne == key),
        )
        for key in keys
        if key.table.name == table_name
    ]
