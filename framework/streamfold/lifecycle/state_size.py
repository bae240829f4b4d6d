"""The size of a state by the purpose of its items, and ledger items that should expire and do not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfold.engines.protocol import Engine, StoredItem
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.state_keys import is_ledger_key
from streamfold.lifecycle.explain import found_in_state, state_key
from streamfold.lifecycle.sources import pages
from streamfold.records.values import item_bytes
from streamfold.routes.application import Application
from streamfold.runtime import Runtime
from streamfold.writes.guarded import StateKey

OTHERS = "other applications"
PURPOSES = {
    "ledger": "what each item contributes",
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
    return not any(part.text or part.pending for part in LedgerItem.of(stored).contributions.values())
