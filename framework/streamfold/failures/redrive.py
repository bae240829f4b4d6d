"""Redrive: processes failed records later. Views and index items are repaired from their source, the rest is replayed.

A redelivered record may be days older than the state. For a view or an index the redrive therefore ignores the record's
images and repairs the item (see ``repair``). An audit row depends on its change alone, and an ``on`` handler is guarded
by its claim and row guards, so both replay the record's images. A repeated record changes nothing.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from streamfold.batch.fan_outs import with_own_version
from streamfold.batch.process import check_application, plan_changes, process_changes
from streamfold.batch.report import Report
from streamfold.batch.visits import item_of_record
from streamfold.derivations.derivation import contributing, derivation, reads_items
from streamfold.engines.own_stream import STREAM_LABEL
from streamfold.engines.protocol import OWN_VERSION
from streamfold.errors import RecordError, SettingsError, shown
from streamfold.failures.failed_records import Delivered, StreamRange, Waiting, WaitingDocument, function_of, left_of
from streamfold.failures.repair import Repair, Repaired, reconciled_by_item
from streamfold.failures.stream_range import Fetched
from streamfold.ledger.state_keys import claim_key
from streamfold.parking import Parked
from streamfold.records.change import BY_OURSELVES, Change, ItemKey, Version
from streamfold.records.envelope import Origins, RawRecord, Seen
from streamfold.records.sources import newest_sources
from streamfold.replay.replay import PutSources
from streamfold.routes.application import unknown_handler
from streamfold.routes.route import SOURCE, Route
from streamfold.runtime import Runtime

What = Literal["applied", "unchanged", "stale", "known", "unwanted", "conflict", "skipped", "failed", "gone", "bad"]
"""The result of a redrive for one record and handler:

applied     rows were written or removed
unchanged   the rows already agree with the source item
stale       the same, and the ledger already held this record's version or a newer one
known       the record took effect before
unwanted    no handler reads the item, or takes this change
conflict    another item claims the same unique row, and the index parks conflicts
skipped     the handler is switched off, external, or of another group
failed      the handler or the store failed again
gone        the stream no longer holds the record
bad         the document cannot be read
"""
LEFTOVER: tuple[What, ...] = ("conflict", "skipped", "failed", "gone", "bad")
"""Outcomes that leave work to do: the document is kept."""

VERSION = re.compile(rf"[0-9]{{2}}/.+/[0-9]+([{BY_OURSELVES}][0-9]*)*(/[0-9a-f]+)?")

Fetch = Callable[[StreamRange], Fetched]


class Redriven(NamedTuple):
    """The result for one record and handler, or for a document without records."""

    location: str  # location of the document
    what: What
    item: str | None = None  # None: the document holds no record
    sequence: str | None = None
    handler: str | None = None
    written: int = 0  # rows
    removed: int = 0  # rows
    why: str | None = None
    conflicts: int = 0  # unique rows that another item claims too, whatever the outcome
    group: str | None = None  # the other group of handlers that it is left to

    @property
    def is_leftover(self) -> bool:
        """Whether its document is kept."""
        return self.what in LEFTOVER

    @property
    def is_open(self) -> bool:
        """Whether it is left over, and no other group's redrive is for it."""
        return self.is_leftover and self.group is None


@dataclass(slots=True)
class Redrive:
    """Redrives documents of one application.

    fetch: reads the records of a range from their stream.
    dry_run: only reports the changes of a redrive.
    put_sources: stores the images of records as source items, on a local state. None: the tables are real.
    group_of: gives the group of handlers of a deployed function by its name; None if the name does not say it.
    """

    runtime: Runtime
    origins: Origins
    fetch: Fetch
    dry_run: bool = False
    put_sources: PutSources | None = None
    group_of: Callable[[str], str | None] | None = None
    _checked: dict[str, Seen] | None = None
    _parked_origins: dict[int, Origins] = field(default_factory=dict)

    def process(self, waiting: Waiting) -> Iterator[Redriven]:
        """Redrives the records of a document.

        Raises ``EngineError`` if the store or the source table is missing or access is denied: the current record then
        changed nothing. Raises ``ManifestError`` if the application does not match the state.
        """
        if waiting.document is None:
            yield Redriven(waiting.location, "bad", why=waiting.why)
            return
        try:
            contents, function = left_of(waiting.document), function_of(waiting.document)
        except RecordError as error:
            yield Redriven(waiting.location, "bad", why=str(error))
            return
        yield from self._redriven(waiting.location, contents, function)

    def _redriven(self, place: str, contents: WaitingDocument, function: str | None) -> Iterator[Redriven]:
        if isinstance(contents, Parked):
            yield from self._parked(place, contents)
            return
        group = self.group_of(function) if self.group_of and function is not None else None
        if isinstance(contents, Delivered):
            for record in contents.records:
                yield from self._delivered(place, record, group)
            return
        try:
            if not contents.is_kinesis:  # records of Kinesis name their tables themselves
                self.origins.table_of(contents.stream_arn)
        except RecordError as error:
            yield Redriven(place, "bad", why=str(error))
            return
        fetched = self.fetch(contents)
        if fetched.gone is not None:
            yield Redriven(place, "gone", why=fetched.gone)
        for record in fetched.records:
            yield from self._delivered(place, record, group)

    def _parked(self, place: str, parked: Parked) -> Iterator[Redriven]:
        """Redrives a parked record for its handler."""
        reported = Redriven(place, "bad", parked.item, handler=parked.handler)
        try:
            self._check_parked(parked)
            if (item := item_of_record(parked.record, self.runtime.application.tables)) is not None:
                yield from self._visited(reported, item)
                return
            if not VERSION.fullmatch(str(parked.version)):
                raise RecordError(f"It was parked as {shown(parked.version)}: expected EPOCH/LABEL/SEQUENCE.")
            change = with_own_version(self._origins_of(parked).change(parked.record))
            if change.identity_text != parked.version:
                raise RecordError(f"It was parked as {parked.version}, and its record is {change.identity_text}.")
        except (RecordError, SettingsError) as error:
            yield reported._replace(why=str(error))
            return
        yield from self._change(place, change, parked.handler)

    def _visited(self, reported: Redriven, item: ItemKey) -> Iterable[Redriven]:
        """Repairs an item on which the handler raised when a change of its referent or part, or a moment, visited it.

        The version of its document only names the visit: a root, for example, has one name whichever part changed.
        """
        self._check()
        (route,) = (each for each in self.runtime.application.routes if each.name == reported.handler)
        if why := self._left_out(route):
            return [reported._replace(what="skipped", why=why, group=self._left_to(route))]
        if not any(each.route is route and each.role == SOURCE for each, _ in self.runtime.application.listeners(item)):
            return [reported._replace(what="unwanted", why="The handler reads no such item.")]
        # Without a version: that of the referent's change does not compare with those of the item.
        found = Repair(self.runtime, self.dry_run, checked=True).item(item, handlers=[route.name])
        return [_of_repair(reported, repaired, ()) for repaired in found]

    def _check_parked(self, parked: Parked) -> None:
        app = self.runtime.application
        if parked.application != app.name:
            raise RecordError(
                f"It was parked by application {parked.application!r}, and this one is {app.name!r}: name the "
                "other with --app."
            )
        names = [route.name for route in app.routes]
        if parked.handler in app.retired:
            raise RecordError(f"Handler {parked.handler!r} is retired: its records are not processed any more.")
        if parked.handler not in names:
            raise unknown_handler("The parked record", parked.handler, names)

    def _origins_of(self, parked: Parked) -> Origins:
        """The origins of a parked record, in the epoch in which it was parked: its claims have that epoch."""
        version = Version(parked.version)
        settings = self.origins.settings._replace(epoch=version.epoch)
        if is_local(parked):
            if not self.runtime.store.is_local:
                raise RecordError("It comes from a local state's own stream: redrive it there, with --state FILE.")
            return Origins(
                self.runtime.application.tables,
                settings._replace(tables={name: name for name in self.runtime.application.tables}),
            )
        if version.epoch == self.origins.settings.epoch:
            return self.origins
        known = self._parked_origins.get(version.epoch)
        if known is None:
            known = self._parked_origins[version.epoch] = Origins(self.origins.tables, settings)
        known.adopted = known.adopted or self.origins.adopted
        return known

    def _delivered(self, place: str, record: RawRecord, group: str | None) -> Iterator[Redriven]:
        """Redrives a record of a failed batch for every handler that reads its item, of the batch's group if known."""
        try:
            change = self.origins.change(record)
        except RecordError as error:
            yield Redriven(place, "bad", why=str(error))
            return
        if self.runtime.store.is_local and self.runtime.application.derived(change.item):
            why = "It is of a declared target: a local state derives its rows again."
            yield Redriven(place, "unwanted", change.name, change.sequence, why=why)
            return
        if group is not None and not self.runtime.settings.serves(group):
            why = f"The batch is of group {group!r}, and STREAMFOLD_GROUP is {self.runtime.settings.group!r}."
            yield Redriven(place, "skipped", change.name, change.sequence, why=why, group=group)
            return
        yield from self._change(place, change, None, group)

    def _change(self, place: str, change: Change, handler: str | None, group: str | None = None) -> Iterator[Redriven]:
        self._check()
        reported = Redriven(place, "unwanted", change.name, change.sequence, handler)
        subscribed = dict.fromkeys(each.route for each, _ in self.runtime.application.listeners(change.item))
        routes = [route for route in subscribed if handler in (None, route.name) and group in (None, route.group)]
        if not routes:
            of_group = f"No handler of group {group!r} reads the item." if group else "No handler reads the item."
            yield reported._replace(why="The handler reads no such item." if handler else of_group)
        wanted = []
        for route in routes:
            if why := self._left_out(route):
                yield reported._replace(what="skipped", handler=route.name, why=why, group=self._left_to(route))
            else:
                wanted.append(route)
        if any(reconciled_by_item(route) or reads_items(route) for route in wanted):
            self._put_source(change)
        reconciled = [route for route in wanted if reconciled_by_item(route)]
        yield from self._reconciled(
            reported, change, [route.name for route in reconciled if not route.kind.indexes(route)]
        )
        for route in reconciled:
            if route.kind.indexes(route):
                yield from self._indexed(reported._replace(handler=route.name), change)
        for route in wanted:
            if not reconciled_by_item(route):
                yield self._replayed(reported._replace(handler=route.name), change, route)

    def _check(self) -> None:
        """Checks the application and the known tables against the state."""
        if self._checked is None or self._checked != self.origins.sources:
            self._checked = dict(self.origins.sources)
            check_application(self.runtime, self._checked, write=not self.dry_run)

    def _left_out(self, route: Route) -> str | None:
        settings = self.runtime.settings
        if route.name in settings.handlers_off:
            return "The handler is switched off, STREAMFOLD_HANDLERS_OFF."
        if not settings.serves(route.group):
            return f"The handler is of group {route.group!r}, and STREAMFOLD_GROUP is {settings.group!r}."
        if derivation(route).outside and not self.runtime.outside:
            return "The handler is external: --external calls it."
        return None

    def _put_source(self, change: Change) -> None:
        """Stores the item for a local state, whose handlers read it as the change left it."""
        if self.put_sources is not None and not self.runtime.application.derived(change.item):
            self.runtime.engine.read_source(change.item)  # raises if the state keeps no sources of the table
            self.put_sources(newest_sources([change]))

    def _reconciled(self, reported: Redriven, change: Change, handlers: list[str]) -> Iterable[Redriven]:
        if not handlers:
            return []
        repair = Repair(self.runtime, self.dry_run)
        found = repair.item(change.item, version=change.version_text, handlers=handlers, changes=[change])
        own = (route for route in self.runtime.application.routes if route.kind.contributes)
        parking = {route.name for route in own if contributing(route).parks_conflicts(route)}
        return [_of_repair(reported, repaired, parking) for repaired in found]

    def _indexed(self, reported: Redriven, change: Change) -> Iterable[Redriven]:
        """Redrives a record for a search. Without a server, only the search is left over."""
        try:
            return [*self._reconciled(reported, change, [str(reported.handler)])]
        except SettingsError as error:
            return [reported._replace(what="skipped", why=str(error))]

    def _left_to(self, route: Route) -> str | None:
        return None if self.runtime.settings.serves(route.group) else route.group

    def _replayed(self, reported: Redriven, change: Change, route: Route) -> Redriven:
        """Replays a record for one handler without a ledger."""
        runtime = replace(self.runtime, handlers=frozenset([route.name]), outside=True, late=True)
        if not self.dry_run:
            report = process_changes(runtime, [change])
        else:
            claim = claim_key(self.runtime.application.name, route.name, change.item, change.identity_text)
            if claim in self.runtime.engine.read_state([claim], consistent=True):
                return reported._replace(what="known")
            plan, report = plan_changes(runtime, [change])
            later = sum(not derivation(each.route).outside for each in plan.deferred)
            effects = sum(len(unit.effects) for transaction in plan.transactions for unit in transaction.units)
            reported = reported._replace(written=effects + len(plan.puts) + later)
        for failure in report.failures:
            return reported._replace(what="failed", why=failure.what)
        if report.known:
            return reported._replace(what="known")
        phrases = derivation(route).says
        for why in (phrases[word].stale for word, counted in report.counts.items() if counted and phrases[word].stale):
            return reported._replace(what="stale", why=why)
        if derivation(route).outside and (own := change.as_written()) is not None and route.takes(own):
            return reported._replace(what="applied")
        return _tallied(reported, report)


def is_local(parked: Parked) -> bool:
    """Whether a record comes from a local state's own stream."""
    return Version(parked.version).label == STREAM_LABEL or OWN_VERSION in parked.record


def _of_repair(reported: Redriven, repaired: Repaired, parking: Collection[str]) -> Redriven:
    """The outcome of a repair. ``parking``: handlers that park conflicts; their documents are kept until resolved."""
    reported = reported._replace(handler=repaired.handler, written=repaired.written, removed=repaired.removed)
    if repaired.error is not None:
        return reported._replace(what="failed", why=_error(repaired.error))
    for conflict in repaired.conflicts[:1]:
        reported = reported._replace(why=str(conflict), conflicts=len(repaired.conflicts))
        if repaired.handler in parking:
            return reported._replace(what="conflict")
    if repaired.written or repaired.removed or repaired.handed_on:
        return reported._replace(what="applied")
    return reported._replace(what="stale" if repaired.known else "unchanged")


def _tallied(reported: Redriven, report: Report) -> Redriven:
    for tallies in report.tallies.values():
        reported = reported._replace(written=tallies.written, removed=tallies.removed)
    if reported.written or reported.removed:
        return reported._replace(what="applied")
    if report.tallies:
        return reported._replace(
            what="stale", why="A newer change has written or deleted its rows, or they hold this one."
        )
    return reported._replace(what="unwanted", why="The handler does not take this change.")


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
