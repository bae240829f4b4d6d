"""The graph of an application: which handlers read and write what. One model for the page, for Mermaid and for tests.

Nodes are handlers, the keys of items and rows, and locations outside of tables. A key that several handlers name is one
node, so a chain of handlers is a path.

The page draws the application, each connected component by itself, and the neighbourhood of each handler.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from streamfold.keys.key import Key, template_text
from streamfold.pages.layout import Box, Drawing, Frame, Link, Points, drawing
from streamfold.routes.application import Application
from streamfold.routes.checks import chained
from streamfold.routes.lookups import LOOKUP
from streamfold.routes.route import REFERENT, SOURCE, Route, Subscription

HANDLER, ITEM, ROW, INDEX, OUTSIDE = "handler", "item", "row", "search index", "outside"
"""The kinds of nodes. A key that a handler derives rows under is a row, also where others read it."""
READS, READS_TOO, LOOKS_UP, WRITES, SAME_ROWS = "reads", "reads too", "looks up", "writes", "same rows"
CALLS = "calls"
"""The kinds of edges. ``same rows``: two templates of a chain that differ in words, and match one row. ``calls``: the
moments of items call a handler, which no change reaches.
"""
SHAPES = {
    HANDLER: '["{}"]',
    ITEM: '(["{}"])',
    ROW: '[("{}")]',
    INDEX: '{{{{"{}"}}}}',
    OUTSIDE: '[/"{}"/]',
}
ARROWS = {
    READS: "-->",
    READS_TOO: "-->",
    LOOKS_UP: "-.->",
    WRITES: "==>",
    SAME_ROWS: "---",
    CALLS: "-->",
}
ENTITIES = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;"}
"""Characters that Mermaid would take for its own syntax or for markup, as it writes them."""
LIKE_ENTITY = re.compile(r"#(?=\w+;)")


@dataclass(frozen=True, slots=True)
class Node:
    """A handler, a key or a location. ``group`` and ``details`` are those of a handler."""

    id: str
    kind: str
    name: str
    group: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow from a node to another, in the direction of the data."""

    source: str
    target: str
    kind: str


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes, edges and groups of an application."""

    application: str
    tenant: str | None
    groups: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def described(app: Application, route: Route) -> dict[str, Any]:
    """A handler as ``streamfold routes --json`` describes it."""
    others = _other_subscriptions(route)
    # Handlers whose rows this one looks up, and that are made of its own items: each change of an item changes the row,
    # which visits all items of the row.
    makers = [
        other.name
        for other in app.routes
        if any(
            target.overlaps(each.key)
            for each in route.lookups
            for target in (*other.into, *(other.kind.touches(other) if each.derived else ()))
        )
        and any(one.overlaps(source) for one in other.sources for source in route.sources)
    ]
    return {
        "sources": [template_text(key) for key in route.sources],
        "handler": route.name,
        "group": route.group,
        "kind": route.kind.name,
        "targets": [*map(template_text, _targets(route)), *route.kind.outside_locations(route)],
        "guard": route.guard,
        **({"calls": limits} if (limits := route.kind.call_limits(route)) else {}),
        "on_error": str(route.policy),
        "declared_at": os.path.relpath(route.declared_at),
        **({"parts": [_part_text(route, each.key) for each in others]} if others else {}),
        **({"reads": _reads_text(route)} if route.parts else {}),
        **({"lookups": [*_lookup_texts(route)]} if route.stored_lookups else {}),
        **({"looks_up_rows_of_its_items": makers} if makers else {}),
    }


def _part_text(route: Route, key: Key) -> str:
    newest = next((part.newest for part in route.parts if part.key == key), 0)
    return template_text(key) + (f", the newest {newest}" if newest else "")


def _reads_text(route: Route) -> str:
    """Whether a change of a part reads all parts, which grows with them, and whether the item may be absent."""
    newest = sum(1 for part in route.parts if part.newest)
    text = (
        "every part"
        if not newest
        else "the newest parts"
        if newest == len(route.parts)
        else "every part, of other keys the newest"
    )
    return f"{text}, also without the item" if route.optional else text


def _lookup_texts(route: Route) -> Iterator[str]:
    many = {each.stored_name: each.many for each in route.lookups if each.many is not None}
    for text in route.stored_lookups:
        if text.startswith(LOOKUP):
            key, comma, taken = text.removeprefix(LOOKUP).rpartition(", ")
            name = many.get(text, "")
            yield key + comma + (taken.removesuffix(f" many {name}").replace("=", "=each of ") if name else taken)


def _other_subscriptions(route: Route) -> list[Subscription]:
    # Document parts and edges of feeds: keys beside its sources with whose items a handler is called.
    return [each for each in route.kind.subscriptions(route) if each.called and each.role not in (SOURCE, REFERENT)]


def _targets(route: Route) -> tuple[Key, ...]:
    return tuple(dict.fromkeys((*route.writes, *route.kind.touches(route))))


def graph_of(app: Application) -> Graph:
    """The graph of an application."""
    rows = {template_text(key) for route in app.routes for key in route.into}
    nodes: dict[str, Node] = {}
    edges: dict[Edge, None] = {}

    def key_node(key: Key) -> str:
        name = template_text(key)
        nodes.setdefault(f"key {name}", Node(f"key {name}", ROW if name in rows else ITEM, name))
        return f"key {name}"

    for route in app.routes:
        handler = f"handler {route.name}"
        details = described(app, route) | {"write_units": route.kind.write_units}
        nodes[handler] = Node(handler, HANDLER, route.name, route.group, details)
        sources = route.sources if route.kind.subscriptions(route) else ()
        if called := route.kind.calls_once(route):
            edges[Edge(handler, f"handler {called}", CALLS)] = None
        read = [*((key, READS) for key in sources), *((each.key, LOOKS_UP) for each in route.lookups)]
        for key, kind in [*read, *((each.key, READS_TOO) for each in _other_subscriptions(route))]:
            if not (kind == READS_TOO and key in route.sources):
                edges[Edge(key_node(key), handler, kind)] = None
        for key in _targets(route):
            edges[Edge(handler, key_node(key), WRITES)] = None
        indexes = bool(route.kind.indexes(route))
        for name in route.kind.outside_locations(route):
            nodes.setdefault(f"outside {name}", Node(f"outside {name}", INDEX if indexes else OUTSIDE, name))
            edges[Edge(handler, f"outside {name}", WRITES)] = None
    for target, key in _same_rows(app):
        edges[Edge(key_node(target), key_node(key), SAME_ROWS)] = None
    groups = tuple(dict.fromkeys(route.group for route in app.routes))
    return Graph(app.name, app.tenant, groups, tuple(nodes.values()), tuple(edges))


def _same_rows(app: Application) -> Iterator[tuple[Key, Key]]:
    """Targets, each with a template in other words under which another handler reads or looks up their rows."""
    for _, target, reader in chained(app.routes):
        for each in reader.kind.subscriptions(reader):
            if each.called and template_text(each.key) != template_text(target) and each.key.overlaps(target):
                yield target, each.key
    looked_up = dict.fromkeys(each.key for route in app.routes for each in route.lookups)
    for target in dict.fromkeys(key for route in app.routes for key in route.into):
        for key in looked_up:
            if template_text(key) != template_text(target) and key.overlaps(target):
                yield target, key


def mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart. Groups are frames where there are several."""
    names = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    handlers = sum(node.kind == HANDLER for node in graph.nodes)
    lines = ["flowchart LR", f"    accTitle: {_escaped(graph.application)}: {handlers} handler{'s' * (handlers != 1)}"]
    if graph.tenant:
        lines.append(f"    accDescr: Tenants are kept apart by {_escaped(graph.tenant)}")

    def line(node: Node) -> str:
        text = _escaped(node.name) + (f"<br/>{_escaped(node.details['kind'])}" if node.kind == HANDLER else "")
        return f"    {names[node.id]}{SHAPES[node.kind].format(text)}"

    framed = graph.groups if len(graph.groups) > 1 else ()
    for number, group in enumerate(framed):
        lines.append(f'    subgraph g{number}["group {_escaped(group)}"]')
        lines += [f"    {line(node)}" for node in graph.nodes if node.group == group]
        lines.append("    end")
    lines += [line(node) for node in graph.nodes if node.group not in framed]
    lines += [f"    {names[edge.source]} {ARROWS[edge.kind]} {names[edge.target]}" for edge in graph.edges]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    plain = LIKE_ENTITY.sub("#35;", " ".join(text.split()))
    return "".join(ENTITIES.get(letter, letter) for letter in plain)


LETTER_WIDTH, LINE_HEIGHT, MARGIN_WIDTH, MARGIN_HEIGHT = 7.3, 16, 20, 12
"""Pixels of the page's letters, and around the lines of a node."""
LETTERS_MAX = 38
"""Of a line of a node. A longer one is shortened in its middle; the panel shows all of it."""


def drawn(graph: Graph) -> dict[str, Any]:
    """The graph and its drawings, as the page takes them: all of it, and the neighbourhood of each handler."""
    texts = {node.id: _lines(graph, node) for node in graph.nodes}
    boxes = {
        name: Box(name, max(map(len, lines)) * LETTER_WIDTH + MARGIN_WIDTH, len(lines) * LINE_HEIGHT + MARGIN_HEIGHT)
        for name, lines in texts.items()
    }
    links = [Link(edge.source, edge.target, edge.kind) for edge in graph.edges]
    handlers = [node for node in graph.nodes if node.kind == HANDLER]
    views = {handler.id: _near(handler.id, boxes, links) for handler in handlers}
    return {
        "graph": graph.as_json(),
        "drawing": {
            "texts": texts,
            "sizes": {box.id: box[1:] for box in boxes.values()},
            "whole": _complete(graph, boxes, links),
            "near": views,
        },
    }


def _complete(graph: Graph, boxes: Mapping[str, Box], links: Sequence[Link]) -> dict[str, Any]:
    kinds = {node.id: node.kind for node in graph.nodes}

    def handlers_of(own: Sequence[Box]) -> int:
        return sum(kinds[box.id] == HANDLER for box in own)

    found = drawing([*boxes.values()], links, handlers_of)
    degrees = Counter(end for link in links for end in link[:2])
    names = {node.id: node.name for node in graph.nodes}

    def titled(frame: Frame) -> str:
        keys = [each for each in frame.boxes if kinds[each] != HANDLER]
        number = sum(kinds[each] == HANDLER for each in frame.boxes)
        return f"{names[max(keys, key=lambda each: degrees[each])]} · {number} handler{'s' * (number != 1)}"

    return _view(found, dict(enumerate(found.points)), titled)


def _near(handler: str, boxes: Mapping[str, Box], links: Sequence[Link]) -> dict[str, Any]:
    """What a handler reads and writes, who writes what it reads, and who reads what it writes."""
    sources = {link.source for link in links if link.target == handler}
    targets = {link.target for link in links if link.source == handler}
    numbers = [
        number
        for number, link in enumerate(links)
        if handler in link[:2] or link.target in sources or link.source in targets
    ]
    near = {handler, *(end for number in numbers for end in links[number][:2])}
    found = drawing([box for box in boxes.values() if box.id in near], [links[number] for number in numbers])
    paths = dict(zip(numbers, found.points, strict=True))
    return _view(found, paths, lambda _: f"Neighbourhood of {handler.removeprefix(HANDLER).strip()}")


def _view(found: Drawing, points: Mapping[int, Points], titled: Callable[[Frame], str]) -> dict[str, Any]:
    frames = []
    for frame in found.frames:
        fitting = max(LETTERS_MAX, int((frame.width - MARGIN_WIDTH) / LETTER_WIDTH))
        own = [*map(round, frame[:4])]
        frames.append({"box": own, "title": _shortened(titled(frame), fitting), "nodes": frame.boxes})
    return {
        "size": [round(found.width), round(found.height)],
        "corners": {name: [round(x, 1), round(y, 1)] for name, (x, y) in found.corners.items()},
        "paths": {number: path_text(path) for number, path in points.items()},
        "frames": frames,
    }


def path_text(points: Points) -> str:
    """A link as SVG draws it."""
    texts = ["M{:.1f},{:.1f}".format(*points[0])]
    for (x, y), (end_x, end_y) in pairwise(points):
        middle = (x + end_x) / 2
        curve = "" if y == end_y else f"C{middle:.1f},{y:.1f} {middle:.1f},{end_y:.1f} "
        texts.append(f"{curve or 'L'}{end_x:.1f},{end_y:.1f}")
    return "".join(texts)


def _lines(graph: Graph, node: Node) -> list[str]:
    if node.kind == HANDLER:
        group = f" · group {node.group}" if len(graph.groups) > 1 else ""
        return [_shortened(node.name), _shortened(f"{node.details['kind']}{group}")]
    first, _, rest = node.name.partition(" / ")
    return [_shortened(each) for each in (first, rest) if each]


def _shortened(text: str, letters_max: int = LETTERS_MAX) -> str:
    half = letters_max // 2
    return text if len(text) <= letters_max else f"{text[:half]}…{text[1 - half :]}"
