"""The closed set of guarded writes, of which plans are made and which every engine carries out.

An engine takes a sequence of writes as one transaction, all or nothing. A refusal has the guard that refused, and the
item that was found. Values are plain Python; each engine encodes them itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.errors import redacted
from streamfold.keys.key_part import KeyValue
from streamfold.records.values import EXACT, ITEM_BYTES_MAX, Nothing, Number, Value, encode, item_bytes, value
from streamfold.settings.limits import BYTES_MAX

RowKey = tuple[str, KeyValue, KeyValue | None]
"""A row anywhere: logical table, partition key, sort key."""
ENTRIES = "entries#"
"""Begins the partitions of entries: state items that have a text and nothing else, and that are read in order."""

BYTES_PLANNED_MAX = BYTES_MAX // 2
"""Sizes are estimated from text lengths, so transactions are cut well below the limit."""
ACTION_BYTES = 512
"""Assumed size of a write that holds amounts, versions and names only."""
SURELY_FIT = BYTES_MAX // ITEM_BYTES_MAX - 2
"""Rows of any size that fit one transaction, beside a ledger item and an item for its contribution."""
ROWS_BYTES_MAX = BYTES_MAX - 2 * ITEM_BYTES_MAX
"""Size of the rows of one page, beside these two items."""


class StateKey(NamedTuple):
    """The key of an item of the state table, whose key attributes are ``pk`` and ``sk``, both text."""

    pk: str
    sk: str


@value
class PutRow(Value):
    """Replaces a row.

    An addition removes the owner from the row, so that a replacement never overwrites the amounts of others.
    """

    key: RowKey
    attributes: Mapping[str, Any]
    owner: str | None = None  # if given: refused unless the row is absent, or was put by the same owner
    size_checked: bool = False  # the row's bytes were counted when it was made: they fit an item
    amends: bool = False  # refused where there is no row: an amendment must not make an expired row again


@value
class DeleteRow(Value):
    """Removes a row whose contributor left."""

    key: RowKey
    owner: str | None = None  # if given: refused if the row was put by another owner
    amends: bool = False  # the row may have expired: a row that another owner made since is not deleted


@value
class ChangedEntries(Value):
    """Entries of one attribute of a row that are written or deleted."""

    partition: str  # the partition key of the entries
    name: str  # of the attribute
    ordering: str  # how the entries are ordered; "" if this code does not have it
    positions: frozenset[str]  # the sort keys of the changed entries
    life: str = ""  # of the entries' row: they do not belong to a row that was made since

    def joined(self, other: "ChangedEntries") -> "ChangedEntries":
        """Both, of one partition. A known ordering takes precedence over an unknown one."""
        ordering, positions = other.ordering or self.ordering, self.positions | other.positions
        return ChangedEntries(self.partition, self.name, ordering, positions, self.life)


EntriesOfRow = tuple[ChangedEntries, ...]
"""The changed entries of a row, one for each partition."""
NO_VALUES: Mapping[str, Any] = Nothing()


@value
class AddRow(Value):
    """Adds to numbers of a row and to its count of contributors; creates the row. Several additions merge into one."""

    key: RowKey
    amounts: Mapping[str, Number]
    contributors: int  # added to the row's count
    unversioned: bool = False  # refused if a guarded put wrote the row: its tombstone would hide the sum
    stamp: str = ""  # unique to the step; set if entries move, so that nothing made of older entries is written later
    changed_entries: EntriesOfRow = ()  # that the same transaction writes or deletes below the row
    contributors_min: int | None = None  # refused unless the row counts so many contributors; None: there may be no row
    values: Mapping[str, Any] = NO_VALUES  # plain attributes to set beside the amounts
    removed: tuple[str, ...] = ()  # plain attributes to remove
    requires_contributor: bool = False  # refused if the row would count none then, so that no empty row remains
    life: str | None = None  # refused unless the row has this life, "" for none; None: rows of the table have none
    born: bool = False  # makes the row, with this life; refused if there is a row
    contributors_below: int | None = None  # refused unless the row counts fewer contributors, or there is none

    def merged(self, other: "AddRow") -> "AddRow":
        """Both additions as one, of one life. Raises ``decimal.Inexact`` if a sum would need more than 38 digits."""
        amounts = dict(self.amounts)
        for name, amount in other.amounts.items():
            amounts[name] = _sum(amounts[name], amount) if name in amounts else amount
        values, removed, entries = NO_VALUES, self.removed or other.removed, self.changed_entries
        if self.values or other.values:
            values = {**self.values, **other.values}
        if removed:
            removed = tuple([name for name in (*self.removed, *other.removed) if name not in values])
        if other.changed_entries:
            entries = all_changed_entries(entries, other.changed_entries)
        return AddRow(
            self.key,
            amounts,
            self.contributors + other.contributors,
            self.unversioned or other.unversioned,
            max(self.stamp, other.stamp),
            entries,
            _sum_of_min(self.contributors_min, other.contributors_min),
            values,
            removed,
            self.requires_contributor or other.requires_contributor,
            self.life,
            self.born or other.born,
        )

    @property
    def contributors_required(self) -> int | None:
        """How many contributors the row must count before; None: there may be no row."""
        minimum = self.contributors_min
        return max(minimum or 0, 1 - self.contributors) if self.requires_contributor else minimum

    @property
    def may_empty(self) -> bool:
        """Whether the row may count no contributor afterwards, and is to be removed then."""
        return self.contributors < 0 and not self.requires_contributor

    @property
    def changes_nothing(self) -> bool:
        plain = self.values or self.removed
        return not (self.contributors or self.stamp or plain or any(self.amounts.values()))


def all_changed_entries(one: EntriesOfRow, other: EntriesOfRow) -> EntriesOfRow:
    """Both, with the entries of one partition joined."""
    if not one or not other:
        return one or other
    found = {each.partition: each for each in one}
    for each in other:
        known = found.get(each.partition)
        found[each.partition] = known.joined(each) if known else each
    return tuple(found.values())


@value
class GuardedPut(Value):
    """Writes a row with the version of its source, only over an older version.

    Refused too if the row counts contributors and has no version: then handlers add to the row.
    """

    key: RowKey
    attributes: Mapping[str, Any] | None  # None: a tombstone
    version: str
    owner: str | None = None  # if given: refused over another owner's row; versions of different items do not compare


@value
class PutPostRow(Value):
    """Writes a row that is made of two items, with the version of each; only over versions that are not newer.

    Refused over a row that has no such versions.
    """

    key: RowKey
    attributes: Mapping[str, Any] | None  # None: the row is not shown, and holds nothing
    versions: tuple[str, str]  # of the two items, in the order of the declaration
    expires: int  # epoch seconds
    fresh: bool = False  # no row is expected, which saves units and calls; an existing row still decides
    replaces: bool = False  # refused where there is no row
    removed: tuple[str, ...] = ()  # attributes that the row may have from before, which saves calls


RowWrite = PutRow | DeleteRow | AddRow | GuardedPut | PutPostRow


@value
class HandlerContribution(Value):
    """One handler's contribution in a ledger item.

    In an optimistic write the stored contribution must be absent or of an older version, equal ``expected``, and have
    neither a fence nor pending work: a step that does not read pending work would not finish it. With ``gone``, it must
    not name deltas of its last step either, except those that the process has seen to be gone.
    """

    handler: str
    version: str
    contribution: str
    expected: str  # the stored contribution that the effects were computed from
    pending: str | None = None  # pending rows and entries, to be finished after the commit; None: none
    deltas: str | None = None  # names of the deltas of this step; "": it names none any more; None: as before
    gone: str | None = None  # names that may be stored, "" for none; None: not asked
    before: str | None = None  # with names: what the step changes (``ledger.deltas``); None: it cannot be taken back


@value
class LedgerWrite(Value):
    """Advances the ledger item of one source item: the guard of all effects of that item's handlers."""

    key: StateKey
    contributions: tuple[HandlerContribution, ...]
    revision: int | None  # that was read and must still be stored, 0: no item; None: optimistic, ``parts`` are compared
    live: int  # added to the number of handlers that have something stored
    expires: bool  # sets the time to live; otherwise removes it
    live_expected: int | None = None  # if given: the stored number of such handlers
    fence: bool = False  # marks ``parts`` as repaired, so that optimistic writes planned before are refused


class PendingNote(NamedTuple):
    """Pending rows and entries of one handler's steps, to be finished after the commit."""

    key: StateKey  # of the ledger item
    handler: str
    text: str  # as the ledger item holds it


class Claim(NamedTuple):
    """Marks a change as done by a handler. Refused if the mark exists; the mark expires."""

    key: StateKey
    rows: str = ""  # names the rows that the change puts or deletes, as ``row_names`` does; "": none, or not known
    deltas: str = ""  # names the deltas of the change, as a ledger item does


@value
class PutState(Value):
    """Writes an item with a text: a contribution too large for its ledger item, guarded by that one; or a note."""

    key: StateKey
    text: str


@value
class DeleteState(Value):
    """Removes the item that ``PutState`` wrote."""

    key: StateKey
    expected: str | None = None  # if given: refused unless the item holds this text


class SwapText(NamedTuple):
    """Writes a state item with a text. Refused unless the item holds the text that was read."""

    key: StateKey
    text: str
    expected: str | None  # None: there was no item


class PutStoredCopy(NamedTuple):
    """Writes a state item with a text and its version. Refused over a newer version."""

    key: StateKey
    text: str
    version: str
    expires: int | None  # epoch seconds; None: never


class RecomputedRow(NamedTuple):
    """Writes the values that a row makes from its entries."""

    key: RowKey
    stamp: str  # of the row when its entries were read; refused if entries changed since
    values: Mapping[str, Any]
    removed: tuple[str, ...] = ()


class CorrectRow(NamedTuple):
    """Sets, adds to and removes attributes of a row, which is made where there is none.

    Refused if one of the attributes that were read is another.
    """

    key: RowKey
    expected: Mapping[str, Any]  # attributes as they were read
    absent: tuple[str, ...] = ()  # attributes that were not there
    values: Mapping[str, Any] = NO_VALUES
    amounts: Mapping[str, Number] = NO_VALUES  # added; where nothing is stored, set
    removed: tuple[str, ...] = ()


class SwapMarker(NamedTuple):
    """Writes the marker of a table. Refused unless the marker has the text that was read."""

    key: RowKey
    text: str
    expected: str | None  # None: there was no item


class SwapState(NamedTuple):
    """Writes a state item with the next revision."""

    key: StateKey
    attributes: Mapping[str, Any]
    revision: int  # that must be stored; 0: no item
    expires: bool = True  # sets the time to live


class CounterWrite:
    """Writes the state item of a counter. Refused unless the counter has the number that was read.

    The item keeps its ids in ``ids``, and its references in ``refs``; each is absent when there are none. One write
    adds or removes ids, never both.
    """

    __slots__ = ("added", "expires", "key", "number", "raised", "references", "removed")

    def __init__(
        self,
        key: StateKey,
        number: int,
        raised: int | None = None,
        *,
        added: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
        references: str | None = None,
        expires: bool | None = None,
    ) -> None:
        if added and removed:
            raise ValueError("A write of a counter adds ids or removes some: DynamoDB takes no update with both.")
        self.key: StateKey = key
        self.number: int = number  # that must be stored
        self.raised: int | None = raised  # the new number; None: as it is
        self.added: frozenset[str] = added  # ids
        self.removed: frozenset[str] = removed
        self.references: str | None = references  # as text, in place of the stored ones; None: as they are
        self.expires: bool | None = expires  # True: sets the time to live; False: removes it; None: as it is


class UpdateSource(NamedTuple):
    """Writes attributes of a source item. Refused if the item is gone, or one of these attributes changed."""

    key: RowKey
    expected: Mapping[str, Any]  # the attributes as they were read
    absent: tuple[str, ...]  # attributes that were not there
    values: Mapping[str, Any]
    removed: tuple[str, ...] = ()


class AbsentSource(NamedTuple):
    """Writes nothing. Refused if the source item, or the row, exists."""

    key: RowKey


class DeleteSource(NamedTuple):
    """Removes a source item. Refused if the item changed since it was read.

    ``version`` and ``at`` go into the stream record of the removal, where the store itself makes that record.
    """

    key: RowKey
    image: Mapping[str, Any]  # the item as it was read, as DynamoDB attribute values
    version: str  # of the change that the removal follows from
    at: float = 0  # epoch seconds of that change


class InsertRow(NamedTuple):
    """Inserts a row. Refused if there is one."""

    key: RowKey
    attributes: Mapping[str, Any]


class InsertItem(NamedTuple):
    """Inserts a state item with these attributes. Refused if there is one."""

    key: StateKey
    attributes: Mapping[str, Any]


class RemoveEmpty(NamedTuple):
    """Removes a row that counts no contributor any more."""

    key: RowKey


class ClearNotes(NamedTuple):
    """Removes pending work of steps from a ledger item. Refused unless the item has exactly this work."""

    key: StateKey
    notes: Mapping[str, str]  # by the attribute that holds it

    @classmethod
    def of(cls, key: StateKey, texts: Mapping[str, str]) -> "ClearNotes":
        """The write for finished work of some handlers, by their names."""
        return cls(key, {handler + ".u": text for handler, text in texts.items()})


class CountUp(NamedTuple):
    """Raises the number ``n`` of a state item by one, and makes the item where there is none."""

    key: StateKey
    start: int  # behind which a new item begins
    expires: bool  # sets the time to live, which a new item always gets
    there: bool  # the item is expected to be there; refused if that is wrong and decides on the time to live


class NoteVersion(NamedTuple):
    """Notes the version of a source item that a rehearsal puts. Refused over the same or a newer one."""

    key: StateKey
    version: str


SourceWrite = AbsentSource | DeleteSource | UpdateSource
Guard = LedgerWrite | Claim
StateWrite = Guard | PutState | DeleteState | SwapText | PutStoredCopy | SwapState | CounterWrite | InsertItem
GuardedWrite = StateWrite | RowWrite | RecomputedRow | CorrectRow | SwapMarker | SourceWrite
OtherWrite = InsertRow | RemoveEmpty | ClearNotes | CountUp | NoteVersion
"""Writes that no plan holds: each has a call of its own, but for ``NoteVersion``."""


class Reason(NamedTuple):
    """Why one write of a transaction was refused."""

    code: str
    item: Mapping[str, Any] | None = None  # the item that was found; None if there was none, or none was returned
    message: str = ""
    limits: str = ""  # of a throttled write: the table or index, and the limit, as DynamoDB names them


CONDITION = "ConditionalCheckFailed"
CONFLICT = ("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded")
THROTTLED = frozenset(CONFLICT[1:])
VALIDATION = "ValidationError"
"""Codes of a cancelled transaction (API Reference, TransactionCanceledException). All but the first two are
permanent."""


class Refused(NamedTuple):
    """A transaction that was refused, and changed nothing."""

    reasons: tuple[Reason | None, ...]  # of each write, in order; None for a write that was not refused


def exceeded(reason: Reason, table: str) -> str:
    """The limit that a throttled write exceeded, with its table. ``table`` is where DynamoDB names none, as in a
    cancelled transaction, whose message may then say more: it may have item content, as each message of a store.
    """
    message = f", {redacted(reason.message.rstrip('.'))}" if reason.message else ""
    return reason.limits or f"{table}: {reason.code}{message}"


def limits_of(refused: Refused, tables: Sequence[str]) -> list[str]:
    """The limits that the throttled writes of a transaction exceeded. ``tables`` are those of its writes, in order."""
    refusals = zip(refused.reasons, tables, strict=True)
    return [exceeded(reason, table) for reason, table in refusals if reason is not None and reason.code in THROTTLED]


def _sum_of_min(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _sum(one: Number, other: Number) -> Number:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return EXACT.add(one, other)


def estimated_bytes(write: GuardedWrite) -> int:
    """About the size of a write, from the lengths of its texts: quick, and more rather than less."""
    if type(write) is AddRow:
        return ACTION_BYTES + (len(repr(write.values)) * 2 if write.values else 0)
    if type(write) is LedgerWrite:
        letters, expected = 0, write.revision is None  # only then the expected contributions are sent
        for each in write.contributions:
            letters += len(each.contribution) + len(each.expected) * expected
        return ACTION_BYTES + letters * 2
    if type(write) is PutState or type(write) is SwapText:
        return len(write.text) * 2
    if type(write) is PutStoredCopy:
        return ACTION_BYTES + len(write.text) * 2
    if type(write) is CounterWrite:
        return ACTION_BYTES + (sum(map(len, write.added | write.removed)) + len(write.references or "")) * 2
    if isinstance(write, (PutRow, GuardedPut, PutPostRow)) and write.attributes:
        return ACTION_BYTES + len(repr(write.attributes)) * 2
    if type(write) is DeleteSource:
        return ACTION_BYTES + item_bytes(write.image)
    return ACTION_BYTES


def measured_bytes(write: GuardedWrite) -> int:
    """The size of the item that a write stores, as DynamoDB counts it; slightly more for small items.

    Raises ``HandlerError`` for values that could not be stored.
    """
    if isinstance(write, DeleteSource):
        return ACTION_BYTES + item_bytes(write.image)
    return ACTION_BYTES + item_bytes(encode(_stored(write))["M"])


def _stored(write: GuardedWrite) -> Mapping[str, Any]:
    if isinstance(write, LedgerWrite):
        return {each.handler: [each.contribution, each.expected, each.version] for each in write.contributions}
    if isinstance(write, PutState | SwapText | PutStoredCopy):
        return {"s": write.text}
    if isinstance(write, CounterWrite):
        return {"ids": [*write.added, *write.removed], "refs": write.references or ""}
    if isinstance(write, AddRow):
        return write.values
    return (write.attributes or {}) if isinstance(write, (PutRow, GuardedPut, PutPostRow)) else {}


def too_large(writes: Sequence[GuardedWrite]) -> bool:
    """Whether writes are together larger than one transaction may be (API Reference, TransactWriteItems)."""
    if len(writes) <= SURELY_FIT or sum(map(estimated_bytes, writes)) <= BYTES_PLANNED_MAX:
        return False
    return sum(map(measured_bytes, writes)) > BYTES_MAX


def fitting(rows: Sequence[GuardedWrite], rows_max: int) -> int:
    """The number of first rows that one transaction takes beside a ledger item and its contribution; one at least."""
    count, size, taken = 0, 0, 0
    for row in rows[:rows_max]:
        size += measured_bytes(row) if len(rows) > SURELY_FIT else 0
        taken += actions_of(row)
        if count and (size > ROWS_BYTES_MAX or taken > rows_max):
            break
        count += 1
    return count


def actions_of(row: GuardedWrite) -> int:
    return 1 + (sum(len(each.positions) for each in row.changed_entries) if isinstance(row, AddRow) else 0)
