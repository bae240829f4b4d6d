"""The items that contribute to a derived row, and whether their contributions add up to it."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import partial
from itertools import groupby, product
from typing import Any, NamedTuple

from streamfold.batch.manifest import read_manifest
from streamfold.commit.after_commit import differing_from_entries
from streamfold.commit.referents import Asked, LookedUp, look_up
from streamfold.derivations.derivation import derivation, derived
from streamfold.derivations.expiry import GRACE_SECONDS
from streamfold.engines.protocol import Entries, StoredItem
from streamfold.errors import EngineError, HandlerError, KeyValueError
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS, EDGE, LIFE, OWNER, PLACES, PLAIN_NAMES, STAMP, STATE, is_in_state
from streamfold.ledger.contribution import (
    BEHIND,
    PLAIN_ENTRY,
    REFERENCE,
    RowContribution,
    is_entry_text,
    partition,
    sort_key_of,
    source_components,
    source_text,
    stored_rows,
    stored_text,
)
from streamfold.ledger.difference import entries_by_row, owner_of
from streamfold.ledger.lives import as_stored
from streamfold.ledger.schema import Schema
from streamfold.ledger.state_keys import is_ledger_key, ledger_key, ledger_of_contribution, source_of
from streamfold.lifecycle.buckets import PendingAdditions, pending_of
from streamfold.lifecycle.explain import Explaining, explain_item, read_ledger, state_key
from streamfold.lifecycle.sources import pages
from streamfold.lifecycle.unseen import entries_in, owner_in, page_of_entries
from streamfold.records.change import KEY_READERS, ItemKey, image_of
from streamfold.records.images import hidden
from streamfold.records.values import EXACT, WIDE, Number, alike, decode, encode, is_zero
from streamfold.routes.route import Route, Target
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import ChangedEntries, EntriesOfRow, RowKey, StateKey

ENTRIES_MAX = 10_000
"""Entries of one attribute that are read."""
NAMES_MAX = 20
"""With at most so many rows, a text is searched for their keys before it is parsed."""
HeldContributions = dict[tuple[str, StateKey], Route]
"""Ledger items that may hold a contribution, by handler."""


@dataclass(frozen=True, slots=True)
class Contributor:
    """The contribution of one item to a row through one handler."""

    route: Route
    item: ItemKey | None  # None for a key that is too long for the state to hold
    key: StateKey  # of the ledger item
    version: str
    contribution: RowContribution
    revision: int = 0  # of the ledger item; every write of it raises the revision


@dataclass(slots=True)
class RowExplained:
    """A row with its contributions."""

    row: RowKey
    stored: Mapping[str, Any] | None  # the attributes of the row; None if there is none
    contributors: list[Contributor] = field(default_factory=list)
    complete: bool = True  # all contributions were looked for
    sums: dict[str, Number] = field(default_factory=dict)
    differing: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # by attribute: in the row, and expected
    lacking: int = 0  # entries of items below it that are missing, or have other values, and entries of no item
    unseen: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # the same of attributes that no reader sees
    retired_names: frozenset[str] = frozenset()  # attributes left by retired handlers, which count as contributors
    pending: PendingAdditions | None = None  # what waits in deltas
    outdated: list[Contributor] = field(default_factory=list)  # which the code makes otherwise of the items now

    @property
    def counted(self) -> int:
        """The number of contributions by the row's own count."""
        return int((self.stored or {}).get(CONTRIBUTORS, 0))

    @property
    def counted_in_time(self) -> int:
        """The same once all is added that waits in deltas."""
        return self.counted + (self.pending.contributors if self.pending else 0)

    @property
    def stored_in_time(self) -> Mapping[str, Any]:
        """The attributes of the row once all is added that waits in deltas."""
        stored = self.stored or {}
        waiting = self.pending.amounts if self.pending else {}
        numbers = {name: amount for name, amount in waiting.items() if is_number(stored.get(name, 0))}
        return {**stored, **{name: WIDE.add(stored.get(name, 0), amount) for name, amount in numbers.items()}}

    @property
    def agrees(self) -> bool:
        """Whether the contributions add up to the row, and the handlers make them of the items now."""
        return self.adds_up and not self.outdated

    @property
    def adds_up(self) -> bool:
        """Whether the contributions add up to the row."""
        return not (self.differing or self.lacking or self.unseen) and self.counts_agree

    @property
    def counts_agree(self) -> bool:
        """Whether the row counts its contributions. It may count more if retired handlers left attributes in it."""
        known = len(self.contributors)
        return self.counted_in_time >= known if self.retired_names else self.counted_in_time == known


RetiredAttributes = Sequence[tuple[Key, frozenset[str]]]


def retired_attributes(routes: Iterable[Route], schema: Schema) -> RetiredAttributes:
    """The attributes that retired handlers left in rows and that no other handler makes, by target."""
    targets = dict.fromkeys(target for route in routes for target in route.into)
    return [(target, names) for target in targets if (names := schema.retired_names(target))]


def retired_in(attributes: RetiredAttributes, row: RowKey) -> frozenset[str]:
    return frozenset().union(*(names for target, names in attributes if target.takes(row)))


def row_routes(by: Explaining, row: RowKey) -> list[Route]:
    """The handlers that may contribute to a row."""
    return [route for route in by.app.routes if route.kind.contributes and row_target(route, row) is not None]


def explain_row(by: Explaining, row: RowKey, *, scan: bool) -> RowExplained:
    """Finds the contributions to a row. ``scan``: reads all of the state if they are not found otherwise."""
    routes = row_routes(by, row)
    stored = by.engine.read_rows([row]).get(row)
    held: HeldContributions = {}
    for route in routes:
        for item in _known_items(by, route, row, stored or {}):
            held[route.name, ledger_key(by.app.name, route.group, item)] = route
    left = retired_in(retired_attributes(routes, by.schema), row) & (stored or {}).keys()
    found = RowExplained(row, stored, in_its_life(stored, _contributors(by, row, held)), retired_names=left)
    if not is_in_state(row) and read_manifest(by.app.name, by.engine).deltas is not None:
        found.pending = pending_of(by.app.name, by.engine, row)
    owned = all(target.owned for route in routes if (target := row_target(route, row)) is not None)
    if not owned and (stored is None or found.counted_in_time != len(found.contributors)):
        found.complete = scan
        if scan:
            found.contributors = in_its_life(stored, contributors_of(by, [row])[row])
    with localcontext(EXACT):
        _compare(by, found)
        found.outdated = list(_outdated(by, row, found.contributors))
    return found


def _outdated(by: Explaining, row: RowKey, held: Collection[Contributor]) -> Iterator[Contributor]:
    """The contributions to a row that their handlers make otherwise of the items now, or on which they raise.

    The ledger has how values are ordered as the code was that stored them: the row may follow from it, and not from the
    code that readers rely on.
    """
    by_route = groupby(sorted(held, key=lambda each: each.route.name), key=lambda each: each.route)
    known = ((route, (each for each in some if each.item is not None)) for route, some in by_route)
    for route, page in ((route, page) for route, some in known for page in pages(some)):
        images = by.engine.read_sources([item_of(each) for each in page])
        fields = [next((own for one, own in by.app.sources(item_of(each)) if one is route), {}) for each in page]
        asked = [
            Asked(route, item_of(each), image_of(images.get(item_of(each))), own)
            for each, own in zip(page, fields, strict=True)
        ]
        for each, one, found in zip(page, asked, _looked_up(by, route, asked), strict=True):
            made = derived(route, found.image, one.fields, by.schema, found.at)
            stored = {row: each.contribution}
            now = as_stored(stored, {row: made.rows[row]} if row in made.rows else {})
            if found.error or made.error or stored_text(now) != stored_text(stored):
                yield each


def _looked_up(by: Explaining, route: Route, asked: Sequence[Asked]) -> Sequence[LookedUp]:
    if not route.planned_from_ledger:
        return [LookedUp(each.image) for each in asked]
    return look_up(Runtime(by.app, by.engine, Settings()), asked, notes=False)


def row_target(route: Route, row: RowKey) -> Target | None:
    """The target of a row. Derived attributes of an item are a row of the state until they are copied onto the item."""
    stored = derivation(route).stored_attributes(route)
    if stored is None:
        return None if route.kind.touches(route) else route.target_of(row)
    if not is_in_state(row) or not stored.holds(row) or stored.row(stored.item(row)[1:]) != row:
        return None
    return route.target_of(stored.item(row))


def _known_items(by: Explaining, route: Route, row: RowKey, stored: Mapping[str, Any]) -> Iterator[ItemKey]:
    """The items that the row's key or its entries name."""
    target = row_target(route, row)
    if target is not None and target.owned:
        yield from owning_items(route, target, row)
        return
    for name in (each.removeprefix(EDGE) for each in stored if each.startswith(EDGE)):
        where = partition(by.app.name, route.name, name, row, life_of(stored))
        for position, _ in by.engine.read_entries(Entries(where, ENTRIES_MAX)):
            if (item := _item_of(route, position.partition(BEHIND)[2])) is not None:
                yield item


def owning_items(route: Route, target: Target, row: RowKey) -> Iterator[ItemKey]:
    """The items whose keys have the fields of an owned row."""
    stored = derivation(route).stored_attributes(route)
    where = row if stored is None else stored.item(row)
    fields = target.key.match_values(*where[1:]) or {}
    for source in route.sources:
        try:
            yield (source.table.name, *source.compose(fields))
        except KeyValueError:
            continue  # this source cannot have made the row


def _item_of(route: Route, text: str) -> ItemKey | None:
    """The item that an entry names; None if its key was cut."""
    components = source_components(text)
    for source in route.sources:
        if components is not None and components[0] == source.table.name and len(components) == len(source.parts) + 1:
            pairs = zip(source.parts, components[1:], strict=True)
            values = [KEY_READERS[component.attribute_type](text) for component, text in pairs]
            return (components[0], values[0], values[1] if len(values) > 1 else None)
    return None


def rows_that_agree(by: Explaining, rows: Collection[RowKey]) -> set[RowKey]:
    """The rows among these that hold the ledger's contributions in their present lives. Reads all of the state."""
    held, stored = contributors_of(by, rows), by.engine.read_rows(rows)
    agree = set()
    for row in rows:
        left = retired_in(retired_attributes(row_routes(by, row), by.schema), row) & stored.get(row, {}).keys()
        found = RowExplained(row, stored.get(row), in_its_life(stored.get(row), held[row]), retired_names=left)
        with localcontext(EXACT):
            _compare(by, found)
        if found.adds_up:
            agree.add(row)
    return agree


def life_of(stored: Mapping[str, Any] | None) -> str:
    """The life of a stored row; "" if it does not expire."""
    return str((stored or {}).get(LIFE, ""))


def in_its_life(stored: Mapping[str, Any] | None, held: Iterable[Contributor]) -> list[Contributor]:
    """The contributions to a stored row in its present life, without those to a row that expired before."""
    life = life_of(stored)
    return [each for each in held if each.contribution.life == life]


def contributors_of(
    by: Explaining, rows: Collection[RowKey], see: Callable[[StoredItem], None] | None = None
) -> dict[RowKey, list[Contributor]]:
    """The contributions of all items to some rows. Reads all of the state; ``see`` is called with each of its items."""
    routes = {row: row_routes(by, row) for row in rows}
    asked = list({route.name: route for own in routes.values() for route in own}.values())
    held: dict[RowKey, HeldContributions] = {row: {} for row in rows}
    names = {_text_of_key(row) for row in rows} if len(rows) <= NAMES_MAX else {""}
    for stored in by.engine.state_items():
        if see is not None:
            see(stored)
        for route, key, text in _texts(by.app.name, asked, stored):
            # Most texts name none of the rows, and are not parsed.
            named = stored_rows(text).keys() & held.keys() if any(name in text for name in names) else ()
            for row in named:
                held[row][route.name, key] = route
    return {row: list(_contributors(by, row, own)) for row, own in held.items()}


def _text_of_key(row: RowKey) -> str:
    # A text that names the row contains this; every text contains "", for a key that is no text.
    return json.dumps(row[1], ensure_ascii=False)[1:-1] if isinstance(row[1], str) else ""


def _texts(application: str, routes: Iterable[Route], stored: StoredItem) -> Iterator[tuple[Route, StateKey, str]]:
    """The contributions in a state item, each with its ledger item; a large one is in an item of its own."""
    key = state_key(stored)
    for route in routes:
        if is_ledger_key(key, application):
            text = stored.get(f"{route.name}.s", {}).get("S", REFERENCE)
            if not text.startswith(REFERENCE):
                yield route, key, text
        elif (ledger := ledger_of_contribution(key, application, route.name)) is not None:
            yield route, ledger, stored["s"]["S"]


def _contributors(by: Explaining, row: RowKey, held: HeldContributions) -> Iterator[Contributor]:
    for (name, key), route in held.items():
        ledger = read_ledger(by, key)
        stored = ledger.contributions.get(name)
        if stored is not None and (contribution := stored_rows(stored.text).get(row)) is not None:
            source = source_of(key)
            yield Contributor(
                route, source.item if source else None, key, stored.version, contribution, ledger.revision
            )


def _compare(by: Explaining, found: RowExplained) -> None:
    """Adds up the contributions, and notes the attributes that differ from the row and what is pending of it."""
    stored = found.stored_in_time
    found.sums = sums_of(found.contributors)
    found.differing = {
        name: (stored.get(name), total) for name, total in found.sums.items() if not alike(stored.get(name, 0), total)
    }
    if found.complete and not any(each.contribution.digest for each in found.contributors):
        keys = {*row_attributes(by, found.row), *found.retired_names}
        winner = any(PLAIN_ENTRY in each.contribution.ordered for each in found.contributors)
        strange = () if winner else strange_names(keys, stored, found.contributors)
        found.differing |= {name: (stored[name], None) for name in strange}
    if len(found.contributors) == 1 and found.contributors[0].contribution.digest and found.stored is not None:
        _compare_replaced(by, found, found.contributors[0])
    if found.stored is not None and found.complete:
        _compare_entries(by, found, found.stored)


def _compare_entries(by: Explaining, found: RowExplained, stored: Mapping[str, Any]) -> None:
    """Compares the entries below a row with its contributions, and its ordered attributes with these entries."""
    wrong = wrong_entries(by, found.row, stored, found.contributors)
    found.lacking = len(wrong.lacking) + len(wrong.extra)
    try:
        differing = differing_from_entries(by.engine, stored, entries_of_row(by, found.row, found.contributors))
    except HandlerError:  # an aggregate that this code does not have, or more values than a row takes
        return
    differing |= dict(_unfounded(by, found, stored))
    found.differing |= {name: values for name, values in differing.items() if not hidden(name)}
    found.unseen = {name: values for name, values in differing.items() if hidden(name)}


def _unfounded(by: Explaining, found: RowExplained, stored: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The owner, the stamp and the cut-offs of a row that do not follow from its contributions."""
    owner, right = owner_in(stored), ""
    if len(found.contributors) == 1 and found.contributors[0].contribution.digest:
        (only,) = found.contributors
        right = owner_of(by.app.name, only.route, row_target(only.route, found.row), item_of(only))
    if owner and owner != right:  # a row without one is added to
        yield OWNER, (owner, right or None)
    ordered = {name for each in found.contributors for name in each.contribution.ordered} | found.retired_names
    made = {prefix + name for name in ordered for prefix in (EDGE, PLACES)}
    made |= {PLAIN_NAMES} if PLAIN_ENTRY in ordered else set()
    if STAMP not in stored and ordered:
        yield STAMP, (None, "")  # without it no entry is ever shown
    for name, value in stored.items():
        if name.startswith((EDGE, PLACES, PLAIN_NAMES)) and name not in made:
            yield name, (value, None)


def entries_of_row(by: Explaining, row: RowKey, held: Iterable[Contributor]) -> EntriesOfRow:
    """The entries below a row, by attribute, as if all of them had changed. Raises ``EngineError`` for a cut key."""
    found = dict[str, ChangedEntries]()
    for each in held:
        own = entries_by_row(by.app.name, each.route, item_of(each), {row: each.contribution}, contributes=True)
        for one in own.get(row, ()):
            found[one.partition] = found[one.partition].joined(one) if one.partition in found else one
    return tuple(found.values())


def item_of(each: Contributor) -> ItemKey:
    """The item of a contribution. Raises ``EngineError`` if its key is too long for the state to hold."""
    if each.item is None:
        raise EngineError("One of its items has a key that is too long for the state to hold.")
    return each.item


def is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def row_attributes(by: Explaining, row: RowKey) -> tuple[str, ...]:
    """The attributes of a row that no contribution makes: of its key, and two more of a row of the state."""
    if is_in_state(row):
        return (*STATE.attributes, "ttl", "r")
    return tuple(by.app.tables[row[0]].attributes)


def sums_of(held: Iterable[Contributor]) -> dict[str, Number]:
    """The sums of contributions, by attribute. An intermediate sum may need more digits than the row ever had."""
    sums: dict[str, Number] = {}
    for each in held:
        for name, amount in each.contribution.amounts.items():
            sums[name] = WIDE.add(sums.get(name, 0), amount)
    return sums


def strange_names(keys: Collection[str], stored: Mapping[str, Any], held: Collection[Contributor]) -> list[str]:
    """The attributes of a row that none of its contributions makes, but for the winner among several items, whose
    attributes are in its entries. A number 0 is ignored.
    """
    ordered = {name for each in held for name in each.contribution.ordered}
    made = {
        *keys,
        *ordered,
        *(name for each in held for name in (*each.contribution.amounts, *each.contribution.names)),
    }
    return sorted(
        name for name, value in stored.items() if not hidden(name) and name not in made and not is_zero(value)
    )


class WrongEntries(NamedTuple):
    """The entries below a row that do not agree with the contributions."""

    lacking: Sequence[Contributor]  # whose entries are missing, or have other values
    extra: Sequence[StateKey]  # of no contribution


def wrong_entries(
    by: Explaining, row: RowKey, stored: Mapping[str, Any], held: Collection[Contributor]
) -> WrongEntries:
    """Compares the entries below a row with its contributions. Reads all of these entries."""
    names = {name.removeprefix(EDGE) for name in stored if name.startswith(EDGE)}
    names |= {name for each in held for name in each.contribution.ordered}
    lives = {each.contribution.life for each in held} or {life_of(stored)}
    lacking: dict[tuple[str, StateKey], Contributor] = {}
    extra: list[StateKey] = []
    for route, name, life in product(row_routes(by, row), sorted(names), sorted(lives)):
        where = partition(by.app.name, route.name, name, row, life)
        grace = GRACE_SECONDS if not is_in_state(row) and name == by.app.tables[row[0]].ttl else 0
        found = dict(entries_in(partial(page_of_entries, by.engine, where)))
        own = [each for each in held if each.route is route and name in each.contribution.ordered]
        for each, item in ((each, each.item) for each in own if each.item is not None):
            texts = (
                (order, entry, found.pop(sort_key_of(order, source_text(item)), None))
                for order, entry in each.contribution.ordered[name].entries.items()
            )
            # Each entry is taken out of the found ones, whether another one is wrong or not.
            right = [text is not None and is_entry_text(order, entry, text, grace) for order, entry, text in texts]
            if not all(right):
                lacking[each.route.name, each.key] = each
        extra += [StateKey(where, position) for position in found]
    return WrongEntries([*lacking.values()], extra)


def _compare_replaced(by: Explaining, found: RowExplained, only: Contributor) -> None:
    """Compares a replaced row with the row that the handler makes of its item, if the state agrees with the item."""
    stored, item = found.stored or {}, only.item
    target = row_target(only.route, found.row)
    if item is None or target is None or not target.replaces:
        return
    made = next(each for each in explain_item(by, item) if each.route is only.route).expected.get(found.row)
    if made is None or made.digest != only.contribution.digest:
        return
    expected = decode(encode({**(made.plain or {}), **made.amounts}))
    shown = {name: value for name, value in stored.items() if not hidden(name)}
    names = {*expected, *shown} - {*row_attributes(by, found.row)}
    for name in sorted(names):
        if (name in shown) != (name in expected) or not alike(shown.get(name), expected.get(name)):
            found.differing[name] = (shown.get(name), expected.get(name))
