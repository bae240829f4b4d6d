"""Has this batch been applied? A redelivered batch is recognised, and nothing of it is derived or sent twice.

A sample of the ledger items decides whether the batch came before. If so, the whole ledger of the batch is read in
one go, and changes that the ledger already holds are acknowledged without being derived.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

from streamfold.batch.order import ItemWork
from streamfold.batch.steps import Settled, Steps
from streamfold.commit.pending import NamedRows
from streamfold.commit.replanning import filled
from streamfold.commit.transactions import read_state_in_parts
from streamfold.engines import StateItems
from streamfold.errors import EngineUnavailable
from streamfold.ledger.contribution import LedgerItem, PartNames, needs_no_finishing, settled_texts, stored_rows
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.change import Change, ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime, SendingPace
from streamfold.writes.guarded import StateKey

SAMPLE = 10
"""Ledger items that are read to tell whether a batch came before, at the price of ten units of reads."""
LOOKED_AT = 40
"""Changes of which these are taken, where some are of items without a ledger item."""

T = TypeVar("T")

Unsettled = tuple[ItemWork, tuple[Route, ...], PartNames, str]
"""What is asked of a ledger item: an item's work, the handlers whose contributions it holds, their names in it, and the
version of the item's newest change.
"""


def looked_at(runtime: Runtime, records: Sequence[T]) -> Sequence[T]:
    """The records of a batch that tell whether it came before.

    There are none unless the process has a reason to ask, nor of so few records that they may fit one transaction: a
    refusal then tells as much. They come from all of the batch, one from each part, at a place as if by chance: it may
    be full of a pattern.
    """
    if not runtime.pace.unsure or len(records) <= runtime.chunk_actions:
        return ()
    part = max(len(records) // LOOKED_AT, 1)
    return [records[part * number + crc32(b"%d" % number) % part] for number in range(len(records) // part)]


def sample(runtime: Runtime, some: Iterable[Change]) -> Mapping[StateKey, ItemKey]:
    """A few items of changes by the keys of their ledger items."""
    known = ((change.item, _groups(runtime, change)) for change in some if change.has_old)  # others are read anyway
    found = [(item, groups) for item, groups in known if groups]
    taken = found[:: -(-len(found) // SAMPLE) or 1]
    # Of several ledger items of an item one, each time that of another group.
    chosen = ((item, groups[number % len(groups)]) for number, (item, groups) in enumerate(taken))
    return {ledger_key(runtime.application.name, group, item): item for item, group in chosen}


def _groups(runtime: Runtime, change: Change) -> Sequence[str]:
    """The groups that keep a ledger item for a change's item here."""
    return list(
        dict.fromkeys(
            route.group
            for route, _ in runtime.application.sources(change.item)
            if route.kind.contributes and runtime.settings.runs(route.name, route.group)
            if runtime.handlers is None or route.name in runtime.handlers
        )
    )


def is_as_new(found: Mapping[str, Any], work: ItemWork) -> bool:
    """Whether a ledger item as read has the newest change of an item, for some handler."""
    newest = work.changes[-1].version_text
    return any(part.version >= newest for part in LedgerItem.of(found).parts.values())


class Settling:
    """Settles the items of a batch that may have come before. It is made while the sample is read.

    asked: the items of the sample by the keys of their ledger items.
    """

    def __init__(self, work: Mapping[ItemKey, ItemWork], asked: Mapping[StateKey, ItemKey]) -> None:
        self.work = work
        self.asked = asked
        self._unsettled: dict[StateKey, Unsettled] = {}
        named: dict[tuple[Route, ...], PartNames] = {}
        for each in work.values():
            for key, routed in each.ledger.items():
                routes = tuple([route for route, _ in routed])
                names = named.get(routes) or named.setdefault(routes, PartNames([route.name for route in routes]))
                self._unsettled[key] = each, routes, names, each.changes[-1].version_text

    def settle(self, sampled: StateItems, steps: Steps) -> Settled:
        """Settles what the ledger has of a batch that came before; of one that seems new, nothing is read.

        sampled: holds the ledger items of the sample, none of those that are absent.
        """
        if not self._came_before(sampled, steps.runtime.pace):
            return Settled()
        settled: dict[StateKey, tuple[ItemWork, tuple[Route, ...]]] = {}
        others: dict[StateKey, dict[str, Any]] = {}
        stored: StateItems | None = others
        try:
            for found in read_state_in_parts(steps.runtime, self._unsettled):
                for key, attributes in found.items():
                    work, routes, names, version = self._unsettled[key]
                    texts = settled_texts(attributes, names, version)
                    if texts is not None and (
                        needs_no_finishing(*texts) or self._takes_unfinished(key, attributes, texts, steps)
                    ):
                        settled[key] = work, routes
                    else:
                        others[key] = attributes
        except EngineUnavailable:  # what was not read is sent, and refused if it came before
            stored = None
        steps.note_done(settled.values())
        return Settled(settled.keys(), stored)

    def _came_before(self, sampled: StateItems, pace: SendingPace) -> bool:
        """Whether the batch came before. Once it seems new its transactions need not be careful."""
        if pace.careful:
            found = ((sampled.get(key, {}), self.work[item]) for key, item in self.asked.items())
            pace.careful = any(is_as_new(stored, work) for stored, work in found)
        return pace.careful

    def _takes_unfinished(self, key: StateKey, attributes: dict[str, Any], texts: Sequence[str], steps: Steps) -> bool:
        """Has an item's rows recomputed and copied, as its step may have left that. False where they are not known."""
        work, routes, *_ = self._unsettled[key]
        own = zip(routes, texts, strict=True)
        unfinished = [route for route, text in own if not needs_no_finishing(text)]
        try:
            found = filled(steps.runtime.engine, key, LedgerItem.of(attributes), {route.name for route in unfinished})
        except EngineUnavailable:
            return False
        if any(route.name not in found.parts for route in unfinished):  # the item was read again, and is gone
            return False
        for route in unfinished:
            steps.unfinished.take(_held(steps, work.item, route, found), [route], work.changes)
        return True


def _held(steps: Steps, item: ItemKey, route: Route, found: LedgerItem) -> NamedRows:
    """The rows that a ledger item holds of a handler, which may have to be recomputed or copied."""
    named, application = NamedRows(), steps.runtime.application.name
    named.add_stored(application, route, item, found)
    named.hold(application, route, item, stored_rows(found.parts[route.name].text))
    return named
