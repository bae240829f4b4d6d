"""The times of derived changes in a local store: the greatest time of the records that were folded into each.

On DynamoDB a derived change has the time of its write. A replay writes the rows of many records in one transaction, at
any time of this machine. So a local store gives the change of a row the time of the newest record that its row was made
of, whatever the batch.
"""

from collections.abc import Iterable, Sequence

from streamfold.commit.plan import Unit
from streamfold.engines.protocol import ItemTimes
from streamfold.ledger.step import Step
from streamfold.records.change import Change, ItemKey, times_of
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey, StateKey


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
