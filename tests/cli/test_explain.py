"""``streamfold explain``: the items that a row stands on, and what becomes of an item."""

import json
import sqlite3
from contextlib import closing
from decimal import Decimal

import pytest

from streamfold.commit.buckets import empty_buckets
from streamfold.ledger.deltas import BUCKETS
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.failures import parked_record, queue_message

STATE = ("--state", "state.db")
SHOP = """
from streamfold import Add, App, Count, Key, Max, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
router = Router()


@router.view(ITEM, into=Key("ORDER#{order_id}", "TOTAL"))
def order_total(item):
    yield Row(total=Sum(item["price"]), lines=Count())


@router.view(ITEM, into=Key("BEST#{order_id}", "PRICE"))
def best(item):
    yield Row(most=Max(item["price"]))


@router.index(ITEM, into=Key("SKU#{sku}", "ORDER#{order_id}"))
def by_sku(item):
    yield Row(price=item["price"], name="a lamp")


@router.index(ITEM, into=Key("PRICE#{price}", "ITEM"), unique=True)
def by_price(item):
    yield Row(price=str(item["price"]))


@router.attributes(ITEM)
def derived(item):
    return Row(GSI=f"P#{item['price']}")


@router.on(ITEM, into=Key("CHANGES", "TOTAL"))
def changes(change):
    yield Add(changes=1)


app = App("shop", routers=[router])
"""


@pytest.fixture
def records(source):
    return [source.put("ORDER#1", f"ITEM#{sku}", price=price) for sku, price in (("a", 1), ("b", 5), ("c c!", 2))]


@pytest.fixture
def state(folder, records):
    folder.app(SHOP)
    ran = folder.run("replay", folder.records(*records), *STATE)
    assert ran.code == 0, ran.err
    return folder


def edit(folder, partition, change):
    """Changes a stored row behind the back of everybody."""
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        query = "SELECT item FROM items WHERE pk = ? AND version IS NULL"
        ((text,),) = connection.execute(query, (partition,)).fetchall()
        edited = json.dumps(change(json.loads(text)))
        connection.execute("UPDATE items SET item = ? WHERE pk = ? AND version IS NULL", (edited, partition))


def report(ran):
    assert ran.err == ""
    return json.loads(ran.out)


def words(line):
    return " ".join(line.split())


def test_a_row_is_explained_by_what_each_item_adds(state):
    ran = state.run("explain", "ORDER#1", "TOTAL", *STATE)

    assert ran.code == 0, ran.err
    name, headings, *lines = ran.out.splitlines()
    assert (name, headings.split()) == ("ORDER#1 / TOTAL", ["handler", "item", "version", "adds"])
    assert [words(line).split(" 00/")[0] for line in lines[:3]] == [
        "order_total ORDER#1 / ITEM#a",
        "order_total ORDER#1 / ITEM#b",
        "order_total ORDER#1 / ITEM#c c!",
    ]
    assert lines[1].endswith("lines +1  total +5")
    assert lines[3:] == [
        "",
        "sum  3 contributions  lines=3  total=8",
        "row  3 contributions  lines=3  total=8",
        "The row is what its items contribute.",
    ]


def test_a_row_that_somebody_changed_is_told(state):
    edit(state, "ORDER#1", lambda row: row | {"total": {"N": "9"}})

    ran = state.run("explain", "ORDER#1", "TOTAL", *STATE)

    assert ran.code == 1
    assert ran.out.splitlines()[-1] == "The row is not what its items contribute: total is 9, expected 8."


def test_an_item_of_the_application_in_the_place_of_a_row_is_named(state):
    edit(state, "SKU#a", lambda row: {name: value for name, value in row.items() if not name.startswith("_sf_")})

    ran = state.run("explain", "SKU#a", "ORDER#1", *STATE)

    assert ran.code == 1
    assert "An item of the application itself is there, without the mark of a row" in " ".join(ran.out.split())


def test_a_row_that_lost_a_contribution_is_told(state):
    edit(state, "ORDER#1", lambda row: row | {"_sf_n": {"N": "2"}})

    ran = state.run("explain", "ORDER#1", "TOTAL", *STATE)

    assert ran.code == 1
    assert "it counts 2 contributions, expected 3." in ran.out


def test_a_row_that_was_removed_is_told(state):
    with closing(sqlite3.connect(state.path / "state.db")) as connection, connection:
        connection.execute("DELETE FROM items WHERE sk = 'TOTAL' AND pk = 'ORDER#1'")

    ran = state.run("explain", "ORDER#1", "TOTAL", *STATE)

    assert ran.code == 1
    assert "row  there is none" in ran.out


def test_json_has_keys_and_values_that_are_typed(state):
    found = report(state.run("explain", "ORDER#1", "TOTAL", *STATE, "--json"))

    first = found["contributions"][0]
    assert found["row"] == {"table": "main", "key": {"PK": {"S": "ORDER#1"}, "SK": {"S": "TOTAL"}}}
    assert (found["agrees"], found["whole"], found["counted"], found["differing"]) == (True, True, 3, {})
    assert found["sums"] == {"lines": {"N": "3"}, "total": {"N": "8"}}
    assert found["attributes"]["total"] == {"N": "8"}
    assert first.pop("version").startswith("00/")
    assert first == {
        "handler": "order_total",
        "item": {"table": "main", "key": {"PK": {"S": "ORDER#1"}, "SK": {"S": "ITEM#a"}}},
        "at": None,
        "adds": {"lines": {"N": "1"}, "total": {"N": "1"}},
        "plain": [],
        "entries": {},
        "orderings": {},
    }


def test_items_below_an_ordered_attribute_are_found_without_reading_the_state(state, monkeypatch):
    monkeypatch.setattr("streamfold.engines.embedded.EmbeddedEngine.state_items", None)

    found = report(state.run("explain", "BEST#1", "PRICE", *STATE, "--json"))

    assert [each["item"]["key"]["SK"]["S"] for each in found["contributions"]] == ["ITEM#a", "ITEM#c c!", "ITEM#b"]
    assert [each["entries"] for each in found["contributions"]][2] == {"most": [{"N": "5"}]}
    assert found["agrees"]


def test_claims_of_a_unique_row_are_told(state):
    ran = state.run("explain", "PRICE#5", "ITEM", *STATE)

    assert ran.code == 0, ran.out
    assert "by_price  ORDER#1 / ITEM#b" in ran.out


def test_the_item_of_a_row_that_is_owned_follows_from_its_key_and_its_attributes_are_compared(state, monkeypatch):
    monkeypatch.setattr("streamfold.engines.embedded.EmbeddedEngine.state_items", None)
    assert "by_sku   ORDER#1 / ITEM#b" in state.run("explain", "SKU#b", "ORDER#1", *STATE).out
    edit(state, "SKU#b", lambda row: row | {"name": {"S": "a chair"}, "more": {"N": "1"}})

    ran = state.run("explain", "SKU#b", "ORDER#1", *STATE)

    assert ran.code == 1
    assert ran.out.endswith("more is 1, expected nothing; name is a chair, expected a lamp.\n")


def test_a_row_is_explained_however_many_digits_a_part_of_its_items_adds_up_to(folder, source):
    large = Decimal(12345678901234567890123456789012345678)
    prices = {"a": large, "c": large.copy_negate(), "b": Decimal("0.5")}
    folder.app(SHOP)
    folder.run(
        "replay", folder.records(*(source.put("ORDER#1", f"ITEM#{sku}", price=prices[sku]) for sku in prices)), *STATE
    )

    ran = folder.run("explain", "ORDER#1", "TOTAL", *STATE)

    assert (ran.code, ran.err) == (0, "")
    assert "sum  3 contributions  lines=3  total=0.5" in ran.out


def test_an_item_is_explained_for_every_handler(state):
    ran = state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE)

    assert ran.code == 0, ran.err
    lines = [words(line) for line in ran.out.splitlines()]
    assert lines[0] == "ORDER#1 / ITEM#b"
    assert "order_total (view) agrees" in lines
    assert "now ORDER#1 / TOTAL lines +1 total +5" in lines
    assert "stored ORDER#1 / TOTAL lines +1 total +5" in lines
    assert "now BEST#1 / PRICE most: 5" in lines
    assert "now SKU#b / ORDER#1 name=a lamp price=5" in lines
    assert "stored SKU#b / ORDER#1 name (plain) price (plain)" in lines
    assert "derived (attributes) agrees" in lines
    assert "changes (on) keeps nothing of an item in the ledger" in lines


def test_an_item_that_the_state_holds_otherwise_is_told(state):
    state.app(SHOP.replace('Sum(item["price"])', 'Sum(2 * item["price"])'))

    ran = state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE)
    found = report(state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE, "--json"))

    assert ran.code == 1
    assert "order_total (view) differs" in ran.out
    first = found["handlers"][0]
    assert (first["handler"], first["kind"], first["agrees"], first["error"]) == ("order_total", "view", False, None)
    assert first["now"][0]["adds"]["total"] == {"N": "10"}
    assert first["stored"][0]["adds"]["total"] == {"N": "5"}
    assert first["stored"][0]["row"] == {"table": "main", "key": {"PK": {"S": "ORDER#1"}, "SK": {"S": "TOTAL"}}}


def test_an_ordered_value_of_the_code_is_not_that_of_the_state(state):
    state.app(SHOP.replace('Max(item["price"])', 'Max(2 * item["price"])'))

    ran = state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE)
    best = report(state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE, "--json"))["handlers"][1]

    lines = [words(line) for line in ran.out.splitlines()]
    assert lines[lines.index("best (view) differs") + 2 :][:2] == [
        "now BEST#1 / PRICE most: 10",
        "stored BEST#1 / PRICE most: 5",
    ]
    assert [best[when][0]["entries"]["most"] for when in ("now", "stored")] == [[{"N": "10"}], [{"N": "5"}]]


def test_plain_values_of_a_unique_row_are_those_of_the_code(state):
    state.app(SHOP.replace('Row(price=str(item["price"]))', 'Row(price=str(item["price"]), name="a lamp")'))

    lines = [words(line) for line in state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE).out.splitlines()]

    assert "now PRICE#5 / ITEM the row: {name: a lamp}" in lines
    assert "stored PRICE#5 / ITEM the row: {}" in lines


def test_values_that_are_ordered_otherwise_are_told_from_each_other(state):
    state.app(SHOP.replace("Max", "Min"))

    ran = state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE)
    best = report(state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE, "--json"))["handlers"][1]

    assert "now      BEST#1 / PRICE  most by min:1: 5" in ran.out
    assert "stored   BEST#1 / PRICE  most by max:1: 5" in ran.out
    assert [best[when][0]["orderings"] for when in ("now", "stored")] == [{"most": "min:1"}, {"most": "max:1"}]


def test_a_handler_that_raises_on_an_item_is_told(state):
    state.app(SHOP.replace('Sum(item["price"])', 'Sum(item["missing"])'))

    ran = state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE)

    assert ran.code == 1
    assert "order_total (view) raises AttributeMissing: The item has no attribute 'missing'" in ran.out


def test_an_item_that_never_was_is_nothing_to_any_handler(state):
    ran = state.run("explain", "--item", "ORDER#9", "ITEM#b", *STATE)

    assert ran.code == 0
    assert "version  -" in ran.out
    assert "nothing" in ran.out
    assert ran.err.startswith("There is no item ORDER#9 / ITEM#b now: check its key")


def test_a_row_that_never_was_is_told_from_one_that_agrees(state):
    ran = state.run("explain", "ORDER#9", "TOTAL", *STATE)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "There is no such row, and no item contributes to it.")


def test_contributions_beyond_those_shown_are_counted(state, monkeypatch):
    monkeypatch.setattr("streamfold.cli.explain.SHOWN_MAX", 1)

    assert "... and 2 more; --json has them all." in state.run("explain", "ORDER#1", "TOTAL", *STATE).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("USER#1", "X"), "Error: No handler writes a row USER#1 / X: expected PARTITION and SORT of ORDER#{order_id}"),
        (("CHANGES", "TOTAL"), "Error: The row CHANGES / TOTAL is written by handler 'changes' of kind on: the state"),
        (("--item", "USER#1", "X"), "Error: No handler reads the item USER#1 / X: expected PARTITION and SORT of"),
        (("--item", "--scan", "ORDER#1", "ITEM#a"), "Error: --scan looks for the items of a row, and --item names"),
        ((), "Error: Missing argument 'PARTITION'."),
    ],
)
def test_mistake_is_told(state, arguments, message):
    ran = state.run("explain", *arguments, *STATE)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_history_row_leads_to_the_history_of_its_item(state, records):
    state.app(SHOP.replace("\n\napp =", '\n\nrouter.audit(ITEM, name="audit")\n\n\napp ='))
    state.run("replay", "records.jsonl", "--fresh", *STATE)
    (row,) = [key for key in state.rows(*STATE) if key.startswith("AUDIT#ORDER#1|ITEM#c c!")]

    ran = state.run("explain", *row.split(" / "), *STATE)

    assert ran.code == 2
    assert ran.err == (
        f"Error: The row {row} is written by handler 'audit' of kind audit: the state keeps no contributions to it. "
        "Next: streamfold history 'ORDER#1' 'ITEM#c c!' shows all changes of its item.\n"
    )
    assert "INSERT" in state.run("history", "ORDER#1", "ITEM#c c!", *STATE).out


@pytest.mark.parametrize("command", [("explain", "--item"), ("repair", "--key")])
def test_an_item_that_only_bears_attributes_is_told_from_those_that_handlers_read(state, command):
    on_head = """@router.attributes(ITEM, of=Key("ORDER#{order_id}", "HEAD"), name="on_head")"""
    state.app(SHOP.replace("\n\napp =", f"\n\n{on_head}\ndef on_head(item):\n    return Row(lines=Count())\n\n\napp ="))
    ran = state.run(*command, "ORDER#1", "HEAD", *STATE)
    assert ran == (
        2,
        "",
        (
            "Error: The item ORDER#1 / HEAD only has attributes that handlers derive from others: expected PARTITION "
            "and SORT of ORDER#{order_id} / ITEM#{sku}.\n"
        ),
    )
    assert "No handler writes a row ORDER#1 / HEAD" in state.run("explain", "ORDER#1", "HEAD", *STATE).err


def test_the_state_on_dynamodb_is_read_only_when_asked_for(on_aws, records):
    on_aws.folder.app(SHOP.replace("@router.attributes(ITEM)\n", ""))  # moto does not take what they update
    on_aws.deliver(*records)

    ran = on_aws.run("explain", "ORDER#1", "TOTAL")
    scanned = on_aws.run("explain", "ORDER#1", "TOTAL", "--scan")

    assert ran.code == 1
    assert ran.out.splitlines()[-1] == (
        "Only 0 of 3 contributions are known without reading the whole state: --scan reads it."
    )
    assert scanned.code == 0, scanned.out
    assert "order_total  ORDER#1 / ITEM#a" in scanned.out
    assert on_aws.run("explain", "SKU#b", "ORDER#1").code == 0
    assert on_aws.run("explain", "BEST#1", "PRICE").code == 0


@pytest.fixture
def pending(on_aws, source):
    """Three lines of an order, of which one waits in a delta."""
    on_aws.deliver(*(source.put("ORDER#1", f"ITEM#{sku}", price=price) for sku, price in (("a", 1), ("b", 5))))
    on_aws.deliver_in_deltas(source.put("ORDER#1", "ITEM#c", price=2))
    return on_aws


def refuse(on_aws):
    """Somebody makes the total no number, so that the row takes nothing more; then the delta is tried again."""
    update = {"UpdateExpression": "SET #total = :text", "ExpressionAttributeNames": {"#total": "total"}}
    key = {"PK": {"S": "ORDER#1"}, "SK": {"S": "TOTAL"}}
    on_aws.client.update_item(TableName="shop", Key=key, ExpressionAttributeValues={":text": {"S": "?"}}, **update)
    app = on_aws.app()
    for bucket in range(BUCKETS):
        empty_buckets(Runtime(app, on_aws.engine(app), Settings()), [bucket], {})


def test_what_is_pending_of_a_row_is_shown_and_the_row_with_it_compared(pending):
    ran = pending.run("explain", "ORDER#1", "TOTAL", "--scan")

    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-4:] == [
        "sum  3 contributions  lines=3  total=8",
        "row  2 contributions  lines=2  total=6",
        "pending  1 contribution  lines=1  total=2  in 1 delta",
        "The row with what is pending is what its items contribute.",
    ]
    found = report(pending.run("explain", "ORDER#1", "TOTAL", "--scan", "--json"))
    adds = {"lines": {"N": "1"}, "total": {"N": "2"}}
    assert found["pending"] == {"deltas": 1, "contributors": 1, "adds": adds, "refused": []}
    assert (found["counted"], found["agrees"]) == (2, True)


def test_a_row_that_differs_from_its_items_with_what_is_pending_is_told(pending):
    refuse(pending)

    ran = pending.run("explain", "ORDER#1", "TOTAL", "--scan")

    assert ran.code == 1
    assert "refused  The store refused the write with " in ran.out
    assert ran.out.splitlines()[-1] == (
        "The row with what is pending is not what its items contribute: total is ?, expected 8."
    )


def test_the_deltas_of_an_item_are_shown(pending):
    ran = pending.run("explain", "--item", "ORDER#1", "ITEM#c")

    assert ran.code == 0, ran.err
    (line,) = (line for line in ran.out.splitlines() if "delta" in line)
    assert line.endswith("is pending: the rows do not have it yet")
    handlers = report(pending.run("explain", "--item", "ORDER#1", "ITEM#c", "--json"))["handlers"]
    ((delta,),) = (each["deltas"] for each in handlers if "deltas" in each)
    assert (delta["status"], delta["why"]) == ("pending", None)

    refuse(pending)
    assert "is refused by a row: The store refused" in pending.run("explain", "--item", "ORDER#1", "ITEM#c").out


def test_the_deltas_of_an_item_that_are_in_the_rows_are_gone(pending, source):
    app = pending.app()
    for bucket in range(BUCKETS):
        empty_buckets(Runtime(app, pending.engine(app), Settings()), [bucket], {})

    assert "is gone: the rows have it" in pending.run("explain", "--item", "ORDER#1", "ITEM#c").out
    assert "pending" not in pending.run("explain", "ORDER#1", "TOTAL", "--scan").out


def test_the_failed_records_of_an_item_are_shown_with_the_request_that_failed(state, records):
    waiting = state.path / "waiting"
    waiting.mkdir()
    lines = [parked_record(each, "order_total", request_id=f"request-{number}") for number, each in enumerate(records)]
    (waiting / "parked.jsonl").write_text("".join(f"{each.text()}\n" for each in lines))
    (waiting / "batch.json").write_text(queue_message(*records))

    ran = state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE, "--parked", "waiting")

    assert ran.code == 1  # a record waits
    sequence = records[1]["dynamodb"]["SequenceNumber"]
    assert f"sequence {sequence}  handler order_total  at 2026-03-01T09:00:00Z\n    request  request-1\n" in ran.out
    assert "why      LookupError: no" in ran.out
    assert "request-0" not in ran.out
    assert "1 document holds sequence numbers alone" in ran.out
    found = report(state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE, "--parked", "waiting", "--json"))
    assert [each["request_id"] for each in found["waiting"]["records"]] == ["request-1"]
    assert found["waiting"]["ranges"] == 1


def test_no_failed_record_of_an_item_is_said(state):
    (state.path / "none").mkdir()
    ran = state.run("explain", "--item", "ORDER#1", "ITEM#b", *STATE, "--parked", "none")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "No failed record of the item waits there.")


def test_a_location_of_failed_records_belongs_to_an_item(state):
    assert "--parked belongs to --item." in state.run("explain", "ORDER#1", "TOTAL", *STATE, "--parked", "x").err


DESK = """
from streamfold import App, Key, Now, Router, Row

TICKET = Key("TICKET#{ticket_id}", "META")
router = Router()


@router.index(TICKET, into=Key("LATE", "TICKET#{ticket_id}"))
def late(ticket, now: Now):
    return Row(due=ticket["due"]) if now.passed(ticket["due"]) else None


app = App("desk", routers=[router])
"""


def test_a_wake_that_is_lost_is_told_as_by_verify(folder, source):
    folder.app(DESK)
    records = folder.records(source.put("TICKET#1", "META", due="2099-03-01T10:00:00Z"))
    assert folder.run("replay", records, *STATE).code == 0
    assert folder.run("explain", "--item", "TICKET#1", "META", *STATE).code == 0
    with closing(sqlite3.connect(folder.path / "state.db")) as connection, connection:
        assert connection.execute("DELETE FROM state WHERE pk LIKE 'wake#%'").rowcount == 1

    ran = folder.run("explain", "--item", "TICKET#1", "META", *STATE)
    found = report(folder.run("explain", "--item", "TICKET#1", "META", *STATE, "--json"))

    assert (ran.code, folder.run("verify", *STATE).code) == (1, 1)
    assert "late (index) differs" in ran.out
    assert "lacking  the wake of that moment" in ran.out
    assert [(each["agrees"], each["without_wake"]) for each in found["handlers"]] == [(False, True)]
