"""The closed set of guarded writes that a plan is made of and every engine carries out.

An engine takes a sequence of them as one transaction: all or nothing, and a refusal says which guard refused and what
was found. Values are plain Python; each engine brings them to its own form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.keys.key import KeyValue
from streamfold.records.values import EXACT, Number

RowKey = tuple[str, KeyValue, KeyValue | None]
"""A row anywhere: logical table, partition key, sort key."""


class StateKey(NamedTuple):
    """The key of an item of the state table, whose key attributes are ``pk`` and ``sk``, both text."""

    pk: str
    sk: str


@dataclass(frozen=True, slots=True)
class PutRow:
    """Writes a whole row. With an ``owner``: only where there is no row, or one that was put by the same owner.

    An addition takes the owner's mark away: what somebody else added is never overwritten by a whole row.
    """

    key: RowKey
    attributes: Mapping[str, Any]
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteRow:
    """Removes a row whose contributor left. With an ``owner``: only a row that was put by that owner."""

    key: RowKey
    owner: str | None = None


class Moved(NamedTuple):
    """Entries of one attribute of a row that come or go: their partition, their places in it, and their ordering."""

    partition: str
    name: str
    ordering: str
    places: frozenset[str]

    def joined(self, other: "Moved") -> "Moved":
        """Both, which are of one partition; an ordering that is known goes before one that is not."""
        return Moved(self.partition, self.name, other.ordering or self.ordering, self.places | other.places)


NO_VALUES: Mapping[str, Any] = MappingProxyType({})


class AddRow(NamedTuple):
    """Adds to numbers of a row, and to its count of contributors; creates the row. Several merge into one.

    ``moved`` are entries below the row that the same transaction writes or deletes; ``stamp``, unique to the step, is
    then set on the row, so that what was made of the entries before is not written after it.

    ``unversioned``: only to a row that no guarded put has written. A sum behind a tombstone would be hidden, and gone
    with it; the next put would overwrite it.

    ``least``: only to a row that counts so many contributors. Those who take back or amend what they added must be
    among them: a row that somebody removed is not made again of differences. None: to any row, and to none.

    ``values`` and ``removed`` are plain attributes that are set and removed besides, of a row that others add to.
    """

    key: RowKey
    amounts: Mapping[str, Number]
    contributors: int
    unversioned: bool = False
    stamp: str = ""
    moved: tuple[Moved, ...] = ()
    least: int | None = None
    values: Mapping[str, Any] = NO_VALUES
    removed: tuple[str, ...] = ()

    def merged(self, other: "AddRow") -> "AddRow":
        """Both additions as one. Raises ``decimal.Inexact`` where the sum would need more than 38 digits."""
        amounts = dict(self.amounts)
        for name, amount in other.amounts.items():
            amounts[name] = _sum(amounts[name], amount) if name in amounts else amount
        values = {**self.values, **other.values} if self.values or other.values else NO_VALUES
        return AddRow(
            self.key,
            amounts,
            self.contributors + other.contributors,
            self.unversioned or other.unversioned,
            max(self.stamp, other.stamp),
            all_moved(self.moved, other.moved),
            _least(self.least, other.least),
            values,
            tuple(name for name in (*self.removed, *other.removed) if name not in values),
        )

    @property
    def changes_nothing(self) -> bool:
        plain = self.values or self.removed
        return not (self.contributors or self.stamp or plain or any(self.amounts.values()))


def all_moved(one: tuple[Moved, ...], other: tuple[Moved, ...]) -> tuple[Moved, ...]:
    """Both, those of one partition as one."""
    if not one or not other:
        return one or other
    found = {each.partition: each for each in one}
    for each in other:
        known = found.get(each.partition)
        found[each.partition] = known.joined(each) if known else each
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class GuardedPut:
    """Writes a row with its source version, only over an older version. Without attributes: a tombstone.

    A row that counts contributors without a version is one that is added to, and is refused too.
    With an ``owner``: only over a row of the same owner, because versions of different items do not compare.
    """

    key: RowKey
    attributes: Mapping[str, Any] | None
    version: str
    owner: str | None = None


RowWrite = PutRow | DeleteRow | AddRow | GuardedPut


class LedgerPart(NamedTuple):
    """One handler's part of a ledger item: its new version and contribution, and what it is expected to hold.

    ``expected`` is the stored contribution that the effects were computed from, compared where the whole
    ``LedgerWrite`` has no ``revision``: the part must then be absent or of an older version, hold that
    contribution, bear no fence, and nothing that it left may be unfinished: who does not read it would not finish it.

    ``left``: the rows and entries that it held and holds no more, as text; None where it leaves none. Whoever finishes
    these rows then takes the text away (``LeftBehind``); until that is done no step may overwrite it unread.
    """

    handler: str
    version: str
    contribution: str
    expected: str
    left: str | None = None


class LedgerWrite(NamedTuple):
    """Moves the ledger item of one source item on; the guard of all effects of that item's handlers.

    ``revision``: None for the optimistic form (each part's ``expected`` is compared); else the item must still have the
    revision that was read, 0 meaning that there is none. ``live`` changes the number of handlers with something stored.
    ``expires``: the time to live is set, on the condition that ``live_expected`` (when given) is what is stored.
    ``fence``: the parts are marked as repaired, so that every optimistic write that was planned before is refused; the
    next write of a part takes the mark away.
    """

    key: StateKey
    parts: tuple[LedgerPart, ...]
    revision: int | None
    live: int
    expires: bool
    live_expected: int | None = None
    fence: bool = False


class LeftBehind(NamedTuple):
    """What one handler's steps through a ledger item left behind, as text: known to be finished."""

    key: StateKey
    handler: str
    text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Marks an event as done by a handler; refused when it is. Expires."""

    key: StateKey


@dataclass(frozen=True, slots=True)
class PutState:
    """Writes a contribution too large for its ledger item into an item of its own, guarded by that ledger item."""

    key: StateKey
    contribution: str


@dataclass(frozen=True, slots=True)
class DeleteState:
    """Removes such an item."""

    key: StateKey


@dataclass(frozen=True, slots=True)
class RecomputedRow:
    """Writes what a row makes of its entries, only while the row has the stamp under which they were read."""

    key: RowKey
    stamp: str
    values: Mapping[str, Any]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SwapState:
    """Writes a state item with revision + 1 where it has this revision (0: is not there), and lets it expire."""

    key: StateKey
    attributes: Mapping[str, Any]
    revision: int


@dataclass(frozen=True, slots=True)
class UpdateSource:
    """Writes attributes of a source item that is there, only while it has what was read of it.

    ``expected`` and ``absent`` are what was read, of the attributes that are written or removed. A store that makes the
    stream record itself goes by its own version of the item.
    """

    key: RowKey
    expected: Mapping[str, Any]
    absent: tuple[str, ...]
    values: Mapping[str, Any]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AbsentSource:
    """Writes nothing, and refuses where there is such a source item."""

    key: RowKey


@dataclass(frozen=True, slots=True)
class DeleteSource:
    """Removes a source item as it was read, none that changed since.

    ``image`` holds its attribute values. ``version`` and ``at`` (epoch seconds) are those of the change that it follows
    from: a store that makes the stream record of the removal itself goes by them.
    """

    key: RowKey
    image: Mapping[str, Any]
    version: str
    at: float = 0


SourceWrite = AbsentSource | DeleteSource | UpdateSource
Guard = LedgerWrite | Claim
StateWrite = Guard | PutState | DeleteState | SwapState
GuardedWrite = StateWrite | RowWrite | RecomputedRow | SourceWrite


class Reason(NamedTuple):
    """Why one write of a refused transaction was refused; ``item`` is what was found, None when there was nothing."""

    code: str
    item: Mapping[str, Any] | None = None
    message: str = ""


CONDITION = "ConditionalCheckFailed"
CONFLICT = ("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded")
THROTTLED = frozenset(CONFLICT[1:])
VALIDATION = "ValidationError"
"""Codes of a cancelled transaction (API Reference, TransactionCanceledException). All but the first two are
permanent."""


class Refused(NamedTuple):
    """A transaction that changed nothing: one reason per write, in order, None for a write that did not refuse."""

    reasons: tuple[Reason | None, ...]


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _sum(one: Number, other: Number) -> Number:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return EXACT.add(one, other)
