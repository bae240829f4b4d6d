"""The items of a run: source tables, random samples, the state; and when a run may begin."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from random import Random
from typing import TypeVar

from streamfold.batch.manifest import PARTIAL, RETIRED, SINCE, Manifest
from streamfold.derivations.derivation import derivation
from streamfold.engines.protocol import Engine, Segment
from streamfold.errors import SettingsError
from streamfold.keys.table import STATE, Table
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.ledger.state_keys import is_ledger_key, source_of
from streamfold.records.change import ItemKey, Version
from streamfold.records.envelope import KINESIS
from streamfold.records.kinesis import LABEL, MICROSECONDS
from streamfold.routes.application import Application, unknown_handler
from streamfold.routes.route import Route
from streamfold.settings import Settings
from streamfold.writes.guarded import StateKey

LATE_SECONDS = 300
"""How far the clocks of this machine and of DynamoDB may be apart: a request that is signed more than five minutes away
from AWS's time is refused (IAM User Guide, Signature Version 4). A record of Kinesis comes no later after its time than
the deployment delay and this margin."""

PAGE_ITEMS = 500
"""Items of one page."""
SEGMENTS = 1_000_000
"""Segments of a table for a sample, the most that DynamoDB takes (API Reference, Scan)."""
LOCAL_SEGMENTS = 64
"""Segments of a state file, which reads all of its keys for every segment."""
SEGMENTS_A_ROUND = 16
"""Segments that are read before the table is divided into fewer ones."""

T = TypeVar("T")
WantedRow = Callable[[ItemKey], ItemKey | None]
"""The source item of a scanned key; None for a key that is not wanted."""


def lower_bound(found: Manifest, table: str, now: float) -> str:
    """The lowest version of a table's items that are read from ``now`` on, in epoch seconds."""
    entry = found.tables.get(table, {})
    if entry.get("source") != KINESIS:
        return BEFORE_ALL
    return str(Version.of(entry["epoch"], LABEL, max(int((now - LATE_SECONDS) * MICROSECONDS), 0)))


def through_kinesis(found: Manifest, routes: Iterable[Route]) -> bool:
    """Whether changes of one of these handlers' sources come through Kinesis."""
    tables = {key.table.name for route in routes for key in route.sources}
    return any(found.tables.get(name, {}).get("source") == KINESIS for name in tables)


def reconcilable(app: Application) -> list[Route]:
    """The routes whose rows follow from their items alone."""
    return [route for route in app.routes if derivation(route).reconciles]


def wanted_routes(app: Application, names: Collection[str]) -> list[Route]:
    """The routes of these handlers; all that can be reconciled if none is named.

    Raises ``SettingsError`` for a handler that is unknown or retired, or whose rows follow from changes.
    """
    if not names:
        return reconcilable(app)
    by_name = {route.name: route for route in app.routes}
    found = []
    for name in names:
        if name in app.retired:
            raise SettingsError(f"Handler {name!r} is retired: expected one that is declared.")
        if name not in by_name:
            raise unknown_handler("The command", name, sorted(by_name))
        route = by_name[name]
        if not derivation(route).reconciles:
            remedy = f" First rows: streamfold backfill {name} --opening." if derivation(route).keeps_history else ""
            raise SettingsError(
                f"Handler {name!r} is of kind {route.kind}: its rows follow from the changes of items, and what was "
                f"changed before cannot be read from the items as they are. Expected a handler of another kind.{remedy}"
            )
        found.append(route)
    return found


def check_whole(found: Manifest, app: Application) -> None:
    """Raises ``SettingsError`` while a handler that can be reconciled is partial in a state.

    A replayed old record could set back an item that a backfill is reconciling with its source.
    """
    for route in reconcilable(app):
        if (since := found.handlers.get(route.name, {}).get(PARTIAL)) is not None:
            raise SettingsError(
                f"Handler {route.name!r} is partial since {since}: older records of a replay may overwrite what a "
                "backfill wrote. Run streamfold backfill first, or replay with --force."
            )


def unfilled(found: Manifest, routes: Iterable[Route]) -> dict[str, str]:
    """The handlers among these that no backfill has filled, with the reason why their rows lack earlier items."""
    why: dict[str, str] = {}
    for route in routes:
        entry = found.handlers.get(route.name)
        if entry is None:
            why[route.name] = "is new to this state"
        elif PARTIAL in entry:
            why[route.name] = f"is partial since {entry[PARTIAL]}"
    return why


def source_tables(routes: Iterable[Route]) -> list[Table]:
    """The tables whose items these routes read, each once."""
    return list({key.table.name: key.table for route in routes for key in route.sources}.values())


def check_named(found: Manifest, routes: Iterable[Route], *, offline: bool) -> None:
    """Raises ``SettingsError`` for a handler that is retired in a state, or that no function has named there.

    A command does not write the manifest: with a name of its own, the running older code would stop at its next batch.
    If nothing is delivered (``offline``), a handler need not be named.
    """
    for route in routes:
        entry = found.handlers.get(route.name)
        if entry is None and not offline:
            raise SettingsError(
                f"Handler {route.name!r} was not named by any function yet: deploy it first. Until then its records go "
                "to code that does not know it. Where no stream delivers, streamfold backfill --offline fills it at "
                "once."
            )
        if entry is not None and RETIRED in entry:
            raise SettingsError(f"Handler {route.name!r} is retired in this state: expected another name.")


def check_deployment_delay(
    found: Manifest, routes: Iterable[Route], settings: Settings, now: float, *, offline: bool
) -> None:
    """Raises ``SettingsError`` if code that does not know a handler may still be running.

    An item is read once. A later record of it that older code acknowledges would be lost to the handler. Older code
    stops by itself at its next batch, and a running invocation of it ends within ``gate_seconds``. Through Kinesis,
    records of older code may be redelivered for ``LATE_SECONDS`` more. If nothing is delivered meanwhile
    (``offline``), there is no delay.
    """
    routes = list(routes)
    delay = settings.gate_seconds + (LATE_SECONDS if through_kinesis(found, routes) else 0)
    for route in routes if not offline else ():
        entry = found.handlers.get(route.name, {})
        if SINCE not in entry:
            continue
        seconds = datetime.fromisoformat(entry[SINCE]).timestamp() + delay - now
        if seconds > 0:
            raise SettingsError(
                f"Handler {route.name!r} is known since {entry[SINCE]}: an invocation of older code may still "
                f"acknowledge records without it. Begin in {int(seconds) + 1} seconds (STREAMFOLD_GATE_SECONDS)."
            )


@dataclass(slots=True)
class ItemKeys:
    """The items that some handlers read, or that the ledger knows."""

    app: Application
    engine: Engine
    routes: Sequence[Route]
    segments: int = SEGMENTS

    def all(self) -> Iterator[ItemKey]:
        """All items of the source tables, then the items that only the state knows."""
        for table in source_tables(self.routes):
            yield from filter(self.reads, scanned(self.engine, table))
        yield from self.gone(item for key in scanned(self.engine, STATE) if (item := self.of_ledger(key)) is not None)

    def sample(self, most: int, random: Random) -> Iterator[ItemKey]:
        """About so many items in random slices of the tables, and among as many of the state those that are gone."""
        yield from self.sources(most, random)
        yield from self.gone(self._sample(STATE, self.of_ledger, most, random))

    def sources(self, most: int, random: Random) -> Iterator[ItemKey]:
        """About so many items in random slices of the tables."""
        tables = source_tables(self.routes)
        for table in tables:
            yield from self._sample(table, self._of_table, -(-most // len(tables)), random)

    def reads(self, item: ItemKey) -> bool:
        """Whether one of the handlers reads an item."""
        return any(each.route in self.routes and each.is_run_over for each, _ in self.app.listeners(item))

    def _of_table(self, key: ItemKey) -> ItemKey | None:
        return key if self.reads(key) else None

    def of_ledger(self, key: ItemKey) -> ItemKey | None:
        """The item of a ledger item's key, if one of the handlers reads it."""
        found = source_of(StateKey(str(key[1]), str(key[2])))
        if found is None or found.application != self.app.name or not self.reads(found.item):
            return None
        return found.item if any(route.group == found.group for route in self.routes) else None

    def is_untold(self, key: ItemKey) -> bool:
        """Whether a ledger item's key does not name the item, because the item's key is too long to be stored."""
        state = StateKey(str(key[1]), str(key[2]))
        return source_of(state) is None and is_ledger_key(state, self.app.name)

    def gone(self, items: Iterable[ItemKey]) -> Iterator[ItemKey]:
        """The items whose source does not exist, each once a page."""
        for page in map(dict.fromkeys, pages(items)):
            found = self.engine.read_sources(page)
            yield from (item for item in page if item not in found)

    def _sample(self, table: Table, wanted: WantedRow, most: int, random: Random) -> Iterator[ItemKey]:
        """Reads few of many segments at random; if these hold too few items, again with fewer and larger segments."""
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


def scanned(engine: Engine, table: Table, segment: Segment = Segment()) -> Iterator[ItemKey]:  # noqa: B008 - a value
    """The keys of a table's segment."""
    page = engine.scan(table, segment, None, PAGE_ITEMS)
    yield from page.keys
    while page.after is not None:
        page = engine.scan(table, segment, page.after, PAGE_ITEMS)
        yield from page.keys


def pages(values: Iterable[T], size: int = PAGE_ITEMS) -> Iterator[list[T]]:
    """Lists of at most ``size`` values."""
    iterator = iter(values)
    while page := list(islice(iterator, size)):
        yield page
