"""What becomes of whole items: copies, cascades and archives of a batch, which call no handler."""

from collections.abc import Callable, Sequence

from streamfold.commit.plan import Archived, Copied, Removed, Whole
from streamfold.derivations.copy.copies import copy_of
from streamfold.records.change import Change
from streamfold.routes.checks import check_view
from streamfold.routes.route import Fields, Kind, Route

WHOLE_KINDS: tuple[Kind, ...] = ("copy", "cascade", "archive")

Fails = Callable[[Change, Route, Exception], bool]
"""Notes that a record fails for a route."""


def whole_items(route: Route, fields: Fields, changes: Sequence[Change], fails: Fails) -> Sequence[Whole]:
    """What a route makes of the changes of one item, oldest first."""
    if route.kind == "copy":
        return _copied(route, changes, fails)
    taken = tuple(change for change in changes if route.takes(change))
    if route.kind == "archive":
        return _archived(route, taken, fails)
    return [Removed(route, taken, fields)] if taken else []


def _copied(route: Route, changes: Sequence[Change], fails: Fails) -> list[Copied]:
    """The copy of the newest image that can be read; the records of others are reported."""
    for change in reversed(changes):
        try:
            check_view(route, change)
            row = copy_of(route, change)
        except Exception as error:  # noqa: BLE001 - fails this record only
            fails(change, route, error)
            continue
        if row is not None:
            return [Copied(route, tuple(changes), row)]
    return []


def _archived(route: Route, changes: Sequence[Change], fails: Fails) -> list[Archived]:
    from streamfold.derivations.archive.archives import archived_line

    archived = []
    for change in changes:
        try:
            check_view(route, change)
            archived.append(Archived(route, change, archived_line(change)))
        except Exception as error:  # noqa: BLE001 - fails this record only
            fails(change, route, error)
    return archived
