"""The guarded step of one source item: from the contribution in its ledger item to its contribution now."""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from streamfold.keys.table import is_in_state
from streamfold.ledger.contribution import (
    LETTERS_KEPT,
    REFERENCE,
    STAMP_LETTERS,
    Contribution,
    LedgerItem,
    Mark,
    dropped_backlinks,
    elsewhere,
    has_stored,
    kept_text,
    moments_of,
    stored_references,
    stored_rows,
    stored_text,
)
from streamfold.ledger.difference import (
    StepWrites,
    difference,
    entries_between,
    in_lives,
    marked,
    owner_of,
    pending_text,
)
from streamfold.ledger.lives import NO_ROWS, Given, Lives, as_stored
from streamfold.ledger.state_keys import contribution_key
from streamfold.records.change import ItemKey
from streamfold.records.values import Value, value
from streamfold.routes.route import Route, Target
from streamfold.writes.guarded import (
    DeleteRow,
    DeleteState,
    HandlerContribution,
    LedgerWrite,
    PutState,
    RowKey,
    RowWrite,
    StateKey,
    actions_of,
    fitting,
)

if TYPE_CHECKING:
    from streamfold.ledger.wakes import Times

NO_WRITES: Sequence[PutState | DeleteState] = ()
NO_MOMENTS = ""
LIFE_BYTES = 8
"""Bytes of a row's life: 64 bits, so that no two rows of one key have one."""
STAMP_BYTES = 16
"""Bytes of a step's stamp: 128 bits, so that no two steps have one."""
TALLIES_KEPT_MAX = 1000
"""Tallies that are remembered: a handler has few."""
PAGE_ROWS = 98
"""Rows that one page of a large step writes: 100 actions less the ledger item and an item for its contribution."""


@value
class Step(Value):
    """One handler's step from an item's earlier contribution to its contribution now."""

    route: Route
    version: str
    before: Contribution | None  # by the old image; None if that is unknown, so that the ledger must be read
    after: Contribution
    requires_contributor: bool = False  # of each row that it subtracts from; False: it notes those rows
    references: tuple[ItemKey, ...] = ()  # of the item then, each with its backlink in place
    idle: tuple[ItemKey, ...] = ()  # referents with a backlink of this item that it may no longer need
    times: "Times | None" = None  # the moments that the handler asked for; None: none, or it was not called
    keeps_rows: bool = False  # only its wake changes


class Tally(NamedTuple):
    """How many rows a handler writes and deletes with a unit."""

    handler: str
    written: int
    removed: int

    @classmethod
    def of(cls, handler: str, rows: Sequence[RowWrite]) -> "Tally":
        removed = 0
        for row in rows:
            removed += type(row) is DeleteRow
        return tallied(handler, len(rows) - removed, removed)


@lru_cache(TALLIES_KEPT_MAX)
def tallied(handler: str, written: int, removed: int) -> Tally:
    """The tally of a step: nearly all steps of a handler have the same few."""
    return Tally(handler, written, removed)


@value
class Transition(Value):
    """The guarded step of one source item."""

    guard: LedgerWrite
    effects: tuple[RowWrite | PutState | DeleteState, ...]  # the writes that follow from the ledger write
    steps: tuple[Step, ...]  # of the handlers that are not done yet
    tallies: tuple[Tally, ...]
    partial: bool = False  # one page of a step with more rows than one transaction takes
    rows: tuple[Contribution, ...] = ()  # what each handler contributes then, where the ledger was read


def optimistic(
    key: StateKey,
    item: ItemKey,
    steps: tuple[Step, ...],
    added: AbstractSet[RowKey] = NO_ROWS,
    lives: Lives | None = None,
) -> Transition:
    """The step on the assumption that the ledger agrees with the old images, without reading it. Every ``before`` must
    be known.

    ``added``: rows that others add to (see ``difference``). ``lives``: of rows that expire.

    ``_from_found`` plans the same step from the ledger's texts. Writing the assumed texts first would take 78,000 more
    instructions for two handlers. One test holds both equal
    (``test_an_optimistic_step_is_the_one_that_is_planned_from_the_ledger_that_it_assumes``).
    """
    application = _application(key)
    handlers, tallies, stored_before, stored_after = [], [], 0, 0
    effects: list[RowWrite | PutState | DeleteState] = []
    for step in steps:
        route, was, now = step.route, step.before, step.after
        assert was is not None
        before = text = stored_text(was) if was else ""
        large = ""  # the contribution before, if it is kept elsewhere
        if len(before) > LETTERS_KEPT:
            before = kept_text(before)
            large = text if before.startswith(REFERENCE) else ""
        if not large and (was is now or was == now):  # no row is touched
            tallies.append(tallied(route.name, 0, 0))
            handlers.append(HandlerContribution(route.name, step.version, before, before))
            stored_before += bool(before)
            stored_after += bool(before)
            continue
        given = _given(key, item, step, (was, before), added, lives)
        was, now = given.before, given.after
        after, writes = stored_text(given.stored), NO_WRITES
        if large or len(after) > LETTERS_KEPT:
            after, writes = _kept(key, route, after, large)
        between = difference(application, route, item, was, now, added, requires_contributor=step.requires_contributor)
        in_lives(between, route, given, lives)
        rows: Sequence[RowWrite] = between
        pending = None
        if between.marks or between.leaves:  # most steps need no stamp
            pending = _stamped(key, step, before, pending_text(was, now, rows))
            if between.marks:
                mark = _mark(key, item, step, before)
                rows = marked(rows, mark, was, now)
                writes = [*writes, *entries_between(mark, was, now)]
        effects += rows
        effects += writes
        tallies.append(tallied(route.name, len(between) - between.removed, between.removed))
        handlers.append(HandlerContribution(route.name, step.version, after, before, pending))
        stored_before += bool(before)
        stored_after += bool(after)
    expires = not stored_after
    guard = LedgerWrite(
        key, tuple(handlers), None, stored_after - stored_before, expires, stored_before if expires else None
    )
    return Transition(guard, tuple(effects), steps, tuple(tallies))


def replanned(
    key: StateKey,
    item: ItemKey,
    steps: tuple[Step, ...],
    found: LedgerItem,
    added: AbstractSet[RowKey] = NO_ROWS,
    retired: Collection[str] = (),
    lives: Lives | None = None,
) -> Transition | None:
    """The step from the ledger as read; None if every handler's contribution is as new already.

    Contributions of ``retired`` handlers are removed with the last other one: otherwise the item could never expire.
    The caller has filled in large contributions (``commit.ledger_units.filled``). ``lives`` are as in ``optimistic``.
    """
    undone = tuple(step for step in steps if not is_done(step, found))
    if not undone:
        return None
    return _from_found(key, item, undone, found, added, retired=retired, lives=lives)


def reconciled(
    key: StateKey,
    item: ItemKey,
    steps: tuple[Step, ...],
    found: LedgerItem,
    added: AbstractSet[RowKey] = NO_ROWS,
    lives: Lives | None = None,
) -> Transition:
    """The steps from the ledger as read to the present source item.

    They are written even if nothing differs, with a fence: an optimistic write that was planned before is then refused.
    No version falls: otherwise a record of a newer version would be applied again.
    """
    rising = tuple(
        step if step.version >= (version := found.version(step.route.name)) else step._replace(version=version)
        for step in steps
    )
    return _from_found(key, item, rising, found, added, lives=lives, fence=True)


def taken_back(key: StateKey, item: ItemKey, step: Step, found: LedgerItem, lives: Lives | None = None) -> Transition:
    """The step of a handler back to what the item contributed before, whose version falls, and which names no deltas.

    The caller moves what a delta holds of it by that delta (``commit.taking_back``).
    """
    transition = _from_found(key, item, (step,), found, NO_ROWS, lives=lives)
    guard = transition.guard
    contributions = tuple([each._replace(deltas="") for each in guard.contributions])
    return transition._replace(guard=guard._replace(contributions=contributions))


def _from_found(
    key: StateKey,
    item: ItemKey,
    undone: tuple[Step, ...],
    found: LedgerItem,
    added: AbstractSet[RowKey],
    *,
    retired: Collection[str] = (),
    lives: Lives | None = None,
    fence: bool = False,
) -> Transition:
    application, expected = _application(key), f"r{found.revision}"
    handlers, tallies, contributions, live, partial = [], [], [], 0, False
    effects: list[RowWrite | PutState | DeleteState] = []
    for step in undone:
        route, stored = step.route, found.contributions.get(step.route.name)
        text, known = (stored.text, stored.pending) if stored else ("", "")
        before, version = stored_rows(text) if text else {}, step.version
        given, between = _changed(key, item, step, (before, expected), added, lives)
        target, was, now = given.stored, given.before, given.after
        # As of most steps, there are no entries and nothing is pending.
        mark = _mark(key, item, step, expected) if between.marks or between.leaves or len(was) < len(before) else None
        rows = marked(between, mark, was, now) if mark is not None and between.marks else between
        beside = _beside(application, step, item, text, holds=_finishes(step, given, between, known))
        room = PAGE_ROWS - len(beside.writes)
        if len(undone) == 1 and (most := fitting(rows, room)) < len(rows):
            partial, version, rows = True, stored.version if stored else "", rows[:most]
            target = _page(before, target, rows)
        elif len(undone) == 1 and (over := _beyond(rows, before, was, room)):
            partial, version = True, stored.version if stored else ""
            target = {**target, **over}
        if partial:
            beside = _beside(application, step, item, text, partial=True)
        after, writes = stored_text(target, beside.references, beside.moments), NO_WRITES
        if len(after) > LETTERS_KEPT or len(text) > LETTERS_KEPT:
            after, writes = _kept(key, route, after, _large(text))
        entries, leaves = list[PutState | DeleteState](), None
        if mark is not None:
            # Entries of a row that expired are deleted with the contribution that names them: nothing names them later.
            entries = entries_between(mark, before, target)
            leaves = _stamped(key, step, mark.stamp, pending_text(was, now, rows, known))
        effects += [*rows, *writes, *entries, *beside.writes]
        tallies.append(Tally.of(route.name, rows))
        contributions.append(target)
        # The name of a delta that is gone is removed. A delta that a row refuses is named until the row takes it.
        handlers.append(
            HandlerContribution(route.name, version, after, text, leaves, stored.deltas if stored else None)
        )
        live += has_stored(after) - found.counted.get(route.name, has_stored(text))
    kept = found.contributions.items() if retired else ()
    gone = {name: each for name, each in kept if name in retired and has_stored(each.text)}
    if not partial and found.live + live == len(gone) <= PAGE_ROWS - len(effects):
        handlers += [HandlerContribution(name, each.version, "", each.text) for name, each in gone.items()]
        effects += [DeleteState(contribution_key(key, name)) for name, each in gone.items() if elsewhere(each)]
        live -= len(gone)
    expires = not partial and found.live + live == 0
    guard = LedgerWrite(key, tuple(handlers), found.revision, live, expires, fence=fence)
    return Transition(guard, tuple(effects), undone, tuple(tallies), partial, tuple(contributions))


def moments_after(step: Step, text: str) -> str:
    """The moments in the text of a contribution after a step; "" if there are none."""
    if not (step.route.asks_time or moments_of(text)):
        return NO_MOMENTS
    from streamfold.ledger.wakes import waits_after  # few handlers ask for the time

    return waits_after(text, step.times, asks_time=step.route.asks_time != "").text


def awaited_wake(application: str, handler: str, item: ItemKey, text: str) -> StateKey | None:
    """The key of the wake that the text of a contribution names; None if the item does not wait."""
    if not moments_of(text):
        return None
    from streamfold.ledger.wakes import Waits, wake_key  # few handlers ask for the time

    wake = Waits.of(text).wake
    return None if wake is None else wake_key(application, handler, item, wake)


class Beside(NamedTuple):
    """What a step stores beside rows: what its item refers to, and the moments that its handler asked for."""

    references: Collection[ItemKey]
    moments: str
    writes: Sequence[PutState | DeleteState]


def _beside(
    application: str, step: Step, item: ItemKey, text: str, *, partial: bool = False, holds: bool = False
) -> Beside:
    """What a step stores beside rows, and its writes. ``text``: of the stored contribution. ``partial``: of a page
    before the last one. ``holds``: the wake in place stays.
    """
    refers, references = stored_references(text), step.references
    writes: list[PutState | DeleteState] = []
    if partial:
        # Both references are stored until the last page: a change of either referent has to find the item.
        references = tuple({**dict.fromkeys(refers), **dict.fromkeys(references)})
    elif refers or step.idle:
        writes += dropped_backlinks(application, step.route.name, item, {*refers, *step.idle}, references)
    if not (step.route.asks_time or moments_of(text)):
        return Beside(references, NO_MOMENTS, writes)
    from streamfold.ledger.wakes import Waits, waits_after, wake_writes  # few handlers ask for the time

    after = waits_after(text, step.times, asks_time=step.route.asks_time != "", holds=partial or holds)
    writes += wake_writes(application, step.route.name, item, Waits.of(text), after, step.times)
    return Beside(references, after.text, writes)


def _changed(
    key: StateKey,
    item: ItemKey,
    step: Step,
    begin: tuple[Contribution, str],
    added: AbstractSet[RowKey],
    lives: Lives | None,
) -> tuple[Given, StepWrites]:
    """A step with the lives of its rows, and the writes between. ``begin`` is as in ``_given``."""
    if step.keeps_rows:
        return Given(begin[0], begin[0], begin[0], NO_ROWS, plain=True), StepWrites()
    given = _given(key, item, step, begin, added, lives)
    between = difference(
        _application(key),
        step.route,
        item,
        given.before,
        given.after,
        added,
        requires_contributor=step.requires_contributor,
    )
    in_lives(between, step.route, given, lives)
    return given, between


def _finishes(step: Step, given: Given, between: StepWrites, known: str) -> bool:
    """Whether a visit at a wake leaves it in place, because something is to be finished after the commit."""
    if step.times is None or not step.times.holds:
        return False
    if known or (
        (between.marks or between.leaves) and pending_text(given.before, given.after, between, known) is not None
    ):
        return True
    # Rows that are copied onto items, or made of entries: nothing notes that the present ones are finished.
    rows = (*given.before.items(), *given.after.items())
    shown_later = any(is_in_state(row) or contribution.ordered for row, contribution in rows)
    return shown_later and (step.times.holds_rows or bool(between))


def _application(key: StateKey) -> str:
    return key.pk.split("#", 2)[1]


def _mark(key: StateKey, item: ItemKey, step: Step, expected: str) -> Mark:
    # The stamp is a digest that no other step of this ledger item has.
    stamp = blake2b(_identity(key, step, expected), digest_size=STAMP_BYTES).hexdigest()
    return Mark(_application(key), step.route.name, item, stamp)


def _given(
    key: StateKey,
    item: ItemKey,
    step: Step,
    begin: tuple[Contribution, str],
    added: AbstractSet[RowKey],
    lives: Lives | None,
) -> Given:
    """A step with the lives of its rows. ``begin``: the contribution before it, and the conditions on that."""
    before, expected = begin
    if (lives is None or not lives.matter) and not any(each.life for each in before.values()):  # as nearly always
        return Given(step.after, before, step.after, NO_ROWS, plain=True)
    route = step.route

    def owner(target: Target | None) -> str:
        return owner_of(_application(key), route, target, item)

    return (lives or Lives()).given(route, (before, step.after), _life(key, step, expected), added, owner)


def _life(key: StateKey, step: Step, expected: str) -> str:
    return blake2b(_identity(key, step, expected), digest_size=LIFE_BYTES).hexdigest()


def _stamped(key: StateKey, step: Step, expected: str, pending: str | None) -> str | None:
    # The stamp before the pending work keeps a late ``clear_pending`` from matching a newer step's.
    return None if pending is None else f"{crc32(_identity(key, step, expected)):0{STAMP_LETTERS}x}{pending}"


def _identity(key: StateKey, step: Step, expected: str) -> bytes:
    return "\0".join((*key, step.route.name, step.version, expected)).encode()


def _page(before: Contribution, after: Contribution, writes: list[RowWrite]) -> Contribution:
    """The contribution when only these writes of a step are done."""
    rows = dict(before)
    for write in writes:
        if write.key in after:
            rows[write.key] = after[write.key]
        else:
            del rows[write.key]
    return rows


def _beyond(rows: Sequence[RowWrite], before: Contribution, was: Contribution, most: int) -> Contribution:
    """Contributions to expired rows whose remaining entries do not fit beside these rows."""
    room = most - sum(map(actions_of, rows))
    beyond: Contribution = {}
    for key, each in before.items():
        if key not in was and each.ordered:
            size = sum(len(found.entries) for found in each.ordered.values())
            if size > room < most:  # a page without rows takes one at least, so that each page makes progress
                beyond[key] = each
            else:
                room -= size
    return beyond


def is_done(step: Step, found: LedgerItem) -> bool:
    stored = found.contributions.get(step.route.name)
    return stored is not None and stored.version >= step.version


def contribution_after(step: Step, found: LedgerItem) -> Contribution:
    """The contribution in the ledger after a step. If the stored contribution is of a newer change, it remains.

    A row to which the item contributes before and after the step keeps its life there. So the pending work of a process
    that died is finished for the entries of that life.
    """
    if (stored := found.contributions.get(step.route.name)) is None:
        return step.after
    rows = stored_rows(stored.text)
    return rows if is_done(step, found) else as_stored(rows, step.after)


def _large(text: str) -> str:
    # A contribution that is kept in an item of its own; "" for one that is not.
    return text if kept_text(text).startswith(REFERENCE) else ""


def _kept(key: StateKey, route: Route, text: str, elsewhere: str) -> tuple[str, Sequence[PutState | DeleteState]]:
    """The text for the ledger item, and the writes of the item that holds a large contribution.

    elsewhere: the contribution that this item holds; "" if there is none. An equal one is not put again: the ledger
    item names it by its digest, so the write of the ledger item is refused if it is another one.
    """
    kept = kept_text(text)
    if kept.startswith(REFERENCE):
        return kept, [] if text == elsewhere else [PutState(contribution_key(key, route.name), text)]
    return kept, [DeleteState(contribution_key(key, route.name))] if elsewhere else []
