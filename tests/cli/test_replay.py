"""``streamfold replay`` on the embedded engine: what it reads, writes, counts and says."""

import gzip
import json
import sqlite3
from copy import deepcopy
from pathlib import Path

import pytest

from streamfold.cli.items import SAMPLE_ROWS
from streamfold.engines import EmbeddedEngine
from streamfold.errors import EngineError, HandlerError
from streamfold.testing import KinesisTwin, piped
from tests.cli.conftest import SHOP
from tests.helpers.commands import EVENTS, SPECIAL, streamfold

LARGE = ("music", "shop")
"""Two files of eight, and two thirds of all records."""
STATE = ("--state", "state.db")
WITH_EXTERNAL = """
from pathlib import Path

from streamfold import App, Key, Router

SESSION = Key("SESSION#{session_id}", "METADATA")
router = Router()


@router.on(SESSION, external=True)
def send_mail(change, session_id):
    with Path("mails.txt").open("a") as mails:
        mails.write(session_id)


app = App("shop", routers=[router])
"""
LOOKED_UP = """
from streamfold import App, Key, Lookup, Router, Row, Sum

ITEM, PRODUCT = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("PRODUCT#{sku}", "META")
router = Router()


@router.view(ITEM, into=Key("CATEGORY#{category}", "SALES"), lookup={"product": Lookup(PRODUCT)})
def sales(item, product):
    return Row(category=product["category"], total=Sum(item["price"]))


app = App("shop", routers=[router])
"""
CHAINED = """
from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
ALL = Key("ALL", "ORDERS")
router = Router()


@router.view(ITEM, into=TOTAL)
def order_total(item):
    yield Row(total=Sum(item["price"]))


@router.view(TOTAL, into=ALL)
def all_orders(order):
    yield Row(total=Sum(order["total"]), orders=Count())


app = App("shop", routers=[router])
"""
SILENT = """
from streamfold import App, Key, Router, Row

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
SESSION = Key("SESSION#{session_id}", "METADATA")
router = Router()


@router.view(ITEM, into=Key("OTHER", "{sku}"))
def nothing(item):
    yield from ()


@router.view(SESSION, into=Key("NEVER", "{session_id}"))
def never(item):
    yield Row()


app = App("shop", routers=[router])
"""


@pytest.fixture
def records(source):
    return [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in range(1, 8)]


def summary(ran):
    """What ``--json`` printed."""
    assert ran.out.count("\n") == 1
    return json.loads(ran.out)


def test_records_become_rows_that_show_prints(folder, records):
    ran = folder.run("replay", folder.records(*records), *STATE)

    assert ran.code == 0
    assert folder.totals() == {f"ORDER#{number}": number for number in range(1, 8)}


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda records: json.dumps({"Records": records}), id="event"),
        pytest.param(lambda records: json.dumps({"Records": records}, indent=2), id="pretty-printed event"),
        pytest.param(json.dumps, id="list"),
        pytest.param(lambda records: json.dumps(records, indent=4), id="pretty-printed list"),
        pytest.param(
            lambda records: "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n", id="list, a record a line"
        ),
        pytest.param(
            lambda records: '{"Records": [\n' + ",\n".join(map(json.dumps, records)) + "]}", id="event, a record a line"
        ),
        pytest.param(lambda records: "\r\n\r\n".join(map(json.dumps, records)), id="lines with carriage returns"),
        pytest.param(lambda records: "\ufeff" + "\n".join(map(json.dumps, records)), id="byte order mark"),
        pytest.param(
            lambda records: "\n".join(json.dumps({"Records": [record]}) for record in records), id="event a line"
        ),
        pytest.param(lambda records: f"{json.dumps(records[:3])}\n{json.dumps(records[3:])}\n", id="list a line"),
    ],
)
def test_records_are_taken_in_every_shape(folder, records, shape):
    ran = folder.run("replay", folder.write("events.json", shape(records)), *STATE)

    assert ran.code == 0, ran.err
    assert len(folder.totals()) == 7


def test_one_pretty_printed_record_is_taken(folder, records):
    assert folder.run("replay", folder.write("one.json", json.dumps(records[0], indent=2)), *STATE).code == 0
    assert folder.totals() == {"ORDER#1": 1}


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_replay_that_keeps_nothing_says_what_one_into_a_file_says(tmp_path, form):
    files = (*(file for file in EVENTS if file.stem not in LARGE), *SPECIAL, "--keep-going", *form)
    kept = streamfold("replay", *files, "--state", tmp_path / "state.db")
    ran = streamfold("replay", *files)

    said = [one.out.partition("\nNext:")[0] for one in (ran, kept)]  # what can be done next differs
    assert "daily_sales" in said[0]
    assert (ran.code, said[0], ran.err) == (kept.code, said[1], kept.err)


def test_compressed_file_is_read(folder, records):
    folder.write("records.jsonl.gz", gzip.compress((folder.path / folder.records(*records)).read_bytes()))

    assert folder.run("replay", "records.jsonl.gz", *STATE).code == 0
    assert len(folder.totals()) == 7


def test_standard_input_is_read_where_a_dash_stands(folder, records):
    ran = folder.run("replay", "-", *STATE, stdin="\n".join(map(json.dumps, records)).encode())

    assert ran.code == 0
    assert len(folder.totals()) == 7


def test_files_are_read_in_the_order_given(folder, source):
    first = folder.records(source.put("ORDER#1", "ITEM#a", price=1), name="a.jsonl")
    second = folder.records(source.put("ORDER#1", "ITEM#a", price=2), name="b.jsonl")

    assert folder.run("replay", second, first, *STATE).code == 0
    assert folder.totals() == {"ORDER#1": 2}


def test_empty_file_is_no_mistake(folder):
    ran = folder.run("replay", folder.write("empty.jsonl", ""))

    assert ran.code == 0
    assert "0 records replayed.\n" in ran.out
    assert ran.err == "No record was read: empty.jsonl is empty.\n"


def test_a_replay_without_failures_says_so(folder, records):
    assert f"{len(records)} records replayed. Nothing failed.\n" in folder.run("replay", folder.records(*records)).out


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_bad_line_stops_the_replay_with_everything_before_it_applied_at_any_batch_size(folder, records, size):
    lines = [*map(json.dumps, records[:5]), json.dumps(records[5])[:40], json.dumps(records[6])]
    folder.write("records.jsonl", "\n".join(lines))

    ran = folder.run("replay", "records.jsonl", *STATE, "--batch-size", size)

    assert ran.code == 1
    assert "Bad line: records.jsonl:6: this is not JSON (" in ran.err
    assert 'expected a Lambda event {"Records": [...]}, a list' in ran.err
    assert ran.err.endswith("Stopped at the bad line; everything before it is applied.\n")
    assert list(folder.totals()) == [f"ORDER#{number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        (STATE, "the same command    applies the rest, once", "the same command, with --keep-going    skips"),
        ((*STATE, "--fresh"), "the same command without --fresh    applies", "the same command without --fresh, with"),
        ((), "the same command    starts over, once", "the same command, with --keep-going    skips bad lines"),
    ],
)
def test_a_replay_that_stopped_at_a_bad_line_says_how_it_goes_on(folder, records, options, first, second):
    folder.write("records.jsonl", json.dumps(records[0]) + "\n{\n")

    _, _, said = folder.run("replay", "records.jsonl", *options).out.partition("\nNext: ")

    assert said.startswith(first)
    assert "once records.jsonl:2 is corrected; nothing counts twice" in said
    assert said.splitlines()[1].startswith(f"      {second}")
    assert said.count("\n") == 2


def test_a_dry_run_that_stopped_at_a_bad_line_says_that_nothing_is_applied(folder, records):
    folder.write("records.jsonl", json.dumps(records[0]) + "\n{\n")

    ran = folder.run("replay", "records.jsonl", "--dry-run")

    assert ran.err.endswith("Stopped at the bad line; everything before it is planned.\n")
    assert "Next: correct the line; the same command with --keep-going skips bad lines" in ran.out


def test_bad_lines_that_were_skipped_are_applied_once_they_are_mended(folder, records):
    folder.write("records.jsonl", "{\n" + json.dumps(records[1]))
    ran = folder.run("replay", "records.jsonl", *STATE, "--keep-going")
    assert "the same command    applies the bad lines too, once they are corrected" in ran.out

    folder.run("replay", folder.records(*records[:2]), *STATE, "--keep-going")

    assert list(folder.totals()) == ["ORDER#1", "ORDER#2"]


def test_bad_lines_are_skipped_and_all_reported_with_keep_going(folder, records):
    lines = [json.dumps(records[0]), "{", json.dumps(records[1]), '"text"', json.dumps(records[2])]
    folder.write("records.jsonl", "\n".join(lines))

    ran = folder.run("replay", "records.jsonl", *STATE, "--keep-going")

    assert ran.code == 1
    assert [line.partition(": this")[0].partition(": This")[0] for line in ran.err.splitlines()] == [
        "Bad line: records.jsonl:2",
        "Bad line: records.jsonl:4",
    ]
    assert len(folder.totals()) == 3


def test_summary_counts_bad_lines_and_says_that_it_stopped(folder, records):
    folder.write("records.jsonl", json.dumps(records[0]) + "\n{\n")

    found = summary(folder.run("replay", "records.jsonl", "--json"))

    assert found["bad_lines"][0]["line"] == "records.jsonl:2"
    assert (found["records"], found["bad_line_count"], found["stopped"]) == (1, 1, True)


@pytest.mark.parametrize("cut", [17, 40, 200])
def test_first_line_that_is_cut_off_is_a_bad_line_and_not_the_beginning_of_a_document(folder, records, cut):
    first = json.dumps(records[0])
    folder.write("records.jsonl", "\n".join([first[:cut], *map(json.dumps, records[1:])]))

    ran = folder.run("replay", "records.jsonl", *STATE, "--keep-going")

    assert "Bad line: records.jsonl:1: this is not JSON" in ran.err
    assert len(folder.totals()) == 6


def test_first_line_that_is_cut_off_behind_a_brace_is_a_bad_line(folder, records):
    first = json.dumps(records[0])
    folder.write("records.jsonl", "\n".join([first[: first.index('"Keys": {') + 9], *map(json.dumps, records[1:])]))

    ran = folder.run("replay", "records.jsonl", *STATE, "--keep-going")

    assert "Bad line: records.jsonl:1: this is not JSON" in ran.err
    assert len(folder.totals()) == 6


def test_truncated_document_is_a_bad_line_at_the_place_where_it_ends(folder, records):
    text = json.dumps({"Records": records}, indent=2)[:900]
    folder.write("event.json", text)

    ran = folder.run("replay", "event.json")

    assert ran.code == 1
    assert f"Bad line: event.json:{text.count(chr(10)) + 1}: this is not JSON" in ran.err


def test_truncated_compression_is_a_bad_line_with_everything_before_it_applied(folder, source):
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number, text=str(hash(number))) for number in range(500)]
    packed = gzip.compress("\n".join(map(json.dumps, records)).encode())
    folder.write("records.jsonl.gz", packed[: len(packed) // 2])

    ran = folder.run("replay", "records.jsonl.gz", *STATE)

    assert ran.code == 1
    assert "its compression is damaged or cut off" in ran.err
    assert 0 < len(folder.totals()) < 500


def test_file_that_is_no_text_is_a_bad_line(folder):
    ran = folder.run("replay", folder.write("records.jsonl", b'{"a": "\xff"}\n'))

    assert ran.code == 1
    assert "Bad line: records.jsonl:1: this is not UTF-8 text (invalid start byte at byte 7)" in ran.err


def test_record_without_keys_is_a_bad_line_that_says_so(folder, records):
    del records[1]["dynamodb"]["Keys"]

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert ran.code == 1
    sequence = records[1]["dynamodb"]["SequenceNumber"]
    assert f"Bad line: records.jsonl:2: Record {sequence} has no 'Keys': expected the item's key attributes." in ran.err
    assert folder.totals() == {"ORDER#1": 1}


def test_record_with_other_key_attributes_is_a_bad_line_that_names_both(folder, records):
    records[0]["dynamodb"]["Keys"] = {"Id": {"N": "101"}}

    ran = folder.run("replay", folder.records(*records))

    assert "has the key attributes Id: table 'main' is declared with PK, SK" in ran.err
    assert "Other names are given with Table('main', partition=..., sort=...)." in ran.err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', "found an object with the keys ['a']"),
        ('{"Records": {}}', "found an object with the keys ['Records']"),
        ("17", "found int"),
        ('["text"]', "A record is str"),
        ('[{"eventSource": "aws:sqs"}]', "A record comes from 'aws:sqs': expected a DynamoDB stream"),
        ('[{"eventName": "INSERT"}]', "A record has no 'dynamodb' object"),
    ],
)
def test_what_is_no_record_is_a_bad_line_that_says_what_was_expected(folder, text, found):
    ran = folder.run("replay", folder.write("records.jsonl", text))

    assert ran.code == 1
    assert "Bad line: records.jsonl:1:" in ran.err
    assert found in ran.err


def test_file_that_does_not_exist_is_named_before_anything_runs(folder, records):
    ran = folder.run("replay", folder.records(*records), "missing.jsonl", *STATE)

    assert ran.code == 2
    assert ran.err.startswith("Error: File missing.jsonl does not exist: expected a recorded file")
    assert not (folder.path / "state.db").exists()


@pytest.mark.parametrize("given", ["yesterday", "2026-03-01", "2026-13-01T10:00:00Z", "2026-03-01T10:00:00"])
def test_a_moment_that_is_none_is_refused_with_one_as_the_command_line_takes_it(folder, records, given):
    ran = folder.run("replay", folder.records(*records), "--until", given)
    assert (ran.code, ran.err.strip()) == (
        2,
        f"Error: --until {given} is no moment: expected now, or a date with a time and a zone, 2026-03-01T10:00:00Z.",
    )


def test_a_moment_before_the_newest_record_lets_no_time_pass_and_is_told(folder, records):
    early, late = (
        folder.run("replay", folder.records(*records), "--until", each)
        for each in ("1971-01-01T00:00:00Z", "2099-01-01T00:00:00Z")
    )
    assert (early.code, "--until 1971-01-01T00:00:00Z is before the newest record: no time passed" in early.err) == (
        0,
        True,
    )
    assert (late.code, "--until" in late.err) == (0, False)


def test_second_table_is_refused_where_the_application_knows_one(folder, records, source):
    source.more = {"table": "invoices"}
    other = source.put("ORDER#9", "ITEM#a", price=9)

    ran = folder.run("replay", folder.records(*records, other), *STATE)

    assert ran.code == 1
    assert "Bad line: records.jsonl:8: A record is of table 'invoices', but the application knows 'main'" in ran.err
    assert "Is it a second table? Then declare it, Table(...), and give it to its Keys." in ran.err
    assert len(folder.totals()) == 7


def test_record_of_a_table_that_the_application_does_not_know_names_the_option_that_says_it_is_the_one(folder, records):
    folder.app(DECLARED_TABLE)

    ran = folder.run("replay", folder.records(*records))

    assert ran.code == 1
    assert "A record is of table 'main', but the application knows 'orders' (really 'orders')" in ran.err
    assert "Then set --table orders=main, or STREAMFOLD_TABLE_ORDERS=main." in ran.err
    assert folder.run("replay", "records.jsonl", "--table", "orders=main").code == 0


DECLARED_TABLE = """
from streamfold import App, Key, Router, Row, Sum, Table

ORDERS = Table("orders")
REPORTS = Table("reports", partition="name", sort=None)
ITEM = Key("ORDER#{order_id}", "ITEM#{sku}", table=ORDERS)
router = Router()


@router.view(ITEM, into=Key("ORDER#{order_id}", table=REPORTS))
def order_total(item):
    yield Row(total=Sum(item["price"]))


app = App("shop", routers=[router])
"""


def test_record_of_a_table_that_holds_derived_rows_only_is_counted_and_not_delivered(folder, source):
    folder.app(DECLARED_TABLE)
    source.more = {"table": "orders"}
    item = source.put("ORDER#1", "ITEM#a", price=1)
    row = {**item, "eventSourceARN": item["eventSourceARN"].replace("table/orders", "table/reports")}
    key = {"name": {"S": "ORDER#1"}}
    row["dynamodb"] = {**item["dynamodb"], "Keys": key, "NewImage": {**item["dynamodb"]["NewImage"], **key}}

    ran = folder.run("replay", folder.records(item, row), "--json")

    assert ran.code == 0, ran.err
    assert summary(ran)["derived"] == 1


def test_option_for_a_table_that_is_not_declared_is_refused(folder, records):
    ran = folder.run("replay", folder.records(*records), "--table", "invoices=x")

    assert ran.code == 2
    assert ran.err == "Error: --table 'invoices=x': the application has no table 'invoices', only main.\n"


def test_records_without_a_stream_are_taken_with_one_warning(folder, records):
    for record in records:
        del record["eventSourceARN"]

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert ran.code == 0
    assert ran.err.count("Warning: Records without a stream ARN are given the stream label") == 1
    assert len(folder.totals()) == 7


def test_key_that_misses_a_template_by_a_field_is_warned_about_once_with_its_value(folder, source):
    folder.app(
        """
from streamfold import App, Count, Key, Router, Row

router = Router()


@router.view(Key("ORDER#{number:06d}", "METADATA"), into=Key("ALL", "TOTAL"))
def all_orders(item):
    yield Row(orders=Count())


app = App("shop", routers=[router])
"""
    )
    records = [source.put(key) for key in ("ORDER#000001", "ORDER#12", "ORDER#12")]

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert ran.err.count("'12' is no {number:06d}") == 1
    assert "handlers.py:7" in ran.err


def test_known_records_are_counted_in_the_last_line_which_names_fresh(folder, records):
    folder.run("replay", folder.records(*records), *STATE)

    ran = folder.run("replay", "records.jsonl", *STATE)

    assert ran.code == 0
    assert ran.out.splitlines()[-1] == (
        "Known to the state before: 7 records. Nothing counts twice; --fresh starts over."
    )


GROUPS = """
from streamfold import App, Key, Router, Row, Sum

ITEM, TOTAL, ALL = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("ORDER#{order_id}", "TOTAL"), Key("ALL", "TOTALS")
router = Router()
router.view(ITEM, into=TOTAL, name="total", group="first")(lambda item: Row(total=Sum(item["price"])))
router.view(TOTAL, into=ALL, name="all", group="second")(lambda order: Row(total=Sum(order["total"])))
app = App("shop", routers=[router])
"""


def test_replay_of_another_group_goes_on_with_the_derived_rows_that_wait_for_it(folder, records, monkeypatch):
    folder.app(GROUPS)
    for group, warns in (("first", True), ("second", False)):
        monkeypatch.setenv("STREAMFOLD_GROUP", group)
        ran = folder.run("replay", folder.records(*records), "--state", "state.db")
        assert ran.code == 0, ran.err
        assert (
            "Warning: Changes of derived rows wait in this state for handlers of group 'second'" in ran.err
        ) is warns
    rows = folder.rows("--state", "state.db")
    assert int(rows.pop("ALL / TOTALS")["total"]["N"]) == sum(int(row["total"]["N"]) for row in rows.values()) > 0


def test_replay_of_one_group_that_keeps_nothing_says_nothing_of_others(folder, records, monkeypatch):
    folder.app(GROUPS)
    monkeypatch.setenv("STREAMFOLD_GROUP", "first")
    assert "wait in this state" not in folder.run("replay", folder.records(*records)).err


def test_known_records_of_new_images_alone_are_counted_too(folder, source):
    source.more = {"view": "NEW_IMAGE"}
    records = [source.put("ORDER#1", "ITEM#a", price=price) for price in (1, 2)]
    folder.run("replay", folder.records(*records), *STATE)

    for size in (1, 1000):
        ran = folder.run("replay", "records.jsonl", *STATE, "--batch-size", size, "--json")
        assert summary(ran)["known"] == 2


def test_known_records_are_counted_also_where_an_audit_writes_their_row_again(folder, records):
    folder.app(
        (folder.path / "handlers.py").read_text().replace("router = Router()", "router = Router()\nrouter.audit(ITEM)")
    )
    folder.run("replay", folder.records(*records), *STATE)

    assert summary(folder.run("replay", "records.jsonl", *STATE, "--json"))["known"] == 7


def test_records_that_only_a_new_handler_took_are_not_said_to_be_skipped(folder, records):
    folder.run("replay", folder.records(*records), *STATE)
    folder.app(
        (folder.path / "handlers.py").read_text().replace("router = Router()", "router = Router()\nrouter.audit(ITEM)")
    )

    ran = folder.run("replay", "records.jsonl", *STATE)

    assert "AUDIT#" in ran.out
    assert "skipped" not in ran.out
    assert "Known to the state before: 7 records." in ran.out


def test_a_new_name_of_an_application_over_an_old_state_is_refused(folder, records):
    folder.run("replay", folder.records(*records), *STATE)
    before = folder.totals()
    folder.app((folder.path / "handlers.py").read_text().replace('App("shop"', 'App("store"'))

    first, second = (folder.run("replay", "records.jsonl", *STATE) for _ in range(2))

    assert (first.code, second.code, folder.totals()) == (2, 2, before)
    assert "of application 'store' derives rows of" in first.err
    assert "Is 'store' a new name of 'shop'?" in second.err
    assert folder.run("replay", "records.jsonl", *STATE, "--fresh").code == 0


def test_an_application_with_rows_of_its_own_is_taken_beside_another(folder, records):
    folder.run("replay", folder.records(*records), *STATE)
    code = (folder.path / "handlers.py").read_text()
    folder.app(code.replace('App("shop"', 'App("store"').replace('"TOTAL"', '"SUM"'))

    ran = folder.run("replay", "records.jsonl", *STATE)

    assert (ran.code, "'shop'" in ran.err) == (0, False)


def test_fresh_begins_anew(folder, records):
    folder.run("replay", folder.records(*records), *STATE)

    ran = folder.run("replay", folder.records(records[0]), *STATE, "--fresh")

    assert "skipped" not in ran.out
    assert folder.totals() == {"ORDER#1": 1}


def test_fresh_says_that_a_state_may_not_be_written(folder, records, monkeypatch):
    folder.run("replay", folder.records(*records), *STATE)
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != Path())  # root may write everywhere

    ran = folder.run("replay", folder.records(*records), *STATE, "--fresh")

    assert ran.code == 2
    assert ran.err == (
        "Error: --fresh cannot remove state.db: you may not write it, or its folder. Name another file with --state.\n"
    )


def test_fresh_refuses_to_remove_a_file_that_is_no_state(folder, records):
    folder.write("state.db", "my only novel")

    ran = folder.run("replay", folder.records(*records), *STATE, "--fresh")

    assert ran.code == 2
    assert ran.err == (
        "Error: --fresh would remove state.db, which is no streamfold state. Name another file with --state.\n"
    )
    assert (folder.path / "state.db").read_text() == "my only novel"


def test_fresh_leaves_a_state_alone_that_another_process_has_open(folder, records):
    folder.run("replay", folder.records(*records), *STATE)
    other = EmbeddedEngine([], folder.path / "state.db")

    ran = folder.run("replay", folder.records(records[0]), *STATE, "--fresh")

    assert ran.code == 2
    assert ran.err == (
        "Error: --fresh would remove state.db, but another process has it open (database is locked). Let that end "
        "first, or name another file with --state.\n"
    )
    other.close()
    assert folder.totals().items() > {"ORDER#1": 1}.items()
    assert folder.run("replay", folder.records(records[0]), *STATE, "--fresh").code == 0


def test_setting_for_a_table_that_is_not_declared_is_warned_about(folder, records, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_TABLE_MIAN", "orders-prod")

    ran = folder.run("replay", folder.records(*records))

    assert ran.code == 0
    assert ran.err == (
        "Warning: STREAMFOLD_TABLE_MIAN names no table of the application: expected STREAMFOLD_TABLE_MAIN for table "
        "'main'. Did you mean STREAMFOLD_TABLE_MAIN?\n"
    )


@pytest.mark.parametrize("command", ["replay", "verify", "show", "settings"])
def test_setting_for_an_index_that_is_not_declared_is_warned_about_by_commands_with_an_application(
    folder, records, monkeypatch, command
):
    folder.run("replay", folder.records(*records), *STATE)
    monkeypatch.setenv("STREAMFOLD_INDEX_ORDER", "orders-prod")
    given = {"replay": [folder.records(*records), *STATE], "settings": []}.get(command, STATE)

    ran = folder.run(command, *given)

    assert ("Warning: STREAMFOLD_INDEX_ORDER names no index of the application" in ran.err) == (command != "settings")
    assert ran.code == 0


@pytest.mark.parametrize("command", ["verify", "show", "jobs"])
def test_unknown_handler_that_is_switched_off_is_refused_by_every_command(folder, records, monkeypatch, command):
    folder.run("replay", folder.records(*records), *STATE)
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "nobody")

    ran = folder.run(command, *STATE)

    assert (ran.code, "STREAMFOLD_HANDLERS_OFF names 'nobody'" in ran.err) == (2, True)


def test_fresh_without_a_state_names_the_option(folder, records):
    ran = folder.run("replay", folder.records(*records), "--fresh")

    assert ran.code == 2
    assert ran.err == "Error: --fresh removes a state file: name it with --state FILE.\n"


def test_file_that_is_no_state_is_refused_and_kept(folder, records):
    folder.write("state.db", "my only novel")

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert ran.code == 2
    assert "State file state.db cannot be opened" in ran.err
    assert (folder.path / "state.db").read_text() == "my only novel"


def test_database_of_another_program_is_refused_and_kept(folder, records):
    import sqlite3

    with sqlite3.connect(folder.path / "state.db") as connection:
        connection.execute("CREATE TABLE novels (text TEXT)")
    connection.close()

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert ran.code == 2
    assert ran.err == "Error: State file state.db is a SQLite file of another program. Name another with --state.\n"


def test_handler_that_was_renamed_over_a_state_is_refused_with_the_remedy(folder, records):
    folder.run("replay", folder.records(*records), *STATE)
    folder.app((folder.path / "handlers.py").read_text().replace("def order_total", "def totals"))

    ran = folder.run("replay", "records.jsonl", *STATE)

    assert ran.code == 2
    assert "Handler 'order_total' (view into main: ORDER#{order_id} / TOTAL) is known to the state" in ran.err
    assert 'name="order_total"' in ran.err
    assert 'retired=["order_total"]' in ran.err
    assert "--fresh starts anew" in ran.err


def test_summary_says_what_became_of_every_handler(folder, source):
    records = [source.put("ORDER#1", "ITEM#a", price=3), source.put("PROFILE#1"), source.put("ORDER#1", "TOTAL")]

    found = summary(folder.run("replay", folder.records(*records), "--json", "--samples", 1))

    assert found["handlers"] == [
        {"handler": "order_total", "records": 1, "written": 1, "removed": 0, "unchanged": 0, "failed": 0}
    ]
    assert (found["records"], found["derived"], found["unrouted"]) == (3, 1, {"PROFILE#": 1})
    assert found["samples"][0]["rows"][0]["total"] == {"N": "3"}


def test_summary_for_a_person_shows_rows_of_each_target_what_nobody_wanted_and_what_works_next(folder, source):
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in range(5)] + [source.put("PROFILE#1")]

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert "ORDER#{order_id} / TOTAL  (order_total)" in ran.out
    assert ran.out.count("lines=1") == 3
    assert "6 records replayed." in ran.out
    assert "No handler wants 1 record of PROFILE#." in ran.out
    assert "Next: streamfold show --state state.db " in ran.out
    assert "the same command" not in ran.out
    assert ran.err == ""


TIMED = """
from streamfold import App, Count, Key, Router, Row
router = Router()
@router.view(Key("DEV#{id}", "AT#{at:datetime}"), into=Key("DAY#{day}", "N"))
def day(item, at):
    return Row(day=f"{at:%Y-%m-%d}", n=Count())
app = App("devices", routers=[router])
"""


def test_records_that_nearly_match_are_told_at_the_end_with_the_field(folder, source):
    folder.app(TIMED)
    folder.records(*(source.put("DEV#1", f"AT#2026-03-01T10:00:00.{number:03d}Z") for number in range(3)))

    ran = folder.run("replay", "records.jsonl")

    assert "3 records match DEV#{id} / AT#{at:datetime} but for 'at', and no handler of this key read them" in ran.out
    assert "'2026-03-01T10:00:00.000Z' is no {at:datetime}; {at:datetime.milliseconds} takes it." in ran.out
    assert summary(folder.run("replay", "records.jsonl", "--json"))["near_misses"] == [
        {
            "template": "main: DEV#{id} / AT#{at:datetime}",
            "field": "at",
            "records": 3,
            "value": "2026-03-01T10:00:00.000Z",
        }
    ]


def test_summary_says_how_records_that_failed_are_processed(folder, source):
    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a")), *STATE)
    assert "AttributeMissing" in ran.err
    assert "the same command    processes the failed records, once their cause is corrected" in ran.out


def test_rows_of_each_target_are_shown_as_many_as_asked_for(folder, source):
    folder.records(*(source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in range(5)))

    assert folder.run("replay", "records.jsonl", "--samples", 4).out.count("lines=1") == 4
    assert "(order_total)" not in folder.run("replay", "records.jsonl", "--samples", 0).out
    assert "samples" not in summary(folder.run("replay", "records.jsonl", "--json"))


def test_rows_are_found_behind_any_number_of_source_items(folder, source, monkeypatch):
    monkeypatch.setattr("streamfold.cli.items.SCANNED_ITEMS_MAX", 2)
    folder.records(*(source.put("ORDER#1", f"ITEM#{number}", price=1) for number in range(9)))

    assert "lines=9" in folder.run("replay", "records.jsonl", *STATE).out


@pytest.fixture
def neighbours(folder, source, monkeypatch):
    """Rows of one target stand before those of another, in more number than are searched."""
    monkeypatch.setattr("streamfold.cli.items.SCANNED_ITEMS_MAX", 2)
    folder.app(NEIGHBOURS)
    folder.records(*(source.put("ORDER#1", f"ITEM#{number}", price=1) for number in range(9)))
    return folder


def test_search_for_rows_that_ends_early_says_so_and_what_goes_through_all_of_them(neighbours):
    ran = neighbours.run("replay", "records.jsonl", *STATE)

    assert "no rows among the first 2 items. Next: streamfold show --state state.db --ha" in ran.out
    assert "lines=9" in neighbours.run("show", *STATE, "--handler", "total").out
    assert "--state FILE --handler total" in neighbours.run("replay", "records.jsonl").out


def test_search_for_rows_that_ends_early_is_told_in_json(neighbours):
    found = summary(neighbours.run("replay", "records.jsonl", *STATE, "--json", "--samples", 2))["samples"]

    assert [(len(each["rows"]), each["ended_after"]) for each in found] == [(2, None), (0, 2)]


def test_history_rows_that_are_there_already_are_unchanged_and_their_records_known(folder, source):
    folder.app(AUDITED)
    first, second = source.put("ORDER#1", "ITEM#a", price=1), source.put("ORDER#1", "ITEM#a", price=2)
    folder.run("replay", folder.records(first), *STATE)

    (audit,) = summary(folder.run("replay", folder.records(first, second), *STATE, "--json"))["handlers"]
    again = summary(folder.run("replay", "records.jsonl", *STATE, "--json"))

    assert (audit["written"], audit["unchanged"]) == (1, 1)
    assert (again["handlers"][0]["written"], again["handlers"][0]["unchanged"], again["known"]) == (0, 2, 2)


def test_history_rows_are_shown_short_and_readable(folder, source):
    folder.app(
        (folder.path / "handlers.py").read_text().replace("router = Router()", "router = Router()\nrouter.audit(ITEM)")
    )
    records = [source.put("ORDER#1", "ITEM#a", price=price, tags={"b", "a"}) for price in (1, 2)]

    ran = folder.run("replay", folder.records(*records, source.remove("ORDER#1", "ITEM#a")))

    shown = " ".join(ran.out.split())
    for changes in (
        "price: nothing -> 1, tags: nothing -> [a, b]",
        "price: 1 -> 2",
        "price: 2 -> nothing, tags: [a, b] ->",
    ):
        assert f"changes={{{changes}" in shown
    assert "item=" not in ran.out
    assert "version=" not in ran.out


def test_redacted_values_of_history_rows_are_shown_as_such(folder, source):
    audited = 'router = Router()\nrouter.audit(ITEM, redact=["mail"])'
    folder.app((folder.path / "handlers.py").read_text().replace("router = Router()", audited))

    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=1, mail="a@example.com")))

    assert "changes={mail: (redacted), price: nothing -> 1}" in " ".join(ran.out.split())
    assert "@" not in ran.out


def test_commands_that_are_named_next_work(folder, records):
    folder.write("other.py", (folder.path / "handlers.py").read_text())
    ran = folder.run("replay", folder.records(*records), *STATE, "--app", "other:app")

    for line in ran.out.splitlines():
        if "streamfold" in line:
            words = line.partition("streamfold ")[2].partition("    ")[0].split()
            assert folder.run(*words).code == 0, words


def test_derived_records_are_counted_and_not_delivered(folder, source):
    folder.app(CHAINED)
    records = [source.put("ORDER#1", "ITEM#a", price=5), source.put("ORDER#1", "TOTAL", total=500)]

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert "1 of them are of derived rows and were not delivered: the rows are derived again." in ran.out
    assert folder.rows(*STATE)["ALL / ORDERS"]["total"] == {"N": "5"}


def test_handler_that_raises_is_shown_with_its_own_frames_the_key_and_the_line(folder, source):
    folder.app(RAISING)
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=number) for number in (1, 13, 2)]

    ran = folder.run("replay", folder.records(*records), *STATE)

    assert ran.code == 1
    place = folder.path / "handlers.py"
    where = f"records.jsonl:2: handler 'order_total' ({place}:10), item ORDER#13 / ITEM#a"
    assert ran.err.splitlines() == [
        f"Failed: {where}: ValueError: 13 is not taken",
        f'    {place}:15 in order_total: yield Row(total=Sum(checked(item["price"])))',
        f'    {place}:10 in checked: raise ValueError(f"{{price}} is not taken")',
    ]
    assert folder.totals() == {"ORDER#1": 1, "ORDER#2": 2}


RAISING = """
from streamfold import App, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()


def checked(price):
    if price == 13:
        raise ValueError(f"{price} is not taken")
    return price

@router.view(ITEM, into=Key("ORDER#{order_id}", "TOTAL"))
def order_total(item):
    yield Row(total=Sum(checked(item["price"])))


app = App("shop", routers=[router])
"""


def test_error_that_a_handler_made_without_a_line_of_its_own_names_the_handler(folder, source):
    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price="three")))

    assert ran.code == 1
    assert (
        f"Failed: records.jsonl:1: handler 'order_total' ({folder.path / 'handlers.py'}:12), item ORDER#1 / ITEM#a: "
        "HandlerError: Sum('three') is of type str" in ran.err
    )
    assert "handlers.py:12 in order_total" in ran.err


MANY_CAUSES = """
from streamfold import App, Count, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()


@router.view(ITEM, into=Key("ALL", "PRICES"))
def prices(item):
    line = int(item["price"])
    exec(compile(chr(10) * line + "raise ValueError(line)", __file__, "exec"), {"line": line})  # at this line
    yield Row(n=Count())


@router.view(ITEM, into=Key("ALL", "COUNTS"))
def counts(item):
    yield Row(n=Sum(item["text"]))


app = App("shop", routers=[router])
"""


def test_failures_of_ten_causes_are_listed_and_all_counted(folder, source):
    folder.app(MANY_CAUSES)
    records = [source.put(f"ORDER#{n}", "ITEM#a", price=n % 12, text=f"no {n}") for n in range(60)]

    ran = folder.run("replay", folder.records(*records))

    assert ran.err.count("Failed: ") == 10
    assert "... 120 failures in all; --json lists more of them." in ran.err
    first, second = [line for line in ran.err.splitlines() if line.startswith("Failed: ")][:2]
    assert ("'prices'" in first, "'counts'" in second) == (True, True)
    assert "So did 59 more records, for the same reason." in ran.err


def test_many_failures_of_one_handler_hide_none_of_another_whatever_values_they_name(folder, source):
    folder.app(RAISING.replace("price == 13", "price >= 0"))
    many = [source.put(f"ORDER#{n}", "ITEM#a", price=n) for n in range(300)]

    ran = folder.run("replay", folder.records(*many, source.put("ORDER#x", "ITEM#a", colour=1)), "--json")

    causes = json.loads(ran.out)["causes"]
    assert sorted(each["records"] for each in causes) == [1, 300]


def test_changes_of_one_item_that_fail_alike_are_told_once(folder, source):
    ran = folder.run(
        "replay", folder.records(*(source.put("ORDER#1", "ITEM#a", colour=n) for n in range(3))), "--batch-size", "1"
    )

    assert ran.err.count("Failed: ") == 1
    assert "So did 2 more records, for the same reason." in ran.err


ONE_ROW = """
from streamfold import App, Key, Max, Router, Row

router = Router()


@router.view(Key("ORDER#{order_id}", "ITEM#{sku}"), into=Key("ALL", "PRICES"))
def prices(item):
    yield Row(highest=Max(item["text"]))


app = App("shop", routers=[router])
"""


def test_one_row_that_fails_is_told_once_and_its_records_are_counted(folder, source, monkeypatch):
    folder.app(ONE_ROW)

    def refuses(*_):
        raise HandlerError("the row is too large")

    monkeypatch.setattr("streamfold.commit.after_commit._recomputed", refuses)
    ran = folder.run("replay", folder.records(*(source.put(f"ORDER#{n}", "ITEM#a", text="x") for n in range(4))))

    assert ran.err.count("Failed: ") == 1
    assert "So did 3 more records, for the same reason." in ran.err


def test_what_is_wrong_for_good_stops_the_replay_with_the_handler_s_name(folder, source, monkeypatch):
    folder.app(ONE_ROW)

    def forbidden(*_):
        raise EngineError("AccessDeniedException")

    monkeypatch.setattr("streamfold.commit.after_commit._recomputed", forbidden)
    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", text="x")))

    assert ran.code == 2
    assert "The replay stops: handler 'prices'" in ran.err
    assert "AccessDeniedException" in ran.err


def test_mended_handler_makes_good_what_failed_when_the_same_command_runs_again(folder, source):
    folder.app(RAISING)
    folder.run("replay", folder.records(source.put("ORDER#13", "ITEM#a", price=13)), *STATE)
    folder.app(RAISING.replace("price == 13", "price == 14"))

    assert folder.run("replay", "records.jsonl", *STATE).code == 0
    assert folder.totals() == {"ORDER#13": 13}


def test_external_handlers_are_not_called_and_listed_as_skipped(folder, source):
    folder.app(WITH_EXTERNAL)

    ran = folder.run("replay", folder.records(source.put("SESSION#1"), source.put("SESSION#2")))

    assert ran.code == 0
    assert "External handler send_mail was not called for 2 records; --external calls it." in ran.out
    assert not (folder.path / "mails.txt").exists()


def test_external_handlers_are_called_once_when_asked_for(folder, source):
    folder.app(WITH_EXTERNAL)
    folder.records(source.put("SESSION#1"), source.put("SESSION#2"))

    for _ in range(2):
        assert folder.run("replay", "records.jsonl", *STATE, "--external").code == 0
    assert (folder.path / "mails.txt").read_text() == "12"


def test_replay_that_goes_on_says_so_before_it_reads_a_record_and_in_json(folder, records):
    folder.app(TELLING)
    good = [json.dumps(record) for record in records]
    folder.write("records.jsonl", "\n".join([*good[:3], "{bad", *good[3:]]))
    folder.run("replay", "records.jsonl", *STATE)
    first = summary(folder.run("replay", "records.jsonl", *STATE, "--json"))

    ran = folder.run("replay", "records.jsonl", *STATE, "--keep-going")

    said, then = ran.err.splitlines()[:2]
    assert said.startswith(
        "Continues after the first 3 records, which an earlier replay of the same files has applied."
    )
    assert then == "handler called"
    assert (first["went_on_behind"], first["bad_lines"][0]["line"]) == (3, "records.jsonl:4")
    assert summary(folder.run("replay", "records.jsonl", *STATE, "--json"))["went_on_behind"] == 0


def test_dry_run_prints_the_writes_and_makes_none(folder, source):
    folder.app(CHAINED)
    folder.records(source.put("ORDER#1", "ITEM#a", price=5))

    ran = folder.run("replay", "records.jsonl", "--dry-run")

    assert ran.code == 0
    assert "  add to ORDER#1 / TOTAL: total +5, contributors +1\n" in ran.out
    assert "Dry run: 1 record would make 2 writes in 1 transaction; nothing was written" in ran.out


def test_dry_run_looks_items_up_in_the_files(folder, source):
    folder.app(LOOKED_UP)
    folder.records(source.put("ORDER#1", "ITEM#a", price=5), source.put("PRODUCT#a", "META", category="tea"))

    ran = folder.run("replay", "records.jsonl", "--dry-run")

    assert ran.code == 0
    assert "  add to CATEGORY#tea / SALES: total +5, contributors +1\n" in ran.out


def test_dry_run_says_what_it_writes_behind_transactions_and_what_it_does_not_count(folder, source):
    folder.app(BEHIND)
    folder.records(source.put("ORDER#1", "ITEM#a", price=5), source.remove("ORDER#1", "ITEM#a"), source.put("ORDER#2"))
    folder.records(source.put("ORDER#1", "ITEM#b", price=5), source.remove("ORDER#1", "ITEM#b"), name="more.jsonl")

    ran = folder.run("replay", "records.jsonl", "more.jsonl", "--dry-run", "--batch-size", 1)
    last = json.loads(folder.run("replay", "records.jsonl", "--dry-run", "--json").out.splitlines()[-1])

    assert "would make 12 writes in 4 transactions and 4 behind them; nothing was written" in ran.out
    assert (
        "Not counted, because the store decides how many writes they make: 4 rows to be computed from entries, 2 rows "
        "to be removed if empty, 2 steps of other kinds." in ran.out
    )
    assert (last["writes"], last["writes_behind"]) == (3, 2)
    assert (last["made_of_entries"], last["removed_if_empty"], last["other_steps"]) == (0, 0, 1)


def test_dry_run_that_names_a_state_is_refused_because_it_would_not_read_it(folder, records):
    ran = folder.run("replay", folder.records(*records), *STATE, "--dry-run")
    assert (ran.code, "--dry-run plans the writes to an empty state, and reads no --state" in ran.err) == (2, True)
    assert not (folder.path / "state.db").exists()


def test_dry_run_calls_no_external_handler_and_lists_it(folder, source):
    folder.app(WITH_EXTERNAL)

    ran = folder.run("replay", folder.records(source.put("SESSION#1")), "--dry-run")

    assert "External handler send_mail was not called for 1 records" in ran.out
    assert not (folder.path / "mails.txt").exists()


def test_dry_run_reports_failures_and_bad_lines(folder, source):
    folder.records(source.put("ORDER#1", "ITEM#a"))
    folder.write("bad.jsonl", "{")

    ran = folder.run("replay", "records.jsonl", "bad.jsonl", "--dry-run")

    assert ran.code == 1
    assert "Failed: records.jsonl:1: handler 'order_total'" in ran.err
    assert "Bad line: bad.jsonl:1" in ran.err


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_what_a_handler_prints_does_not_mix_with_json(folder, records, more):
    folder.app(CHAINED.replace("(item):\n", '(item):\n    print("looked at")\n'))
    ran = folder.run("replay", folder.records(*records), "--json", *more)
    assert ran.objects()
    assert "looked at" in ran.err


def test_dry_run_gives_a_line_a_batch_and_then_the_summary_as_json(folder, records):
    ran = folder.run("replay", folder.records(*records), "--dry-run", "--json", "--batch-size", 4)

    *plans, last = ran.objects()
    assert [len(plan["transactions"]) for plan in plans] == [1, 1]
    assert (last["records"], last["writes"], last["failure_count"]) == (7, 14, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "0 is not in the range 1<=x<=10000"),
        (["--batch-size", "many"], "'many' is not a valid integer"),
        (["--engine", "oracle"], "'oracle' is not one of 'embedded', 'dynamodb'"),
        (["--no-such-option"], "No such option '--no-such-option'"),
        (["--table", "=x"], "--table '=x': expected NAME=REAL"),
        (["--state", "handlers.py/state.db"], "Folder handlers.py of the state file cannot be made: File exists."),
    ],
)
def test_option_that_is_wrong_does_nothing_and_says_why(folder, records, arguments, message):
    ran = folder.run("replay", folder.records(*records), *arguments)

    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""


def test_files_are_asked_for(folder):
    ran = folder.run("replay")

    assert ran.code == 2
    assert "Missing argument 'FILES...'" in ran.err


def test_state_is_made_in_a_folder_that_is_not_there_yet(folder, records):
    assert folder.run("replay", folder.records(*records), "--state", "some/where/state.db").code == 0


@pytest.mark.parametrize("arn", [{"a": 1}, ["a"], 5, ""])
def test_record_whose_arn_is_none_fails_alone(folder, records, arn):
    ran = folder.run("replay", folder.records({**records[0], "eventSourceARN": arn}, *records[1:]), *STATE)

    assert ran.code == 1
    assert "A record has eventSourceARN=" in ran.err


def test_record_whose_image_has_no_key_does_not_get_into_the_state(folder, records):
    bad = deepcopy(records[0])
    del bad["dynamodb"]["NewImage"]["PK"]
    ran = folder.run("replay", folder.records(bad, name="bad.jsonl"), *STATE)

    assert ran.code == 1
    assert "and an image in it has the key" in ran.err
    assert folder.run("show", "--source", *STATE).err == "No rows.\n"
    assert folder.run("replay", folder.records(*records), *STATE).code == 0


def test_state_that_another_process_writes_is_an_error_that_says_so(folder, records, monkeypatch):
    import sqlite3

    folder.run("replay", folder.records(*records), *STATE)
    monkeypatch.setattr("streamfold.engines.state_file.LOCK_SECONDS_MAX", 0.05)
    other = sqlite3.connect(folder.path / "state.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    ran = folder.run("replay", "records.jsonl", *STATE)
    other.close()

    assert ran.code == 2
    assert "state.db cannot be written" in ran.err
    assert "does another process use it?" in ran.err


TELLING = """
import sys

from streamfold import App, Count, Key, Router, Row

router = Router()


@router.view(Key("ORDER#{order_id}", "ITEM#{sku}"), into=Key("ORDER#{order_id}", "TOTAL"))
def lines(item):
    print("handler called", file=sys.stderr)
    return Row(lines=Count())


app = App("shop", routers=[router])
"""
AUDITED = """
from streamfold import App, Key, Router

router = Router()
router.audit(Key("ORDER#{order_id}", "ITEM#{sku}"))
app = App("shop", routers=[router])
"""
BEHIND = """
from streamfold import App, Key, Max, Router, Row

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()
router.audit(ITEM)
router.archive(ITEM, to="s3://deleted/items")


@router.view(ITEM, into=Key("ORDER#{order_id}", "BEST"))
def best(item):
    return Row(price=Max(item["price"]))


app = App("shop", routers=[router])
"""
NEIGHBOURS = """
from streamfold import App, Count, Key, Router, Row

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()


@router.index(ITEM, into=Key("ORDER#{order_id}#LINES", "LINE#{sku}"))
def lines(item):
    return Row()


@router.view(ITEM, into=Key("ORDER#{order_id}#TOTAL", "{kind}"))
def total(item):
    return Row(kind="ALL", lines=Count())


app = App("shop", routers=[router])
"""
PARKING = """
from streamfold import App, Key, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
router = Router()


@router.view(ITEM, into=TOTAL, on_error="park")
def order_total(item):
    if item["price"] == 3:
        raise LookupError("no price 3")
    yield Row(total=Sum(item["price"]))


app = App("shop", routers=[router])
"""


def test_record_that_a_handler_gives_up_is_parked_in_the_file_that_is_named(folder, records):
    folder.app(PARKING)

    ran = folder.run("replay", folder.records(*records), *STATE, "--park", "parked.jsonl")

    assert ran.code == 1
    assert "1 record was parked for handler order_total. Item ORDER#3 / ITEM#a: LookupError: no price 3\n" in ran.err
    (parked,) = [json.loads(line) for line in (folder.path / "parked.jsonl").read_text().splitlines()]
    assert (parked["item"], parked["error"]) == ("ORDER#3 / ITEM#a", "no price 3")
    assert folder.totals() == {f"ORDER#{number}": number for number in (1, 2, 4, 5, 6, 7)}


def test_of_several_parked_records_the_first_says_why(folder, source):
    folder.app(PARKING)
    records = [source.put(f"ORDER#{number}", "ITEM#a", price=3) for number in (7, 8)]

    ran = folder.run("replay", folder.records(*records), *STATE, "--park", "parked.jsonl")

    assert ran.err.startswith(
        "2 records were parked for handler order_total. The first: item ORDER#7 / ITEM#a: LookupE"
    )


def test_parked_record_is_an_ordinary_record_that_can_be_replayed(folder, records):
    folder.app(PARKING)
    folder.run("replay", folder.records(*records), *STATE, "--park", "parked.jsonl")
    parked = json.loads((folder.path / "parked.jsonl").read_text())
    folder.app(PARKING.replace("== 3", "== 4"))

    assert folder.run("replay", "-", *STATE, stdin=json.dumps(parked["record"]).encode()).code == 0
    assert folder.totals()["ORDER#3"] == 3


def test_dry_run_parks_nothing(folder, records):
    folder.app(PARKING)

    folder.run("replay", folder.records(*records), "--dry-run", "--park", "parked.jsonl")

    assert not (folder.path / "parked.jsonl").exists()


def test_handler_that_is_switched_off_is_skipped_and_counted(folder, records, monkeypatch):
    monkeypatch.setenv("STREAMFOLD_HANDLERS_OFF", "order_total")

    ran = folder.run("replay", folder.records(*records), *STATE, "--json")

    assert ran.code == 0
    assert (summary(ran)["off"], summary(ran)["parked"]) == ({"order_total": 7}, {})


@pytest.fixture
def told(records):
    """The same changes as records of Kinesis, each twice, and the newest first."""
    kinesis = KinesisTwin()
    notices = [kinesis.append(record) for record in records]
    return [*reversed(notices), *map(kinesis.again, notices)]


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda notices: json.dumps({"Records": notices}), id="event"),
        pytest.param(lambda notices: json.dumps({"Records": notices}, indent=2), id="pretty-printed event"),
        pytest.param(lambda notices: "\n".join(map(json.dumps, notices)), id="a record a line"),
        pytest.param(lambda notices: json.dumps(list(map(piped, notices))), id="a pipe's list"),
    ],
)
def test_records_of_kinesis_are_replayed_from_any_form(folder, told, shape):
    ran = folder.run("replay", folder.write("kinesis.json", shape(told)), *STATE, "--json")
    assert ran.code == 0, ran.err
    assert folder.totals() == {f"ORDER#{number}": number for number in range(1, 8)}
    again = folder.run("replay", "kinesis.json", *STATE, "--json", "--batch-size", "2")
    assert summary(again)["handlers"][0]["written"] == 0


def test_state_that_kinesis_made_refuses_the_tables_own_stream(folder, records, told):
    assert folder.run("replay", folder.records(*told), *STATE).code == 0
    ran = folder.run("replay", folder.records(*records, name="stream.jsonl"), *STATE)
    assert ran.code != 0
    assert "The state knows table 'main' through Kinesis, and now its records come from its DynamoDB" in ran.err


def test_less_precise_notice_stops_a_replay_at_its_line(folder, records):
    kinesis = KinesisTwin(precision="MILLISECOND")
    ran = folder.run("replay", folder.records(*map(kinesis.append, records)), *STATE)
    assert ran.code == 1
    assert "records.jsonl:1" in ran.out + ran.err
    assert "aws dynamodb update-kinesis-streaming-destination --table-name main" in (ran.out + ran.err).replace(
        "\n", " "
    )


def test_handlers_without_records_and_their_empty_targets_are_counted_and_not_listed(folder, source):
    folder.app(CHAINED)
    order, other = folder.records(source.put("ORDER#1", "ITEM#a", price=3)), folder.records(name="none.jsonl")

    assert "had no records" not in folder.run("replay", order).out
    ran = folder.run("replay", other)
    assert ran.out.startswith("2 handlers had no records.\n\n0 records replayed.\n")
    assert "no rows" not in ran.out


def test_target_without_rows_is_told_where_its_handler_had_records(folder, source):
    folder.app(SILENT)

    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=3)))

    assert "1 other handler had no records." in ran.out
    assert "OTHER / {sku}  (nothing)\nno rows\n" in ran.out
    assert "NEVER / {session_id}" not in ran.out


@pytest.mark.parametrize(
    ("begins", "name", "what"),
    [
        ("manifest#", "handlers", "The state's manifest"),
        ("kinds#", "kinds", "The stored schema of attributes"),
        ("ledger#", "order_total.s", "A ledger item"),
    ],
)
def test_a_state_whose_texts_are_damaged_ends_in_a_message(folder, source, begins, name, what):
    folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=1)), *STATE)
    state = sqlite3.connect(folder.path / STATE[1])
    ((key, text),) = state.execute("SELECT pk, item FROM state WHERE pk LIKE ?", (begins + "%",))
    state.execute("UPDATE state SET item = ? WHERE pk = ?", (json.dumps(json.loads(text) | {name: "oops"}), key))
    state.commit()
    state.close()

    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=2)), *STATE)

    assert ran.code == 2
    assert f"Error: {what} cannot be read: the state is damaged. For a local state, run replay --fresh" in ran.err


def test_replay_that_the_readme_begins_with_shows_the_names_of_authors_in_a_timeline(tmp_path):
    ran = streamfold("replay", *EVENTS, "--state", tmp_path / "replay.db", "--fresh")

    timelines = ran.out.partition("HOME#{reader_id}")[2].partition("\n\n")[0]
    assert ran.code == 0
    assert timelines.count("author=") == SAMPLE_ROWS
    assert "have expired" not in ran.out


MISSPELLED = SHOP.replace("router = Router()", 'router = Router()\nrouter.audit(ITEM, redact=["prise"])')


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_name_in_a_declaration_that_no_item_has_is_a_warning(folder, source, more):
    folder.app(MISSPELLED)
    records = folder.records(source.put("ORDER#1", "ITEM#a", price=1))
    ran = folder.run("replay", records, *more)
    assert ran.code == 0
    assert "Warning: redact= of audit 'audit_order_item' (" in ran.out + ran.err
    assert (
        "names 'prise', which no item of Key('ORDER#{order_id}', 'ITEM#{sku}') has in the records. "
        in ran.out + ran.err
    )
    assert "Did you mean 'price'?" in ran.out + ran.err


def test_a_name_in_a_declaration_that_no_item_has_is_json(folder, source):
    folder.app(MISSPELLED)
    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a", price=1)), "--json")
    (found,) = json.loads(ran.out)["unseen_attributes"]
    assert (found["handler"], found["option"], found["name"], found["near"]) == (
        "audit_order_item",
        "redact=",
        "prise",
        "price",
    )


def test_a_name_in_a_declaration_that_no_item_has_is_left_out_of_runs_under_faults(folder, source):
    folder.app(MISSPELLED)
    records = folder.records(source.put("ORDER#1", "ITEM#a", price=1))
    ran = folder.run("replay", records, "--chaos", "--runs", "1")
    assert "Left out: redact= of audit 'audit_order_item' (" in ran.out
