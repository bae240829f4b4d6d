"""The work after the transactions: keyed puts, empty rows that are removed, rows that are recomputed from entries."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.commit.emptying import count_steps
from streamfold.commit.outcome import Failed
from streamfold.commit.pending import ChangedByRow, Progress
from streamfold.commit.plan import KeyedPut
from streamfold.commit.transactions import by_table, fold_times, in_slots, may_pass, not_shown, read_rows
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import Engine, Entries, Inserted
from streamfold.errors import (
    Contended,
    EngineError,
    EngineUnavailable,
    HandlerError,
    TableThrottled,
    in_brackets,
    redacted,
)
from streamfold.keys.table import EDGE, LIFE, PLACES, PLAIN_NAMES, STAMP
from streamfold.ledger.contribution import BEYOND, PLAIN_ENTRY, in_order, order_of, values_of
from streamfold.records.values import encode
from streamfold.routes.aggregates import ALL_MAX, Ordering, ordering_of, shown_of
from streamfold.runtime import Runtime
from streamfold.settings.limits import STATEMENTS_MAX
from streamfold.writes.guarded import ChangedEntries, RecomputedRow, RowKey

if TYPE_CHECKING:
    from streamfold.writes.guarded import PutRow
PAGE_ENTRIES = 100
"""Entries that are read at once where each value counts once."""

COMPARED = (str, int, Decimal, set)
"""Types of values that are equal in the store where they are in Python; a list may hold ``True`` for ``1``."""
UNCHANGED, WRITTEN, AGAIN = "unchanged", "written", "again"
"""The outcome of one try with a row."""

RowValues = Mapping[str, Any]
EntryRead = tuple[str, str]
"""The sort position of an entry and the text of its value."""


class Shows(NamedTuple):
    """The entries that count for a row."""

    contents: tuple[str, ...]  # their values, as texts, in the order in which they count
    edge: str  # the cut-off: the sort position of the last one; "" if all entries count
    positions: tuple[str, ...] = ()  # the sort position of each; of values that count once, the text that orders it


def recompute(runtime: Runtime, touched: ChangedByRow, written: set[RowKey] | None = None) -> dict[RowKey, Exception]:
    """Recomputes rows whose entries changed; returns the rows that failed. ``written`` takes the rows that changed."""
    failed: dict[RowKey, Exception] = {}
    if not touched:
        return failed
    pending, written, throttled = touched, set() if written is None else written, list[TableThrottled]()
    try:
        # Other processes may change entries during each round: the bound ends a race that this process always loses.
        for _ in runtime.tries():
            pending = _round(runtime, pending, failed, written, throttled)
            if not pending:
                break
    except EngineError as error:
        return failed | dict.fromkeys(pending, error)
    why = f"because the row is changed or throttled{in_brackets(limit for each in throttled for limit in each.limits)}"
    return failed | dict.fromkeys(pending, Contended(f"Refused {TRIES_MAX} times in a row, {why}; it is retried."))


def _round(
    runtime: Runtime,
    touched: ChangedByRow,
    failed: dict[RowKey, Exception],
    written: set[RowKey],
    throttled: list[TableThrottled],
) -> ChangedByRow:
    """Tries each row once; returns the rows to try again, because others changed entries meanwhile.

    ``failed`` takes the rows that no retry can help. If the store is throttled, the rest waits for the next round.
    """
    rows = read_rows(runtime, touched, failed)
    calls = (
        (key, partial(_recomputed, runtime.engine, key, rows[key], changed))
        for key, changed in touched.items()
        if key in rows
    )
    finished = {key for key in touched if key not in rows}
    for key, done in in_slots(runtime.slots, calls, stops=lambda error: isinstance(error, TableThrottled)):
        if isinstance(done, TableThrottled):
            throttled.append(done)
            continue
        if isinstance(done, EngineError | HandlerError):
            failed[key] = done
        elif done is AGAIN:
            continue
        elif done is WRITTEN:
            written.add(key)
        finished.add(key)
    return {key: changed for key, changed in touched.items() if key not in finished}


def _recomputed(engine: Engine, key: RowKey, row: RowValues, changed: Iterable[ChangedEntries]) -> str:
    """Recomputes the row from its entries. Returns whether another process changed entries meanwhile."""
    known = [each for each in (_as_ordered(row, each) for each in changed) if each is not None]
    differing, gone = _differing(engine, row, [each for each in known if STAMP in row and _concerns(row, each)])
    if not differing and not gone:
        return UNCHANGED
    refused = engine.transact([RecomputedRow(key, row[STAMP], differing, gone)], 0)
    if refused is None:
        return WRITTEN
    reason = next(reason for reason in refused.reasons if reason is not None)
    if not may_pass(reason, key):
        raise not_shown(key, {name: value for name, value in {**row, **differing}.items() if name not in gone}, reason)
    return AGAIN


def _differing(
    engine: Engine, row: RowValues, changed: Iterable[ChangedEntries]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The attributes that entries make otherwise than the row has them, and those that they make no more."""
    values: dict[str, Any] = {}
    removed: list[str] = []
    for each in changed:
        _show(row, each, read_shows(engine, each.partition, ordering_of(each.ordering)), values, removed)
    differing = {name: value for name, value in values.items() if name not in row or not _equal(value, row[name])}
    return differing, tuple(name for name in removed if name in row and name not in values)


def differing_from_entries(
    engine: Engine, row: RowValues, entries: Iterable[ChangedEntries]
) -> dict[str, tuple[Any, Any]]:
    """The attributes of a row that entries below it make otherwise, each as it is stored and as it is expected.

    ``entries``: of all attributes of the row. Raises ``HandlerError`` for an aggregate that this code does not have.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for each in entries:
        values, gone = _differing(engine, row, [each])
        edge = EDGE + each.name
        ordering, _, kept = str(row.get(edge, "")).partition(" ")
        if edge in values and ordering == each.ordering:
            known = ordering_of(ordering)
            if kept in cut_offs(read_shows(engine, each.partition, known), known):
                del values[edge]
        found |= {name: (row.get(name), value) for name, value in values.items()}
        found |= {name: (row[name], None) for name in gone}
    return found


def _as_ordered(row: RowValues, changed: ChangedEntries) -> ChangedEntries | None:
    """The changed entries, with the row's ordering if this code has none; None if neither has one."""
    if changed.ordering:
        return changed
    ordering, _, _ = str(row.get(EDGE + changed.name, "")).partition(" ")
    return changed._replace(ordering=ordering) if ordering else None


def _concerns(row: RowValues, changed: ChangedEntries) -> bool:
    """Whether a changed entry may count, by the row's life and cut-off. If not, the row need not be read again."""
    if row.get(LIFE, "") != changed.life:
        return False  # the row expired, and the present row has entries of its own
    ordering, _, edge = str(row.get(EDGE + changed.name, "")).partition(" ")
    if ordering != changed.ordering or not edge:
        return True
    form = ordering_of(ordering).form
    return any(in_order(form, [(place,), (edge,)])[0] == (place,) for place in changed.positions)


def read_shows(engine: Engine, partition: str, ordering: Ordering) -> Shows:
    """The entries of one attribute that count."""
    form = ordering.form
    if form.once:
        return _read_once_each(engine, partition, ordering)
    if not ordering.most:
        found = engine.read_entries(Entries(partition, ALL_MAX + 1, descending=form.descending))
        if len(found) > ALL_MAX:
            raise _too_many(ordering)
        return _shows(found if form.in_store else in_order(form, found), "")
    more = form.collects or not form.in_store  # one more shows whether there are more, or whether there is a tie
    found = engine.read_entries(Entries(partition, ordering.most + more, descending=form.descending))
    shown = found[: ordering.most] if form.in_store else _with_ties(engine, partition, ordering, found)
    return _shows(shown, shown[-1][0] if shown and len(found) >= ordering.most + form.collects else "")


def _shows(entries: Sequence[EntryRead], edge: str) -> Shows:
    places, contents = zip(*entries, strict=True) if entries else ((), ())
    return Shows(contents, edge, places)


def cut_offs(shows: Shows, ordering: Ordering) -> set[str]:
    """The right cut-offs for entries that count. A row that had more values keeps the one of its last value."""
    found = {shows.edge}
    if ordering.most == len(shows.contents) > 0 and (ordering.form.collects or ordering.form.once):
        found.add(shows.positions[-1] + (BEYOND if ordering.form.once else ""))
    return found


def _too_many(ordering: Ordering) -> HandlerError:
    """Why a row is refused of which all entries count."""
    form = ordering.form
    last = "count. Count on a row for each value, or on more rows" if form.once else "value. Spread them over more rows"
    return HandlerError(
        f"{form.aggregate.__name__} has more than {ALL_MAX} values on one row, all of which each change reads: the row "
        f"keeps its last {last}."
    )


def _with_ties(engine: Engine, partition: str, ordering: Ordering, found: list[EntryRead]) -> list[EntryRead]:
    """The entries that count, if equal values are stored in the opposite of the order in which they count.

    ``found`` has one entry more than count, which shows whether there is a tie at the cut-off.
    """
    form, shown, beyond = ordering.form, found[: ordering.most], found[ordering.most :]
    if beyond and (tied := order_of(beyond[0][0])) == order_of(shown[-1][0]):
        shown = [entry for entry in shown if order_of(entry[0]) != tied]
        rest = ordering.most - len(shown)
        shown += engine.read_entries(Entries(partition, rest, tied, form.largest_key, before=tied + BEYOND))
    return in_order(form, shown)


def _read_once_each(engine: Engine, partition: str, ordering: Ordering) -> Shows:
    """The entries that count if each value counts once: page by page, skipping the rest of a page's last value."""
    found: dict[str, str] = {}
    after = ""
    while page := engine.read_entries(Entries(partition, PAGE_ENTRIES, after)):
        for place, content in page:
            found.setdefault(order_of(place), content)
        after = order_of(page[-1][0]) + BEYOND  # greater each time, so that this ends
        if not ordering.most and len(found) > ALL_MAX:
            raise _too_many(ordering)
        if len(page) < PAGE_ENTRIES or 0 < ordering.most < len(found):
            break
    if 0 < ordering.most < len(found):
        kept = list(found)[: ordering.most]
        return Shows(tuple(found[order] for order in kept), kept[-1] + BEYOND, tuple(kept))
    return Shows(tuple(found.values()), "", tuple(found))


def _show(row: RowValues, changed: ChangedEntries, shows: Shows, values: dict[str, Any], removed: list[str]) -> None:
    """Adds to ``values`` and ``removed`` the changes of one attribute, from its entries."""
    edge, names = EDGE + changed.name, [changed.name]
    if changed.name == PLAIN_ENTRY:
        names = [*row.get(PLAIN_NAMES, ()), PLAIN_NAMES]
    removed.append(PLACES + changed.name)
    if not shows.contents:
        # Without an edge a row shows nothing made of entries: its attribute is a plain one by now.
        removed += [*names, edge] if edge in row else []
        return
    form, contents = ordering_of(changed.ordering).form, values_of(shows.contents)
    value = shown_of(form, contents)
    values[edge] = f"{changed.ordering} {shows.edge}"
    if form.keeps:
        values[PLACES + changed.name] = form.aggregate.keep(form, shows.positions, contents)
    if changed.name == PLAIN_ENTRY:
        values.update(value)
        values[PLAIN_NAMES] = sorted(value)
        removed += [name for name in names if name not in values]
    else:
        values[changed.name] = value


def _equal(one: Any, other: Any) -> bool:
    if type(one) is type(other) and type(one) in COMPARED:
        return bool(one == other)
    return encode(one) == encode(other)


def put_rows(runtime: Runtime, puts: Sequence[KeyedPut], progress: Progress) -> None:
    """Inserts rows whose key contains the change, unless they exist."""
    if not puts:
        return
    rows: dict[RowKey, PutRow] = {}
    for put in puts:
        rows.setdefault(put.row.key, put.row)
        fold_times(runtime, put.change.item, (put.row.key,))
    not_taken = EngineUnavailable("The store did not take the row; it is written when the record is retried.")
    failed: dict[RowKey, EngineError | HandlerError] = {}
    known: set[RowKey] = set()

    def insert(keys: Sequence[RowKey]) -> Inserted:
        return runtime.engine.insert_rows([rows[key] for key in keys])

    for keys, inserted in by_table(runtime, [*rows], insert, STATEMENTS_MAX):
        if isinstance(inserted, EngineError):
            failed |= dict.fromkeys(keys, inserted)
            progress.note_fatal(inserted)
        else:
            failed |= dict.fromkeys(inserted.missing, not_taken)
            failed |= {
                key: HandlerError(f"The store refuses the row: {redacted(why)}")
                for key, why in inserted.refused.items()
            }
            known.update(inserted.known)
    for put in puts:
        if put.row.key in failed:
            progress.outcome.failed.append(Failed(put.change, put.route, failed[put.row.key]))
        else:
            progress.put(put, is_known=put.row.key in known)


def recompute_rows(runtime: Runtime, progress: Progress) -> None:
    """Recomputes rows whose entries changed.

    It follows the removal of empty rows: otherwise a row that gets contributions in between could show removed values.
    """
    changed: set[RowKey] = set()
    wrong = recompute(runtime, progress.pending_work.changed_entries, changed)
    for key in changed - progress.written:
        for handler in progress.pending_work.handlers(key):
            progress.outcome.tally(handler).written += 1
    progress.pending_work.wrong = wrong.keys()
    progress.report(failed for key, error in wrong.items() for failed in progress.pending_work.failures([key], error))


def remove_empty(runtime: Runtime, progress: Progress) -> None:
    """Removes rows without contributors, and learns which handlers' rows become empty."""
    pending_work, emptied = progress.pending_work, set[str]()
    if rows := pending_work.lowered.maybe_empty():
        for keys, removed in by_table(runtime, rows, runtime.engine.remove_empty, STATEMENTS_MAX):
            if isinstance(removed, EngineError):
                failures = pending_work.failures(keys, removed)
                emptied.update(failed.route.name for failed in failures)  # for all that is known
                progress.report(failures)
                continue
            if progress.lives is not None:
                progress.lives.removed(removed)
            for key in removed:
                for handler in pending_work.handlers(key):
                    progress.outcome.tally(handler).removed += 1
                    emptied.add(handler)
    if pending_work.notes:
        count_steps(runtime.pace.emptying, Counter([handler for _, handler in pending_work.notes]), emptied)
