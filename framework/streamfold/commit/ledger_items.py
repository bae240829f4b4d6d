"""Reads ledger items with the large contributions that are kept beside them."""

from collections.abc import Collection

from streamfold.engines.protocol import Engine
from streamfold.errors import EngineUnavailable, redacted
from streamfold.ledger.contribution import LedgerItem, elsewhere, kept_text
from streamfold.ledger.state_keys import contribution_key
from streamfold.writes.guarded import StateKey

READS_MAX = 3
"""Times that a ledger item and its large contributions are read until they match each other."""


def filled(engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]) -> LedgerItem:
    """A ledger item with the large contributions of these handlers.

    Raises ``EngineUnavailable`` if the item changes at each of ``READS_MAX`` reads; the records are retried.
    """
    # A step in between replaces the item and its large contributions, and both reads must be of one step.
    for _ in range(READS_MAX):
        complete = _with_large_contributions(engine, key, found, handlers)
        if complete is not None:
            return complete
        found = LedgerItem.of(engine.read_state([key], consistent=True).get(key))
    raise EngineUnavailable(f"Ledger item {redacted(key.pk)} changed while it was read.")


def _with_large_contributions(
    engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]
) -> LedgerItem | None:
    """The ledger item with its large contributions; None if the digest of one does not match: it changed between the
    reads.
    """
    large = {
        contribution_key(key, name): name
        for name, each in found.contributions.items()
        if name in handlers and elsewhere(each)
    }
    if not large:
        return found
    items = engine.read_state(large, consistent=True)
    contributions = dict(found.contributions)
    for where, name in large.items():
        text = items[where]["s"] if where in items else ""
        if kept_text(text) != contributions[name].text:
            return None
        contributions[name] = contributions[name]._replace(text=text)
    return found._replace(contributions=contributions)
