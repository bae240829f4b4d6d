"""The options of ``on`` handlers, checked where they are declared."""

from collections.abc import Collection
from typing import Any, get_args

from streamfold.derivations.on.kind import Filter
from streamfold.errors import DeclarationError
from streamfold.records.change import EVENTS, Event
from streamfold.routes.declaration import CommonOptions, Into


class OnOptions(CommonOptions, total=False):
    """The options of ``Router.on`` in both its forms."""

    events: Collection[Event]
    changed: Collection[str]
    expired: bool | None


def checked_filter(events: Collection[Event], changed: Collection[str], at: str, *, expired: bool | None) -> Filter:
    """The changes that a handler wants. Raises ``DeclarationError`` for options that no change could meet."""
    names = _names(events, "events", at)
    if not names or not names <= set(get_args(Event)):
        raise DeclarationError(
            f"The handler at {at} has events={list(events)!r}: expected some of {', '.join(EVENTS)}."
        )
    if expired and "REMOVE" not in names:
        raise DeclarationError(
            f"The handler at {at} has expired=True and events without REMOVE: no change would ever reach it."
        )
    return Filter(frozenset(events), _names(changed, "changed", at), expired)


def no_targets(into: Into, at: str) -> tuple[()]:
    """The targets of an external handler: none. Raises ``DeclarationError`` where ``into`` names one."""
    if into != ():
        raise DeclarationError(
            f"The handler at {at} has into={into!r} and external=True: an external handler writes no rows."
        )
    return ()


def _names(names: Any, option: str, at: str) -> frozenset[str]:
    if isinstance(names, str):
        raise DeclarationError(f'The handler at {at} has {option}={names!r}: expected a list, {option}=["{names}"].')
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise DeclarationError(f"The handler at {at} has {option}={names!r}: expected a list of names, as text.")
    return frozenset(names)
