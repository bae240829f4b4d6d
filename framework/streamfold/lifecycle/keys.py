"""Where the items of a run come from: source tables, random samples of them, and the state.

The state alone knows items that are gone and still have something stored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TypeVar

from streamfold.engines import Engine, Segment
from streamfold.keys.table import STATE, Table
from streamfold.ledger.state_keys import is_ledger_key, source_of
from streamfold.lifecycle.checks import source_tables
from streamfold.records.change import ItemKey
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.writes.guarded import StateKey

PAGE_ITEMS = 500
"""Items of one page."""
SEGMENTS = 1_000_000
"""Segments that a table is cut into for a sample, the most that DynamoDB takes (API Reference, Scan)."""
LOCAL_SEGMENTS = 64
"""The same of a state file, which reads all of its keys for every segment."""
SEGMENTS_A_ROUND = 16
"""Segments that are read before the table is cut into fewer ones."""

T = TypeVar("T")
WantedRow = Callable[[ItemKey], ItemKey | None]
"""The source item that a scanned key tells; None for a key that is not wanted."""


@dataclass(slots=True)
class ItemKeys:
    """The items that some handlers read, or that the ledger has something of."""

    app: Application
    engine: Engine
    routes: Sequence[Route]
    segments: int = SEGMENTS

    def all(self) -> Iterator[ItemKey]:
        """All items of the source tables, then those that only the state knows."""
        for table in source_tables(self.routes):
            yield from filter(self.reads, scanned(self.engine, table))
        yield from self.gone(item for key in scanned(self.engine, STATE) if (item := self.of_ledger(key)) is not None)

    def sample(self, most: int, random: Random) -> Iterator[ItemKey]:
        """About so many items in random parts of the tables, and as many of the state, of which those that are gone."""
        yield from self.sources(most, random)
        yield from self.gone(self._sample(STATE, self.of_ledger, most, random))

    def sources(self, most: int, random: Random) -> Iterator[ItemKey]:
        """About so many items in random parts of the tables."""
        tables = source_tables(self.routes)
        for table in tables:
            yield from self._sample(table, self._of_table, -(-most // len(tables)), random)

    def reads(self, item: ItemKey) -> bool:
        """Whether one of the handlers reads an item."""
        return any(each.route in self.routes for each, _ in self.app.listeners(item))

    def _of_table(self, key: ItemKey) -> ItemKey | None:
        return key if self.reads(key) else None

    def of_ledger(self, key: ItemKey) -> ItemKey | None:
        """The item of a ledger item's key, if one of the handlers reads it."""
        found = source_of(StateKey(str(key[1]), str(key[2])))
        if found is None or found.application != self.app.name or not self.reads(found.item):
            return None
        return found.item if any(route.group == found.group for route in self.routes) else None

    def is_untold(self, key: ItemKey) -> bool:
        """Whether a ledger item's key does not tell the item, because the item's key is too long to be kept."""
        state = StateKey(str(key[1]), str(key[2]))
        return source_of(state) is None and is_ledger_key(state, self.app.name)

    def gone(self, items: Iterable[ItemKey]) -> Iterator[ItemKey]:
        """The items whose source is not there, each once a page."""
        for page in map(dict.fromkeys, pages(items)):
            found = self.engine.read_sources(page)
            yield from (item for item in page if item not in found)

    def _sample(self, table: Table, wanted: WantedRow, most: int, random: Random) -> Iterator[ItemKey]:
        """Reads few of many segments at random; where these hold too few items, again of fewer and larger ones."""
        seen: set[ItemKey] = set()
        segments = self.segments
        while True:
            for number in random.sample(range(segments), min(segments, SEGMENTS_A_ROUND)):
                for key in scanned(self.engine, table, Segment(number, segments)):
                    if (item := wanted(key)) is None or item in seen:
                        continue
                    seen.add(item)
                    yield item
                    if len(seen) >= most:
                        return
            if segments <= SEGMENTS_A_ROUND:
                return
            segments = max(1, segments // SEGMENTS_A_ROUND)


def scanned(engine: Engine, table: Table, part: Segment = Segment()) -> Iterator[ItemKey]:  # noqa: B008 - a value
    """The keys of a table's segment."""
    page = engine.scan(table, part, None, PAGE_ITEMS)
    yield from page.keys
    while page.after is not None:
        page = engine.scan(table, part, page.after, PAGE_ITEMS)
        yield from page.keys


def pages(values: Iterable[T], size: int = PAGE_ITEMS) -> Iterator[list[T]]:
    """Some values at a time."""
    iterator = iter(values)
    while page := list(islice(iterator, size)):
        yield page
