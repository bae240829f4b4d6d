"""``streamfold repair``: items are led to their sources again, on a local state and on DynamoDB."""

import json
import re
from contextlib import closing
from sqlite3 import connect

import pytest

from streamfold import Failure
from streamfold.batch.report import Report
from tests.cli.conftest import SHOP
from tests.cli.test_backfill import export
from tests.helpers.records import item

STATE = ("--state", "state.db")
SEARCH = """
from streamfold import App, Document, Key, Router

router = Router()


@router.search(Key("ORDER#{order_id}", "METADATA"), to="orders", fields={"n": "long"})
def orders(item):
    return Document(n=1)


app = App("shop", routers=[router])
"""
DOUBLED = SHOP.replace('Sum(item["price"])', 'Sum(2 * item["price"])')
RAISING = SHOP.replace("    yield", '    if item["price"] == 2:\n        raise LookupError("no price 2")\n    yield')
MORE = """

@router.view(ITEM, into=Key("ALL", "TOTAL"))
def everything(item):
    yield Row(items=Count())


@router.on(ITEM, into=Key("CHANGES", "TOTAL"))
def changes(change):
    yield Add(changes=1)


"""
TWO = SHOP.replace("\n\napp =", MORE + "app =").replace("import App,", "import Add, App,")
CHAIN = SHOP.replace(
    "\n\napp =",
    """

@router.view(TOTAL, into=Key("ALL", "ORDERS"))
def all_orders(order):
    yield Row(total=Sum(order["total"]))


app =""",
)


@pytest.fixture
def records(source):
    return [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 2, 3)]


@pytest.fixture
def changed(folder, records):
    """A state of three orders, and code that makes something else of them."""
    folder.run("replay", folder.records(*records), *STATE)
    folder.app(DOUBLED)
    return folder


def report(ran):
    return json.loads(ran.out)


def test_an_item_with_this_key_is_led_to_what_the_handler_makes_of_it_now(changed):
    ran = changed.run("repair", "--key", "ORDER#2", "ITEM#a", *STATE)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "1 item: 1 contribution written, 0 equal, 0 failed; 1 write of rows.\n"
    assert changed.totals() == {"ORDER#1": 1, "ORDER#2": 4, "ORDER#3": 3}


def test_an_item_that_is_not_there_is_told(changed):
    ran = changed.run("repair", "--key", "ORDER#9", "ITEM#a", *STATE)
    assert ran.code == 0
    assert ran.err.startswith("There is no item ORDER#9 / ITEM#a now: check its key")


def test_a_second_repair_changes_nothing(changed):
    changed.run("repair", "--key", "ORDER#2", "ITEM#a", *STATE)
    found = report(changed.run("repair", "--key", "ORDER#2", "ITEM#a", *STATE, "--json"))
    assert (found["row_writes"], changed.totals()["ORDER#2"]) == (0, 4)


def test_items_of_a_file_in_both_forms_are_repaired(changed):
    key = {"table": "main", "key": {"PK": {"S": "ORDER#3"}, "SK": {"S": "ITEM#a"}}}
    file = changed.write("keys.txt", f"ORDER#1\tITEM#a\n\n{json.dumps(key)}\n{json.dumps(key['key'])}\n")

    found = report(changed.run("repair", "--keys", file, *STATE, "--json"))

    assert found == {
        "dry_run": False,
        "unread": 0,
        "items": 2,
        "written": 2,
        "equal": 0,
        "uncompared": 0,
        "row_writes": 2,
        "failed": [],
        "chains_failed": 0,
    }
    assert changed.totals() == {"ORDER#1": 2, "ORDER#2": 2, "ORDER#3": 6}


def test_a_file_of_keys_may_begin_with_a_mark_and_have_the_ends_of_lines_of_windows(changed):
    file = changed.write("keys.txt", "\ufeffORDER#1\tITEM#a\r\n\r\nORDER#2\tITEM#a\r\n")
    assert changed.run("repair", "--keys", file, *STATE).code == 0
    assert changed.totals() == {"ORDER#1": 2, "ORDER#2": 4, "ORDER#3": 3}


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r"])
def test_a_key_with_a_letter_that_ends_a_line_elsewhere_is_kept_and_taken(folder, source, letter):
    folder.run("replay", folder.records(source.put(f"ORDER#1{letter}x", "ITEM#a", price=2)), *STATE)
    folder.app(RAISING)
    ran = folder.run("repair", "--key", f"ORDER#1{letter}x", "ITEM#a", *STATE, "--failed", "left.jsonl")
    assert ran.code == 1
    folder.app(DOUBLED)
    found = report(folder.run("repair", "--keys", "left.jsonl", *STATE, "--json"))
    assert (found["items"], found["written"], found["unread"]) == (1, 1, 0)
    assert folder.totals() == {f"ORDER#1{letter}x": 4}


def test_a_dry_run_tells_what_differs_and_writes_nothing(changed):
    ran = changed.run("repair", "--key", "ORDER#2", "ITEM#a", *STATE, "--dry-run")

    assert ran.code == 0
    assert ran.out.splitlines() == [
        "ORDER#2 / ITEM#a, handler 'order_total' differs",
        "Dry run of 1 item: 1 different, 0 equal, 0 failed. Nothing was written.",
    ]
    assert changed.totals()["ORDER#2"] == 2


def test_a_dry_run_calls_nothing_different_that_it_cannot_compare(folder, source):
    folder.app(SEARCH)
    folder.run("replay", folder.records(source.put("ORDER#1")), *STATE)
    dry = ("repair", "--key", "ORDER#1", "METADATA", *STATE, "--dry-run")

    ran = folder.run(*dry)

    compared = "Dry run of 1 item: 0 different, 0 equal, 0 failed"
    assert ran.out == f"{compared}; 1 contribution not comparable, derived again. Nothing was written.\n"
    found = report(folder.run(*dry, "--json"))
    assert (found["written"], found["uncompared"]) == (1, 1)


def test_an_item_that_fails_is_told_and_kept_in_a_file_which_the_next_repair_takes(changed):
    changed.app(RAISING)
    file = changed.write("keys.txt", "".join(f"ORDER#{number}\tITEM#a\n" for number in (1, 2, 3)))

    ran = changed.run("repair", "--keys", file, *STATE, "--failed", "failed.jsonl")

    assert ran.code == 1
    assert ran.err == "Failed: item ORDER#2 / ITEM#a, handler 'order_total': LookupError: no price 2\n"
    assert ran.out == "3 items: 2 contributions written, 0 equal, 1 failed; 0 writes of rows.\n"
    (line,) = (changed.path / "failed.jsonl").read_text().splitlines()
    assert json.loads(line) == {"table": "main", "key": {"PK": {"S": "ORDER#2"}, "SK": {"S": "ITEM#a"}}}
    changed.app(DOUBLED)
    assert changed.run("repair", "--keys", "failed.jsonl", *STATE).code == 0
    assert changed.totals()["ORDER#2"] == 4


def test_only_the_handlers_that_are_named_are_repaired(folder, records):
    folder.app(TWO)
    folder.run("replay", folder.records(*records), *STATE)
    folder.app(TWO.replace('Sum(item["price"])', 'Sum(2 * item["price"])').replace("items=Count()", "n=Count()"))

    ran = folder.run("repair", "--key", "ORDER#2", "ITEM#a", *STATE, "--handler", "everything")

    assert ran.code == 0, ran.err
    rows = folder.rows(*STATE)
    assert (rows["ORDER#2 / TOTAL"]["total"], rows["ALL / TOTAL"]["n"]) == ({"N": "2"}, {"N": "1"})


def test_handlers_behind_the_rows_of_a_local_state_follow(folder, records):
    folder.app(CHAIN)
    folder.run("replay", folder.records(*records), *STATE)
    folder.app(CHAIN.replace('Sum(item["price"])', 'Sum(2 * item["price"])'))

    assert folder.run("repair", "--key", "ORDER#3", "ITEM#a", *STATE).code == 0

    assert folder.rows(*STATE)["ALL / ORDERS"]["total"] == {"N": "9"}


def test_a_handler_behind_the_rows_that_fails_is_told(folder, records):
    folder.app(CHAIN)
    folder.run("replay", folder.records(*records), *STATE)
    folder.app(CHAIN.replace('Sum(item["price"])', 'Sum(2 * item["price"])').replace('order["total"]', 'order["no"]'))

    ran = folder.run("repair", "--key", "ORDER#3", "ITEM#a", *STATE)

    assert ran.code == 1
    assert ran.err.startswith("Failed: chains: ")


def test_of_many_handlers_behind_the_rows_that_fail_the_first_are_told(folder, records, monkeypatch):
    folder.app(CHAIN)
    folder.run("replay", folder.records(*records), *STATE)
    handlers = [f"everything_{number}" for number in range(25)]
    failures = [Failure(str(number), "ALL / ORDERS", name, KeyError("no")) for number, name in enumerate(handlers)]
    monkeypatch.setattr("streamfold.cli.jobs.run_chains", lambda *_: Report(failures=failures))

    ran = folder.run("repair", "--key", "ORDER#3", "ITEM#a", *STATE)

    assert (ran.code, ran.err.count("Failed: chains: ")) == (1, 20)
    assert "... and 5 more." in ran.err.splitlines()


def test_keys_that_no_handler_reads_are_counted(changed):
    file = changed.write("keys.jsonl", 'ORDER#1\tITEM#a\n{"PK": {"S": "USER#1"}, "SK": {"S": "X"}}\n')

    ran = changed.run("repair", "--keys", file, *STATE)

    assert (ran.code, ran.err) == (0, "No handler reads 1 of the keys.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "Error: Say which items: either --key PARTITION [SORT], --keys FILE, --from-verify REPORT or --export",
        ),
        (("--key", "ORDER#1", "ITEM#a", "--keys", "keys"), "Error: Say which items: either"),
        (("ITEM#a",), "Error: 'ITEM#a' has no --key before it: give a key with --key PARTITION [SORT].\n"),
        (
            ("--key", "USER#1", "X"),
            "Error: No handler reads the item USER#1 / X: expected PARTITION and SORT of ORDER#{order_id}",
        ),
        (("--key", "ORDER#1"), "Error: No handler reads the item ORDER#1: expected PARTITION and SORT of"),
        (
            ("--keys", "missing"),
            "Error: --keys missing cannot be read: No such file or directory. Name another",
        ),
        (("--from-verify", "missing"), "Error: --from-verify missing cannot be read: No such file or directory."),
        (("--keys", "bytes"), "Error: --keys bytes cannot be read: it is no UTF-8 text. Name another file.\n"),
        (("--keys", "text"), "Error: text:2 holds no key that a handler of the application reads. Expected: One key"),
        (("--keys", "json"), "Error: json:1 is not JSON. Expected: One key a line"),
        (("--keys", "deep"), "Error: deep:1 is not JSON. Expected: One key a line"),
        (("--from-verify", "deep"), "Error: deep is no report of verify: expected what streamfold verify --json"),
        (("--keys", "other"), "Error: other:1 holds no key of a table of the application. Expected: One key a line"),
        (("--keys", "unread"), "Error: None of the 1 items is read by order_total: nothing was done.\n"),
        (("--from-verify", "json"), "Error: json is no report of verify: expected what streamfold verify --json"),
        (("--from-verify", "foreign"), "Error: foreign is a report of application 'x': expected one of 'shop'.\n"),
        (
            ("--key", "ORDER#1", "ITEM#a", "--handler", "order_totals"),
            "Error: The command names 'order_totals', which is no handler of the application: expected order_total.\n",
        ),
        (
            ("--key", "ORDER#1", "ITEM#a", "--failed", "no/x"),
            "Error: There is no folder no for x: name another file with",
        ),
        (
            ("--key", "ORDER#1", "ITEM#a", "--failed", "x" * 300),
            "can be no file: it is longer than the file system takes. Name another",
        ),
    ],
)
def test_mistake_is_told(changed, arguments, message):
    changed.write("text", "ORDER#1\tITEM#a\nORDER#1 ITEM#a\n")
    changed.write("json", "{no\n")
    changed.write("deep", '{"a":' * 10_000)
    (changed.path / "bytes").write_bytes(b"\xff")
    changed.write("other", '{"table": "users", "key": {}}\n')
    changed.write("unread", '{"PK": {"S": "USER#1"}, "SK": {"S": "X"}}\n')
    changed.write("foreign", json.dumps({"application": "x", "different": [], "failed": []}))

    ran = changed.run("repair", *arguments, *STATE)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_handler_whose_truth_is_the_changes_is_refused(folder, records):
    folder.app(TWO)
    folder.run("replay", folder.records(*records), *STATE)

    ran = folder.run("repair", "--key", "ORDER#1", "ITEM#a", *STATE, "--handler", "changes")

    assert ran.code == 2
    assert "Error: Handler 'changes' is of kind on: its rows follow from the changes of items" in ran.err


def test_a_handler_that_is_switched_off_is_refused_or_left_out(changed, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "order_total")

    named = changed.run("repair", "--key", "ORDER#1", "ITEM#a", *STATE, "--handler", "order_total")
    every = changed.run("repair", "--key", "ORDER#1", "ITEM#a", *STATE)

    assert named.code == 2
    assert named.err == (
        "Error: Handler 'order_total' is switched off (STREAMFOLD_HANDLERS_OFF): its rows are not kept up to date.\n"
    )
    assert every.code == 2
    assert "Handler 'order_total' is switched off (STREAMFOLD_HANDLERS_OFF): it is left out.\n" in every.err


def test_items_on_dynamodb_are_repaired_once_it_was_said_where(on_aws, records):
    on_aws.deliver(*records)
    on_aws.folder.app(DOUBLED)

    asked = on_aws.run("repair", "--key", "ORDER#2", "ITEM#a")
    ran = on_aws.run("repair", "--key", "ORDER#2", "ITEM#a", "--yes")

    where = "This writes to AWS, account 123456789012, region us-east-1: derived rows to shop, state to shop-state.\n"
    assert (asked.code, asked.err) == (
        2,
        where + "Error: Nobody can be asked for confirmation here: give --yes to write to AWS.\n",
    )
    assert (ran.code, ran.err) == (0, where)
    assert on_aws.row("ORDER#2")["total"] == {"N": "4"}


def test_a_command_never_writes_the_manifest_and_refuses_a_handler_that_no_function_has_named(on_aws, records):
    on_aws.deliver(*records)
    before = on_aws.manifest()
    on_aws.folder.app(TWO)

    named = on_aws.run("repair", "--key", "ORDER#2", "ITEM#a", "--handler", "everything", "--yes")
    every = on_aws.run("repair", "--key", "ORDER#2", "ITEM#a", "--yes")

    assert named.code == 2
    assert "Error: Handler 'everything' was not named by any function yet: deploy it first." in named.err
    assert every.code == 0
    assert "Handler 'everything' was not named by any function yet: it is left out.\n" in every.err
    assert on_aws.manifest() == before
    assert on_aws.row("ALL") is None


def test_the_keys_of_an_incremental_export_are_led_to_their_sources(changed):
    place = export(changed, item("ORDER#1", "ITEM#a"), item("ORDER#9", "ITEM#a"), item("OTHER", "X"), images="Keys")
    ran = changed.run("repair", "--export", place, *STATE, "--json")
    found = report(ran)
    assert (ran.code, found["unread"], found["items"], found["failed"]) == (0, 1, 2, [])
    assert changed.totals() == {"ORDER#1": 2, "ORDER#2": 2, "ORDER#3": 3}


def test_what_a_gap_lost_is_made_good_by_its_export(folder, records):
    """Items were removed while the function was off, and no record came."""
    folder.run("replay", folder.records(*records), *STATE)
    with closing(connect(folder.path / "state.db")) as state, state:
        state.execute("UPDATE items SET item = NULL WHERE pk IN ('ORDER#1', 'ORDER#2') AND version IS NOT NULL")
    assert folder.totals() == {"ORDER#1": 1, "ORDER#2": 2, "ORDER#3": 3}
    place = export(folder, *(item(f"ORDER#{number}", "ITEM#a") for number in (1, 2)), images="Keys")
    assert folder.run("repair", "--export", place, *STATE).code == 0
    assert folder.totals() == {"ORDER#3": 3}
    assert folder.run("verify", "--full", *STATE).code == 0


@pytest.mark.parametrize("name", ["manifest-files.json", "manifest-summary.json"])
@pytest.mark.parametrize(
    ("content", "why"), [(b"\xff\xfe", "it is no UTF-8 text"), (b"[" * 10_000, "expected|no JSON object")]
)
def test_a_damaged_manifest_is_told(changed, name, content, why):
    place = export(changed, item("ORDER#1", "ITEM#a"), images="Keys")
    changed.write(f"export/{name}", content)
    ran = changed.run("repair", "--export", place, *STATE)
    assert (ran.code, ran.out) == (2, "")
    assert re.search(rf"^Error: .*{name} of export {place} .*({why})", ran.err)


def test_an_export_is_of_one_table_and_stands_alone(changed):
    assert "expected the manifest-files.json" in changed.run("repair", "--export", "other.json", *STATE).err
    both = changed.run("repair", "--export", "x/manifest-files.json", "--key", "ORDER#1", *STATE)
    assert "Say which items" in both.err
