"""The right rows of feeds, from the declaration: every existing post, for every follower of its author."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamfold.derivations.expected import Expected, History, Stored, Values
from streamfold.derivations.feed.options import options_of, post_seconds
from streamfold.derivations.feed.posts import joined_text
from streamfold.derivations.feed.spreading import EDGE, PULL, UNTIL, is_pulling
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS
from streamfold.records.change import ItemKey
from streamfold.records.images import Image
from streamfold.records.values import encode
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import RowKey


class _Item(NamedTuple):
    """A post or an edge."""

    item: ItemKey
    fields: Fields
    image: Mapping[str, Any]


class _Pull(NamedTuple):
    """A row that has a reader pull an author."""

    edge: _Item
    until: str | None  # the sort position of the last pulled post; None: all are pulled

    def takes(self, position: Any) -> bool:
        """Whether a post at a sort position of its author is pulled."""
        return self.until is None or str(position) <= self.until


def expected(route: Route, history: History) -> Expected:
    """The rows of all existing posts with all existing edges."""
    posts, edges = (list(_items(key, history)) for key in route.sources)
    return Expected(_rows(route, ((post, edge) for post in posts for edge in edges)))


def as_read(route: Route, rows: Stored, stored: Stored, history: History) -> Stored:
    """The rows as readers see them: with pulled posts, and without kept rows.

    A kept row may exist or not: that depends on the order in which the post and the unfollow were delivered.
    """
    posts = list(_items(route.sources[0], history))
    pulls = dict(_pulls(route, stored))
    pulled = _rows(
        route,
        (
            (post, pull.edge)
            for (_, author), pull in pulls.items()
            for post in posts
            if _is_of(route, post, author, pull)
        ),
    )
    kept = _kept(route, posts, history) if options_of(route).keeps else {}
    found = {key: row for key, row in rows.items() if not (_is_pulled(route, key, pulls) or row in kept.get(key, ()))}
    return {**found, **{key: encode(row)["M"] for key, row in pulled.items()}}


def _items(key: Key, history: History) -> Iterator[_Item]:
    for item, image in history.items.items():
        fields = key.match_values(*item[1:]) if item[0] == key.table.name else None
        if image and fields is not None:
            yield _Item(item, fields, image)


def _rows(route: Route, posts: Iterator[tuple[_Item, _Item]]) -> dict[RowKey, Values]:
    """The rows of those posts and edges that join."""
    (into,), function = route.into, route.function
    assert function is not None
    rows = dict[RowKey, Values]()
    for post, edge in posts:
        if any(post.fields[name] != edge.fields[name] for name in options_of(route).joined):
            continue
        fields = {**edge.fields, **post.fields}
        expires = int(post_seconds(route, post.fields)) + options_of(route).keep_seconds
        for effect in each_effect(route.name, function(post.image, edge.image, **route.asked(fields))):
            values = {name: value for name, value in effect.values.items() if name not in into.types}
            row = {**values, **(effect.attributes or {}), str(into.table.ttl): expires}
            rows[into.table.name, *into.compose(fields)] = row
    return rows


def _pulls(route: Route, stored: Stored) -> Iterator[tuple[tuple[str, str], _Pull]]:
    """The pulled authors, by the partition of a reader's feed and by author."""
    begin = f"{PULL}{route.name}#"
    for key, row in stored.items():
        if is_pulling(route, key) and row.get(CONTRIBUTORS) != {"N": "0"}:
            image = Image(json.loads(row[EDGE]["S"]))
            fields = options_of(route).audience.match(image)
            assert fields is not None
            until = row[UNTIL]["S"] if UNTIL in row else None
            yield (str(key[1])[len(begin) :], str(key[2])), _Pull(_Item(("", "", None), fields, image), until)


def _is_of(route: Route, post: _Item, author: str, pull: _Pull) -> bool:
    return joined_text(route, post.fields) == author and pull.takes(post.item[2])


def _is_pulled(route: Route, key: RowKey, pulls: Mapping[tuple[str, str], _Pull]) -> bool:
    """Whether readers see a pulled post in place of a pushed row."""
    (into,) = route.into
    fields = into.match_values(*key[1:]) if key[0] == into.table.name else None
    pull = None if fields is None else pulls.get((str(key[1]), joined_text(route, fields)))
    return fields is not None and pull is not None and pull.takes(route.sources[0].compose(fields)[1])


def _kept(route: Route, posts: list[_Item], history: History) -> dict[RowKey, list[Any]]:
    """The rows that may remain from edges before their removal, for each image that an edge had."""
    kept: dict[RowKey, list[Any]] = {}
    audience = options_of(route).audience
    for change in history.changes:
        fields = audience.match_values(*change.item[1:]) if change.item[0] == audience.table.name else None
        if fields is not None and change.new and not history.items.get(change.item):
            edge = _Item(change.item, fields, change.new)
            for key, row in _rows(route, ((post, edge) for post in posts)).items():
                kept.setdefault(key, []).append(
                    {name: value for name, value in encode(row)["M"].items() if value != {"N": "0"}}
                )
    return kept
