"""What records cost on DynamoDB: replays in memory that count, with all handlers, and without each one.

Handlers share ledger items, transactions and rows, so no single run shows the cost of one handler: it is the difference
of two runs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from streamfold.derivations.derivation import derivation, local_locations
from streamfold.engines.capacity import CountedCall, CountingEngine
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import RecordError
from streamfold.keys.key import Key
from streamfold.ledger.state_keys import is_wake, manifest_key, schema_key
from streamfold.records.change import ItemKey
from streamfold.records.envelope import Origins
from streamfold.replay.files import BadLine, RecordedFiles
from streamfold.replay.replay import FileEntry, Replay
from streamfold.routes.application import Application
from streamfold.routes.route import Route, by_kind
from streamfold.runtime import Runtime
from streamfold.settings import Settings

RECORDS_MAX = 10_000
"""Records of all runs together: 5 to 15 seconds. Each run takes its share, from the beginning of the recording."""
BYTES_MAX = 32 * 1024 * 1024
"""Bytes of the lines that are held for all runs. As values they take some ten times as much memory."""
LAMBDA_BATCH_RECORDS = 100
"""The default batch of an event source mapping (Lambda Developer Guide, with-ddb-create)."""
SIZES = (1, 10, LAMBDA_BATCH_RECORDS)
"""Batches that a table's rate gives: of a quiet table, of a lively one, and of one that Lambda is behind."""
MILLION = 1_000_000
READ_UNITS_OF_A_VISIT, WRITE_UNITS_OF_A_VISIT = 2, 4
"""Of a visit at a moment, beside its rows: ledger item and item, ledger item and wake (docs/moments.md)."""


class Usage(NamedTuple):
    """Requests and capacity units of DynamoDB."""

    requests: float = 0
    write_units: float = 0
    read_units: float = 0

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> "Usage":
        return Usage(*(number * factor for number in self))


class Counted(NamedTuple):
    """The usage of one run."""

    records: int  # of the application's own items
    derived: int  # records of its targets, which are not delivered
    failed: int  # records and bad lines, whose work is missing from the usage
    usage: Usage
    refused: Usage  # of these, for writes that guards refused: DynamoDB bills them as if they were made
    once: Usage  # of the manifest and the schemas, which are written when the code changes and not for records
    outside: tuple[str, ...] = ()  # what else than the store costs for a million records, a sentence each

    def a_million(self, usage: Usage) -> Usage:
        return usage.times(MILLION / self.records) if self.records else Usage()


class Costs(NamedTuple):
    """The usage of all handlers, and what switching off each one saves."""

    application: Counted
    saved: Mapping[str, Usage]  # by handler, for a million records
    batch_records: int
    sizes: Mapping[int, Counted]  # of the same records in batches of other sizes, and of this one

    @property
    def runs(self) -> int:
        return 1 + len(self.saved)


def beginning(recorded: RecordedFiles, records_max: int = RECORDS_MAX) -> list[FileEntry]:
    """The first entries of a recording, by default as many as a single run may have."""
    found: list[FileEntry] = []
    size = 0
    entries: Any = iter(recorded)
    with closing(entries):  # or the file stays open
        for entry in islice(entries, records_max):
            size += 0 if isinstance(entry, BadLine) else entry[0].record_bytes
            found.append(entry)
            if size >= BYTES_MAX:
                break
    return found


def reached(app: Application, settings: Settings, entries: Iterable[FileEntry]) -> list[str]:
    """The handlers that records, or the rows derived of them, may reach. Switching off any other saves nothing."""
    origins, found = _origins(app, settings), dict[Route, None]()
    items = {_item(origins, entry) for entry in entries}
    for item in items - {None}:
        for called in (True, False):
            found.update((each.route, None) for each, _ in app.listeners(item, called=called))  # type: ignore[arg-type]
    while True:
        targets = [key for route in found for key in route.writes]
        further = [route for route in app.routes if route not in found and _reads(route, targets)]
        if not further:
            return [route.name for route in app.routes if route in found and settings.runs(route.name, route.group)]
        found.update(dict.fromkeys(further))


def _item(origins: Origins, entry: FileEntry) -> ItemKey | None:
    try:
        return None if isinstance(entry, BadLine) else origins.change(entry[1]).item
    except RecordError:
        return None


def _reads(route: Route, targets: Iterable[Key]) -> bool:
    return any(each.key.overlaps(key) for each in route.kind.subscriptions(route) for key in targets)


def _origins(app: Application, settings: Settings) -> Origins:
    return Origins(app.source_tables, settings, lambda _: None, app.tables)


def costs(
    app: Application,
    settings: Settings,
    recorded: Sequence[FileEntry],
    batch_records: int = LAMBDA_BATCH_RECORDS,
    runs: Callable[[Sequence[str]], Iterable[str]] = lambda names: names,
) -> Costs:
    """Replays the first records with all handlers, then without each one that they reach, and in batches of ``SIZES``.

    ``recorded`` is the ``beginning`` of a recording. ``runs`` may show progress over the names of the handlers.
    """
    names = reached(app, settings, recorded)
    entries = recorded[: RECORDS_MAX // (1 + len(names))]
    application = count_run(app, settings, entries, batch_records)
    saved = {}
    for name in runs(names):
        without = settings._replace(handlers_off=(*settings.handlers_off, name))
        spared = application.usage - count_run(app, without, entries, batch_records).usage
        saved[name] = application.a_million(spared)
    others = (each for each in SIZES if each != batch_records)
    sizes = {each: count_run(app, settings, entries, each) for each in others} | {batch_records: application}
    return Costs(application, saved, batch_records, dict(sorted(sizes.items())))


def count_run(app: Application, settings: Settings, entries: Iterable[FileEntry], batch_records: int) -> Counted:
    """Replays the entries onto empty tables, as one warm function would process them, and counts."""
    memory = MemoryEngine(app.tables.values(), lambda row: [each for each in app.chains(row) if settings.serves(each)])
    once = (manifest_key(app.name).pk, schema_key(app.name, "").pk)
    counting = CountingEngine(memory, chained=True, once=lambda key: key.pk in once)
    runtime = Runtime(app, counting, settings, outside=False)
    # Documents need an index, whose server bills no units: it is a store that nobody counts.
    runtime.opened |= local_locations(app, MemoryEngine(()), settings)
    replay = Replay(
        runtime,
        _origins(app, settings),
        batch_records=batch_records,
        keep_going=True,
        put_sources=memory.put_sources,
    )
    summary = replay.process(entries)
    own = summary.records - summary.derived
    failed = summary.failure_count + summary.bad_line_count
    of_records = [call for call in counting.calls if not call.once]
    for_code = [call for call in counting.calls if call.once]
    refused = [call for call in of_records if call.refused]
    outside = (*_outside_costs(app.routes, runtime.opened, own), *_costs_to_come(memory, own))
    return Counted(own, summary.derived, failed, _usage(of_records), _usage(refused), _usage(for_code), outside)


def _usage(calls: Collection[CountedCall]) -> Usage:
    return Usage(
        sum(call.requests for call in calls),
        sum(call.write_units for call in calls),
        sum(call.read_units for call in calls),
    )


def _costs_to_come(memory: MemoryEngine, records: int) -> Iterator[str]:
    """What a million records cost at moments behind the recording, a sentence."""
    if records and (waiting := sum(map(is_wake, memory.state))):
        share = waiting * MILLION / records
        reads, writes = share * READ_UNITS_OF_A_VISIT, share * WRITE_UNITS_OF_A_VISIT
        yield (
            f"Of a million records {share:,.0f} moments come behind the recording: {reads:,.0f} read units and "
            f"{writes:,.0f} write units, and their rows, which are not counted."
        )


def _outside_costs(routes: Sequence[Route], opened: Mapping[str, Any], records: int) -> Iterator[str]:
    """What else than the store costs for a million records, a sentence each."""
    for _, own in by_kind(routes):
        yield from derivation(own[0]).outside_costs(own, opened, records)
