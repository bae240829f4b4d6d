"""Verifies rows that are not sums: feeds, derived attributes, newest rows of histories; and verifies exports."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from streamfold.batch.manifest import read_manifest
from streamfold.batch.process import check_application
from streamfold.commit.outcome import explained
from streamfold.derivations.attributes.write_back import Own, pending_update, shown_by, stored_on
from streamfold.derivations.audit.history import item_now, newest_is_damaged
from streamfold.derivations.audit.kind import audit_routes, plain_row, recorded_of
from streamfold.derivations.derivation import derivation, passes_over
from streamfold.derivations.feed.kind import (
    FUTURE_SECONDS_MAX,
    options_of,
    position_prefix,
    post_seconds,
    sort_position_from,
)
from streamfold.derivations.feed.posts import EDGES, NEVER, POSTS, PostAndEdge, Sided, StoredCopies, StoredCopy, made
from streamfold.derivations.feed.spreading import EDGE, UNTIL, pull_key
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.protocol import Entries, StoredItem
from streamfold.errors import ItemFault, SettingsError
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS, DERIVED, STATE, is_writers
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.lifecycle.exports import Export
from streamfold.lifecycle.page import ItemFailed, Pages
from streamfold.lifecycle.rows import (
    ACTIONS,
    FOLDS_MAX,
    RowDifference,
    RowsVerifier,
    ShownRow,
    VerifiedRows,
    verified_routes,
)
from streamfold.lifecycle.sources import LOCAL_SEGMENTS, PAGE_ITEMS, ItemKeys, pages, scanned, source_tables
from streamfold.lifecycle.verify import Verified, Verifier, idle_backlinks, stable
from streamfold.records.change import ItemKey, image_of, item_key, item_name
from streamfold.records.images import hidden, without_derived
from streamfold.records.values import alike, decode, encode
from streamfold.routes.application import Application
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey, StateKey

FULL = "FULL_EXPORT"
LOADED_ITEMS = 2_000
"""Items that are stored in one transaction."""


class Followed(NamedTuple):
    """An edge, and the last post that its reader pulls from the author."""

    edge: StoredCopy
    fields: Fields
    pulled: str | None  # the sort position of the last pulled post; "": all are pulled; None: none is


class FeedRows:
    """Compares the rows of one feed. ``found`` takes the differences, the counts, and the handler's errors.

    moment: of the store, epoch seconds: posts that are too old then are skipped.
    keeps_copies: the store has the state too, whose copies hold posts that are gone.
    """

    def __init__(self, runtime: Runtime, route: Route, moment: float, *, keeps_copies: bool) -> None:
        self.app = runtime.application
        self.engine = runtime.engine
        self.route = route
        self.options = options_of(route)
        (self.into,) = route.into
        self.moment = moment
        self.oldest = moment - self.options.keep_seconds
        self.keeps_copies = keeps_copies
        self.copies = StoredCopies(runtime, route)
        self.found = VerifiedRows()

    def verify(self) -> VerifiedRows:
        """Compares the rows of all posts and edges, and looks for rows without a post or edge."""
        for keys in pages(self._items(EDGES)):
            for followed in self._followed(keys):
                for posts in self._posts(followed):
                    self._compare_posts(followed, posts)
        for keys in pages(scanned(self.engine, self.into.table)):
            self._unfounded(keys)
        return self.found

    def _items(self, side: str) -> Iterator[ItemKey]:
        for key in scanned(self.engine, self.copies.key_of(side).table):
            if self._is_of(side, key):
                yield key

    def _is_of(self, side: str, item: ItemKey) -> bool:
        """Whether changes of an item reach the feed as a post or an edge."""
        key = self.copies.key_of(side)
        reached = any(each.route.name == self.route.name for each, _ in self.app.listeners(item))
        return reached and item[0] == key.table.name and key.match_values(*item[1:]) is not None

    def _followed(self, keys: Sequence[ItemKey]) -> Iterator[Followed]:
        stored = self.engine.read_sources(keys)
        for key in keys:
            if (edge := _copy_of(key, stored.get(key))) is not None:
                fields = self.copies.fields_of(EDGES, key)
                yield Followed(edge, fields, self._pulled_to(fields))

    def _pulled_to(self, fields: Fields) -> str | None:
        if self.options.pull_above is None:
            return None
        key = pull_key(self.route, fields)
        row = self.engine.read_rows([key]).get(key, {})
        return str(row.get(UNTIL, "")) if row.get(CONTRIBUTORS) and EDGE in row else None

    def _posts(self, followed: Followed) -> Iterator[list[StoredCopy]]:
        """The existing posts of the author that are young enough, page by page."""
        key = self.copies.key_of(POSTS)
        partition, begins = key.partition.compose(followed.fields), position_prefix(key, self.options.order)
        after: Any = sort_position_from(key, self.options.order, self.oldest - 1)
        while after is not None:
            page = self.engine.page(key.table, partition, begins, after, PAGE_ITEMS)
            posts = (_copy_of(_key_of(key, item), item) for item in page.items)
            yield [post for post in posts if post is not None and self._is_judged(post, followed)]
            after = page.after

    def _is_judged(self, post: StoredCopy, followed: Followed) -> bool:
        """Whether a post is pushed to a reader: not too old, not pulled, and not of the future."""
        if passes_over(self.route, post.raw):
            return False
        if not self._is_of(POSTS, post.item) or _is_pulled(str(post.item[2]), followed.pulled):
            return False
        seconds = post_seconds(self.route, self.copies.fields_of(POSTS, post.item))
        return self.oldest <= seconds <= self.moment + FUTURE_SECONDS_MAX

    def _compare_posts(self, followed: Followed, posts: Sequence[StoredCopy]) -> None:
        wanted: dict[RowKey, tuple[StoredCopy, ShownRow | None]] = {}
        for post in posts:
            with ItemFault() as fault:
                put = made(self.route, PostAndEdge(post, followed.edge), fresh=False)
            if fault.error is not None:
                self.found.failed.append(ItemFailed(post.item, self.route.name, explained(self.route, fault.error)))
                continue
            values = None if put.attributes is None else decode(encode(dict(put.attributes)))
            wanted[put.key] = post, None if values is None else self._visible(values)
        stored = self.engine.read_rows(wanted)
        for row, (post, expected) in wanted.items():
            shown = self._shown(stored.get(row))
            self.found.rows += shown is not None or expected is not None
            if not alike(shown, expected) and not (shown is None and self._fell_behind(post)):
                self.found.different.append(RowDifference(row, shown, expected))

    def _fell_behind(self, post: StoredCopy) -> bool:
        """Whether a follow may have left out a post behind newer ones, also behind those that only the state knows."""
        position, most = str(post.item[2]), self.options.most
        sided = Sided(POSTS, post.item, self.copies.fields_of(POSTS, post.item))
        if self.keeps_copies:
            partition = self.copies.partition(POSTS, sided.fields)
            return len(self.copies.page(POSTS, partition, Entries("", most, position))) >= most
        key = self.copies.key_of(POSTS)
        begins = position_prefix(key, self.options.order)
        newer = self.engine.page(key.table, key.partition.compose(sided.fields), begins, position, most)
        return len(newer.items) >= most

    def _unfounded(self, keys: Sequence[ItemKey]) -> None:
        """Finds rows that are shown although their post or edge is gone."""
        stored = self.engine.read_rows([key for key in keys if self.into.match_values(*key[1:]) is not None])
        rows = {row: fields for row in stored if (fields := self.into.match_values(*row[1:])) is not None}
        items = {row: [self._composed(side, fields) for side in (POSTS, EDGES)] for row, fields in rows.items()}
        stored_items = self.engine.read_rows(dict.fromkeys(item for both in items.values() for item in both))
        for row, (post, edge) in items.items():
            lacks_post, lacks_edge = (
                stored_items.get(item, {CONTRIBUTORS: 0}).get(CONTRIBUTORS) == 0
                or not self._is_of(side, item)
                or (side == POSTS and passes_over(self.route, stored_items[item]))
                for side, item in ((POSTS, post), (EDGES, edge))
            )
            if not (lacks_post or (lacks_edge and not self.options.keeps)):
                continue
            shown = self._shown(stored[row])
            if shown is None or post_seconds(self.route, rows[row]) < self.oldest or self._has_expired(stored[row]):
                continue
            if not _is_pulled(str(post[2]), self._pulled_to(rows[row])):
                self.found.rows += 1
                self.found.different.append(RowDifference(row, shown, None))

    def _composed(self, side: str, fields: Fields) -> ItemKey:
        key = self.copies.key_of(side)
        return (key.table.name, *key.compose(fields))

    def _shown(self, row: ShownRow | None) -> ShownRow | None:
        # Readers see no attributes of the framework, and no row without contributors.
        return None if row is None or is_writers(row) or row.get(CONTRIBUTORS) == 0 else self._visible(row)

    def _has_expired(self, row: ShownRow) -> bool:
        # Readers skip a row that is past its own expiry, before DynamoDB removes it.
        expires = row.get(str(self.into.table.ttl))
        return isinstance(expires, int | Decimal) and expires < self.moment

    def _visible(self, row: ShownRow) -> ShownRow:
        return shown_in_feed(self.route, row)


def shown_in_feed(route: Route, row: ShownRow) -> ShownRow:
    """The attributes of a feed's row that its readers see."""
    (into,) = route.into
    own = {*into.table.attributes, str(into.table.ttl)}
    return {name: value for name, value in row.items() if name not in own and not hidden(name)}


def made_of_both(route: Route, items: Sequence[ItemKey], images: Sequence[StoredItem | None]) -> ShownRow | None:
    """What readers see of the row that a feed makes of a post and an edge; None if it makes none, or raises."""
    post, edge = (_copy_of(item, image) for item, image in zip(items, images, strict=True))
    if post is None or edge is None:
        return None
    with ItemFault() as fault:
        put = made(route, PostAndEdge(post, edge), fresh=False)
    if fault.error is not None or put.attributes is None:
        return None
    return shown_in_feed(route, decode(encode(dict(put.attributes))))


def differing_attributes(shown: ShownRow, expected: ShownRow | None) -> dict[str, tuple[Any, Any]]:
    """The attributes that differ, each as it is shown and as it is expected."""
    right = expected or {}
    names = sorted(name for name in {*shown, *right} if not alike(shown.get(name), right.get(name)))
    return {name: (shown.get(name), right.get(name)) for name in names}


def _copy_of(item: ItemKey, stored: StoredItem | None) -> StoredCopy | None:
    # A feed copies no item that is gone, and none that holds derived attributes alone.
    return StoredCopy(NEVER, item, dict(stored), gone=False) if stored and image_of(stored) else None


def _key_of(key: Key, stored: StoredItem) -> ItemKey:
    return item_key({name: stored[name] for name in key.table.attributes}, key.table)


def _is_pulled(position: str, pulled: str | None) -> bool:
    return pulled is not None and (not pulled or position <= pulled)


def is_compared(app: Application, route: Route) -> bool:
    """Whether the rows of a handler are compared by this module, one by one."""
    return derivation(route).joins_items or _is_on_items(route) or _is_history(app, route)


def _is_on_items(route: Route) -> bool:
    return route.kind.contributes and bool(route.kind.touches(route))


def _is_history(app: Application, route: Route) -> bool:
    """Whether a handler keeps a row for each change, and the rows of an item together."""
    return route in audit_routes(app) and not any(
        field.name == "version" for target in route.into for field in target.partition.fields
    )


class OtherRows:
    """Compares rows that are not sums. ``live``: others write meanwhile, so that a difference is compared again."""

    def __init__(self, runtime: Runtime, *, live: bool, tolerance_seconds: float = 0) -> None:
        self.runtime = runtime
        self.app = app = runtime.application
        self.engine = runtime.engine
        self.live = live
        self.tolerance_seconds = tolerance_seconds
        self.own = Own(app.name, frozenset(route.name for route in app.routes), app.retired)
        self.manifest = read_manifest(app.name, self.engine)

    def verify(self, routes: Iterable[Route]) -> VerifiedRows:
        """Compares the rows of some handlers, again while differing rows change."""
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
        """The differences that were equal twice, and the number of rows that kept changing."""
        found = look()

        def again(_: Mapping[RowKey, RowDifference]) -> Mapping[RowKey, RowDifference]:
            nonlocal found
            found = look()
            return {each.row: each for each in found.different}

        if self.live:
            suspected = {each.row: each for each in found.different}
            same, moving = stable(
                self.runtime, suspected, again, looks_max=FOLDS_MAX, tolerance_seconds=self.tolerance_seconds
            )
            found.different, found.moving = same, len(moving)
        return found

    def _feed(self, route: Route) -> VerifiedRows:
        return FeedRows(self.runtime, route, self.runtime.item_clock, keeps_copies=True).verify()

    def _attributes(self, route: Route) -> VerifiedRows:
        """Compares the items that attributes are derived onto with the stored attributes of all handlers."""
        (target,), found = route.kind.touches(route), VerifiedRows()
        for keys in pages(scanned(self.engine, target.table)):
            own = [key for key in keys if target.match_values(*key[1:]) is not None]
            found.rows += len(own)
            found.different += self._attributes_of(own) if own else ()
        return found

    def _attributes_of(self, keys: Sequence[ItemKey]) -> Iterator[RowDifference]:
        items = self.engine.read_rows(keys)
        rows_of = {key: {each.whose: each.row(key[1:]) for each in stored_on(self.app, key)} for key in keys}
        rows = self.engine.read_rows([row for by_handler in rows_of.values() for row in by_handler.values()])
        for key, by_handler in rows_of.items():
            shown = {whose: shown_by(rows.get(row)) for whose, row in by_handler.items()}
            pending = pending_update(self.own, key, items.get(key), shown)
            if pending.update is not None or pending.writers:
                values, removed = (
                    ({}, ()) if pending.update is None else (pending.update.values, pending.update.removed)
                )
                expected = {name: value for name, value in {**values, **pending.writers}.items() if name != DERIVED}
                names = {*expected, *removed} & items[key].keys()
                yield RowDifference(key, {name: items[key][name] for name in names - {DERIVED}}, expected)

    def _histories(self, route: Route) -> VerifiedRows:
        """Compares the items of an audit with the newest rows of their histories."""
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
        # An expiring history may have lost all of its rows, and a partial history lacks items that are older than it.
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
    """The difference between an item and the newest row of its history; None if they agree."""
    names = app.tables[key[0]].attributes
    image = decode({"M": without_derived(image_of(stored).raw)})
    item = {name: value for name, value in image.items() if name not in names and not hidden(name)}
    known = item_now(history, {})
    if not known.exists:
        return RowDifference(key, None, item)
    if newest_is_damaged(history):
        return RowDifference(key, {}, item)
    recorded = {name: value for name, value in (known.item or {}).items() if name not in names}
    is_whole = known.whole and known.fields is None and not known.redacted and not known.large
    expected = item if is_whole else {name: value for name, value in item.items() if name in recorded}
    return None if alike(recorded, expected) else RowDifference(key, recorded, expected)


@dataclass(frozen=True, slots=True)
class VerifiedExports:
    """The result of a comparison of exports."""

    time: str  # of the exports, as their summaries have it
    rows: VerifiedRows
    items: Verified | None  # None without an export of the state


def exported_routes(routes: Iterable[Route]) -> list[Route]:
    """The routes whose rows follow from exports alone: of handlers that contribute to rows, and of feeds."""
    return [route for route in routes if route.kind.contributes or derivation(route).joins_items]


def _joining(routes: Iterable[Route]) -> list[Route]:
    return [route for route in routes if derivation(route).joins_items]


def check_exports(app: Application, routes: Sequence[Route], exports: Mapping[str, Export]) -> str:
    """The time of the exports, by the names of their tables.

    Raises ``SettingsError`` for an export that is not full, for different times, and for a missing table.
    """
    for export in exports.values():
        if (found := export.summary.get("exportType", FULL)) != FULL:
            raise SettingsError(f"Export {export.location} is {found}: expected {FULL}, with all items of one moment.")
    times = {str(export.summary.get("exportTime", "")) for export in exports.values()}
    if len(times) > 1:
        raise SettingsError(f"The exports are of different times, {' and '.join(sorted(times))}: expected one moment.")
    folded = [*verified_routes(app, routes), *_joining(routes)]
    wanted = {table.name for table in source_tables(folded)}
    wanted |= {key.table.name for route in folded for key in route.into if key.table.name != STATE.name}
    wanted |= {each.key.table.name for route in folded for each in route.lookups}
    if missing := wanted - exports.keys():
        raise SettingsError(
            f"The handlers read, write or look up table {', '.join(sorted(missing))}, of which there is no export: "
            "give --export NAME=MANIFEST for each."
        )
    return times.pop()


@contextmanager
def loaded(app: Application, exports: Mapping[str, Export]) -> Iterator[EmbeddedEngine]:
    """A temporary state with the items of the exports."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "exports.db")
        with closing(EmbeddedEngine(app.tables.values(), path, actions_max=ACTIONS)) as engine:
            for name, export in exports.items():
                _load(engine, export, is_state=name == STATE.name)
            yield engine


def _load(engine: EmbeddedEngine, export: Export, *, is_state: bool) -> None:
    if is_state:
        for line in export.lines():
            attributes = {name: decode(value) for name, value in (line.image or {}).items()}
            key = StateKey(attributes.pop("pk"), attributes.pop("sk"))
            engine.swap_state(key, {name: value for name, value in attributes.items() if name != "r"}, 0)
        return
    lines = export.lines()
    while page := list(islice(lines, LOADED_ITEMS)):
        engine.put_sources((line.key, line.image, BEFORE_ALL) for line in page if line.image)


def verify_exports(
    app: Application,
    settings: Settings,
    routes: Sequence[Route],
    exports: Mapping[str, Export],
    warn: Callable[[str], None] = lambda _: None,
) -> VerifiedExports:
    """Compares rows with the sums of their sources, and with an export of the state each contribution with its source.

    Rows of feeds are compared with the rows that their posts and edges make, one by one.

    Raises ``SettingsError`` as ``check_exports``, and for unreadable exports, and ``ManifestError`` if the state is of
    other code.
    """
    time = check_exports(app, routes, exports)
    with loaded(app, exports) as engine:
        runtime = Runtime(app, engine, settings, warn=warn)
        if STATE.name in exports:
            check_application(runtime, write=False)  # learns the attributes that retired handlers left in rows
        rows = RowsVerifier(runtime, routes, live=False, has_state=STATE.name in exports).verify()
        moment = datetime.fromisoformat(time).timestamp() if time else runtime.clock()
        for route in _joining(routes):
            by = FeedRows(runtime, route, moment, keeps_copies=STATE.name in exports)
            rows.add(by.verify())
        items = _verified(runtime, routes) if STATE.name in exports else None
    return VerifiedExports(time, rows, items)


def _verified(runtime: Runtime, routes: Sequence[Route]) -> Verified:
    known = [route for route in routes if route.kind.contributes]
    verifier = Verifier(Pages(runtime, {route.name for route in known}, dry_run=True), 0)
    for page in pages(ItemKeys(runtime.application, runtime.engine, known, LOCAL_SEGMENTS).all()):
        verifier.page(page)
    verifier.found.idle_backlinks = idle_backlinks(runtime, known)
    return verifier.found
