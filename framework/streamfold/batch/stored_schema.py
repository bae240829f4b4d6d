"""The stored schema: whether each attribute is summed, ordered or plain, and which handler makes it.

The run keeps the process's knowledge of it, so that declarations have no state.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, EngineUnavailable, damaged, redacted
from streamfold.ledger.schema import PLAIN, RETIRED, Schema, SchemaByHandler, follows, joined, known, shares
from streamfold.ledger.state_keys import schema_key
from streamfold.routes.application import Application
from streamfold.routes.route import Target
from streamfold.runtime import Knowledge, Runtime, StoredSchema
from streamfold.writes.guarded import StateKey

NAMES_MAX = 500
NAMES_BYTES_MAX = 32 * 1024
"""Stored attributes per handler and target, and their bytes. A handler that generates attribute names may have more;
the rest is not stored. Eleven such handlers of one target fit its item of 400 KB (Developer Guide, ServiceQuotas)."""


def parsed_schema(item: Mapping[str, Any]) -> StoredSchema:
    """The schema of a state item. Raises ``EngineError`` for one that is damaged."""
    try:
        return StoredSchema(json.loads(item.get("kinds", "{}")), int(item.get("r", 0)))
    except (TypeError, ValueError):
        raise damaged("The stored schema of attributes") from None


def schema_keys(app: Application) -> list[StateKey]:
    return [schema_key(app.name, target_key) for target_key in _targets_by_key(app)]


def learn(
    knows: Knowledge, read: Mapping[StateKey, Mapping[str, Any]], app: Application, retired: Collection[str]
) -> None:
    """Takes over the schemas of the state items ``read``; attributes of ``retired`` handlers are marked as retired."""
    for target_key, target in _targets_by_key(app).items():
        stored = knows.targets[target_key] = parsed_schema(read.get(schema_key(app.name, target_key), {}))
        mine = knows.schema.of(target.key)
        for handler, schema in stored.schema.items():
            _learn(mine.setdefault(handler, {}), dict.fromkeys(schema, RETIRED) if handler in retired else schema)


def keep_schema(runtime: Runtime) -> bool:
    """Stores new aggregations, before the batch stores rows that have them.

    Returns False if another process has stored a conflicting aggregation meanwhile: the batch has to be planned again,
    and the handler is then refused. If the store is unavailable, the aggregations are stored with a later batch.
    """
    app, knows = runtime.application, runtime.known
    fits = True
    try:
        for target_key, target in _targets_by_key(app).items():
            found, seen = _found(app, target, knows.schema), knows.schema.of(target.key)
            stored = knows.targets.setdefault(target_key, StoredSchema())
            fits = not _keep(runtime, schema_key(app.name, target_key), stored, found, seen) and fits
            _warn(runtime, target_key, stored, found)
    except EngineUnavailable:
        return fits
    knows.noted = len(knows.schema)
    return fits


def drop_schema(runtime: Runtime, handler: str, targets: Collection[Target]) -> None:
    """Removes the attributes of a handler from the stored schema: none of its rows has them any more.

    Raises ``Contended`` if others write at every try, and the errors of the engine.
    """
    for key in {schema_key(runtime.application.name, target.key.stored_name) for target in targets}:
        # Another process may add attributes between read and swap: a swap over them would lose its checks.
        for _ in runtime.tries():
            stored = parsed_schema(runtime.engine.read_state([key], consistent=True).get(key, {}))
            remaining = {name: schema for name, schema in stored.schema.items() if name != handler}
            if remaining == stored.schema or runtime.engine.swap_state(
                key, {"kinds": _text(remaining)}, stored.revision
            ):
                break
        else:
            raise _busy(key)


def _keep(
    runtime: Runtime, key: StateKey, stored: StoredSchema, found: SchemaByHandler, shown: SchemaByHandler
) -> bool:
    """Stores the aggregations found for a target; returns whether one clashes with a stored one, and corrects
    ``shown``.
    """
    # A refused swap shows that another process stored aggregations first: they are merged before the next try.
    for _ in runtime.tries():
        kinds, clashing = _merged(stored.schema, found)
        if kinds == stored.schema or runtime.engine.swap_state(key, {"kinds": _text(kinds)}, stored.revision):
            stored.revision += kinds != stored.schema
            stored.schema = kinds
            for handler, name, other in clashing:
                shown[handler].pop(name)
                shown.setdefault(other, {})[name] = kinds[other][name]
            return bool(clashing)
        read = parsed_schema(runtime.engine.read_state([key], consistent=True).get(key, {}))
        stored.schema, stored.revision = read.schema, read.revision
    raise _busy(key)


def _busy(key: StateKey) -> Contended:
    return Contended(f"State item {redacted(key)} was written by others {TRIES_MAX} times in a row.")


def _merged(stored: SchemaByHandler, found: SchemaByHandler) -> tuple[SchemaByHandler, list[tuple[str, str, str]]]:
    """The stored aggregations with the found ones, and the clashes: handler, attribute, and the handler that had it
    before.
    """
    kinds = {handler: dict(names) for handler, names in stored.items()}
    clashing = []
    for handler, names in found.items():
        mine = kinds.setdefault(handler, {})
        bytes_remaining = NAMES_BYTES_MAX - len(_text({handler: mine}).encode())
        for name, kind in names.items():
            if (other := _clash(kinds, handler, name, kind)) is not None:
                clashing.append((handler, name, other))
            elif name in mine:
                mine[name] = joined(mine[name], kind)
            elif (
                len(mine) < NAMES_MAX and (bytes_remaining := bytes_remaining - len(_text({name: kind}).encode())) >= 0
            ):
                mine[name] = kind
    return {handler: names for handler, names in kinds.items() if names}, clashing


def _clash(kinds: SchemaByHandler, handler: str, name: str, kind: str) -> str | None:
    """The handler, perhaps the same one, whose stored aggregation of an attribute conflicts with ``kind``."""
    mine = kinds[handler]
    if name in mine:
        return None if follows(mine[name], kind) else handler
    others = (other for other, names in kinds.items() if other != handler and name in names)
    return next((other for other in others if not shares(kinds[other][name], kind)), None)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _warn(runtime: Runtime, target_key: str, stored: StoredSchema, found: SchemaByHandler) -> None:
    remembered = {name for names in stored.schema.values() for name in names}
    for handler, names in found.items():
        if not names.keys() <= remembered:
            runtime.warn_once(
                ("kinds", target_key, handler),
                f"Handler {handler!r} yields more attributes of {target_key} than the state stores, {NAMES_MAX} with "
                f"{NAMES_BYTES_MAX} bytes: that one of the others becomes another aggregate is refused only by a "
                "process that saw it before. Names that are values belong into keys of rows.",
            )


def _learn(mine: dict[str, str], kinds: Mapping[str, str]) -> None:
    """Adds the stored aggregations; the process's own, of the same kind, are more precise and are kept."""
    for name, kind in kinds.items():
        if name not in mine or known(mine[name]) != kind:
            mine[name] = kind


def _targets_by_key(app: Application) -> Mapping[str, Target]:
    targets = (target for route in app.routes if route.kind.contributes for target in route.targets)
    return {target.key.stored_name: target for target in targets}


def _found(app: Application, target: Target, schema: Schema) -> SchemaByHandler:
    """The aggregations seen, without attributes of replaced rows: only added attributes could be mixed with stored
    ones.
    """
    declared = {route.name for route in app.routes}
    return {
        handler: {
            name: known(aggregation)
            for name, aggregation in names.items()
            if aggregation != PLAIN or not target.replaces
        }
        for handler, names in schema.of(target.key).items()
        if handler in declared
    }
