"""The writes of an ``on`` handler for one change."""

from collections.abc import Mapping
from typing import Any

from streamfold.commit.plan import Unit, claim_unit
from streamfold.derivations.derivation import Work
from streamfold.derivations.expected import Expected, History, placed
from streamfold.derivations.expiry import look_at_writes
from streamfold.derivations.yielded import split, target_of, yielded
from streamfold.errors import HandlerError, redacted, shown
from streamfold.ledger.difference import source_of
from streamfold.ledger.state_keys import claim_key
from streamfold.records.change import Change
from streamfold.records.values import Number, digest, encode, number_text
from streamfold.routes.effects import Add, Delete, Put
from streamfold.routes.route import Fields, Route, Target
from streamfold.runtime import Runtime
from streamfold.writes.guarded import AddRow, GuardedPut, RowKey, RowWrite


def claimed(runtime: Runtime, work: Work, change: Change) -> list[Unit]:
    """The unit of one change's effects behind a claim; none if there are no effects."""
    rows = effects(work.route, change, work.fields)
    look_at_writes(runtime, work.route, rows, (change,))
    key = claim_key(runtime.application.name, work.route.name, work.item, change.identity_text)
    return [claim_unit(key, work.route, change, rows)] if rows else []


def effects(route: Route, change: Change, fields: Fields) -> list[RowWrite]:
    """The writes of an ``on`` handler for one change. Raises as ``contribution``."""
    writes: dict[RowKey, RowWrite] = {}
    for effect in yielded(route, change, fields, Put, Add, Delete):
        target = target_of(route, effect)
        key, values = split(target, effect, fields)
        write = _write(route, target, key, effect, values, change)
        writes[key] = _joined(route, writes[key], write) if key in writes else write
    return list(writes.values())


def _write(
    route: Route, target: Target, key: RowKey, effect: Put | Add | Delete, values: dict[str, Any], change: Change
) -> RowWrite:
    if isinstance(effect, Add):
        return AddRow(key, _amounts(route, effect, values), 1, unversioned=True)
    if not target.owned:
        raise HandlerError(
            f"Handler {route.name!r} gave {shown(effect)}, but does not own {target.key!r}: its template does not "
            "hold every field of the source's key, and versions of different items do not compare. "
            "Use a view, or a target of its own for each item."
        )
    if isinstance(effect, Delete) and values:
        raise HandlerError(f"{shown(effect)} has attributes: a Delete takes the fields of the target's key only.")
    owner = source_of(change.item) if target.multi_source else None
    if isinstance(effect, Delete):
        return GuardedPut(key, None, change.version_text, owner)
    digest(encode(values)["M"])  # refuses a value that cannot be stored here, where the error names the row
    return GuardedPut(key, values, change.version_text, owner)


def _amounts(route: Route, effect: Add, values: Mapping[str, Any]) -> dict[str, Number]:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Number):
            raise HandlerError(
                f"Handler {route.name!r} gave {shown(effect)}: {redacted(name)}={shown(value)} is no number "
                "(int or Decimal) to add. A number that is stored as text becomes one by Decimal(...); Put stores text."
            )
        number_text(value)
    if not values:
        raise HandlerError(
            f"Handler {route.name!r} gave {shown(effect)}: it adds nothing; "
            "give attributes and amounts, Add(TARGET, total=1)."
        )
    return dict(values)


def _joined(route: Route, one: RowWrite, other: RowWrite) -> RowWrite:
    if isinstance(one, AddRow) and isinstance(other, AddRow):
        return one.merged(other)
    raise HandlerError(
        f"Handler {route.name!r} gave two writes of one row, {shown(one.key[1:])}: "
        "expected one Put or Delete, or Adds only."
    )


def expected(route: Route, history: History) -> Expected:
    """The rows of all changes that the filters let through, in order."""
    rows = Expected().rows
    for change, fields in history.changes_of(route):
        own = change.as_written()
        for effect in history.called(route, own, fields, change.item) if own and route.takes(own) else ():
            key, values = placed(route, effect, fields)
            if isinstance(effect, Add):
                row = rows.setdefault(key, {})
                row.update({name: row.get(name, 0) + amount for name, amount in values.items()})
            elif isinstance(effect, Delete):
                rows.pop(key, None)
            else:
                rows[key] = values
    return Expected(rows)
