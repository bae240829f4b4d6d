"""The history rows of a batch, and the row of each change: a function of the change alone, under a key with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.commit.plan import KeyedPut
from streamfold.derivations.audit.digests import ROW, image_digest, row_digest
from streamfold.derivations.audit.options import recorded_of
from streamfold.derivations.audit.rows import expiry, fitting, own_change, row_head
from streamfold.derivations.derivation import Planning, Work
from streamfold.keys.key import Key
from streamfold.records.change import Change
from streamfold.records.item_names import item_name
from streamfold.routes.checks import check_view
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import PutRow


def planned(works: Sequence[Work], planning: Planning) -> list[KeyedPut]:
    """A row for each change that is not of derived attributes alone; one that cannot be made fails its record."""
    puts: list[KeyedPut] = []
    for work in works:
        for change in work.changes:
            try:
                puts += _put(work, change, planning.run.settings.audit_key)
            except Exception as error:  # noqa: BLE001 - fails this record only
                planning.fails(change, work.route, error)
    return puts


def _put(work: Work, change: Change, key: bytes | None) -> list[KeyedPut]:
    check_view(work.route, change)
    own = own_change(change)
    return [] if own is None else [KeyedPut(work.route, change, audit_row(work.route, own, work.fields, key))]


def audit_row(route: Route, change: Change, fields: Fields, key: bytes | None = None) -> PutRow:
    """The history row of one change: a function of the change alone. With a ``key``, it carries keyed digests."""
    head = {"item": item_name(change.item), **row_head(recorded_of(route), change)}
    values = {**fields, "item": head["item"], "version": head["version"]}
    target = _target(route, change)
    table = target.table
    row = fitting(recorded_of(route), change, head) | expiry(recorded_of(route), change, table)
    keys = table.attributes
    own = {name: value for name, value in row.items() if name not in keys}
    place = target.compose(values)
    if key is not None:
        own["digests"] = _digests(key, change, target, place, own)
    return PutRow((table.name, *place), own, fits=True)


def _target(route: Route, change: Change) -> Key:
    target = route.target(None) or next(
        target for target in route.targets if target.key.table.name == change.table.name
    )
    return target.key


def _digests(key: bytes, change: Change, target: Key, place: Any, own: Mapping[str, Any]) -> dict[str, str]:
    images = (("old", change.old), ("new", change.new))
    found = {side: image_digest(key, change.table.name, image) for side, image in images}
    digests = {side: digest for side, digest in found.items() if digest is not None}
    digests[ROW] = row_digest(key, {**target.attributes(*place), **own, "digests": digests})
    return digests
