"""The rows that changes have to lead to, told from the declarations alone: what proofs compare with.

Views and indexes are the fold of the last image of every item, an audit has one row per change, ``on`` takes every
change once. Nothing of the planner, the ledger or a store is used: two pages that can be read beside the declarations.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import DecimalException, localcontext
from typing import Any

from streamfold.app import App
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import History, Values
from streamfold.engines import StoredItem
from streamfold.errors import parts_text
from streamfold.keys.table import CONTRIBUTORS
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import hidden
from streamfold.records.values import DIGITS_MAX, EXACT, encode
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Fields, Route
from streamfold.testing.errors import HandlerFails
from streamfold.testing.folds import claimed_row, folded_row
from streamfold.testing.handlers import told
from streamfold.writes.guarded import RowKey

ExpectedRows = dict[RowKey, dict[str, Any]]
"""Derived rows by key: attribute names to DynamoDB attribute values, without key attributes and numbers that are 0."""


def expected_rows(app: App, changes: Iterable[Change]) -> ExpectedRows:
    """The rows after these changes, each of which counts once however often it is given."""
    return _expected(app, changes)[0]


def expected_all(app: App, changes: Sequence[Change]) -> ExpectedRows:
    """The rows after these changes, and what lies outside of the store then, beside them under keys of its own."""
    rows, outside = _expected(app, changes)
    return rows | outside


def _expected(app: App, changes: Iterable[Change]) -> tuple[ExpectedRows, ExpectedRows]:
    rows: dict[RowKey, Values] = {}
    outside: dict[RowKey, Values] = {}
    with localcontext(EXACT):
        history = history_of(changes)
        folded = folded_rows(app, history.items)
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
        rows = {key: _shown(row) for key, row in derivation(route).as_read(route, rows, stored, history).items()}
    return rows


def outside_rows(app: App, place: Any) -> ExpectedRows:
    """What lies in a place outside of the store, in the same form."""
    found: dict[RowKey, Values] = {}
    for route in app.routes:
        found |= derivation(route).found_outside(route, place)
    return _all_shown(found)


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
    shares: dict[RowKey, list[tuple[str, Any, Values]]] = defaultdict(list)
    claims: dict[RowKey, list[tuple[str, Any, Values]]] = defaultdict(list)
    ranked: dict[RowKey, Any] = {}
    rows: dict[RowKey, Values] = {}
    history = History((), items, called)
    for route in app.routes:
        if route.kind.contributes:
            expected = derivation(route).expected(route, history)
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
            f"row {parts_text(key[1:])}: what its sources yield adds up to a number that {DIGITS_MAX} digits do not "
            f"hold exactly ({type(error).__name__}), the most that DynamoDB stores: the record that comes last would "
            "fail for ever. Round what is added, value.quantize(Decimal('0.01')), or keep amounts apart that differ so "
            "far."
        ) from error


def called(route: Route, subject: Any, fields: Fields, item: ItemKey) -> list[Any]:
    assert route.function is not None
    try:
        return list(each_effect(route.name, route.function(subject, **route.asked(fields))))
    except Exception as error:
        raise HandlerFails(told(route, parts_text(item[1:]), error)) from error


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """0 and absent are alike, and the framework's own attributes are nobody's business."""
    return {name: value for name, value in row.items() if value != {"N": "0"} and not hidden(name)}
