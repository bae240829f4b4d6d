"""The rows that changes have to lead to, told from the declarations alone: what proofs compare with.

Views and indexes are the fold of the last image of every item, an audit has one row per change, ``on`` takes every
change once. Nothing of the planner, the ledger or a store is used: two pages that can be read beside the declarations.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import DecimalException, localcontext
from typing import TYPE_CHECKING, Any

from streamfold.app import App
from streamfold.derivations.archive.archives import ArchivedItem, read_archive
from streamfold.derivations.view.shards import SHARD, shard_of
from streamfold.engines import StoredItem
from streamfold.keys.table import CONTRIBUTORS, DERIVED
from streamfold.records.change import Change, ItemKey, item_name
from streamfold.records.values import CANONICAL, DIGITS_MAX, EXACT, Image, decode, encode, hidden, without_derived
from streamfold.routes.effects import Add, Delete, each_effect
from streamfold.routes.route import Route
from streamfold.testing.errors import HandlerFails
from streamfold.testing.folds import claimed_row, folded_row
from streamfold.testing.handlers import told
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.derivations.archive.places import ArchivePlace
    from streamfold.derivations.index.claims import Unique

Fields = Mapping[str, Any]
Values = dict[str, Any]
ExpectedRows = dict[RowKey, dict[str, Any]]
"""Derived rows by key: attribute names to DynamoDB attribute values, without key attributes and numbers that are 0."""


def expected_rows(app: App, changes: Iterable[Change]) -> ExpectedRows:
    """The rows after these changes, each of which counts once however often it is given."""
    items: dict[ItemKey, Mapping[str, Any]] = {}
    rows: dict[RowKey, Values] = {}
    with localcontext(EXACT):
        once = {(change.item, change.identity_text): change for change in changes}
        for change in sorted(once.values(), key=identity):
            items[change.item] = change.new
            for route, fields in routes_for(app, change.item, "audit", "on", "copy"):
                _take(route, change, fields, rows)
        folded = folded_rows(app, items)
    return {key: _shown(encode(row)["M"]) for key, row in {**rows, **folded}.items()}


def stored_rows(app: App, items: Iterable[tuple[RowKey, StoredItem]]) -> ExpectedRows:
    """The derived rows among stored items, as their readers see them, in the same form."""
    rows = {}
    for key, item in items:
        if app.derived(key) and item.get(CONTRIBUTORS) != {"N": "0"}:
            names = app.tables[key[0]].attributes
            rows[key] = _shown({name: value for name, value in item.items() if name not in names})
    return rows


def expected_all(app: App, changes: Sequence[Change]) -> ExpectedRows:
    """The rows after these changes, and what archives keep then, which stands beside them under keys of its own."""
    return expected_rows(app, changes) | _removed_items(app, changes)


def _removed_items(app: App, changes: Iterable[Change]) -> ExpectedRows:
    """The items that archives have to keep: each removed item as it was."""
    kept: ExpectedRows = {}
    archives = any(route.kind == "archive" for route in app.routes)
    for change in changes if archives else ():
        for route, _ in routes_for(app, change.item, "archive") if change.event == "REMOVE" else ():
            item = decode({"M": change.old.raw})
            found = ArchivedItem(change.table.name, item, change.identity_text, change.at, change.expired)
            kept[_kept_key(route.name, found)] = _shown(encode(_kept(found))["M"])
    return kept


def archived_items(app: App, place: "ArchivePlace") -> ExpectedRows:
    """What an archive keeps, as the reader gives it, in the same form; what it gives twice is there twice."""
    found: ExpectedRows = {}
    for route in app.routes:
        for kept in read_archive(place, route.name) if route.kind == "archive" else ():
            key = _kept_key(route.name, kept)
            found[key if key not in found else (*key[:2], f"{key[2]!r} again")] = _shown(encode(_kept(kept))["M"])
    return found


def folded_rows(app: App, items: Mapping[ItemKey, Mapping[str, Any]]) -> dict[RowKey, Values]:
    """What views and indexes make of items, and of the rows that they made."""
    folded = _folded(app, items)
    for _ in app.chained:  # a chain is no longer than it has readers
        before, folded = folded, _folded(app, {**items, **folded})
        if folded == before:
            break
    return folded


def identity(change: Change) -> str:
    return change.identity_text


def _folded(app: App, items: Mapping[Any, Mapping[str, Any]]) -> dict[RowKey, Values]:
    rows: dict[RowKey, list[tuple[str, Any, Values]]] = defaultdict(list)
    unique: dict[RowKey, list[tuple[str, Any, Values]]] = defaultdict(list)
    choices: dict[RowKey, Unique] = {}
    for item, image in items.items():
        for route, fields in routes_for(app, item, "view", "index") if image else ():
            effects = called(route, image, fields, item)
            for effect, (key, values) in zip(effects, placed(route, effects, fields), strict=True):
                source = f"{item[0]}|{item_name(item)}"
                if route.unique:
                    choices[key] = route.unique
                    unique[key].append((source, image[route.unique.by] if route.unique.by else "", values))
                else:
                    rows[key].append((source, effect.wins, values))
    folded = {key: _folded_row(key, yielded) for key, yielded in rows.items()}
    return folded | {key: claimed_row(yielded, choices[key]) for key, yielded in unique.items()}


def _folded_row(key: RowKey, yielded: Sequence[tuple[str, Any, Values]]) -> Values:
    """The row of these sources. Raises ``HandlerFails`` where they add up to a number that no row can hold."""
    try:
        return folded_row(yielded)
    except DecimalException as error:
        raise HandlerFails(
            f"row {_name(key)}: what its sources yield adds up to a number that {DIGITS_MAX} digits do not hold "
            f"exactly ({type(error).__name__}), the most that DynamoDB stores: the record that comes last would fail "
            "for ever. Round what is added, value.quantize(Decimal('0.01')), or keep amounts apart that differ so far."
        ) from error


def _name(key: Sequence[Any]) -> str:
    """An item's or a row's key as messages have it."""
    return " / ".join(str(part) for part in key[1:] if part is not None)


def _take(route: Route, change: Change, fields: Fields, rows: dict[RowKey, Values]) -> None:
    """Adds what one change leads to through an ``audit``, ``on`` or ``copy``."""
    if route.kind == "audit":
        _audit(route, change, fields, rows)
        return
    if route.kind == "copy":
        _copy(route, change, rows)
        return
    own = change.as_written()
    if own is None or not route.takes(own):
        return
    effects = called(route, own, fields, change.item)
    for effect, (key, values) in zip(effects, placed(route, effects, fields), strict=True):
        if isinstance(effect, Add):
            row = rows.setdefault(key, {})
            row.update({name: row.get(name, 0) + amount for name, amount in values.items()})
        elif isinstance(effect, Delete):
            rows.pop(key, None)
        else:
            rows[key] = values


def _kept_key(handler: str, kept: ArchivedItem) -> RowKey:
    """Where an archived item stands among rows: with its table, as it was; its version tells its removals apart."""
    return f"archive {handler}", f"{kept.table} {CANONICAL.encode(encode(kept.item))}", kept.version


def _kept(kept: ArchivedItem) -> Values:
    return {"item": kept.item, "at": kept.at, "expired": kept.expired}


def _copy(route: Route, change: Change, rows: dict[RowKey, Values]) -> None:
    key = (route.into[0].table.name, *change.item[1:])
    rows.pop(key, None)
    if change.new:
        rows[key] = {name: value for name, value in change.new.items() if name not in change.keys}


def _audit(route: Route, change: Change, fields: Fields, rows: dict[RowKey, Values]) -> None:
    """The row of a change whose values are all small; without digests, which need a key.

    A history does not tell of attributes that were derived onto the item.
    """
    if is_ours(change):
        return
    old, new, recorded = Image(without_derived(change.old.raw)), Image(without_derived(change.new.raw)), route.recorded
    shown = [name for name in {*old, *new} if name in change.keys or recorded.shows(name)]
    named = {"item": item_name(change.item), "version": change.identity_among(lambda name: name in shown)}
    row: Values = {**named, "event": change.event, "at": change.at, "changes": {}}
    kept: Values = {}
    for name in {*old, *new} - {*change.keys}:
        if recorded.fields is not None and name not in recorded.fields:
            continue
        changed = (name in old, old.get(name)) != (name in new, new.get(name))
        images = {"old": old, "new": new} if changed else {"value": new}
        sides = {side: image[name] for side, image in images.items() if name in image}
        part = row["changes"] if changed else kept
        part[name] = {"redacted": list(sides)} if name in recorded.redact else sides
    if change.event == "MODIFY" and recorded.unchanged:
        row["unchanged"] = kept
    if change.expired:
        row["expired"] = True
    target = next(key for key in route.into if len(route.into) == 1 or key.table.name == change.item[0])
    row |= _declared(route, change, target.table.ttl)
    own = {name: value for name, value in row.items() if name not in target.table.attributes}
    rows[(target.table.name, *target.compose({**fields, **named}))] = own


def is_ours(change: Change) -> bool:
    """Whether nothing but attributes that were derived onto the item changed."""
    if change.event != "MODIFY" or not (change.has_old and change.has_new):
        return False
    images = [change.old.raw, change.new.raw]
    one, other = (dict(Image(without_derived(image))) for image in images)
    return one == other and any(DERIVED in image for image in images)


def _declared(route: Route, change: Change, ttl: str | None) -> Values:
    """What a row of an audit also holds where the declaration asks for it."""
    recorded = route.recorded
    found: Values = {}
    if recorded.fields is not None:
        found["fields"] = sorted(recorded.fields)
    if recorded.actor is not None and recorded.actor in change.new:
        found["actor"] = change.new[recorded.actor]
    if recorded.keep_days is not None and ttl is not None:
        found[ttl] = int((change.at + timedelta(days=recorded.keep_days)).timestamp())
    return found


def routes_for(app: App, item: ItemKey, *kinds: str) -> Iterator[tuple[Route, Fields]]:
    for route in app.routes:
        if route.kind in kinds and not route.external:
            keys = (key for key in route.sources if key.table.name == item[0])
            matches = (key.match_values(*item[1:]) for key in keys)
            fields = next((match for match in matches if match is not None), None)
            if fields is not None:
                yield route, fields


def called(route: Route, subject: Any, fields: Fields, item: ItemKey) -> list[Any]:
    assert route.function is not None
    try:
        return list(each_effect(route.name, route.function(subject, **route.asked(fields))))
    except Exception as error:
        raise HandlerFails(told(route, _name(item), error)) from error


def placed(route: Route, effects: Iterable[Any], fields: Fields) -> Iterator[tuple[RowKey, Values]]:
    for effect in effects:
        target = effect.target or route.writes[0]
        values = {name: value for name, value in effect.values.items() if name not in target.types}
        shard = {SHARD: shard_of(fields, route.shards)} if route.shards else {}
        key = target.compose({**fields, **shard, **effect.values})
        yield (target.table.name, *key), {**values, **(effect.attributes or {})}


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """0 and absent are alike, and the framework's own attributes are nobody's business."""
    return {name: value for name, value in row.items() if value != {"N": "0"} and not hidden(name)}
