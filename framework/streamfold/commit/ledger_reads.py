"""Reads a ledger item with its large contributions, which are kept in items of their own."""

from collections.abc import Collection, Iterable

from streamfold.engines import Engine
from streamfold.errors import EngineUnavailable, told
from streamfold.ledger.contribution import Contribution
from streamfold.ledger.item import LedgerItem, elsewhere, kept_text
from streamfold.ledger.lives import Lives
from streamfold.ledger.state_keys import part_key
from streamfold.routes.route import Route
from streamfold.writes.guarded import StateKey

Coming = tuple[Route, Contribution, Contribution]
"""A handler, what an item contributed through it as far as that is known, and what the item contributes now."""
READS_MAX = 3
"""Times that a ledger item and its large contributions are read until they match each other."""


def read_lives(engine: Engine, lives: Lives, steps: Iterable[Coming], *, consistent: bool = False) -> None:
    """Reads rows that expire, that items come to, and whose life the process does not know.

    A row that is read too late costs a refused transaction, which tells the life that the row has.
    """
    rows = dict.fromkeys(
        row for route, before, after in steps for row in lives.unknown(route, after) if row not in before
    )
    if rows:
        lives.read(engine.read_rows(rows, consistent=consistent))


def filled(engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]) -> LedgerItem:
    """A ledger item with the large contributions of these handlers.

    Raises ``EngineUnavailable`` if the item changes at each of ``READS_MAX`` reads; the records come again.
    """
    for _ in range(READS_MAX):
        whole = _with_large_parts(engine, key, found, handlers)
        if whole is not None:
            return whole
        found = LedgerItem.of(engine.read_state([key], consistent=True).get(key))
    raise EngineUnavailable(f"Ledger item {told(key.pk)} changed while it was read.")


def _with_large_parts(engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]) -> LedgerItem | None:
    """The ledger item with its large parts; None if the digest of one of them does not match."""
    large = {part_key(key, name): name for name, part in found.parts.items() if name in handlers and elsewhere(part)}
    if not large:
        return found
    items = engine.read_state(large, consistent=True)
    parts = dict(found.parts)
    for place, name in large.items():
        text = items[place]["s"] if place in items else ""
        if kept_text(text) != parts[name].text:
            return None
        parts[name] = parts[name]._replace(text=text)
    return found._replace(parts=parts)
