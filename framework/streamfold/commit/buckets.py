"""Waits for deltas, and moves them into their rows (``ledger.deltas``, docs/decisions/0080-deltas.md).

Nothing says that work is done before the deltas that it put, and those that its ledger items and claims name, are gone.
A process waits a moment for its deltas; if nobody has emptied their buckets by then, it does so for all.

| bucket | event                                               | next   | the failure that this prevents              |
| ------ | --------------------------------------------------- | ------ | ------------------------------------------- |
| free   | a process finds deltas pending, and takes the lease | leased | all who wait read and move the same         |
| leased | the process gives the lease back                    | rests  | the next one comes before there is more     |
| leased | ``LEASE_SECONDS`` pass: the process died            | free   | everybody waits for it for good             |
| rests  | ``REST_SECONDS`` pass                               | free   | nobody empties it again                     |

The lease saves work and guards nothing: two who empty one bucket meet at a delta, which only one of them deletes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from os import urandom
from random import random
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.commit.mover import LostRow, Mover
from streamfold.commit.outcome import Failed
from streamfold.commit.transactions import all_in_slots, read_state
from streamfold.engines.protocol import Entries
from streamfold.errors import Contended, EngineError, EngineUnavailable, HandlerError, damaged
from streamfold.ledger.contribution import LedgerItem, stored_rows
from streamfold.ledger.deltas import (
    BUCKETS,
    STRIPES,
    Delta,
    bucket_in,
    delta_key,
    head_key,
    names_in,
    names_text,
    shared_key,
    stripe_partition,
)
from streamfold.ledger.difference import differs
from streamfold.ledger.lives import as_stored
from streamfold.ledger.state_keys import row_name
from streamfold.ledger.step import Step
from streamfold.records.change import Change
from streamfold.routes.route import Route
from streamfold.runtime import SHARED_SECONDS, Runtime
from streamfold.writes.guarded import DeleteState, SwapText

if TYPE_CHECKING:
    from streamfold.writes.guarded import (
        StateKey,
    )

LEASE_SECONDS = 2.0
"""A transaction takes 20 ms: a process that does not answer for so long has died, or is slower than another one."""
REST_SECONDS = 0.1
"""Time until a bucket is emptied again: more deltas come meanwhile, and move together."""
LOOK_SECONDS_MAX = 0.8
"""The longest pause between two looks for deltas. Each is twice as long as the one before, because a thousand processes
that wait for one bucket read one key."""
JITTER = 0.5
"""Waits are longer or shorter by up to this share: processes that began together would be refused together."""
LOOKS_MAX = 100
"""Times that a process looks for its deltas: over a minute, in which the deadline of most invocations comes."""
AT_ONCE_MAX = 8
"""Buckets that nobody waits for, which one batch or request empties."""
FOUND_MAX = 100
"""Deltas of one stripe that are read at once: their transactions take as long as a lease."""
TRIED_AGAIN_SECONDS = 60
"""Time after which what a row refused is tried again."""
LOOKED_SECONDS = 600.0
"""A new process looks into buckets that nobody has emptied for so long: a process may have died with deltas in them."""
SHARED_ROWS_MAX = 400
"""Shared rows that are noted of a bucket, the latest: 8 KB."""
SHARED_FRESH_SECONDS = 10.0
"""Time after which it is noted again that a row is shared: each note is as large as all rows of the bucket."""
TAKEN_BACK = "A row refused what this record adds, and its step was taken back; the record is retried."
PENDING = "What this record adds waits in a delta, and could not be moved into its row in time; the record is retried."

Waiters = tuple[frozenset[str], Sequence[Route], Sequence[Change], "StateKey | None"]
"""Rows by name, whose changes wait for what a delta adds to them, and the ledger item that names it; None: a claim."""
Texts = dict[str, str]
"""Deltas as they were read, by name."""


class WaitingDeltas:
    """The deltas that a batch, or another piece of work, waits for before it reports that it is done."""

    def __init__(self, *, tries_all: bool = False) -> None:
        self.own: Texts = {}  # put by this process, in transactions that were answered
        self.uncounted = 0  # of these
        self.waiters: dict[str, list[Waiters]] = {}  # of all deltas that are waited for
        self.items: dict[tuple[StateKey, str], str] = {}  # names that ledger items have when this is done, by handler
        self.versions: dict[tuple[StateKey, str], str] = {}  # of steps of other calls, by ledger item and handler
        self.gone: set[str] = set()  # seen absent
        self.lost: set[LostRow] = set()  # that somebody had removed, by a handler that withdrew from one
        self.refused: dict[str, Delta] = {}  # what was left of deltas when they were looked at last
        self.damaged: dict[str, str] = {}  # deltas that cannot be read, with what to do about it
        self.tries_all = tries_all  # also what a row refused a moment ago: a person who repairs has removed the cause
        self._tried: set[int] = set()  # buckets in which that was tried again

    def put(self, puts: Iterable[SwapText]) -> None:
        """Adds deltas that were put."""
        before = len(self.own)
        self.own.update((each.key.sk, each.text) for each in puts)
        self.uncounted += len(self.own) - before

    def wait_for(
        self, names: str, routes: Sequence[Route], changes: Sequence[Change], key: "StateKey | None" = None
    ) -> None:
        """Adds the deltas that a claim, or a ledger item of this key, names, with what is reported if they cannot be
        moved.
        """
        for name, rows in names_in(names).items():
            self.waiters.setdefault(name, []).append((rows, routes, changes, key))

    def wait_for_item(
        self, found: LedgerItem, routes: Iterable[Route], changes: Sequence[Change], key: "StateKey | None" = None
    ) -> None:
        """Adds the deltas that a ledger item names of these handlers."""
        for route in routes:
            if names := found.deltas(route.name):
                self.wait_for(names, [route], changes, key)
                if key is not None:
                    self.versions[key, route.name] = found.contributions[route.name].version

    def refused_waiters(self) -> dict[tuple["StateKey", str], tuple[Route, Sequence[Change]]]:
        """Those who put what a row refuses, by ledger item and handler."""
        return {
            (key, route.name): (route, changes)
            for name, delta in self.refused.items()
            for rows, routes, changes, key in self.waiters.get(name, ())
            if name in self.own and key is not None and rows & delta.rows
            for route in routes
        }

    def drop_waiter(self, key: "StateKey", handler: str) -> None:
        """Waits no more for what a ledger item names of a handler: its step was taken back."""
        self.items.pop((key, handler), None)
        for name, waiters in self.waiters.items():
            self.waiters[name] = [
                each for each in waiters if each[3] != key or handler not in {route.name for route in each[1]}
            ]

    def to_try_again(self, now: float) -> set[int]:
        """The buckets in which refused additions are tried again: once by each piece of work, and nobody waits."""
        names = [name for name, delta in self.refused.items() if self.tries_all or _is_tried_again(delta, now)]
        return {bucket_in(name) for name in names} - self._tried

    def tried(self, buckets: Iterable[int]) -> None:
        self._tried.update(buckets)

    def failures(self, error: Exception) -> list[Failed]:
        """The changes whose deltas are not gone, with the reason."""
        failed: list[Failed] = []
        for name, waiters in self.waiters.items():
            if name in self.gone:
                continue
            refused = self.refused.get(name)
            reason = refused.refused.reason if refused and refused.refused else self.damaged.get(name)
            why = refused.refused.error if refused and refused.refused else HandlerError(reason) if reason else error
            for rows, routes, changes, _ in waiters:
                if refused is None or rows & refused.rows:
                    failed += [Failed(change, route, why) for route in routes for change in changes]
        return failed


def wait_for_deltas(
    runtime: Runtime, waiting: WaitingDeltas, take_back: Callable[[WaitingDeltas], None] | None = None
) -> list[Failed]:
    """Waits until all deltas that are waited for are in their rows; returns the failures of those that are not.

    ``take_back``: is called if rows refuse some.
    """
    pending = waiting.waiters.keys() - waiting.gone
    if not pending:
        return []
    sharing, begun = runtime.pace.sharing, monotonic()
    sharing.put, waiting.uncounted = sharing.put + waiting.uncounted, 0
    error: EngineError | HandlerError = EngineUnavailable(PENDING)
    try:
        if all(name in waiting.own for name in pending):
            runtime.wait(_jittered(sharing.wait_seconds))
        _wait(runtime, waiting, pending)
    except (EngineError, HandlerError) as failed:
        error = EngineUnavailable(f"{PENDING} {failed}") if isinstance(failed, EngineUnavailable) else failed
    sharing.waited_seconds += monotonic() - begun
    if waiting.refused and take_back is not None:
        take_back(waiting)
    for (key, handler), names in waiting.items.items():
        if waiting.gone >= names_in(names).keys():
            runtime.known.note_gone(key, handler, names)
    return waiting.failures(error) + _taken_back(runtime, waiting)


def _taken_back(runtime: Runtime, waiting: WaitingDeltas) -> list[Failed]:
    """The changes whose steps another process has taken back, so that their deltas are gone and in no row."""
    others = {
        (key, route.name): (route, changes)
        for name, waiters in waiting.waiters.items()
        if name in waiting.gone and name not in waiting.own
        for _, routes, changes, key in waiters
        if key is not None
        for route in routes
        if (key, route.name) in waiting.versions
    }
    if not others:
        return []
    try:
        items = read_state(runtime, {key for key, _ in others}, consistent=True)
    except EngineError as error:
        return [Failed(change, route, error) for route, changes in others.values() for change in changes]
    failed: list[Failed] = []
    for (key, handler), (route, changes) in others.items():
        stored = LedgerItem.of(items.get(key)).contributions.get(handler)
        if stored is None or stored.version < waiting.versions[key, handler]:
            failed += [Failed(change, route, EngineUnavailable(TAKEN_BACK)) for change in changes]
    return failed


def wait_for_items(runtime: Runtime, waiting: WaitingDeltas, found: Iterable[LedgerItem]) -> None:
    """Moves the deltas that ledger items name into their rows, before steps are planned from these items.

    While one is pending, a step that withdraws what it adds would find too few contributors, and be dropped. Raises
    ``EngineUnavailable`` if that is not done in time. Names that are damaged concern their own handlers later.
    """
    names: set[str] = set()
    for deltas in (each.deltas for item in found for each in item.contributions.values() if each.deltas):
        with suppress(EngineError):
            names |= names_in(deltas).keys()
    if pending := names - waiting.gone:
        _wait(runtime, waiting, pending)


def ready_by_handler(
    found: LedgerItem, steps: Iterable[Step], waiting: WaitingDeltas
) -> tuple[LedgerItem, dict[str, EngineError | HandlerError]]:
    """A ledger item whose deltas were waited for, and the handlers that cannot make their step, each with its error.

    The item names only deltas that are refused by rows which no step of it changes. A handler fails alone: with the
    reason of the refusal if its step changes such a row, with ``HandlerError`` if its delta is damaged, and with
    ``EngineUnavailable`` if its delta is pending.
    """
    contributions, faults = dict(found.contributions), dict[str, EngineError | HandlerError]()
    changed = {step.route.name: _changed_rows(step, found) for step in steps}
    for handler, each in found.contributions.items():
        if each.deltas:
            try:
                kept = _kept_names(each.deltas, changed.get(handler, frozenset()), waiting)
                contributions[handler] = each._replace(deltas=names_text(kept))
            except (EngineError, HandlerError) as error:
                faults[handler] = error
    return found._replace(contributions=contributions), faults


def _kept_names(deltas: str, changed: frozenset[str], waiting: WaitingDeltas) -> dict[str, frozenset[str]]:
    kept: dict[str, frozenset[str]] = {}
    for name, rows in names_in(deltas).items():
        if name in waiting.gone:
            continue
        if name in waiting.damaged:
            raise HandlerError(waiting.damaged[name])
        if (refused := waiting.refused.get(name)) is None or refused.refused is None:
            raise EngineUnavailable(PENDING)
        refusing = rows & refused.rows
        if refusing & changed:
            raise refused.refused.error
        if refusing:
            kept[name] = refusing
    return kept


def _changed_rows(step: Step, found: LedgerItem) -> frozenset[str]:
    """The names of the rows that a step changes."""
    stored = found.contributions.get(step.route.name)
    before = stored_rows(stored.text) if stored else {}
    after = as_stored(before, step.after)
    rows = {**before, **after}
    return frozenset(
        row_name(row) for row in rows if not (row in before and row in after) or differs(before[row], after[row])
    )


def _wait(runtime: Runtime, waiting: WaitingDeltas, names: Collection[str]) -> None:
    """Returns once deltas are gone, or only rows are left that refuse them. Raises ``EngineUnavailable`` before."""
    for number in range(LOOKS_MAX):
        if number:
            runtime.wait(_jittered(min(REST_SECONDS * 2 ** (number - 1), LOOK_SECONDS_MAX)))
        found = _still_there(runtime, waiting, names)
        waiting.gone.update(name for name in names if name not in found)
        for name in names:
            waiting.refused.pop(name, None)
        deltas, damaged = read_deltas(runtime.application.name, found)
        waiting.damaged |= damaged
        waiting.refused.update((name, each) for name, each in deltas.items() if each.refused)
        strange = _of_other_code(runtime, deltas)
        buckets = {bucket_in(name) for name, each in deltas.items() if not each.refused and name not in strange}
        buckets |= waiting.to_try_again(runtime.clock())
        if not buckets and strange:
            name, tables = next(iter(strange.items()))
            raise EngineUnavailable(
                f"Delta {name} adds to table {', '.join(sorted(tables))}, which this application does not have: a "
                "process of the code that put it has to run."
            )
        if not buckets:
            return
        emptied = empty_buckets(runtime, buckets, found, always=waiting.tries_all)
        waiting.tried(emptied)
        waiting.lost.update(*emptied.values())
    raise Contended(f"Deltas were still pending after {LOOKS_MAX} looks.")


def _jittered(seconds: float) -> float:
    return seconds * (1 + JITTER * (2 * random() - 1))  # noqa: S311 - jitter


def _still_there(runtime: Runtime, waiting: WaitingDeltas, names: Collection[str]) -> Texts:
    """Those of these deltas that are there, as they are.

    Own deltas of an answered transaction can be asked for one by one. Of another call's transaction the ledger item may
    be readable and its delta not yet: they are read as of one moment.
    """
    application = runtime.application.name
    keys = {delta_key(application, name): name for name in sorted(names)}
    own = [key for key, name in keys.items() if name in waiting.own]
    found = read_state(runtime, own, consistent=True) if own else {}
    if others := [key for key in keys if keys[key] not in waiting.own]:
        found |= runtime.engine.read_together(others)
    return {keys[key]: str(item.get("s", "")) for key, item in found.items()}


def read_deltas(application: str, texts: Mapping[str, str]) -> tuple[dict[str, Delta], dict[str, str]]:
    """The deltas of stored texts, and what to do about those that cannot be read: these keep no others waiting."""
    deltas: dict[str, Delta] = {}
    unread: dict[str, str] = {}
    for name, text in texts.items():
        try:
            deltas[name] = Delta.of(text, delta_key(application, name))
        except EngineError as error:
            unread[name] = str(error)
    return deltas, unread


def _of_other_code(runtime: Runtime, deltas: Mapping[str, Delta]) -> dict[str, set[str]]:
    """The deltas that add to tables which this code does not have, with these: other code put them, and moves them."""
    tables = runtime.application.tables.keys()
    strange = {name: {each.key[0] for each in delta.additions} - tables for name, delta in deltas.items()}
    return {name: unknown for name, unknown in strange.items() if unknown}


class Head(NamedTuple):
    """The head of a bucket: who empties it."""

    revision: int = 0
    holder: str = ""
    until: float = 0.0  # when the lease ends; with a holder
    before: float = 0.0  # until then the bucket rests
    looked: float = 0.0  # when it was emptied last

    @classmethod
    def of(cls, item: Mapping[str, object] | None) -> "Head":
        """The head of a state item. Raises ``EngineError`` for one that is damaged."""
        if not item:
            return cls()
        try:
            until, before, looked = (float(str(item.get(name, 0))) for name in ("until", "before", "looked"))
            return cls(int(str(item["r"])), str(item.get("holder", "")), until, before, looked)
        except (KeyError, TypeError, ValueError):
            raise damaged("The head of a bucket") from None

    def attributes(self) -> dict[str, object]:
        """The attributes of the state item; the store keeps its revision. Times are texts, as no sum needs them."""
        return {"holder": self.holder, **{name: f"{getattr(self, name):.3f}" for name in ("until", "before", "looked")}}

    def is_free(self, now: float) -> bool:
        # A time further ahead is of a clock that is fast: nobody waits for it.
        rests = now < self.before <= now + REST_SECONDS
        leased = bool(self.holder) and now < self.until <= now + LEASE_SECONDS
        return not (rests or leased)


class SharedRows(NamedTuple):
    """The rows of a bucket at which processes met each other. They have an item of their own, so that a lease, which is
    written twice a round, stays small.
    """

    revision: int = 0
    rows: Mapping[str, float] = MappingProxyType({})  # by name: when somebody met at each last

    @classmethod
    def of(cls, item: Mapping[str, object] | None) -> "SharedRows":
        """The rows of a state item. One that is damaged names none: it guards nothing, and is written anew."""
        revision, stored = (item or {}).get("r", 0), str((item or {}).get("s", ""))
        with suppress(TypeError, ValueError):
            rows = dict(each.split("@") for each in stored.split())
            return cls(int(str(revision)), {name: float(at) for name, at in rows.items()})
        return cls(int(revision) if isinstance(revision, int | Decimal) else 0)

    def since(self, time: float) -> dict[str, float]:
        """The rows at which somebody met since then."""
        return {name: at for name, at in self.rows.items() if at >= time}

    def attributes(self) -> dict[str, object]:
        latest = sorted(self.rows.items(), key=lambda each: -each[1])[:SHARED_ROWS_MAX]
        return {"s": " ".join(f"{name}@{at:.0f}" for name, at in latest)}


def learn_shared(runtime: Runtime) -> None:
    """Reads which rows others have met at, if this process met others lately."""
    sharing, now = runtime.pace.sharing, runtime.clock()
    if sharing.wants_heads(now):
        sharing.heads_at = now
        for shared in read_shared(runtime).values():
            sharing.learn(shared.since(now - SHARED_SECONDS))


def read_shared(runtime: Runtime) -> dict[int, SharedRows]:
    """The shared rows of all buckets, in one request."""
    keys = {shared_key(runtime.application.name, bucket): bucket for bucket in range(BUCKETS)}
    found = runtime.engine.read_state(keys)
    return {bucket: SharedRows.of(found.get(key)) for key, bucket in keys.items()}


def read_heads(runtime: Runtime) -> dict[int, Head]:
    """The heads of all buckets, in one request. One that is damaged is as one that there never was."""
    keys = {head_key(runtime.application.name, bucket): bucket for bucket in range(BUCKETS)}
    found, heads = runtime.engine.read_state(keys), dict.fromkeys(range(BUCKETS), Head())
    for key, bucket in keys.items():
        with suppress(EngineError):
            heads[bucket] = Head.of(found.get(key))
    return heads


def note_unvisited(runtime: Runtime) -> None:
    """Notes the buckets that nobody has emptied for ten minutes: a process may have died, and nobody come after it."""
    now = runtime.clock()
    looked = {bucket: head.looked for bucket, head in read_heads(runtime).items()}
    runtime.pace.sharing.unvisited = {bucket for bucket, at in looked.items() if now >= at + LOOKED_SECONDS}


def empty_unvisited(runtime: Runtime) -> None:
    """Empties some of the buckets that were noted, so that a new process has looked into all after a few batches."""
    unvisited = runtime.pace.sharing.unvisited
    chosen = sorted(unvisited)[:AT_ONCE_MAX]
    unvisited.difference_update(chosen)  # before they are: one that fails must not be in the way of the others
    if chosen:
        empty_buckets(runtime, chosen, {})


def pending_in(runtime: Runtime, bucket: int, *, consistent: bool = True, most: int = FOUND_MAX) -> Texts:
    """The deltas of a bucket, as they were read. most: of one stripe."""
    return _pending(runtime, [bucket], consistent=consistent, most=most)[bucket]


def _pending(runtime: Runtime, buckets: Iterable[int], *, consistent: bool, most: int = FOUND_MAX) -> dict[int, Texts]:
    """The deltas of buckets: their stripes are read side by side. Raises the first error of a read."""
    found: dict[int, Texts] = {bucket: {} for bucket in buckets}
    stripes = [(bucket, stripe) for bucket in found for stripe in range(STRIPES)]
    application, read = runtime.application.name, runtime.engine.read_entries
    wanted = {at: Entries(stripe_partition(application, *at), most, consistent=consistent) for at in stripes}
    calls = {at: partial(read, entries) for at, entries in wanted.items()}
    for (bucket, _), entries in all_in_slots(runtime.slots, calls, stops=True, count=runtime.slots.reads).items():
        found[bucket].update(entries)
    return found


def empty_buckets(
    runtime: Runtime, buckets: Collection[int], known: Mapping[str, str], *, always: bool = False
) -> dict[int, set[LostRow]]:
    """Empties some of these buckets that nobody else is at; returns those, with rows that somebody had removed.

    known: deltas that are there, as they were read. always: also what a row refused a moment ago.
    """
    turns = {bucket: Turn(runtime, bucket) for bucket in runtime.pace.sharing.next_buckets(buckets, AT_ONCE_MAX)}
    taken = all_in_slots(runtime.slots, {bucket: turn.take for bucket, turn in turns.items()})
    leased = [bucket for bucket, is_taken in taken.items() if is_taken]
    # A query that is not consistent may miss the newest; own deltas are added to what it finds.
    found = _pending(runtime, leased, consistent=False) if leased else {}
    for name, text in known.items():
        if bucket_in(name) in found:
            found[bucket_in(name)][name] = text
    empty = {
        bucket: partial(_empty, runtime, turns[bucket], bucket, texts, always=always) for bucket, texts in found.items()
    }
    movers: dict[int, Mover] = all_in_slots(runtime.slots, empty)
    runtime.pace.sharing.merged += sum(mover.merged for mover in movers.values())
    return {bucket: mover.lost for bucket, mover in movers.items()}


class Turn:
    """The lease of one bucket, taken and renewed by one process."""

    def __init__(self, runtime: Runtime, bucket: int) -> None:
        self.runtime, self.engine = runtime, runtime.engine
        self.key = head_key(runtime.application.name, bucket)
        self.head = Head()
        self.holder = urandom(4).hex()

    def take(self) -> bool:
        """Takes the lease; False where another process has it."""
        try:
            # Read as cheaply as may be: all who wait look at it, and the revision guards what is written.
            self.head = Head.of(self.engine.read_state([self.key]).get(self.key))
        except EngineUnavailable:
            raise
        except EngineError:  # it guards nothing, so it is made anew
            self.engine.transact([DeleteState(self.key)], 0)
            self.head = Head()
        return self.head.is_free(self.runtime.clock()) and self._write(holder=self.holder, before=0.0)

    def renew(self) -> None:
        """Keeps the lease, if half of it is over: otherwise others read and move the same. A lost one is not missed."""
        if self.runtime.clock() >= self.head.until - LEASE_SECONDS / 2:
            self._write()

    def give_back(self) -> None:
        """Ends the lease, and lets the bucket rest."""
        now = self.runtime.clock()
        self._write(holder="", before=now + REST_SECONDS, looked=now)

    def _write(self, **changes: Any) -> bool:
        head = self.head._replace(until=self.runtime.clock() + LEASE_SECONDS, **changes)
        if not self.engine.swap_state(self.key, head.attributes(), self.head.revision):
            return False
        self.head = head._replace(revision=self.head.revision + 1)
        return True


def _empty(runtime: Runtime, turn: Turn, bucket: int, found: Texts, *, always: bool) -> Mover:
    """Moves what was found of a bucket, whose lease is taken."""
    deltas, _ = read_deltas(runtime.application.name, found)
    now, mover = runtime.clock(), Mover(runtime, found, turn.renew)
    others = _of_other_code(runtime, deltas)
    mover.move_all(
        {
            name: delta
            for name, delta in deltas.items()
            if name not in others and (always or _is_tried_again(delta, now))
        }
    )
    _note_shared(runtime, bucket, _shared_rows(deltas))
    turn.give_back()
    return mover


def _note_shared(runtime: Runtime, bucket: int, met: Collection[str]) -> None:
    """Notes the rows at which processes met each other, unless that was noted a moment ago."""
    if not met:
        return
    key, now = shared_key(runtime.application.name, bucket), runtime.clock()
    shared = SharedRows.of(runtime.engine.read_state([key]).get(key))
    if any(shared.rows.get(row, 0.0) < now - SHARED_FRESH_SECONDS for row in met):
        rows = shared.since(now - SHARED_SECONDS) | dict.fromkeys(met, now)
        runtime.engine.swap_state(key, SharedRows(0, rows).attributes(), shared.revision)  # or others note theirs


def _is_tried_again(delta: Delta, now: float) -> bool:
    # A time ahead is of a clock that is fast: nobody waits for it.
    return delta.refused is None or not delta.refused.tried <= now < delta.refused.tried + TRIED_AGAIN_SECONDS


def _shared_rows(deltas: Mapping[str, Delta]) -> set[str]:
    """The rows that processes share, by name: a process noted a conflict at the row, or two deltas add to it."""
    rows, shared = set[str](), set[str]()
    for delta in deltas.values():
        shared |= {*delta.met} | (rows & delta.rows)
        rows |= delta.rows
    return shared
