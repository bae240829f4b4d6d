"""What holds after every call of a store, looked at from outside: nothing of the planner is used.

1. A derived row is the sum, or the content, of what the ledger items say was contributed to it.
2. Versions of ledger items and guarded rows never fall; the revision of a state item grows by one per write.
3. No guarded row is deleted: a removed one stays as a tombstone.
4. A ledger item has a time to live only while no handler has anything stored in it.
5. Below a row stand the entries that ledger items name.
6. A row that nothing contributes to is named by the note of a ledger item, until it is removed.
7. No transaction holds more than 100 writes, or two of one item (``MemoryEngine`` refuses both).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from streamfold.app import App
from streamfold.engines.memory import MemoryEngine
from streamfold.keys.table import CONTRIBUTORS, OWNER, VERSION
from streamfold.ledger.contribution import LEFT_STAMP_LETTERS
from streamfold.records.encoded import digest
from streamfold.records.values import WIDE, decode_number
from streamfold.testing.entry_invariants import EntryInvariants, key_value
from streamfold.writes.guarded import RowKey, StateKey

ContributedAmounts = dict[str, Decimal | int]
ContributedRow = tuple[RowKey, Mapping[str, str], str]
"""A row, its amounts, and the digest of its plain attributes."""


class InvariantBroken(AssertionError):  # noqa: N818 - what it says
    """Something that always holds did not, after some call."""


class Invariants:
    """Looks at what a call touched, against what it saw before."""

    def __init__(self, app: App, engine: MemoryEngine) -> None:
        self.app = app
        self.engine = engine
        self.engine.touched = set()
        self.state: dict[StateKey, dict[str, Any]] = {}
        self.parts: dict[StateKey, list[ContributedRow]] = {}
        self.expected: dict[RowKey, ContributedAmounts] = defaultdict(lambda: defaultdict(int))
        self.noted: dict[StateKey, set[RowKey]] = {}  # rows that ledger items say may be empty
        self.notes: Counter[RowKey] = Counter()  # how many ledger items say so of a row
        self.digests: dict[RowKey, str] = {}
        self.versions: dict[RowKey, str] = {}
        self.entries = EntryInvariants(app.name, engine)

    def check(self) -> None:
        """Raises ``InvariantBroken`` when something that was touched is not as it must be."""
        touched, self.engine.touched = self.engine.touched or set(), set()
        rows = {key for key in touched if not isinstance(key, StateKey)}
        for key in touched:
            if isinstance(key, StateKey):
                rows |= self._check_state(key)
        for key in rows:
            self._check_row(key)
        ledgers = {_ledger_of(key) for key in touched if isinstance(key, StateKey)}
        found = {key: self.engine.state.get(key) for key in ledgers}
        wrong = self.entries.wrong(touched, {key: dict(self._texts(key, item)) for key, item in found.items() if item})
        _require(wrong is None, wrong or "")

    def _check_state(self, key: StateKey) -> set[RowKey]:
        """Checks one state item, and returns the rows that it speaks of now or spoke of before."""
        now, before = self.engine.state.get(key), self.state.get(key)
        if key.pk.startswith("part#"):
            owner = _ledger_of(key)
            return self._check_state(owner) if owner in self.engine.state else set()
        if not key.pk.startswith(("ledger#", "manifest#")):
            return set()
        if before is not None and before is not now:
            _require(now is not None, f"state item {key} was deleted")
            assert now is not None
            moved_on = now["r"] == before["r"] + 1 or (now["r"] == before["r"] and _bare(now) == _bare(before))
            _require(moved_on, f"the revision of {key} went from {before['r']} to {now['r']}")
            for name, value in before.items():
                fell = name.endswith(".v") and now[name] < value
                _require(not fell, f"version {name} of {key} fell from {value} to {now.get(name)}")
        if now is not None:
            self.state[key] = now
            stored = [name for name, text in now.items() if name.endswith(".s") and text]
            _require(not (stored and "ttl" in now), f"{key} will expire, but it holds {', '.join(stored)}")
        return self._contributions(key, now or {}) | self._notes(key, now or {}) if _is_ledger(key) else set()

    def _contributions(self, key: StateKey, item: Mapping[str, Any]) -> set[RowKey]:
        """Takes an item's contributions back as they were, and adds them as they are."""
        touched = set()
        for row, amounts, _ in self.parts.pop(key, []):
            self._count(row, amounts, -1)
            touched.add(row)
        self.parts[key] = self._parts(key, item)
        for row, amounts, text in self.parts[key]:
            self._count(row, amounts, 1)
            touched.add(row)
            if text:
                self.digests[row] = text
        return touched

    def _notes(self, key: StateKey, item: Mapping[str, Any]) -> set[RowKey]:
        """Takes an item's notes as they are; returns the rows that it noted before."""
        before = self.noted.pop(key, set())
        texts = [text[LEFT_STAMP_LETTERS:] for name, text in item.items() if name.endswith(".u")]
        self.noted[key] = {row for text in texts for row, _, _ in _rows_of(text)}
        self.notes.subtract(before)
        self.notes.update(self.noted[key])
        return before

    def _parts(self, key: StateKey, item: Mapping[str, Any]) -> list[ContributedRow]:
        return [part for _, text in self._texts(key, item) for part in _rows_of(text)]

    def _texts(self, key: StateKey, item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The contributions that a ledger item stands for, by handler."""
        for name, text in item.items():
            if _is_ledger(key) and name.endswith(".s") and text:
                part = StateKey(key.pk.replace("ledger#", "part#", 1), f"{key.sk}#{name[:-2]}")
                yield name[:-2], self.engine.state[part]["s"] if text.startswith("@") else text

    def _count(self, row: RowKey, amounts: Mapping[str, str], factor: int) -> None:
        expected = self.expected[row]
        expected[CONTRIBUTORS] += factor
        for name, amount in amounts.items():
            expected[name] = WIDE.add(expected[name], WIDE.multiply(factor, Decimal(amount)))

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
        expected = self.expected[key]
        whole = key in self.digests and expected[CONTRIBUTORS] == 1
        for name, amount in expected.items():
            found = decode_number(row[name]["N"]) if name in row and "N" in row[name] else 0
            if found != amount and not (whole and name != CONTRIBUTORS):
                raise InvariantBroken(
                    f"row {key[1:]} has {name}={found}, but the ledger items contribute {amount} to it"
                )
        if whole:
            names = self.engine.tables[key[0]].attributes
            own = {name: value for name, value in row.items() if name not in (*names, CONTRIBUTORS, OWNER)}
            _require(digest(own) == self.digests[key], f"row {key[1:]} is not the one that its ledger item speaks of")


def _is_ledger(key: StateKey) -> bool:
    return key.pk.startswith("ledger#")


def _rows_of(text: str) -> Iterator[ContributedRow]:
    """The rows of a text of the ledger, with what is contributed to each."""
    for table, partition, sort, amounts, *rest in json.loads(text):
        yield (table, key_value(partition), key_value(sort)), amounts, rest[0] if rest else ""


def _ledger_of(key: StateKey) -> StateKey:
    """The ledger item that a large contribution belongs to; any other item itself."""
    if not key.pk.startswith("part#"):
        return key
    return StateKey(key.pk.replace("part#", "ledger#", 1), key.sk.rpartition("#")[0])


def _bare(item: Mapping[str, Any]) -> dict[str, Any]:
    """A ledger item without what its steps left behind: that is taken away beside its revisions."""
    return {name: value for name, value in item.items() if not name.endswith(".u")}


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion with its text
    if not holds:
        raise InvariantBroken(otherwise)
