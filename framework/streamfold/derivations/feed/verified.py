"""The rows of a feed that should exist, and what they are made of: compared, corrected and explained.

For a correction the items behind a row are reconciled first, so that the stored copies agree with the table. A row that
still differs is newer than both items: its post or its edge was lost without a record, as by a restore. It is removed
as it was read, and both items are reconciled once more: if both exist by then, the row is written again.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from streamfold.commit.outcome import explained
from streamfold.commit.transactions import writers_own
from streamfold.derivations.derivation import passes_over
from streamfold.derivations.expected import (
    BUSY,
    Comparison,
    ExplainedRow,
    ItemFailed,
    MadeOf,
    RowDifference,
    ShownRow,
    VerifiedRows,
    differing_attributes,
)
from streamfold.derivations.feed.options import (
    FUTURE_SECONDS_MAX,
    options_of,
    position_prefix,
    post_seconds,
    sort_position_from,
)
from streamfold.derivations.feed.posts import EDGES, NEVER, POSTS, PostAndEdge, Sided, StoredCopies, StoredCopy, made
from streamfold.derivations.feed.spreading import EDGE, UNTIL, pull_key
from streamfold.engines.protocol import Engine, Entries, StoredItem
from streamfold.errors import EngineError, HandlerError, ItemFault
from streamfold.keys.table import CONTRIBUTORS, PARTNER_VERSION, VERSION, is_writers
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.records.change import ItemKey, image_of, item_key
from streamfold.records.images import hidden
from streamfold.records.values import alike, decode, encode
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import DeleteSource, RowKey

POSTS_A_PAGE = 500
"""Posts of an author that are read at once."""


class FeedRows:
    """The rows of one feed."""

    def __init__(self, route: Route) -> None:
        self.route = route

    def compared(self, comparing: Comparison) -> VerifiedRows:
        return _Comparison(comparing, self.route).verify()

    def correct(self, rows: Sequence[RowKey], comparing: Comparison) -> dict[RowKey, str]:
        """Reconciles the items behind the rows, removes rows that are newer than these, and compares again."""
        sides = {row: self.sides(row) for row in rows}
        comparing.reconcile(item for both in sides.values() for item in both)
        remaining: dict[RowKey, str] = {}
        newer = [row for row in comparing.differing() if row in sides]
        for row in newer:
            try:
                _remove(comparing.runtime, row)
            except (EngineError, HandlerError) as error:
                remaining[row] = str(error)
        comparing.reconcile(item for row in newer for item in sides[row])
        return dict.fromkeys(comparing.differing() if newer else (), BUSY) | remaining

    def explained(self, row: RowKey, engine: Engine) -> ExplainedRow:
        route, options, items = self.route, options_of(self.route), self.sides(row)
        stored = engine.read_rows([row]).get(row)
        images = [engine.read_source(item) for item in items]
        versions = [(stored or {}).get(name) for name in (VERSION, PARTNER_VERSION)]
        post, edge = (
            MadeOf(role, item, version, bool(image_of(image)))
            for role, item, version, image in zip(("post", "edge"), items, versions, images, strict=True)
        )
        differing = {}
        if stored and post.exists and edge.exists:
            differing = differing_attributes(shown_in_feed(route, stored), made_of_both(route, items, images))
        is_complete = stored is None or options.keeps or (post.exists and edge.exists)
        pulls = options.pull_above is not None
        return ExplainedRow(route, row, stored is not None, (post, edge), is_complete, differing, pulls)

    def sides(self, row: RowKey) -> tuple[ItemKey, ItemKey]:
        fields = self.route.into[0].match_values(*row[1:]) or {}
        post, edge = (
            (key.table.name, *key.compose(fields)) for key in (self.route.sources[0], options_of(self.route).audience)
        )
        return post, edge


def _remove(runtime: Runtime, row: RowKey) -> None:
    """Removes a row as it is now. If both items exist by then, the reconciliation behind it makes the row again."""
    stored = runtime.engine.read_source(row)
    if stored is None:
        return
    if is_writers(stored):
        raise EngineError(writers_own(row))
    if runtime.engine.transact([DeleteSource(row, stored, BEFORE_ALL)], runtime.expires_at) is not None:
        raise EngineError(BUSY)


class Followed(NamedTuple):
    """An edge, and the last post that its reader pulls from the author."""

    edge: StoredCopy
    fields: Fields
    pulled: str | None  # the sort position of the last pulled post; "": all are pulled; None: none is


class _Comparison:
    """Compares the rows of one feed. ``found`` takes the differences, the counts, and the handler's errors.

    Posts that are too old at the moment of the store are skipped. A state has stored copies of posts that are gone.
    """

    def __init__(self, comparing: Comparison, route: Route) -> None:
        self.comparing = comparing
        self.engine = comparing.runtime.engine
        self.route = route
        self.options = options_of(route)
        (self.into,) = route.into
        self.oldest = comparing.moment - self.options.keep_seconds
        self.copies = StoredCopies(comparing.runtime, route)
        self.found = VerifiedRows()

    def verify(self) -> VerifiedRows:
        """Compares the rows of all posts and edges, and looks for rows without a post or edge."""
        for keys in self.comparing.keys(self.copies.key_of(EDGES).table, partial(self._is_of, EDGES)):
            for followed in self._followed(keys):
                for posts in self._posts(followed):
                    self._compare_posts(followed, posts)
        for keys in self.comparing.keys(self.into.table, lambda _: True):
            self._unfounded(keys)
        return self.found

    def _is_of(self, side: str, item: ItemKey) -> bool:
        """Whether changes of an item reach the feed as a post or an edge."""
        key, application = self.copies.key_of(side), self.comparing.runtime.application
        reached = any(each.route.name == self.route.name for each, _ in application.listeners(item))
        return reached and key.takes(item)

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
            page = self.engine.page(key.table, partition, begins, after, POSTS_A_PAGE)
            posts = (
                _copy_of(item_key({name: item[name] for name in key.table.attributes}, key.table), item)
                for item in page.items
            )
            yield [post for post in posts if post is not None and self._is_judged(post, followed)]
            after = page.after

    def _is_judged(self, post: StoredCopy, followed: Followed) -> bool:
        """Whether a post is pushed to a reader: not too old, not pulled, and not of the future."""
        if passes_over(self.route, post.raw):
            return False
        if not self._is_of(POSTS, post.item) or _is_pulled(str(post.item[2]), followed.pulled):
            return False
        seconds = post_seconds(self.route, self.copies.fields_of(POSTS, post.item))
        return self.oldest <= seconds <= self.comparing.moment + FUTURE_SECONDS_MAX

    def _compare_posts(self, followed: Followed, posts: Sequence[StoredCopy]) -> None:
        wanted: dict[RowKey, tuple[StoredCopy, ShownRow | None]] = {}
        for post in posts:
            with ItemFault() as fault:
                put = made(self.route, PostAndEdge(post, followed.edge), fresh=False)
            if fault.error is not None:
                self.found.failed.append(ItemFailed(post.item, self.route.name, explained(self.route, fault.error)))
                continue
            values = None if put.attributes is None else decode(encode(dict(put.attributes)))
            wanted[put.key] = post, None if values is None else shown_in_feed(self.route, values)
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
        if self.comparing.has_state:
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
        return None if row is None or is_writers(row) or row.get(CONTRIBUTORS) == 0 else shown_in_feed(self.route, row)

    def _has_expired(self, row: ShownRow) -> bool:
        # Readers skip a row that is past its own expiry, before DynamoDB removes it.
        expires = row.get(str(self.into.table.ttl))
        return isinstance(expires, int | Decimal) and expires < self.comparing.moment


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


def _copy_of(item: ItemKey, stored: StoredItem | None) -> StoredCopy | None:
    # A feed copies no item that is gone, and none that holds derived attributes alone.
    return StoredCopy(NEVER, item, dict(stored), gone=False) if stored and image_of(stored) else None


def _is_pulled(position: str, pulled: str | None) -> bool:
    return pulled is not None and (not pulled or position <= pulled)
