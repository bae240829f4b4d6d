"""The writes that change rows from one contribution of a source item to another."""

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from streamfold.keys.table import CONTRIBUTORS, EDGE, OWNER, PLACES, PLAIN_NAMES, is_in_state
from streamfold.ledger.contribution import (
    NO_ROW_CONTRIBUTION,
    NOTHING,
    PLAIN_ENTRY,
    Contribution,
    EntriesByName,
    Mark,
    RowContribution,
    all_entries,
    changed_entries,
    pending_rows,
    stored_text,
    taken,
)
from streamfold.ledger.contribution import writes as entry_writes
from streamfold.ledger.lives import NO_ROWS, Given, Lives, target_of
from streamfold.records.change import ItemKey, item_name
from streamfold.records.values import Number, minus
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
    """The writes that change rows from one contribution to another, and the other work of the step."""

    removed = 0  # rows that are deleted
    leaves = False  # whether the step has pending work: rows, entries or attributes of items
    marks = False  # whether entries may move, or plain attributes are set on a row that is added to

    def delete(self, key: RowKey, owner: str) -> None:
        self.removed += 1
        self.leaves = self.leaves or is_in_state(key)
        self.append(DeleteRow(key, owner))

    def withdraw(self, key: RowKey, contribution: RowContribution, *, requires_contributor: bool) -> None:
        """Takes a contribution out of a row that others may contribute to."""
        requires = requires_contributor and not contribution.ordered and not is_in_state(key)
        self.leaves = self.leaves or not requires
        amounts = {name: minus(0, amount) for name, amount in in_order(contribution.amounts).items() if amount}
        removed = contribution.names
        self.append(AddRow(key, amounts, -1, contributors_min=1, removed=removed, requires_contributor=requires))


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
    """The writes that change rows from one contribution to another. ``added``: rows of replacing targets to which
    another handler, or another version of the code, adds. The step adds to them too. ``requires_contributor``: a row
    refuses a subtraction after which it would count no contributor. Rows with entries, and rows that are shown on a
    parent, always have pending work to note.
    """
    writes = StepWrites()
    for key, contribution in after.items():
        if contribution.ordered:
            writes.marks = True
        previous = before.get(key)
        if previous is not None and not differs(previous, contribution):
            continue
        if contribution.plain is not None and key not in added and (previous is None or previous.digest):
            writes.append(row_put(application, route, item, key, contribution))
        else:
            addition = _add(key, previous, contribution)
            if addition.values:
                writes.marks = True
            writes.append(addition)
    for key, contribution in before.items():
        if contribution.ordered:
            writes.marks = writes.leaves = True
        if key in after:
            continue
        if contribution.digest and key not in added and _is_replaced(route, key):
            writes.delete(key, owner_of(application, route, target_of(route, key), item))
        else:
            writes.withdraw(key, contribution, requires_contributor=requires_contributor)
    return writes


def in_lives(writes: StepWrites, route: Route, given: Given, lives: Lives | None) -> None:
    """Adds the condition to a step's writes that their rows are in the lives that the contributions name.

    An addition to a row that expires and has no life requires that the row exists: such a row is never made without a
    life. Otherwise a row that was made again would pass for the one that expired.
    """
    if given.plain and not may_expire(route):
        return
    for position, write in enumerate(writes):
        key = write.key
        target = target_of(route, key)
        if isinstance(write, AddRow) and not is_in_state(key):
            life = (given.after.get(key) or given.before.get(key, NO_ROW_CONTRIBUTION)).life
            if not (life or target is None or target.key.table.ttl):
                continue
            contributors_min = write.contributors_min
            if contributors_min is None and not life and lives and lives.follows(target, key):
                contributors_min = 0
            writes[position] = write._replace(life=life, born=key in given.born, contributors_min=contributors_min)
        elif isinstance(write, PutRow | DeleteRow) and key in given.before and lives and lives.follows(target, key):
            writes[position] = write._replace(amends=True)


def in_order(amounts: dict[str, Number]) -> dict[str, Number]:
    """Amounts by name, in the order of the names."""
    return dict(sorted(amounts.items())) if len(amounts) > 1 else amounts


def differs(previous: RowContribution, contribution: RowContribution) -> bool:
    """Whether a row has to be written. The digest of a contribution with plain attributes covers all of it."""
    if contribution.plain is not None:
        return previous.digest != contribution.digest
    return bool(previous.digest) or previous.amounts != contribution.amounts or previous.ordered != contribution.ordered


def marked(rows: Iterable[RowWrite], mark: Mark, before: Contribution, after: Contribution) -> list[RowWrite]:
    """The writes of rows. If entries below a row change, its write gets the step's stamp and those entries."""
    found: list[RowWrite] = []
    for write in rows:
        row = write
        plain = after[row.key].names if row.key in after else ()
        old = _ordered(before, row.key)
        if plain:
            gone = {*plain, PLAIN_ENTRY}
            old = {name: entries for name, entries in old.items() if name not in gone}
        positions = changed_entries(mark, row.key, old, _ordered(after, row.key), _life(before, after, row.key))
        # A recomputation under way must not overwrite a plain attribute that was made from entries before.
        if isinstance(row, AddRow) and (positions or row.values):
            row = row._replace(stamp=mark.stamp, changed_entries=positions)
        found.append(row)
    return found


def entries_by_row(
    application: str, route: Route, item: ItemKey, rows: Contribution, *, contributes: bool = False
) -> dict[RowKey, EntriesOfRow]:
    """The entries that an item may have changed below the rows of a contribution.

    ``contributes``: the item contributes the rows now, and decides how their entries are ordered.
    """
    ordered = {key: contribution for key, contribution in rows.items() if contribution.ordered}
    if not ordered:  # as nearly always
        return {}
    mark = Mark(application, route.name, item, "")
    found = {
        key: changed_entries(
            mark,
            key,
            *((NOTHING, contribution.ordered) if contributes else (contribution.ordered, NOTHING)),
            contribution.life,
        )
        for key, contribution in ordered.items()
    }
    return {key: positions for key, positions in found.items() if positions}


def pending_text(before: Contribution, after: Contribution, writes: Iterable[RowWrite], known: str = "") -> str | None:
    """The text of a step's pending rows and entries; None if there are none.

    ``known`` is the text of the pending work of earlier steps; it is joined.
    """
    pending = {write.key: NO_ROW_CONTRIBUTION for write in writes if _leaves(write)}
    for key, contribution in before.items():
        if contribution.ordered and (ordered := taken(contribution.ordered, _ordered(after, key))):
            pending[key] = RowContribution({}, None, "", ordered, life=contribution.life)
    if not pending:
        return None
    for key, contribution in pending_rows(known).items() if known else ():
        newer = pending.get(key, NO_ROW_CONTRIBUTION)
        if not newer.ordered:
            pending[key] = contribution
        elif newer.life == contribution.life:  # entries of an earlier life are no longer shown
            pending[key] = newer._replace(ordered=all_entries(contribution.ordered, newer.ordered))
    return stored_text(pending)


def entries_between(mark: Mark, before: Contribution, after: Contribution) -> list[PutState | DeleteState]:
    """The writes that change entries from one contribution to another."""
    found: list[PutState | DeleteState] = []
    for key in {**before, **after}:
        life = _life(before, after, key)
        found += entry_writes(mark, key, _ordered(before, key), _ordered(after, key), life)
    return found


def _life(before: Contribution, after: Contribution, key: RowKey) -> str:
    return (before[key] if key in before else after.get(key, NO_ROW_CONTRIBUTION)).life


def _ordered(rows: Contribution, key: RowKey) -> EntriesByName:
    return rows[key].ordered if key in rows else NOTHING


def _is_replaced(route: Route, key: RowKey) -> bool:
    target = target_of(route, key)
    return target is None or target.replaces


def row_put(application: str, route: Route, item: ItemKey, key: RowKey, contribution: RowContribution) -> PutRow:
    """The write that replaces a row."""
    owner = owner_of(application, route, target_of(route, key), item)
    return PutRow(key, {**(contribution.plain or {}), **contribution.amounts, CONTRIBUTORS: 1, OWNER: owner}, owner)


def owner_of(application: str, route: Route, target: Target | None, item: ItemKey) -> str:
    """The owner of a row that is replaced: the handler; of a multi_source row, with the source item."""
    return f"{application}/{route.name}" + (f"|{source_of(item)}" if target and target.multi_source else "")


def source_of(item: ItemKey) -> str:
    """A name that no other item has, of any table."""
    return f"{item[0]}|{item_name(item)}"


def _add(key: RowKey, previous: RowContribution | None, now: RowContribution) -> AddRow:
    """The addition that changes a row from one contribution to another; None is no contribution."""
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
    """The plain attributes to remove, and the cut-offs and sort positions of attributes that are plain now."""
    gone = [name for name in was.names if name not in plain and name not in now.amounts and name not in now.ordered]
    # Also for attributes that were not ordered: a row without the item may have them until it is recomputed.
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
        elif change := minus(after.get(name, 0), before[name]):
            amounts[name] = change
    return amounts


def _leaves(write: RowWrite) -> bool:
    return write.may_empty if isinstance(write, AddRow) else isinstance(write, DeleteRow) and is_in_state(write.key)
