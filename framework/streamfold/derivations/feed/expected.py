"""What feeds have to show, told from the declaration: every post that is there, to everyone who follows its author."""

from streamfold.derivations.expected import Expected, History, Values
from streamfold.derivations.feed.options import options_of, post_seconds
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey


def expected(route: Route, history: History) -> Expected:
    """The rows of all pairs of posts and edges that are there, as far as nothing is pulled, nor kept."""
    (into,), (post_key, edge_key) = route.into, route.sources
    function, rows = route.function, dict[RowKey, Values]()
    assert function is not None
    for post_item, post in history.items.items():
        post_fields = post_key.match_values(*post_item[1:]) if post_item[0] == post_key.table.name else None
        if not post or post_fields is None:
            continue
        expires = int(post_seconds(route, post_fields)) + options_of(route).keep_seconds
        for edge_item, edge in history.items.items():
            edge_fields = edge_key.match_values(*edge_item[1:]) if edge_item[0] == edge_key.table.name else None
            if not edge or edge_fields is None:
                continue
            if all(post_fields[name] == edge_fields[name] for name in options_of(route).joined):
                fields = {**edge_fields, **post_fields}
                for effect in each_effect(route.name, function(post, edge, **route.asked(fields))):
                    values = {name: value for name, value in effect.values.items() if name not in into.types}
                    row = {**values, **(effect.attributes or {}), str(into.table.ttl): expires}
                    rows[into.table.name, *into.compose(fields)] = row
    return Expected(rows)
