"""The graph of an application holds what ``streamfold routes --json`` prints, and Mermaid shows all of it."""

import re

import pytest

from handlers import app as shop
from handlers.tenants import app as boards
from handlers.tickets import app as deadlines
from streamfold import App, Key, Router, Row
from streamfold.derivations import KINDS
from streamfold.pages.graph import CALLS, HANDLER, SAME_ROWS, WRITES, described, graph_of, mermaid
from tests.helpers.commands import ROOT
from tests.helpers.drawn_applications import MARKUP, drawn_application
from tests.helpers.everything import app as everything

SCRIPT = ROOT / "framework/streamfold/pages/assets/graph.js"
APPLICATIONS = [shop, boards, everything, *map(drawn_application, range(30))]
every_application = pytest.mark.parametrize("app", APPLICATIONS, ids=lambda app: app.name)


def written(row):
    return {(row["handler"], target) for target in row["targets"]}


def read(row):
    lookups = [
        re.fullmatch(r"\S+(?: through \S+)?: (?:main: )?(.*), [^,]*", text)[1] for text in row.get("lookups", ())
    ]
    return {(key, row["handler"]) for key in (*row["sources"], *row.get("parts", ()), *lookups)}


@every_application
def test_nodes_edges_and_groups_are_those_of_routes(app):
    graph, rows = graph_of(app), [described(app, route) for route in app.routes]
    names = {node.id: node.name for node in graph.nodes}
    edges = [(names[each.source], names[each.target], each.kind) for each in graph.edges if each.kind != SAME_ROWS]

    assert {(one, other) for one, other, kind in edges if kind == WRITES} == set().union(*map(written, rows))
    assert {(one, other) for one, other, kind in edges if kind != WRITES} == set().union(*map(read, rows))
    assert {node.name for node in graph.nodes if node.kind == HANDLER} == {row["handler"] for row in rows}
    assert set(graph.groups) == {row["group"] for row in rows}
    assert len(names) == len(set(names.values())) == len(graph.nodes)


@every_application
def test_mermaid_shows_every_node_edge_and_group_once(app):
    graph = graph_of(app)
    text = mermaid(graph)
    lines = [line.strip() for line in text.splitlines()]

    drawn = [line for line in lines if re.match(r"n\d+[\[({]", line)]
    assert len(drawn) == len(graph.nodes)
    assert len([line for line in lines if re.fullmatch(r"n\d+ \S+ n\d+", line)]) == len(graph.edges)
    framed = sum(line.startswith("subgraph ") for line in lines)
    assert framed == lines.count("end") == (len(graph.groups) if len(graph.groups) > 1 else 0)


def one_view(source, target, name="view"):
    router = Router()
    router.view(source, into=target, name=name)(lambda item: Row())
    return router


def test_no_key_ends_the_text_of_a_mermaid_node():
    key = Key(f"{MARKUP}A#lt;#{{id}}", "X")
    app = App("shop", routers=[one_view(key, Key("B#{id}", "X"))])
    [line] = [line for line in mermaid(graph_of(app)).splitlines() if "A#" in line]

    assert re.fullmatch(r'    n\d\(\["[^"<>`]*"\]\)', line)
    assert "A#35;lt;#{id} / X" in line


def test_rows_that_a_chain_reads_under_another_template_are_linked():
    written_as, read_as = Key("A#{a}", "TOTAL"), Key("A#{b}", "TOTAL")
    first, second = one_view(Key("I#{a}", "X"), written_as, "first"), one_view(read_as, Key("C#{b}", "X"), "second")
    edges = graph_of(App("shop", routers=[first, second])).edges

    found = [(each.source, each.target) for each in edges if each.kind == SAME_ROWS]
    assert found == [("key A#{a} / TOTAL", "key A#{b} / TOTAL")]


def test_moments_call_the_handler_of_a_timer_and_its_items_do_not():
    graph = graph_of(deadlines)
    reached = {(edge.source, edge.kind) for edge in graph.edges if edge.target == "handler escalate"}
    assert reached == {("handler escalate.timer", CALLS)}
    names = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    timer, handler = names["handler escalate.timer"], names["handler escalate"]
    assert f"    {timer} --> {handler}" in mermaid(graph).splitlines()


def test_tenants_are_named():
    assert graph_of(boards).tenant == "workspace"
    assert "accDescr: Tenants are kept apart by workspace" in mermaid(graph_of(boards))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_cost_of_a_kind_is_that_of_the_page_of_guarantees(kind):
    page = (ROOT / "docs/guarantees.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    declared = {"external": "`on(external=True)", "timer": "`at=` on"}.get(kind.name, f"`{kind.name}")
    costs = [row.split("|")[-2].strip() for row in rows if declared in row.split("|")[1]]

    assert all(
        any(part in cost for cost in costs) for part in kind.write_units.removesuffix(" with unique=True").split("; ")
    )
    assert kind.write_units


def test_the_panel_of_a_handler_has_a_heading_for_everything_that_routes_print():
    router = Router()
    router.on(Key("ORDER#{order_id}", "METADATA"), external=True, name="call", at_once=8)(lambda change: None)
    apps = [everything, App("calls", routers=[router])]
    names = {name for app in apps for route in app.routes for name in described(app, route)}
    (headings,) = re.findall(r"const HEADINGS = \{(.*?)\};", SCRIPT.read_text("utf-8"), re.DOTALL)
    assert names - {"handler"} <= {*re.findall(r"(\w+): \"", headings)}
