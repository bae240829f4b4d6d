"""The rows that changes have to lead to, told from the declarations alone: what proofs compare with.

Views and indexes are the fold of the last image of every item, an audit has one row per change, ``on`` takes every
change once. Nothing of the planner, the ledger or a store is used: two pages that can be read beside the declarations.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import DecimalException, localcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from streamfold.app import App
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import Expected, History, Values, fields_of
from streamfold.engines import StoredItem
from streamfold.errors import joined_key
from streamfold.keys.table import CONTRIBUTORS, DERIVED
from streamfold.proofs.folds import claimed_row, folded_row
from streamfold.proofs.handlers import failure_message
from streamfold.proofs.store import DeliveredChange, ProofStore
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image, derived_by, hidden, without_derived
from streamfold.records.values import DIGITS_MAX, EXACT, encode
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Fields, Route
from streamfold.testing.errors import HandlerFails
from streamfold.testing.twin import changes_items
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.proofs.folds import Yielded

FoldedRows = Mapping[RowKey, Values]
ExpectedRows = dict[RowKey, dict[str, Any]]
"""Derived rows by key: attribute names to DynamoDB attribute values, without key attributes and numbers that are 0."""


def expected_rows(app: App, changes: Iterable[Change]) -> ExpectedRows:
    """The rows after these changes, each of which counts once however often it is given."""
    return _expected(app, changes)[0]


def expected_all(app: App, changes: Sequence[Change], folded: FoldedRows | None = None) -> ExpectedRows:
    """The rows after these changes, and what lies outside of the store then, beside them under keys of its own.

    ``folded`` are the folded rows of the last images, where they are known.
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
    """What these changes say happened, each of them once."""
    once = {(change.item, change.identity_text): change for change in changes}
    ordered = sorted(once.values(), key=identity)
    return History(ordered, {change.item: change.new for change in ordered}, called)


def _all_shown(rows: Mapping[RowKey, Values]) -> ExpectedRows:
    return {key: _shown(encode(row)["M"]) for key, row in rows.items()}


def stored_rows(app: App, items: Iterable[tuple[RowKey, StoredItem]]) -> ExpectedRows:
    """The derived rows among stored items, as their readers see them, in the same form."""
    rows = {}
    for key, item in items:
        if app.derived(key) and item.get(CONTRIBUTORS) != {"N": "0"}:
            names = app.tables[key[0]].attributes
            rows[key] = _shown({name: value for name, value in item.items() if name not in names})
    return rows


def read_rows(app: App, stored: Mapping[RowKey, StoredItem], changes: Iterable[Change]) -> ExpectedRows:
    """The derived rows after these changes as their readers see them, where a kind says how that is."""
    rows, history = stored_rows(app, stored.items()), history_of(changes)
    for route in app.routes:
        found = derivation(route).as_read(route, rows, stored, history)
        if found is not rows:  # as of most kinds
            rows = {key: _shown(row) for key, row in found.items()}
    return rows


def outside_rows(app: App, place: Any) -> ExpectedRows:
    """What lies in a place outside of the store, in the same form."""
    found: dict[RowKey, Values] = {}
    for route in app.routes:
        found |= derivation(route).found_outside(route, place)
    return _all_shown(found)


def folded_rows(app: App, items: Mapping[ItemKey, Mapping[str, Any]]) -> dict[RowKey, Values]:
    """What views and indexes make of items, and of the rows that they made."""
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
    """What each handler that contributes gives for these items, by its name."""
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
    """The row of these sources. Raises ``HandlerFails`` where they add up to a number that no row can hold."""
    try:
        return folded_row(yielded)
    except DecimalException as error:
        raise HandlerFails(
            f"row {joined_key(key[1:])}: what its sources yield adds up to a number that {DIGITS_MAX} digits do not "
            f"hold exactly ({type(error).__name__}), the most that DynamoDB stores: the record that comes last would "
            "fail for ever. Round what is added, value.quantize(Decimal('0.01')), or keep amounts apart that differ so "
            "far."
        ) from error


def called(route: Route, subject: Any, fields: Fields, item: ItemKey) -> list[Any]:
    assert route.function is not None
    try:
        return list(each_effect(route.name, route.function(subject, **route.asked(fields))))
    except Exception as error:
        raise HandlerFails(failure_message(route, joined_key(item[1:]), error)) from error


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """0 and absent are alike, and the framework's own attributes are nobody's business."""
    return {name: value for name, value in row.items() if value != {"N": "0"} and not hidden(name)}


ItemPartition = tuple[str, Any]
"""A table, and the partition key of items in it."""
Images = Mapping[ItemKey, Mapping[str, Any]]
DerivedAttributes = dict[str, tuple[str, Mapping[str, Any]]]
"""Derived attributes by name: of which application and handler, and their values as stored."""
ZERO = {"N": "0"}


class ItemsWrong(AssertionError):  # noqa: N818 - what it says
    """A handler removed an item that no declaration removes, or left one that goes with its parent."""


def expected_items(
    app: App, delivered: Sequence[DeliveredChange], names: set[str], folded: FoldedRows | None = None
) -> ExpectedRows:
    """The source items at the end: each as the application wrote it last, and what is derived onto it.

    ``names`` are those of all derived attributes, ``folded`` the folded rows of the last images, where they are known.
    """
    newest = {change.item: change.new for change, *_ in delivered}
    if folded is None:
        folded = folded_rows(app, newest)
    there = {item for item, image in newest.items() if image}
    own = {change.item: Image(without_derived(change.new.raw)) for change, is_own, _ in delivered if is_own}
    own = {item: image for item, image in own.items() if item in there}
    with localcontext(EXACT):
        derived = _derived(app, {**own, **folded})
        return {item: _item_shown(image.raw, derived.get(item, {}), names) for item, image in own.items()}


def stored_items(store: ProofStore, names: set[str]) -> ExpectedRows:
    """The source items of a store, in the same form."""
    return {item: _item_shown(without_derived(image), _borne(image), names) for item, image in store.sources()}


def check_cascades(
    app: App, delivered: Sequence[DeliveredChange], ended: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Raises ``ItemsWrong`` where a handler removed what none of its parents takes along, or left what one does.

    A child that was written while its parent is away may go or stay, because nobody knows what it was meant for; but
    not by a removal that had ``ended`` (by version: when so many records had been told) before it was written.
    """
    # Children lie in the partition of their parent, which is checked when a cascade is declared: items of other
    # partitions are not looked at, or a proof of many items would take most of its time here.
    there: dict[ItemPartition, dict[ItemKey, int]] = defaultdict(dict)
    gone: dict[ItemPartition, dict[ItemKey, int]] = defaultdict(dict)
    for place, (change, own, follows) in enumerate(delivered):
        here, away = there[change.item[:2]], gone[change.item[:2]]
        if change.new:
            away.pop(change.item, None)
            here[change.item] = place if own else here[change.item]
            continue
        if not own and not any(_is_child(app, parent, change.item) for parent in away):
            raise ItemsWrong(f"{change.name} was removed by a cascade, though no parent of it was gone")
        if not own and here[change.item] >= ended.get(follows, len(delivered)):
            raise ItemsWrong(f"{change.name} was removed by a cascade that had come to its end before it was written")
        here.pop(change.item, None)
        away[change.item] = place
    for parent, place in ((parent, place) for away in gone.values() for parent, place in away.items()):
        here = there[parent[:2]]
        left = [child for child, written in here.items() if written < place and _is_child(app, parent, child)]
        if left:
            kept, removed = joined_key(left[0][1:]), joined_key(parent[1:])
            raise ItemsWrong(f"{kept} is still there, though {removed} was removed behind it")


def endless(app: App, item: ItemKey, rounds: int) -> str:
    """What to say of handlers that go on writing to an item."""
    bearing = app.listeners(item, called=False)
    names = ", ".join(repr(each.route.name) for each, _ in bearing) or "those that write to it"
    return (
        f"handlers {names}, item {joined_key(item[1:])}: they still wrote to it after {rounds} rounds in which all "
        "records had been delivered. What they derive has to follow from the item's own attributes alone."
    )


def _derived(app: App, images: Images) -> dict[ItemKey, DerivedAttributes]:
    """The attributes that handlers derive of these items, by the item that bears them."""
    given: dict[tuple[ItemKey, str], list[Yielded]] = defaultdict(list)
    history = History((), images, called)
    for route in app.routes:
        if route.kind.contributes and route.kind.touches(route):
            for bearer, source, order, values in derivation(route).expected(route, history).on_items:
                given[bearer, route.name].append((source, order, values))
    derived: dict[ItemKey, DerivedAttributes] = defaultdict(dict)
    for (bearer, handler), yielded in given.items():
        values = encode(folded_row(yielded))["M"]
        derived[bearer].update((name, (f"{app.name}/{handler}", value)) for name, value in values.items())
    return derived


def attribute_names(app: App, changes: Iterable[Change]) -> set[str]:
    """The names of all attributes that handlers derive of any image of these changes, calling each handler with it."""
    names: set[str] = set()
    with localcontext(EXACT):
        for change in changes if changes_items(app) else ():
            image = Image(without_derived(change.new.raw))
            for values in _derived(app, {change.item: image}).values():
                names.update(values)
    return names


def _borne(image: Mapping[str, Any]) -> DerivedAttributes:
    return {name: (whose, image[name]) for name, whose in derived_by(image).items() if name in image}


def _item_shown(own: Mapping[str, Any], derived: DerivedAttributes, names: set[str]) -> dict[str, Any]:
    """An item as it compares. What the application itself wrote under a derived attribute's name is nobody's business,
    and a derived 0 is like none.
    """
    kept = {name: value for name, (_, value) in derived.items() if value != ZERO}
    shown = {name: value for name, value in own.items() if name not in names and not hidden(name)}
    message: dict[str, list[str]] = {}
    for name in sorted(kept):
        message.setdefault(derived[name][0], []).append(name)
    return {**shown, **kept, DERIVED: encode({whose: set(some) for whose, some in message.items()})} if kept else shown


def _is_child(app: App, parent: ItemKey, child: ItemKey) -> bool:
    """Whether a cascade takes one item along with the other."""
    found = ((route, fields_of(route, parent)) for route in app.routes if route.kind.touches(route))
    return any(fields is not None and derivation(route).takes_along(route, fields, child) for route, fields in found)
