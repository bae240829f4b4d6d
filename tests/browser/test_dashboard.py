"""The preview of a dashboard in Chromium: a chart for each graph, with the lines of a replay."""

import pytest

from streamfold.deploy.dashboards import WIDGETS
from tests.helpers.here import streamfold

SIZES = [(390, 844), (1280, 900), (1920, 1080)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("preview") / "dashboard.html"
    ran = streamfold("template", "--dashboard-preview", file, "events/shop.jsonl")
    assert ran.code == 0, ran.err
    return file.read_text("utf-8")


def charts(shown, board="Dashboard"):
    return shown.page.locator(f"#{board} figure")


def test_each_graph_is_a_chart_whose_title_says_what_good_looks_like(opened, text):
    shown = opened(text, "Dashboard of shop")
    assert shown.page.locator("#title").text_content() == "Dashboard of shop"
    assert charts(shown).count() == len(WIDGETS)
    for title in shown.page.locator("figcaption").all_text_contents():
        assert "Good: " in title
    assert shown.page.locator("#graph").is_hidden()
    shown.check()


def test_lines_are_drawn_and_graphs_without_data_say_so(opened, text):
    shown = opened(text, "Dashboard of shop")
    freshness = charts(shown).filter(has_text="Freshness, seconds").first
    path = freshness.locator("path.line").get_attribute("d")
    assert path.count("L") > 20
    assert "Projector freshness_seconds: most " in freshness.locator("ul").text_content()
    assert "No data in this replay." in charts(shown).filter(has_text="Throttled").text_content()
    assert charts(shown).filter(has_text="Cost of a day").locator("rect.bar").count() >= 10


def test_lines_stay_within_their_chart(opened, text):
    shown = opened(text, "Dashboard of shop")
    outside = shown.page.evaluate(
        """() => [...document.querySelectorAll("figure svg")].filter((svg) => {
            const around = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("path, text, rect")].some((one) => {
                const box = one.getBoundingClientRect();
                return box.left < around.left - 1 || box.right > around.right + 1
                    || box.top < around.top - 1 || box.bottom > around.bottom + 1;
            });
        }).map((svg) => svg.getAttribute("aria-label"))"""
    )
    assert outside == []


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_page_scrolls_sideways_at_no_size(opened, text, size):
    shown = opened(text, "Dashboard of shop")
    shown.page.set_viewport_size({"width": size[0], "height": size[1]})
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_dashboard_has_no_serious_fault_of_accessibility(opened, text, theme):
    from axe_playwright_python.sync_playwright import Axe

    shown = opened(text, "Dashboard of shop")
    shown.page.emulate_media(color_scheme=theme)
    shown.page.reload()
    found = Axe().run(shown.page).response["violations"]
    assert [(each["id"], each["impact"]) for each in found if each["impact"] in ("serious", "critical")] == []
