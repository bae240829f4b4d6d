"""Items that claim a unique row which another item claims too, told after the rows are recomputed."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from streamfold.commit.outcome import Failed
from streamfold.derivations.index.options import Unique
from streamfold.engines import Engine, Entries
from streamfold.errors import EngineError, Unprocessable, parts_text, told
from streamfold.ledger.entries import BEHIND, PLAIN_ENTRY, partition, source_text
from streamfold.records.change import Change, ItemKey
from streamfold.writes.guarded import Moved, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.commit.unfinished import Cause, Unfinished
    from streamfold.ledger.contribution import Contribution
    from streamfold.routes.route import Route


def conflicts(engine: Engine, unfinished: "Unfinished") -> Iterator[Failed]:
    """The newest change of every item that claims a row beside another item, whoever wins, each with what it meets.

    The stored claimants decide, not the record: a conflict is reported again when its record is delivered again, and
    not once its item has left. If the store does not answer, the changes are returned with the store's error.
    """
    for row, moved in unfinished.moved.items():
        for each in moved if row not in unfinished.wrong else ():
            if each.name != PLAIN_ENTRY:
                continue
            claims = _claims(row, each, unfinished.causes(row))
            try:
                met = _met(engine, each, claims)
            except EngineError as error:
                yield from (Failed(change, route, error) for change, route, _ in claims)
                continue
            yield from (Failed(change, route, _conflict(route, row)) for change, route in met)


RowClaim = tuple[Change, "Route", list[StateKey]]


def _claims(row: RowKey, moved: Moved, causes: "Collection[Cause]") -> list[RowClaim]:
    """The newest change of each item that may claim the row, with the keys of the entries that its claim may have."""
    claiming = {route for route in {route for _, route in causes} if _claims_row(route, row)}
    if not claiming:
        return []
    newest = {change.item: (change, route) for change, route in causes if route in claiming}
    places: dict[str, list[StateKey]] = {}
    for place in moved.places:
        places.setdefault(place.partition(BEHIND)[2], []).append(StateKey(moved.partition, place))
    return [(change, route, places.get(source_text(item), [])) for item, (change, route) in newest.items()]


def _is_reported(route: "Route") -> bool:
    return isinstance(route.options, Unique) and route.options.reported


def _claims_row(route: "Route", row: RowKey) -> bool:
    if not _is_reported(route):
        return False
    (target,) = route.into
    return target.table.name == row[0] and target.match_values(*row[1:]) is not None


def _met(engine: Engine, moved: Moved, claims: Collection[RowClaim]) -> "list[Cause]":
    """The changes of items that claim the row now, if at least two items do."""
    if not claims or len(engine.read_entries(Entries(moved.partition, 2))) < 2:
        return []
    there = engine.read_state([key for _, _, keys in claims for key in keys], consistent=True)
    return [(change, route) for change, route, keys in claims if any(key in there for key in keys)]


def claimed_twice(
    engine: Engine, application: str, route: "Route", item: ItemKey, rows: "Contribution"
) -> list[Unprocessable]:
    """The conflicts of an item's rows of a unique index, as its record would report them."""
    if not _is_reported(route):
        return []
    own = source_text(item)
    return [
        _conflict(route, row) for row, part in rows.items() if _others(engine, application, route, own, row, part.life)
    ]


def _others(engine: Engine, application: str, route: "Route", own: str, row: RowKey, life: str) -> bool:
    """Whether another source than the item's own claims a row."""
    entries = engine.read_entries(Entries(partition(application, route.name, PLAIN_ENTRY, row, life), 2))
    return any(place.partition(BEHIND)[2] != own for place, _ in entries)


def _conflict(route: "Route", row: RowKey) -> Unprocessable:
    return Unprocessable(
        f"The item claims row {told(parts_text(row[1:]))} of unique index {route.name!r}, and so does another; the row "
        "shows who wins. That resolves itself when one of them claims it no more."
    )
