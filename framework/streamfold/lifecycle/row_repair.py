"""Corrects rows by the ledger, after somebody has changed, removed or put them by hand."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import DecimalException, localcontext
from secrets import token_hex
from typing import Any, NamedTuple

from streamfold.batch.manifest import Manifest
from streamfold.batch.visits import VisitedItem, Visits
from streamfold.commit.after_commit import recompute
from streamfold.commit.transactions import writers_own
from streamfold.derivations.expected import BUSY, RemainingRow, RowsCorrected, VerifiedRows
from streamfold.engines.protocol import StoredItem
from streamfold.errors import EngineError, HandlerError
from streamfold.keys.table import CONTRIBUTORS, EDGE, LIFE, MARK, OWNER, PLACES, PLAIN_NAMES, STAMP, VERSION, is_writers
from streamfold.ledger.contribution import NOTHING, PLAIN_ENTRY, Contribution, Mark
from streamfold.ledger.contribution import writes as entry_writes
from streamfold.ledger.deltas import names_in
from streamfold.ledger.difference import row_put
from streamfold.ledger.lives import OVER
from streamfold.ledger.state_keys import manifest_key, row_name
from streamfold.lifecycle.buckets import PendingLook
from streamfold.lifecycle.explain import Explaining, state_key
from streamfold.lifecycle.row_sources import (
    Contributor,
    contributors_of,
    entries_of_row,
    in_its_life,
    is_number,
    item_of,
    life_of,
    owning_items,
    retired_attributes,
    retired_in,
    row_routes,
    row_target,
    strange_names,
    sums_of,
    wrong_entries,
)
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import pages, wanted_routes
from streamfold.lifecycle.unseen import StoredRow
from streamfold.lifecycle.verify import stable
from streamfold.records.change import ItemKey
from streamfold.records.images import hidden
from streamfold.records.values import DIGITS_MAX, EXACT, Number, decode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import CorrectRow, DeleteRow, DeleteState, GuardedWrite, PutRow, RowKey

SCANS_MAX = 6
"""Scans of the state. A row that changes during each of them is left to the next run."""
READABLE_SECONDS = 5.0
"""Time after which all of a transaction is readable: reads beside it see it item by item (Developer Guide,
transaction-apis: only read-committed). The guide gives no figure; its requests end within this time (decision 80)."""
PENDING = (
    "Additions to it are pending in deltas, so what it lacks is not known: run the command again. streamfold buckets "
    "shows what stays pending."
)
Contributors = Sequence[Contributor]


class OtherWriters:
    """The targets of other applications, noted while the items of the state are read."""

    def __init__(self, application: str) -> None:
        self.application = application
        self.targets: dict[str, str] = {}  # an application by target

    def see(self, stored: StoredItem) -> None:
        """Notes the targets of an application, if a state item is its manifest."""
        partition, begins = state_key(stored).pk, manifest_key("").pk
        name = partition.removeprefix(begins)
        if not partition.startswith(begins) or name == self.application:
            return
        for entry in Manifest.of(decode({"M": stored})).handlers.values():
            self.targets.update(dict.fromkeys(entry.get("targets", ()), name))

    def of(self, routes: Iterable[Route]) -> str | None:
        """An application that also writes a target of these handlers; None if there is none."""
        templates = (key.stored_name for route in routes for key in route.writes)
        return next((self.targets[template] for template in templates if template in self.targets), None)


class Changed(EngineError):  # noqa: N818 - as the other reasons to try again
    """The facts about a row have changed since they were read."""


class RowsReconciled(NamedTuple):
    """The results for the rows of handlers whose items were reconciled with their sources."""

    compared: VerifiedRows
    corrected: RowsCorrected


def reconcile_rows(runtime: Runtime, handlers: Collection[str]) -> RowsReconciled:
    """Corrects the rows of these handlers to the sums of all of their items, after a rebuild has reconciled the ledger.

    The ledger may agree with every source while a row does not: somebody removed the row, later contributions made it
    again, and the earlier ones are missing. So rows are compared with a fold of the sources. Rows that differ, or that
    kept changing, are corrected by the ledger. Reads the sources, and for such rows all of the state.
    """
    routes = [route for route in wanted_routes(runtime.application, handlers) if route.kind.contributes]
    if not routes:
        return RowsReconciled(VerifiedRows(), RowsCorrected([], []))
    verifier = RowsVerifier(runtime, routes, live=not runtime.store.is_local)
    found = verifier.verify()
    rows = [*(each.row for each in found.different), *verifier.suspected]
    return RowsReconciled(found, RowCorrection(runtime, verifier.expiring).correct(rows))


class MarkedRow(NamedTuple):
    """A row with a mark in its owner attribute. Every writer of the row removes the mark."""

    mark: str
    before: StoredRow | None  # the row before it was marked


class RowCorrection:
    """Corrects rows of one application.

    A correction must not overwrite a write that comes between its scan of the state and its own write. Each row goes
    through these states:

    - *unmarked*: a row that is put whole by one item is guarded by a fence on that item, and needs no mark.
    - *marked*: other rows get a mark, which every writer of the row removes. Two scans in a row must find the same
      contributions, with the mark still there.
    - *corrected*, or *left* with the reason. A left row loses its mark.

    A row that changed in between is marked again for the next scan, at most ``SCANS_MAX`` times.

    Where additions may wait in deltas, a ledger item holds what is not in the row yet. Five seconds pass between the
    two scans of a marked row: all that was committed before the mark is readable in the second scan, and so are the
    deltas of all that the first one saw. Then a row of which something is pending is left: what waits would be added
    twice. The buckets are looked into before the second scan, too, and five seconds pass again: what waits may be taken
    back together with what the ledger item holds of it.
    """

    def __init__(self, runtime: Runtime, expiring: Collection[str] = ()) -> None:
        self.runtime, self.engine = runtime, runtime.engine
        self.by = by = Explaining(runtime.application, runtime.engine, runtime.known.schema)
        self.expiring = expiring  # the templates of targets whose rows expire
        self.found = RowsCorrected([], [])
        self.others = OtherWriters(by.app.name)
        self.added: set[RowKey] = set()  # rows of targets that replace, to which several items contribute
        self.marked: dict[RowKey, MarkedRow] = {}
        self.held: dict[RowKey, Contributors] = {}  # contributors that were found since the rows were marked
        self.pending = PendingLook(by.app.name, runtime.engine)

    def correct(self, rows: Collection[RowKey]) -> RowsCorrected:
        """Corrects these rows, unless they keep changing. Reads all of the state; raises the errors of reads."""
        with localcontext(EXACT):
            _, busy = stable(
                self.runtime,
                dict.fromkeys(rows),
                lambda pending: dict.fromkeys(self._scanned([row for row in pending if self._prepared(row)])),
                looks_max=SCANS_MAX,
                is_same=lambda *_: False,
            )
            for row in busy:
                self._leave(row, BUSY)
        for found in self.found:
            found.sort(key=str)
        return self.found

    def _prepared(self, row: RowKey) -> bool:
        """Marks a row before a scan, if it needs a mark and lost it; returns whether the row can be corrected."""
        stored, routes = self.engine.read_rows([row]).get(row), row_routes(self.by, row)
        known = self.marked.get(row)
        if known is not None and (stored or {}).get(OWNER) == known.mark:
            return True
        try:
            _check(self.by, row, stored, routes)
            if stored is None and any(key.stored_name in self.expiring for route in routes for key in route.into):
                raise EngineError("Its rows expire: the next item that contributes to it makes it again.")
            self.marked.pop(row, None)
            self.held.pop(row, None)
            # A missing row is marked once items are found to contribute to it: else there is nothing to write.
            if row in self.added or (stored is not None and not (_is_replaced(routes, row) and _is_owned(stored))):
                self._mark(row, stored)
        except Changed:
            pass  # it is marked before the next scan
        except EngineError as error:
            self._leave(row, str(error))
            return False
        return True

    def _mark(self, row: RowKey, stored: StoredRow | None) -> None:
        """Puts a mark on a row; a missing row becomes an empty one with the mark.

        A row may look the same after a change, because one item came and another one left. Without the mark, the
        correction would write the contributions of the earlier items.
        """
        mark, owner = MARK + token_hex(16), (stored or {}).get(OWNER)
        expected, absent = ({}, (OWNER, VERSION)) if owner is None else ({OWNER: owner}, (VERSION,))
        # Without a count of contributors, a writer that takes back from the row would not write it.
        self._send([CorrectRow(row, expected, absent, {OWNER: mark}, {CONTRIBUTORS: 0})])
        self.marked[row] = MarkedRow(mark, stored)

    def _scanned(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """Reads the state, and corrects the rows whose contributions are known; returns the others.

        Two scans have to find the same for a marked row. If one item comes and another one leaves in one transaction,
        the two may cancel each other out, so that the row is not written; a scan may see both of them or neither.
        """
        if not rows:
            return []
        is_second = any(row in self.held for row in rows if row in self.marked)
        waited = is_second and self.pending.may_be()
        early: set[RowKey] = set()
        if waited:
            self.runtime.wait(READABLE_SECONDS)
            early = self.pending.before_scan([row for row in rows if row in self.held and row in self.marked])
            self.runtime.wait(READABLE_SECONDS)
        found = contributors_of(self.by, rows, self.others.see)
        stored, again = self.engine.read_rows(rows), []
        # The mark may have come during the scan, which takes hours: the next scan waits then.
        is_readable = waited or not (is_second and self.pending.may_be())
        self.pending.look_anew(buckets=waited)
        for row in rows:
            if row in early:
                self._leave(row, PENDING)
                continue
            try:
                held = _in_its_life(stored.get(row), found[row])
                before, self.held[row] = self.held.get(row), held
                if row in self.marked and (before is None or not _is_same(before, held) or not is_readable):
                    again.append(row)
                    continue
                self._correct_by(row, stored.get(row), held)
                self.found.corrected.append(row)
            except Changed:
                again.append(row)
            except (EngineError, HandlerError) as error:
                self._leave(row, str(error))
        return again

    def _leave(self, row: RowKey, why: str) -> None:
        self.found.remaining.append(RemainingRow(row, why))
        # The mark is removed too: it would refuse the next put of the row's owner.
        if (marked := self.marked.pop(row, None)) is None:
            return
        if marked.before is None:
            unmarked: GuardedWrite = DeleteRow(row, marked.mark)
        elif CONTRIBUTORS in marked.before:
            unmarked = CorrectRow(row, {OWNER: marked.mark}, removed=(OWNER,))
        else:
            unmarked = CorrectRow(row, {OWNER: marked.mark, CONTRIBUTORS: 0}, removed=(OWNER, CONTRIBUTORS))
        self.engine.transact([unmarked], self.runtime.expires_at)  # refused if somebody has written the row since

    def _correct_by(self, row: RowKey, stored: StoredRow | None, held: Contributors) -> None:
        routes = row_routes(self.by, row)
        marked = self.marked.get(row)
        if marked is not None and (stored or {}).get(OWNER) != marked.mark:
            raise Changed(BUSY)
        if marked is not None and self.pending.has(row):
            raise EngineError(PENDING)
        replaces = _is_replaced(routes, row)
        if not held and stored is None and marked is None:
            return
        if replaces and not held and stored is not None:
            self._remove(row, stored, routes)
        elif replaces and len(held) == 1 and held[0].contribution.digest:
            self._put(row, marked, held[0])
        elif other := self.others.of(routes):
            raise EngineError(
                f"Application {other!r} writes the same target, and its contributions are not known here: the row is "
                "left as it is. Change it by hand."
            )
        elif marked is None:
            self.added.add(row)
            raise Changed(BUSY)
        else:
            self._restore_entries(row, marked, stored or {}, held)
            self._correct(row, stored or {}, held)

    def _put(self, row: RowKey, marked: MarkedRow | None, only: Contributor) -> None:
        """Puts a row again that one item makes, behind a fence on the item."""
        item = item_of(only)
        guard, made = self._guard(only.route, item, row)
        put = row_put(self.by.app.name, only.route, item, row, made[row])
        try:
            self._send([guard, put if marked is None else PutRow(row, put.attributes, marked.mark)])
        except Changed:
            self.added.add(row)  # its owner attribute may be of no item: the row is marked before the next scan
            raise

    def _remove(self, row: RowKey, stored: StoredRow, routes: Iterable[Route]) -> None:
        """Removes a row that no item makes, behind a fence on each item that could own it."""
        guards: dict[object, GuardedWrite] = {}
        for route in routes:
            target = row_target(route, row)
            for item in owning_items(route, target, row) if target is not None and target.owned else ():
                guard, made = self._guard(route, item, row)
                guards[guard.key] = guard
                if row in made:
                    raise Changed(BUSY)
        if not guards:
            raise EngineError("Its key names no item that could own it: remove it by hand.")
        if OWNER not in stored:  # somebody replaced the row since it was looked at
            raise Changed(BUSY)
        self._send([*guards.values(), DeleteRow(row, stored[OWNER])])

    def _guard(self, route: Route, item: ItemKey, row: RowKey) -> tuple[GuardedWrite, Contribution]:
        """A fence on an item whose state agrees with its source, and the contribution that the handler makes of it.

        The visit moves what the item's last step has in deltas. What the row refused of it would be added once more.
        """
        fields = next(fields for each, fields in self.by.app.sources(item) if each.name == route.name)
        visits = Visits(runtime=self.runtime)
        (visit,) = visits.read([VisitedItem(item, route.group, [(route, fields)])])
        for failed in visit.failed:
            raise failed.error
        (step,) = visit.steps
        if visit.text(step) != visit.stored(step):
            raise EngineError("Its item differs from its source: run streamfold repair on the item first.")
        if row in step.after and any(
            row_name(row) in rows for rows in names_in(visit.found.deltas(route.name)).values()
        ):
            raise EngineError(PENDING)
        return visits.unit(visit, visit.steps).guard, step.after

    def _restore_entries(self, row: RowKey, marked: MarkedRow, stored: StoredRow, held: Contributors) -> None:
        """Puts missing and changed entries below the row again, behind a fence on each item, and removes those of no
        item.
        """
        wrong = wrong_entries(self.by, row, stored, held)
        for each in wrong.lacking:
            guard, made = self._guard(each.route, item_of(each), row)
            mark = Mark(self.by.app.name, each.route.name, item_of(each), token_hex(16))
            self._send([guard, *entry_writes(mark, row, NOTHING, made[row].ordered, each.contribution.life)])
        # Every step that puts an entry writes the row, and no row with entries waits in a delta: the mark is enough.
        has_mark = CorrectRow(row, {OWNER: marked.mark}, values={OWNER: marked.mark})
        for some in pages(wrong.extra, ACTIONS_MAX - 1):
            self._send([has_mark, *map(DeleteState, some)])

    def _correct(self, row: RowKey, stored: StoredRow, held: Contributors) -> None:
        """Adds missing amounts to a row, removes attributes that no item makes, and recomputes ordered attributes."""
        sums, changed = sums_of(held), entries_of_row(self.by, row, held)
        if wrong := [name for name in sums if not is_number(stored.get(name, 0))]:
            raise EngineError(f"Its attribute {wrong[0]!r} is no number any more: remove the row by hand first.")
        if not held:  # numbers are subtracted, not removed: a first contribution may come at the same time
            sums = {name: 0 for name, value in stored.items() if not hidden(name) and is_number(value)}
        totals = {**sums, CONTRIBUTORS: len(held)}
        unseen = _unseen(self.by.app, row, stored, held, sums)
        amounts = {name: _lacking(name, total, stored.get(name, 0)) for name, total in totals.items()}
        correction = CorrectRow(
            row,
            {name: stored[name] for name in (OWNER, *totals) if name in stored},
            tuple(name for name in totals if name not in stored),
            # A recomputation from older entries must not be written later.
            {**unseen.values, **({STAMP: token_hex(16)} if changed or STAMP in stored else {})},
            {name: amount for name, amount in amounts.items() if amount or name not in stored},
            (OWNER, *unseen.removed),
        )
        self._send([correction])
        if not held:
            self.engine.remove_empty([row])
        for error in recompute(self.runtime, {row: changed} if changed else {}).values():
            raise EngineError(str(error))

    def _send(self, wanted: list[GuardedWrite]) -> None:
        if self.engine.transact(wanted, self.runtime.expires_at) is not None:
            raise Changed(BUSY)


def _check(by: Explaining, row: RowKey, stored: StoredRow | None, routes: Collection[Route]) -> None:
    """Raises ``EngineError`` for a row whose right values do not follow from the state."""
    if is_writers(stored):
        raise EngineError(writers_own(row))
    if not routes:
        raise EngineError("No handler here contributes to it: it is left as it is.")
    left = retired_in(retired_attributes(routes, by.schema), row)
    if retired := [name for name in sorted(left) if stored is not None and stored.get(name)]:
        raise EngineError(
            f"Retired handlers left {', '.join(map(repr, retired))} in it: their count of contributors is not known. "
            "Change it by hand."
        )
    if stored is not None and not is_number(stored.get(CONTRIBUTORS, 0)):
        raise EngineError("The number of its contributors is no number any more: remove the row by hand first.")


class _Unseen(NamedTuple):
    """The attributes of a row to set and to remove, beside its sums: the recomputation makes the others."""

    values: Mapping[str, Any]
    removed: tuple[str, ...]


def _unseen(
    app: Application, row: RowKey, stored: StoredRow, held: Contributors, sums: Mapping[str, Number]
) -> _Unseen:
    """The life of the row's contributions, attributes that no item makes, and all cut-offs and positions."""
    strange = strange_names({*app.tables[row[0]].attributes, *sums}, stored, held)
    removed = [name for name in stored if name.startswith((EDGE, PLACES))]
    values: dict[str, Any] = {}
    if any(PLAIN_ENTRY in each.contribution.ordered for each in held):
        values[PLAIN_NAMES] = strange  # the recomputation removes those that the winner does not have
    else:
        removed += [*strange, *({PLAIN_NAMES} & stored.keys())]
    life = held[0].contribution.life if held else life_of(stored)
    if life:
        values[LIFE] = life
    elif LIFE in stored:
        removed.append(LIFE)
    return _Unseen(values, tuple(removed))


def _in_its_life(stored: StoredRow | None, held: Iterable[Contributor]) -> Contributors:
    """The contributions to a row in its present life.

    A row that counts contributors has the life of one of them. If none has its life, somebody changed the life: it is
    that of all contributions, if these have one. Raises ``EngineError`` if they have several.
    """
    known = [*held]
    found = in_its_life(stored, known)
    if found or not known or not stored or not stored.get(CONTRIBUTORS):
        return found
    lives = {each.contribution.life for each in known} - {OVER}
    if len(lives) > 1:
        raise EngineError(
            "It counts contributors in a life that none of its items has, and these have several: remove the row by "
            "hand, and the next item makes it again."
        )
    return in_its_life({LIFE: next(iter(lives), "")}, known)


def _is_replaced(routes: Iterable[Route], row: RowKey) -> bool:
    # Such a row is put as a whole while one item alone contributes to it.
    return any((target := row_target(route, row)) is not None and target.replaces for route in routes)


def _is_owned(stored: StoredRow) -> bool:
    # A mark in place of the owner would refuse the owner's next put.
    return not str(stored.get(OWNER, MARK)).startswith(MARK)


def _is_same(one: Contributors, other: Contributors) -> bool:
    # The revision is compared too: a ledger item may have changed and changed back between two scans.
    tokens = ({(each.route.name, each.key, each.revision) for each in held} for held in (one, other))
    return next(tokens) == next(tokens)


def _lacking(name: str, total: Number, stored: Number) -> Number:
    """The amount to add. Raises ``EngineError`` if no number of ``DIGITS_MAX`` digits is that amount."""
    try:
        return EXACT.subtract(total, stored)
    except DecimalException:
        raise EngineError(
            f"No number of {DIGITS_MAX} digits corrects its attribute {name!r}: remove the row by hand first."
        ) from None
