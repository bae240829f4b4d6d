"""What the tests in a browser share: the distribution's Chromium, and a page that it opened."""

import os
import shutil
from pathlib import Path

import pytest

from tests.helpers.required import lacking

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1280, "height": 900}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("no Playwright: run make browser")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        lacking("no Chromium: install the distribution's package chromium")
    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root, which CI is. The pages are those of these tests.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


class Opened:
    """A page in the browser, with what it printed on its console and asked for."""

    def __init__(self, page, file, title):
        self.page = page
        self.printed, self.requests = [], []
        page.on("console", lambda message: self.printed.append(message.text))
        page.on("pageerror", lambda error: self.printed.append(str(error)))
        page.on("dialog", lambda dialog: self.printed.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        self.title = title
        page.goto(file.as_uri())

    def check(self):
        """Nothing was printed or asked for but the page itself, and no script of the data has run."""
        assert self.printed == []
        assert len(self.requests) == 1
        assert self.page.title() == self.title

    def read(self, selector, *names):
        """The values of these data attributes of all elements, as they are drawn."""
        program = "(all, names) => all.map((one) => names.map((name) => one.dataset[name] ?? null))"
        return [tuple(values) for values in self.page.locator(selector).evaluate_all(program, list(names))]


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens the text of a page."""
    context = chromium.new_context(viewport=SIZE)

    def open_page(text, title="A page"):
        file = tmp_path / "page.html"
        file.write_text(text, "utf-8")
        return Opened(context.new_page(), file, title)

    yield open_page
    context.close()
