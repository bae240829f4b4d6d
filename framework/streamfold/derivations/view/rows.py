"""What one source contributes to its rows: from the rows that a handler yields to amounts, content and entries.

``contributed`` is that of a view. The kinds ``index`` and ``attributes`` make parts of rows in their own way, and
``fold`` them as a view does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import DecimalException
from functools import lru_cache
from typing import Any, NoReturn

from streamfold.derivations.view.expiry import postponed
from streamfold.derivations.view.shards import NOT_IN_SHARDS, SHARD, shard_of
from streamfold.derivations.yielded import inexact, is_ours, split, target_of, yielded
from streamfold.errors import HandlerError, KeyValueError, redacted, shown
from streamfold.keys.key import Key
from streamfold.keys.table import RESERVED_PREFIX, checked_attribute_name
from streamfold.ledger.contribution import (
    ENTRIES_MAX,
    PLAIN_ENTRY,
    Contribution,
    HeldByName,
    HeldEntries,
    RowContribution,
    alone,
    held,
    joined,
)
from streamfold.ledger.schema import RETIRED, Schema, follows, in_words, known, shares, type_of
from streamfold.records.encoded import digest
from streamfold.records.images import Image
from streamfold.records.values import Number, encode, number_text
from streamfold.routes.aggregates import SUM, Added, Aggregate, Moment, Ordered, checked_number
from streamfold.routes.effects import Row
from streamfold.routes.route import ROUTES_KEPT_MAX, Fields, Route, Target, may_expire
from streamfold.routes.shipped_aggregates import Count, Sum, Winner
from streamfold.writes.guarded import RowKey

NO_SCHEMA: Mapping[str, str] = {}
COUNTED: Mapping[type, str] = {Sum: SUM, Count: SUM}
"""The forms of the commonest values, which their types tell."""


@dataclass(slots=True)
class RowBuilder:
    """What the rows of one call are made with."""

    route: Route
    schema: Schema  # what is known of attributes
    fields: Fields  # of the rows' keys, beside those that a row gives
    seen: dict[tuple[Key, str], str] = field(default_factory=dict)  # what this call adds to it
    mark: str = ""  # begins the names of attributes, and is not part of what the handler yielded
    spread: bool = False  # a row is spread over several, whose readers put ordered values together

    def shown(self, name: str) -> str:
        """The name of an attribute as its handler yields it."""
        return name.removeprefix(self.mark)


def contributed(route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
    """What an existing item contributes. Raises ``HandlerError`` for rows that the declaration does not allow."""
    effects: list[Row] = yielded(route, image, fields, Row)
    if may_expire(route):
        schema.note_expiry(route, effects)
    shards = route.options.shards
    if shards:
        _check_shards(route, effects)
        fields = {**fields, SHARD: shard_of(fields, shards)}
    rows = _sums_only(route, effects, fields, schema)
    if rows is not None:
        return rows

    def row(builder: RowBuilder, effect: Row) -> tuple[RowKey, RowContribution]:
        target = target_of(route, effect)
        key, values = split(target, effect, fields)
        return key, row_contribution(builder, target, values, effect.wins)

    return folded(RowBuilder(route, schema, fields, spread=shards > 0), effects, row)


def _check_shards(route: Route, effects: Iterable[Row]) -> None:
    for effect in effects:
        if SHARD in effect.values:
            shards = route.options.shards
            raise HandlerError(f"{shown(effect)} gives {SHARD}=, which shards={shards} fills: leave it out.")


def _sums_only(route: Route, effects: Iterable[Row], fields: Fields, schema: Schema) -> Contribution | None:
    """Rows of nothing but sums that are known of their handler, as most are; None if more has to be looked at."""
    template = _plain_target(route)
    known = None if template is None else schema.by_target.get(template)
    known_schema = None if known is None else known.get(route.name)
    if template is None or known_schema is None:
        return None
    rows: Contribution = {}
    for effect in effects:
        given = effect.values
        names, may_be_set = template.divided((*given,))
        if effect.target is not None or effect.attributes or effect.wins is not None or not may_be_set:
            return None
        sums: dict[str, Number] = {}
        for name in names:
            value = given[name]
            if COUNTED.get(type(value)) != known_schema.get(name, ""):
                return None
            sums[name] = value.amount
        try:
            keyed = len(given) - len(names)  # fields of the key that the row gives
            partition, sort = template.compose(
                fields if not keyed else given if keyed == len(template.types) else {**fields, **given}
            )
        except KeyValueError:  # ``split`` says it in the words of the handler
            return None
        key = template.table.name, partition, sort
        if key in rows:
            return None
        rows[key] = RowContribution(sums, None, "")
    return rows


@lru_cache(ROUTES_KEPT_MAX)
def _plain_target(route: Route) -> Key | None:
    """The target of a route, if it has one, and nothing that a row gives has to be compared with its source."""
    target = route.targets[0]
    checked = target.multi_source or target.owned or target.tenant is not None
    return None if checked or len(route.targets) > 1 else target.key


def fold(
    builder: RowBuilder, image: Image, fields: Fields, row: Callable[[RowBuilder, Row], tuple[RowKey, RowContribution]]
) -> Contribution:
    """What an item contributes: each row that the handler yields is made a part of a contribution by ``row``.

    The forms of attributes are learnt once all rows are accepted. Raises ``HandlerError`` for what may not be written
    as declared; errors of the handler itself come as they are.
    """
    return folded(builder, yielded(builder.route, image, fields, Row), row)


def folded(
    builder: RowBuilder, effects: Iterable[Row], row: Callable[[RowBuilder, Row], tuple[RowKey, RowContribution]]
) -> Contribution:
    """``fold`` of rows that a handler has yielded already."""
    rows: Contribution = {}
    route = builder.route
    for effect in effects:
        key, part = row(builder, effect)
        rows[key] = merged(route, key, rows[key], part) if key in rows else part
    for key, part in rows.items():
        if part.plain is not None or part.ordered:
            rows[key] = complete(route, key, part)
    if builder.seen:
        builder.schema.learn(route.name, builder.seen)
    return rows


def row_contribution(
    builder: RowBuilder, target: Target, values: Mapping[str, Any], wins: Moment | None
) -> RowContribution:
    """What the attributes of one gave row contribute. Raises ``HandlerError`` for what the row may not have."""
    amounts, ordered, plain = _divided(builder, target, values)
    note_all(builder, target, values)
    shared = not target.whole or (wins is not None and target.multi_source)
    if shared and wins is not None:
        one = Winner(plain, wins)
        note(builder, target, PLAIN_ENTRY, one)
        ordered[PLAIN_ENTRY], plain = held(one), {}
    if plain and shared:
        raise _not_whole(builder, target, next(iter(plain)))
    # Only what is stored decides whether a row is put whole: a view of aggregates alone may get a neighbour any day.
    whole = not shared and (plain or target.multi_source)
    return RowContribution(amounts, plain if whole else None, "", ordered)


def note_all(builder: RowBuilder, target: Target, values: Mapping[str, Any]) -> None:
    """Notes what all attributes of a row are made of."""
    seen_before = builder.schema.of(target.key).get(builder.route.name, NO_SCHEMA)
    for name, value in values.items():
        if not builder.seen and seen_before.get(name) == COUNTED.get(type(value), ""):
            continue  # as nearly always
        for attribute, _ in value.amounts(name) if isinstance(value, Added) else ((name, None),):
            if builder.seen or seen_before.get(attribute) != type_of(value):
                note(builder, target, attribute, value)


def _divided(
    builder: RowBuilder, target: Target, values: Mapping[str, Any]
) -> tuple[dict[str, Number], dict[str, HeldEntries], dict[str, Any]]:
    """What is added up, what is ordered, and the plain attributes."""
    amounts: dict[str, Number] = {}
    ordered: dict[str, HeldEntries] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) in COUNTED and name not in amounts:  # as nearly always
            amounts[name] = value.amount
        elif isinstance(value, Ordered):
            if builder.spread and not value.ordering.form.aggregate.in_shards:
                raise _not_together(builder, name, value)
            ordered[name] = held(postponed(target, name, value), spread=builder.spread)
        elif type(value) is type and issubclass(value, Aggregate):
            raise _not_called(builder, name, value)
        elif not isinstance(value, Added):
            plain[name] = value
        else:
            for attribute, amount in value.amounts(name):
                if attribute in amounts or (attribute != name and attribute in values):
                    _raise_kept_twice(builder.route, name, value, attribute)
                amounts[attribute] = _checked_amount(builder, target, name, value, attribute, amount)
    return amounts, ordered, plain


def _checked_amount(
    builder: RowBuilder, target: Target, name: str, value: Added, attribute: str, amount: Number
) -> Number:
    """An amount of a class that may not be the framework's: it must not count contributors, or change a key."""
    if is_ours(target.key.table, checked_attribute_name(attribute)):
        raise HandlerError(
            f"Handler {builder.route.name!r} gave {redacted(builder.shown(name))}={shown(value)}, which adds to "
            f"{shown(attribute)}: key attributes and names that begin with {RESERVED_PREFIX} are the framework's."
        )
    return checked_number(amount, type(value).__name__)


def _not_together(builder: RowBuilder, name: str, value: Ordered) -> HandlerError:
    return HandlerError(
        f"Handler {builder.route.name!r} gave {redacted(builder.shown(name))}={shown(value)} of the form "
        f"{value.ordering.form.name!r}, whose shards no reader can put together: {NOT_IN_SHARDS}."
    )


def _not_called(builder: RowBuilder, name: str, value: type) -> HandlerError:
    called = f"{value.__name__}({'' if value is Count else '...'})"
    return HandlerError(
        f"Handler {builder.route.name!r} gave {redacted(builder.shown(name))}={value.__name__}, which is a class: "
        f"expected a value of it, {called}."
    )


def _raise_kept_twice(route: Route, name: str, value: Added, attribute: str) -> NoReturn:
    raise HandlerError(
        f"Handler {route.name!r} gave {redacted(name)}={shown(value)}, which keeps {shown(attribute)}, beside another "
        f"value of {shown(attribute)}. Give one of them another name."
    )


def note(builder: RowBuilder, target: Target, name: str, value: Any) -> None:
    """Notes the form of an attribute. Raises ``HandlerError`` if a handler has given it another form before."""
    form, known_schema, handler = type_of(value), builder.schema.of(target.key), builder.route.name
    before = builder.seen.get((target.key, name), known_schema.get(handler, {}).get(name))
    if before == form:
        return
    if before is not None and not follows(before, form):
        raise _another_type(builder, target, name, value, handler, before)
    for other, schema in known_schema.items():
        if other != handler and name in schema and not shares(known(schema[name]), form):
            raise _another_type(builder, target, name, value, other, schema[name])
    builder.seen[target.key, name] = form


def _another_type(
    builder: RowBuilder, target: Target, name: str, value: Any, handler: str, before: str
) -> HandlerError:
    """Why an attribute is refused that another handler yields, or that had another form, and the remedy."""
    own = builder.route.name
    what, it = (shown(builder.shown(name)), value) if name else ("wins=", value.by)
    message = f"Handler {own!r} gave {what} of {target.key!r} as {in_words(type_of(value))} ({shown(it)})"
    if before == RETIRED:
        return HandlerError(
            f"{message}, and rows still hold what the retired handler {handler!r} made of it: both would be mixed. Was "
            f'it renamed? Then keep its identity, name="{handler}", and take it out of retired=. Otherwise give the '
            "attribute another name, or the handler another target."
        )
    whose = "and before as" if handler == own else f"but handler {handler!r} gave it as"
    rule = "one attribute of a target has one form" + (", from one handler" if handler != own else "")
    return HandlerError(f"{message}, {whose} {in_words(before)}: {rule}. Give one of them another name.")


def _not_whole(builder: RowBuilder, target: Target, name: str) -> HandlerError:
    why = (
        "several handlers write it, and only aggregates can be shared"
        if target.owned
        else "a row of it may have several source items, whose values would overwrite each other "
        "(its template does not hold every field of the source's key)"
    )
    return HandlerError(
        f"View {builder.route.name!r} gave the plain attribute {shown(builder.shown(name))} for {target.key!r}, but "
        f"{why}. "
        "Use an aggregate (Sum, Max, Latest), say whose values win, Row(..., wins=item[...]), or take a target of its "
        "own."
    )


def merged(route: Route, key: RowKey, one: RowContribution, other: RowContribution) -> RowContribution:
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
    return RowContribution(amounts, None if one.plain is None and other.plain is None else plain, "", ordered)


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


def complete(route: Route, key: RowKey, part: RowContribution) -> RowContribution:
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
    return RowContribution(part.amounts, plain, digest(encode(plain | part.amounts)["M"]), names=tuple(sorted(plain)))


def _plus(route: Route, one: Number, other: Number) -> Number:
    try:
        total = one + other
    except DecimalException as error:
        raise inexact(route, error) from error
    number_text(total)
    return total
