"""What one source contributes to one row: from the attributes that a handler yields to amounts, content and entries."""

from collections.abc import Mapping
from decimal import DecimalException
from typing import Any, NoReturn

from streamfold.derivations.attributes.stored import MARK
from streamfold.derivations.view.attribute_forms import RETIRED, follows, in_words, kind_of, known, shares
from streamfold.derivations.view.expiry import postponed
from streamfold.errors import HandlerError, shown, told
from streamfold.ledger.contribution import RowPart
from streamfold.ledger.entries import ENTRIES_MAX, PLAIN_ENTRY, HeldByName, HeldEntries, alone, held, joined
from streamfold.records.rounding import inexact_text
from streamfold.records.values import Number, digest, encode, number_text
from streamfold.routes.aggregates import Aggregate, Average
from streamfold.routes.ordered import PLAIN, Moment, Ordered, Ordering
from streamfold.routes.route import Route, Target
from streamfold.writes.guarded import RowKey

Noted = list[tuple[dict[str, str], str, str | None]]
"""Names that the kinds of a handler's attributes learnt, each with what was known of it before."""


def part_of(
    route: Route,
    target: Target,
    values: Mapping[str, Any],
    wins: Moment | None,
    claim: Moment | None = None,
    noted: Noted | None = None,
) -> RowPart:
    """What the attributes of one row contribute. Raises ``HandlerError`` for what the row may not have.

    ``claim``: by what the claim to a row of a unique index is ordered. ``noted`` takes what the target learns of its
    attributes.
    """
    amounts, ordered, plain = _divided(route, target, values)
    if (amounts or ordered or wins is not None) and route.kind == "index":
        what = f"{next(iter({**amounts, **ordered}))!r} as an aggregate" if amounts or ordered else "wins="
        raise HandlerError(f"Index {route.name!r} gave {what}: an index item has one source; use a view.")
    for name, value in values.items():
        for attribute, _ in value.amounts(name) if isinstance(value, Average) else ((name, None),):
            _note(route, target, attribute, value, noted)
    if claim is not None and route.unique is not None:
        one = Ordered.of(route.unique.ordering, claim, plain, f"The claim of index {route.name!r}")
        _note(route, target, PLAIN_ENTRY, one, noted)
        return RowPart({}, None, "", {PLAIN_ENTRY: held(one)})
    shared = not target.whole or (wins is not None and target.contested)
    if shared and wins is not None:
        one = Ordered.of(Ordering(PLAIN, 1), wins, plain, f"Row(wins={shown(wins)})")
        _note(route, target, PLAIN_ENTRY, one, noted)
        ordered[PLAIN_ENTRY], plain = held(one), {}
    if plain and shared:
        raise _not_whole(route, target, _told(route, next(iter(plain))))
    # Only what is stored decides whether a row is put whole: a view of aggregates alone may get a neighbour any day.
    whole = not shared and (plain or route.kind == "index" or target.contested)
    return RowPart(amounts, plain if whole else None, "", ordered)


def _divided(
    route: Route, target: Target, values: Mapping[str, Any]
) -> tuple[dict[str, Number], dict[str, HeldEntries], dict[str, Any]]:
    """What is added up, what is ordered, and the plain attributes."""
    amounts: dict[str, Number] = {}
    ordered: dict[str, HeldEntries] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Ordered):
            ordered[name] = held(postponed(target, name, value), spread=bool(route.shards))
        elif not isinstance(value, Aggregate):
            plain[name] = value
        else:
            for attribute, amount in value.amounts(name):
                if attribute in amounts or (attribute != name and attribute in values):
                    _raise_kept_twice(route, name, value, attribute)
                amounts[attribute] = amount
    return amounts, ordered, plain


def _raise_kept_twice(route: Route, name: str, value: Aggregate, attribute: str) -> NoReturn:
    raise HandlerError(
        f"Handler {route.name!r} gave {told(name)}={shown(value)}, which keeps {shown(attribute)}, beside another "
        f"value of {shown(attribute)}. Give one of them another name."
    )


def _note(route: Route, target: Target, name: str, value: Any, noted: Noted | None) -> None:
    """Notes what an attribute is made of; refuses what is made otherwise than before, by this handler or another."""
    kind, own = kind_of(value), target.shown.setdefault(route.name, {})
    before = own.get(name)
    if before == kind:
        return
    if before is not None and not follows(before, kind):
        raise _another_kind(route, target, name, value, route.name, before)
    for handler, kinds in target.shown.items():
        if handler != route.name and name in kinds and not shares(known(kinds[name]), kind):
            raise _another_kind(route, target, name, value, handler, kinds[name])
    own[name] = kind
    if noted is not None:
        noted.append((own, name, before))


def forget(noted: Noted) -> None:
    """Takes back what was noted: a row that is refused must not say what later ones are made of."""
    for kinds, name, before in reversed(noted):
        if before is None:
            del kinds[name]
        else:
            kinds[name] = before


def _another_kind(route: Route, target: Target, name: str, value: Any, handler: str, before: str) -> HandlerError:
    """Why an attribute is refused that another handler yields, or that was made otherwise, and what to do about it."""
    what, it = (shown(_told(route, name)), value) if name else ("wins=", value.by)
    said = f"Handler {route.name!r} gave {what} of {target.key!r} as {in_words(kind_of(value))} ({shown(it)})"
    if before == RETIRED:
        return HandlerError(
            f"{said}, and rows still hold what the retired handler {handler!r} made of it: both would be mixed. Was "
            f'it renamed? Then keep its identity, name="{handler}", and take it out of retired=. Otherwise give the '
            "attribute another name, or the handler another target."
        )
    whose = "and before as" if handler == route.name else f"but handler {handler!r} gave it as"
    rule = "one attribute of a target has one kind" + (", from one handler" if handler != route.name else "")
    return HandlerError(f"{said}, {whose} {in_words(before)}: {rule}. Give one of them another name.")


def _told(route: Route, name: str) -> str:
    """The name of an attribute as its handler yields it."""
    return name.removeprefix(MARK) if route.truth is not None else name


def _not_whole(route: Route, target: Target, name: str) -> HandlerError:
    why = (
        "several handlers write it, and only aggregates can be shared"
        if target.owned
        else "a row of it may have several source items, whose values would overwrite each other "
        "(its template does not hold every field of the source's key)"
    )
    return HandlerError(
        f"View {route.name!r} gave the plain attribute {shown(name)} for {target.key!r}, but {why}. "
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
    """The entries of both; ``differing`` takes the names of attributes whose entries do not fit each other."""
    ordered = dict(one)
    for name, mine in other.items():
        both = joined(ordered[name], mine) if name in ordered else mine
        if both is None:
            differing.add(name)
        else:
            ordered[name] = both
    return ordered


def complete(route: Route, key: RowKey, part: RowPart) -> RowPart:
    """The part of a row once all of its rows are merged: a row put whole has its content, and the digest of it."""
    if part.plain is None:
        if (count := sum(len(found.entries) for found in part.ordered.values())) > ENTRIES_MAX:
            raise HandlerError(
                f"Handler {route.name!r} gave {count} ordered values for row {shown(key[1:])}, {ENTRIES_MAX} at "
                "most from one item: they move in one transaction. Spread them over several rows."
            )
        return part
    plain = part.plain | {name: alone(found) for name, found in part.ordered.items()}
    return RowPart(part.amounts, plain, digest(encode(plain | part.amounts)["M"]), names=tuple(sorted(plain)))


def _plus(route: Route, one: Number, other: Number) -> Number:
    try:
        total = one + other
    except DecimalException as error:
        raise inexact(route, error) from error
    number_text(total)
    return total


def inexact(route: Route, error: DecimalException) -> HandlerError:
    """Why a handler's arithmetic is refused."""
    return HandlerError(f"Handler {route.name!r} {inexact_text(error)}")
