"""Corrects rows by the ledger, if somebody changed, removed or put them by hand.

Items are led to their sources first (``repair``). A row that differs then is one that the ledger does not account for.
All contributions to it are read while it does not change, and what it lacks is *added*: additions commute with those of
the live stream, so nothing has to stop. A row that is put whole is put again behind a fence on its item.
"""

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal, DecimalException, localcontext
from secrets import token_hex
from typing import Any, NamedTuple

from streamfold.batch.knowledge import knowledge
from streamfold.commit.recompute import recompute
from streamfold.derivations.derivation import contribution
from streamfold.engines import Engine, OwnStream
from streamfold.errors import EngineError
from streamfold.keys.table import CONTRIBUTORS, EDGE, LIFE, OWNER, PLACES
from streamfold.ledger.contribution import Contribution, stored_rows, stored_text
from streamfold.ledger.difference import moved_by, row_put
from streamfold.ledger.entries import NOTHING, Mark
from streamfold.ledger.entries import writes as entry_writes
from streamfold.ledger.item import BEFORE_ALL
from streamfold.ledger.lives import as_stored
from streamfold.ledger.state_keys import ledger_key
from streamfold.ledger.step import Step, repaired
from streamfold.lifecycle.checks import wanted_routes
from streamfold.lifecycle.entries import missing_entries
from streamfold.lifecycle.explain import Explaining, read_ledger
from streamfold.lifecycle.explained_rows import (
    Contributor,
    contributors_of,
    in_its_life,
    owning_items,
    row_routes,
    row_target,
    strange_names,
    sums_of,
)
from streamfold.lifecycle.other_writers import OtherWriters
from streamfold.lifecycle.rows import RowsVerifier, VerifiedRows, left_in, left_of
from streamfold.records.change import ItemKey, image_of
from streamfold.records.images import hidden
from streamfold.records.numbers import DIGITS_MAX, EXACT, Number
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run
from streamfold.writes.guarded import AddRow, DeleteRow, GuardedWrite, Moved, PutRow, RowKey, StateKey

SCANS_MAX = 3
"""Scans of the state; a row that changes during each of them is left to the next run."""
BUSY = "Others changed it or its item at the same time: compare again."
StoredRow = Mapping[str, Any]


class RowLeft(NamedTuple):
    """A row that was not mended."""

    row: RowKey
    why: str


class RowsMended(NamedTuple):
    """What became of rows."""

    mended: list[RowKey]
    left: list[RowLeft]


class RowsLed(NamedTuple):
    """What became of the rows of handlers whose items were led to their sources."""

    compared: VerifiedRows
    mended: RowsMended


def lead_rows(app: Application, engine: Engine, run: Run, handlers: Collection[str]) -> RowsLed:
    """Makes the rows of these handlers what all of their items add up to, once a rebuild has led the ledger there.

    The ledger may agree with every source while a row does not: somebody removed the row, others made it again, and
    what had been contributed before is missing. So rows are compared with a fold of the sources. Those that differ, or
    moved all the while, are corrected by the ledger. Reads the sources, and for such rows all of the state.
    """
    routes = [route for route in wanted_routes(app, handlers) if route.kind.contributes]
    if not routes:
        return RowsLed(VerifiedRows(), RowsMended([], []))
    verifier = RowsVerifier(app, engine, run, routes, live=not isinstance(engine, OwnStream))
    found = verifier.verify()
    by = Explaining(app, engine, knowledge(run, app, engine).forms)
    rows = [*(each.row for each in found.different), *verifier.suspected]
    return RowsLed(found, RowMending(by, run).mend(rows))


class RowMending:
    """Mends rows of one application."""

    def __init__(self, by: Explaining, run: Run) -> None:
        self.by = by
        self.engine = by.engine
        self.run = run
        self.found = RowsMended([], [])
        self.others = OtherWriters(by.app.name)

    def mend(self, rows: Collection[RowKey]) -> RowsMended:
        """Mends these rows, as far as they hold still. Reads all of the state; raises what reading raises."""
        left = set(rows)
        with localcontext(EXACT):
            for _ in range(SCANS_MAX):
                left -= self._round(left) if left else set()
        self.found.left.extend(RowLeft(row, BUSY) for row in sorted(left, key=str))
        return self.found

    def _round(self, rows: Collection[RowKey]) -> set[RowKey]:
        """Mends the rows that did not change while the state was read; returns them."""
        before = self.engine.read_rows(list(rows))
        held = contributors_of(self.by, rows, self.others.see)
        after = self.engine.read_rows(list(rows))
        still = {row for row in rows if before.get(row) == after.get(row)}
        for row in sorted(still, key=str):
            try:
                self._mend(row, after.get(row), in_its_life(after.get(row), held[row]))
                self.found.mended.append(row)
            except EngineError as error:
                self.found.left.append(RowLeft(row, str(error)))
        return still

    def _mend(self, row: RowKey, stored: StoredRow | None, held: Collection[Contributor]) -> None:
        if stored is None and not held:  # as the state has it: a handler that was never filled has no rows
            return
        routes = row_routes(self.by, row)
        if not routes:
            raise EngineError("No handler here contributes to it: it is left as it is.")
        left = left_in(left_of(routes, self.by.forms), row)
        if retired := [name for name in sorted(left) if stored is not None and stored.get(name)]:
            raise EngineError(
                f"Retired handlers left {', '.join(map(repr, retired))} in it, which stays: what else counts there is "
                "not known. Change it by hand."
            )
        whole = any((target := row_target(route, row)) is not None and target.whole for route in routes)
        if whole and not held and stored is not None:
            self._remove(row, stored, routes)
        elif whole and len(held) == 1:
            self._put(row, stored, next(iter(held)))
        elif other := self.others.of(routes):
            raise EngineError(
                f"Application {other!r} writes the same target, and what it added is not known here: the row is left "
                "as it is. Change it by hand."
            )
        else:
            self._restore_entries(row, held)
            self._add(row, stored or {}, held)

    def _put(self, row: RowKey, stored: StoredRow | None, only: Contributor) -> None:
        """Puts a whole row again, as its handler makes it of the item."""
        item = _item(only)
        guard, made = self._guard(only.route, item, only.key)
        put = row_put(self.by.app.name, only.route, item, row, made[row])
        unowned = stored is not None and OWNER not in stored and CONTRIBUTORS not in stored
        self._send([guard, PutRow(row, put.attributes) if unowned else put])

    def _remove(self, row: RowKey, stored: StoredRow, routes: Iterable[Route]) -> None:
        """Removes a whole row that no item yields, behind a fence on the item that would own it."""
        for route in routes:
            target = row_target(route, row)
            for item in owning_items(route, target, row) if target is not None and target.owned else ():
                guard, made = self._guard(route, item, ledger_key(self.by.app.name, route.group, item))
                if row not in made:
                    self._send([guard, DeleteRow(row, stored.get(OWNER))])
                    return
        raise EngineError("Its key tells no item that it could be of: remove it by hand.")

    def _guard(self, route: Route, item: ItemKey, key: StateKey) -> tuple[GuardedWrite, Contribution]:
        """A fence on an item whose state agrees with its source, and what the handler makes of the item."""
        found = read_ledger(self.by, key)
        fields = next(fields for each, fields in self.by.app.sources(item) if each.name == route.name)
        after = contribution(route, image_of(self.engine.read_source(item)), fields, self.by.forms)
        part = found.parts.get(route.name)
        if stored_text(as_stored(stored_rows(part.text) if part else {}, after)) != (part.text if part else ""):
            raise EngineError("Its item differs from its source: streamfold repair leads it there first.")
        return repaired(key, item, Step(route, BEFORE_ALL, None, after), found).guard, after

    def _restore_entries(self, row: RowKey, held: Iterable[Contributor]) -> None:
        """Puts entries again that an item has below the row, and that are missing."""
        for each in held:
            if not missing_entries(self.by.app, self.engine, each.route.name, each.item, row, each.part):
                continue
            guard, made = self._guard(each.route, _item(each), each.key)
            mark = Mark(self.by.app.name, each.route.name, _item(each), token_hex(16))
            self._send([guard, *entry_writes(mark, row, NOTHING, made[row].ordered, each.part.life)])

    def _add(self, row: RowKey, stored: StoredRow, held: Collection[Contributor]) -> None:
        """Adds to a row what it lacks, takes away what nobody made, and recomputes what follows from entries."""
        sums, moved = sums_of(held), self._moved(row, held)
        if wrong := [name for name in sums if not _is_number(stored.get(name, 0))]:
            raise EngineError(f"Its attribute {wrong[0]!r} is no number any more: remove the row by hand first.")
        if not held:  # numbers go as they are added: a first contribution may come at the same time
            sums = {name: 0 for name, value in stored.items() if not hidden(name) and _is_number(value)}
        amounts = {name: _lacking(name, total, stored.get(name, 0)) for name, total in sums.items()}
        count = len(held) - int(stored.get(CONTRIBUTORS, 0))
        addition = AddRow(
            row,
            {name: amount for name, amount in amounts.items() if amount or name not in stored},
            count,
            stamp=token_hex(16) if moved else "",
            moved=moved,
            removed=self._strange(row, stored, held, sums),
            life=str(stored[LIFE]) if LIFE in stored else None,  # a row that was made again meanwhile is left alone
        )
        if not addition.changes_nothing:
            self._send([addition])
        if not held:
            self._remove_empty(row, stored)
        for error in recompute(self.engine, {row: moved} if moved else {}, self.run).values():
            raise EngineError(str(error))

    def _remove_empty(self, row: RowKey, stored: StoredRow) -> None:
        """Removes a row that nothing contributes to; one that never counted contributors counts none from now on."""
        if CONTRIBUTORS not in stored:
            self._send([AddRow(row, {}, 1)])
            self._send([AddRow(row, {}, -1)])
        self.engine.remove_empty([row])

    def _moved(self, row: RowKey, held: Iterable[Contributor]) -> tuple[Moved, ...]:
        """The entries below a row, by attribute, as if all of them had moved."""
        found: dict[str, Moved] = {}
        for each in held:
            own = moved_by(self.by.app.name, each.route, _item(each), {row: each.part}, held=True)
            for one in own.get(row, ()):
                found[one.partition] = found[one.partition].joined(one) if one.partition in found else one
        return tuple(found.values())

    def _strange(
        self, row: RowKey, stored: StoredRow, held: Collection[Contributor], sums: Mapping[str, Number]
    ) -> tuple[str, ...]:
        """The attributes that no item makes, and the cut-offs of those that are recomputed."""
        ordered = {name for each in held for name in each.part.ordered}
        keys = {*self.by.app.tables[row[0]].attributes, *sums}
        strange = strange_names(keys, stored, held)
        edges = [prefix + name for name in sorted(ordered) for prefix in (EDGE, PLACES)]
        return (*strange, *(name for name in edges if name in stored))

    def _send(self, wanted: list[GuardedWrite]) -> None:
        if self.engine.transact(wanted, self.run.expires_at) is not None:
            raise EngineError(BUSY)


def _lacking(name: str, total: Number, stored: Number) -> Number:
    """What is to be added. Raises ``EngineError`` for what no number tells."""
    try:
        return EXACT.subtract(total, stored)
    except DecimalException:
        raise EngineError(
            f"No number of {DIGITS_MAX} digits leads its attribute {name!r} to its sum: remove the row by hand first."
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _item(each: Contributor) -> ItemKey:
    if each.item is None:
        raise EngineError("One of its items has a key that is too long for the state to tell.")
    return each.item
