"""What an archive has to keep: each removed item as it was."""

from typing import Any

from streamfold.derivations.archive.archives import ArchivedItem, read_archive
from streamfold.derivations.expected import Expected, History, Values
from streamfold.records.encoded import CANONICAL
from streamfold.records.values import decode, encode
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey


def expected(route: Route, history: History) -> Expected:
    """The removed items."""
    found = Expected()
    for change, _ in history.changes_of(route):
        if change.event == "REMOVE":
            item = decode({"M": change.old.raw})
            kept = ArchivedItem(change.table.name, item, change.identity_text, change.at, change.expired)
            found.outside[_kept_key(route.name, kept)] = _kept(kept)
    return found


def found_outside(route: Route, place: Any) -> dict[RowKey, Values]:
    """What an archive keeps, as its reader gives it; what it gives twice is there twice."""
    found: dict[RowKey, Values] = {}
    for kept in read_archive(place, route.name):
        key = _kept_key(route.name, kept)
        found[key if key not in found else (*key[:2], f"{key[2]!r} again")] = _kept(kept)
    return found


def _kept_key(handler: str, kept: ArchivedItem) -> RowKey:
    """Where an archived item stands among rows: with its table, as it was; its version tells its removals apart."""
    return f"archive {handler}", f"{kept.table} {CANONICAL.encode(encode(kept.item))}", kept.version


def _kept(kept: ArchivedItem) -> Values:
    return {"item": kept.item, "at": kept.at, "expired": kept.expired}
