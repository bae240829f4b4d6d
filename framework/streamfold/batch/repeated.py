"""Whether a batch came before, by a sample of its ledger items.

A process whose last invocation did not end well, or that is new, may be given what another one has committed. To find
that out by a refused transaction costs what planning the batch costs, and the units of the transaction. So a few ledger
items are read with the manifest.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

from streamfold.batch.order import ItemWork
from streamfold.ledger.item import LedgerItem
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.change import Change, ItemKey
from streamfold.routes.application import Application
from streamfold.run import Run
from streamfold.writes.guarded import StateKey

SAMPLE = 10
"""Ledger items that are read to tell whether a batch came before, at the price of ten units of reads."""
LOOKED_AT = 40
"""Changes of which these are taken, where some are of items without a ledger item."""

T = TypeVar("T")


def looked_at(records: Sequence[T], run: Run) -> Sequence[T]:
    """The records of a batch that tell whether it came before.

    There are none unless the process has a reason to ask, nor of so few records that they may fit one transaction: a
    refusal then tells as much. They come from all of the batch, one from each part, at a place as if by chance: it may
    be full of a pattern.
    """
    if not run.pace.unsure or len(records) <= run.chunk_actions:
        return ()
    part = max(len(records) // LOOKED_AT, 1)
    return [records[part * number + crc32(b"%d" % number) % part] for number in range(len(records) // part)]


def sample(app: Application, some: Iterable[Change], run: Run) -> Mapping[StateKey, ItemKey]:
    """A few items of changes by the keys of their ledger items."""
    known = ((change.item, _groups(app, change, run)) for change in some if change.has_old)  # others are read anyway
    found = [(item, groups) for item, groups in known if groups]
    taken = found[:: -(-len(found) // SAMPLE) or 1]
    # Of several ledger items of an item one, each time that of another group.
    chosen = ((item, groups[number % len(groups)]) for number, (item, groups) in enumerate(taken))
    return {ledger_key(app.name, group, item): item for item, group in chosen}


def _groups(app: Application, change: Change, run: Run) -> Sequence[str]:
    """The groups that keep a ledger item for a change's item here."""
    return list(
        dict.fromkeys(
            route.group
            for route, _ in app.sources(change.item)
            if route.kind.contributes and run.settings.runs(route.name, route.group)
            if run.handlers is None or route.name in run.handlers
        )
    )


def is_as_new(found: Mapping[str, Any], work: ItemWork) -> bool:
    """Whether a ledger item as read has the newest change of an item, for some handler."""
    newest = work.changes[-1].version_text
    return any(part.version >= newest for part in LedgerItem.of(found).parts.values())
