"""Whether the rows of a feed are those of its posts and edges, in a store in which nothing moves.

Each pair of a post and an edge that are there is shown to the handler, and the row that is there compared with what it
makes. Then each row is looked at whose post or edge is gone. Items are read page by page, whatever the size.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.commit.triage import explained
from streamfold.derivations.feed.audience import EDGE, UNTIL, pull_key
from streamfold.derivations.feed.mirrors import EDGES, NEVER, POSTS, Mirror, Mirrors, Sided
from streamfold.derivations.feed.options import FUTURE_SECONDS_MAX, options_of, post_seconds
from streamfold.derivations.feed.order import before_place, place_from
from streamfold.derivations.feed.pairs import Pair, made
from streamfold.engines import Engine, Entries, StoredItem
from streamfold.errors import is_fatal
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS
from streamfold.lifecycle.keys import PAGE_ITEMS, pages, scanned
from streamfold.lifecycle.page_report import ItemFailed
from streamfold.lifecycle.rows import RowDifference, ShownRow, VerifiedRows
from streamfold.records.alike import alike
from streamfold.records.change import ItemKey, image_of, item_key
from streamfold.records.images import hidden
from streamfold.records.values import decode, encode
from streamfold.routes.application import Application
from streamfold.routes.route import Fields, Route
from streamfold.run import Run

if TYPE_CHECKING:
    from streamfold.writes.guarded import RowKey


class Followed(NamedTuple):
    """An edge, and up to which post its reader pulls the author."""

    edge: Mirror
    fields: Fields
    pulled: str | None  # the place of the last post that is pulled; "": all are; None: none is


class FeedRows:
    """Compares the rows of one feed. ``found`` takes what differs, what is counted, and what the handler fails on.

    moment: of the store, epoch seconds: what is too old then is passed over.
    keeps_mirrors: the store has the state too, which tells what was posted and is gone.
    """

    def __init__(
        self, app: Application, engine: Engine, run: Run, route: Route, moment: float, *, keeps_mirrors: bool
    ) -> None:
        self.app = app
        self.engine = engine
        self.route = route
        self.options = options_of(route)
        (self.into,) = route.into
        self.moment = moment
        self.oldest = moment - self.options.keep_seconds
        self.keeps_mirrors = keeps_mirrors
        self.mirrors = Mirrors(app.name, route, engine, run.settings)
        self.found = VerifiedRows()

    def verify(self) -> VerifiedRows:
        """Compares the rows of all pairs, and looks for rows of none."""
        for keys in pages(self._items(EDGES)):
            for followed in self._followed(keys):
                for posts in self._posts(followed):
                    self._pairs(followed, posts)
        for keys in pages(scanned(self.engine, self.into.table)):
            self._unfounded(keys)
        return self.found

    def _items(self, side: str) -> Iterator[ItemKey]:
        for key in scanned(self.engine, self.mirrors.key_of(side).table):
            if self._is_of(side, key):
                yield key

    def _is_of(self, side: str, item: ItemKey) -> bool:
        """Whether changes of an item reach the feed as a post, or as an edge."""
        key = self.mirrors.key_of(side)
        reached = any(each.route.name == self.route.name for each, _ in self.app.listeners(item))
        return reached and item[0] == key.table.name and key.match_values(*item[1:]) is not None

    def _followed(self, keys: Sequence[ItemKey]) -> Iterator[Followed]:
        stored = self.engine.read_sources(keys)
        for key in keys:
            if (edge := _there(key, stored.get(key))) is not None:
                fields = self.mirrors.fields_of(EDGES, key)
                yield Followed(edge, fields, self._pulled_to(fields))

    def _pulled_to(self, fields: Fields) -> str | None:
        if self.options.pull_above is None:
            return None
        key = pull_key(self.route, fields)
        row = self.engine.read_rows([key]).get(key, {})
        return str(row.get(UNTIL, "")) if row.get(CONTRIBUTORS) and EDGE in row else None

    def _posts(self, followed: Followed) -> Iterator[list[Mirror]]:
        """The posts of the author that are there and young enough, page by page."""
        key = self.mirrors.key_of(POSTS)
        partition, begins = key.partition.compose(followed.fields), before_place(key, self.options.order)
        after: Any = place_from(key, self.options.order, self.oldest - 1)
        while after is not None:
            page = self.engine.page(key.table, partition, begins, after, PAGE_ITEMS)
            posts = (_there(_key_of(key, item), item) for item in page.items)
            yield [post for post in posts if post is not None and self._is_judged(post, followed)]
            after = page.after

    def _is_judged(self, post: Mirror, followed: Followed) -> bool:
        """Whether a post is pushed to a reader: neither too old, nor pulled, nor of a time that is to come."""
        if not self._is_of(POSTS, post.item) or _is_pulled(str(post.item[2]), followed.pulled):
            return False
        seconds = post_seconds(self.route, self.mirrors.fields_of(POSTS, post.item))
        return self.oldest <= seconds <= self.moment + FUTURE_SECONDS_MAX

    def _pairs(self, followed: Followed, posts: Sequence[Mirror]) -> None:
        wanted: dict[RowKey, tuple[Mirror, ShownRow | None]] = {}
        for post in posts:
            try:
                put = made(self.route, Pair(post, followed.edge), fresh=False)
            except Exception as error:
                if is_fatal(error):
                    raise
                self.found.failed.append(ItemFailed(post.item, self.route.name, explained(self.route, error)))
                continue
            values = None if put.attributes is None else decode(encode(dict(put.attributes)))
            wanted[put.key] = post, None if values is None else self._visible(values)
        stored = self.engine.read_rows(wanted)
        for row, (post, expected) in wanted.items():
            shown = self._shown(stored.get(row))
            self.found.rows += shown is not None or expected is not None
            if not alike(shown, expected) and not (shown is None and self._fell_behind(post)):
                self.found.different.append(RowDifference(row, shown, expected))

    def _fell_behind(self, post: Mirror) -> bool:
        """Whether a follow may have left out a post, with so many newer ones. The state tells those that are gone."""
        place, most = str(post.item[2]), self.options.most
        sided = Sided(POSTS, post.item, self.mirrors.fields_of(POSTS, post.item))
        if self.keeps_mirrors:
            partition = self.mirrors.partition(POSTS, sided.fields)
            return len(self.mirrors.page(POSTS, partition, Entries("", most, place))) >= most
        key = self.mirrors.key_of(POSTS)
        begins = before_place(key, self.options.order)
        newer = self.engine.page(key.table, key.partition.compose(sided.fields), begins, place, most)
        return len(newer.items) >= most

    def _unfounded(self, keys: Sequence[ItemKey]) -> None:
        """Rows that are shown, although their post or their edge is gone."""
        stored = self.engine.read_rows([key for key in keys if self.into.match_values(*key[1:]) is not None])
        rows = {row: fields for row in stored if (fields := self.into.match_values(*row[1:])) is not None}
        items = {row: [self._composed(side, fields) for side in (POSTS, EDGES)] for row, fields in rows.items()}
        there = self.engine.read_rows(dict.fromkeys(item for pair in items.values() for item in pair))
        for row, (post, edge) in items.items():
            lacks_post, lacks_edge = (
                there.get(item, {CONTRIBUTORS: 0}).get(CONTRIBUTORS) == 0 or not self._is_of(side, item)
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
        key = self.mirrors.key_of(side)
        return (key.table.name, *key.compose(fields))

    def _shown(self, row: ShownRow | None) -> ShownRow | None:
        """A row as its readers see it: without the framework's attributes; None for one that is not shown."""
        return None if row is None or row.get(CONTRIBUTORS) == 0 else self._visible(row)

    def _has_expired(self, row: ShownRow) -> bool:
        """Whether readers pass over a row because it is past the expiry that was written into it."""
        expires = row.get(str(self.into.table.ttl))
        return isinstance(expires, int | Decimal) and expires < self.moment

    def _visible(self, row: ShownRow) -> ShownRow:
        own = {*self.into.table.attributes, str(self.into.table.ttl)}
        return {name: value for name, value in row.items() if name not in own and not hidden(name)}


def _there(item: ItemKey, stored: StoredItem | None) -> Mirror | None:
    """An item as a feed mirrors it; None for one that is gone."""
    return Mirror(NEVER, item, dict(stored), gone=False) if stored and image_of(stored) else None


def _key_of(key: Key, stored: StoredItem) -> ItemKey:
    return item_key({name: stored[name] for name in key.table.attributes}, key.table)


def _is_pulled(place: str, pulled: str | None) -> bool:
    return pulled is not None and (not pulled or place <= pulled)
