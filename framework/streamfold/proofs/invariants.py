"""Invariants of a store after every call, checked from outside: no code of the planner is used.

1. A derived row is the sum, or the content, of the contributions to it in ledger items.
2. Versions of ledger items and guarded rows never fall, but for that of a step which is taken back, because a row
   refuses the delta that the step put; the revision of a state item grows by one per write.
3. No guarded row is deleted: a removed one remains as a tombstone.
4. A ledger item has a time to live only while it holds no contribution.
5. The entries below a row are those that ledger items name.
6. Each reference in a ledger item, or in the counter's item of a search, has its backlink, which is deleted only with
   a step of that item.
7. A row without contributions is named by the note of a ledger item, until it is removed.
8. No transaction holds more than 100 writes, or two of one item (``MemoryEngine`` refuses both).
9. A ledger item names a wake exactly if it is there.
10. A record is acknowledged only after the deltas of its item's last steps, and of its claims, are in the rows.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.app import App
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import Entries
from streamfold.keys.table import CONTRIBUTORS, OWNER, VERSION
from streamfold.ledger.contribution import (
    REFERS,
    STAMP_LETTERS,
    WAITS,
    backlink_key,
    has_stored,
    moments_of,
    referrer,
    stored_references,
)
from streamfold.ledger.deltas import Delta, DeltaNames, delta_key, is_delta, names_in
from streamfold.ledger.state_keys import LedgerSource, claim_key, is_wake, source_of
from streamfold.ledger.wakes import Waits, wake_key
from streamfold.records.change import item_name
from streamfold.records.values import WIDE, decode_number, digest
from streamfold.writes.guarded import ENTRIES, Claim, GuardedWrite, LedgerWrite, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.records.change import Change, ItemKey

TEXTS_KEPT_MAX = 4096
BACKLINKS = "refs#"
"""Begins the partitions of backlinks."""
COUNTERS = "document#"
"""Begins the partitions of counters of searches, whose third name is the search."""
ENTRIES_MAX = 1000
"""More than any history puts below a row."""
EntryKey = tuple[str, str]
"""The partition of entries below a row, and the text that orders one of them."""


class ContributedRow(NamedTuple):
    """The contribution to one row, in a text of the ledger."""

    row: RowKey
    amounts: Mapping[str, str]
    digest: str  # of its plain attributes
    held: Mapping[str, tuple[Any, list[str]]]  # its entries, by attribute
    life: str  # begins with ~, in the names of its entries


@lru_cache(TEXTS_KEPT_MAX)
def contributed_rows(text: str) -> tuple[ContributedRow, ...]:
    """The rows of a text of the ledger, with the contribution to each."""
    found = []  # cached above, because the checks of each call read the same texts
    for table, partition, sort, amounts, *rest in json.loads(text):
        if table.startswith((REFERS, WAITS)):
            continue
        row = (table, _key_value(partition), _key_value(sort))
        held = rest[1] if len(rest) > 1 and isinstance(rest[1], dict) else {}
        life = f"~{rest[-1]}" if len(rest) > 1 and isinstance(rest[-1], str) else ""
        found.append(ContributedRow(row, amounts, rest[0] if rest else "", held, life))
    return tuple(found)


def _key_value(value: Any) -> Any:
    """A key value in a stored contribution."""
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["B"]) if "B" in value else decode_number(value["N"])


class EntryInvariants:
    """Counts the entries that ledger items name, and compares the partitions that a call touched."""

    def __init__(self, application: str, engine: MemoryEngine) -> None:
        self.application = application
        self.engine = engine
        self.named: dict[StateKey, list[EntryKey]] = {}
        self.expected: dict[str, Counter[str]] = defaultdict(Counter)  # by partition

    def wrong(self, touched: Iterable[Any], texts: Mapping[StateKey, Mapping[str, str]]) -> str | None:
        """The first difference below the touched rows. ``texts`` are the contributions of touched ledger items."""
        concerned = {key.pk for key in touched if isinstance(key, StateKey) and key.pk.startswith(ENTRIES)}
        for key, by_handler in texts.items():
            before, after = self.named.pop(key, []), list(self._entries(by_handler))
            for entries, factor in ((before, -1), (after, 1)):
                for partition, order in entries:
                    self.expected[partition][order] += factor
            self.named[key] = after
            concerned |= {partition for partition, _ in (*before, *after)}
        for partition in sorted(concerned):
            stored = self.engine.read_entries(Entries(partition, ENTRIES_MAX))
            found = Counter(entry.partition("#")[0] for entry, _ in stored)
            named = Counter({order: n for order, n in self.expected[partition].items() if n})
            if found != named:
                return f"{partition} holds {dict(found)}, but the ledger items name {dict(named)}"
        return None

    def _entries(self, by_handler: Mapping[str, str]) -> Iterator[EntryKey]:
        for handler, text in by_handler.items():
            for given in contributed_rows(text):
                for name, (_, entries) in given.held.items():
                    partition = self._partition(handler, name, given.row, given.life)
                    yield from ((partition, order) for order in entries)

    def _partition(self, handler: str, name: str, row: RowKey, life: str) -> str:
        escaped = name.replace("%", "%25").replace("#", "%23")
        return f"{ENTRIES}{self.application}#{handler}#{escaped}#{row[0]}{life}#{item_name(row)}"


class BacklinkInvariants:
    """Holds the references of ledger items and counters against backlinks."""

    def __init__(self, application: str, engine: MemoryEngine) -> None:
        self.application = application
        self.engine = engine
        self.of: dict[StateKey, set[StateKey]] = {}  # the backlinks of each ledger item or counter
        self.needed: Counter[StateKey] = Counter()
        self.ledgers: dict[StateKey, ItemKey] = {}  # of each backlink that was seen, the item that it names

    def wrong(self, touched: Collection[Any], texts: Mapping[StateKey, Mapping[str, str]]) -> str | None:
        """What is wrong with backlinks; ``texts`` are those of touched ledger items and counters, by handler."""
        concerned = {key for key in touched if isinstance(key, StateKey) and key.pk.startswith(BACKLINKS)}
        advanced = {source.item for key in texts if (source := _owner(key)) is not None}
        for key, by_handler in texts.items():
            source = _owner(key)
            before = self.of.get(key, set())
            after = (
                set()
                if source is None
                else {
                    backlink_key(self.application, handler, referent, source.item)
                    for handler, text in by_handler.items()
                    for referent in stored_references(text)
                }
            )
            self.needed.subtract(before)
            self.needed.update(after)
            self.of[key] = after
            concerned |= after
        for key in concerned:
            held = self.engine.state.get(key)
            if self.needed[key] > 0 and held is None:
                return f"a ledger item or counter refers to {key.pk}, and there is no backlink to it"
            if held is None and self.ledgers.pop(key, None) not in (None, *advanced):
                return f"a backlink of {key.pk} was deleted without a step of its ledger item or counter"
            if held is not None:
                self.ledgers[key] = referrer(held["s"])
        return None


class WakeInvariants:
    """Holds the wakes that ledger items and counters name against those that are there."""

    def __init__(self, application: str, engine: MemoryEngine) -> None:
        self.application = application
        self.engine = engine
        self.of: dict[StateKey, set[StateKey]] = {}  # that each ledger item or counter names
        self.named: Counter[StateKey] = Counter()

    def wrong(self, touched: Collection[Any], texts: Mapping[StateKey, Mapping[str, str]]) -> str | None:
        """What is wrong with wakes; ``texts`` are those of touched ledger items and counters, by handler."""
        concerned = {key for key in touched if isinstance(key, StateKey) and is_wake(key)}
        is_new = any(moments_of(text) for own in texts.values() for text in own.values())
        if not (concerned or self.of or is_new):
            return None  # few applications have a handler that asks for the time
        for key, by_handler in texts.items():
            source = _owner(key)
            waits = {handler: Waits.of(text).wake for handler, text in by_handler.items()} if source else {}
            before = self.of.pop(key, set())
            after = {
                wake_key(self.application, handler, source.item, wake)
                for handler, wake in waits.items()
                if source is not None and wake is not None
            }
            self.named.subtract(before)
            self.named.update(after)
            if after:
                self.of[key] = after
            concerned |= before | after
        for key in concerned:
            if (self.named[key] > 0) != (key in self.engine.state):
                which = "is not there" if self.named[key] > 0 else "is named by no ledger item or counter"
                return f"wake {key.sk} of {key.pk} {which}"
        return None


ContributedAmounts = dict[str, Decimal | int]


class InvariantBroken(AssertionError):  # noqa: N818 - named by its cause
    """Raised when an invariant does not hold after a call."""


class Invariants:
    """Compares the items that a call touched with those from before the call."""

    def __init__(self, app: App, engine: MemoryEngine) -> None:
        self.app = app
        self.engine = engine
        self.engine.touched = set()
        self.state: dict[StateKey, dict[str, Any]] = {}
        self.contributed: dict[StateKey, list[ContributedRow]] = {}
        self.expected: dict[RowKey, ContributedAmounts] = defaultdict(lambda: defaultdict(int))
        self.noted: dict[StateKey, set[RowKey]] = {}  # rows that may be empty, by ledger item
        self.notes: Counter[RowKey] = Counter()  # how many ledger items note a row
        self.digests: dict[RowKey, str] = {}
        self.versions: dict[RowKey, str] = {}
        self.entries = EntryInvariants(app.name, engine)
        self.backlinks = BacklinkInvariants(app.name, engine)
        self.wakes = WakeInvariants(app.name, engine)
        self.deltas: dict[StateKey, Delta] = {}  # that are pending
        self.waiting: dict[RowKey, ContributedAmounts] = defaultdict(lambda: defaultdict(int))  # what they add

    def check(self) -> None:
        """Raises ``InvariantBroken`` if a touched item breaks an invariant."""
        touched = self.engine.touched
        if not touched:  # as by every read
            return
        self.engine.touched = set()
        rows = {key for key in touched if not isinstance(key, StateKey)}
        # Deltas last: a step is taken back for what its delta was before this call.
        for key in sorted((key for key in touched if isinstance(key, StateKey)), key=is_delta):
            rows |= self._check_state(key)
        for row in rows:
            self._check_row(row)
        ledgers = {_ledger_of(key) for key in touched if isinstance(key, StateKey)}
        found = {key: self.engine.state.get(key) for key in ledgers}
        texts = {key: dict(self._texts(key, item)) for key, item in found.items() if item}
        wrong = self.entries.wrong(touched, texts)
        _require(wrong is None, wrong or "")
        texts = {key: own for key, own in texts.items() if _is_ledger(key)}
        for key, item in found.items():
            if key.pk.startswith(COUNTERS):
                texts[key] = {key.pk.split("#", 3)[2]: (item or {}).get("refs", "")}
            elif item is None and _is_ledger(key):
                texts[key] = {}
        wrong = self.wakes.wrong(touched, texts)
        _require(wrong is None, wrong or "")
        wrong = self.backlinks.wrong(touched, texts)
        _require(wrong is None, wrong or "")

    def _check_state(self, key: StateKey) -> set[RowKey]:
        """Checks one state item, and returns the rows that it names now or named before."""
        now, before = self.engine.state.get(key), self.state.get(key)
        if is_delta(key):
            return self._pending(key, now)
        if key.pk.startswith("part#"):
            owner = _ledger_of(key)
            return self._check_state(owner) if owner in self.engine.state else set()
        if not key.pk.startswith(("ledger#", "manifest#")):
            return set()
        if before is not None and before is not now:
            _require(now is not None, f"state item {key} was deleted")
            assert now is not None
            is_next = now["r"] == before["r"] + 1 or (now["r"] == before["r"] and _bare(now) == _bare(before))
            _require(is_next, f"the revision of {key} went from {before['r']} to {now['r']}")
            for name, value in before.items():
                fell = name.endswith(".v") and now[name] < value
                holds = not fell or self._is_taken_back(name.removesuffix(".v"), before, now)
                _require(holds, f"version {name} of {key} fell from {value} to {now.get(name)}")
        if now is not None:
            self.state[key] = now
            stored = [name for name, text in now.items() if name.endswith(".s") and has_stored(text)]
            _require(not (stored and "ttl" in now), f"{key} will expire, but it holds {', '.join(stored)}")
        return self._contributions(key, now or {}) | self._notes(key, now or {}) if _is_ledger(key) else set()

    def _is_taken_back(self, handler: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        """Whether a handler's step, part of which a row refused, went back to the version that is kept for that."""
        names = names_in(before.get(f"{handler}.p", ""))
        deltas = [self.deltas.get(delta_key(self.app.name, name)) for name in names]
        refused = any(
            rows & each.rows for each, rows in zip(deltas, names.values(), strict=True) if each and each.refused
        )
        return refused and now[f"{handler}.v"] == _version_before(before, handler) and not now.get(f"{handler}.p")

    def _pending(self, key: StateKey, now: Mapping[str, Any] | None) -> set[RowKey]:
        """Notes what a delta adds: a row and what waits for it are the sum of the ledger. Returns its rows."""
        touched = set()
        for delta, factor in ((self.deltas.pop(key, None), -1), (Delta.of(now["s"]) if now else None, 1)):
            for each in delta.additions if delta else ():
                _count(self.waiting[each.key], each.contributors, each.amounts, factor)
                touched.add(each.key)
            if delta and factor > 0:
                self.deltas[key] = delta
        return touched

    def _contributions(self, key: StateKey, item: Mapping[str, Any]) -> set[RowKey]:
        """Replaces the earlier contributions of an item by the present ones; returns the rows of both."""
        touched = set()
        for row, amounts, *_ in self.contributed.pop(key, []):
            self._count(row, amounts, -1)
            touched.add(row)
        self.contributed[key] = [row for _, text in self._texts(key, item) for row in contributed_rows(text)]
        for row, amounts, text, *_ in self.contributed[key]:
            self._count(row, amounts, 1)
            touched.add(row)
            if text:
                self.digests[row] = text
        return touched

    def _notes(self, key: StateKey, item: Mapping[str, Any]) -> set[RowKey]:
        """Replaces the notes of an item; returns the rows that it noted before."""
        before = self.noted.pop(key, set())
        texts = [text[STAMP_LETTERS:] for name, text in item.items() if name.endswith(".u")]
        self.noted[key] = {row for text in texts for row, *_ in contributed_rows(text)}
        self.notes.subtract(before)
        self.notes.update(self.noted[key])
        return before

    def _texts(self, key: StateKey, item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The contributions of a ledger item, by handler, also large ones in items of their own."""
        for name, text in item.items():
            if _is_ledger(key) and name.endswith(".s") and text:
                large = StateKey(key.pk.replace("ledger#", "part#", 1), f"{key.sk}#{name[:-2]}")
                yield name[:-2], self.engine.state[large]["s"] if text.startswith("@") else text

    def _count(self, row: RowKey, amounts: Mapping[str, str], factor: int) -> None:
        _count(self.expected[row], 1, amounts, factor)

    def _check_row(self, key: RowKey) -> None:
        row = self.engine.rows.get(key)
        if key in self.versions:
            _require(row is not None and VERSION in row, f"guarded row {key[1:]} was deleted")
        if row is not None and VERSION in row:
            version = row[VERSION]["S"]
            _require(version >= self.versions.get(key, ""), f"guarded row {key[1:]} went back to {version}")
            self.versions[key] = version
        elif key in self.expected:
            self._check_sums(key, row or {})
            empty = row is not None and row.get(CONTRIBUTORS) == {"N": "0"}
            _require(not empty or self.notes[key] > 0, f"row {key[1:]} is empty, and no ledger item says so")

    def _check_sums(self, key: RowKey, row: Mapping[str, Any]) -> None:
        expected, waiting = self.expected[key], self.waiting.get(key, {})
        is_put = key in self.digests and expected[CONTRIBUTORS] == 1
        for name, amount in expected.items():
            found = decode_number(row[name]["N"]) if name in row and "N" in row[name] else 0
            if found != WIDE.subtract(amount, waiting.get(name, 0)) and not (is_put and name != CONTRIBUTORS):
                raise InvariantBroken(
                    f"row {key[1:]} has {name}={found}, but the ledger items contribute {amount} to it, of which "
                    f"{waiting.get(name, 0)} waits"
                )
        if is_put:
            names = self.engine.tables[key[0]].attributes
            own = {name: value for name, value in row.items() if name not in (*names, CONTRIBUTORS, OWNER)}
            _require(digest(own) == self.digests[key], f"row {key[1:]} is not the one that its ledger item describes")


class NamedDeltas(NamedTuple):
    """The deltas that a step or a claim was committed with."""

    names: DeltaNames
    version: str  # of the step; "" for a claim
    depth: int  # of the invocation that committed it
    number: int  # of the transaction


class AcknowledgedDeltas:
    """Finds records that are acknowledged while what they add waits in deltas.

    It goes by what was committed, not by what ledger items and claims name.
    """

    def __init__(self, application: str, engine: MemoryEngine) -> None:
        self.application = application
        self.engine = engine
        self.number = 0  # of transactions
        self._named: dict[object, NamedDeltas] = {}  # by item and handler, or by claim

    def commit(self, writes: Iterable[GuardedWrite], depth: int) -> None:
        """Takes a transaction that was committed."""
        self.number += 1
        for write in writes:
            if isinstance(write, Claim):
                self._named[write.key] = NamedDeltas(names_in(write.deltas), "", depth, self.number)
            elif isinstance(write, LedgerWrite) and (source := source_of(write.key)):
                for each in write.contributions:
                    if write.fence:  # of a visit: another item's record may be its cause, and waits for it
                        self._named.pop((source.item, each.handler), None)
                    elif each.deltas is not None:
                        named = NamedDeltas(names_in(each.deltas), each.version, depth, self.number)
                        self._named[source.item, each.handler] = named

    def check(self, change: "Change", handlers: Iterable[str], since: int, depth: int) -> None:
        """Raises ``InvariantBroken`` if deltas are pending of what these handlers committed for a change.

        What another process commits meanwhile is not waited for. since: the last transaction before the invocation.
        """
        for handler in handlers:
            claim = claim_key(self.application, handler, change.item, change.identity_text)
            for key in ((change.item, handler), claim):
                named = self._named.get(key)
                if named is None or named.version > change.version_text:
                    continue
                if named.number <= since or named.depth == depth:
                    self._check(change, handler, named.names)

    def _check(self, change: "Change", handler: str, names: DeltaNames) -> None:
        for name, rows in names.items():
            if item := self.engine.state.get(delta_key(self.application, name)):
                delta = Delta.of(item["s"])
                waits = rows if delta.refused is None else rows & delta.rows
                _require(not waits, f"{change.name} is acknowledged for {handler!r}, and delta {name} is pending")


def _count(sums: ContributedAmounts, contributors: int, amounts: Mapping[str, Any], factor: int) -> None:
    sums[CONTRIBUTORS] += factor * contributors
    for name, amount in amounts.items():
        sums[name] = WIDE.add(sums[name], WIDE.multiply(factor, Decimal(amount)))


def _is_ledger(key: StateKey) -> bool:
    return key.pk.startswith("ledger#")


def _owner(key: StateKey) -> LedgerSource | None:
    """The item of a ledger item or of a counter, whose keys are alike; None for another state item."""
    return source_of(StateKey(key.pk.replace(COUNTERS, "ledger#", 1), key.sk))


def _version_before(ledger_item: Mapping[str, Any], handler: str) -> str | None:
    """The version that a step which put deltas replaced: it returns if the step is taken back."""
    before = ledger_item.get(f"{handler}.b")
    return str(before).partition(" ")[0] if before else None


def _ledger_of(key: StateKey) -> StateKey:
    """The ledger item that a large contribution belongs to; any other item itself."""
    if not key.pk.startswith("part#"):
        return key
    return StateKey(key.pk.replace("part#", "ledger#", 1), key.sk.rpartition("#")[0])


def _bare(item: Mapping[str, Any]) -> dict[str, Any]:
    # Without the notes of pending work: these are removed without a new revision.
    return {name: value for name, value in item.items() if not name.endswith(".u")}


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion with its text
    if not holds:
        raise InvariantBroken(otherwise)
