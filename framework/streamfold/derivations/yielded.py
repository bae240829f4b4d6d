"""The effects that a handler yields, of the right types, each with its target, its key and its attributes."""

from decimal import DecimalException
from itertools import islice
from types import GeneratorType
from typing import Any

from streamfold.errors import HandlerError, KeyValueError, reason, redacted, shown
from streamfold.keys.key import KeyValues
from streamfold.keys.table import RESERVED_PREFIX, Table, checked_attribute_name
from streamfold.records.change import Change
from streamfold.records.images import HIDDEN, Image
from streamfold.records.values import inexact_text
from streamfold.routes.application import check_tenant
from streamfold.routes.effects import Add, Delete, Put, Row, each_effect
from streamfold.routes.lookups import JoinedImage
from streamfold.routes.parts import RootImage
from streamfold.routes.route import Fields, Route, Target
from streamfold.writes.guarded import RowKey

MISFORMATTED = ("unsupported format string passed to", "Invalid format specifier", "invalid format string")
"""The messages of CPython 3.11 to 3.13 for None, text or a number, and a Decimal with a wrong format."""
EFFECTS_MAX = 99
"""Effects per handler and item: 100 actions of a transaction (API Reference, TransactWriteItems), less the guard."""
NO_FIELDS: dict[str, Any] = {}
IN_ONE_TRANSACTION = EFFECTS_MAX, "the most that one transaction can hold beside its guard"


def yielded(
    route: Route,
    subject: Image | Change,
    fields: Fields,
    *expected: type,
    more: tuple[Any, ...] = (),
    most: tuple[int, str] = IN_ONE_TRANSACTION,
) -> list[Any]:
    """The effects that a handler returns or yields, all of the expected kinds and not too many.

    ``more`` is given to the handler after its subject; ``most`` is the greatest number of effects, and the reason.
    """
    assert route.function is not None
    effects_max, why = most
    try:
        if more or route.wants or route.parts:
            given_first = (*subject.given,) if isinstance(subject, RootImage) else (subject, *more)
            given = route.function(*given_first, **(_named(route, subject, fields) if route.wants else NO_FIELDS))
        else:  # as most handlers are called
            given = route.function(subject)
        effects = given if type(given) is GeneratorType else each_effect(route.name, given, expected)
        found = [*islice(effects, effects_max + 1)]
    except DecimalException as error:
        raise inexact(route, error) from error
    except (TypeError, ValueError) as error:
        if (misfit := _misformatted(route, error)) is not None:
            raise misfit from error
        raise
    except (KeyboardInterrupt, Exception):
        raise
    except BaseException as error:
        raise stopped(route, error) from error
    for effect in found:
        if not isinstance(effect, expected):
            raise _unexpected(route, effect, expected)
    if len(found) > effects_max:
        raise HandlerError(
            f"Handler {route.name!r} gave more than {effects_max} effects for one item, {why}. "
            "Spread them over several handlers."
        )
    return found


def _named(route: Route, subject: Image | Change, fields: Fields) -> dict[str, Any]:
    # Fields of the key, and what the handler looks up.
    asked = route.asked(fields)
    return {**asked, **subject.referents} if isinstance(subject, JoinedImage) else asked


def _meant(missing: str, fields: Fields) -> str:
    """The field of the source that a template probably means by a field without a value."""
    from difflib import get_close_matches  # only for a message: a function's start should not pay for it

    near = get_close_matches(missing, fields, 1)
    return f", or write {{{near[0]}}}, the field of its source" if near else ""


def _unexpected(route: Route, effect: object, expected: tuple[type, ...]) -> HandlerError:
    names = ", ".join(kind.__name__ for kind in expected)
    nothing = " To give nothing for an item, leave out the yield." if effect is None else ""
    return HandlerError(
        f"Handler {route.name!r} gave {shown(effect)}: a handler of kind {route.kind} gives {names}.{nothing}"
    )


def stopped(route: Route, error: BaseException) -> HandlerError:
    """Turns an error that would end the program or the task into one that fails its record only."""
    return HandlerError(f"Handler {route.name!r} raised {type(error).__name__}: a handler only computes.")


def _misformatted(route: Route, error: Exception) -> HandlerError | None:
    """The message for a value of another type than its format requires, ``f"{item['at']:%Y-%m}"``."""
    if not any(words in str(error) for words in MISFORMATTED):
        return None
    return HandlerError(
        f"Handler {route.name!r} formatted a value that has another type than the format is for ({redacted(error)}): "
        "expected a date or a moment for %Y-%m, a whole number for d. Dates of an item are text, "
        "date.fromisoformat(item[...]); yield nothing for an item without one. Numbers are int or "
        "Decimal: int(n) for d, rounded(n, places=2), of streamfold, for f."
    )


def target_of(route: Route, effect: Row | Put | Add | Delete) -> Target:
    if effect.target is None and len(route.targets) == 1:
        return route.targets[0]
    target = route.target(effect.target)
    if target is None:
        declared = ", ".join(repr(known.key) for known in route.targets)
        if effect.target is None:
            raise HandlerError(
                f"Handler {route.name!r} gave {shown(effect)}: with several targets the first argument says which "
                f"of {declared}."
            )
        raise HandlerError(
            f"Handler {route.name!r} gave {shown(effect)}, which writes outside of into={declared}. "
            "Add the target to into=."
        )
    return target


def split(target: Target, effect: Row | Put | Add | Delete, fields: Fields) -> tuple[RowKey, dict[str, Any]]:
    """The row's key and its attributes."""
    given, template = effect.values, target.key
    table = template.table
    names, may_be_set = template.divided((*given,))
    keyed = len(names) != len(given)
    values = {name: given[name] for name in names} if keyed else given
    if effect.attributes:
        for name in effect.attributes:
            checked_attribute_name(name)
        if twice := values.keys() & effect.attributes.keys():
            raise HandlerError(f"{shown(effect)} gives {redacted(', '.join(sorted(twice)))} twice.")
        values = {**values, **effect.attributes}
        may_be_set = may_be_set and not any(is_ours(table, name) for name in effect.attributes)
    if not may_be_set:
        name = next(name for name in values if is_ours(table, name))
        raise HandlerError(
            f"{shown(effect)} cannot set {shown(name)}: key attributes and names that begin with {RESERVED_PREFIX} "
            "are the framework's. Give the fields of the target's key by their names, and attributes other names."
        )
    try:
        key = template.compose({**fields, **given} if keyed else fields)
    except KeyValueError as error:
        missing = [name for name in template.types if name not in fields and name not in given]
        if missing:
            remedy = f"give {missing[0]}=...{_meant(missing[0], fields)}"
            raise HandlerError(
                f"{shown(effect)} leaves {missing[0]!r} of {template!r} without a value: {remedy}"
            ) from None
        lacking = any(given[name] is None for name in template.types if name in given)
        remedy = " Yield nothing for an item without a value." if lacking else ""
        raise HandlerError(f"{shown(effect)}: {reason(error)}{remedy}") from None
    if keyed and target.tenant is not None:
        check_tenant(target, effect, fields)
    if keyed and target.owned and target.sole_writer and not isinstance(effect, Add):
        _check_own(target, effect, fields, key)
    return (table.name, *key), values


def is_ours(table: Table, name: str) -> bool:
    """Whether an attribute of a row is in its key, or the framework's own."""
    return name in table.attributes or name.startswith(HIDDEN)


def _check_own(target: Target, effect: Row | Put | Delete, fields: Fields, key: KeyValues) -> None:
    """Refuses a row of an owned target whose key would name another source item than its own."""
    twice = [name for name in effect.values if name in target.key.types and name in fields]
    if twice and key != target.key.compose({**effect.values, **fields}):
        name = next(name for name in twice if effect.values[name] != fields[name])
        raise HandlerError(
            f"{shown(effect)} gives {name}={shown(effect.values[name])}, but the source's key says "
            f"{shown(fields[name])}: two items could then write one row of {target.key!r}. "
            f"Leave {name} out, or give the target's field a name that the source's key does not have."
        )


def inexact(route: Route, error: DecimalException) -> HandlerError:
    """The message for the refused arithmetic of a handler."""
    return HandlerError(f"Handler {route.name!r} {inexact_text(error)}")
