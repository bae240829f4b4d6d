"""The drawn graph, read out of the page in Chromium, and used by mouse and by keyboard."""

import pytest

from handlers import app as shop
from handlers.tenants import app as boards
from streamfold.pages.graph import HANDLER, drawn, graph_of
from streamfold.pages.page import page
from tests.helpers.drawn_applications import drawn_application
from tests.helpers.everything import app as everything

APPLICATIONS = [shop, boards, everything, *map(drawn_application, range(30))]
HANDLERS_OF_LARGE = 200
IN_FRAME = """(id) => {
    const box = [...document.querySelectorAll(".node")].find((one) => one.dataset.id === id).getBoundingClientRect();
    const frame = document.querySelector("#frame").getBoundingClientRect();
    const near = (one, other, size) => Math.abs(one - other) <= size / 2;
    return near(box.x + box.width / 2, frame.x + frame.width / 2, frame.width)
        && near(box.y + box.height / 2, frame.y + frame.height / 2, frame.height) && box.height >= 25;
}"""


OVERLAPS = """() => {
    const labels = [...document.querySelectorAll("#drawing text")].filter((one) => one.getClientRects().length)
        .map((one) => one.getBoundingClientRect());
    const found = [];
    for (const path of document.querySelectorAll("#drawing .edge")) {
        if (path.classList.contains("away")) continue;
        const matrix = path.getScreenCTM(), length = path.getTotalLength();
        for (let at = 0; at <= length; at += 3) {
            const { x, y } = path.getPointAtLength(at).matrixTransform(matrix);
            if (labels.some((box) => x > box.left && x < box.right && y > box.top && y < box.bottom)) {
                found.push(`${path.dataset.source} to ${path.dataset.target}`);
                break;
            }
        }
    }
    return [labels.length, found];
}"""
"""How many labels are drawn, and which edges run over one."""
TEXTS_OUTSIDE = """() => [...document.querySelectorAll("#drawing .node")].filter((node) => {
    const box = node.querySelector("rect").getBoundingClientRect();
    return [...node.querySelectorAll("text")].some((text) => text.getBoundingClientRect().right > box.right);
}).map((node) => node.dataset.id)"""
SIZES = [(390, 844), (1280, 900), (1920, 1080)]


def page_of(app):
    return page("A page", drawn(graph_of(app)))


@pytest.mark.parametrize("app", APPLICATIONS, ids=lambda app: app.name)
def test_the_drawn_page_holds_all_nodes_edges_and_groups(opened, app):
    graph, shown = graph_of(app), opened(page_of(app))

    nodes = shown.read(".node", "id", "kind", "name", "group")
    assert nodes == [(node.id, node.kind, node.name, node.group) for node in graph.nodes]
    edges = shown.read(".edge", "source", "target", "kind")
    assert edges == [(edge.source, edge.target, edge.kind) for edge in graph.edges]
    assert shown.read("#legend [data-group]", "group") == [(group,) for group in graph.groups]
    shown.check()


@pytest.mark.parametrize("app", [shop, boards, everything], ids=lambda app: app.name)
def test_every_panel_opens_by_click_and_by_keyboard(opened, app):
    graph, shown = graph_of(app), opened(page_of(app))
    node, body = shown.page.locator(".node"), shown.page.locator("#panel-body")
    for number, each in enumerate(graph.nodes):
        for use in (lambda one: one.click(), lambda one: one.press("Enter")):
            use(node.nth(number))
            assert shown.read("#panel", "node") == [(each.id,)]
            assert shown.page.locator("#panel-title").text_content() == each.name
            shown.page.keyboard.press("Escape")
            assert shown.read("#panel", "node") == [(None,)]
        node.nth(number).press(" ")
        text = body.text_content()
        shown.page.keyboard.press("Escape")
        expected = ["guard", "declared_at", "write_units"] if each.kind == HANDLER else []
        assert all(each.details[name] in text for name in expected)
        assert each.details.get("kind", each.kind) in text
    shown.check()


def test_tab_reaches_every_node(opened):
    shown, reached = opened(page_of(boards)), set()
    shown.page.focus("#frame")
    for _ in range(len(graph_of(boards).nodes)):
        shown.page.keyboard.press("Tab")
        reached.add(shown.page.evaluate("document.activeElement.dataset.id"))
    assert reached == {node.id for node in graph_of(boards).nodes}


def test_search_finds_and_centres_each_of_200_handlers(opened):
    app = drawn_application(7, HANDLERS_OF_LARGE)
    shown = opened(page_of(app))
    for route in app.routes:
        shown.page.fill("#search", route.name)
        shown.page.press("#search", "Enter")
        assert shown.read("#panel", "node") == [(f"handler {route.name}",)]
        assert shown.page.evaluate(IN_FRAME, f"handler {route.name}"), route.name
    shown.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_has_no_serious_fault_of_accessibility(opened, theme):
    from axe_playwright_python.sync_playwright import Axe

    shown = opened(page_of(shop))
    shown.page.emulate_media(color_scheme=theme)
    shown.page.reload()
    shown.page.locator(".node").first.press("Enter")
    assert shown.page.evaluate("document.documentElement.dataset.theme") == theme
    found = Axe().run(shown.page).response["violations"]
    assert [(each["id"], each["impact"]) for each in found if each["impact"] in ("serious", "critical")] == []


def test_the_theme_changes_by_a_button(opened):
    shown = opened(page_of(boards))
    before = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.page.click("#theme")
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.parametrize(
    "app",
    [shop, *(drawn_application(2, each) for each in (10, 50, 300))],
    ids=lambda app: app.name + str(len(app.routes)),
)
def test_labels_overlap_no_edge(opened, app):
    shown = opened(page_of(app))
    labels, overlaps = shown.page.evaluate(OVERLAPS)
    assert labels >= 2 * len(app.routes)
    assert overlaps == []
    assert shown.page.evaluate(TEXTS_OUTSIDE) == []


def test_labels_of_every_neighbourhood_overlap_no_edge(opened):
    shown = opened(page_of(shop))
    for route in shop.routes:
        shown.page.fill("#search", route.name)
        shown.page.press("#search", "Enter")
        labels, overlaps = shown.page.evaluate(OVERLAPS)
        assert labels >= 3
        assert overlaps == [], route.name


def visible(shown):
    return {name for (name,) in shown.read(".node:not(.away)", "id")}


def test_a_handler_of_the_list_opens_its_neighbourhood_and_the_whole_graph_is_a_button_away(opened):
    shown = opened(page_of(shop))
    whole = visible(shown)
    listed = shown.page.locator("#components button", has_text="order_total")
    shown.page.locator("#components summary").first.click()
    listed.click()

    assert visible(shown) == {*drawn(graph_of(shop))["drawing"]["near"]["handler order_total"]["corners"]}
    assert shown.read("#panel", "node") == [("handler order_total",)]
    shown.page.click("#whole")
    assert visible(shown) == whole == {node.id for node in graph_of(shop).nodes}
    shown.check()


def test_the_list_has_every_component_and_unfolding_one_shows_it(opened):
    shown = opened(page_of(shop))
    frames = drawn(graph_of(shop))["drawing"]["whole"]["frames"]
    summaries = shown.page.locator("#components summary")
    assert summaries.all_text_contents() == [frame["title"] for frame in frames]

    summaries.nth(3).click()
    shown.page.wait_for_function("document.querySelector('#frame').scrollTop > 0")
    first = next(each for each in frames[3]["nodes"] if each.startswith("handler "))
    assert shown.page.evaluate(
        "(id) => document.querySelector('#frame').getBoundingClientRect().top < "
        "[...document.querySelectorAll('.node')].find((one) => one.dataset.id === id).getBoundingClientRect().top",
        first,
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_page_scrolls_sideways_at_no_size(opened, size):
    shown = opened(page_of(shop))
    shown.page.set_viewport_size({"width": size[0], "height": size[1]})
    for _ in range(2):
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shown.page.locator(".node").first.press("Enter")
