"""Whether a batch came before: then its ledger is read first, and what it holds already is neither derived nor sent.

A process whose last invocation did not end well, or that is new, may be given what another one has committed. To find
that out by a refused transaction costs what planning the batch costs, and the units of the transaction. So a few ledger
items are read beside the manifest. What they say is never trusted for more than an economy: a batch that seems new is
planned and guarded as ever, and what is planned from a ledger item is sent on the revision that was read.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

from streamfold.batch.order import ItemWork, RoutedFields
from streamfold.commit.sending import read_state
from streamfold.engines import Engine
from streamfold.errors import EngineUnavailable
from streamfold.ledger.item import LedgerItem, settled_texts
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.change import Change, ItemKey
from streamfold.routes.application import Application
from streamfold.run import Run
from streamfold.writes.guarded import StateKey

SAMPLE = 10
"""Ledger items that are read to tell whether a batch came before, at the price of five units of reads."""
LOOKED_AT = 40
"""Changes of which these are taken, where some are of items without a ledger item."""


class StoredLedger(NamedTuple):
    """The ledger items of a batch as they are stored, none of those that are absent."""

    items: Mapping[StateKey, Mapping[str, Any]]
    keys: Mapping[tuple[ItemKey, str], StateKey]  # by item and group


Sampled = Sequence[tuple[ItemKey, Mapping[str, Any]]]
"""Items with their ledger items, which were read to tell whether a batch came before; an absent one is empty."""
NOT_STORED: Mapping[str, Any] = {}


def begin_sampling(app: Application, changes: Sequence[Change], engine: Engine, run: Run) -> Callable[[], Sampled]:
    """Begins to read some ledger items of a batch while other work goes on; returns what waits for the answer.

    None are read unless the process has a reason to ask, nor for a batch of so few records that they may fit one
    transaction: a refusal then tells as much. A store that does not answer is no answer.
    """
    sample = _sample(app, changes, run) if run.pace.unsure and len(changes) > run.chunk_actions else {}
    if not sample:
        return tuple
    flight = run.lanes.flight()
    flight.begin(None, partial(engine.read_state, [*sample]), sample)

    def answer() -> Sampled:
        try:
            found = flight.answer()
        except EngineUnavailable:
            return ()
        return [(item, found.get(key, NOT_STORED)) for key, item in sample.items()]

    return answer


def _sample(app: Application, changes: Sequence[Change], run: Run) -> Mapping[StateKey, ItemKey]:
    """A few items of a batch by the keys of their ledger items.

    They come from all of it, one from each part, at a place as if by chance: a batch may be full of a pattern.
    """
    part = max(len(changes) // LOOKED_AT, 1)
    some = [changes[part * number + crc32(b"%d" % number) % part] for number in range(len(changes) // part)]
    found = {
        ledger_key(app.name, route.group, change.item): change.item
        for change in some
        if change.has_old  # the others' ledger items are read anyway
        for route, _ in app.sources(change.item)
        if route.kind.contributes and run.settings.runs(route.name, route.group)
        if run.handlers is None or route.name in run.handlers
    }
    return dict([*found.items()][:: -(-len(found) // SAMPLE) or 1])


def ledger_of_repeated(
    application: str, work: Mapping[ItemKey, ItemWork], engine: Engine, run: Run, sampled: Sampled
) -> StoredLedger | None:
    """The ledger items of a batch that came before; None for a batch that seems new, or of which nothing was sampled.

    Once a batch seems new its transactions need not be careful.
    """
    if not (run.pace.careful and sampled):
        return None
    if not any(_is_as_new(found, work[item]) for item, found in sampled):
        run.pace.careful = False
        return None
    keys = {(item, group): ledger_key(application, group, item) for item, each in work.items() for group in each.ledger}
    try:
        return StoredLedger(read_state(engine, run.lanes, keys.values()), keys)
    except EngineUnavailable:
        return None


def settled(found: Mapping[str, Any], work: ItemWork, routed: Sequence[RoutedFields]) -> Mapping[str, str] | None:
    """What the ledger holds of an item, by handler, if it has the newest change and nothing was left behind."""
    return settled_texts(found, [route.name for route, _ in routed], work.changes[-1].version_text)


def _is_as_new(found: Mapping[str, Any], work: ItemWork) -> bool:
    newest = work.changes[-1].version_text
    return any(part.version >= newest for part in LedgerItem.of(found).parts.values())
