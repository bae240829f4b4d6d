"""The right rows after some changes, computed from the declarations only, for comparison in proofs.

Views and indexes are the fold of the last image of every item, an audit has one row per change, ``on`` takes every
change once. No code of the planner, the ledger or a store is used, so that an error there cannot be repeated here.
"""

from collections import ChainMap, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from decimal import DecimalException, localcontext
from types import MappingProxyType
from typing import Any

from streamfold.app import App
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import Expected, History, ItemVersion, Values, fields_of, references_of
from streamfold.engines.protocol import StoredItem
from streamfold.errors import joined_key
from streamfold.keys.table import CONTRIBUTORS, DERIVED
from streamfold.proofs.handlers import failure_message, time_given
from streamfold.proofs.store import DeliveredChange, ProofStore
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image, derived_by, hidden, without_derived
from streamfold.records.values import DIGITS_MAX, EXACT, encode
from streamfold.routes.aggregates import Aggregate, Ordered
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Fields, Route
from streamfold.routes.shipped_aggregates import Claimed, Winner, claims_in_order, comparable
from streamfold.testing.items import HandlerFails
from streamfold.testing.twin import changes_items
from streamfold.writes.guarded import RowKey

Yielded = tuple[str, Any, dict[str, Any]]
"""One row that a source yields: the name of the source, the value by which its plain attributes win, the attributes."""
FoldedRows = Mapping[RowKey, Values]
ExpectedRows = dict[RowKey, dict[str, Any]]
"""Derived rows by key: attribute names to DynamoDB attribute values, without key attributes and numbers that are 0."""


def expected_rows(app: App, changes: Iterable[Change]) -> ExpectedRows:
    """The rows after these changes. A repeated change counts once."""
    return _expected(app, changes)[0]


def expected_all(app: App, changes: Sequence[Change], folded: FoldedRows | None = None) -> ExpectedRows:
    """The rows after these changes, and the content outside of the store under keys of its own.

    ``folded`` are the folded rows of the last images, if they are known.
    """
    rows, outside = _expected(app, changes, folded)
    return rows | outside


def _expected(
    app: App, changes: Iterable[Change], folded: FoldedRows | None = None
) -> tuple[ExpectedRows, ExpectedRows]:
    rows: dict[RowKey, Values] = {}
    outside: dict[RowKey, Values] = {}
    history = history_of(changes)
    if folded is None:
        folded = folded_rows(app, history.items)
    with localcontext(EXACT):
        with_rows = replace(history, items={**history.items, **folded})
        for route in app.routes:
            if not route.kind.contributes:
                expected = derivation(route).expected(route, with_rows if route.kind.reads_derived else history)
                rows |= expected.rows
                outside |= expected.outside
        rows |= folded
    return _all_shown(rows), _all_shown(outside)


def history_of(changes: Iterable[Change]) -> History:
    """The history of these changes, each of them once and in order."""
    once = {(change.item, change.identity_text): change for change in changes}
    ordered = sorted(once.values(), key=identity)
    return History(ordered, {change.item: change.new for change in ordered}, called)


def _all_shown(rows: Mapping[RowKey, Values]) -> ExpectedRows:
    return {key: _shown(encode(row)["M"]) for key, row in rows.items()}


def stored_rows(app: App, items: Iterable[tuple[RowKey, StoredItem]]) -> ExpectedRows:
    """The derived rows among stored items, as readers see them, but for those of handlers that are called at moments
    of items: which of these a history comes to depends on when it looks.
    """
    rows, called = {}, [route for route in app.routes if not route.kind.subscriptions(route)]
    for key, item in items:
        if any(route.target_of(key) is not None for route in called):
            continue
        if app.derived(key) and item.get(CONTRIBUTORS) != {"N": "0"}:
            names = app.tables[key[0]].attributes
            rows[key] = _shown({name: value for name, value in item.items() if name not in names})
    return rows


def read_rows(app: App, stored: Mapping[RowKey, StoredItem], changes: Iterable[Change]) -> ExpectedRows:
    """The derived rows after these changes as readers see them. A kind may filter rows at reading."""
    rows, history = stored_rows(app, stored.items()), history_of(changes)
    for route in app.routes:
        found = derivation(route).as_read(route, rows, stored, history)
        if found is not rows:  # as of most kinds
            rows = {key: _shown(row) for key, row in found.items()}
    return rows


def outside_rows(app: App, position: Any) -> ExpectedRows:
    """The content of a location outside of the store, as rows."""
    found: dict[RowKey, Values] = {}
    for route in app.routes:
        found |= derivation(route).found_outside(route, position)
    return _all_shown(found)


def folded_rows(app: App, items: Mapping[ItemKey, Mapping[str, Any]]) -> dict[RowKey, Values]:
    """The rows that views and indexes make of items, and of each other's rows."""
    with localcontext(EXACT):
        found = _shares(app.routes, items)
        folded = _folded(app, found)
        readers = [route for route in app.routes if route.name in app.chained]
        for _ in readers:  # a chain is no longer than it has readers
            found |= _shares(readers, {**items, **folded})
            before, folded = folded, _folded(app, found)
            if folded == before:
                break
        return folded


def _shares(routes: Iterable[Route], items: Mapping[Any, Mapping[str, Any]]) -> dict[str, Expected]:
    history = History((), items, called)
    return {route.name: derivation(route).expected(route, history) for route in routes if route.kind.contributes}


def identity(change: Change) -> str:
    return change.identity_text


def _folded(app: App, given: Mapping[str, Expected]) -> dict[RowKey, Values]:
    shares: dict[RowKey, list[tuple[str, Any, Values]]] = defaultdict(list)
    claims: dict[RowKey, list[tuple[str, Any, Values]]] = defaultdict(list)
    ranked: dict[RowKey, Any] = {}
    rows: dict[RowKey, Values] = {}
    for route in app.routes:
        if route.name in given:
            expected = given[route.name]
            rows |= expected.rows
            ranked |= dict.fromkeys((claim.key for claim in expected.claims), expected.ranked)
            for known, found in ((shares, expected.shares), (claims, expected.claims)):
                for key, source, order, values in found:
                    known[key].append((source, order, values))
    rows |= {key: _folded_row(key, yielded) for key, yielded in shares.items()}
    return rows | {key: claimed_row(yielded, ranked[key]) for key, yielded in claims.items()}


def _folded_row(key: RowKey, yielded: Sequence[tuple[str, Any, Values]]) -> Values:
    """The row of these sources. Raises ``HandlerFails`` if their sum is a number that no row can hold."""
    try:
        return folded_row(yielded)
    except DecimalException as error:
        raise HandlerFails(
            f"row {joined_key(key[1:])}: the sum of its sources needs more than {DIGITS_MAX} digits "
            f"({type(error).__name__}), the most that DynamoDB stores: the last record would fail for ever. Round the "
            "amounts, value.quantize(Decimal('0.01')), or keep amounts of such different size in different attributes."
        ) from error


MOMENT: ContextVar[int] = ContextVar("MOMENT", default=0)
"""The time at which handlers are called that ask for it, epoch microseconds."""


@contextmanager
def at_moment(microseconds: int) -> Iterator[None]:
    """Has handlers that ask for the time called at this one."""
    token = MOMENT.set(microseconds)
    try:
        yield
    finally:
        MOMENT.reset(token)


def called(route: Route, subject: Any, fields: Fields, item: ItemKey) -> list[Any]:
    assert route.function is not None
    try:
        return list(
            each_effect(route.name, route.function(subject, **route.asked(fields), **time_given(route, MOMENT.get())))
        )
    except Exception as error:
        raise HandlerFails(failure_message(route, joined_key(item[1:]), error)) from error


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    # To readers, 0 and an absent attribute are alike. They do not see the framework's own attributes.
    return {name: value for name, value in row.items() if value != {"N": "0"} and not hidden(name)}


ItemPartition = tuple[str, Any]
"""A table, and the partition key of items in it."""
Images = Mapping[ItemKey, Mapping[str, Any]]
DerivedAttributes = dict[str, tuple[str, Mapping[str, Any]]]
"""Derived attributes by name: of which application and handler, and their values as stored."""
ZERO = {"N": "0"}


class ItemsWrong(AssertionError):  # noqa: N818 - named by its cause
    """Raised if a handler removed an item that no declaration removes, or kept one that goes with its parent."""


def expected_items(
    app: App, delivered: Sequence[DeliveredChange], names: set[str], folded: FoldedRows | None = None
) -> ExpectedRows:
    """The source items at the end: each as the application wrote it last, with its derived attributes.

    ``names`` are the names of all derived attributes, ``folded`` the folded rows of the last images, if known.
    """
    newest = {change.item: change.new for change, *_ in delivered}
    if folded is None:
        folded = folded_rows(app, newest)
    present = {item for item, image in newest.items() if image}
    own = {change.item: Image(without_derived(change.new.raw)) for change, is_own, _ in delivered if is_own}
    own = {item: image for item, image in own.items() if item in present}
    with localcontext(EXACT):
        derived = _derived(app, {**own, **folded})
        return {item: _item_shown(image.raw, derived.get(item, {}), names) for item, image in own.items()}


def stored_items(store: ProofStore, names: set[str]) -> ExpectedRows:
    """The items of a store in the form of ``expected_items``."""
    found: ExpectedRows = {}
    for item, image in store.sources():
        derived = {name: (whose, image[name]) for name, whose in derived_by(image).items() if name in image}
        found[item] = _item_shown(without_derived(image), derived, names)
    return found


def check_cascades(
    app: App, delivered: Sequence[DeliveredChange], ended: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Raises ``ItemsWrong`` if a handler removed an item without a removed parent, or kept a child of a removed one.

    A child that was written while its parent is away may be removed or kept: its purpose is unknown. But a removal that
    had ``ended`` (by version: the number of records delivered by then) before the child was written may not remove it.
    """
    # Children share the partition of their parent, which is checked when a cascade is declared. To compare items of
    # other partitions, too, would take most of the time of a proof with many items.
    present: dict[ItemPartition, dict[ItemKey, int]] = defaultdict(dict)
    gone: dict[ItemPartition, dict[ItemKey, int]] = defaultdict(dict)
    for position, (change, own, follows) in enumerate(delivered):
        here, away = present[change.item[:2]], gone[change.item[:2]]
        if change.new:
            away.pop(change.item, None)
            here[change.item] = position if own else here[change.item]
            continue
        if not own and not any(_is_child(app, parent, change.item) for parent in away):
            raise ItemsWrong(f"{change.name} was removed by a cascade, though no parent of it was gone")
        if not own and here[change.item] >= ended.get(follows, len(delivered)):
            raise ItemsWrong(f"{change.name} was removed by a cascade that had come to its end before it was written")
        here.pop(change.item, None)
        away[change.item] = position
    for parent, position in ((parent, position) for away in gone.values() for parent, position in away.items()):
        here = present[parent[:2]]
        orphans = [child for child, written in here.items() if written < position and _is_child(app, parent, child)]
        if orphans:
            kept, removed = joined_key(orphans[0][1:]), joined_key(parent[1:])
            raise ItemsWrong(f"{kept} still exists, though {removed} was removed after it was written")


class OrderWrong(AssertionError):  # noqa: N818 - named by its cause
    """Raised if a later change of an item reached another service before an earlier one."""


def check_order(app: App, position: Any, overtaken: Mapping[str, Collection[ItemVersion]]) -> None:
    """Raises ``OrderWrong`` if changes of an item did not reach a location outside of the store in order.

    Each change counts where it appeared first: a redelivery repeats it. ``overtaken`` are the changes, by handler, that
    later ones may overtake, because they were given up or parked, or because their records came behind later ones.
    """
    for route in app.routes:
        newest: dict[ItemKey, str] = {}
        for each in derivation(route).first_appearances(route, position):
            before = newest.get(each.item, "")
            if each.version < before and each not in overtaken.get(route.name, ()):
                raise OrderWrong(
                    f"handler {route.name!r}, item {joined_key(each.item[1:])}: the change of version {each.version} "
                    f"first appeared behind {before}, a later one, though it was neither given up nor parked, and its "
                    "record came before."
                )
            newest[each.item] = max(before, each.version)


def endless(app: App, item: ItemKey, rounds: int) -> str:
    """The message about handlers that go on writing to an item."""
    subscribed = app.listeners(item, called=False)
    names = ", ".join(repr(each.route.name) for each, _ in subscribed) or "those that write to it"
    return (
        f"handlers {names}, item {joined_key(item[1:])}: they still wrote to it after {rounds} rounds in which all "
        "records had been delivered. What they derive has to follow from the item's own attributes alone."
    )


def _derived(app: App, images: Images, referents: Images | None = None) -> dict[ItemKey, DerivedAttributes]:
    """The attributes that handlers derive from these items, by the item that has them."""
    given: dict[tuple[ItemKey, str], list[Yielded]] = defaultdict(list)
    history = History((), images, called, referents)
    for route in app.routes:
        if route.kind.contributes and route.kind.touches(route):
            for target, source, order, values in derivation(route).expected(route, history).on_items:
                given[target, route.name].append((source, order, values))
    derived: dict[ItemKey, DerivedAttributes] = defaultdict(dict)
    for (target, handler), yielded in given.items():
        values = encode(folded_row(yielded))["M"]
        derived[target].update((name, (f"{app.name}/{handler}", value)) for name, value in values.items())
    return derived


def attribute_names(app: App, changes: Iterable[Change]) -> set[str]:
    """The names of all attributes that handlers derive from the images of these changes. Calls the handlers."""
    names: set[str] = set()
    own = [(change.item, Image(without_derived(change.new.raw))) for change in changes] if changes_items(app) else []
    # Of handlers that look others up, the names are those that follow from the last images of these.
    referents: dict[ItemKey, Mapping[str, Any]] = {item: image for item, image in own if image}
    with localcontext(EXACT):
        referrers = _referrers(app, referents)
        for item, image in own:
            images = {**referrers.get(item, {}), item: image}
            for values in _derived(app, images, ChainMap({item: image}, referents)).values():
                names.update(values)
    return names


def _referrers(app: App, items: Images) -> dict[ItemKey, dict[ItemKey, Mapping[str, Any]]]:
    """The items that handlers which derive attributes look each item up for."""
    found: dict[ItemKey, dict[ItemKey, Mapping[str, Any]]] = defaultdict(dict)
    history = History((), items, called)
    for route in app.routes:
        if route.lookups and route.kind.touches(route):
            for item, image, fields in history.items_of(route):
                for referents in references_of(route, image, fields, items).values():
                    for referent in referents:
                        found[referent][item] = image
    return found


def _item_shown(own: Mapping[str, Any], derived: DerivedAttributes, names: set[str]) -> dict[str, Any]:
    """An item for comparison, without a derived 0. Values that the application itself wrote under the name of a derived
    attribute are left out, because handlers may overwrite them.
    """
    kept = {name: value for name, (_, value) in derived.items() if value != ZERO}
    shown = {name: value for name, value in own.items() if name not in names and not hidden(name)}
    marks: dict[str, list[str]] = {}
    for name in sorted(kept):
        marks.setdefault(derived[name][0], []).append(name)
    return {**shown, **kept, DERIVED: encode({whose: set(some) for whose, some in marks.items()})} if kept else shown


def _is_child(app: App, parent: ItemKey, child: ItemKey) -> bool:
    found = ((route, fields_of(route, parent)) for route in app.routes if route.kind.touches(route))
    return any(fields is not None and derivation(route).takes_along(route, fields, child) for route, fields in found)


def folded_row(yielded: Sequence[Yielded]) -> dict[str, Any]:
    """The row of these sources."""
    row: dict[str, Any] = {}
    given: dict[str, list[tuple[str, Aggregate]]] = defaultdict(list)
    winners: dict[tuple[str, Any], tuple[Any, dict[str, Any]]] = {}
    for source, wins, values in yielded:
        plain = {name: value for name, value in values.items() if not isinstance(value, Aggregate)}
        if wins is None:
            row.update(plain)
        else:
            winners.setdefault((source, comparable(wins)), (wins, {}))[1].update(plain)
        for name, value in values.items():
            if isinstance(value, Aggregate):
                given[name].append((source, value))
    if winners:
        row.update(Winner.fold([Winner(plain, wins) for _, (wins, plain) in sorted(winners.items(), key=_first)]))
    for name, found in given.items():
        row.update(_of_one_kind(name, found))
    return row


def claimed_row(yielded: Sequence[Yielded], unique: Any) -> dict[str, Any]:
    """The row that these sources claim, each with the value by which it claims."""
    claims = {(source, comparable(by)): (by, values) for source, by, values in yielded}
    order = claims_in_order(smallest=unique.smallest, ties=unique.ties)
    found = Claimed.fold([Claimed(values, by, order, "") for _, (by, values) in sorted(claims.items(), key=_first)])
    return dict(found)


def _of_one_kind(name: str, found: Sequence[tuple[str, Aggregate]]) -> Mapping[str, Any]:
    by_source = sorted(found, key=_first)
    if isinstance(found[0][1], Ordered):  # equal values of one source count once
        keyed = {(source, comparable(value.by)): (source, value) for source, value in by_source}  # type: ignore[attr-defined]
        by_source = [*keyed.values()]
    values = [value for _, value in by_source]
    return values[0].folded(name, values)


def _first(each: tuple[Any, Any]) -> Any:
    return each[0]
