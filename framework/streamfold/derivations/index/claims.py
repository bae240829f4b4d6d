"""Unique index items: the sort position of each claimant.

A row that several items may claim has its claimants as entries. The winner is a function of that set, so it depends
neither on the order of arrival nor on former claimants.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from streamfold.commit.outcome import Failed
from streamfold.derivations.index.unique import Unique, unique_of
from streamfold.derivations.view.rows import RowBuilder, folded, note, note_all
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.engines.protocol import Engine, Entries
from streamfold.errors import EngineError, HandlerError, Unprocessable, joined_key, redacted, shown
from streamfold.keys.key import Key
from streamfold.ledger.contribution import (
    BEHIND,
    PLAIN_ENTRY,
    Contribution,
    RowContribution,
    entry_of,
    partition,
    source_text,
)
from streamfold.ledger.schema import Schema
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image
from streamfold.routes.aggregates import Aggregate, Moment
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route, Target, may_expire
from streamfold.routes.shipped_aggregates import CONFLICT, Claimed
from streamfold.writes.guarded import ChangedEntries, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.commit.pending import ChangeAndHandler, PendingWork


def claim_order(name: str, unique: Unique, image: Mapping[str, Any]) -> Moment:
    """The value of ``by`` that orders an item's claim. Raises ``HandlerError`` for an item without one."""
    if unique.by is None:
        return ""
    value = image.get(unique.by)
    if value is None:
        raise HandlerError(
            f"Index {name!r} orders claims by={unique.by!r}, which the item does not have: expected a "
            "number, text, bytes, a date or a time. Yield no row for an item without it."
        )
    return value  # type: ignore[no-any-return]


def check_claim(name: str, target: Key, effect: Row, fields: Mapping[str, Any]) -> None:
    """Refuses a unique key with an empty field, which every item without a value would claim."""
    for field in target.fields:
        value = effect.values[field] if field in effect.values else fields.get(field, field)
        if value is None or (isinstance(value, str | bytes) and not value):
            raise HandlerError(
                f"Index {name!r} gave {shown(effect)}, a unique key that is empty: {field}={shown(value)}. Yield a "
                f"row only for an item that has a value, if item.get({field!r}): yield ..."
            )
    if CONFLICT in effect.values or CONFLICT in (effect.attributes or ()):
        raise HandlerError(
            f"Index {name!r} gave {CONFLICT!r}, under which a unique row lists the losing claims: give the "
            "attribute another name."
        )


def claim_contribution(
    builder: RowBuilder, target: Target, unique: Unique, values: Mapping[str, Any], order: Moment
) -> RowContribution:
    """The contribution of a claim to its row: an entry beside those of other claimants."""
    one = Claimed(values, order, unique.ordering, builder.route.name)
    note(builder, target, PLAIN_ENTRY, one)
    return RowContribution({}, None, "", {PLAIN_ENTRY: entry_of(one)})


def contributed(route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
    """The contribution of an existing item. Raises ``HandlerError`` for rows that the declaration does not allow."""
    unique = unique_of(route)

    def row(builder: RowBuilder, effect: Row) -> tuple[RowKey, RowContribution]:
        target = target_of(route, effect)
        if unique is not None:
            check_claim(route.name, target.key, effect, fields)
        key, values = split(target, effect, fields)
        _check_plain(route, effect, values)
        note_all(builder, target, values)
        if unique is not None:
            return key, claim_contribution(builder, target, unique, values, claim_order(route.name, unique, image))
        return key, RowContribution({}, values, "")

    effects: list[Row] = yielded(route, image, fields, Row)
    if may_expire(route):
        schema.note_expiry(route, effects)
    return folded(RowBuilder(route, schema, fields), effects, row)


def _check_plain(route: Route, effect: Row, values: Mapping[str, Any]) -> None:
    aggregates = [name for name, value in values.items() if isinstance(value, Aggregate)]
    if aggregates or effect.wins is not None:
        what = f"{aggregates[0]!r} as an aggregate" if aggregates else "wins="
        raise HandlerError(f"Index {route.name!r} gave {what}: an index item has one source; use a view.")


def conflicts(engine: Engine, pending_work: "PendingWork") -> Iterator[Failed]:
    """The newest change of every item that claims a row beside another item, winner or not, each with its conflict.

    The stored claimants decide, not the record: a conflict is reported again when its record is redelivered, and not
    after its item has left. If the store does not answer, the changes are returned with the store's error.
    """
    for row, changed in pending_work.changed_entries.items():
        for each in changed if row not in pending_work.wrong else ():
            if each.name != PLAIN_ENTRY:
                continue
            claims = _claims(row, each, pending_work.causes(row))
            try:
                met = _met(engine, each, claims)
            except EngineError as error:
                yield from (Failed(change, route, error) for change, route, _ in claims)
                continue
            yield from (Failed(change, route, _conflict(route, row)) for change, route in met)


RowClaim = tuple[Change, "Route", list[StateKey]]


def _claims(row: RowKey, changed: ChangedEntries, causes: "Collection[ChangeAndHandler]") -> list[RowClaim]:
    """The newest change of each item that may claim the row, with the keys of the entries that its claim may have."""
    claiming = {route for route in {route for _, route in causes} if _claims_row(route, row)}
    if not claiming:
        return []
    newest = {change.item: (change, route) for change, route in causes if route in claiming}
    keys: dict[str, list[StateKey]] = {}
    for position in changed.positions:
        keys.setdefault(position.partition(BEHIND)[2], []).append(StateKey(changed.partition, position))
    return [(change, route, keys.get(source_text(item), [])) for item, (change, route) in newest.items()]


def _is_reported(route: "Route") -> bool:
    return isinstance(route.options, Unique) and route.options.reported


def _claims_row(route: "Route", row: RowKey) -> bool:
    if not _is_reported(route):
        return False
    (target,) = route.into
    return target.takes(row)


def _met(engine: Engine, changed: ChangedEntries, claims: Collection[RowClaim]) -> "list[ChangeAndHandler]":
    """The changes of items that claim the row now, if at least two items do."""
    if not claims or len(engine.read_entries(Entries(changed.partition, 2))) < 2:
        return []
    stored = engine.read_state([key for _, _, keys in claims for key in keys], consistent=True)
    return [(change, route) for change, route, keys in claims if any(key in stored for key in keys)]


def claimed_twice(
    engine: Engine, application: str, route: "Route", item: ItemKey, rows: "Contribution"
) -> list[Unprocessable]:
    """The conflicts of an item's rows of a unique index, as its record would report them."""
    if not _is_reported(route):
        return []
    own = source_text(item)
    return [
        _conflict(route, row)
        for row, contribution in rows.items()
        if _is_claimed_by_others(engine, application, route, own, row, contribution.life)
    ]


def _is_claimed_by_others(engine: Engine, application: str, route: "Route", own: str, row: RowKey, life: str) -> bool:
    # Two entries are enough: one of them is of another item than the own.
    entries = engine.read_entries(Entries(partition(application, route.name, PLAIN_ENTRY, row, life), 2))
    return any(position.partition(BEHIND)[2] != own for position, _ in entries)


def _conflict(route: "Route", row: RowKey) -> Unprocessable:
    return Unprocessable(
        f"The item claims row {redacted(joined_key(row[1:]))} of unique index {route.name!r}, and so does another; the "
        "row shows the winner. The conflict ends when one of them gives up its claim."
    )
