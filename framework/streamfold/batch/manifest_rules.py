"""What may not change between an application and its state, and what to do where it does."""

from collections.abc import Collection, Mapping
from typing import Any

from streamfold.batch.knowledge import StoredForms
from streamfold.errors import ManifestError
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Seen, described
from streamfold.routes.route import Kind
from streamfold.settings import Settings

ManifestEntry = dict[str, Any]
ByName = Mapping[str, ManifestEntry]
FRESH = "For a local state, replay --fresh starts anew."


def check_handlers(
    before: ByName, now: ByName, retired: Collection[str], kinds: Mapping[str, Kind], *, older: bool
) -> None:
    """Raises ``ManifestError`` where handlers do not fit the state; ``older`` code may lack handlers and sources."""
    for name, entry in before.items():
        if name in now:
            _compare_entry(name, kinds[name], entry, now[name], older=older)
        elif name not in retired and "retired" not in entry and not older:
            raise ManifestError(
                f"Handler {name!r} ({entry['kind']} into {', '.join(entry['targets'])}) is known to the state, but the "
                f'application has it no more. Was it renamed? Then keep its identity: name="{name}". '
                f'Is it given up? Then App(..., retired=["{name}"]); its rows stay as they are. Is this code older '
                f"than what ran before? Then STREAMFOLD_OLDER_CODE=on lets it run. {FRESH}"
            )


def is_lacking(before: ByName, now: ByName, retired: Collection[str]) -> list[str]:
    """The handlers of a state that an application lacks, or of which it lacks a source."""
    return [
        name
        for name, entry in before.items()
        if (name not in now and name not in retired and "retired" not in entry)
        or (name in now and not set(entry["sources"]) <= set(now[name]["sources"]))
    ]


def _compare_entry(name: str, kind: Kind, before: ManifestEntry, now: ManifestEntry, *, older: bool) -> None:
    for what in ("kind", "group"):
        if before[what] != now[what]:
            raise _changed(name, what, before[what], now[what])
    for what in ("targets",) if older else ("sources", "targets"):
        if not set(before[what]) <= set(now[what]):
            raise _changed(name, what, ", ".join(before[what]), ", ".join(now[what]))
    # A row that several sources could make bears its owner; those that are stored do not, and would be refused.
    if not set(now["contested"]) <= set(before["contested"]):
        raise _changed(name, "rows", "rows that one source could make", "rows that several could make")
    _compare_identity(name, kind, before, now)


def _compare_identity(name: str, kind: Kind, before: ManifestEntry, now: ManifestEntry) -> None:
    try:
        kind.compare(name, before, now)
    except ManifestError as error:
        raise ManifestError(f"{error} {FRESH}") from None


def _changed(name: str, what: str, before: str, now: str) -> ManifestError:
    return ManifestError(
        f"Handler {name!r} changed its {what} from {before!r} to {now!r}: "
        "what it wrote before would be counted twice or left behind. "
        f'Give the changed handler a new name, name="{name}_2", and a target or attributes of its own, and retire the '
        f'old one, App(..., retired=["{name}"]). {FRESH}'
    )


def check_retired(before: ByName, now: ByName, gone: Collection[str], kinds: Mapping[str, StoredForms]) -> None:
    """Raises ``ManifestError`` where a handler writes what a retired one has left: rows would show both as one."""
    for name in sorted(set(gone) & before.keys()):
        old = before[name]
        for place in old["targets"] if old["contributes"] else ():
            alone = not any(place in entry["targets"] for other, entry in before.items() if other != name)
            for other, new in now.items():
                if new["contributes"] and place in new["targets"]:
                    what = _both(name, other, kinds.get(place, StoredForms()))
                    if not (old["shares"] and new["shares"]) or (alone and place in old["owned"]) or what:
                        raise _taken_over(name, other, place, what)


def _both(one: str, other: str, stored: StoredForms) -> list[str]:
    """The attributes of a target that two handlers have made."""
    return sorted(stored.forms.get(one, {}).keys() & stored.forms.get(other, {}).keys())


def _taken_over(name: str, other: str, place: str, names: list[str]) -> ManifestError:
    what = f"attribute {names[0]!r} of {place}" if names else f"rows of {place}"
    return ManifestError(
        f"Handler {name!r} is retired, and its {what} would be written by {other!r} too: what the retired handler "
        f'counted stays in them and would count twice. Was it renamed? Then keep its identity, name="{name}", and take '
        f"it out of retired=. Otherwise give {other!r} another target{' or attribute' if names else ''}. {FRESH}"
    )


def table_entry(name: str, before: ManifestEntry | None, seen: Seen, settings: Settings) -> ManifestEntry:
    """What a manifest says of a table. Raises ``ManifestError`` for another one, or another source, of this epoch."""
    epoch = settings.epoch
    if before is None or epoch > before["epoch"]:
        return {"source": seen.source, "epoch": epoch, "name": seen.name, "id": seen.id}
    if before["source"] != seen.source:
        raise ManifestError(
            f"The state knows table {name!r} through {described(before['source'])}, and now its records come from "
            f"{described(seen.source)}: versions of the two do not compare. To change over for good, let the old "
            f"source run dry, then raise STREAMFOLD_EPOCH to {before['epoch'] + 1}: every version is then newer than "
            f"those of the old source. {FRESH}"
        )
    for what in ("name", "id"):
        if None not in (before[what], getattr(seen, what)) and before[what] != getattr(seen, what):
            raise _another_table(name, before, seen)
    return before | {"name": before["name"] or seen.name, "id": before["id"] or seen.id}


def _another_table(name: str, before: ManifestEntry, seen: Seen) -> ManifestError:
    tested = (
        f" Was {before['name']!r} the table of a test event? Then set STREAMFOLD_TABLE_MAIN={seen.name} and "
        f"STREAMFOLD_EPOCH={before['epoch'] + 1}; streamfold rebuild takes back what was derived of it."
        if name == MAIN.name and before["name"] != seen.name
        else ""
    )
    return ManifestError(
        f"The state is of table {name!r} = {_named(before['name'], before['id'])}, and these records are of "
        f"{_named(seen.name, seen.id)}: what the state says of items and rows does not hold there, and their amounts "
        f"would be added to rows that have other ones.{tested} A table of its own needs a state of its own, "
        "STREAMFOLD_STATE_TABLE, and an empty one. Was the table restored? docs/operations.md says how to go on. Where "
        f"the state fits the rows of this table, raise STREAMFOLD_EPOCH to {before['epoch'] + 1}. {FRESH}"
    )


def _named(name: str | None, identity: str | None) -> str:
    return f"{name!r} ({identity})" if identity else f"{name!r}"
