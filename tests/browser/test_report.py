"""The report of a replay in Chromium: its tables, and that nothing of the data becomes markup."""

from time import monotonic

import pytest

from streamfold.records.values import to_json
from tests.cli.conftest import SHOP
from tests.helpers.drawn_applications import MARKUP
from tests.helpers.here import streamfold
from tests.helpers.source import Source

OPENS_SECONDS_MAX = 20
"""Ten times what is promised, because a busy machine is no failure."""


@pytest.fixture
def report(opened, tmp_path):
    """Opens the report of a replay of records on an application with one view."""

    def replayed(*records, code=0):
        (tmp_path / "handlers.py").write_text(SHOP)
        (tmp_path / "records.jsonl").write_text("".join(to_json(record) + "\n" for record in records))
        ran = streamfold("replay", "records.jsonl", "--html", "report.html", folder=tmp_path)
        assert ran.code == code, ran.err
        return opened((tmp_path / "report.html").read_text("utf-8"), "Replay of shop")

    return replayed


def test_rows_are_sorted_and_filtered(report):
    source = Source()
    shown = report(*(source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (2, 3, 1)))
    rows = shown.page.locator("#rows tbody tr")

    assert rows.count() == 3
    shown.page.locator("#rows th button", has_text="key").click()
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == [f"ORDER#{n} / TOTAL" for n in (1, 2, 3)]
    shown.page.locator("#rows th button", has_text="key").click()
    assert rows.first.inner_text().startswith("ORDER#3 / TOTAL")
    shown.page.locator("#rows input[type=search]").fill("total=2")
    assert rows.count() == 1
    shown.check()


def test_markup_in_keys_values_and_errors_is_shown_as_text(report):
    source = Source()
    shown = report(
        source.put(f"ORDER#{MARKUP}", f"ITEM#{MARKUP}", price=1),
        source.put("ORDER#1", "ITEM#1", price=MARKUP),
        source.put(f"OTHER{MARKUP}#1", MARKUP),
        code=1,
    )

    assert MARKUP in shown.page.locator("#rows tbody").inner_text()
    assert MARKUP in shown.page.locator("#unwanted-keys tbody").inner_text()
    assert shown.page.locator("img").count() == 0
    assert shown.page.locator("script").count() == 2
    shown.check()


def test_a_report_of_a_recording_opens_without_a_serious_fault_of_accessibility(opened, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "shop.html"
    ran = streamfold("replay", "events/shop.jsonl", "--html", file)
    assert ran.code == 0, ran.err
    began = monotonic()
    shown = opened(file.read_text("utf-8"), "Replay of shop")
    assert shown.page.locator("#rows table").count() == 9
    assert monotonic() - began < OPENS_SECONDS_MAX

    shown.page.locator("#rows details summary").first.click()
    found = Axe().run(shown.page).response["violations"]
    assert [(each["id"], each["impact"]) for each in found if each["impact"] in ("serious", "critical")] == []
    shown.check()
