"""What a state knows of its application: a handler that vanished or changed is refused, never counted twice."""

import json
from collections.abc import Mapping
from typing import Any

from streamfold.engines import Engine
from streamfold.errors import ManifestError
from streamfold.ledger import manifest_key
from streamfold.route import Route

ROUNDS_MAX = 8

Entry = dict[str, Any]


def check_manifest(
    application: str, routes: tuple[Route, ...], retired: frozenset[str], engine: Engine, *, write: bool = True
) -> None:
    """Compares the application with the state's manifest and adds what is new to it.

    Raises ``ManifestError`` when a handler of the manifest is gone or has another kind, group, source or target.
    """
    key = manifest_key(application)
    current = {route.name: _entry(route) for route in routes}
    for _ in range(ROUNDS_MAX):
        found = engine.read_state([key]).get(key, {})
        known: dict[str, Entry] = json.loads(found.get("handlers", "{}"))
        _compare(known, current, retired)
        merged = {name: entry for name, entry in {**known, **current}.items() if name not in retired}
        if merged == known or not write:
            return
        if engine.swap_state(key, {"handlers": json.dumps(merged, sort_keys=True)}, int(found.get("r", 0))):
            return
    raise ManifestError(
        f"The manifest of {application!r} could not be written in {ROUNDS_MAX} tries: others write it at the same time."
    )


def _entry(route: Route) -> Entry:
    return {
        "kind": "external" if route.external else route.kind,
        "group": route.group,
        "sources": [_place(key) for key in route.sources],
        "targets": [_place(key) for key in route.into],
        "contested": [_place(target.key) for target in route.targets if target.contested],
    }


def _place(key: Any) -> str:
    return f"{key.table.name}: {key.template}"


def _compare(known: Mapping[str, Entry], current: Mapping[str, Entry], retired: frozenset[str]) -> None:
    for name, entry in known.items():
        if name in retired:
            continue
        if name not in current:
            raise ManifestError(
                f"Handler {name!r} ({entry['kind']} into {', '.join(entry['targets'])}) is known to the state, but "
                f'the application has it no more. Was it renamed? Then keep its identity: name="{name}". '
                f'Is it given up? Then App(..., retired=["{name}"]); its rows stay as they are. '
                "For a local state, --fresh starts anew."
            )
        _compare_entry(name, entry, current[name])


def _compare_entry(name: str, before: Entry, now: Entry) -> None:
    for what in ("kind", "group"):
        if before[what] != now[what]:
            raise _changed(name, what, before[what], now[what])
    for what in ("sources", "targets"):
        if not set(before[what]) <= set(now[what]):
            raise _changed(name, what, ", ".join(before[what]), ", ".join(now[what]))
    # A row that several sources could make bears its owner; those that are stored do not, and would be refused.
    if "contested" in before and not set(now["contested"]) <= set(before["contested"]):
        raise _changed(name, "rows", "rows that one source could make", "rows that several could make")


def _changed(name: str, what: str, before: str, now: str) -> ManifestError:
    return ManifestError(
        f"Handler {name!r} changed its {what} from {before!r} to {now!r}: "
        "what it wrote before would be counted twice or left behind. "
        f'Give the changed handler a new name, name="{name}_2", and retire the old one, App(..., retired=["{name}"]). '
        "For a local state, --fresh starts anew."
    )
