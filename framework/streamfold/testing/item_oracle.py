"""What source items have to be, where handlers write to them: told from the declarations and from who wrote what.

Attributes derived onto items are the fold of what their sources are at the end. A cascade removes what its parent took
along, and nothing else. Nothing of the framework's way there is used.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import localcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from streamfold.app import App
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import History, fields_of
from streamfold.errors import parts_text
from streamfold.keys.table import DERIVED
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image, derived_by, hidden, without_derived
from streamfold.records.values import EXACT, encode
from streamfold.testing.folds import folded_row
from streamfold.testing.oracle import ExpectedRows, called, folded_rows
from streamfold.testing.store import ProofStore, Told
from streamfold.testing.writers import changes_items

if TYPE_CHECKING:
    from streamfold.testing.folds import Yielded

Images = Mapping[ItemKey, Mapping[str, Any]]
Derived = dict[str, tuple[str, Mapping[str, Any]]]
"""Derived attributes by name: of which application and handler, and their values as stored."""
ZERO = {"N": "0"}


class ItemsWrong(AssertionError):  # noqa: N818 - what it says
    """A handler removed an item that no declaration removes, or left one that goes with its parent."""


def expected_items(app: App, told: Sequence[Told]) -> ExpectedRows:
    """The source items at the end: each as the application wrote it last, and what is derived onto it."""
    newest = {change.item: change.new for change, *_ in told}
    there = {item for item, image in newest.items() if image}
    own = {change.item: Image(without_derived(change.new.raw)) for change, is_own, _ in told if is_own}
    own = {item: image for item, image in own.items() if item in there}
    with localcontext(EXACT):
        derived = _derived(app, {**own, **folded_rows(app, newest)})
        names = attribute_names(app, [change for change, own, _ in told if own])
        return {item: _shown(image.raw, derived.get(item, {}), names) for item, image in own.items()}


def stored_items(app: App, store: ProofStore, told: Sequence[Told]) -> ExpectedRows:
    """The source items of a store, in the same form."""
    names = attribute_names(app, [change for change, own, _ in told if own])
    return {item: _shown(without_derived(image), _borne(image), names) for item, image in store.sources()}


def check_cascades(app: App, told: Sequence[Told], ended: Mapping[str, int] = MappingProxyType({})) -> None:
    """Raises ``ItemsWrong`` where a handler removed what none of its parents takes along, or left what one does.

    A child that was written while its parent is away may go or stay, because nobody knows what it was meant for; but
    not by a removal that had ``ended`` (by version: when so many records had been told) before it was written.
    """
    there: dict[ItemKey, int] = {}
    gone: dict[ItemKey, int] = {}
    for place, (change, own, follows) in enumerate(told):
        if change.new:
            gone.pop(change.item, None)
            there[change.item] = place if own else there[change.item]
            continue
        if not own and not any(_is_child(app, parent, change.item) for parent in gone):
            raise ItemsWrong(f"{change.name} was removed by a cascade, though no parent of it was gone")
        if not own and there[change.item] >= ended.get(follows, len(told)):
            raise ItemsWrong(f"{change.name} was removed by a cascade that had come to its end before it was written")
        there.pop(change.item, None)
        gone[change.item] = place
    for parent, place in gone.items():
        left = [child for child, written in there.items() if written < place and _is_child(app, parent, child)]
        if left:
            kept, removed = parts_text(left[0][1:]), parts_text(parent[1:])
            raise ItemsWrong(f"{kept} is still there, though {removed} was removed behind it")


def endless(app: App, item: ItemKey, rounds: int) -> str:
    """What to say of handlers that go on writing to an item."""
    bearing = app.listeners(item, called=False)
    names = ", ".join(repr(each.route.name) for each, _ in bearing) or "those that write to it"
    return (
        f"handlers {names}, item {parts_text(item[1:])}: they still wrote to it after {rounds} rounds in which all "
        "records had been delivered. What they derive has to follow from the item's own attributes alone."
    )


def _derived(app: App, images: Images) -> dict[ItemKey, Derived]:
    """The attributes that handlers derive of these items, by the item that bears them."""
    given: dict[tuple[ItemKey, str], list[Yielded]] = defaultdict(list)
    history = History((), images, called)
    for route in app.routes:
        if route.kind.contributes:
            for bearer, source, order, values in derivation(route).expected(route, history).on_items:
                given[bearer, route.name].append((source, order, values))
    derived: dict[ItemKey, Derived] = defaultdict(dict)
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


def _borne(image: Mapping[str, Any]) -> Derived:
    return {name: (whose, image[name]) for name, whose in derived_by(image).items() if name in image}


def _shown(own: Mapping[str, Any], derived: Derived, names: set[str]) -> dict[str, Any]:
    """An item as it compares. What the application itself wrote under a derived attribute's name is nobody's business,
    and a derived 0 is like none.
    """
    kept = {name: value for name, (_, value) in derived.items() if value != ZERO}
    shown = {name: value for name, value in own.items() if name not in names and not hidden(name)}
    said: dict[str, list[str]] = {}
    for name in sorted(kept):
        said.setdefault(derived[name][0], []).append(name)
    return {**shown, **kept, DERIVED: encode({whose: set(some) for whose, some in said.items()})} if kept else shown


def _is_child(app: App, parent: ItemKey, child: ItemKey) -> bool:
    """Whether a cascade takes one item along with the other."""
    found = ((route, fields_of(route, parent)) for route in app.routes)
    return any(fields is not None and derivation(route).takes_along(route, fields, child) for route, fields in found)
