"""Rows that are no sums: those of feeds, attributes that are derived onto items, and the newest row of each history.

What differs on a live system is looked at again. It counts only if the same rows differ then in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from streamfold.batch.manifest import read_manifest
from streamfold.derivations.attributes.bearing import Own, due, shown_by
from streamfold.derivations.attributes.write_back import stored_on
from streamfold.derivations.audit.as_of import item_now, newest_is_damaged
from streamfold.derivations.audit.kind import audit_routes
from streamfold.derivations.audit.options import plain_row, recorded_of
from streamfold.derivations.derivation import derivation
from streamfold.engines import Engine
from streamfold.keys.table import DERIVED
from streamfold.lifecycle.checks import source_tables
from streamfold.lifecycle.feed_rows import FeedRows
from streamfold.lifecycle.keys import pages, scanned
from streamfold.lifecycle.rows import FOLDS_MAX, RowDifference, VerifiedRows
from streamfold.records.alike import alike
from streamfold.records.change import ItemKey, image_of
from streamfold.records.images import hidden, without_derived
from streamfold.records.item_names import item_name
from streamfold.records.values import decode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run


def is_compared(app: Application, route: Route) -> bool:
    """Whether rows of a handler are compared here, one by one."""
    return derivation(route).joins_items or _is_on_items(route) or _is_history(app, route)


def _is_on_items(route: Route) -> bool:
    return route.kind.contributes and bool(route.kind.touches(route))


def _is_history(app: Application, route: Route) -> bool:
    """Whether a handler keeps a row for each change, those of an item together."""
    return route in audit_routes(app) and not any(
        field.name == "version" for target in route.into for field in target.partition.fields
    )


class OtherRows:
    """Compares rows that are no sums. ``live``: others write meanwhile, so that a difference is looked at again."""

    def __init__(self, app: Application, engine: Engine, run: Run, *, live: bool, tolerance_seconds: float = 0) -> None:
        self.app = app
        self.engine = engine
        self.run = run
        self.live = live
        self.tolerance_seconds = tolerance_seconds
        self.own = Own(app.name, frozenset(route.name for route in app.routes), app.retired)
        self.manifest = read_manifest(app.name, engine)

    def verify(self, routes: Iterable[Route]) -> VerifiedRows:
        """Compares the rows of some handlers, again while rows that differ move."""
        found = VerifiedRows()
        for route in routes:
            if derivation(route).joins_items:
                found.add(self._stable(partial(self._feed, route)))
            elif _is_on_items(route):
                found.add(self._stable(partial(self._attributes, route)))
            elif _is_history(self.app, route):
                found.add(self._stable(partial(self._histories, route)))
        return found

    def _stable(self, look: Callable[[], VerifiedRows]) -> VerifiedRows:
        """What differs in the same way whenever it is looked at; the rest is moving."""
        found = look()
        for _ in range(FOLDS_MAX if self.live else 0):
            if not found.different:
                return found
            self.run.wait(self.tolerance_seconds)
            before, found = found.different, look()
            if all(each in before for each in found.different):
                return found
        if self.live:
            found.moving, found.different = len(found.different), []
        return found

    def _feed(self, route: Route) -> VerifiedRows:
        return FeedRows(self.app, self.engine, self.run, route, self.run.clock(), keeps_mirrors=True).verify()

    def _attributes(self, route: Route) -> VerifiedRows:
        """The items that attributes are derived onto, beside the stored attributes of all handlers."""
        (bearer,), found = route.kind.touches(route), VerifiedRows()
        for keys in pages(scanned(self.engine, bearer.table)):
            own = [key for key in keys if bearer.match_values(*key[1:]) is not None]
            found.rows += len(own)
            found.different += self._attributes_of(own) if own else ()
        return found

    def _attributes_of(self, keys: Sequence[ItemKey]) -> Iterator[RowDifference]:
        items = self.engine.read_rows(keys)
        places = {key: {each.whose: each.row(key[1:]) for each in stored_on(self.app, key)} for key in keys}
        rows = self.engine.read_rows([row for by_handler in places.values() for row in by_handler.values()])
        for key, by_handler in places.items():
            shown = {whose: shown_by(rows.get(row)) for whose, row in by_handler.items()}
            update = due(self.own, key, items.get(key), shown).update
            if update is not None:
                expected = {name: value for name, value in update.values.items() if name != DERIVED}
                names = {*expected, *update.removed} & items[key].keys()
                yield RowDifference(key, {name: items[key][name] for name in names - {DERIVED}}, expected)

    def _histories(self, route: Route) -> VerifiedRows:
        """The items of an audit, beside the newest rows of their histories."""
        found = VerifiedRows()
        for table in source_tables([route]):
            for keys in pages(scanned(self.engine, table)):
                own = [key for key in keys if any(each is route for each, _ in self.app.sources(key))]
                found.rows += len(own)
                found.different += self._newest(route, own) if own else ()
        return found

    def _newest(self, route: Route, keys: Sequence[ItemKey]) -> Iterator[RowDifference]:
        histories = {key: self._history(route, key) for key in keys}  # before the items: these may be newer
        items = self.engine.read_sources(keys)
        # Of a history that expires, all rows may be gone, and items may be older than a history that is partial.
        may_lack = recorded_of(route).keep_days is not None or self.manifest.partial_since(route.name) is not None
        for key, history in histories.items():
            if key not in items or (may_lack and not history):
                continue
            if (differing := _compared(key, self.app, history, items[key])) is not None:
                yield differing

    def _history(self, route: Route, key: ItemKey) -> list[Mapping[str, Any]]:
        fields, name = next(fields for each, fields in self.app.sources(key) if each is route), item_name(key)
        target = next((each for each in route.into if each.table.name == key[0]), route.into[0])
        stored = self.engine.items(target.table, target.partition.compose({**fields, "item": name}))
        rows = (plain_row(target, decode({"M": each})) for each in stored)
        return [row for row in rows if row is not None and str(row.get("item")) == name]


def _compared(
    key: ItemKey, app: Application, history: Sequence[Mapping[str, Any]], stored: Mapping[str, Any]
) -> RowDifference | None:
    """What the newest row of a history says of an item otherwise; None where it says the same."""
    names = app.tables[key[0]].attributes
    image = decode({"M": without_derived(image_of(stored).raw)})
    item = {name: value for name, value in image.items() if name not in names and not hidden(name)}
    known = item_now(history, {})
    if not known.exists:
        return RowDifference(key, None, item)
    if newest_is_damaged(history):
        return RowDifference(key, {}, item)
    says = {name: value for name, value in (known.item or {}).items() if name not in names}
    whole = known.whole and known.fields is None and not known.redacted and not known.large
    expected = item if whole else {name: value for name, value in item.items() if name in says}
    return None if alike(says, expected) else RowDifference(key, says, expected)
