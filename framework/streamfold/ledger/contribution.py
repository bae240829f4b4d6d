"""The ledger item of a source item: the contribution of each handler, its version, entries below rows, and backlinks.

A *backlink* is a state item that names a referrer of an item. The text of an item's contribution has the item's
references behind its rows. So its ledger item counts as one with something stored, and does not expire while the item
refers to others. The partition of a backlink is that of the referent, its sort key a digest of the referrer's key:
ranges of the first digits are segments of a fan-out, and DynamoDB can split a partition of many. Its text is the
referrer's key.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from json.encoder import encode_basestring as quoted
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from streamfold.errors import HandlerError, damaged
from streamfold.keys.key import PARTITION_BYTES_MAX
from streamfold.keys.key_part import LETTER_BYTES_MAX, KeyValue
from streamfold.keys.table import STATE
from streamfold.ledger.state_keys import backlinks_partition
from streamfold.records.change import ItemKey, item_name, key_text
from streamfold.records.values import CANONICAL, Nothing, Number, Value, decode, digest, number_text, value
from streamfold.routes.aggregates import (
    AGGREGATIONS,
    Aggregation,
    Ordered,
    content_text,
    order_of_read,
    ordering_of,
    shown_of,
)
from streamfold.writes.guarded import (
    ENTRIES,
    ChangedEntries,
    DeleteState,
    EntriesOfRow,
    PutState,
    RowKey,
    StateKey,
    SwapText,
)

CONTRIBUTION_BYTES_MAX = 4096
"""A contribution above this size is stored in an item of its own, so that its neighbours stay cheap to write."""
LETTERS_KEPT = CONTRIBUTION_BYTES_MAX // LETTER_BYTES_MAX
"""A contribution of at most this number of letters is not above it, whichever letters it has: its bytes need no
count.
"""
REFERENCE = "@"
"""Begins the digest that replaces a contribution stored elsewhere; no contribution's text begins with it."""
REFERS = ">"
"""Begins the table's name in an array of a contribution's text that is a reference; no table's name begins with it."""
WAITS = "<"
"""Begins the array of a contribution's text that has moments, the first of the text (``ledger.wakes``)."""
BEFORE_ALL = "0"
"""The version of a contribution that did not come through a stream: it sorts before the version of every record."""
DIGEST_BYTES = 16
"""Bytes of a referrer in the sort key of a backlink: 128 bits, so that no two items have one."""

ENTRIES_MAX = 48
"""Entries of one source below one row: all of them may change in one transaction, with as many deletions as puts."""
SOURCE_BYTES_MAX = 500
"""Bytes of a source's key in a sort key of 1,024 bytes. A longer key is cut and ends in a digest."""
BEHIND = "#"
"""Follows the value in a sort position; every letter of a value is greater."""
BETWEEN, SPELLED = " ", {code: f"!{chr(code + ord('0'))}" for code in range(ord("!") + 1)}
"""The separator of a source's key values sorts before every letter of a value, so that ``c1`` and its continuations
come before ``c107``. Letters up to ``!`` are spelled with a ``!`` and keep their order.
"""
SPELLING, CUT = re.compile("!(.)"), "!sha256:"
"""A spelled letter; and the mark before the digest of a text that was cut, which spells no letter."""
BEYOND = "$"
"""A value's text with this letter sorts after all sort positions of the value, and before those of the next value."""
OUTSIDE = -1
"""The level of a list outside of an item."""
NAMES_KEPT = 256
"""Partitions and sources whose texts are cached: one step needs each of them several times."""
Placed = TypeVar("Placed", bound=tuple[Any, ...])
"""A tuple that begins with a sort position: ``(position, value)``."""


class StoredContribution(NamedTuple):
    """The contribution of one handler in a ledger item."""

    version: str
    text: str  # of the contribution, or the digest of a large one
    pending: str = ""  # pending work: rows and entries that its steps changed, to be finished after their commit
    deltas: str | None = None  # names of deltas that hold what its steps add to rows (``ledger.deltas``); None: none
    before: str | None = None  # what the step changed that put them, to take it back (``ledger.deltas``)


class LedgerItem(NamedTuple):
    """A ledger item as read."""

    revision: int  # 0 if there is no item
    live: int  # handlers with something stored
    contributions: Mapping[str, StoredContribution]  # by handler
    shares: Sequence[tuple[str, SwapText | DeleteState]] = ()  # that leave refused deltas with a step, by handler
    counted: Mapping[str, bool] = MappingProxyType(
        {}
    )  # whether ``live`` counts handlers whose refused step is replaced

    @classmethod
    def of(cls, attributes: Mapping[str, Any] | None) -> "LedgerItem":
        if not attributes:
            return cls(0, 0, {})
        stored = attributes.get
        contributions = {
            (handler := name[:-2]): StoredContribution(
                version,
                stored(handler + ".s", ""),
                stored(handler + ".u", ""),
                stored(handler + ".p"),
                stored(handler + ".b"),
            )
            for name, version in attributes.items()
            if name.endswith(".v")
        }
        return cls(int(attributes.get("r", 0)), int(attributes.get("live", 0)), contributions)

    @property
    def waits(self) -> bool:
        """Whether the item names deltas of its last steps."""
        return any(each.deltas for each in self.contributions.values())

    def deltas(self, handler: str) -> str:
        """The names of the deltas of a handler's last step."""
        return (self.contributions[handler].deltas or "") if handler in self.contributions else ""

    def version(self, handler: str) -> str:
        return self.contributions[handler].version if handler in self.contributions else ""

    def since(self, handler: str) -> int | None:
        """The greatest moment that had come when a handler was called last, epoch microseconds; None if there is none.

        A large contribution must be filled in.
        """
        return since_of(moments_of(self.contributions[handler].text)) if handler in self.contributions else None

    def references(self, handler: str) -> tuple[ItemKey, ...]:
        """The references of the item through a handler, whose contribution must be filled in if it is large."""
        return stored_references(self.contributions[handler].text) if handler in self.contributions else ()


def kept_text(text: str) -> str:
    """The text of a contribution as the ledger item holds it: a digest if it is large."""
    if len(text) <= LETTERS_KEPT or len(text.encode()) <= CONTRIBUTION_BYTES_MAX:
        return text
    return REFERENCE + sha256(text.encode()).hexdigest()


def elsewhere(stored: StoredContribution | None) -> bool:
    """Whether a contribution is kept in an item of its own."""
    return stored is not None and stored.text.startswith(REFERENCE)


class Entry:
    """The stored form of a value. Two are equal if their digests are."""

    __slots__ = ("content", "digest")

    def __init__(self, digest: str, content: str | None = None) -> None:
        self.digest: str = digest  # "" if the text that orders the value has all of it
        self.content: str | None = content  # the value as text; the ledger does not hold it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@value
class SourceEntries(Value):
    """The entries of one source for one attribute of a row, by the text that orders them."""

    ordering: str
    entries: Mapping[str, Entry]


LIVED = "~"
"""Separates a table's name, which has no such letter, from the life of a row."""
PLAIN_ENTRY = ""
"""The attribute's name if entries hold all plain attributes of a row."""

EntriesByName = Mapping[str, SourceEntries]
NOTHING: EntriesByName = Nothing()


@value
class Mark(Value):
    """The owner of entries, and the stamp of the step that changes them."""

    application: str
    handler: str
    item: ItemKey
    stamp: str


def entry_of(value: Ordered, *, spread: bool = False) -> SourceEntries:
    """The one entry of a yielded value. ``spread``: the row is spread over shards."""
    content, ordering = value.content, value.ordering
    known = "" if ordering.form.by_value else digest({"": {"S": content}})
    text = ordering.in_shards().text if spread else ordering.text
    return SourceEntries(text, {value.order: Entry(known, content)})


def is_entry_text(order: str, entry: Entry, text: str, grace: int = 0) -> bool:
    """Whether the text of an entry is that of the value which the ledger names by its digest or, without one, by its
    order. ``grace``: a number that the value may be greater than its order says.
    """
    if entry.digest:
        return entry.digest == digest({"": {"S": text}})
    try:
        (value,) = values_of([text])
        is_canonical = content_text(value, lambda: order) == text
        return is_canonical and order in (order_of_read(value), order_of_read(value - grace) if grace else "")
    except (HandlerError, TypeError, ValueError):  # damaged: it is none of a value
        return False


def joined(one: SourceEntries, other: SourceEntries) -> SourceEntries | None:
    """The entries of two rows of one key from one source; None if they contradict each other."""
    if one.ordering != other.ordering:
        return None
    if any(one.entries[order] != entry for order, entry in other.entries.items() if order in one.entries):
        return None
    return SourceEntries(one.ordering, {**one.entries, **other.entries})


def value_of_one_source(found: SourceEntries) -> Any:
    """The value that a row of one source makes from its entries."""
    ordering = ordering_of(found.ordering)
    orders = sorted(found.entries, reverse=ordering.form.descending)[: ordering.most or None]
    return shown_of(ordering.form, values_of([found.entries[order].content or "" for order in orders]))


def values_of(contents: Sequence[str]) -> list[Any]:
    """The values of entries, from their texts: hundreds at once."""
    return decode({"L": json.loads(f"[{','.join(contents)}]")}, OUTSIDE)  # type: ignore[no-any-return]


def in_order(form: Aggregation, placed: Iterable[Placed]) -> list[Placed]:
    """Entries in the order in which they count."""
    by_source = sorted(placed, key=lambda each: each[0].partition(BEHIND)[2], reverse=form.largest_key)
    return sorted(by_source, key=lambda each: order_of(each[0]), reverse=form.descending)


def order_of(position: str) -> str:
    """The text of the value in a sort position."""
    return position.partition(BEHIND)[0]


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
    texts = [value if type(value) is str else key_text(value) for value in item if value is not None]
    text = BETWEEN.join([each.translate(SPELLED) for each in texts])
    if len(text) * 4 > SOURCE_BYTES_MAX and len(text.encode()) > SOURCE_BYTES_MAX:
        text = f"{text[: SOURCE_BYTES_MAX // 8]}{CUT}{sha256(text.encode()).hexdigest()}"
    return text


def source_components(text: str) -> list[str] | None:
    """The table and the texts of key values that ``source_text`` was made of; None for a text that was cut."""
    if CUT in text:
        return None
    return [SPELLING.sub(lambda found: chr(ord(found[1]) - ord("0")), piece) for piece in text.split(BETWEEN)]


def changed_entries(
    mark: Mark, row: RowKey, before: EntriesByName, after: EntriesByName, life: str = ""
) -> EntriesOfRow:
    """The entries below a row that are written or deleted when a source's entries there change from ``before`` to
    ``after``.

    The new entries decide the ordering. If a source only leaves, the ordering is undecided: other sources are still in
    the row, and may have come with newer code.
    """
    found = []
    for name in _names(before, after):
        orders = _changed(before.get(name), after.get(name))
        if orders or (name in before and name in after and before[name].ordering != after[name].ordering):
            ordering = after[name].ordering if name in after else ""
            where, source = partition(mark.application, mark.handler, name, row, life), source_text(mark.item)
            positions = frozenset([sort_key_of(order, source) for order in orders])
            found.append(ChangedEntries(where, name, ordering, positions, life))
    return tuple(found)


def taken(before: EntriesByName, after: EntriesByName) -> EntriesByName:
    """The first removed or changed entry of each attribute, in the order in which entries count.

    If one of the removed entries counted for the row, the first one did. For an aggregate that this code does not have,
    all of them are kept: an older process that removes an item must not hide the work that newer processes have to do.
    """
    found: dict[str, SourceEntries] = {}
    for name, old in before.items():
        new = after[name].entries if name in after else {}
        if gone := [order for order, entry in old.entries.items() if new.get(order) != entry]:
            form = AGGREGATIONS.get(old.ordering.partition(":")[0])
            first = gone if form is None else [max(gone) if form.descending else min(gone)]
            found[name] = SourceEntries(old.ordering, {order: old.entries[order] for order in first})
    return found


def all_entries(one: EntriesByName, other: EntriesByName) -> EntriesByName:
    """The entries of both, by attribute, ordered as in the second."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        found[name] = SourceEntries(other[name].ordering, {**one[name].entries, **other[name].entries})
    return found


def writes(
    mark: Mark, row: RowKey, before: EntriesByName, after: EntriesByName, life: str = ""
) -> list[PutState | DeleteState]:
    """The writes of a row's entries, in one of its lives."""
    found: list[PutState | DeleteState] = []
    for name in _names(before, after):
        where, source = partition(mark.application, mark.handler, name, row, life), source_text(mark.item)
        now = after[name].entries if name in after else {}
        for order in sorted(_changed(before.get(name), after.get(name))):
            key = StateKey(where, sort_key_of(order, source))
            found.append(PutState(key, now[order].content or "") if order in now else DeleteState(key))
    return found


def _names(before: EntriesByName, after: EntriesByName) -> list[str]:
    names = {*before, *after}
    return sorted(names) if len(names) > 1 else list(names)


def sort_key_of(order: str, source: str) -> str:
    return order + BEHIND + source


def _changed(before: SourceEntries | None, after: SourceEntries | None) -> set[str]:
    old, new = before.entries if before else {}, after.entries if after else {}
    changed = old.keys() ^ new.keys()
    if len(changed) == len(old) + len(new):  # as where one of them is empty
        return changed
    return changed | {order for order in old.keys() & new.keys() if old[order] != new[order]}


@value
class RowContribution(Value):
    """The contribution of one item to one row."""

    amounts: dict[str, Number]  # to add
    plain: dict[str, Any] | None  # attributes of a row that is replaced; None if read from the ledger
    digest: str  # of the plain attributes
    ordered: EntriesByName = NOTHING  # entries below the row, by attribute
    names: tuple[str, ...] = ()  # of the plain attributes, stored so that they can be removed
    life: str = ""  # of a row that expires: the one to which the item contributes (``ledger.lives``)


NO_ROW_CONTRIBUTION = RowContribution({}, None, "")
KEYS_KEPT_MAX = 1000
"""Keys of rows whose texts are cached: a step needs each of them several times, and items of a batch share rows."""
IN_STATE = f'["{STATE.name}",'
"""How the text of a row in the state table begins."""
BEGINS_WITH_MOMENTS, ENDS_WITHOUT_WAKE = f'[["{WAITS}",', ",null,{}]]"
"""How a text begins that has moments, and how one ends that has nothing but a moment that came."""
MOMENT_ALONE_LETTERS = len(f'[["{WAITS}","2026-03-01T10:00:00.000000Z",null,{{}}]]')
ELSEWHERE = f"\n{REFERENCE}"
"""How a text that is kept elsewhere begins on a line of its own."""
STAMP_LETTERS = 8
"""Letters of the stamp before the pending work of a step."""

Contribution = dict[RowKey, RowContribution]
"""All that one item contributes through one handler, by row."""


# A contribution as text: canonical JSON, one array a row. Equal contributions have equal text.


def stored_text(rows: Contribution, references: Collection[ItemKey] = (), moments: str = "") -> str:
    """The canonical text of a contribution; ``""`` for none. What its item refers to comes behind it, and the text of
    its ``moments`` before it.
    """
    if references or moments:
        texts = [moments] if moments else []
        texts += sorted([_stored_row(key, piece) for key, piece in rows.items()])
        texts += sorted([f"[{stored_key_text((REFERS + table, *key))},{{}}]" for table, *key in references])
        return f"[{','.join(texts)}]"
    if not rows:
        return ""
    if len(rows) == 1:
        ((key, row),) = rows.items()
        return f"[{_stored_row(key, row)}]"
    return f"[{','.join(sorted([_stored_row(key, row) for key, row in rows.items()]))}]"


def _stored_row(key: RowKey, row: RowContribution) -> str:
    if len(row.amounts) == 1:
        ((name, amount),) = row.amounts.items()
        amounts = f'{quoted(name)}:"{number_text(amount)}"'
    elif not row.amounts:
        amounts = ""
    else:
        amounts = ",".join([f'{quoted(name)}:"{number_text(amount)}"' for name, amount in sorted(row.amounts.items())])
    if not (row.digest or row.ordered or row.names or row.life):
        return f"[{stored_key_text(key)},{{{amounts}}}]"
    entries = f",{_stored_entries(row.ordered)}" if row.ordered else ""
    plain = f",[{','.join([quoted(name) for name in row.names])}]" if row.names else ""
    life = f',"{row.life}"' if row.life else ""
    return f'[{stored_key_text(key)},{{{amounts}}},"{row.digest}"{entries}{plain}{life}]'


@lru_cache(KEYS_KEPT_MAX)
def stored_key_text(key: tuple[KeyValue | None, ...]) -> str:
    return ",".join([quoted(value) if isinstance(value, str) else _tagged(value) for value in key])


def _stored_entries(ordered: EntriesByName) -> str:
    """The ordering of each attribute, and the texts that order its entries, each with the entry's digest."""
    entries = {
        name: [found.ordering, {order: entry.digest for order, entry in found.entries.items()}]
        for name, found in ordered.items()
    }
    return CANONICAL.encode(entries)


def _tagged(value: KeyValue | None) -> str:
    if value is None:
        return "null"
    return f'{{"B":"{value.hex()}"}}' if isinstance(value, bytes) else f'{{"N":"{number_text(value)}"}}'  # type: ignore[arg-type]


def stored_references(text: str) -> tuple[ItemKey, ...]:
    """The references in a contribution's text. Raises ``EngineError`` for one that is damaged."""
    if f'["{REFERS}' not in text:  # as in most: a quotation mark within a text is escaped
        return ()
    try:
        return tuple(
            (table.removeprefix(REFERS), untagged(partition), untagged(sort))
            for table, partition, sort, *_ in json.loads(text)
            if table.startswith(REFERS)
        )
    except (AttributeError, TypeError, ValueError):
        raise damaged("A ledger item") from None


def stored_rows(text: str) -> Contribution:
    """The contribution of a stored text. Raises ``EngineError`` for one that is damaged."""
    try:
        return _rows(text)
    except (AttributeError, TypeError, ValueError):
        raise damaged("A ledger item") from None


def _rows(text: str) -> Contribution:
    rows: Contribution = {}
    for table, partition, sort, amounts, *rest in json.loads(text) if text else ():
        if table[0] == REFERS or table[0] == WAITS:
            continue
        key = (table, untagged(partition), untagged(sort))
        life = rest.pop() if len(rest) > 1 and isinstance(rest[-1], str) else ""
        entries = rest[1] if len(rest) > 1 and isinstance(rest[1], dict) else None
        rows[key] = RowContribution(
            {name: decode({"N": text}) for name, text in amounts.items()},
            None,
            rest[0] if rest else "",
            _entries(entries) if entries else NOTHING,
            tuple(rest[-1]) if len(rest) > 1 and isinstance(rest[-1], list) else (),
            life,
        )
    return rows


def moments_of(text: str) -> str:
    """The moments in a contribution's text; "" for none."""
    if not text.startswith(BEGINS_WITH_MOMENTS):  # as nearly all
        return ""
    return text[1 : text.find("]") + 1]


def since_of(moments: str) -> int | None:
    """The greatest of the moments of a text that had come, epoch microseconds; None if there is none."""
    since = moments.split(",")[1] if moments else "null"
    if since == "null":
        return None
    from streamfold.routes.moments import moment_microseconds  # few handlers ask for the time

    return moment_microseconds(since.strip('"'))


def has_stored(text: str) -> bool:
    """Whether a contribution's text has something for which its ledger item is kept: a row, a reference or a wake.

    A moment that came is none: no clock is off by as long as an empty ledger item is kept.
    """
    return bool(text) and not (
        len(text) == MOMENT_ALONE_LETTERS and text.startswith(BEGINS_WITH_MOMENTS) and text.endswith(ENDS_WITHOUT_WAKE)
    )


def holds_row(text: str, row: tuple[KeyValue | None, ...]) -> bool:
    """Whether a stored contribution has a row: a search of the text, in which quotation marks are escaped."""
    return f"[{stored_key_text(row)},{{" in text


def needs_no_finishing(*texts: str) -> bool:
    """Whether no row of stored texts is recomputed or copied: quick, and False in doubt.

    A row with entries has a digest behind its amounts. A stored attribute names the table of the state. A text that is
    stored elsewhere is missing here. To parse two texts would cost 72,000 instructions more
    (``test_no_row_of_a_text_that_needs_no_finishing_is_recomputed_or_copied``).
    """
    joined = "\n".join(("", *texts))  # no text has such a letter: it would be escaped
    return '},"' not in joined and IN_STATE not in joined and ELSEWHERE not in joined


def _entries(stored: dict[str, Any]) -> EntriesByName:
    return {
        name: SourceEntries(ordering, {order: Entry(digest) for order, digest in entries.items()})
        for name, (ordering, entries) in stored.items()
    }


def untagged(value: Any) -> Any:
    """The key value of a stored text."""
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["B"]) if "B" in value else decode(value)


def pending_rows(text: str) -> Contribution:
    """The pending rows and entries of steps, from the ledger's text, which begins with the last step's stamp."""
    return stored_rows(text[STAMP_LETTERS:])


def backlink_key(application: str, handler: str, referent: ItemKey, item: ItemKey) -> StateKey:
    """The key of the backlink from a referent to an item that refers to it through a handler."""
    name = stored_key_text(item).encode(errors="surrogatepass")
    position = blake2b(name, digest_size=DIGEST_BYTES).hexdigest()
    return StateKey(backlinks_partition(application, handler, referent), position)


def backlinks(application: str, handler: str, item: ItemKey, referents: Iterable[ItemKey]) -> list[PutState]:
    text = f"[[{stored_key_text(item)},{{}}]]"
    return [PutState(backlink_key(application, handler, each, item), text) for each in referents]


def dropped_backlinks(
    application: str, handler: str, item: ItemKey, before: Iterable[ItemKey], after: Collection[ItemKey]
) -> list[DeleteState]:
    """The removals of the backlinks of what an item does not refer to any more."""
    return [DeleteState(backlink_key(application, handler, each, item)) for each in before if each not in after]


def referrer(text: str) -> ItemKey:
    """The item that a backlink's text names. Raises ``EngineError`` for a text that is damaged."""
    (item,) = stored_rows(text)
    return item
