"""Backlinks: state items that name the referrers of an item.

The text of an item's contribution has what the item refers to, behind its rows. So its ledger item is taken
for one with something stored, and does not expire while the item refers.

A *backlink* is an item of its own for each reference. Its partition is that of the referent, its sort key a digest of
the referrer's key: ranges of the first digits are segments of a fan-out, and DynamoDB can split a partition of many.
Its text is the referrer's key.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b

from streamfold.ledger.contribution import stored_key_text, stored_rows
from streamfold.ledger.state_keys import backlinks_partition
from streamfold.records.change import ItemKey
from streamfold.writes.guarded import DeleteState, PutState, StateKey

DIGEST_BYTES = 16
"""Bytes of a referrer in the sort key of a backlink: 128 bits, so that no two items have one."""


def backlink_key(application: str, handler: str, referent: ItemKey, item: ItemKey) -> StateKey:
    """The key of the backlink from a referent to an item that refers to it through a handler."""
    name = stored_key_text(item).encode(errors="surrogatepass")
    position = blake2b(name, digest_size=DIGEST_BYTES).hexdigest()
    return StateKey(backlinks_partition(application, handler, referent), position)


def backlinks(application: str, handler: str, item: ItemKey, referents: Iterable[ItemKey]) -> list[PutState]:
    text = f"[[{stored_key_text(item)},{{}}]]"
    return [PutState(backlink_key(application, handler, each, item), text) for each in referents]


def dropped(
    application: str, handler: str, item: ItemKey, before: Iterable[ItemKey], after: Collection[ItemKey]
) -> list[DeleteState]:
    """The removals of the backlinks of what an item does not refer to any more."""
    return [DeleteState(backlink_key(application, handler, each, item)) for each in before if each not in after]


def referrer(text: str) -> ItemKey:
    """The item that a backlink's text names. Raises ``EngineError`` for a text that is damaged."""
    (item,) = stored_rows(text)
    return item
