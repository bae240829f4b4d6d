"""The graph of an application: which handlers read and write what. One model for the page, for Mermaid and for tests.

Nodes are handlers, the keys of items and rows, and locations outside of tables. A key that several handlers name is one
node, so a chain of handlers is a path.

The page is one self-contained HTML file: its data, its script and its style, without any request. Keys, names, values
and errors may hold markup. They are data in JSON, of which the script makes text nodes; the policy of the page allows
its own script and style by their digests, and no other, no request and no form.
"""

import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from streamfold.errors import SettingsError
from streamfold.keys.key import Key, template_text
from streamfold.records.values import to_json
from streamfold.routes.application import Application
from streamfold.routes.checks import chained
from streamfold.routes.lookups import LOOKUP
from streamfold.routes.route import REFERENT, SOURCE, Route, Subscription

HANDLER, ITEM, ROW, INDEX, OUTSIDE = "handler", "item", "row", "search index", "outside"
"""The kinds of nodes. A key that a handler derives rows under is a row, also where others read it."""
READS, READS_TOO, LOOKS_UP, WRITES, SAME_ROWS = "reads", "reads too", "looks up", "writes", "same rows"
"""The kinds of edges. ``same rows``: two templates of a chain that differ in words, and match one row."""
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
        **({"parts": [template_text(each.key) for each in others]} if others else {}),
        **({"lookups": [each.stored_name.removeprefix(LOOKUP) for each in route.lookups]} if route.lookups else {}),
        **({"looks_up_rows_of_its_items": makers} if makers else {}),
    }


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
        read = [*((key, READS) for key in route.sources), *((each.key, LOOKS_UP) for each in route.lookups)]
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


ASSETS = files("streamfold.pages") / "assets"
SAFE_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Characters of JSON that could end the element which holds it (HTML Standard, Restrictions for contents of script
elements). Each is a character of a JSON string, where its escape has the same meaning."""


def page(title: str, data: Mapping[str, Any]) -> str:
    """The page of a graph and, where ``data`` has sections, of a report."""
    style, script = _asset("page.css"), _asset("dagre.min.js") + "\n" + _asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        policy=escape(policy),
        style=style,
        script=script,
        licence=_asset("dagre.LICENSE.txt").replace("--", "- -"),
        data=embedded(data),
    )


def embedded(data: Mapping[str, Any]) -> str:
    """Data as JSON that no text of it can end."""
    text = to_json(data)
    for letter, safe in SAFE_IN_SCRIPT.items():
        text = text.replace(letter, safe)
    return text


def check_place(file: Path) -> None:
    """Raises ``SettingsError`` for a place that cannot be written, before the work whose page it is to hold."""
    place = file if file.exists() else file.parent
    if not place.exists() or not os.access(place, os.W_OK):
        why = "you may not write it" if place.exists() else f"there is no folder {place}"
        raise SettingsError(
            f"--html {file} cannot be written: {why}. Name a file in a folder that exists and that you may write."
        )


def write_page(file: Path, text: str) -> None:
    """Writes a page. Raises ``SettingsError`` where it cannot be written."""
    try:
        file.write_text(text, "utf-8", errors="backslashreplace")
    except OSError as error:
        raise SettingsError(
            f"--html {file} cannot be written: {error.strerror or error}. Name a file in a folder that exists and that "
            "you may write."
        ) from None


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
