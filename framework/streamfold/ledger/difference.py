"""The writes that lead the rows from one contribution of a source item to another."""

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from streamfold.keys.table import CONTRIBUTORS, EDGE, OWNER, PLACES, PLAIN_NAMES, is_in_state
from streamfold.ledger.contribution import (
    NO_ROW_CONTRIBUTION,
    NOTHING,
    PLAIN_ENTRY,
    Contribution,
    HeldByName,
    Mark,
    RowContribution,
    all_held,
    changed_entries,
    pending_rows,
    stored_text,
    taken,
)
from streamfold.ledger.contribution import writes as entry_writes
from streamfold.ledger.lives import NO_ROWS, Given, Lives, target_of
from streamfold.records.change import ItemKey, item_name
from streamfold.records.values import WIDE, Number
from streamfold.routes.route import Route, Target, may_expire
from streamfold.writes.guarded import (
    NO_VALUES,
    AddRow,
    DeleteRow,
    DeleteState,
    EntriesOfRow,
    PutRow,
    PutState,
    RowKey,
    RowWrite,
)


class StepWrites(list[RowWrite]):
    """The writes that lead the rows from one contribution to another, and what the step has to see to beside them."""

    removed = 0  # rows that are deleted
    leaves = False  # whether rows, entries or attributes of items may be left behind
    marks = False  # whether entries may move, or plain attributes are set on a row that is added to


NO_LIVES = Lives()
"""What is known where no row is known to expire."""


def difference(
    application: str,
    route: Route,
    item: ItemKey,
    before: Contribution,
    after: Contribution,
    added: AbstractSet[RowKey] = NO_ROWS,
    *,
    requires_contributor: bool = False,
) -> StepWrites:
    """The writes that lead the rows from one contribution to another.

    ``added``: rows of whole targets which another handler, or another version of the code, adds to. They are added to
    here too. ``requires_contributor``: a row that is taken back from refuses if it would count none. Rows with
    entries, and those that are shown on a parent, have work to be noted in any case.
    """
    writes = StepWrites()
    for key, part in after.items():
        if part.ordered:
            writes.marks = True
        previous = before.get(key)
        if previous is not None and not _differs(previous, part):
            continue
        if part.plain is not None and key not in added and (previous is None or previous.digest):
            writes.append(row_put(application, route, item, key, part))
        else:
            addition = _add(key, previous, part)
            if addition.values:
                writes.marks = True
            writes.append(addition)
    for key, part in before.items():
        if part.ordered:
            writes.marks = writes.leaves = True
        if key not in after:
            if part.digest and key not in added and _is_whole(route, key):
                writes.removed += 1
                writes.leaves = writes.leaves or is_in_state(key)
                writes.append(DeleteRow(key, owner_of(application, route, target_of(route, key), item)))
            else:
                requires = requires_contributor and not part.ordered and not is_in_state(key)
                writes.leaves = writes.leaves or not requires
                writes.append(_taken_back(key, part, requires_contributor=requires))
    return writes


def in_lives(writes: StepWrites, route: Route, given: Given, lives: Lives) -> None:
    """Puts the writes of a step on the condition of the lives that its contributions name.

    An addition that comes to a row which expires and has no life requires that there is a row: such a row is never made
    without a life. Without this, a row that was made again would be taken for the one that expired.
    """
    if given.plain and not may_expire(route):
        return
    for place, write in enumerate(writes):
        key = write.key
        target = target_of(route, key)
        part = given.after.get(key) or given.before.get(key, NO_ROW_CONTRIBUTION)
        if isinstance(write, AddRow) and not is_in_state(key):
            if part.life or target is None or target.key.table.ttl:
                least = write.contributors_min
                if least is None and not part.life and lives.follows(target, key):
                    least = 0
                writes[place] = write._replace(life=part.life, born=key in given.born, contributors_min=least)
        elif isinstance(write, PutRow | DeleteRow) and key in given.before and lives.follows(target, key):
            writes[place] = write._replace(amends=True)


def in_order(amounts: dict[str, Number]) -> dict[str, Number]:
    """Amounts by name, in the order of the names."""
    return dict(sorted(amounts.items())) if len(amounts) > 1 else amounts


def _differs(previous: RowContribution, part: RowContribution) -> bool:
    """Whether a row has to be written. The digest of a part with plain attributes covers all of the part."""
    if part.plain is not None:
        return previous.digest != part.digest
    return bool(previous.digest) or previous.amounts != part.amounts or previous.ordered != part.ordered


def marked(rows: Iterable[RowWrite], mark: Mark, before: Contribution, after: Contribution) -> list[RowWrite]:
    """The writes of rows. If entries move below a row, its write gets the step's stamp and those entries."""
    found: list[RowWrite] = []
    for write in rows:
        row = write
        plain = after[row.key].names if row.key in after else ()
        old = _ordered(before, row.key)
        if plain:
            gone = {*plain, PLAIN_ENTRY}
            old = {name: held for name, held in old.items() if name not in gone}
        places = changed_entries(mark, row.key, old, _ordered(after, row.key), _life(before, after, row.key))
        # What somebody recomputes meanwhile must not land on a plain attribute that was made of entries before.
        if isinstance(row, AddRow) and (places or row.values):
            row = row._replace(stamp=mark.stamp, changed_entries=places)
        found.append(row)
    return found


def entries_by_row(
    application: str, route: Route, item: ItemKey, rows: Contribution, *, held: bool = False
) -> dict[RowKey, EntriesOfRow]:
    """The entries that an item may have moved below the rows of a contribution.

    ``held``: the item contributes the rows now, and decides how their entries are ordered.
    """
    mark = Mark(application, route.name, item, "")
    found = {
        key: changed_entries(mark, key, *((NOTHING, part.ordered) if held else (part.ordered, NOTHING)), part.life)
        for key, part in rows.items()
        if part.ordered
    }
    return {key: places for key, places in found.items() if places}


def pending_text(before: Contribution, after: Contribution, writes: Iterable[RowWrite], known: str = "") -> str | None:
    """The text of the rows and entries that a step leaves behind; None if there are none.

    ``known`` is the text of what earlier steps left behind and may be unfinished; it is joined.
    """
    left = {write.key: NO_ROW_CONTRIBUTION for write in writes if _leaves(write)}
    for key, part in before.items():
        if part.ordered and (ordered := taken(part.ordered, _ordered(after, key))):
            left[key] = RowContribution({}, None, "", ordered, life=part.life)
    if not left:
        return None
    for key, part in pending_rows(known).items() if known else ():
        newer = left.get(key, NO_ROW_CONTRIBUTION)
        if not newer.ordered:
            left[key] = part
        elif newer.life == part.life:  # entries of a life before have nothing to show any more
            left[key] = newer._replace(ordered=all_held(part.ordered, newer.ordered))
    return stored_text(left)


def entries_between(mark: Mark, before: Contribution, after: Contribution) -> list[PutState | DeleteState]:
    """The writes that lead the entries from one contribution to another."""
    found: list[PutState | DeleteState] = []
    for key in {**before, **after}:
        life = _life(before, after, key)
        found += entry_writes(mark, key, _ordered(before, key), _ordered(after, key), life)
    return found


def _life(before: Contribution, after: Contribution, key: RowKey) -> str:
    """The life of the row that entries move below: an item that is in a row stays in its life."""
    return (before[key] if key in before else after.get(key, NO_ROW_CONTRIBUTION)).life


def _ordered(rows: Contribution, key: RowKey) -> HeldByName:
    return rows[key].ordered if key in rows else NOTHING


def _is_whole(route: Route, key: RowKey) -> bool:
    """Whether the target of a row is put whole, as it was if the target was given up."""
    target = target_of(route, key)
    return target is None or target.whole


def row_put(application: str, route: Route, item: ItemKey, key: RowKey, part: RowContribution) -> PutRow:
    """The write of a row that is put whole."""
    owner = owner_of(application, route, target_of(route, key), item)
    return PutRow(key, {**(part.plain or {}), **part.amounts, CONTRIBUTORS: 1, OWNER: owner}, owner)


def owner_of(application: str, route: Route, target: Target | None, item: ItemKey) -> str:
    """The owner of a row that is put whole: the handler; of a multi_source row, with the source item."""
    return f"{application}/{route.name}" + (f"|{source_of(item)}" if target and target.multi_source else "")


def source_of(item: ItemKey) -> str:
    """A name that no other item has, of any table."""
    return f"{item[0]}|{item_name(item)}"


def _taken_back(key: RowKey, part: RowContribution, *, requires_contributor: bool) -> AddRow:
    """The addition that takes a part back from a row."""
    amounts = {name: _minus(0, amount) for name, amount in in_order(part.amounts).items() if amount}
    return AddRow(key, amounts, -1, contributors_min=1, removed=part.names, requires_contributor=requires_contributor)


def _add(key: RowKey, previous: RowContribution | None, now: RowContribution) -> AddRow:
    """The addition that leads a row from one part to another; None is no part."""
    if previous is None and not now.plain:  # as most rows are begun
        return AddRow(key, in_order(now.amounts), 1)
    was, plain = previous or NO_ROW_CONTRIBUTION, now.plain or {}
    replaced = {name: now.amounts[name] for name in was.names if name in now.amounts}
    return AddRow(
        key,
        _amounts(was.amounts, now.amounts, {*plain, *replaced}),
        1 if previous is None else 0,
        contributors_min=None if previous is None else 1,
        values={**plain, **replaced} if plain or replaced else NO_VALUES,
        removed=_removed(was, now, plain),
    )


def _removed(was: RowContribution, now: RowContribution, plain: Mapping[str, Any]) -> tuple[str, ...]:
    """The plain attributes that are gone, and the cut-offs and places of attributes that are plain now."""
    gone = [name for name in was.names if name not in plain and name not in now.amounts and name not in now.ordered]
    # Also of attributes that were not ordered: a row that the item left may have them until it is recomputed.
    for name in plain:
        gone += [EDGE + name, PLACES + name]
    if plain and PLAIN_ENTRY in was.ordered:
        gone += [EDGE + PLAIN_ENTRY, PLACES + PLAIN_ENTRY]
    return (*gone, PLAIN_NAMES) if plain and PLAIN_ENTRY in was.ordered else tuple(gone)


def _amounts(before: Mapping[str, Number], after: Mapping[str, Number], but: Container[str]) -> dict[str, Number]:
    amounts: dict[str, Number] = {}
    for name in sorted({**before, **after}):
        if name in but:
            continue
        if name not in before:
            amounts[name] = after[name]  # also where it is 0: the row then has the attribute
        elif delta := _minus(after.get(name, 0), before[name]):
            amounts[name] = delta
    return amounts


def _minus(after: Number, before: Number) -> Number:
    if isinstance(after, int) and isinstance(before, int):
        return after - before
    return WIDE.subtract(after, before)


def _leaves(write: RowWrite) -> bool:
    """Whether a write leaves something to finish: a row that may be empty, or an attribute to be taken off its item."""
    return write.may_empty if isinstance(write, AddRow) else isinstance(write, DeleteRow) and is_in_state(write.key)
