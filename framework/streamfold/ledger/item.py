"""The ledger: one state item per source item and group, holding what each handler contributed and at which version.

Attributes of a ledger item, flat, because a nested path cannot be set in an absent map:
``r`` revision (grows by one per write), ``live`` handlers with something stored, ``ttl`` only when nothing is stored,
and per handler ``<handler>.v`` version, ``<handler>.s`` contribution (canonical text, compared whole),
``<handler>.fence`` (only on items written by repair or redrive) and ``<handler>.u`` (rows and entries that its steps
took away and that are not known to be finished). A contribution over 4 KB lives in an item of its own, with its digest
here.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

from streamfold.keys.key_part import LETTER_BYTES_MAX

PART_BYTES_MAX = 4096
"""A handler's contribution above this lives in an item of its own, so that its neighbours stay cheap to write."""
LETTERS_KEPT = PART_BYTES_MAX // LETTER_BYTES_MAX
"""Letters of a contribution that is not above it, whatever they are."""
REFERENCE = "@"
"""Begins the digest that stands for a contribution kept elsewhere; no contribution's text begins with it."""
BEFORE_ALL = "0"
"""The version of what did not come through a stream: it sorts before the version of every record."""


class StoredPart(NamedTuple):
    """What a ledger item holds of one handler."""

    version: str
    text: str  # of the contribution, or the digest of a large one
    left: str = ""  # rows and entries that its steps left behind, and that may be unfinished


class PartNames:
    """The names of what a ledger item holds of some handlers, at least one."""

    __slots__ = ("attributes", "contributions", "versions")

    def __init__(self, handlers: Sequence[str]) -> None:
        self.versions = _all_of([handler + ".v" for handler in handlers])
        self.contributions = _all_of([handler + ".s" for handler in handlers])
        self.attributes = 2 * len(handlers)


def _all_of(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Sequence[str]]:
    """Gets all of these attributes. What it makes raises ``KeyError`` where one is absent."""
    if len(names) > 1:
        return itemgetter(*names)  # in a third of the time
    return lambda attributes: (attributes[names[0]],)


class LedgerItem(NamedTuple):
    """A ledger item as read."""

    revision: int  # 0 if there is no item
    live: int  # handlers with something stored
    parts: Mapping[str, StoredPart]  # by handler

    @classmethod
    def of(cls, attributes: Mapping[str, Any] | None) -> "LedgerItem":
        if not attributes:
            return cls(0, 0, {})
        stored = attributes.get
        parts = {
            (handler := name[:-2]): StoredPart(version, stored(handler + ".s", ""), stored(handler + ".u", ""))
            for name, version in attributes.items()
            if name.endswith(".v")
        }
        return cls(int(attributes.get("r", 0)), int(attributes.get("live", 0)), parts)


def settled_texts(attributes: Mapping[str, Any], names: PartNames, version: str) -> Sequence[str] | None:
    """What a ledger item as read holds of handlers, if it has their steps to a version and nothing was left behind.

    Otherwise None. It makes no ``LedgerItem``, because it is asked for every item of a batch that comes again.
    """
    try:
        if min(names.versions(attributes)) < version:
            return None
        texts: Sequence[str] = names.contributions(attributes)
    except KeyError:
        return None
    if len(attributes) == names.attributes + 2 and "r" in attributes and ("live" in attributes or "ttl" in attributes):
        return texts  # as nearly always: there is nothing else
    return None if any(text and name.endswith(".u") for name, text in attributes.items()) else texts


def kept_text(text: str) -> str:
    """The text of a contribution as the ledger item holds it: a digest if it is large."""
    if len(text) <= LETTERS_KEPT or len(text.encode()) <= PART_BYTES_MAX:
        return text
    return REFERENCE + sha256(text.encode()).hexdigest()


def elsewhere(stored: StoredPart | None) -> bool:
    """Whether a contribution is kept in an item of its own."""
    return stored is not None and stored.text.startswith(REFERENCE)
