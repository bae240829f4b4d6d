"""``streamfold replay FILES --html FILE``: what the page of a replay holds."""

import json
import re

import pytest

from tests.helpers.drawn_applications import MARKUP
from tests.helpers.source import Source

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
APP = """
from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
LATE = Key("LATE#{number:06d}", "X")
router = Router()
router.audit(ITEM)


@router.view(ITEM, into=Key("ORDER#{order_id}", "TOTAL"))
def order_total(item):
    yield Row(total=Sum(item["price"]), lines=Count())


@router.view(LATE, into=Key("LATE", "TOTAL"))
def late(item):
    yield Row(items=Count())


app = App("shop", routers=[router])
"""


@pytest.fixture
def folder(folder):
    folder.app(APP)
    return folder


@pytest.fixture
def source():
    return Source()


class ReadReport:
    """The sections of a page, as it embeds them."""

    def __init__(self, folder, *arguments, code=0):
        ran = folder.run("replay", *arguments, "--html", "report.html")
        assert ran.code == code, ran.err
        assert "The report is in report.html: open it in a browser." in ran.err
        self.text = (folder.path / "report.html").read_text("utf-8")
        self.data = json.loads(DATA.search(self.text)[1])
        self.sections = {each["title"]: each for each in self.data["sections"]}

    def table(self, title, caption):
        [found] = [each for each in self.sections[title]["tables"] if each["caption"].startswith(caption)]
        return found

    def notes(self, title):
        return " ".join(self.sections[title]["notes"])


def test_a_report_shows_counts_rows_and_the_graph(folder, source):
    report = ReadReport(folder, folder.records(source.put("ORDER#1", "ITEM#a", price=3)))

    assert {node["name"] for node in report.data["graph"]["nodes"]} >= {"order_total", "ORDER#{order_id} / ITEM#{sku}"}
    assert report.notes("Summary") == "1 record replayed. Nothing failed."
    assert ["order_total", 1, 1, 0, 0, 0] in report.table("Summary", "Handlers")["rows"]
    totals = report.table("Rows", "ORDER#{order_id} / TOTAL: 1 added")
    assert totals["rows"] == [["ORDER#1 / TOTAL", "added", "", "lines=1  total=3"]]


def test_a_row_has_its_contributions_and_the_history_of_their_items(folder, source):
    records = source.put("ORDER#1", "ITEM#a", price=3), source.put("ORDER#1", "ITEM#a", price=4)
    report = ReadReport(folder, folder.records(*records))

    [[contributions, history]] = report.table("Rows", "ORDER#{order_id} / TOTAL")["details"]
    assert contributions == ["1 contribution", ["order_total  ORDER#1 / ITEM#a  lines +1  total +4"]]
    assert history[0] == "History"
    assert [line.partition(" ")[2] for line in history[1]] == [
        "INSERT ORDER#1 / ITEM#a: price: nothing -> 3",
        "MODIFY ORDER#1 / ITEM#a: price: 3 -> 4",
    ]


def test_rows_before_and_after_are_those_of_the_state(folder, source):
    first = [source.put(f"ORDER#{number}", "ITEM#a", price=3) for number in (1, 2, 3)]
    assert folder.run("replay", folder.records(*first), "--state", "shop.db").code == 0
    later = (
        source.put("ORDER#1", "ITEM#a", price=5),
        source.remove("ORDER#2", "ITEM#a"),
        source.put("ORDER#4", "ITEM#a", price=1),
    )
    report = ReadReport(folder, folder.records(*later, name="later.jsonl"), "--state", "shop.db")

    rows = report.table("Rows", "ORDER#{order_id} / TOTAL: 1 added, 1 changed, 1 removed, 1 same")["rows"]
    assert sorted(rows) == [
        ["ORDER#1 / TOTAL", "changed", "lines=1  total=3", "lines=1  total=5"],
        ["ORDER#2 / TOTAL", "removed", "lines=1  total=3", ""],
        ["ORDER#3 / TOTAL", "same", "lines=1  total=3", "lines=1  total=3"],
        ["ORDER#4 / TOTAL", "added", "", "lines=1  total=1"],
    ]
    assert rows[-1][1] == "same"


def test_a_report_says_how_many_rows_it_leaves_out(folder, source):
    records = folder.records(*(source.put(f"ORDER#{number}", "ITEM#a", price=3) for number in range(5)))
    totals = ReadReport(folder, records, "--rows", "2").table("Rows", "ORDER#{order_id} / TOTAL: 5 added")

    assert len(totals["rows"]) == 2
    assert totals["omitted"] == "3 rows more: --rows N shows more."


def test_a_row_says_how_many_contributions_it_leaves_out(folder, source):
    records = folder.records(*(source.put("ORDER#1", f"ITEM#{letter}", price=3) for letter in "abcde"))
    totals = ReadReport(folder, records).table("Rows", "ORDER#{order_id} / TOTAL")

    [[title, lines], *_] = totals["details"][0]
    assert (title, len(lines), lines[-1]) == ("5 contributions", 4, "and 2 more: streamfold explain shows all")


def test_a_report_of_twenty_handlers_with_long_values_stays_below_five_megabytes(folder, source):
    handlers = "".join(
        f"""

@router.view(ITEM, into=Key("ORDER#{{order_id}}", "COPY{number}"))
def copy_{number}(item):
    yield Row(name=Latest(item["name"], by=item["price"]), price=Sum(item["price"]))
"""
        for number in range(20)
    )
    folder.app(APP.replace("Key, ", "Key, Latest, ").replace("\n\napp = ", f"{handlers}\n\napp = "))
    names = ("a name of some words " * 25)[:500]
    records = folder.records(*(source.put(f"ORDER#{n}", "ITEM#a", price=n, name=names) for n in range(250)))
    report = ReadReport(folder, records)

    assert report.table("Rows", "ORDER#{order_id} / COPY19")["omitted"] == "50 rows more: --rows N shows more."
    assert len(report.text.encode()) < 5_000_000


def test_what_failed_is_shown_with_its_record_error_and_lines(folder, source):
    report = ReadReport(folder, folder.records(source.put("ORDER#1", "ITEM#a", price="x")), code=1)

    [[record, handler, error, declared_at, _]] = report.table("Failures", "Failed records")["rows"]
    assert (record, handler, declared_at) == ("records.jsonl:1", "order_total", "handlers.py:10")
    assert "order_total" in error
    assert "once their cause is corrected" in report.notes("Failures")


def test_bad_lines_are_shown_with_their_remedy(folder):
    report = ReadReport(folder, folder.write("bad.jsonl", "{\n"), code=1)

    assert report.table("Failures", "Bad lines")["rows"][0][0] == "bad.jsonl:1"
    assert "--keep-going skips bad lines" in report.notes("Failures")


def test_keys_that_no_handler_wants_are_shown_as_shapes_with_the_template_that_nearly_matches(folder, source):
    report = ReadReport(folder, folder.records(source.put("OTHER#1", "X"), source.put("LATE#abc", "X")))

    assert ["OTHER#", 1] in report.table("Unwanted keys", "Keys")["rows"]
    [[template, field, records, why, _]] = report.table("Unwanted keys", "Templates")["rows"]
    assert (template, field, records) == ("LATE#{number:06d} / X", "number", 1)
    assert "'abc'" in why


def test_costs_are_counted_for_a_million_records(folder, source):
    report = ReadReport(folder, folder.records(*(source.put(f"ORDER#{n}", "ITEM#a", price=3) for n in range(10))))

    costs = dict(report.table("Costs", "A million records")["rows"])
    assert costs["write units"] == 5_000_000  # ledger item and total in a transaction, and the history row behind it
    assert costs["dollars"] == 3.163  # with the reads of manifest and open fan-outs
    assert "the first 10 records" in report.notes("Costs")


def test_standard_input_has_no_costs(folder, source):
    ran = folder.run(
        "replay", "-", "--html", "report.html", stdin=(folder.path / folder.records(source.put("A", "B"))).read_bytes()
    )
    assert ran.code == 0
    assert "Not estimated: standard input is read once." in (folder.path / "report.html").read_text("utf-8")


def test_no_value_is_in_a_redacted_report(folder, source):
    records = (
        source.put("ORDER#secret", "ITEM#secret", price=77777),
        source.put("ORDER#1", "ITEM#secret", price="secret"),
        source.put("LATE#secret", "X"),
    )
    text = ReadReport(folder, folder.records(*records), "--redact", code=1).text

    assert "secret" not in text
    assert "77777" not in text
    assert '"ORDER#{order_id} / TOTAL","added","","lines, total"' in text


def test_markup_in_values_keys_and_errors_adds_no_element(folder, source):
    records = (
        source.put(f"ORDER#{MARKUP}", f"ITEM#{MARKUP}", price=1),
        source.put("ORDER#1", "ITEM#1", price=MARKUP),
        source.put(f"OTHER{MARKUP}", MARKUP),
    )
    marked = ReadReport(folder, folder.records(*records), code=1).text
    plain = ReadReport(folder, folder.records(source.put("ORDER#2", "ITEM#1", price=1))).text

    assert [marked.count(each) for each in ("<script", "</script", "<img")] == [
        plain.count(each) for each in ("<script", "</script", "<img")
    ]


def test_a_report_of_nothing_says_so(folder):
    report = ReadReport(folder, folder.write("none.jsonl", ""))

    assert "No record was read, so no row has changed: name files that hold records." in report.notes("Summary")
    assert report.notes("Costs") == "Not estimated: no record was read."


def test_a_report_of_runs_under_faults_shows_the_faults(folder, source):
    records = folder.records(*(source.put("ORDER#1", "ITEM#a", price=n) for n in range(5)))
    report = ReadReport(folder, records, "--chaos", "--runs", "3")

    assert report.notes("Faults").startswith("3 runs of 5 records, ")
    assert all(row[3] == 0 for row in report.table("Faults", "Faults")["rows"])


def test_a_place_that_cannot_be_written_stops_a_replay_before_it_begins(folder, source):
    records = folder.records(source.put("ORDER#1", "ITEM#a", price=3))
    ran = folder.run("replay", records, "--state", "shop.db", "--html", "none/report.html")

    assert ran.code == 2
    assert "--html none/report.html cannot be written: there is no folder none. Name a file in a folder" in ran.err
    assert not (folder.path / "shop.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "3"], "--rows belongs to --html."),
        (["--redact"], "--redact belongs to --html."),
        (["--html", "a.html", "--dry-run"], "--dry-run does not go with --html"),
        (["--html", "a.html", "--engine", "dynamodb"], "--engine dynamodb does not go with --html"),
    ],
)
def test_options_that_contradict_a_report_are_refused(folder, arguments, message):
    ran = folder.run("replay", folder.write("none.jsonl", ""), *arguments)

    assert ran.code == 2
    assert message in ran.err
