"""What a state knows of its application: a handler that vanished or changed is refused, never counted twice."""

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from streamfold.engines import Engine
from streamfold.envelope import described
from streamfold.errors import ManifestError
from streamfold.key import Key
from streamfold.ledger import kinds_key, manifest_key
from streamfold.route import Route

ROUNDS_MAX = 8
APPLICATIONS_KEPT = 4

Entry = dict[str, Any]


def check_manifest(
    application: str,
    routes: tuple[Route, ...],
    retired: frozenset[str],
    engine: Engine,
    *,
    sources: Mapping[str, str] = MappingProxyType({}),
    epoch: int = 0,
    write: bool = True,
) -> Mapping[str, Any]:
    """Compares the application with the state's manifest and adds what is new to it.

    Returns what the state's item of attributes says (``streamfold.kinds``), which is read beside it.

    ``sources`` are source kinds by table, as far as records were seen, and ``epoch`` the setting of that name.
    Raises ``ManifestError`` when a handler of the manifest is gone or has another kind, group, source or target, and
    when a table has another source kind and the epoch is not higher.
    """
    key, beside = manifest_key(application), kinds_key(application)
    current = _entries(routes)
    for _ in range(ROUNDS_MAX):
        read = engine.read_state([key, beside])
        found = read.get(key, {})
        known: dict[str, Entry] = json.loads(found.get("handlers", "{}"))
        known_tables: dict[str, Entry] = json.loads(found.get("tables", "{}"))
        _compare(known, current, retired)
        merged = {name: entry for name, entry in {**known, **current}.items() if name not in retired}
        tables = _tables(known_tables, sources, epoch)
        if (merged == known and tables == known_tables) or not write:
            return read.get(beside, {})
        attributes = {"handlers": json.dumps(merged, sort_keys=True), "tables": json.dumps(tables, sort_keys=True)}
        if engine.swap_state(key, attributes, int(found.get("r", 0))):
            return read.get(beside, {})
    raise ManifestError(
        f"The manifest of {application!r} could not be written in {ROUNDS_MAX} tries: others write it at the same time."
    )


@lru_cache(maxsize=APPLICATIONS_KEPT)
def _entries(routes: tuple[Route, ...]) -> Mapping[str, Entry]:
    """What an application says of itself; a proof asks for it at the start of every invocation that follows a death."""
    return {route.name: _entry(route) for route in routes}


def _entry(route: Route) -> Entry:
    return {
        "kind": "external" if route.external else "unique index" if route.unique else route.kind,
        "group": route.group,
        "sources": [place_of(key) for key in route.sources],
        "targets": [place_of(key) for key in route.writes],
        "contested": [place_of(target.key) for target in route.targets if target.contested],
    }


def _tables(known: Mapping[str, Entry], sources: Mapping[str, str], epoch: int) -> dict[str, Entry]:
    """The tables of a manifest with what was seen of them: source kind, and the highest epoch it was read under."""
    tables = dict(known)
    for name, source in sources.items():
        before = known.get(name, {"source": source, "epoch": epoch})
        if before["source"] != source and epoch <= before["epoch"]:
            raise ManifestError(
                f"The state knows table {name!r} through {described(before['source'])}, and now its records come from "
                f"{described(source)}: versions of the two do not compare. To change over for good, let the old source "
                f"run dry, then raise STREAMFOLD_EPOCH to {before['epoch'] + 1}: every version is then newer than "
                "those of the old source. For a local state, --fresh starts anew."
            )
        tables[name] = {"source": source, "epoch": max(epoch, before["epoch"])}
    return tables


def place_of(key: Key) -> str:
    """A key as a state names it: its table and its templates."""
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
