"""``streamfold dev``: one pass, an edit, a file that grows, and what is wrong with any of them."""

import json
import os
import random
import re
import select
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from streamfold.cli.dev_fold import Edition, KnownRows, Order
from streamfold.replay.files import RecordedFiles
from tests.cli.conftest import SHOP
from tests.helpers.commands import command_line, environment
from tests.helpers.records import item, record

SECONDS_MAX = 60
SHARED = """
from streamfold import App, Count, Key, Max, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
SKU = Key("SKU#{sku}", "TOTAL")
ALL = Key("ALL", "TOTAL")

router = Router()


@router.view(ITEM, into=TOTAL)
def order_total(item):
    return Row(total=Sum(item["price"] * 1))


@router.view(ITEM, into=TOTAL)
def order_lines(item):
    return Row(lines=Sum(1))


@router.view(TOTAL, into=ALL)
def everything(row):
    return Row(total=Sum(row.get("total", 0) * 1))


@router.view(ITEM, into=SKU)
def by_sku(item):
    return Row(sold=Sum(1))


@router.on(ITEM, into=Key("LAST#{order_id}", "SKU#{sku}"))
def last(change):
    return Put(order=str(change.event) + "1")


app = App("shop", routers=[router])
""".replace("Max, Router", "Max, Put, Router")


def flat(text):
    """A text without the breaks of its lines."""
    return " ".join(text.split())


def lines_of(number, first=1):
    return [
        record(None, item(f"ORDER#{each}", "ITEM#a", price=each), each, at=1_772_355_600.0 + each)
        for each in range(first, first + number)
    ]


@pytest.fixture
def recorded(folder):
    return folder.records(*lines_of(3))


# --- one pass


def test_one_pass_counts_by_handler(folder, recorded):
    ran = folder.run("dev", recorded, "--once")
    assert (ran.code, ran.err) == (0, "")
    first, heading, counts, *_, last = ran.out.splitlines()
    assert first.startswith("3 records of records.jsonl, 1 handler. Folded in ")
    assert heading.split() == ["handler", "records", "rows", "written", "removed", "unchanged", "failed"]
    assert counts.split() == ["order_total", "3", "3", "0", "0", "0"]
    assert last == "Nothing failed."


def test_one_pass_is_one_object(folder, recorded):
    found = json.loads(folder.run("dev", recorded, "--once", "--json").out)
    assert (found["records"], found["failure_count"]) == (3, 0)
    assert [(each["handler"], each["written"]) for each in found["handlers"]] == [("order_total", 3)]


def test_a_name_in_a_declaration_that_no_item_has_is_reported(folder, recorded):
    folder.app(SHOP.replace("router = Router()", 'router = Router()\nrouter.audit(ITEM, redact=["prise"])'))
    assert "names 'prise', which no item" in flat(folder.run("dev", recorded, "--once").out)
    (found,) = json.loads(folder.run("dev", recorded, "--once", "--json").out)["unseen_attributes"]
    assert (found["name"], found["near"]) == ("prise", "price")


def test_a_failure_has_its_record_its_line_and_what_to_do(folder):
    recorded = folder.records(*lines_of(1), record(None, item("ORDER#9", "ITEM#a"), 9))
    ran = folder.run("dev", recorded, "--once")
    assert ran.code == 1
    assert "Failed: records.jsonl:2: " in ran.out
    assert "price" in ran.out
    assert "handlers.py:12 in order_total" in ran.out
    assert "Next: correct the handler and save its file." in ran.out


def test_a_file_that_is_cut_in_the_middle_is_reported_with_its_line(folder, recorded):
    text = Path(recorded).read_bytes()
    Path(recorded).write_bytes(text[:-30])
    ran = folder.run("dev", recorded, "--once")
    assert ran.code == 1
    assert "Bad line: records.jsonl:3: the file ends inside this record" in ran.out
    assert "it was cut off: remove this line, or record it again." in flat(ran.out)
    assert "2 records of records.jsonl" in ran.out


def test_a_packed_file_that_is_cut_in_the_middle_is_reported(folder, recorded):
    import gzip

    packed = gzip.compress(Path(recorded).read_bytes())
    Path("records.gz").write_bytes(packed[:-20])
    ran = folder.run("dev", "records.gz", "--once")
    assert ran.code == 1
    assert "its compression is damaged or cut off" in ran.out


def test_a_missing_file_is_refused(folder):
    ran = folder.run("dev", "none.jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Error: File none.jsonl does not exist: expected a recorded file")


def test_standard_input_is_refused(folder):
    ran = folder.run("dev", "-")
    assert ran.code == 2
    assert "standard input is read once: name a file" in ran.err


def test_an_application_that_there_is_not_is_refused_at_once(folder, recorded):
    ran = folder.run("dev", recorded, "--app", "nothing:app")
    assert ran.code == 2
    assert "--app 'nothing:app': there is no module 'nothing'" in ran.err
    assert "names a file: expected a module" in folder.run("dev", recorded, "--app", "handlers.py").err


def test_handlers_that_do_not_import_end_a_single_pass(folder, recorded):
    folder.app(SHOP.replace("yield Row(", "yield Row(("))
    ran = folder.run("dev", recorded, "--once")
    assert ran.code == 2
    assert "--app 'handlers:app' does not import: SyntaxError" in ran.err
    assert "handlers.py:1" in ran.err


def test_an_unknown_handler_is_refused_with_the_nearest(folder, recorded):
    ran = folder.run("dev", recorded, "--once", "--handler", "order_totl")
    assert ran.code == 2
    assert "--handler names 'order_totl', which is no handler of the application: expected order_total" in ran.err


def test_only_one_handler_is_shown(folder, recorded):
    folder.app(SHARED)
    ran = folder.run("dev", recorded, "--once", "--handler", "everything")
    assert ran.code == 0
    assert "1 handler." in ran.out
    assert "everything" in ran.out
    assert "by_sku" not in ran.out


def test_nothing_is_written(folder, recorded):
    folder.run("dev", recorded, "--once")
    assert sorted(each.name for each in folder.path.iterdir()) == ["handlers.py", "records.jsonl"]


# --- an edit


@pytest.fixture
def editions(folder):
    """Folds one edition after another of the application, as the processes of the command do."""

    class Editions:
        known, text, entries = KnownRows(), SHARED, []
        edition = None

        def save(self, text):
            folder.app(text)
            folder._forget()
            self.text = text
            self.edition = Edition(Order("handlers:app", "records.jsonl", (), (), 10, as_json=False), self.known)
            self.edition.load()
            return self.edition.edited(self.entries, ["handlers.py"])

        def grow(self, more):
            done = self.edition.grown(self.entries, more)
            self.entries = [*self.entries, *more]
            return done

    return Editions()


def rows_of(known):
    return {target: rows for target, rows in known.rows.items() if rows}


def test_an_edit_folds_what_it_concerns_and_no_more(editions, recorded):
    editions.entries = list(RecordedFiles([recorded]))
    editions.save(SHARED)
    done = editions.save(SHARED.replace("sold=Sum(1)", "sold=Sum(2)"))
    assert [route.name for route in done.handlers] == ["by_sku"]
    assert editions.edition.names == {"by_sku"}
    assert list(done.changes) == ["SKU#{sku} / TOTAL"]
    (change,) = done.changes["SKU#{sku} / TOTAL"]
    assert (change.old["sold"], change.new["sold"]) == ({"N": "3"}, {"N": "6"})


def test_a_row_that_two_handlers_share_is_folded_by_both(editions, recorded):
    editions.entries = list(RecordedFiles([recorded]))
    editions.save(SHARED)
    done = editions.save(SHARED.replace("lines=Sum(1)", "lines=Sum(3)"))
    assert {route.name for route in done.handlers} == {"order_total", "order_lines", "everything"}
    assert list(done.changes) == ["ORDER#{order_id} / TOTAL"]
    assert all(change.attributes == ["lines"] for change in done.changes["ORDER#{order_id} / TOTAL"])


def test_a_handler_that_is_renamed_is_new_and_gone(editions, recorded):
    editions.entries = list(RecordedFiles([recorded]))
    editions.save(SHARED)
    done = editions.save(SHARED.replace("def by_sku", "def sales"))
    assert "Handler 'sales' is new." in done.titles
    assert "Handler 'by_sku' is gone, with its rows." in done.titles
    assert done.changes == {}


def test_a_comment_concerns_no_handler(editions, recorded):
    editions.entries = list(RecordedFiles([recorded]))
    editions.save(SHARED)
    done = editions.save(SHARED + "\n# nothing else\n")
    assert (done.handlers, done.titles) == ([], ["handlers.py was saved: no handler changed."])


EDITS = (
    ('item["price"] * 1', 'item["price"] * 2'),
    ("lines=Sum(1)", "lines=Sum(5)"),
    ('row.get("total", 0) * 1', 'row.get("total", 0) * 7'),
    ("sold=Sum(1)", 'sold=Sum(item["price"])'),
    ('+ "1")', '+ "2")'),
    ("def by_sku", "def sold_by_sku"),
    ("sold=Sum(1)", 'sold=Sum(item["none"])'),
    ("ITEM, into=SKU", 'ITEM, into=Key("SKU#{sku}", "SUM")'),
)


def history(chosen, number):
    """Records of a few items that are put, changed, removed and put again."""
    items, records = {}, []
    for sequence in range(1, number + 1):
        key = (f"ORDER#{chosen.randint(1, 2)}", f"ITEM#{chosen.choice('ab')}")
        old = items.get(key)
        new = None if old and chosen.random() < 0.3 else item(*key, price=chosen.randint(1, 9))
        records.append(record(old, new, sequence, at=1_772_355_600.0 + sequence))
        items[key] = new
    return records


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_edited_the_known_rows_are_those_of_a_fold_of_everything(editions, folder, seed):
    chosen = random.Random(seed)
    entries = list(RecordedFiles([folder.records(*history(chosen, 16))]))
    editions.entries, waiting = entries[:4], entries[4:]
    assert editions.save(SHARED).summary.clean
    for _ in range(6):
        if waiting and chosen.random() < 0.4:
            editions.grow([waiting.pop(0), *([waiting.pop(0)] if waiting else [])])
        else:
            text = SHARED
            for old, new in chosen.sample(EDITS, k=chosen.randint(0, 3)):
                text = text.replace(old, new)
            editions.save(text)
        known, anew = rows_of(editions.known), rows_anew(editions, folder)
        assert known == anew


def rows_anew(editions, folder):
    """The rows of an edition that knows of none before it."""
    folder._forget()
    fresh = Edition(editions.edition.order, KnownRows())
    fresh.load()
    fresh.edited(editions.entries, ())
    return rows_of(fresh.known)


@pytest.mark.parametrize("name", ["a.b.c.d-e.pyc", "a.pyc", "a\0b", "loop"])
def test_whatever_a_handler_opens_is_opened(editions, recorded, name):
    Path("loop").symlink_to("loop")
    editions.entries = list(RecordedFiles([recorded]))
    opens = f"import contextlib\nwith contextlib.suppress(FileNotFoundError, OSError):\n    open({name!r}).close()\n"
    if "\0" in name:
        opens = opens.replace("OSError", "OSError, ValueError")
    done = editions.save(opens + SHARED)
    assert done.summary.clean
    assert str(Path("handlers.py").resolve()) in editions.edition.watched()


# --- the command while it watches


class Watched:
    """A command that runs, and what it has printed so far."""

    def __init__(self, process, output):
        self.process, self.output, self.text = process, output, ""

    def until(self, pattern):
        """What is printed until this appears, and behind the last such text."""
        end = time.monotonic() + SECONDS_MAX
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, self.text
            if select.select([self.output], [], [], 0.1)[0]:
                try:
                    piece = os.read(self.output, 65536)
                except OSError:  # a terminal ends so
                    piece = b""
                assert piece, self.text
                self.text += piece.decode()
        shown, self.text = self.text[: found.end()], self.text[found.end() :]
        return shown

    def stop(self):
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(SECONDS_MAX)


@contextmanager
def watched(folder, *arguments, terminal=False, **variables):
    ours, theirs = os.openpty() if terminal else os.pipe()
    try:
        process = subprocess.Popen(
            command_line("dev", *arguments),
            cwd=folder.path,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            yield Watched(process, ours)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        os.close(ours)


def test_a_save_shows_the_rows_that_it_changes(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        folder.app(SHOP.replace('Sum(item["price"])', 'Sum(2 * item["price"])'))
        shown = dev.until("Nothing failed")
        assert "handlers.py was saved: order_total changed." in shown
        assert "ORDER#{order_id} / TOTAL  (order_total): 3 rows otherwise, 0 more, 0 fewer; total in 3" in shown
        assert ["ORDER#2", "/", "TOTAL", "total", "2", "4"] in [line.split() for line in shown.splitlines()]
        assert dev.stop() == 130
        assert dev.until("Stopped").endswith("Stopped")
        assert "Traceback" not in dev.text


def test_code_that_does_not_import_is_shown_and_the_next_save_is_waited_for(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        folder.app(SHOP.replace("yield Row(", "yield Row(("))
        shown = dev.until("The next save is folded")
        assert "does not import: SyntaxError" in shown
        assert "handlers.py:1" in shown
        folder.app(SHOP.replace("import App", "import Nothing, App"))
        assert "cannot import name 'Nothing'" in dev.until("The next save is folded")
        folder.app(SHOP.replace("def order_total", "def total_of_order"))
        shown = dev.until("Nothing failed")
        assert "Handler 'total_of_order' is new. Handler 'order_total' is gone, with its rows." in shown


def test_handlers_that_do_not_import_at_first_are_waited_for(folder, recorded):
    folder.app(SHOP.replace("from streamfold", "import prices\nfrom streamfold"))
    with watched(folder, recorded) as dev:
        assert "does not import: No module named 'prices'" in dev.until("The next save is folded")
        folder.write("prices.py", "")
        assert "3 records of records.jsonl, 1 handler." in dev.until("Nothing failed")


def test_every_save_starts_from_modules_without_a_past(folder, recorded):
    folder.write("counts.py", "imports = []\n")
    once = "import counts\ncounts.imports.append(1)\nassert len(counts.imports) == 1\n"
    folder.app(once + SHOP)
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        folder.app(once + SHOP.replace("Count()", "Count() "))
        dev.until("no handler changed")
        folder.app(once + SHOP.replace("lines", "pieces"))
        assert "pieces" in dev.until("Nothing failed")


def test_a_file_that_grows_is_followed_and_a_last_line_waits_for_its_rest(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        text = json.dumps(lines_of(1, 4)[0]) + "\n"
        with Path(recorded).open("a") as file:
            file.write(text[:50])
            file.flush()
            shown = flat(dev.until(r"record\s+it\s+again"))
            assert "records.jsonl:4: the file ends inside this record, after 50 bytes" in shown
            file.write(text[50:])
        shown = dev.until("Nothing failed")
        assert "1 record more, 4 in all." in shown
        assert "ORDER#4 / TOTAL" in shown


def test_a_file_that_is_replaced_is_folded_from_its_begin(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        folder.records(*lines_of(1, 7))
        dev.until("records.jsonl was replaced")
        assert "1 record of records.jsonl" in dev.until("Nothing failed")


def test_a_handler_that_ends_the_process_does_not_end_the_command(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        folder.app(SHOP.replace("    yield Row(", "    import os\n    os._exit(9)\n    yield Row("))
        dev.until(r"ended by itself \(exit code 9\)")
        folder.app(SHOP.replace("lines", "pieces"))
        dev.until("Nothing failed")


def test_a_handler_that_never_returns_is_given_up_at_the_next_save(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        folder.app(
            SHOP.replace("    yield Row(", "    print('it hangs', flush=True)\n    while True: pass\n    yield Row(")
        )
        dev.until("it hangs")
        folder.app(SHOP.replace("lines", "pieces"))
        assert "pieces" in dev.until("Nothing failed")


def test_objects_are_printed_one_a_line(folder, recorded):
    folder.app(SHOP.replace("    yield Row(", "    print('beside')\n    yield Row("))
    with watched(folder, recorded, "--json") as dev:
        first = [line for line in dev.until(r"\}\n").splitlines() if line.startswith("{")]
        assert json.loads(first[0])["records"] == 3
        folder.app(SHOP.replace("lines", "pieces"))
        found = json.loads(dev.until(r"\}\n"))
        assert found["changed_rows"] == {"ORDER#{order_id} / TOTAL": 3}


@pytest.mark.parametrize("terminal", [True, False])
def test_sixty_columns_and_no_colour_are_kept_to(folder, recorded, terminal):
    with watched(folder, recorded, terminal=terminal, COLUMNS="60", NO_COLOR="1", TERM="xterm-256color") as dev:
        shown = dev.until("Nothing failed")
        folder.app(SHOP.replace("lines=Count()", "lines=Count(), description_of_this_order=Sum(1)"))
        shown += dev.until("Nothing failed")
        assert "\x1b" not in shown
        assert [line for line in shown.splitlines() if len(line) > 60] == []


def test_a_terminal_may_have_bold_headings_and_a_pipe_has_plain_lines(folder, recorded):
    with watched(folder, recorded, terminal=True, TERM="xterm-256color") as dev:
        assert "\x1b[1m" in dev.until("Nothing failed")
    with watched(folder, recorded) as dev:
        assert "\x1b" not in dev.until("Nothing failed")


def test_an_output_that_is_closed_ends_the_command(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        os.close(dev.output)
        dev.output = os.open(os.devnull, os.O_RDONLY)
        folder.app(SHOP.replace("lines", "pieces"))
        assert dev.process.wait(SECONDS_MAX) == 1


def test_no_process_is_left_behind(folder, recorded):
    with watched(folder, recorded) as dev:
        dev.until("Nothing failed")
        dev.stop()
        with pytest.raises(ProcessLookupError):
            os.killpg(dev.process.pid, 0)
