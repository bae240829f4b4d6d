"""What one source contributes to one row: from the attributes that a handler yields to amounts, content and entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import DecimalException
from typing import Any, NoReturn

from streamfold.derivations.view.expiry import postponed
from streamfold.derivations.yielded import inexact
from streamfold.errors import HandlerError, shown, told
from streamfold.keys.key import Key
from streamfold.ledger.contribution import (
    ENTRIES_MAX,
    PLAIN_ENTRY,
    HeldByName,
    HeldEntries,
    RowPart,
    alone,
    held,
    joined,
)
from streamfold.ledger.forms import RETIRED, SUM, Forms, follows, form_of, in_words, known, shares
from streamfold.records.encoded import digest
from streamfold.records.values import Number, encode, number_text
from streamfold.routes.aggregates import Aggregate, Average, Count, Sum
from streamfold.routes.ordered import Moment, Ordered
from streamfold.routes.orderings import FORMS, PLAIN, Ordering
from streamfold.routes.route import Fields, Route, Target
from streamfold.writes.guarded import RowKey

NO_FORMS: Mapping[str, str] = {}
COUNTED: Mapping[type, str] = {Sum: SUM, Count: SUM}
"""The forms of the commonest values, which their types tell."""


@dataclass(slots=True)
class Making:
    """What the rows of one call are made with."""

    route: Route
    forms: Forms  # what is known of attributes
    fields: Fields  # of the rows' keys, beside those that a row gives
    seen: dict[tuple[Key, str], str] = field(default_factory=dict)  # what this call adds to it
    mark: str = ""  # begins the names of attributes, and is not part of what the handler yielded
    spread: bool = False  # a row is spread over several, whose readers put ordered values together

    def shown(self, name: str) -> str:
        """The name of an attribute as its handler yields it."""
        return name.removeprefix(self.mark)


def row_part(making: Making, target: Target, values: Mapping[str, Any], wins: Moment | None) -> RowPart:
    """What the attributes of one gave row contribute. Raises ``HandlerError`` for what the row may not have."""
    amounts, ordered, plain = _divided(making, target, values)
    note_all(making, target, values)
    shared = not target.whole or (wins is not None and target.contested)
    if shared and wins is not None:
        one = Ordered.of(Ordering(PLAIN, 1), wins, plain, lambda: f"Row(wins={shown(wins)})")
        note(making, target, PLAIN_ENTRY, one)
        ordered[PLAIN_ENTRY], plain = held(one), {}
    if plain and shared:
        raise _not_whole(making, target, next(iter(plain)))
    # Only what is stored decides whether a row is put whole: a view of aggregates alone may get a neighbour any day.
    whole = not shared and (plain or target.contested)
    return RowPart(amounts, plain if whole else None, "", ordered)


def note_all(making: Making, target: Target, values: Mapping[str, Any]) -> None:
    """Notes what all attributes of a row are made of."""
    seen_before = making.forms.of(target.key).get(making.route.name, NO_FORMS)
    for name, value in values.items():
        if not making.seen and seen_before.get(name) == COUNTED.get(type(value), ""):
            continue  # as nearly always
        for attribute, _ in value.amounts(name) if isinstance(value, Average) else ((name, None),):
            if making.seen or seen_before.get(attribute) != form_of(value):
                note(making, target, attribute, value)


def _divided(
    making: Making, target: Target, values: Mapping[str, Any]
) -> tuple[dict[str, Number], dict[str, HeldEntries], dict[str, Any]]:
    """What is added up, what is ordered, and the plain attributes."""
    amounts: dict[str, Number] = {}
    ordered: dict[str, HeldEntries] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) in COUNTED and name not in amounts:  # as nearly always
            amounts[name] = value.amount
        elif isinstance(value, Ordered):
            if making.spread and FORMS[value.ordering.form].together is None:
                raise _not_together(making, name, value)
            ordered[name] = held(postponed(target, name, value), spread=making.spread)
        elif type(value) is type and issubclass(value, Aggregate):
            raise _not_called(making, name, value)
        elif not isinstance(value, Aggregate):
            plain[name] = value
        else:
            for attribute, amount in value.amounts(name):
                if attribute in amounts or (attribute != name and attribute in values):
                    _raise_kept_twice(making.route, name, value, attribute)
                amounts[attribute] = amount
    return amounts, ordered, plain


def _not_together(making: Making, name: str, value: Ordered) -> HandlerError:
    return HandlerError(
        f"Handler {making.route.name!r} gave {told(making.shown(name))}={shown(value)} of the form "
        f"{value.ordering.form!r}, whose shards no reader can put together: leave shards= out."
    )


def _not_called(making: Making, name: str, value: type) -> HandlerError:
    called = f"{value.__name__}({'' if value is Count else '...'})"
    return HandlerError(
        f"Handler {making.route.name!r} gave {told(making.shown(name))}={value.__name__}, which is a class: expected "
        f"a value of it, {called}."
    )


def _raise_kept_twice(route: Route, name: str, value: Aggregate, attribute: str) -> NoReturn:
    raise HandlerError(
        f"Handler {route.name!r} gave {told(name)}={shown(value)}, which keeps {shown(attribute)}, beside another "
        f"value of {shown(attribute)}. Give one of them another name."
    )


def note(making: Making, target: Target, name: str, value: Any) -> None:
    """Notes the form of an attribute. Raises ``HandlerError`` if a handler has given it another form before."""
    form, known_forms, handler = form_of(value), making.forms.of(target.key), making.route.name
    before = making.seen.get((target.key, name), known_forms.get(handler, {}).get(name))
    if before == form:
        return
    if before is not None and not follows(before, form):
        raise _another_form(making, target, name, value, handler, before)
    for other, forms in known_forms.items():
        if other != handler and name in forms and not shares(known(forms[name]), form):
            raise _another_form(making, target, name, value, other, forms[name])
    making.seen[target.key, name] = form


def _another_form(making: Making, target: Target, name: str, value: Any, handler: str, before: str) -> HandlerError:
    """Why an attribute is refused that another handler yields, or that had another form, and the remedy."""
    own = making.route.name
    what, it = (shown(making.shown(name)), value) if name else ("wins=", value.by)
    said = f"Handler {own!r} gave {what} of {target.key!r} as {in_words(form_of(value))} ({shown(it)})"
    if before == RETIRED:
        return HandlerError(
            f"{said}, and rows still hold what the retired handler {handler!r} made of it: both would be mixed. Was "
            f'it renamed? Then keep its identity, name="{handler}", and take it out of retired=. Otherwise give the '
            "attribute another name, or the handler another target."
        )
    whose = "and before as" if handler == own else f"but handler {handler!r} gave it as"
    rule = "one attribute of a target has one form" + (", from one handler" if handler != own else "")
    return HandlerError(f"{said}, {whose} {in_words(before)}: {rule}. Give one of them another name.")


def _not_whole(making: Making, target: Target, name: str) -> HandlerError:
    why = (
        "several handlers write it, and only aggregates can be shared"
        if target.owned
        else "a row of it may have several source items, whose values would overwrite each other "
        "(its template does not hold every field of the source's key)"
    )
    return HandlerError(
        f"View {making.route.name!r} gave the plain attribute {shown(making.shown(name))} for {target.key!r}, but "
        f"{why}. "
        "Use an aggregate (Sum, Max, Latest), say whose values win, Row(..., wins=item[...]), or take a target of its "
        "own."
    )


def merged(route: Route, key: RowKey, one: RowPart, other: RowPart) -> RowPart:
    """Two rows of one key from one call. Raises ``HandlerError`` for two values of one attribute."""
    amounts = dict(one.amounts)
    for name, amount in other.amounts.items():
        amounts[name] = _plus(route, amounts[name], amount) if name in amounts else amount
    mine, theirs = one.plain or {}, other.plain or {}
    plain = {**mine, **theirs}
    differing = {name for name in mine.keys() & theirs.keys() if encode(mine[name]) != encode(theirs[name])}
    ordered = _merged_entries(one.ordered, other.ordered, differing)
    clashing = (plain.keys() & (amounts.keys() | ordered.keys())) | (amounts.keys() & ordered.keys())
    if twice := sorted(differing | clashing):
        raise HandlerError(
            f"Handler {route.name!r} gave row {shown(key[1:])} twice with different values of {shown(twice[0])}."
        )
    return RowPart(amounts, None if one.plain is None and other.plain is None else plain, "", ordered)


def _merged_entries(one: HeldByName, other: HeldByName, differing: set[str]) -> dict[str, HeldEntries]:
    """The entries of both. Adds names of attributes whose entries contradict each other to ``differing``."""
    ordered = dict(one)
    for name, mine in other.items():
        both = joined(ordered[name], mine) if name in ordered else mine
        if both is None:
            differing.add(name)
        else:
            ordered[name] = both
    return ordered


def complete(route: Route, key: RowKey, part: RowPart) -> RowPart:
    """The part of a row after all of its rows are merged. A row that is put whole has its content and its digest."""
    if part.plain is None:
        if len(part.ordered) == 1 and len(next(iter(part.ordered.values())).entries) == 1:  # as nearly always
            return part
        if (count := sum(len(found.entries) for found in part.ordered.values())) > ENTRIES_MAX:
            raise HandlerError(
                f"Handler {route.name!r} gave {count} ordered values for row {shown(key[1:])}, {ENTRIES_MAX} at "
                "most from one item: they move in one transaction. Spread them over several rows."
            )
        return part
    plain = part.plain
    if part.ordered:
        plain = plain | {name: alone(found) for name, found in part.ordered.items()}
    return RowPart(part.amounts, plain, digest(encode(plain | part.amounts)["M"]), names=tuple(sorted(plain)))


def _plus(route: Route, one: Number, other: Number) -> Number:
    try:
        total = one + other
    except DecimalException as error:
        raise inexact(route, error) from error
    number_text(total)
    return total
