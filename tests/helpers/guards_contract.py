"""What every engine decides about a write and makes of an item is what the description of the write says.

Each try draws an item and a write that meets it by half. The model reads the description (``tests.helpers.described``).
"""

from random import Random

import pytest

from streamfold.engines.protocol import Counter
from streamfold.keys.table import CONTRIBUTORS, LIFE, MARKED, OWNER, PARTNER_VERSION, STAMP, STATE, VERSION
from streamfold.records.values import decode, encode
from streamfold.writes.guarded import (
    CONDITION,
    AbsentSource,
    AddRow,
    Claim,
    ClearNotes,
    CorrectRow,
    CounterWrite,
    CountUp,
    DeleteRow,
    DeleteSource,
    DeleteState,
    GuardedPut,
    HandlerContribution,
    InsertItem,
    InsertRow,
    LedgerWrite,
    NoteVersion,
    PutPostRow,
    PutRow,
    PutState,
    PutStoredCopy,
    RecomputedRow,
    RemoveEmpty,
    StateKey,
    SwapMarker,
    SwapState,
    SwapText,
    UpdateSource,
)
from tests.helpers.described import Model
from tests.helpers.engine_contract import EXPIRES, SHOP

VERSIONS, TEXTS, LIVES = ("v1", "v2", "v3"), ("x", "ö"), ("", "one", "two")
VALUES = (1, 2, "x", "", True, [1, "a"], {"a": 1})  # not None, which moto takes for no attribute


class Drawn:
    """Draws what tries are made of, the same at each run."""

    def __init__(self, seed):
        self.random = Random(seed)

    def of(self, *values):
        return self.random.choice(values)

    def often(self, **attributes):
        return {name: value for name, value in attributes.items() if self.random.random() < 0.6}

    def row(self):
        """A row with attributes of the framework and of its own, or none."""
        if self.random.random() < 0.15:
            return None
        own = {
            VERSION: self.of(*VERSIONS),
            PARTNER_VERSION: self.of(*VERSIONS),
            OWNER: self.of(*TEXTS),
            STAMP: self.of(*TEXTS),
            LIFE: self.of(*LIVES[1:]),
            CONTRIBUTORS: self.of(0, 1, 2, 3),
            MARKED: self.of(*TEXTS),
        }
        return self.often(**own, a=self.of(*VALUES), b=self.of(*VALUES), total=self.of(0, 5))

    def ledger(self):
        item = self.often(live=self.of(0, 1, 2))
        for handler in "ab":
            if self.random.random() < 0.7:
                item |= {f"{handler}.v": self.of(*VERSIONS), f"{handler}.s": self.of("", "A", "B")}
                item |= {f"{handler}.fence": True} if self.random.random() < 0.2 else {}
                item |= {f"{handler}.u": self.of(*TEXTS)} if self.random.random() < 0.2 else {}
                item |= {f"{handler}.p": self.of(*TEXTS)} if self.random.random() < 0.4 else {}
        return item

    def add(self, key):
        write = AddRow(
            key, self.often(total=self.of(-1, 2)), self.of(-1, 0, 1), self.of(True, False), self.of("", "s"),
            (), self.of(None, 0, 1, 2), self.often(a=self.of(*VALUES)), self.of((), ("b",), ("b", OWNER)),
            self.of(True, False), self.of(None, *LIVES), born=False,
        )  # fmt: skip
        if write.life and self.of(True, False):
            required = self.of(None, None, 0)
            write = write._replace(born=True, contributors_min=required, requires_contributor=False)
        elif self.random.random() < 0.2:
            write = write._replace(contributors_below=self.of(1, 2), contributors_min=None, requires_contributor=False)
        # What changes nothing is never sent, and DynamoDB takes no empty update.
        return write._replace(contributors=1) if write.unversioned and write.changes_nothing else write

    def ledger_write(self, key):
        parts = [
            HandlerContribution(
                handler,
                self.of(*VERSIONS),
                self.of("", "Z"),
                self.of("", "A"),
                self.of(None, "l"),
                self.of(None, "", "p"),
                self.of(None, "", "x"),
                self.of(None, "b"),
            )
            for handler in self.random.sample("ab", self.of(1, 2))
        ]
        return LedgerWrite(
            key, tuple(parts), self.of(None, None, None, 0, 1, 2), self.of(-1, 0, 1), self.of(True, False),
            self.of(None, 0, 1), self.of(True, False),
        )  # fmt: skip

    def row_write(self, kind, key, row):
        version, owner = self.of(*VERSIONS), self.of(None, *TEXTS)
        match kind.__name__:
            case "AddRow":
                return self.add(key)
            case "PutRow":
                return PutRow(key, {"a": 1}, owner, amends=owner is not None and self.of(True, False))
            case "DeleteRow":
                return DeleteRow(key, owner)
            case "GuardedPut":
                return GuardedPut(key, self.of(None, {"a": 1}), version, owner)
            case "PutPostRow":
                shown = self.of(None, {"a": 1, "b": "ö"})
                return PutPostRow(
                    key, shown, (version, self.of(*VERSIONS)), 7, self.of(True, False), self.of(True, False)
                )
            case "RecomputedRow":
                return RecomputedRow(key, self.of(*TEXTS), {"a": self.of(*VALUES)}, self.of((), ("b",)))
        return self.write_of_what_was_read(kind, key, row)

    def write_of_what_was_read(self, kind, key, row):
        stored = row or {}
        read = self.often(**{name: self.of(stored.get(name, 0), self.of(*VALUES)) for name in ("a", "total")})
        absent, gone, values = self.of((), (OWNER,), ("b",)), self.of((), ("a",)), {"b": self.of(*VALUES)}
        match kind.__name__:
            case "CorrectRow":
                return CorrectRow(key, read, absent, values, self.often(total=2), gone)
            case "SwapMarker":
                return SwapMarker(key, "new", self.of(None, *TEXTS))
            case "AbsentSource":
                return AbsentSource(key)
            case "DeleteSource":
                image = self.of(row, row, {**stored, "a": "other"}) or {"a": 1}
                own = dict(zip(SHOP.attributes, key[1:], strict=True))
                return DeleteSource(key, encode({**own, **image})["M"], "v9")
            case "UpdateSource":
                return UpdateSource(key, read, absent, values, gone)
        raise AssertionError(kind)

    def state_write(self, kind, key):
        match kind.__name__:
            case "LedgerWrite":
                return self.ledger_write(key)
            case "Claim":
                return Claim(key, self.of("", "rows"), self.of("", "names"))
            case "SwapState":
                return SwapState(key, {"a": self.of(1, "x")}, self.of(0, 1, 2), self.of(True, False))
            case "PutState":
                return PutState(key, self.of(*TEXTS))
            case "DeleteState":
                return DeleteState(key, self.of(None, *TEXTS))
            case "SwapText":
                return SwapText(key, "new", self.of(None, *TEXTS))
            case "InsertItem":
                return InsertItem(key, {"a": self.of(1, "x")})
            case "PutStoredCopy":
                return PutStoredCopy(key, self.of(*TEXTS), self.of(*VERSIONS), self.of(None, 7))
            case "CounterWrite":
                added, removed = self.of(({"a", "b"}, ()), ((), {"a"}), ((), ()))
                ids = {"added": frozenset(added), "removed": frozenset(removed)}
                refers = {"references": self.of(None, "", *TEXTS)}
                expires = self.of(None, True, False)
                return CounterWrite(key, self.of(1, 2), self.of(None, 7), **ids, **refers, expires=expires)
        raise AssertionError(kind)


SOURCE_WRITES = (AbsentSource, DeleteSource, UpdateSource)
ROW_WRITES = (AddRow, PutRow, DeleteRow, GuardedPut, PutPostRow, RecomputedRow, CorrectRow, SwapMarker, *SOURCE_WRITES)
OTHER_WRITES = (InsertRow, RemoveEmpty, ClearNotes, CountUp, NoteVersion)  # those that no transaction of a plan holds
STATE_WRITES = (
    LedgerWrite, Claim, SwapState, PutState, DeleteState, SwapText, PutStoredCopy, CounterWrite, InsertItem
)  # fmt: skip


class GuardsContract:
    """Wants a fixture ``store`` with all tables, and one ``tries``: how often each kind of write is drawn."""

    @pytest.mark.parametrize("kind", ROW_WRITES, ids=lambda kind: kind.__name__)
    def test_a_write_of_a_row_is_what_its_description_says(self, store, tries, kind):
        drawn, refusals = Drawn(kind.__name__), 0
        for number in range(tries):
            key, row = ("shop", f"GUARD#{number}", "x"), drawn.row()
            item = self._put_row(store, key, row, is_source=kind in SOURCE_WRITES)
            write = drawn.row_write(kind, key, row)
            refusals += self._compared(store, Model(write, SHOP, EXPIRES), item)
        assert 0 < refusals < tries

    @pytest.mark.parametrize("kind", STATE_WRITES, ids=lambda kind: kind.__name__)
    def test_a_write_of_a_state_item_is_what_its_description_says(self, store, tries, kind):
        drawn, refusals = Drawn(kind.__name__), 0
        for number in range(tries):
            key = StateKey("guard", str(number))
            item = self._put_state(store, key, drawn, kind)
            refusals += self._compared(store, Model(drawn.state_write(kind, key), STATE, EXPIRES), item)
        assert refusals < tries
        assert bool(refusals) is (kind is not PutState)

    def test_rows_that_are_written_one_by_one_are_what_their_descriptions_say(self, store, tries):
        drawn, engine = Drawn("rows"), store.engine
        for number in range(tries):
            key, row = ("shop", f"GUARD#{number}", "x"), drawn.row()
            item = self._put_row(store, key, row, is_source=False)
            write, call = self._single_row(engine, drawn, key, row)
            self._told(store, Model(write, SHOP, EXPIRES), item, call)

    def _single_row(self, engine, drawn, key, row):
        """A write of a row that has a call of its own, and that call."""
        pair = drawn.row_write(PutPostRow, key, row)._replace(removed=tuple(row or ()))
        return drawn.of(
            (InsertRow(key, {"a": 2}), lambda: key in engine.insert_rows([PutRow(key, {"a": 2})]).known),
            (RemoveEmpty(key), lambda: engine.remove_empty([key]) == []),
            (pair, lambda: engine.put_post_rows([pair]) == [key]),
        )

    def test_state_items_that_are_written_one_by_one_are_what_their_descriptions_say(self, store, tries):
        drawn, engine = Drawn("state"), store.engine
        for number in range(tries):
            key, kind = StateKey("guard", str(number)), drawn.of(ClearNotes, SwapState, CountUp)
            item = self._put_state(store, key, drawn, CounterWrite if kind is CountUp else LedgerWrite)
            write, call = self._single(engine, drawn, kind, key, item)
            self._told(store, Model(write, STATE, EXPIRES), item, call)

    def _single(self, engine, drawn, kind, key, item):
        """A write of a state item that has a call of its own, and that call."""
        if kind is ClearNotes:
            texts = {handler: drawn.of(*TEXTS) for handler in drawn.of("a", "b", "ab")}
            notes = {f"{handler}.u": text for handler, text in texts.items()}
            return ClearNotes(key, notes), lambda: engine.clear_pending({key: texts})
        if kind is SwapState:
            swap = SwapState(key, {"a": 1}, drawn.of(0, 1, 2), expires=False)
            return swap, lambda: not engine.swap_state(*swap[:3])
        counter = Counter(key, new=drawn.of(True, False), expires=drawn.of(True, False))
        count = CountUp(key, 3, counter.expires, there=item is not None)
        return count, lambda: engine.count_up([counter], 3, EXPIRES) == {}

    def _compared(self, store, model, item):
        """Makes a write in a transaction; returns whether it was refused."""
        refused = store.engine.transact([model.write], EXPIRES)
        holds = model.holds(item)
        assert (refused is None) is holds, (model.write, item, refused)
        if refused is not None:
            (reason,) = refused.reasons
            assert reason.code == CONDITION
            if model.described.returns_item:
                assert _as_sets(reason.item) == (item and {**item, **model.key}), (model.write, item)
        assert self._now(store, model) == (model.after(item) if holds else item), (model.write, item)
        return refused is not None

    def _told(self, store, model, item, call):
        """Makes a call that writes one item; it returns whether that was refused, or None where it does not tell."""
        refused, holds = call(), model.holds(item)
        assert refused in (None, not holds), (model.write, item)
        assert self._now(store, model) == (model.after(item) if holds else item), (model.write, item)

    def _now(self, store, model):
        key = model.write.key
        if isinstance(key, StateKey):
            found = store.state(key)
            return None if found is None else _as_sets({**found, **model.key})
        if isinstance(model.write, SOURCE_WRITES) and hasattr(store.engine, "put_sources"):
            found = store.engine.read_source(key)
            return None if found is None else decode({"M": found})
        return store.engine.read_rows([key]).get(key)

    def _put_row(self, store, key, row, *, is_source):
        if row is None:
            if is_source:
                store.put(("shop", "ELSE", "x"), {})  # a store of this machine knows only of tables that it was given
            return None
        if is_source:
            store.put(key, row)
        else:
            store.write(PutRow(key, row))
        return {**dict(zip(SHOP.attributes, key[1:], strict=True)), **row}

    def _put_state(self, store, key, drawn, kind):
        if drawn.random.random() < 0.2:
            return None
        if kind in (PutState, DeleteState, SwapText):
            store.write(PutState(key, drawn.of(*TEXTS)))
        elif kind is PutStoredCopy:
            store.write(PutStoredCopy(key, drawn.of(*TEXTS), drawn.of(*VERSIONS), 7))
        else:
            store.write(SwapState(key, {"n": 1} if kind is CounterWrite else drawn.ledger(), 0))
            if kind is CounterWrite:
                store.write(CounterWrite(key, 1, added=frozenset({"a", "c"})))
        return _as_sets({**store.state(key), **key._asdict()})


def _as_sets(item):
    """An item whose ids are a set, which a state file keeps as a list."""
    return {**item, "ids": set(item["ids"])} if item and "ids" in item else item
