"""Transactions: which may be in flight together, how often they are sent, and why the store refused them.

Beside them, reads of state items, and the times of derived changes in a local store: the greatest time of the records
that were folded into each. On DynamoDB a derived change has the time of its write. A replay writes the rows of many
records in one transaction, at any time of this machine. So a local store gives the change of a row the time of the
newest record that its row was made of, whatever the batch.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard, TypeVar, cast

from streamfold.commit.plan import Unit
from streamfold.engines.protocol import Engine, ItemTimes
from streamfold.errors import (
    Contended,
    EngineError,
    EngineUnavailable,
    HandlerError,
    RowTaken,
    TableThrottled,
    is_fatal,
    redacted,
)
from streamfold.keys.table import CONTRIBUTORS, MARK, OWNER, VERSION, is_writers
from streamfold.ledger.contribution import LedgerItem, elsewhere, kept_text
from streamfold.ledger.state_keys import contribution_key
from streamfold.ledger.step import Step
from streamfold.records.change import Change, ItemKey, times_of
from streamfold.records.images import hidden
from streamfold.records.values import ITEM_BYTES_MAX, encode, item_bytes
from streamfold.routes.route import Route
from streamfold.runtime import CallSlots, Flight, Runtime
from streamfold.settings.limits import KEYS_MAX
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    THROTTLED,
    AddRow,
    DeleteRow,
    GuardedPut,
    GuardedWrite,
    PutRow,
    Reason,
    Refused,
    RowKey,
    StateKey,
    exceeded,
    limits_of,
)

Tag = TypeVar("Tag")
Result = TypeVar("Result")

LARGEST_SHOWN = 3
"""Attributes of a row that is too large which a message names."""

SENDS_MAX = 4
"""Times that one transaction is sent beside others. The SDK retries no conflict (Developer Guide, transaction-apis)."""

READS_MAX = 3
"""Times that a ledger item and its large contributions are read until they match each other."""

SliceAnswer = TypeVar("SliceAnswer")


def in_slots(
    slots: CallSlots,
    calls: Iterable[tuple[Tag, Callable[[], Result]]],
    stops: Callable[[BaseException], bool] = lambda _: False,
    at: Callable[[Tag], Hashable] = lambda tag: tag,
    count: int | None = None,
) -> Iterator[tuple[Tag, Result | EngineError | HandlerError]]:
    """The result of each call, as it ends: its response, or the error of the store or of a handler.

    calls: are taken one by one, as slots get free. stops: once an error stops them, no further call is begun; calls
    that were not begun have no result. at: the key that a call touches; a call waits for another one with the same key.
    count: how many calls are made side by side; as many as there are call slots if not given.

    Other errors are raised when all begun calls have ended.
    """
    flight, flying, flying_max = slots.flight(), set[Hashable](), count or slots.count
    given = iter(calls)
    waiting: tuple[Tag, Callable[[], Result]] | None = None
    stopped: BaseException | None = None
    unexpected: BaseException | None = None
    while True:
        while stopped is None and len(flying) < flying_max:
            waiting = waiting or next(given, None)
            # A call for the same key must wait: two calls in flight on one item would conflict with each other.
            if waiting is None or (place := at(waiting[0])) in flying:
                break
            flying.add(place)
            flight.begin(*waiting, place if isinstance(place, Several) else (place,))
            waiting = None
        if not flying:
            break
        tag, answer, error = flight.join()
        flying.discard(at(tag))
        # An error that is no result of a call is raised after all begun calls have ended: a thread must not write after
        # its batch.
        if error is not None and not isinstance(error, EngineError | HandlerError):
            unexpected = unexpected or error
        elif unexpected is None:
            try:
                yield tag, answer if error is None else error
            except GeneratorExit:
                join_all(flight, len(flying))
                raise
        if unexpected or (error is not None and stops(error)):
            stopped = error
    if unexpected:
        raise unexpected


def all_in_slots(
    slots: CallSlots, calls: Mapping[Tag, Callable[[], Result]], *, stops: bool = False, count: int | None = None
) -> dict[Tag, Result]:
    """The results of calls. Raises the first error when all have ended. stops: no call is begun after an error."""
    found: dict[Tag, Result] = {}
    failed: EngineError | HandlerError | None = None
    for tag, result in in_slots(slots, calls.items(), stops=lambda _: stops, count=count):
        if isinstance(result, EngineError | HandlerError):
            failed = failed or result
        else:
            found[tag] = result
    if failed is not None:
        raise failed
    return found


def join_all(flight: Flight, count: int) -> None:
    """Waits for calls whose results are not needed: a thread must not outlive its batch."""
    for _ in range(count):
        flight.join()


class Several(tuple[object, ...]):
    """The keys that one call touches."""

    __slots__ = ()


def slices(slots: CallSlots, keys: Sequence[Result], size: int) -> Iterator[Sequence[Result]]:
    """Keys in groups, one for each call: all in one call, or one request's worth where calls are made side by side."""
    step = size if slots.count > 1 else max(len(keys), 1)
    return (keys[start : start + step] for start in range(0, len(keys), step))


def is_stale(write: GuardedWrite, reason: Reason) -> bool:
    """Whether a guarded put was refused only because the row, its own, is as new."""
    return isinstance(write, GuardedPut) and not _has_no_version(reason) and _own(write, reason)


def is_added_to(write: GuardedWrite, reason: Reason) -> TypeGuard[PutRow | DeleteRow]:
    """Whether a replacement was refused because others add to the row: it counts contributors and has no owner."""
    return isinstance(write, PutRow | DeleteRow) and counts_contributors(reason) and _owner(reason) is None


def _owner(reason: Reason) -> Any:
    # The mark of a row that is being corrected is no owner.
    owner = (reason.item or {}).get(OWNER)
    return None if isinstance(owner, str) and owner.startswith(MARK) else owner


def counts_contributors(reason: Reason) -> bool:
    """Whether the row that refused a write counts its contributors."""
    return reason.item is not None and CONTRIBUTORS in reason.item


def _own(write: GuardedPut, reason: Reason) -> bool:
    return write.owner is None or (reason.item is not None and reason.item.get(OWNER) in (None, write.owner))


def _has_no_version(reason: Reason) -> bool:
    # A row that handlers add to, or an item of the application's own.
    return reason.item is not None and VERSION not in reason.item


def writers_own(key: RowKey | StateKey) -> str:
    """Why an item that the application's own code put takes no write of a handler, and the ways out."""
    return (
        f"Row {redacted(_name(key))} belongs to the application itself: an item without the mark of a row is there, "
        "which no handler changes or deletes. Give the handler a target whose keys nobody else writes; or remove the "
        "item, redrive the record, and run streamfold verify --rows --repair."
    )


def not_its_row(route: Route, write: GuardedWrite, reason: Reason) -> HandlerError:
    """The error of a write that the row will never take."""
    if is_writers(reason.item):
        return HandlerError(f"Handler {route.name!r} was refused. {writers_own(write.key)}")
    if isinstance(write, AddRow):
        wants, was = "adds to", "put or deleted"
    elif isinstance(write, GuardedPut) and _has_no_version(reason):
        wants, was = "puts or deletes", "added to"
    else:
        return not_the_owner(write, reason)
    return HandlerError(
        f"Handler {route.name!r} {wants} row {redacted(_name(write.key))}, which was {was} before: a row is put or "
        "added to, never both. Give the additions a target of their own."
    )


def not_the_owner(write: GuardedWrite, reason: Reason) -> HandlerError:
    """The error of a row that another item has: ``RowTaken``, because that item may still give the row up."""
    owner = "another item" if reason.item is None else _owner(reason)
    kind = HandlerError if owner is None else RowTaken
    owner = owner or "the application itself"
    return kind(
        f"Row {redacted(_name(write.key))} belongs to {redacted(owner)}: a row with plain attributes has one handler "
        "and one source item. Put a field into its template that tells them apart."
    )


def not_shown(key: RowKey, after: Mapping[str, Any], reason: Reason) -> HandlerError:
    """The error of a row that cannot be recomputed: as ``after`` it is too large or refused by the store. The handlers'
    contributions are kept. Their policy decides about the records.
    """
    sizes = {name: item_bytes({name: encode(value)}) for name, value in after.items()}
    if (size := sum(sizes.values())) <= ITEM_BYTES_MAX:
        return HandlerError(
            f"The store refused the values of row {redacted(_name(key))}, {reason.code}: {redacted(reason.message)}"
        )
    named = sorted((name for name in sizes if not hidden(name)), key=lambda name: -sizes[name])[:LARGEST_SHOWN]
    largest = ", ".join(f"{name} has {sizes[name]}" for name in named)
    return HandlerError(
        f"Row {redacted(_name(key))} would have {size} bytes with its values, {ITEM_BYTES_MAX} at most: "
        f"{redacted(largest)}. Keep fewer or smaller values, Top(n, value=...), Collect(..., most=), or take more rows."
    )


def _name(key: RowKey | StateKey) -> str:
    return " / ".join(str(component) for component in key[1:] if component is not None)


def send(runtime: Runtime, writes: Sequence[GuardedWrite]) -> Refused | None:
    """Sends writes as one transaction, and again after a conflict; returns the refusal if a condition failed.

    Raises ``Contended`` after ``SENDS_MAX`` conflicts, ``TableThrottled`` if the table was throttled at the last, and
    ``HandlerError`` if the store will never take the writes.
    """
    throttled: TableThrottled | None = None
    for number in range(SENDS_MAX):
        if number:
            runtime.back_off(number - 1, throttled=throttled is not None)
        refused = runtime.engine.transact(writes, runtime.expires_at)
        if refused is None:
            return None
        if any(reason is not None and reason.code == CONDITION for reason in refused.reasons):
            return refused
        check_passing(refused)
        throttled = throttled_by(refused, writes) if is_throttled(refused) else None
    if throttled is not None:
        raise throttled
    raise Contended(f"Others are in the way: {SENDS_MAX} conflicts in a row; the record is retried.")


def check_passing(refused: Refused) -> None:
    """Raises ``HandlerError`` if the store will never take one of the writes."""
    for reason in refused.reasons:
        if reason is not None and reason.code not in CONFLICT:
            raise HandlerError(f"The store refused the write with {reason.code}: {redacted(reason.message)}")


def is_throttled(refused: Refused) -> bool:
    """Whether a table was throttled."""
    return any(reason is not None and reason.code in THROTTLED for reason in refused.reasons)


def throttled_by(refused: Refused, writes: Sequence[GuardedWrite]) -> TableThrottled:
    return TableThrottled(limits=limits_of(refused, tables_of(writes)))


def tables_of(writes: Sequence[GuardedWrite]) -> list[str]:
    return [table_of(write.key) for write in writes]


def table_of(key: RowKey | StateKey) -> str:
    return "the state table" if isinstance(key, StateKey) else f"table {key[0]!r}"


def may_pass(reason: Reason, key: RowKey) -> bool:
    """Whether another try may help. Raises ``TableThrottled`` for a throttled table."""
    if reason.code in THROTTLED:
        raise TableThrottled(limits=[exceeded(reason, table_of(key))])
    return reason.code == CONDITION or reason.code in CONFLICT


def by_table(
    runtime: Runtime, rows: Sequence[RowKey], call: Callable[[Sequence[RowKey]], SliceAnswer], size: int
) -> Iterator[tuple[Sequence[RowKey], SliceAnswer | EngineError]]:
    """The results of a call for rows, ``size`` of them in a call. After a fatal error the call is repeated for each
    table, so that only the rows of the faulty table fail.

    Raises the errors of handlers.
    """
    calls = ((Several(some), partial(call, some)) for some in slices(runtime.slots, rows, size))
    for place, answer in in_slots(runtime.slots, calls):
        some = cast("tuple[RowKey, ...]", place)
        if isinstance(answer, HandlerError):
            raise answer
        tables = dict.fromkeys(row[0] for row in some)
        if not isinstance(answer, EngineError) or not is_fatal(answer) or len(tables) == 1:
            yield some, answer
            continue
        for table in tables:
            yield from by_table(runtime, [row for row in some if row[0] == table], call, size)


def read_rows(
    runtime: Runtime, keys: Iterable[RowKey], failed: dict[RowKey, Exception]
) -> dict[RowKey, dict[str, Any]]:
    """The rows of keys. ``failed`` takes the keys whose table cannot be read."""
    rows: dict[RowKey, dict[str, Any]] = {}
    for some, found in by_table(runtime, [*keys], runtime.engine.read_rows, KEYS_MAX):
        if isinstance(found, EngineError):
            failed.update(dict.fromkeys(some, found))
        else:
            rows.update(found)
    return rows


def read_state(
    runtime: Runtime, keys: Iterable[StateKey], *, consistent: bool = False
) -> dict[StateKey, dict[str, Any]]:
    """State items, read side by side. Raises the first error of a read, when all have ended."""
    found: dict[StateKey, dict[str, Any]] = {}
    for some in read_state_in_calls(runtime, keys, consistent=consistent):
        found.update(some)
    return found


def read_state_in_calls(
    runtime: Runtime, keys: Iterable[StateKey], *, consistent: bool = False
) -> Iterator[dict[StateKey, dict[str, Any]]]:
    """State items as they come, read side by side. Raises the first error of a read, when all have ended."""
    failed: EngineError | HandlerError | None = None
    read = partial(runtime.engine.read_state, consistent=consistent)
    some = enumerate(slices(runtime.slots, [*dict.fromkeys(keys)], KEYS_MAX))
    calls = ((number, partial(read, called)) for number, called in some)  # reads may touch what others read
    for _, answer in in_slots(runtime.slots, calls, stops=lambda _: True, count=runtime.slots.reads):
        if isinstance(answer, EngineError | HandlerError):
            failed = failed or answer
        else:
            yield answer
    if failed is not None:
        raise failed


def filled(engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]) -> LedgerItem:
    """A ledger item with the large contributions of these handlers.

    Raises ``EngineUnavailable`` if the item changes at each of ``READS_MAX`` reads; the records are retried.
    """
    # A step in between replaces the item and its large contributions, and both reads must be of one step.
    for _ in range(READS_MAX):
        complete = _with_large_contributions(engine, key, found, handlers)
        if complete is not None:
            return complete
        found = LedgerItem.of(engine.read_state([key], consistent=True).get(key))
    raise EngineUnavailable(f"Ledger item {redacted(key.pk)} changed while it was read.")


def _with_large_contributions(
    engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]
) -> LedgerItem | None:
    """The ledger item with its large contributions; None if the digest of one does not match: it changed between the
    reads.
    """
    large = {
        contribution_key(key, name): name
        for name, each in found.contributions.items()
        if name in handlers and elsewhere(each)
    }
    if not large:
        return found
    items = engine.read_state(large, consistent=True)
    contributions = dict(found.contributions)
    for where, name in large.items():
        text = items[where]["s"] if where in items else ""
        if kept_text(text) != contributions[name].text:
            return None
        contributions[name] = contributions[name]._replace(text=text)
    return found._replace(contributions=contributions)


def note_times(runtime: Runtime, changes: Sequence[Change]) -> None:
    """Notes the times of a batch's records."""
    if (times := _times(runtime)) is not None:
        for change in changes:
            for seconds in times_of((change,)):
                times.note(change.item, seconds)


def fold_times(runtime: Runtime, item: ItemKey, keys: Iterable[RowKey | StateKey]) -> None:
    if (times := _times(runtime)) is not None:
        times.fold(_seconds(runtime, item), keys)


def fold_row(runtime: Runtime, row: RowKey, item: ItemKey) -> None:
    if (times := _times(runtime)) is not None:
        times.fold(times.of_row(row), (item,))


def fold_units(runtime: Runtime, units: Iterable[Unit]) -> None:
    """Notes the rows of units before these are sent. A row is made of its item and of what its handler looked up."""
    times = _times(runtime)
    if times is None:
        return
    for unit in units:
        own = _seconds(runtime, unit.item)
        looking = [step for step in unit.steps if step.references or step.idle]
        if not looking:
            times.fold(own, (effect.key for effect in unit.effects))
            continue
        for effect in unit.effects:
            # A row that no step shows any more may have been that of any of them.
            others = any(effect.key in step.after for step in unit.steps)
            of_row = [step for step in looking if effect.key in step.after or not others]
            times.fold(max([own, *(_looked_up(runtime, step) for step in of_row)]), (effect.key,))


def _looked_up(runtime: Runtime, step: Step) -> float:
    return max(_seconds(runtime, referent) for referent in (*step.references, *step.idle))


def _seconds(runtime: Runtime, item: ItemKey) -> float:
    """The time of an item's newest record. One without a record in this batch has the time of its stored state."""
    assert runtime.own_stream is not None
    return runtime.own_stream.item_times.of(item) or runtime.own_stream.source_seconds(item)


def _times(runtime: Runtime) -> ItemTimes | None:
    """The times to fold into; None where no change of a row is kept for others."""
    return runtime.own_stream.item_times if runtime.folds_times and runtime.own_stream is not None else None
