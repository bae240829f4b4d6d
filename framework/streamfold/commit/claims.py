"""Finds changes that are older than their rows were, by the claims of newer changes, and omits or removes the rows."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from streamfold.commit.pending import Progress
from streamfold.commit.plan import Transaction, Unit, pack, without
from streamfold.commit.transactions import in_slots, read_rows, send
from streamfold.engines.protocol import Engine, Entries
from streamfold.errors import EngineError, HandlerError
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.ledger.state_keys import claimed_identity, names_of_rows, row_name, version_of
from streamfold.runtime import Runtime
from streamfold.writes.guarded import GuardedPut, RowKey, StateKey

CLAIMS_READ, CLAIMS_READ_MAX = 20, 1_280
"""Claims of newer changes that the first read takes, the newest first, and the bound; each read takes four times as
many as the one before. The newest claim names the rows of most handlers.
"""
BEHIND_VERSIONS = ":"
"""Sorts behind every version, because a version begins with a digit."""

Newer = Mapping[RowKey, str]
"""Rows of an older change, each with the version of the newest change whose claim names it."""


class ClaimsPartition(NamedTuple):
    """Where the claims of one handler and item are, in the order of their changes."""

    partition: str
    beginning: str  # of their sort keys; sort keys of other items may begin so too

    @classmethod
    def of(cls, unit: Unit) -> "ClaimsPartition":
        return cls(unit.guard.key.pk, unit.guard.key.sk.removesuffix(unit.changes[0].identity_text))


class OlderChanges:
    """Finds the changes of one plan that are older than their rows were, and omits or removes the rows."""

    def __init__(self, runtime: Runtime, progress: Progress) -> None:
        self.runtime = runtime
        self.progress = progress
        self.redriven: list[Unit] = []  # as they were planned, with all of their rows

    def without_newer(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        """The transactions without rows that newer changes wrote or deleted. Units fail whose item's claims are not
        read.
        """
        late = [
            unit
            for transaction in transactions
            for unit in transaction.units
            if not unit.steps and self._may_be_late(unit)
        ]
        if not late:
            return transactions
        newer, failed = self._newer(late)
        if self.runtime.late:
            self.redriven = [unit for unit in late if unit.guard.key not in failed]
        if not failed and not any(newer.values()):
            return transactions
        self._fail(late, failed)
        units = [unit for transaction in transactions for unit in transaction.units if unit.guard.key not in failed]
        wanted = [without(unit, newer[unit.guard.key]) if newer.get(unit.guard.key) else unit for unit in units]
        return pack(wanted, self.runtime.chunk_actions, self.runtime.shared)

    def take_back(self) -> None:
        """Removes the rows of older changes that a newer change wrote or deleted, according to its claim."""
        units = self.redriven or self._overtaken()
        if not units:
            return
        newer, wrong = self._newer(units)
        unread: dict[RowKey, Exception] = {}
        keys = dict.fromkeys(row for named in newer.values() for row in named)
        rows = read_rows(self.runtime, keys, unread) if keys else {}
        for unit in units:
            named = newer.get(unit.guard.key, {})
            try:
                if failed := next((unread[row] for row in named if row in unread), None):
                    raise failed
                self._replace_older(unit, named, rows)
            except (EngineError, HandlerError) as error:
                wrong[unit.guard.key] = error
        self._fail(units, wrong)

    def _replace_older(self, unit: Unit, named: Newer, rows: Mapping[RowKey, Mapping[str, Any]]) -> None:
        """Replaces older rows by tombstones of newer changes."""
        for effect in unit.effects:
            if not isinstance(effect, GuardedPut) or effect.key not in named:
                continue
            row, newest = rows.get(effect.key, {}), named[effect.key]
            if row.get(CONTRIBUTORS) != 0 and row.get(VERSION, newest) < newest:
                # Refused if the row is newer by now, or another item's: then nothing has to be removed.
                refused = send(self.runtime, [effect._replace(attributes=None, version=newest)])
                self.progress.outcome.tally(unit.routes[0].name).removed += refused is None

    def _may_be_late(self, unit: Unit) -> bool:
        return (self.runtime.late or not unit.changes[0].in_order) and _puts(unit)

    def _overtaken(self) -> list[Unit]:
        """Units that were new, and are older than a change of their table that was known. So this batch came before."""
        newest: dict[str, str] = {}
        for unit in self.progress.known:
            (change,) = unit.changes
            if change.in_order:
                newest[change.item[0]] = max(newest.get(change.item[0], ""), change.version_text)
        return [
            unit
            for unit in (self.progress.claimed if newest else ())
            if unit.changes[0].version_text < newest.get(unit.item[0], "") and _puts(unit)
        ]

    def _newer(self, units: Iterable[Unit]) -> tuple[dict[StateKey, Newer], dict[StateKey, Exception]]:
        """The rows of units that newer claims name, and why the claims of some were not read, by the units' claims."""
        partitions: dict[ClaimsPartition, list[Unit]] = {}
        for unit in units:
            partitions.setdefault(ClaimsPartition.of(unit), []).append(unit)
        newer: dict[StateKey, Newer] = {}
        failed: EngineError | HandlerError | None = None
        calls = ((where, partial(_named, self.runtime.engine, where, own)) for where, own in partitions.items())
        slots = self.runtime.slots
        for _, answer in in_slots(slots, calls, stops=lambda _: True, count=slots.reads):
            if isinstance(answer, EngineError | HandlerError):
                failed = failed or answer
            else:
                newer |= answer
        unread = [unit for own in partitions.values() for unit in own if unit.guard.key not in newer]
        return newer, {unit.guard.key: failed for unit in unread if failed is not None}

    def _fail(self, units: Iterable[Unit], failed: Mapping[StateKey, Exception]) -> None:
        for unit in units:
            if (error := failed.get(unit.guard.key)) is not None:
                self.progress.fail([unit], error)


def _puts(unit: Unit) -> bool:
    # Only a row that comes back is wrong: a deletion needs no check.
    return any(isinstance(effect, GuardedPut) and effect.attributes is not None for effect in unit.effects)


def _put_rows(unit: Unit) -> dict[str, RowKey]:
    return {row_name(effect.key): effect.key for effect in unit.effects if isinstance(effect, GuardedPut)}


def _named(engine: Engine, where: ClaimsPartition, units: Sequence[Unit]) -> dict[StateKey, Newer]:
    """The rows of an item's changes that claims of newer changes name. A claim of older code names none."""
    older = [(unit.changes[0], _put_rows(unit), dict[RowKey, str]()) for unit in units]
    first = where.beginning + min(change.version_text for change, _, _ in older)
    before, most = where.beginning + BEHIND_VERSIONS, CLAIMS_READ
    while True:
        claims = engine.read_entries(Entries(where.partition, most, first, descending=True, before=before))
        for sort_key, text in claims:
            if (identity := claimed_identity(sort_key, where.beginning)) is None:
                continue
            for change, rows, newest in older:
                # Of two changes with one version neither is newer, and the first to come has the row.
                is_newer = change.version_text < identity != change.identity_text
                for name in rows.keys() & names_of_rows(text) if is_newer else ():
                    newest.setdefault(rows[name], version_of(identity))
        if len(claims) < most or all(len(newest) == len(rows) for _, rows, newest in older):
            return {unit.guard.key: newest for unit, (_, _, newest) in zip(units, older, strict=True)}
        before, most = claims[-1][0], min(most * 4, CLAIMS_READ_MAX)
