"""A plan as a person reads it: one line a write, with the row, the condition and what changes."""

from collections.abc import Iterator, Mapping
from typing import Any

from streamfold.cli.grids import counted
from streamfold.cli.items import item_text
from streamfold.cli.rows import name_text, text
from streamfold.commit.plan import Chunk, Deferred, Plan
from streamfold.derivations.derivation import Preview, derivation
from streamfold.errors import plain, printable
from streamfold.records.images import hidden
from streamfold.replay.replay import PlannedWrites
from streamfold.settings import Settings
from streamfold.writes.guarded import (
    AddRow,
    Claim,
    DeleteRow,
    DeleteState,
    GuardedPut,
    GuardedWrite,
    LedgerWrite,
    PutRow,
    PutState,
    StateKey,
)


def plan_lines(plan: Plan, settings: Settings) -> Iterator[str]:
    """The plan of one batch, line by line."""
    for number, chunk in enumerate(plan.chunks, 1):
        units, writes = len(chunk.units), len(chunk.writes)
        yield f"transaction {number}: {units} unit{'s' * (units > 1)}, {writes} write{'s' * (writes > 1)}"
        yield from (f"  {line}" for line in chunk_lines(chunk))
    yield from (write_line(put.row) for put in plan.puts)
    for deferred in plan.deferred:
        yield from deferred_lines(deferred, settings)


def planned_lines(records: int, planned: PlannedWrites) -> Iterator[str]:
    """What the plans of all batches come to."""
    within, them = planned.writes - planned.writes_behind, "it" if planned.transactions == 1 else "them"
    behind = f" and {planned.writes_behind:,} behind {them}" if planned.writes_behind else ""
    yield (
        f"Dry run: {counted(records, 'record')} would make {counted(within, 'write')} in "
        f"{counted(planned.transactions, 'transaction')}{behind}; nothing was written, chains were not followed, and "
        "nothing was taken to be stored already."
    )
    left_out = (
        (planned.made_of_entries, "row", "to be computed from entries"),
        (planned.removed_if_empty, "row", "to be removed if empty"),
        (planned.other_steps, "step", "of other kinds"),
    )
    if any(count for count, *_ in left_out):
        said = ", ".join(f"{counted(count, noun)} {what}" for count, noun, what in left_out if count)
        yield f"Not counted, because the store decides how many writes they make: {said}."


def chunk_lines(chunk: Chunk) -> list[str]:
    """The writes of one transaction."""
    return list(map(write_line, chunk.writes))


def deferred_lines(deferred: Deferred, settings: Settings) -> list[str]:
    """What is done after the transactions: a write of a row of its own, or something else."""
    row = getattr(deferred, "row", None)
    if row is not None:
        return [f"{deferred.route.kind}: {write_line(row)}"]
    return [_previewed(each) for each in derivation(deferred.route).preview(deferred, settings)]


def _previewed(preview: Preview) -> str:
    said = printable(plain(preview.text))
    return said if preview.fields is None else f"{said}: {_attributes(preview.fields)}"


def write_line(write: GuardedWrite) -> str:
    """One write, with the condition that it is made on."""
    match write:
        case LedgerWrite():
            return f"guard {_state(write.key)}, if as before: {', '.join(part.handler for part in write.parts)}"
        case Claim():
            return f"guard {_state(write.key)}, if there is none"
        case AddRow():
            return f"add to {item_text(write.key)}{', if none put it' * write.unversioned}: {_added(write)}"
        case PutRow():
            return f"put {item_text(write.key)}{_unshared(write.owner)}: {_attributes(write.attributes)}"
        case DeleteRow():
            return f"remove {item_text(write.key)}{_unshared(write.owner)}"
        case GuardedPut():
            return _guarded(write)
        case PutState():
            return f"put state {_state(write.key)}"
        case DeleteState():
            return f"remove state {_state(write.key)}"
    raise AssertionError(write)  # a plan has no others: they come after it, from what is found


def _guarded(write: GuardedPut) -> str:
    condition = f"{item_text(write.key)}, if older{_owned(write.owner)}"
    return f"remove {condition}" if write.attributes is None else f"put {condition}: {_attributes(write.attributes)}"


def _added(write: AddRow) -> str:
    changes = [f"{name_text(name)} {amount:+}" for name, amount in write.amounts.items() if amount]
    changes += [f"values of {name_text(moved.name) or 'the row'}" for moved in write.changed_entries]
    changes += [f"{name_text(name)}={text(value)}" for name, value in write.values.items()]
    changes += [f"without {name_text(name)}" for name in write.removed if not hidden(name)]
    changes += [f"contributors {write.contributors:+}"] if write.contributors else []
    return ", ".join(changes)


def _unshared(owner: str | None) -> str:
    return ", if nobody adds to it" if owner else ""


def _owned(owner: str | None) -> str:
    return ", if it is no other item's" if owner else ""


def _attributes(attributes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name_text(name)}={text(value)}" for name, value in attributes.items() if not hidden(name))


def _state(key: StateKey) -> str:
    return " / ".join(map(name_text, key))
