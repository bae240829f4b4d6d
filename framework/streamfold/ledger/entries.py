"""Entries: the values of a source below a row, for an aggregate without an inverse such as ``Max`` or ``Top``.

An entry is a state item. Its partition key names one attribute of one row. Its sort key, the *place*, is the text that
orders the value, and the source's key. The ledger's transaction writes and deletes entries. The ledger item holds
their places, and a digest of each value that its place does not tell.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar

from streamfold.keys.key import PARTITION_BYTES_MAX
from streamfold.records.change import ItemKey
from streamfold.records.encoded import digest
from streamfold.records.item_names import item_name, key_text
from streamfold.records.value_class import Nothing, Value, value
from streamfold.records.values import decode
from streamfold.routes.ordered import Ordered
from streamfold.routes.orderings import FORMS, Form, Ordering
from streamfold.writes.guarded import ENTRIES, DeleteState, Moved, PutState, RowKey, StateKey

ENTRIES_MAX = 48
"""Entries of one source below one row: all of them may move in one transaction, as many deletions as puts."""
SOURCE_BYTES_MAX = 500
"""Bytes of a source's key in a sort key of 1,024 bytes. A longer key is cut and ends in a digest."""
BEHIND = "#"
"""Follows the value in a place; every letter of a value is greater."""
BETWEEN, SPELLED = " ", {code: f"!{chr(code + ord('0'))}" for code in range(ord("!") + 1)}
"""The separator of a source's key parts sorts before every letter of a part, so that ``c1`` comes before ``c107``
whatever follows either. Letters up to ``!`` are spelled with a ``!`` and keep their order."""
SPELLING, CUT = re.compile("!(.)"), "!sha256:"
"""A spelled letter; and what stands before the digest of a text that was cut, which spells no letter."""
BEYOND = "$"
"""A value's text with this letter sorts after all places of the value, and before those of the next value."""
OUTSIDE = -1
"""The level of a list that is no part of an item."""
NAMES_KEPT = 256
"""Partitions and sources whose texts are kept: one step asks for each of them several times."""
Placed = TypeVar("Placed", bound=tuple[Any, ...])
"""A tuple that begins with a place: ``(place, value)``."""


class Entry:
    """What is kept of a value. Two are equal if their digests are."""

    __slots__ = ("content", "digest")

    def __init__(self, digest: str, content: str | None = None) -> None:
        self.digest = digest  # "" if the text that orders the value tells all of it
        self.content = content  # the value as text; the ledger does not hold it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@value
class HeldEntries(Value):
    """The entries of one source for one attribute of a row, by the text that orders them."""

    ordering: str
    entries: Mapping[str, Entry]


LIVED = "~"
"""Between a table's name, which has no such letter, and the life of a row."""
PLAIN_ENTRY = ""
"""The attribute's name if entries hold all plain attributes of a row."""

HeldByName = Mapping[str, HeldEntries]
NOTHING: HeldByName = Nothing()


@value
class Mark(Value):
    """Whose entries they are, and the stamp of the step that moves them."""

    application: str
    handler: str
    item: ItemKey
    stamp: str


def held(value: Ordered, *, spread: bool = False) -> HeldEntries:
    """The one entry of a yielded value. ``spread``: the row is spread over shards."""
    content = value.content
    told = FORMS[value.ordering.form].by_value
    ordering = value.ordering.spread() if spread else value.ordering
    return HeldEntries(str(ordering), {value.order: Entry("" if told else digest({"": {"S": content}}), content)})


def joined(one: HeldEntries, other: HeldEntries) -> HeldEntries | None:
    """The entries of two rows of one key from one source; None if they contradict each other."""
    if one.ordering != other.ordering:
        return None
    if any(one.entries[order] != entry for order, entry in other.entries.items() if order in one.entries):
        return None
    return HeldEntries(one.ordering, {**one.entries, **other.entries})


def alone(found: HeldEntries) -> Any:
    """What a row of one source makes of its entries."""
    ordering = Ordering.of(found.ordering)
    form = FORMS[ordering.form]
    orders = sorted(found.entries, reverse=form.descending)[: ordering.most or None]
    return made(ordering, [found.entries[order].content or "" for order in orders])


def made(ordering: Ordering, contents: Sequence[str]) -> Any:
    """The value of an attribute, made of the texts of the entries that count, in order."""
    values = json.loads(f"[{','.join(contents)}]")  # a list may be of hundreds
    return FORMS[ordering.form].made(decode({"L": values}, OUTSIDE))


def in_order(form: Form, placed: Iterable[Placed]) -> list[Placed]:
    """Entries in the order in which they count."""
    by_source = sorted(placed, key=lambda each: each[0].partition(BEHIND)[2], reverse=form.largest_key)
    return sorted(by_source, key=lambda each: order_of(each[0]), reverse=form.descending)


def order_of(place: str) -> str:
    """The text of the value in a place."""
    return place.partition(BEHIND)[0]


@lru_cache(NAMES_KEPT)
def partition(application: str, handler: str, name: str, row: RowKey, life: str = "") -> str:
    """The partition key of the entries of one attribute of a row in one of its lives, never the same for two."""
    escaped = name.replace("%", "%25").replace("#", "%23")
    text = f"{ENTRIES}{application}#{handler}#{escaped}#{row[0]}{LIVED + life if life else ''}#{item_name(row)}"
    if len(text) * 4 > PARTITION_BYTES_MAX and len(text.encode()) > PARTITION_BYTES_MAX:
        text = f"{ENTRIES}{application}#{handler}#sha256:{sha256(text.encode()).hexdigest()}"
    return text


@lru_cache(NAMES_KEPT)
def source_text(item: ItemKey) -> str:
    """The text that distinguishes and sorts sources of equal values: by table, partition key and sort key."""
    parts = [value if type(value) is str else key_text(value) for value in item if value is not None]
    text = BETWEEN.join([part.translate(SPELLED) for part in parts])
    if len(text) * 4 > SOURCE_BYTES_MAX and len(text.encode()) > SOURCE_BYTES_MAX:
        text = f"{text[: SOURCE_BYTES_MAX // 8]}{CUT}{sha256(text.encode()).hexdigest()}"
    return text


def source_parts(text: str) -> list[str] | None:
    """The table and the texts of key values that ``source_text`` was made of; None for a text that was cut."""
    if CUT in text:
        return None
    return [SPELLING.sub(_spelled, part) for part in text.split(BETWEEN)]


def moved(mark: Mark, row: RowKey, before: HeldByName, after: HeldByName, life: str = "") -> tuple[Moved, ...]:
    """The entries below a row that are written or deleted between what a source held there and what it holds now.

    The new entries say how they are ordered. If a source only leaves, the ordering stays open: other sources are still
    in the row, and may have come with newer code.
    """
    found = []
    for name in _names(before, after):
        orders = _changed(before.get(name), after.get(name))
        if orders or (name in before and name in after and before[name].ordering != after[name].ordering):
            ordering = after[name].ordering if name in after else ""
            where, source = partition(mark.application, mark.handler, name, row, life), source_text(mark.item)
            found.append(Moved(where, name, ordering, frozenset([place(order, source) for order in orders]), life))
    return tuple(found)


def taken(before: HeldByName, after: HeldByName) -> HeldByName:
    """The first entry of each attribute that is gone or has changed, in the order in which entries count.

    If one of the entries that are gone counted for the row, the first one did.
    """
    found: dict[str, HeldEntries] = {}
    for name, old in before.items():
        new = after[name].entries if name in after else {}
        if gone := [order for order, entry in old.entries.items() if new.get(order) != entry]:
            first = max(gone) if FORMS[Ordering.of(old.ordering).form].descending else min(gone)
            found[name] = HeldEntries(old.ordering, {first: old.entries[first]})
    return found


def all_held(one: HeldByName, other: HeldByName) -> HeldByName:
    """The entries of both, by attribute, ordered as in the second."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        found[name] = HeldEntries(other[name].ordering, {**one[name].entries, **other[name].entries})
    return found


def writes(
    mark: Mark, row: RowKey, before: HeldByName, after: HeldByName, life: str = ""
) -> list[PutState | DeleteState]:
    """The writes of a row's entries, in one of its lives."""
    found: list[PutState | DeleteState] = []
    for name in _names(before, after):
        where, source = partition(mark.application, mark.handler, name, row, life), source_text(mark.item)
        now = after[name].entries if name in after else {}
        for order in sorted(_changed(before.get(name), after.get(name))):
            key = StateKey(where, place(order, source))
            found.append(PutState(key, now[order].content or "") if order in now else DeleteState(key))
    return found


def _names(before: HeldByName, after: HeldByName) -> list[str]:
    """The attributes of both, in their order."""
    names = {*before, *after}
    return sorted(names) if len(names) > 1 else list(names)


def _spelled(found: re.Match[str]) -> str:
    return chr(ord(found[1]) - ord("0"))


def place(order: str, source: str) -> str:
    """The sort key of an entry."""
    return order + BEHIND + source


def _changed(before: HeldEntries | None, after: HeldEntries | None) -> set[str]:
    old, new = before.entries if before else {}, after.entries if after else {}
    changed = old.keys() ^ new.keys()
    if len(changed) == len(old) + len(new):  # as where one of them is empty
        return changed
    return changed | {order for order in old.keys() & new.keys() if old[order] != new[order]}
