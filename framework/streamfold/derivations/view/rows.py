"""The contribution of one source to its rows: amounts, content and entries, from the rows that a handler yields.

``contributed`` is the contribution of a view. The kinds ``index`` and ``attributes`` make row contributions in their
own way, and ``fold`` them as a view does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import DecimalException
from functools import lru_cache
from typing import Any, NoReturn

from streamfold.derivations.expiry import postponed
from streamfold.derivations.view.shards import NOT_IN_SHARDS, shard_of
from streamfold.derivations.yielded import inexact, is_ours, split, target_of, yielded
from streamfold.errors import HandlerError, KeyValueError, redacted, shown
from streamfold.keys.key import Key
from streamfold.keys.table import RESERVED_PREFIX, checked_attribute_name
from streamfold.ledger.contribution import (
    ENTRIES_MAX,
    PLAIN_ENTRY,
    Contribution,
    EntriesByName,
    RowContribution,
    SourceEntries,
    entry_of,
    joined,
    value_of_one_source,
)
from streamfold.ledger.schema import RETIRED, Schema, follows, in_words, known, shares, type_of
from streamfold.records.images import Image
from streamfold.records.values import Number, digest, encode, number_text
from streamfold.routes.aggregates import SUM, Added, Aggregate, Moment, Ordered, checked_number
from streamfold.routes.effects import Row
from streamfold.routes.route import ROUTES_KEPT_MAX, SHARD, Fields, Route, Target, may_expire
from streamfold.routes.shipped_aggregates import Count, Sum, Winner
from streamfold.writes.guarded import RowKey

NO_SCHEMA: Mapping[str, str] = {}
COUNTED: Mapping[type, str] = {Sum: SUM, Count: SUM}
"""The aggregations of the commonest values, by type."""


@dataclass(slots=True)
class RowBuilder:
    """The means to make the rows of one call."""

    route: Route
    schema: Schema  # the known aggregations of attributes
    fields: Fields  # of the rows' keys, beside those that a row gives
    seen: dict[tuple[Key, str], str] = field(default_factory=dict)  # aggregations that this call adds to the schema
    mark: str = ""  # the begin of attributes' names, which the handler did not yield
    spread: bool = False  # a row is spread over several, whose readers put ordered values together

    def shown(self, name: str) -> str:
        """The name of an attribute as its handler yields it."""
        return name.removeprefix(self.mark)


def contributed(route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
    """The contribution of an existing item. Raises ``HandlerError`` for rows that the declaration does not allow."""
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
    """Rows of nothing but known sums of their handler, as most rows are; None if more has to be checked."""
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
        except KeyValueError:  # ``split`` raises the error with the handler's row
            return None
        key = template.table.name, partition, sort
        if key in rows:
            return None
        rows[key] = RowContribution(sums, None, "")
    return rows


@lru_cache(ROUTES_KEPT_MAX)
def _plain_target(route: Route) -> Key | None:
    """The target of a route, if it has one, and if no value of a row has to be compared with the row's source."""
    target = route.targets[0]
    checked = target.multi_source or target.owned or target.tenant is not None
    return None if checked or len(route.targets) > 1 else target.key


def fold(
    builder: RowBuilder, image: Image, fields: Fields, row: Callable[[RowBuilder, Row], tuple[RowKey, RowContribution]]
) -> Contribution:
    """The contribution of an item: ``row`` makes a row contribution of each row that the handler yields.

    The aggregations of attributes are learnt once all rows are accepted. Raises ``HandlerError`` for rows that the
    declaration does not allow; errors of the handler itself are not changed.
    """
    return folded(builder, yielded(builder.route, image, fields, Row), row)


def folded(
    builder: RowBuilder, effects: Iterable[Row], row: Callable[[RowBuilder, Row], tuple[RowKey, RowContribution]]
) -> Contribution:
    """``fold`` of rows that a handler has already yielded."""
    rows: Contribution = {}
    route = builder.route
    for effect in effects:
        key, contribution = row(builder, effect)
        rows[key] = merged(route, key, rows[key], contribution) if key in rows else contribution
    for key, contribution in rows.items():
        if contribution.plain is not None or contribution.ordered:
            rows[key] = complete(route, key, contribution)
    if builder.seen:
        builder.schema.learn(route.name, builder.seen)
    return rows


def row_contribution(
    builder: RowBuilder, target: Target, values: Mapping[str, Any], wins: Moment | None
) -> RowContribution:
    """The contribution of one row's attributes. Raises ``HandlerError`` for values that the row may not have."""
    amounts, ordered, plain = _divided(builder, target, values)
    note_all(builder, target, values)
    shared = not target.replaces or (wins is not None and target.multi_source)
    if shared and wins is not None:
        one = Winner(plain, wins)
        note(builder, target, PLAIN_ENTRY, one)
        ordered[PLAIN_ENTRY], plain = entry_of(one), {}
    if plain and shared:
        raise _not_whole(builder, target, next(iter(plain)))
    # Only stored facts decide whether one item replaces a row: a view of aggregates alone may get a neighbour any day.
    replaces = not shared and (plain or target.multi_source)
    return RowContribution(amounts, plain if replaces else None, "", ordered)


def note_all(builder: RowBuilder, target: Target, values: Mapping[str, Any]) -> None:
    """Notes the aggregations of all attributes of a row."""
    seen_before = builder.schema.of(target.key).get(builder.route.name, NO_SCHEMA)
    for name, value in values.items():
        if not builder.seen and seen_before.get(name) == COUNTED.get(type(value), ""):
            continue  # as nearly always
        for attribute, _ in value.amounts(name) if isinstance(value, Added) else ((name, None),):
            if builder.seen or seen_before.get(attribute) != type_of(value):
                note(builder, target, attribute, value)


def _divided(
    builder: RowBuilder, target: Target, values: Mapping[str, Any]
) -> tuple[dict[str, Number], dict[str, SourceEntries], dict[str, Any]]:
    """The amounts, the ordered values, and the plain attributes."""
    amounts: dict[str, Number] = {}
    ordered: dict[str, SourceEntries] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) in COUNTED and name not in amounts:  # as nearly always
            amounts[name] = value.amount
        elif isinstance(value, Ordered):
            if builder.spread and not value.ordering.form.aggregate.in_shards:
                raise _not_together(builder, name, value)
            ordered[name] = entry_of(postponed(target, name, value), spread=builder.spread)
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
    """An amount of an aggregate of a user: it must not change the count of contributors, or a key."""
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
    """Notes the aggregation of an attribute. Raises ``HandlerError`` if a handler has given it another one before."""
    aggregation, known_schema, handler = type_of(value), builder.schema.of(target.key), builder.route.name
    before = builder.seen.get((target.key, name), known_schema.get(handler, {}).get(name))
    if before == aggregation:
        return
    if before is not None and not follows(before, aggregation):
        raise _another_type(builder, target, name, value, handler, before)
    for other, schema in known_schema.items():
        if other != handler and name in schema and not shares(known(schema[name]), aggregation):
            raise _another_type(builder, target, name, value, other, schema[name])
    builder.seen[target.key, name] = aggregation


def _another_type(
    builder: RowBuilder, target: Target, name: str, value: Any, handler: str, before: str
) -> HandlerError:
    """The message for an attribute that another handler yields, or that had another aggregation, and the remedy."""
    own = builder.route.name
    what, it = (shown(builder.shown(name)), value) if name else ("wins=", value.by)
    message = f"Handler {own!r} gave {what} of {target.key!r} as {in_words(type_of(value))} ({shown(it)})"
    if before == RETIRED:
        return HandlerError(
            f"{message}, and rows still hold the values of the retired handler {handler!r}: both would be mixed. Was "
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


def _merged_entries(one: EntriesByName, other: EntriesByName, differing: set[str]) -> dict[str, SourceEntries]:
    """The entries of both. Adds names of attributes whose entries contradict each other to ``differing``."""
    ordered = dict(one)
    for name, mine in other.items():
        both = joined(ordered[name], mine) if name in ordered else mine
        if both is None:
            differing.add(name)
        else:
            ordered[name] = both
    return ordered


def complete(route: Route, key: RowKey, contribution: RowContribution) -> RowContribution:
    """The contribution to a row after all of its rows are merged; a row of one item gets its content and digest."""
    if contribution.plain is None:
        ordered = contribution.ordered
        if len(ordered) == 1 and len(next(iter(ordered.values())).entries) == 1:  # nearly always
            return contribution
        if (count := sum(len(found.entries) for found in ordered.values())) > ENTRIES_MAX:
            raise HandlerError(
                f"Handler {route.name!r} gave {count} ordered values for row {shown(key[1:])}, {ENTRIES_MAX} at "
                "most from one item: they move in one transaction. Spread them over several rows."
            )
        return contribution
    plain, amounts = contribution.plain, contribution.amounts
    if contribution.ordered:
        plain = plain | {name: value_of_one_source(found) for name, found in contribution.ordered.items()}
    return RowContribution(amounts, plain, digest(encode(plain | amounts)["M"]), names=tuple(sorted(plain)))


def _plus(route: Route, one: Number, other: Number) -> Number:
    try:
        total = one + other
    except DecimalException as error:
        raise inexact(route, error) from error
    number_text(total)
    return total
