"""Removes a handler from a state: its contributions in ledger items and, if asked for, its values in rows.

A contribution that remains in a ledger item for ever keeps the item from expiring, and one removal of its source is
refused, because the item holds more than the code knows.

Rows are taken back by pages that reconcile items as if each source were gone: exactly the contributions of the ledger
are subtracted. That needs the handler's declaration. No record may reach the handler meanwhile.

Beside it, what a state keeps by purpose, and its ledger items that should expire and do not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamfold.batch.manifest import RETIRED, Manifest
from streamfold.batch.ownership import take_out
from streamfold.batch.stored_schema import drop_schema
from streamfold.commit.buckets import WaitingDeltas, wait_for_items
from streamfold.derivations import kept_words
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import Engine, StoredItem
from streamfold.errors import SettingsError, plain
from streamfold.jobs.fan_outs import FanOuts
from streamfold.jobs.job import Jobs
from streamfold.ledger.contribution import LedgerItem, elsewhere, has_stored
from streamfold.ledger.deltas import names_in
from streamfold.ledger.state_keys import (
    BACKLINKS,
    WAKES,
    contribution_key,
    is_ledger_key,
    ledger_of_contribution,
    source_of,
)
from streamfold.lifecycle.explain import found_in_state, state_key
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.sources import pages
from streamfold.records.values import item_bytes
from streamfold.routes.application import Application, unknown_handler
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import DeleteState, StateKey

ATTRIBUTES = (".v", ".s", ".fence", ".u", ".p", ".b")
"""The suffixes of a handler's attributes in a ledger item."""
UNKNOWN_ITEM = "The key of its item is too long for the state to hold it: its rows were not taken back."
NOT_TAKEN_BACK = "The state still holds its contribution: no source of the handler has its key, or it is busy."
REFUSED = "Its row takes no more of what waits in a delta: correct the row, and run the command again."
BUSY = f"Others changed it at each of {TRIES_MAX} tries."


class ContributionKept(NamedTuple):
    """A contribution that could not be dropped."""

    key: StateKey  # of the ledger item
    why: str


class ContributionFound(NamedTuple):
    """A ledger item with a contribution of the handler, or the separate item of a large contribution."""

    key: StateKey  # of the ledger item
    stores: bool  # there is a contribution, or pending work of one
    apart: bool  # it was found by the separate item
    waits: bool = False  # it names deltas, which may be pending


@dataclass(slots=True)
class RetireReport:
    """The results for the contributions of a handler."""

    contributions: int = 0  # found
    stored: int = 0  # of these, contributions that are not empty
    rows: int = 0  # writes and removals of rows
    dropped: int = 0
    kept: list[ContributionKept] = field(default_factory=list)


class TakenOut(ABC):
    """The stored items of a handler, found and removed page by page."""

    __slots__ = ()

    @abstractmethod
    def pages(self) -> Iterator[Sequence[Any]]:
        """The stored items, page by page. They are counted."""

    @abstractmethod
    def retire(self, page: Sequence[Any]) -> None:
        """Removes a page from the state. A repetition changes nothing."""

    @abstractmethod
    def end(self) -> None:
        """Removes the last items. A repetition changes nothing."""

    def go(self, *, dry_run: bool = False) -> Iterator[int]:
        """Removes all pages; yields the size of each. A dry run only counts."""
        for page in self.pages():
            if not dry_run:
                self.retire(page)
            yield len(page)
        if not dry_run:
            self.end()


@dataclass(slots=True)
class Retirement(TakenOut):
    """Drops the contributions of one handler. ``remove``: they are taken back from rows first."""

    runtime: Runtime
    handler: str
    remove: bool
    report: RetireReport = field(default_factory=RetireReport)

    def pages(self) -> Iterator[Sequence[ContributionFound]]:
        """The contributions in the state, page by page. They are counted."""
        for page in pages(found_in_state(self.runtime.engine, self._part)):
            self.report.contributions += sum(not found.apart for found in page)
            self.report.stored += sum(found.stores and not found.apart for found in page)
            yield page

    def retire(self, page: Sequence[ContributionFound]) -> None:
        """Removes a page from the state. A repetition changes nothing."""
        failed = self._take_back(page) if self.remove else {}
        failed = self._wait_for(page) | failed
        for found in page:
            if found.key in failed:
                self.report.kept.append(ContributionKept(found.key, failed[found.key]))
            else:
                self._drop(found)

    def end(self) -> None:
        """Drops its backlinks and open fan-outs, and removes its attributes from the schema, once no row has them.

        Other handlers may make the attributes then.
        """
        if not self.report.kept:  # contributions that are kept need their backlinks
            self._drop_backlinks()
            drop_fan_outs(self.runtime, self.handler)
        if self.remove and not self.report.kept:
            targets = [
                target
                for route in self.runtime.application.routes
                if route.name == self.handler
                for target in route.targets
            ]
            drop_schema(self.runtime, self.handler, targets)
            take_out(self.runtime, self.handler)

    def _drop_backlinks(self) -> None:
        begins = tuple(f"{word}#{self.runtime.application.name}#{self.handler}#" for word in (BACKLINKS, WAKES))

        def backlink(stored: StoredItem) -> StateKey | None:
            key = state_key(stored)
            return key if key.pk.startswith(begins) else None

        for page in pages(found_in_state(self.runtime.engine, backlink)):
            for first in range(0, len(page), self.runtime.chunk_actions):
                some = page[first : first + self.runtime.chunk_actions]
                self.runtime.engine.transact([DeleteState(key) for key in some], self.runtime.expires_at)

    def _part(self, stored: StoredItem) -> ContributionFound | None:
        key, name = state_key(stored), self.handler
        if is_ledger_key(key, self.runtime.application.name) and name + ".v" in stored:
            stores = bool(stored.get(name + ".s", {}).get("S")) or name + ".u" in stored
            return ContributionFound(key, stores, apart=False, waits=name + ".p" in stored)
        ledger = ledger_of_contribution(key, self.runtime.application.name, name)
        return None if ledger is None else ContributionFound(ledger, stores=True, apart=True)

    def _wait_for(self, page: Sequence[ContributionFound]) -> dict[StateKey, str]:
        """Moves what contributions have in deltas into the rows; returns why some rows do not take it, by ledger item.

        Once its contribution is dropped, nobody knows what an item waits for, nor that a row refuses it.
        """
        keys = [found.key for found in page if found.waits]
        if not keys:
            return {}
        stored = self.runtime.engine.read_state(keys, consistent=True)
        items = {key: LedgerItem.of(item) for key, item in stored.items()}
        waiting = WaitingDeltas()
        waiting.tries_all = True
        wait_for_items(self.runtime, waiting, items.values())
        failed: dict[StateKey, str] = {}
        named = ((key, names_in(item.deltas(self.handler))) for key, item in items.items())
        for key, name, rows in ((key, name, rows) for key, names in named for name, rows in names.items()):
            refused = waiting.refused.get(name)
            if name in waiting.damaged:
                failed[key] = waiting.damaged[name]
            elif refused is not None and refused.refused is not None and rows & refused.rows:
                failed[key] = f"{REFUSED} {plain(refused.refused.reason)}"
        return failed

    def _take_back(self, page: Sequence[ContributionFound]) -> dict[StateKey, str]:
        """Takes back the contributions of items; returns the errors by ledger item."""
        sources = {found.key: source_of(found.key) for found in page if found.stores}
        items = [source.item for source in sources.values() if source is not None]
        reconciled = Pages(self.runtime, {self.handler}, emptied=True).reconcile(items)
        self.report.rows += reconciled.rows
        errors = {each.item: f"{type(each.error).__name__}: {each.error}" for each in reconciled.failed}
        return {key: UNKNOWN_ITEM for key, source in sources.items() if source is None} | {
            key: errors[source.item] for key, source in sources.items() if source is not None and source.item in errors
        }

    def _drop(self, found: ContributionFound) -> None:
        """Removes a contribution from its ledger item, and then the separate item of a large one.

        If the run dies between the two, the next run finds the separate item.
        """
        # Records of other handlers change the item meanwhile: their contributions must not be lost.
        for _ in self.runtime.tries():
            stored = self.runtime.engine.read_state([found.key], consistent=True).get(found.key, {})
            contribution = LedgerItem.of(stored).contributions.get(self.handler)
            if contribution is None:
                self._drop_own(found, large=found.apart)
                return
            if self.remove and (
                contribution.text or contribution.pending
            ):  # dropping it would leave its values in rows
                self.report.kept.append(ContributionKept(found.key, NOT_TAKEN_BACK))
                return
            if self.runtime.engine.swap_state(found.key, self._without(stored), int(stored["r"])):
                self.report.dropped += 1
                self._drop_own(found, large=found.apart or elsewhere(contribution))
                return
        self.report.kept.append(ContributionKept(found.key, BUSY))

    def _without(self, stored: dict[str, Any]) -> dict[str, Any]:
        """A ledger item without the handler's contribution; it expires if no contribution remains."""
        gone = {self.handler + attribute for attribute in ATTRIBUTES}
        remaining = {name: value for name, value in stored.items() if name not in gone and name != "r"}
        live = sum(has_stored(part.text) for part in LedgerItem.of(remaining).contributions.values())
        if not live:
            remaining.setdefault("ttl", self.runtime.expires_at)
        return {**remaining, "live": live}

    def _drop_own(self, found: ContributionFound, *, large: bool) -> None:
        if large:
            self.runtime.engine.transact(
                [DeleteState(contribution_key(found.key, self.handler))], self.runtime.expires_at
            )


def check_retirable(
    app: Application, settings: Settings, found: Manifest, name: str, *, remove: bool, offline: bool
) -> None:
    """Raises ``SettingsError`` if a handler cannot be removed from the state now.

    A record that reaches the handler afterwards would be counted once more. So the handler has to be switched off, or
    retired by the running code. If nothing is delivered (``offline``), there is no such record.
    """
    route = next((route for route in app.routes if route.name == name), None)
    entry = found.handlers.get(name, {})
    if route is None and name not in app.retired and RETIRED not in entry:
        raise unknown_handler("The command", name, sorted({*(each.name for each in app.routes), *app.retired}))
    if not (route.kind.contributes if route is not None else entry.get("contributes", True)):
        _check_kept(name, route.kind.name if route is not None else entry["kind"], remove=remove)
    if route is None and remove:
        raise SettingsError(
            f"Handler {name!r} is retired, and its rows can only be taken back by code that declares it: declare it "
            f"again, take it out of retired=, and switch it off, STREAMFOLD_HANDLERS_OFF={name}. --rows keep needs no "
            "declaration."
        )
    if not offline:
        _check_stopped(name, settings, declared=route is not None, retired=RETIRED in entry)


def check_no_run(jobs: Jobs, name: str) -> None:
    """Raises ``SettingsError`` while a run over all items is open for a handler: the run would contribute once more."""
    for job in jobs.all():
        if name in job.handlers and not job.ended:
            raise SettingsError(
                f"Job {job.id} runs handler {name!r} over all items, and has not ended ({job.what}): its later writes "
                f"would count once more. Stop its processes, and end it, streamfold jobs --end {job.id}."
            )


def _check_kept(name: str, kind: str, *, remove: bool) -> None:
    """Raises ``SettingsError`` for a kind without lasting items in the state, or whose rows cannot be taken back."""
    if not kept_words(kind):
        raise SettingsError(
            f"Handler {name!r} is of kind {kind}: the state keeps nothing of it that has to be removed. "
            f'App(..., retired=["{name}"]) is enough; its rows remain.'
        )
    if remove:
        raise SettingsError(
            f"Handler {name!r} is of kind {kind}: no ledger holds the values to take back. --rows keep removes its "
            "items in the state. Rows of a feed expire by themselves, and a search index is dropped as a whole."
        )


def _check_stopped(name: str, settings: Settings, *, declared: bool, retired: bool) -> None:
    if declared and name not in settings.handlers_off:
        raise SettingsError(
            f"Handler {name!r} is not switched off: a record that reaches it afterwards would count once more. Switch "
            f"it off in the function, STREAMFOLD_HANDLERS_OFF={name}, wait for 15 minutes until no earlier invocation "
            "runs, and set it here too."
        )
    if not declared and not retired:
        raise SettingsError(
            f'No function knows yet that handler {name!r} is retired: deploy the code with retired=["{name}"] first.'
        )


def drop_fan_outs(runtime: Runtime, handler: str) -> None:
    """Drops the fan-outs of a handler that are open."""
    fan_outs = FanOuts(runtime)
    for job in [job for job in fan_outs.all() if handler in job.handlers]:
        fan_outs.drop(job)


@dataclass(slots=True)
class KeptRetirement(TakenOut):
    """Drops the stored items of one handler whose kind does not contribute to rows."""

    runtime: Runtime
    handler: str
    words: tuple[str, ...]
    report: RetireReport = field(default_factory=RetireReport)

    @property
    def remove(self) -> bool:
        """False: rows are never taken back."""
        return False

    def pages(self) -> Iterator[Sequence[StateKey]]:
        """The stored items, page by page. They are counted."""
        for page in pages(found_in_state(self.runtime.engine, self._kept)):
            self.report.contributions += len(page)
            yield page

    def retire(self, page: Sequence[StateKey]) -> None:
        """Removes a page from the state. A repetition changes nothing."""
        for first in range(0, len(page), self.runtime.chunk_actions):
            some = page[first : first + self.runtime.chunk_actions]
            refused = self.runtime.engine.transact([DeleteState(key) for key in some], self.runtime.expires_at)
            if refused is None:
                self.report.dropped += len(some)
            else:
                self.report.kept += [
                    ContributionKept(key, "The store refused to delete it; run the command again.") for key in some
                ]

    def end(self) -> None:
        """Drops the open fan-outs of the handler: without it nobody could work on them."""
        drop_fan_outs(self.runtime, self.handler)

    def _kept(self, stored: StoredItem) -> StateKey | None:
        key = state_key(stored)
        begins = tuple(f"{word}#{self.runtime.application.name}#{self.handler}#" for word in self.words)
        return key if key.pk.startswith(begins) else None


OTHERS = "other applications"
PURPOSES = {
    "ledger": "what each item contributes",
    "wake": "when items are derived again, because a moment comes",
    "part": "large contributions",
    "entries": "values below ordered attributes, and claims of unique rows",
    "claim": "changes that were processed once",
    "attempt": "attempts of records that failed",
    "external": "calls of external handlers",
    "cascade": "how far removals of children are",
    "document": "counters of search documents",
    "attributes": "attributes that are derived onto items",
    "kinds": "forms of attributes",
    "posts": "posts that feeds keep, by what joins them",
    "edges": "followers that feeds keep, by what joins them",
    "audience": "how feeds reach an audience",
    "fan": "fan-outs that are open",
    "delta": "additions that wait for shared rows",
    "bucket": "who moves these additions, and which rows are shared",
    "manifest": "handlers and tables",
    "identity": "the name of the state in the markers of tables",
    "source": "versions of rehearsed source items",
    "job": "runs over all items, and how far they are",
    "index": "search indexes that are rebuilt",
    "dirty": "items whose documents an index lacks while it is built",
    "search": "documents of a local search index",
    OTHERS: "all that applications of other names keep in this state",
}
"""The purposes of items by the first word of their keys, and of items of other applications."""
OF_ALL = ("search", "identity")
"""Words without an application in the key: a local index and the identity belong to all that write to the state."""
OVERHEAD_BYTES = 100
"""The overhead of an item in DynamoDB (Developer Guide, CapacityUnitCalculations)."""


@dataclass(slots=True)
class PurposeSize:
    """The number and size of the items of a purpose."""

    items: int = 0
    size_bytes: int = 0
    expiring: int = 0  # items with a time to live

    def add(self, stored: StoredItem) -> None:
        self.items += 1
        self.size_bytes += item_bytes(stored) + OVERHEAD_BYTES
        self.expiring += "ttl" in stored


def purpose_of(app: Application, stored: StoredItem) -> str:
    """The purpose of a state item, by the first word of its key."""
    word, _, rest = stored["pk"]["S"].partition("#")
    is_foreign = word in PURPOSES and word not in OF_ALL and rest.partition("#")[0] != app.name
    return OTHERS if is_foreign else word


def state_sizes(app: Application, engine: Engine, advance: Callable[[int], None]) -> dict[str, PurposeSize]:
    """The sizes by purpose, largest first. ``advance`` is called with the number of items of each page."""
    sizes: dict[str, PurposeSize] = {}
    for page in pages(engine.state_items()):
        for stored in page:
            sizes.setdefault(purpose_of(app, stored), PurposeSize()).add(stored)
        advance(len(page))
    return dict(sorted(sizes.items(), key=lambda each: -each[1].size_bytes))


@dataclass(slots=True)
class GarbageReport:
    """The results for ledger items that should expire."""

    found: int = 0
    marked: int = 0  # that got a time to live
    busy: list[StateKey] = field(default_factory=list)  # that others changed at every try


@dataclass(slots=True)
class StateGarbage:
    """Gives a time to live to the ledger items of an application that hold nothing."""

    runtime: Runtime
    report: GarbageReport = field(default_factory=GarbageReport)

    def pages(self) -> Iterator[Sequence[StateKey]]:
        """The ledger items without a time to live that hold nothing, page by page. They are counted."""
        for page in pages(found_in_state(self.runtime.engine, self._endless)):
            self.report.found += len(page)
            yield page

    def mark(self, page: Sequence[StateKey]) -> None:
        """Gives some of them a time to live, unless an item holds something by now."""
        for key in page:
            # A record may bring a contribution meanwhile: with a time to live, the item would expire with it.
            for _ in self.runtime.tries():
                stored = self.runtime.engine.read_state([key], consistent=True).get(key, {})
                if not holds_nothing(stored):
                    break
                stored_attributes = {name: value for name, value in stored.items() if name != "r"}
                if self.runtime.engine.swap_state(
                    key, {**stored_attributes, "live": 0, "ttl": self.runtime.expires_at}, int(stored["r"])
                ):
                    self.report.marked += 1
                    break
            else:
                self.report.busy.append(key)

    def _endless(self, stored: StoredItem) -> StateKey | None:
        key = state_key(stored)
        if not is_ledger_key(key, self.runtime.application.name):
            return None
        texts: dict[str, Any] = {name: next(iter(value.values())) for name, value in stored.items()}
        return key if holds_nothing(texts) else None


def holds_nothing(stored: dict[str, Any]) -> bool:
    """Whether a ledger item has no contribution, no pending work, and no time to live."""
    if not stored or "ttl" in stored:
        return False
    return not any(has_stored(part.text) or part.pending for part in LedgerItem.of(stored).contributions.values())
