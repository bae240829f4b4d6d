"""What one source item contributes through one handler: its stored text, and the writes from one to another."""

import json
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple

from streamfold.aggregates import Number
from streamfold.change import ItemKey, item_name
from streamfold.entries import NOTHING, Entry, Held, HeldByName, Mark, alone, moved, taken
from streamfold.entries import writes as entry_writes
from streamfold.key import KeyValue
from streamfold.route import Route, Target
from streamfold.table import CONTRIBUTORS, OWNER
from streamfold.values import CANONICAL, WIDE, decode, number_text
from streamfold.writes import AddRow, DeleteRow, DeleteState, Moved, PutRow, PutState, RowKey, RowWrite


class Part(NamedTuple):
    """What one item contributes to one row: amounts to add, and for rows put whole their attributes and digest.

    ``ordered``: its entries below the row, by attribute.
    """

    amounts: dict[str, Number]
    plain: dict[str, Any] | None
    digest: str
    ordered: HeldByName = NOTHING


Contribution = dict[RowKey, Part]
"""All that one item contributes through one handler, by row."""


# The stored form of a contribution: canonical JSON, one array a row. Equal contributions have equal text.


def stored_text(rows: Contribution) -> str:
    """The canonical text of a contribution; ``""`` for none."""
    if not rows:
        return ""
    if len(rows) == 1:
        ((key, part),) = rows.items()
        return f"[{_stored_row(key, part)}]"
    return f"[{','.join(sorted(_stored_row(key, part) for key, part in rows.items()))}]"


def _stored_row(key: RowKey, part: Part) -> str:
    names = ",".join([quoted(value) if isinstance(value, str) else _tagged(value) for value in key])
    amounts = ",".join([f'{quoted(name)}:"{number_text(amount)}"' for name, amount in sorted(part.amounts.items())])
    digest = f',"{part.digest}"' if part.digest or part.ordered else ""
    entries = f",{_stored_entries(part.ordered)}" if part.ordered else ""
    return f"[{names},{{{amounts}}}{digest}{entries}]"


def _stored_entries(ordered: HeldByName) -> str:
    """The ordering of each attribute, and the texts that order its entries, each with what its digest is."""
    held = {
        name: [found.ordering, {order: entry.digest for order, entry in found.entries.items()}]
        for name, found in ordered.items()
    }
    return CANONICAL.encode(held)


def _tagged(value: KeyValue | None) -> str:
    if value is None:
        return "null"
    return f'{{"B":"{value.hex()}"}}' if isinstance(value, bytes) else f'{{"N":"{number_text(value)}"}}'  # type: ignore[arg-type]


def stored_rows(text: str) -> Contribution:
    """The contribution of a stored text."""
    rows: Contribution = {}
    for table, partition, sort, amounts, *rest in json.loads(text) if text else ():
        key = (table, _untagged(partition), _untagged(sort))
        rows[key] = Part(
            {name: decode({"N": text}) for name, text in amounts.items()},
            None,
            rest[0] if rest else "",
            _held(rest[1]) if len(rest) > 1 else NOTHING,
        )
    return rows


def _held(stored: dict[str, Any]) -> HeldByName:
    return {
        name: Held(ordering, {order: Entry(digest) for order, digest in entries.items()})
        for name, (ordering, entries) in stored.items()
    }


def _untagged(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["B"]) if "B" in value else decode(value)


def difference(route: Route, item: ItemKey, before: Contribution, after: Contribution) -> list[RowWrite]:
    """The writes that lead the rows from one contribution to another."""
    writes: list[RowWrite] = []
    for key, part in after.items():
        previous = before.get(key)
        if part.plain is not None:
            if previous is None or previous.digest != part.digest:
                writes.append(_put(route, item, key, part))
        elif previous and previous.digest and _is_whole(route, key):  # its plain attributes went
            writes.append(_put(route, item, key, part))
        elif previous is None or previous.amounts != part.amounts or previous.ordered != part.ordered:
            writes.append(_add(key, previous.amounts if previous else {}, part.amounts, 0 if previous else 1))
    for key, part in before.items():
        if key not in after:
            if part.digest and _is_whole(route, key):
                writes.append(DeleteRow(key, owner_of(_target_of(route, key), item)))
            else:
                writes.append(_add(key, part.amounts, {}, -1))
    return writes


def has_entries(*contributions: Contribution) -> bool:
    """Whether something is ordered in one of them."""
    return any(part.ordered for rows in contributions for part in rows.values())


def marked(rows: Iterable[RowWrite], mark: Mark, before: Contribution, after: Contribution) -> list[RowWrite]:
    """The writes of rows, where entries move below one with the step's stamp and what moves."""
    found: list[RowWrite] = []
    for row in rows:
        places = moved(mark, row.key, _ordered(before, row.key), _ordered(after, row.key))
        found.append(row._replace(stamp=mark.stamp, moved=places) if isinstance(row, AddRow) and places else row)
    return found


def moved_by(application: str, route: Route, item: ItemKey, rows: Contribution) -> dict[RowKey, tuple[Moved, ...]]:
    """All that an item may have moved below the rows of a contribution."""
    mark = Mark(application, route.name, item, "")
    found = {key: moved(mark, key, NOTHING, part.ordered) for key, part in rows.items() if part.ordered}
    return {key: places for key, places in found.items() if places}


def left_text(before: Contribution, after: Contribution) -> str | None:
    """The text of the entries that a step takes away; None where nothing is ordered."""
    if not has_entries(before, after):
        return None
    found = {key: taken(part.ordered, _ordered(after, key)) for key, part in before.items()}
    return stored_text({key: Part({}, None, "", ordered) for key, ordered in found.items() if ordered})


def entries_between(mark: Mark, before: Contribution, after: Contribution) -> list[PutState | DeleteState]:
    """The writes that lead the entries from one contribution to another."""
    found: list[PutState | DeleteState] = []
    for key in {**before, **after}:
        found += entry_writes(mark, key, _ordered(before, key), _ordered(after, key))
    return found


def _ordered(rows: Contribution, key: RowKey) -> HeldByName:
    return rows[key].ordered if key in rows else NOTHING


def _is_whole(route: Route, key: RowKey) -> bool:
    """Whether the target of a row is still one that is put whole; a target given up was."""
    target = _target_of(route, key)
    return target is None or target.whole


def _put(route: Route, item: ItemKey, key: RowKey, part: Part) -> PutRow:
    owner = owner_of(_target_of(route, key), item)
    made = {name: alone(held) for name, held in part.ordered.items()}
    content = {**(part.plain or {}), **made, **part.amounts, CONTRIBUTORS: 1}
    return PutRow(key, {**content, OWNER: owner} if owner else content, owner)


def owner_of(target: Target | None, item: ItemKey) -> str | None:
    """What tells the source item of a contested row from all others, those of other tables too."""
    return f"{item[0]}|{item_name(item)}" if target and target.contested else None


def _add(key: RowKey, before: Mapping[str, Number], after: Mapping[str, Number], contributors: int) -> AddRow:
    amounts: dict[str, Number] = {}
    for name in sorted({**before, **after}):
        if name not in before:
            amounts[name] = after[name]  # also where it is 0: the row then has the attribute
        elif delta := _minus(after.get(name, 0), before[name]):
            amounts[name] = delta
    return AddRow(key, amounts, contributors)


def _minus(after: Number, before: Number) -> Number:
    if isinstance(after, int) and isinstance(before, int):
        return after - before
    return WIDE.subtract(after, before)


def _target_of(route: Route, key: RowKey) -> Target | None:
    if len(route.targets) == 1:
        return route.targets[0]
    return next(
        (
            target
            for target in route.targets
            if target.key.table.name == key[0] and target.key.match_values(*key[1:]) is not None
        ),
        None,
    )
