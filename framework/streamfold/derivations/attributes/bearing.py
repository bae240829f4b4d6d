"""What an item of the application is to show of derived attributes, and whose each of them is.

The item says it itself, in ``_sf_a``: the names that each handler derived, by ``APPLICATION/HANDLER``. A process writes
the attributes of its own handlers, and takes those away that none of them derives any more. Attributes of another
application, and those of a handler that this code does not know because it is older, it leaves as they are.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamfold.derivations.attributes.stored import MARK
from streamfold.errors import HandlerError, shown
from streamfold.keys.table import CONTRIBUTORS, DERIVED
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import derived_by, derived_names
from streamfold.records.values import AttributeValue, encode, same
from streamfold.writes.guarded import UpdateSource

Bearing = Mapping[str, Any]
Shown = Mapping[str, Mapping[str, Any]]
"""Values of attributes by name, by whose they are."""


class Own(NamedTuple):
    """The handlers whose attributes a process may take away: those of its application that its code knows."""

    application: str
    declared: frozenset[str]
    retired: frozenset[str]

    def knows(self, whose: str, *, retired: bool = True) -> bool:
        """Whether attributes are of such a handler; with ``retired=False`` of one that was not given up."""
        application, _, handler = whose.partition("/")
        return application == self.application and (handler in self.declared or (retired and handler in self.retired))


class PutBack(NamedTuple):
    """An attribute that was derived before a change, and that its writer put back without saying so."""

    name: str
    whose: str
    value: AttributeValue


def put_back(change: Change) -> list[PutBack]:
    """The attributes that the writer of a change put back without saying that they are derived."""
    if not (change.has_old and change.has_new):
        return []
    old, new = change.old.raw, change.new.raw
    marked = derived_names(new)
    return [
        PutBack(name, whose, new[name]) for name, whose in derived_by(old).items() if name in new and name not in marked
    ]


def shown_by(stored: Bearing | None) -> dict[str, Any]:
    """The attributes that a stored row holds, as its item is to show them."""
    if not stored or stored.get(CONTRIBUTORS) == 0:
        return {}
    return {name.removeprefix(MARK): value for name, value in stored.items() if name.startswith(MARK)}


class Due(NamedTuple):
    """What is to be done for an item: an update, None where it has its attributes, and what is refused."""

    update: UpdateSource | None
    refused: HandlerError | None = None


def due(
    own: Own,
    item: ItemKey,
    stored: Bearing | None,
    shown: Shown,
    unmarked: Iterable[PutBack] = (),
    *,
    retire: bool = True,
) -> Due:
    """What brings an item's derived attributes up to date.

    An attribute that was put back ``unmarked`` is taken away only while the item has the value of that very change:
    another is the writer's own. ``retire``: the attributes of retired handlers are taken away too.
    """
    if stored is None:
        return Due(None)
    marks = derived_by({DERIVED: encode(stored[DERIVED])}) if DERIVED in stored else {}
    holders, refused = _held(own, item, {name: whose for name, whose in marks.items() if name in stored}, shown)
    kept = {name: whose for name, whose in marks.items() if not own.knows(whose, retired=retire)} | holders
    values = {name: shown[whose][name] for name, whose in holders.items()}
    if kept:
        values[DERIVED] = _said(kept)
    gone = {DERIVED, *marks, *(each.name for each in unmarked if _is_still(own, each, stored, marks))}
    removed = tuple(sorted(name for name in gone if name in stored and name not in kept and name not in values))
    return Due(_update(item, stored, values, removed), refused)


def _update(item: ItemKey, stored: Bearing, values: Bearing, removed: tuple[str, ...]) -> UpdateSource | None:
    """The update, on the condition that what it writes, and whose each attribute is, is still as it was read."""
    differing = {name: value for name, value in values.items() if name not in stored or not _equal(value, stored[name])}
    if not differing and not removed:
        return None
    looked_at = dict.fromkeys((*differing, *removed, DERIVED))
    expected = {name: stored[name] for name in looked_at if name in stored}
    return UpdateSource(item, expected, tuple(name for name in looked_at if name not in stored), differing, removed)


def _held(
    own: Own, item: ItemKey, marks: Mapping[str, str], shown: Shown
) -> tuple[dict[str, str], HandlerError | None]:
    """Whose each attribute is that is to be shown, first come, first served, and why another is refused."""
    claims: dict[str, list[str]] = {}
    for whose, values in shown.items():
        for name in values:
            claims.setdefault(name, []).append(whose)
    holders, refused = {}, None
    for name, claimants in claims.items():
        held = marks.get(name)
        stays = held is not None and (held in claimants or not own.knows(held))
        first = held if held is not None and stays else claimants[0]
        if first in claimants:
            holders[name] = first
        for other in claimants:
            refused = refused if other == first else _clash(item, name, first, other)
    return holders, refused


def _clash(item: ItemKey, name: str, first: str, other: str) -> HandlerError:
    return HandlerError(
        f"Two handlers derive {shown(name)} onto item {shown(item[1:])}: it is {first!r}'s, and {other!r} must not "
        f"overwrite it. Give one of them another name. If {first!r} is given up for good, remove the attribute from "
        "the item."
    )


def _is_still(own: Own, unmarked: PutBack, stored: Bearing, marks: Mapping[str, str]) -> bool:
    """Whether an attribute is as the change left it that put it back unmarked, and nobody's by now."""
    name = unmarked.name
    if name not in stored or name in marks or not own.knows(unmarked.whose):
        return False
    return same(encode(stored[name]), unmarked.value)


def _said(marks: Mapping[str, str]) -> dict[str, set[str]]:
    """The marks as the item has them."""
    said: dict[str, set[str]] = {}
    for name, whose in marks.items():
        said.setdefault(whose, set()).add(name)
    return said


def _equal(one: Any, other: Any) -> bool:
    return same(encode(one), encode(other))
